package fault_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

// A reply that is late by just as long as its caller waits is lost: which of the two
// timers is heard first is by chance, and must not decide.
func TestDelayThatEndsWithTheDeadline(t *testing.T) {
	for _, ph := range []fault.Phase{fault.Before, fault.After} {
		for range 200 {
			synctest.Test(t, func(t *testing.T) {
				in := &fault.Interceptor{Ledger: &ledger.Ledger{}, Plan: &fault.Plan{}}
				in.Plan.Arm(fault.Rule{Hop: ledger.CSI, Op: "NodeStageVolume", Phase: ph, Do: fault.Latency(2*time.Minute, 0)})
				ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
				defer cancel()
				err := in.Do(ctx, fault.Call{Hop: ledger.CSI, Op: "NodeStageVolume"}, func(context.Context) error { return nil })
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("phase %s: %v", ph, err)
				}
			})
		}
	}
}

// A call whose caller gives up at the very moment at which a rule lets it go has
// ended, as its caller sees it: a server hears of it by a broken connection, not by a
// deadline.
func TestDelayThatEndsWithTheCaller(t *testing.T) {
	for _, ph := range []fault.Phase{fault.Before, fault.After} {
		for range 200 {
			synctest.Test(t, func(t *testing.T) {
				life, end := context.WithCancel(context.Background())
				turns := fault.NewTurns(1, synctest.Wait)
				var given sync.WaitGroup
				given.Go(func() { turns.Run(life) })
				in := &fault.Interceptor{Ledger: &ledger.Ledger{}, Plan: &fault.Plan{}, Turn: turns.Take}
				in.Plan.Arm(fault.Rule{Hop: ledger.CSP, Op: "GET /volumes", Phase: ph, Do: fault.Latency(time.Minute, 0)})
				ctx, cancel := context.WithCancel(context.Background())
				caller := time.AfterFunc(time.Minute, cancel)
				defer caller.Stop()
				err := in.Do(ctx, fault.Call{Hop: ledger.CSP, Op: "GET /volumes"}, func(context.Context) error { return nil })
				if !errors.Is(err, context.Canceled) {
					t.Errorf("phase %s: %v", ph, err)
				}
				end()
				given.Wait()
			})
			if t.Failed() {
				return
			}
		}
	}
}

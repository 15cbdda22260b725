package fault_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

// order starts calls in a given order and says in which they came to pass.
func order(t *testing.T, seed uint64, components []string) (out []string) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		turns := fault.NewTurns(seed, synctest.Wait)
		var given, callers sync.WaitGroup
		given.Go(func() { turns.Run(ctx) })
		in := &fault.Interceptor{Turn: turns.Take}
		busy := false // a second call at the same time would be a race
		for _, c := range components {
			callers.Go(func() {
				for n := range 3 {
					_ = in.Do(ctx, fault.Call{Hop: ledger.Kube, Op: "get", Component: c}, func(context.Context) error {
						if busy {
							t.Error("two calls at once")
						}
						busy = true
						out = append(out, fmt.Sprint(c, n))
						busy = false
						return nil
					})
				}
			})
		}
		callers.Wait()
		cancel()
		given.Wait()
	})
	return out
}

// The order of calls is the seed's, whoever comes first.
func TestTurns(t *testing.T) {
	names := strings.Split("abcdefghij", "")
	first := order(t, 7, names)
	if len(first) != 30 {
		t.Fatal(first)
	}
	for range 20 {
		slices.Reverse(names)
		if again := order(t, 7, names); !slices.Equal(first, again) {
			t.Fatalf("another order:\n%v\n%v", first, again)
		}
	}
	if slices.Equal(first, order(t, 8, names)) {
		t.Error("another seed gave the same order")
	}
}

// After the end nobody waits.
func TestTurnsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := fault.NewTurns(1, synctest.Wait)
		var waits sync.WaitGroup
		waits.Go(func() { turns.Take(context.Background(), fault.Call{}) })
		synctest.Wait()
		gone, cancel := context.WithCancel(context.Background())
		cancel()
		turns.Run(gone)
		waits.Wait()
		turns.Take(context.Background(), fault.Call{})
	})
}

// Calls that end at one moment with their context wait for their turns as well,
// and the ledger knows nothing of those that were never made.
func TestTurnsOfCallsThatEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run, stop := context.WithCancel(context.Background())
		turns := fault.NewTurns(3, synctest.Wait)
		l := &ledger.Ledger{}
		in := &fault.Interceptor{Turn: turns.Take, Ledger: l}
		ctx, crash := context.WithCancelCause(run)
		var callers, given sync.WaitGroup
		for i := range 10 {
			callers.Go(func() {
				err := in.Do(ctx, fault.Call{Hop: ledger.Kube, Op: "get", Component: fmt.Sprint(i)}, func(context.Context) error { return nil })
				if !errors.Is(err, fault.ErrCrashed) {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		crash(fault.ErrCrashed)
		given.Go(func() { turns.Run(run) })
		callers.Wait()
		stop()
		given.Wait()
		if n := l.Len(); n != 0 {
			t.Errorf("%d entries", n)
		}
	})
}

// Who sleeps until one moment goes on in the seed's order.
func TestSleep(t *testing.T) {
	wake := func(names []string) (out []string) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			turns := fault.NewTurns(3, synctest.Wait)
			in := &fault.Interceptor{Turn: turns.Take}
			var sleepers, given sync.WaitGroup
			given.Go(func() { turns.Run(ctx) })
			for _, n := range names {
				sleepers.Go(func() {
					if err := in.Sleep(ctx, time.Minute, fault.Call{Component: n}); err != nil {
						t.Error(err)
					}
					out = append(out, n)
				})
			}
			sleepers.Wait()
			cancel()
			given.Wait()
		})
		return out
	}
	names := strings.Split("abcdefghij", "")
	first := wake(names)
	for range 20 {
		slices.Reverse(names)
		if again := wake(names); !slices.Equal(first, again) {
			t.Fatalf("another order:\n%v\n%v", first, again)
		}
	}
}

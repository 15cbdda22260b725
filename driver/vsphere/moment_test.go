package vsphere_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csilab/csilab/driver/controller"
	"github.com/csilab/csilab/driver/record"
	"github.com/csilab/csilab/driver/vsphere"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/transport"
	"github.com/csilab/csilab/sim/vcenter"
)

// Waits for tasks that fail together go on one after the other: they share a pool of
// collectors, and who takes which must not be by chance.
func TestWaitsOfAMomentGoOnApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		net := transport.NewMemory()
		l, err := net.Listen("tcp", "10.0.0.1:443")
		if err != nil {
			t.Fatal(err)
		}
		const volumes = 5
		in := &fault.Interceptor{Ledger: &ledger.Ledger{}, Plan: &fault.Plan{Seed: 1}}
		in.Plan.Arm(fault.Rule{Name: "no collectors for a moment", Hop: ledger.VCenter, Op: "CreateFilter", First: volumes, Do: fault.Drop()})
		vc, err := vcenter.New(ctx, vcenter.Config{Seed: 1, In: in, Nodes: []vcenter.Node{{Name: "node-1"}}, Listener: l,
			TaskLatency: map[string]time.Duration{"CnsCreateVolume": time.Minute}})
		if err != nil {
			t.Fatal(err)
		}
		conf, err := vsphere.ParseConfig([]byte(vc.Conf("cluster-1")), nil)
		if err != nil {
			t.Fatal(err)
		}
		conf.VCenter.Scheme = "http"
		b, err := vsphere.New(ctx, vsphere.Options{Config: conf, Dial: net.DialContext, Records: record.NewMemory()})
		if err != nil {
			t.Fatal(err)
		}
		s := controller.New(controller.Config{Backend: b})
		var made sync.WaitGroup
		for i := range volumes {
			made.Go(func() {
				if _, err := s.CreateVolume(ctx, createRequest(fmt.Sprintf("pvc-%d", i), 1<<30)); err != nil {
					t.Error(err)
				}
			})
		}
		made.Wait()
		seen := map[time.Time]bool{}
		var refused time.Time
		for _, e := range in.Ledger.Entries(ledger.OnHop(ledger.VCenter, "CreateFilter")) {
			if e.Fault != "" {
				refused = e.Start
				continue
			}
			if seen[e.Start] {
				t.Errorf("two waits go on %v after all failed", e.Start.Sub(refused))
			}
			seen[e.Start] = true
		}
		if len(seen) != volumes {
			t.Errorf("%d waits of %d", len(seen), volumes)
		}
		if err := b.Close(ctx); err != nil {
			t.Error(err)
		}
		vc.Close()
	})
}

package vcenter_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/session"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/types"

	labfault "github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/vcenter"
)

// A wait whose client goes away at the moment at which its session ends has ended by
// the latter, whichever is heard first.
func TestWaitThatLosesClientAndSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		// All that waits for a turn gets it once the moment is over.
		var held atomic.Pointer[chan struct{}]
		in := &labfault.Interceptor{Ledger: &ledger.Ledger{}, Turn: func(context.Context, labfault.Call) {
			if c := held.Load(); c != nil {
				<-*c
			}
		}}
		v, c := bubbled(ctx, t, vcenter.Config{In: in})
		if err := session.NewManager(c).Login(ctx, v.URL().User); err != nil {
			t.Fatal(err)
		}
		pc, err := property.DefaultCollector(c).Create(ctx)
		if err != nil {
			t.Fatal(err)
		}
		request, leave := context.WithCancel(ctx)
		var waits sync.WaitGroup
		ask := func(version string) error {
			_, err := methods.WaitForUpdatesEx(request, c, &types.WaitForUpdatesEx{This: pc.Reference(), Version: version})
			return err
		}
		if err := ask(""); err != nil {
			t.Fatal(err)
		}
		waits.Go(func() { _ = ask("1") })
		synctest.Wait()
		over := make(chan struct{})
		held.Store(&over)
		leave()
		synctest.Wait()
		if n := v.KillSessions(); n != 1 {
			t.Fatalf("%d sessions", n)
		}
		synctest.Wait()
		held.Store(nil)
		close(over)
		waits.Wait()
		v.Close()
		waited := in.Ledger.Entries(ledger.OnHop(ledger.VCenter, "WaitForUpdatesEx"))
		if last := waited[len(waited)-1]; len(waited) != 2 || !strings.HasPrefix(last.Error, "NotAuthenticated") {
			t.Errorf("%d waits, the last one ended with %q", len(waited), last.Error)
		}
	})
}

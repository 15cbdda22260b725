package sim_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/simtest"
)

// A driver that crashes while a pod starts is back by itself, and with it the
// pod.
func TestConverges(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lab := simtest.New(t, simtest.Bubble())
		ctx := hour(t)
		lab.Inject(fault.Rule{Name: "crash", Hop: ledger.CSI, Op: "NodeStageVolume", Phase: fault.After, Nth: 1, Do: fault.Crash("driver@node-1")})
		must(t, lab.Create(ctx, claim("data"), pod("app", "node-1", "data")))
		time.Sleep(time.Minute)
		must(t, lab.Converge(ctx))
		must(t, lab.Unfired())
		p, err := lab.Pod("app")
		if err != nil || p.Status.Phase != corev1.PodRunning {
			t.Errorf("pod %v, %v", p, err)
		}
		// What comes later is no healing: hours may pass, and hands may act.
		time.Sleep(time.Hour / 2)
		lab.Crash("kubelet@node-1")
		must(t, lab.Check(ctx))
		end(ctx, t, lab, "app", "data")
	})
}

func TestDoesNotConverge(t *testing.T) {
	for _, tc := range []struct {
		name, want string
		breakIt    func(ctx context.Context, t *testing.T, lab *sim.Lab)
	}{
		{"a driver that never publishes again", "Pod default/app waits", func(_ context.Context, _ *testing.T, lab *sim.Lab) {
			lab.Inject(fault.Rule{Name: "for ever", Hop: ledger.CSI, Op: "NodePublishVolume", Do: fault.Error(status.Error(codes.Internal, "no"))})
		}},
		{"one that has to be helped", "restarted by hand after the faults stopped: driver@node-1", func(_ context.Context, _ *testing.T, lab *sim.Lab) {
			lab.Inject(fault.Rule{Name: "helped", Hop: ledger.CSI, Op: "NodePublishVolume", Nth: 1, Do: fault.Func("restart", func(context.Context, fault.Call) error {
				lab.Crash("driver@node-1")
				return status.Error(codes.Unavailable, "restarting")
			})})
		}},
		{"one who asks without end", "user made", func(ctx context.Context, t *testing.T, lab *sim.Lab) {
			ctx, cancel := context.WithCancel(ctx)
			done := make(chan struct{})
			t.Cleanup(func() { cancel(); <-done })
			go func() {
				defer close(done)
				tick := time.NewTicker(time.Millisecond)
				defer tick.Stop()
				for {
					select {
					case <-tick.C:
						_, _ = store.Modify(ctx, lab.Client(), sim.Namespace, "data", func(c *corev1.PersistentVolumeClaim) error {
							c.Annotations = map[string]string{"now": time.Now().String()}
							return nil
						})
					case <-ctx.Done():
						return
					}
				}
			}()
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				lab := simtest.New(t, simtest.Bubble(), simtest.With(func(o *sim.Options) { o.Settle = 2 * time.Minute }))
				ctx := hour(t)
				tc.breakIt(ctx, t, lab)
				must(t, lab.Create(ctx, claim("data"), pod("app", "node-1", "data")))
				err := lab.Converge(ctx)
				names(t, err, "I7")
				if !strings.Contains(err.Error(), tc.want) {
					t.Errorf("error %v, want %q", err, tc.want)
				}
			})
		})
	}
}

// Who has no time left has learned nothing about the lab.
func TestConvergeEndsWithItsContext(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lab := simtest.New(t, simtest.Bubble())
		lab.Inject(fault.Rule{Name: "hangs", Hop: ledger.CSI, Op: "NodePublishVolume", Nth: 1, Do: fault.Hang()})
		must(t, lab.Create(hour(t), claim("data"), pod("app", "node-1", "data")))
		ctx, cancel := context.WithTimeout(hour(t), time.Minute)
		defer cancel()
		err := lab.Converge(ctx)
		var te *sim.TimeoutError
		if !errors.As(err, &te) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
	})
}

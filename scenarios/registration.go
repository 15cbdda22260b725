package scenarios

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:     "driver-registered-again",
		Text:     "driver, registrar and kubelet of a node die in turn: the driver stays in CSINode or comes back, running pods keep their volumes and new ones start",
		Labels:   []string{"registration", "stage", "crash"},
		Flow:     registeredAgain,
		Mutation: "a driver whose NodeGetInfo fails when it is asked again",
		Mutate: func(l *sim.Lab) {
			node := l.Nodes()[0]
			var asked atomic.Int64
			l.Inject(fault.Rule{Name: "no second NodeGetInfo", Hop: ledger.CSI, Op: "NodeGetInfo", Component: "kubelet@" + node, MayNotFire: true,
				Do: fault.Func("fail from the second on", func(context.Context, fault.Call) error {
					if asked.Add(1) > 1 {
						return status.Error(codes.Internal, "asked once already")
					}
					return nil
				})})
		},
	})
}

func registeredAgain(ctx context.Context, l *sim.Lab) error {
	node := l.Nodes()[0]
	c := claim("data", "fast", "256Mi")
	driver, registrar, kubelet := "driver@"+node, "registrar@"+node, "kubelet@"+node
	// kill ends a component, waits for its next life, and sees that the pod
	// has noticed nothing.
	kill := func(component string) error {
		before := l.Starts(component)
		l.Crash(component)
		return steps(
			func() error { return l.Restarted(ctx, component, before) },
			func() error { return registered(ctx, l, component) },
			func() error {
				return step(l.Expect(ctx, "app", "/data/a", "written before"), "after the death of %s", component)
			},
		)
	}
	use := func(name string) error {
		other := claim(name, "fast", "16Mi")
		return steps(
			func() error { return l.Create(ctx, other) },
			func() error { _, err := l.Bound(ctx, name); return err },
			func() error { return l.Create(ctx, pod(name, node, other)) },
			func() error { _, err := l.Running(ctx, name); return err },
			func() error { return l.Write(ctx, name, "/"+name+"/a", name) },
			func() error { return l.Check(ctx) },
			func() error { return l.DeletePod(ctx, name) },
			func() error { return l.DeletePVC(ctx, name) },
		)
	}
	return steps(
		func() error { return l.Create(ctx, c) },
		func() error { _, err := l.Bound(ctx, "data"); return err },
		func() error { return l.Create(ctx, pod("app", node, c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/data/a", "written before") },
		// The driver's death alone takes nothing out of CSINode: the registrar's
		// socket is what kubelet watches.
		func() error {
			before := l.Starts(driver)
			l.Crash(driver)
			if err := l.Restarted(ctx, driver, before); err != nil {
				return err
			}
			if !l.Registered(node) {
				return fmt.Errorf("CSINode %s has lost the driver: %w", node, errUnexpected)
			}
			return nil
		},
		func() error { return use("after-driver") },
		func() error { return kill(registrar) },
		func() error { return use("after-registrar") },
		func() error { return kill(kubelet) },
		func() error { return use("after-kubelet") },
		func() error { return kill(driver) },
		func() error { return kill(registrar) },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePVC(ctx, "data") },
		func() error { return l.Empty(ctx) },
	)
}

// registered waits until all nodes have the driver. Kubelet and registrar
// take moments with the fast timers, a minute with real ones.
func registered(ctx context.Context, l *sim.Lab, after string) error {
	limit := longer(l, moments, 5*time.Minute)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("after %v", limit))
	defer cancel()
	return step(l.NodesReady(ctx), "after the death of %s", after)
}

package scenarios

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	lies := func(l *sim.Lab) {
		l.Inject(fault.Rule{Name: "detach lies", Hop: ledger.CSI, Op: "ControllerUnpublishVolume", Do: fault.Skip()})
	}
	register(Scenario{
		Name:   "node-deleted",
		Text:   "a node's VM and Node object are deleted; its volume is released and starts elsewhere with its data",
		Labels: []string{"attach", "node-loss"},
		Incidents: []string{"V01 kubernetes-sigs/vsphere-csi-driver#221, kubernetes-sigs/vsphere-csi-driver#526, " +
			"kubernetes-sigs/vsphere-csi-driver#359, kubernetes-sigs/vsphere-csi-driver#1879, deckhouse/deckhouse#919"},
		Flow:     nodeDeleted,
		Mutation: "a driver that can't unpublish because the VM is not there (kubernetes-sigs/vsphere-csi-driver#221)",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "no VM, no detach", Hop: ledger.CSI, Op: "ControllerUnpublishVolume",
				Do: fault.Error(status.Error(codes.Internal, "failed to find VirtualMachine"))})
		},
	})
	register(Scenario{
		Name:      "node-object-deleted",
		Text:      "only the Node object is deleted while the VM runs on: the disk is detached for real before it is attached elsewhere",
		Labels:    []string{"attach", "node-loss"},
		Incidents: []string{"V02 kubernetes-sigs/vsphere-csi-driver#529"},
		Flow:      nodeObjectDeleted,
		Mutation:  "a ControllerUnpublishVolume that answers OK because the node is not known",
		Mutate:    lies,
	})
	register(Scenario{
		Name:     "node-powered-off",
		Text:     "a node loses power: its volume is force-detached after the time-out and starts elsewhere with what was synced",
		Labels:   []string{"attach", "node-loss"},
		Kernel:   true,
		Flow:     func(ctx context.Context, l *sim.Lab) error { return poweredOff(ctx, l, false) },
		Mutation: "a ControllerUnpublishVolume that answers OK and leaves the disk on the dead node",
		Mutate:   lies,
	})
	register(Scenario{
		Name:      "node-out-of-service",
		Text:      "a node loses power and is tainted out-of-service: its volume moves at once",
		Labels:    []string{"K08", "incident", "attach", "node-loss"},
		Incidents: []string{"K08 kubernetes/kubernetes#128404"},
		Flow:      func(ctx context.Context, l *sim.Lab) error { return poweredOff(ctx, l, true) },
		Mutation:  "a ControllerUnpublishVolume that answers OK and leaves the disk on the dead node",
		Mutate:    lies,
	})
}

func nodeDeleted(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	c := claim("data", "fast", "256Mi")
	return steps(
		func() error { return l.Create(ctx, c) },
		func() error { _, err := l.Bound(ctx, "data"); return err },
		func() error { return l.Create(ctx, pod("app", a, c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/data/a", "survives its node") },
		func() error { return l.DestroyVM(ctx, a) },
		func() error { return l.DeleteNode(ctx, a) },
		func() error {
			// The pod garbage collector removes pods of nodes that are gone.
			p := pod("app", a)
			return l.Gone(ctx, p)
		},
		func() error { return l.Detached(ctx, l.PVName("data")) },
		func() error { return l.Create(ctx, pod("app", b, c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Expect(ctx, "app", "/data/a", "survives its node") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePVC(ctx, "data") },
		func() error { return l.Empty(ctx) },
	)
}

func nodeObjectDeleted(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	c := claim("data", "fast", "256Mi")
	return steps(
		func() error { return l.Create(ctx, c) },
		func() error { _, err := l.Bound(ctx, "data"); return err },
		func() error { return l.Create(ctx, pod("app", a, c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/data/a", "survives its node object") },
		// The machine is cut off and its object deleted; the VM still runs.
		func() error { l.Forget(a); return l.StopKubelet(a) },
		func() error { return l.DeleteNode(ctx, a) },
		func() error { return l.Gone(ctx, pod("app", a)) },
		func() error { return l.Create(ctx, pod("app", b, c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error {
			// Of the two attachments the first ended before the second began.
			on := l.Operations()
			var order []string
			for _, e := range l.Ledger.Entries(ledger.OnHop(l.StorageHop(), on.Attach, on.Detach)) {
				if e.Outcome == ledger.OK {
					order = append(order, e.Op)
				}
			}
			if want := []string{on.Attach, on.Detach, on.Attach}; !slices.Equal(order, want) {
				return fmt.Errorf("the driver did %q, expected is %q: %w", order, want, errUnexpected)
			}
			return nil
		},
		func() error { return l.Expect(ctx, "app", "/data/a", "survives its node object") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePVC(ctx, "data") },
		func() error { return l.Empty(ctx) },
	)
}

func poweredOff(ctx context.Context, l *sim.Lab, outOfService bool) error {
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	c := claim("data", "fast", "256Mi")
	return steps(
		func() error { return l.Create(ctx, c) },
		func() error { _, err := l.Bound(ctx, "data"); return err },
		func() error { return l.Create(ctx, tolerateNothing(pod("app", a, c))) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/data/a", "synced before the power went") },
		func() error { return l.PowerOff(ctx, a) },
		func() error {
			if outOfService {
				return l.Taint(ctx, a, "node.kubernetes.io/out-of-service", corev1.TaintEffectNoExecute)
			}
			// A user gives up on the pod; its kubelet can't confirm.
			if err := l.NotReady(ctx, a); err != nil {
				return err
			}
			return l.ForceDeletePod(ctx, "app")
		},
		func() error { return l.Gone(ctx, pod("app", a)) },
		func() error { return l.Create(ctx, pod("app", b, c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Expect(ctx, "app", "/data/a", "synced before the power went") },
		func() error { return l.Write(ctx, "app", "/data/b", "on the second node") },
		func() error { return l.Check(ctx) },
		// The node comes back: it must not touch what is no longer its own.
		func() error { return l.PowerOn(ctx, a) },
		func() error { return l.NodesReady(ctx) },
		func() error { return l.Expect(ctx, "app", "/data/b", "on the second node") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePVC(ctx, "data") },
		func() error { return l.Empty(ctx) },
	)
}

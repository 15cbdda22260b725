package scenarios

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:      "late-detach-of-deleted-node",
		Text:      "detaches for a node arrive again after its Node object is gone, and again after its machine is: they are answered, and new volumes are made and used as if the node had never been",
		Labels:    []string{"detach", "provision", "node-loss", "duplicate"},
		Incidents: []string{"V32 kubernetes-sigs/vsphere-csi-driver#2546, kubernetes-sigs/vsphere-csi-driver#2597"},
		Options:   func(o *sim.Options) { o.Nodes = 3 },
		Flow:      lateDetach,
		Mutation:  "a driver that remembers the node by the late detach, and fails to make volumes once its machine is gone",
		Mutate: func(l *sim.Lab) {
			var late atomic.Bool
			l.Inject(fault.Rule{Name: "the node is remembered", Hop: ledger.CSI, Op: "ControllerUnpublishVolume", Component: caller, MayNotFire: true,
				Do: fault.Func("remember", func(context.Context, fault.Call) error { late.Store(true); return nil })})
			l.Inject(fault.Rule{Name: "its machine is gone", Hop: ledger.CSI, Op: "CreateVolume", Do: fault.Error(status.Error(codes.Internal, "failed to get the host of the virtual machine")),
				Match: func(fault.Call) bool { return late.Load() }})
		},
	})
	register(Scenario{
		Name:      "registered-before-the-backend",
		Text:      "driver and nodes start while the backend is out of reach: nodes that fail to register are tried again, and once it is there all of them can be used",
		Labels:    []string{"registration", "session", "topology"},
		Incidents: []string{"V34 kubernetes-sigs/vsphere-csi-driver#2284, kubernetes-sigs/vsphere-csi-driver#3962"},
		Flow:      registeredBeforeTheBackend,
		Mutation:  "a node that failed to register once, and stays unknown",
		Mutate: func(l *sim.Lab) {
			node := l.Nodes()[0]
			l.Inject(fault.Rule{Name: "unknown for good", Hop: ledger.CSI, Op: "NodeGetInfo", Component: "kubelet@" + node,
				Do: fault.Error(status.Error(codes.Internal, "node wasn't found in the vCenter"))})
		},
	})
}

func lateDetach(ctx context.Context, l *sim.Lab) error {
	a, b, other := l.Nodes()[0], l.Nodes()[1], l.Nodes()[2]
	id := ""
	late := func(when string) func() error {
		return func() error { return step(l.As(caller).UnpublishVolume(ctx, id, a), "a detach from %s, %s", a, when) }
	}
	return steps(
		func() error { return used(ctx, l, "data", "app", a, "moves on") },
		func() error { id = l.VolumeID("data"); return nil },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Detached(ctx, l.PVName("data")) },
		func() error { l.Forget(a); return l.StopKubelet(a) },
		func() error { return l.DeleteNode(ctx, a) },
		late("whose Node object is gone"),
		func() error { return l.Create(ctx, pod("app", b, claim("data", "fast", "256Mi"))) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		late("while another node has the volume"),
		func() error { return exportedTo(ctx, l, "data", b) },
		func() error { return l.DestroyVM(ctx, a) },
		late("whose machine is gone"),
		func() error { return exportedTo(ctx, l, "data", b) },
		func() error { return used(ctx, l, "fresh", "user", other, "made afterwards") },
		func() error { return l.Expect(ctx, "app", "/data/a", "moves on") },
		func() error { return l.Check(ctx) },
		func() error { return removed(ctx, l, []string{"app", "user"}, []string{"data", "fresh"}) },
	)
}

func registeredBeforeTheBackend(ctx context.Context, l *sim.Lab) error {
	var end func()
	var since uint64
	return steps(
		// All of the driver starts again, and finds nobody.
		func() error {
			end = outage(l)
			l.KillSessions()
			since = uint64(l.Ledger.Len())
			for _, c := range []string{"driver-controller", "csi-provisioner", "csi-attacher"} {
				l.Crash(c)
			}
			for _, n := range l.Nodes() {
				l.Crash("driver@" + n)
				l.Crash("registrar@" + n)
			}
			return l.Create(ctx, claim("data", "fast", "256Mi"))
		},
		func() error {
			return l.Until(ctx, "the driver has looked for its backend", func() bool {
				return len(l.Ledger.Entries(ledger.After(since), ledger.OnHop(l.StorageHop()), func(e ledger.Entry) bool { return e.Outcome == ledger.Refused })) > 0
			})
		},
		func() error { end(); return nil },
		func() error {
			for _, n := range l.Nodes() {
				if err := registersAgain(ctx, l, n, since); err != nil {
					return err
				}
			}
			return step(l.NodesReady(ctx), "after the backend has come back")
		},
		func() error {
			for _, n := range l.Nodes() {
				if err := used(ctx, l, "of-"+n, "on-"+n, n, n); err != nil {
					return step(err, "on %s", n)
				}
			}
			return nil
		},
		func() error { _, err := l.Bound(ctx, "data"); return err },
		func() error { return backendVolumes(l, 1+len(l.Nodes())) },
		func() error { return l.Check(ctx) },
		func() error {
			var pods []string
			claims := []string{"data"}
			for _, n := range l.Nodes() {
				pods, claims = append(pods, "on-"+n), append(claims, "of-"+n)
			}
			return removed(ctx, l, pods, claims)
		},
	)
}

package scenarios

import (
	"context"
	"sync/atomic"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:     "node-rebooted",
		Text:     "a node loses power and comes back at once: its pods start again on it, on the same disks, with what was synced",
		Labels:   []string{"stage", "node-loss"},
		Kernel:   true,
		Flow:     rebooted,
		Mutation: "a NodePublishVolume that answers OK without mounting once the node was rebooted",
		Mutate: func(l *sim.Lab) {
			var n atomic.Int64
			l.Inject(fault.Rule{Name: "publish lies", Hop: ledger.CSI, Op: "NodePublishVolume", Do: fault.Skip(),
				Match: func(fault.Call) bool { return n.Add(1) > 2 }}) // two volumes before
		},
	})
	register(Scenario{
		Name:      "disk-pulled",
		Text:      "somebody takes the disk of a running pod off its VM: the pod sees errors, can be deleted, and starts elsewhere with what was synced",
		Labels:    []string{"K38", "incident", "attach", "stage", "node-loss"},
		Incidents: []string{"K38 ceph/ceph-csi#859"},
		Flow:      diskPulled,
		Mutation:  "a NodeUnstageVolume that answers OK and leaves the dead mount",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "unstage lies", Hop: ledger.CSI, Op: "NodeUnstageVolume", Do: fault.Skip()})
		},
	})
	register(Scenario{
		Name:     "many-writers-refused",
		Text:     "a claim for writers on many nodes is refused with an event and no volume is made",
		Labels:   []string{"access", "provision"},
		Flow:     manyWriters,
		Mutation: "a provisioner that asks for a volume of one node whatever the claim says",
		MutateOptions: func(o *sim.Options) {
			o.AlterCSI = func(_ string, req any) any {
				r, ok := req.(*csi.CreateVolumeRequest)
				if !ok {
					return req
				}
				r = proto.CloneOf(r)
				for _, c := range r.VolumeCapabilities {
					c.AccessMode.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
				}
				return r
			}
		},
	})
}

func rebooted(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	c, raw := claim("data", "fast", "256Mi"), claim("raw", "fast", "256Mi", block)
	return steps(
		func() error { return l.Create(ctx, c, raw) },
		func() error { _, err := l.Bound(ctx, "data"); return err },
		func() error { _, err := l.Bound(ctx, "raw"); return err },
		func() error { return l.Create(ctx, pod("app", a, c, raw)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/data/a", "synced before") },
		func() error { return l.Write(ctx, "app", "/dev/raw", "also synced") },
		func() error { return l.PowerOff(ctx, a) },
		func() error { return l.PowerOn(ctx, a) },
		func() error { return l.NodesReady(ctx) },
		func() error { return l.RunningAgain(ctx, "app", 1) },
		func() error { return l.Expect(ctx, "app", "/data/a", "synced before") },
		func() error { return l.Expect(ctx, "app", "/dev/raw", "also synced") },
		func() error { return l.Write(ctx, "app", "/data/b", "written after") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePVC(ctx, "data") },
		func() error { return l.DeletePVC(ctx, "raw") },
		func() error { return l.Empty(ctx) },
	)
}

func diskPulled(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	c := claim("data", "fast", "256Mi")
	return steps(
		func() error { return l.Create(ctx, c) },
		func() error { _, err := l.Bound(ctx, "data"); return err },
		func() error { return l.Create(ctx, pod("app", a, c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/data/a", "synced before") },
		func() error { return l.PullDisk(ctx, a, "data") },
		func() error {
			if err := l.Write(ctx, "app", "/data/b", "to nowhere"); err == nil {
				return step(errUnexpected, "a pod writes and syncs to a disk that is gone")
			}
			return nil
		},
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Detached(ctx, l.PVName("data")) },
		func() error { return l.Create(ctx, pod("app", l.OtherNode(a), c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Expect(ctx, "app", "/data/a", "synced before") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		// And back on the node that lost it.
		func() error { return l.Create(ctx, pod("app", a, c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Expect(ctx, "app", "/data/a", "synced before") },
		func() error { return l.Write(ctx, "app", "/data/b", "on a disk again") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePVC(ctx, "data") },
		func() error { return l.Empty(ctx) },
	)
}

func manyWriters(ctx context.Context, l *sim.Lab) error {
	shared := claim("shared", "fast", "256Mi", mode(corev1.ReadWriteMany))
	return steps(
		func() error { return l.Create(ctx, shared) },
		func() error {
			return first(ctx,
				func(ctx context.Context) error { _, err := l.Bound(ctx, "shared"); return err }, "the claim is bound",
				func(ctx context.Context) error { return l.HasEvent(ctx, shared, "ProvisioningFailed", "MULTI_NODE") })
		},
		func() error { return noteEvent(l, "refused", shared, "ProvisioningFailed") },
		func() error { return backendVolumes(l, 0) },
		func() error { return l.Delete(ctx, shared) },
		func() error { return l.Empty(ctx) },
	)
}

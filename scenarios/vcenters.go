package scenarios

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/vcenter"
)

func init() {
	register(Scenario{
		Name:     "two-vcenters",
		Text:     "each zone has a vCenter of its own: volumes are made where their pods run and stay there with snapshots and restores; while one vCenter is away the other's volumes work, and nothing of its own counts as gone",
		Labels:   []string{"provision", "topology", "snapshot", "fault", "vcenters"},
		Backends: []string{sim.VSphere},
		Options:  twoVCenters,
		Flow:     onTwoVCenters,
		Mutation: "a DeleteVolume that answers OK although the vCenter of the volume is away",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "delete lies", Hop: ledger.CSI, Op: "DeleteVolume", Do: fault.Skip()})
		},
	})
}

// twoVCenters gives zone-a and zone-b a vCenter each, with two nodes.
func twoVCenters(o *sim.Options) {
	o.VCenters = nil
	for i, zone := range []string{"zone-a", "zone-b"} {
		vc := sim.VCenter{Name: fmt.Sprintf("vc-%d", i+1)}
		for n := range 2 {
			vc.Nodes = append(vc.Nodes, vcenter.Node{Name: fmt.Sprintf("node-%d", 2*i+n+1), Zone: zone})
		}
		o.VCenters = append(o.VCenters, vc)
	}
}

func onTwoVCenters(ctx context.Context, l *sim.Lab) error {
	nodes := l.Nodes() // two of each zone
	late := func(name string) *corev1.PersistentVolumeClaim { return claim(name, "late", "256Mi") }
	on := func(p *corev1.Pod, node string) *corev1.Pod { // through the scheduler
		p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
		return p
	}
	lies := func(pvc, vc string) error {
		if got := l.VCenterOf(pvc); got != vc {
			return fmt.Errorf("the volume of %s is on %q, expected %s: %w", pvc, got, vc, errUnexpected)
		}
		return nil
	}
	a, b, fresh, back := late("a"), late("b"), late("fresh"), late("back")
	restored := claim("restored", "late", "256Mi", fromSnapshot("snap"))
	away := l.VCenterNamed("vc-1")
	var pv *corev1.PersistentVolume
	return steps(
		func() error {
			return l.Create(ctx, a, b, on(pod("app-a", "", a), nodes[0]), on(pod("app-b", "", b), nodes[2]))
		},
		func() error { _, err := l.Running(ctx, "app-a"); return err },
		func() error { _, err := l.Running(ctx, "app-b"); return err },
		func() error { return lies("a", "vc-1") },
		func() error { return lies("b", "vc-2") },
		func() error { return l.Write(ctx, "app-a", "/a/x", "in zone a") },
		func() error { return l.Write(ctx, "app-b", "/b/x", "in zone b") },
		func() error { _, err := l.TakeSnapshot(ctx, "snap", "b", "snap"); return err },
		func() error { return l.Create(ctx, restored, on(pod("app-r", "", restored), nodes[3])) },
		func() error { _, err := l.Running(ctx, "app-r"); return err },
		func() error { return lies("restored", "vc-2") },
		func() error { return l.Expect(ctx, "app-r", "/restored/x", "in zone b") },
		func() error { return l.Check(ctx) },

		// The vCenter of zone a goes away. What is mounted works on.
		func() error { away.SetReachable(false); return nil },
		func() error { return l.Expect(ctx, "app-a", "/a/x", "in zone a") },
		func() error { return l.Write(ctx, "app-a", "/a/y", "without a vCenter") },
		// In zone b everything goes on: a move, a new volume.
		func() error { return l.DeletePod(ctx, "app-b") },
		func() error { return l.Create(ctx, on(pod("app-b", "", b), nodes[3])) },
		func() error { _, err := l.Running(ctx, "app-b"); return err },
		func() error { return l.Expect(ctx, "app-b", "/b/x", "in zone b") },
		func() error { return l.Create(ctx, fresh, on(pod("app-f", "", fresh), nodes[2])) },
		func() error { _, err := l.Running(ctx, "app-f"); return err },
		func() error { return lies("fresh", "vc-2") },
		func() error { return l.Write(ctx, "app-f", "/fresh/x", "in the outage") },
		// In zone a a new volume waits, and one that is deleted stays.
		func() error { return l.Create(ctx, back, on(pod("app-c", "", back), nodes[1])) },
		func() error { return l.HasEvent(ctx, back, "ProvisioningFailed", "") },
		func() error { return noteEvent(l, "with its vCenter away", back, "ProvisioningFailed") },
		func() error { return l.DeletePod(ctx, "app-a") },
		func() (err error) {
			if pv, err = l.Volume(l.PVName("a")); err != nil {
				return err
			}
			return l.Delete(ctx, a)
		},
		func() error { return l.HasEvent(ctx, pv, "VolumeFailedDelete", "") },
		func() error {
			if !l.OnBackend(pv.Spec.CSI.VolumeHandle) {
				return fmt.Errorf("the volume of a is gone from a vCenter that nobody reached: %w", errUnexpected)
			}
			return nil
		},

		// It comes back, and all that waited is done.
		func() error { away.SetReachable(true); return nil },
		func() error { _, err := l.Running(ctx, "app-c"); return err },
		func() error { return lies("back", "vc-1") },
		func() error { return l.Write(ctx, "app-c", "/back/x", "again") },
		func() error { return l.Gone(ctx, pv) },
		func() error { return l.Check(ctx) },
		func() error {
			for _, p := range []string{"app-b", "app-r", "app-f", "app-c"} {
				if err := l.DeletePod(ctx, p); err != nil {
					return err
				}
			}
			return nil
		},
		func() error { return l.DeleteSnapshot(ctx, "snap") },
		func() error {
			for _, c := range []string{"b", "restored", "fresh", "back"} {
				if err := l.DeletePVC(ctx, c); err != nil {
					return err
				}
			}
			return l.Empty(ctx)
		},
	)
}

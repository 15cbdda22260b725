package scenarios

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:      "isolated-node-goes-on-writing",
		Text:      "a node is cut off from the cluster and its pod writes on; a monitor deletes pod and attachment by force: before the volume is attached elsewhere the old node's writes fail, and none of them gets into it",
		Labels:    []string{"node-loss", "attach", "data"},
		Incidents: []string{"H29 hpe-storage/scod monitor.md, hpe-storage/csi-driver release notes v2.4.2 (CON-3077)"},
		Flow:      isolatedNode,
		Mutation:  "a ControllerUnpublishVolume that answers OK and leaves the volume with the lost node",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "detach lies", Hop: ledger.CSI, Op: "ControllerUnpublishVolume", Do: fault.Skip()})
		},
	})
}

// deleteAttachments deletes all VolumeAttachments of a volume, as an operator
// does that knows better than the attach controller.
func deleteAttachments(ctx context.Context, l *sim.Lab, pv string) error {
	for _, a := range store.List[storagev1.VolumeAttachment](l.Client(), "") {
		if n := a.Spec.Source.PersistentVolumeName; n != nil && *n == pv {
			if err := l.Client().Delete(ctx, a); err != nil {
				return err
			}
		}
	}
	return nil
}

func isolatedNode(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	c := claim("data", "fast", "256Mi")
	host := l.Host(a)
	var app *corev1.Pod
	file := ""
	// writes is the program of the pod that nobody reaches any more.
	writes := func(text string) error { return host.WriteAt(file, 0, []byte(text), true) }
	gate := fault.NewGate()
	defer gate.Release()
	return steps(
		func() error { return l.Create(ctx, c) },
		func() error { _, err := l.Bound(ctx, "data"); return err },
		func() error { return l.Create(ctx, tolerateNothing(pod("app", a, c))) },
		func() (err error) { app, err = l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/data/a", "of the first") },
		func() error {
			file = fmt.Sprintf("/var/lib/kubelet/pods/%s/volumes/kubernetes.io~csi/%s/mount/log", app.UID, l.PVName("data"))
			return writes("connected")
		},
		func() error { l.Forget(a); return l.StopKubelet(a) },
		func() error { return l.NotReady(ctx, a) },
		func() error { return writes("cut off, and at work") },
		func() error {
			l.Inject(fault.Rule{Name: "before the attach elsewhere is told", Hop: ledger.CSI, Op: "ControllerPublishVolume", Phase: fault.After, OnlySuccess: true, Nth: 1, Do: gate})
			return l.ForceDeletePod(ctx, "app")
		},
		func() error { return deleteAttachments(ctx, l, l.PVName("data")) },
		func() error { return l.Gone(ctx, pod("app", a)) },
		func() error { return l.Create(ctx, pod("app", b, c)) },
		// Its publish is done, and nobody has heard of it.
		func() error { _, err := gate.Reached(ctx); return err },
		func() error {
			if err := writes("of a node that has lost it"); err == nil {
				return fmt.Errorf("%s writes and syncs while the volume is attached to %s: %w", a, b, errUnexpected)
			}
			return l.Broken(ctx)
		},
		func() error { gate.Release(); return nil },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Expect(ctx, "app", "/data/a", "of the first") },
		func() error { return l.Expect(ctx, "app", "/data/log", "cut off, and at work") },
		func() error { return l.Write(ctx, "app", "/data/log", "of the second node, alone") },
		func() error {
			if err := writes("again"); err == nil {
				return fmt.Errorf("%s writes to what %s has: %w", a, b, errUnexpected)
			}
			return l.Expect(ctx, "app", "/data/log", "of the second node, alone")
		},
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePVC(ctx, "data") },
		func() error { return l.Empty(ctx) },
	)
}

package scenarios

import (
	"context"
	"strings"

	"github.com/csilab/csilab/fixtures"
	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:   "lifecycle-filesystem",
		Text:   "a filesystem volume is provisioned, written, snapshotted, restored, expanded, moved and deleted",
		Labels: []string{"lifecycle", "attach", "stage", "snapshot", "expand"},
		Kernel: true,
		Flow: func(ctx context.Context, l *sim.Lab) error {
			return lifecycle(ctx, l, "lifecycle", "data", "/data/a", "1Gi", "2Gi")
		},
		Mutation: "a snapshot that returns what the volume holds now instead of then",
		Mutate:   liveSnapshots,
	})
	register(Scenario{
		Name:   "lifecycle-block",
		Text:   "a raw block volume is provisioned, written, snapshotted, restored, expanded, moved and deleted",
		Labels: []string{"lifecycle", "attach", "stage", "snapshot", "expand", "block"},
		Kernel: true,
		Flow: func(ctx context.Context, l *sim.Lab) error {
			return lifecycle(ctx, l, "block", "raw", "/dev/raw", "256Mi", "512Mi")
		},
		Mutation: "a snapshot that returns what the volume holds now instead of then",
		Mutate:   liveSnapshots,
	})
	register(Scenario{
		Name:     "two-pods-one-node",
		Text:     "two pods on one node share a volume; it stays staged until the second is gone",
		Labels:   []string{"stage", "publish"},
		Kernel:   true,
		Flow:     twoPods,
		Mutation: "a driver that unstages the volume while the second pod still uses it",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "unpublish forgets the mount", Hop: ledger.CSI, Op: "NodeUnpublishVolume", Nth: 1, Do: fault.Skip()})
		},
	})
	register(Scenario{
		Name:     "move-between-nodes",
		Text:     "a pod moves to another node and finds its data there",
		Labels:   []string{"attach", "move"},
		Kernel:   true,
		Flow:     move,
		Mutation: "a ControllerUnpublishVolume that answers OK and leaves the disk on the old node",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "detach lies", Hop: ledger.CSI, Op: "ControllerUnpublishVolume", Do: fault.Skip()})
		},
	})
}

// liveSnapshots makes every snapshot follow its volume.
func liveSnapshots(l *sim.Lab) { l.MutateSnapshotsLive() }

// lifecycle drives one whole life from a user's manifest. base is the file or
// device that the pod writes.
func lifecycle(ctx context.Context, l *sim.Lab, manifest, pvc, file, size, bigger string) error {
	isBlock := strings.HasPrefix(file, "/dev/")
	if err := l.Apply(ctx, fixtures.Manifest(manifest)); err != nil {
		return step(err, "apply %s.yaml", manifest)
	}
	pv, err := l.Bound(ctx, pvc)
	if err != nil {
		return err
	}
	app, err := l.Running(ctx, "app")
	if err != nil {
		return err
	}
	first := app.Spec.NodeName
	restored := claim("restored", "fast", size, fromSnapshot("before"))
	if isBlock {
		block(restored)
	}
	restoredFile := "/restored/a"
	if isBlock {
		restoredFile = "/dev/restored"
	}
	return steps(
		func() error { return l.Write(ctx, "app", file, "written before the snapshot") },
		func() error { return l.Expect(ctx, "app", file, "written before the snapshot") },
		func() error {
			_, err := l.TakeSnapshot(ctx, "before", pvc, "snap")
			return err
		},
		func() error { return l.Write(ctx, "app", file, "written after the snapshot!") },
		func() error { return l.Create(ctx, restored, pod("reader", "", restored)) },
		func() error { _, err := l.Running(ctx, "reader"); return err },
		func() error {
			return step(l.Expect(ctx, "reader", restoredFile, "written before the snapshot"), "the restored volume")
		},
		func() error {
			return step(l.Expect(ctx, "app", file, "written after the snapshot!"), "the source after the restore")
		},
		func() error { return l.Check(ctx) },

		// A volume with a snapshot is not expanded, so the snapshot goes first.
		func() error { return l.DeleteSnapshot(ctx, "before") },
		func() error { return expand(ctx, l, "app", pvc, file, bigger, isBlock) },
		func() error { return l.Check(ctx) },

		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Detached(ctx, pv.Name) },
		func() error {
			p := app.DeepCopy()
			p.ObjectMeta = pod("app", "").ObjectMeta
			p.Spec.NodeName = l.OtherNode(first)
			p.Status = pod("app", "").Status
			return l.Create(ctx, p)
		},
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error {
			return step(l.Expect(ctx, "app", file, "written after the snapshot!"), "after the move from %s", first)
		},
		func() error { return l.Check(ctx) },

		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePod(ctx, "reader") },
		func() error { return l.DeletePVC(ctx, pvc) },
		func() error { return l.DeletePVC(ctx, "restored") },
		func() error { return l.Empty(ctx) },
	)
}

func twoPods(ctx context.Context, l *sim.Lab) error {
	node := l.Nodes()[0]
	c := claim("shared", "fast", "256Mi")
	return steps(
		func() error { return l.Create(ctx, c) },
		func() error { _, err := l.Bound(ctx, "shared"); return err },
		func() error { return l.Create(ctx, pod("one", node, c), pod("two", node, c)) },
		func() error { _, err := l.Running(ctx, "one"); return err },
		func() error { _, err := l.Running(ctx, "two"); return err },
		func() error { return l.Write(ctx, "one", "/shared/a", "from one") },
		func() error { return step(l.Expect(ctx, "two", "/shared/a", "from one"), "the second pod") },
		func() error { return l.DeletePod(ctx, "one") },
		func() error { return l.Write(ctx, "two", "/shared/b", "from two") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "two") },
		func() error { return l.Detached(ctx, l.PVName("shared")) },
		func() error { return l.Create(ctx, pod("three", node, c)) },
		func() error { _, err := l.Running(ctx, "three"); return err },
		func() error { return l.Expect(ctx, "three", "/shared/a", "from one") },
		func() error { return l.Expect(ctx, "three", "/shared/b", "from two") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "three") },
		func() error { return l.DeletePVC(ctx, "shared") },
		func() error { return l.Empty(ctx) },
	)
}

func move(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	c := claim("moving", "fast", "256Mi")
	return steps(
		func() error { return l.Create(ctx, c) },
		func() error { _, err := l.Bound(ctx, "moving"); return err },
		func() error { return l.Create(ctx, pod("app", a, c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/moving/a", "on the first node") },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Create(ctx, pod("app", b, c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Expect(ctx, "app", "/moving/a", "on the first node") },
		func() error { return l.Write(ctx, "app", "/moving/b", "on the second node") },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Create(ctx, pod("app", a, c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Expect(ctx, "app", "/moving/a", "on the first node") },
		func() error { return l.Expect(ctx, "app", "/moving/b", "on the second node") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePVC(ctx, "moving") },
		func() error { return l.Empty(ctx) },
	)
}

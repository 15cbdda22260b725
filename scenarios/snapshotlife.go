package scenarios

import (
	"context"
	"fmt"
	"slices"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:     "snapshot-retained-and-preprovisioned",
		Text:     "a snapshot outlives its objects by policy Retain and is taken over by pre-provisioned ones; a restore into a claim of another size is refused with an event",
		Labels:   []string{"snapshot", "restore", "static"},
		Flow:     snapshotRetained,
		Mutation: "a snapshot that returns what the volume holds now instead of then",
		Mutate:   liveSnapshots,
	})
	register(Scenario{
		Name:     "snapshots-block",
		Text:     "a volume with a snapshot is neither expanded nor deleted, events say why, and both go on once the snapshot is deleted",
		Labels:   []string{"snapshot", "expand"},
		Flow:     snapshotsBlock,
		Mutation: "a DeleteVolume that answers OK although a snapshot holds the volume",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "delete lies", Hop: ledger.CSI, Op: "DeleteVolume", Do: fault.Skip()})
		},
	})
}

// contentOf is the content of a snapshot and the backend's id in it.
func contentOf(l *sim.Lab, s *snapshotv1.VolumeSnapshot) (*snapshotv1.VolumeSnapshotContent, string, error) {
	c, err := store.Get[snapshotv1.VolumeSnapshotContent](l.Client(), "", *s.Status.BoundVolumeSnapshotContentName)
	if err != nil {
		return nil, "", err
	}
	if c.Status == nil || c.Status.SnapshotHandle == nil {
		return nil, "", fmt.Errorf("VolumeSnapshotContent %s has no handle: %w", c.Name, errUnexpected)
	}
	return c, *c.Status.SnapshotHandle, nil
}

func snapshotRetained(ctx context.Context, l *sim.Lab) error {
	class := &snapshotv1.VolumeSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: "keep"}, Driver: l.DriverName(), DeletionPolicy: snapshotv1.VolumeSnapshotContentRetain, Parameters: l.SnapshotParameters()}
	src := claim("source", "fast", "256Mi")
	var content *snapshotv1.VolumeSnapshotContent
	id := ""
	larger := claim("larger", "fast", "512Mi", fromSnapshot("again"))
	smaller := claim("smaller", "fast", "128Mi", fromSnapshot("again"))
	restored := claim("restored", "fast", "256Mi", fromSnapshot("again"))
	return steps(
		func() error { return l.Create(ctx, class, src, pod("writer", "", src)) },
		func() error { _, err := l.Running(ctx, "writer"); return err },
		func() error { return l.Write(ctx, "writer", "/source/a", "then") },
		func() error {
			s, err := l.TakeSnapshot(ctx, "once", "source", "keep")
			if err != nil {
				return err
			}
			content, id, err = contentOf(l, s)
			return err
		},
		func() error { return l.Write(ctx, "writer", "/source/a", "now!") },
		func() error { return l.DeleteSnapshot(ctx, "once") },
		// The content stays, and the snapshot when the content goes.
		func() error { return stillThere(l, id) },
		func() error { return l.Check(ctx) },
		func() error { l.Retain(id); return l.Delete(ctx, content) },
		func() error { return stillThere(l, id) },

		func() error {
			name := "by-hand"
			return l.Create(ctx,
				&snapshotv1.VolumeSnapshotContent{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: snapshotv1.VolumeSnapshotContentSpec{
					Driver: l.DriverName(), DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
					Source:            snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: &id},
					VolumeSnapshotRef: corev1.ObjectReference{Namespace: sim.Namespace, Name: "again"}}},
				&snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: sim.Namespace, Name: "again"}, Spec: snapshotv1.VolumeSnapshotSpec{
					Source: snapshotv1.VolumeSnapshotSource{VolumeSnapshotContentName: &name}}})
		},
		func() error { _, err := l.SnapshotReady(ctx, "again"); return err },
		// vSphere restores to the size of the source and nothing else, an array to
		// more as well; less than that the provisioner itself refuses.
		func() error { return l.Create(ctx, larger, smaller) },
		func() error {
			if l.Backend() == sim.VSphere {
				return l.HasEvent(ctx, larger, "ProvisioningFailed", "OutOfRange")
			}
			_, err := l.Bound(ctx, "larger")
			return err
		},
		func() error { return l.HasEvent(ctx, smaller, "ProvisioningFailed", "is less than the size") },
		func() error { return noteEvent(l, "larger claim", larger, "ProvisioningFailed") },
		func() error { return noteEvent(l, "smaller claim", smaller, "ProvisioningFailed") },
		func() error { return l.DeletePVC(ctx, "larger") },
		func() error { return l.Delete(ctx, smaller) },

		func() error { return l.Create(ctx, restored, pod("reader", "", restored)) },
		func() error { _, err := l.Running(ctx, "reader"); return err },
		func() error { return l.Expect(ctx, "reader", "/restored/a", "then") },
		func() error { return l.Expect(ctx, "writer", "/source/a", "now!") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "reader") },
		func() error { return l.DeletePod(ctx, "writer") },
		func() error { return l.DeletePVC(ctx, "restored") },
		func() error { return l.DeleteSnapshot(ctx, "again") },
		func() error {
			if l.OnBackend(id) {
				return fmt.Errorf("snapshot %s is still there, its policy is Delete now: %w", id, errUnexpected)
			}
			return nil
		},
		func() error { return l.DeletePVC(ctx, "source") },
		func() error { return l.Empty(ctx) },
	)
}

// noteEvent puts the last event with a reason into the report.
func noteEvent(l *sim.Lab, what string, o store.Object, reason string) error {
	for _, e := range slices.Backward(l.Events(o)) {
		if strings.Contains(e, " "+reason+": ") {
			l.Note("%s: %s", what, e)
			break
		}
	}
	return nil
}

func snapshotsBlock(ctx context.Context, l *sim.Lab) error {
	c := claim("data", "fast", "256Mi", block)
	pv, id := "", ""
	return steps(
		func() error { return l.Create(ctx, c, pod("app", "", c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/dev/data", "held by a snapshot") },
		func() error { _, err := l.TakeSnapshot(ctx, "one", "data", "snap"); return err },
		func() error { return l.Expand(ctx, "data", "512Mi") },
		func() error {
			if l.Backend() != sim.VSphere {
				return nil // an array grows it all the same
			}
			return steps(
				func() error { return l.HasEvent(ctx, c, "VolumeResizeFailed", "FailedPrecondition") },
				func() error { return noteEvent(l, "expansion", c, "VolumeResizeFailed") },
				func() error { return l.BackendSize(ctx, "data", "256Mi") },
			)
		},
		func() error { return l.Expect(ctx, "app", "/dev/data", "held by a snapshot") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeleteSnapshot(ctx, "one") },
		func() error { return l.Expanded(ctx, "data", "512Mi") },
		func() error { return l.BackendSize(ctx, "data", "512Mi") },
		func() error { return l.Expect(ctx, "app", "/dev/data", "held by a snapshot") },

		func() error { _, err := l.TakeSnapshot(ctx, "two", "data", "snap"); return err },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { pv, id = l.PVName("data"), l.VolumeID("data"); return nil },
		// The claim goes, its volume waits.
		func() error { return l.Delete(ctx, c) },
		func() error {
			return l.HasEvent(ctx, mustVolume(l, pv), "VolumeFailedDelete", "FailedPrecondition")
		},
		func() error { return noteEvent(l, "deletion", mustVolume(l, pv), "VolumeFailedDelete") },
		func() error { return stillThere(l, id) },
		func() error { return l.DeleteSnapshot(ctx, "two") },
		func() error { return l.Gone(ctx, volume(l, pv, id, "512Mi")) },
		func() error { return l.Empty(ctx) },
	)
}

// mustVolume is a PersistentVolume, an empty one when it is gone: no event is
// about that.
func mustVolume(l *sim.Lab, name string) *corev1.PersistentVolume {
	pv, err := l.Volume(name)
	if err != nil {
		return volume(l, name, "gone", "1Mi")
	}
	return pv
}

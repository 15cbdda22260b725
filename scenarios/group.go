package scenarios

import (
	"context"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:     "group-snapshot",
		Text:     "two volumes are snapshotted at one moment, with the answer lost once; both restored volumes hold what was there then, and the group goes as a whole",
		Labels:   []string{"snapshot", "restore", "group"},
		Backends: onArray,
		Flow:     groupSnapshot,
		Mutation: "a DeleteVolumeGroupSnapshot that answers OK and leaves the snapshots",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "delete lies", Hop: ledger.CSI, Op: "DeleteVolumeGroupSnapshot", Do: fault.Skip()})
		},
	})
}

func groupSnapshot(ctx context.Context, l *sim.Lab) error {
	logs, files := claim("logs", "fast", "256Mi"), claim("files", "fast", "256Mi")
	oldLogs, oldFiles := claim("old-logs", "fast", "256Mi", fromSnapshot("cut-logs")), claim("old-files", "fast", "256Mi", fromSnapshot("cut-files"))
	var group string
	var ids map[string]string
	return steps(
		func() error { return l.Create(ctx, logs, files, pod("app", "", logs, files)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/files/a", "number one") },
		func() error { return l.Write(ctx, "app", "/logs/a", "one was written") },
		func() (err error) {
			// The call fails as its caller sees it; the next one finds what it did.
			lost := l.Inject(fault.Rule{Name: "the answer is lost", Hop: ledger.CSI, Op: "CreateVolumeGroupSnapshot", Phase: fault.After, Nth: 1, Do: fault.Drop()})
			if _, _, err = l.TakeGroupSnapshot(ctx, "groupsnapshot-1", "logs", "files"); err == nil {
				return step(errUnexpected, "a call succeeds whose answer was lost (%d fired)", lost.Fired())
			}
			group, ids, err = l.TakeGroupSnapshot(ctx, "groupsnapshot-1", "logs", "files")
			return err
		},
		func() error { return l.Write(ctx, "app", "/files/a", "number two") },
		func() error { return l.Write(ctx, "app", "/logs/a", "two was written") },
		func() error { return l.SnapshotOfGroup(ctx, "cut-logs", ids["logs"]) },
		func() error { return l.SnapshotOfGroup(ctx, "cut-files", ids["files"]) },
		func() error { return l.Create(ctx, oldLogs, oldFiles, pod("reader", "", oldLogs, oldFiles)) },
		func() error { _, err := l.Running(ctx, "reader"); return err },
		func() error { return l.Expect(ctx, "reader", "/old-logs/a", "one was written") },
		func() error { return l.Expect(ctx, "reader", "/old-files/a", "number one") },
		func() error { return l.Expect(ctx, "app", "/files/a", "number two") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "reader") },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePVC(ctx, "old-logs") },
		func() error { return l.DeletePVC(ctx, "old-files") },
		func() error { return dropSnapshot(ctx, l, "cut-logs") },
		func() error { return dropSnapshot(ctx, l, "cut-files") },
		func() error { return l.DeleteGroupSnapshot(ctx, group, ids) },
		func() error { return l.DeletePVC(ctx, "logs") },
		func() error { return l.DeletePVC(ctx, "files") },
		func() error { return l.Empty(ctx) },
	)
}

// dropSnapshot deletes a snapshot and its content, whose policy is Retain.
func dropSnapshot(ctx context.Context, l *sim.Lab, name string) error {
	if err := l.DeleteSnapshot(ctx, name); err != nil {
		return err
	}
	o := &snapshotv1.VolumeSnapshotContent{ObjectMeta: metav1.ObjectMeta{Name: name + "-content"}}
	if _, err := store.Get[snapshotv1.VolumeSnapshotContent](l.Client(), "", o.Name); err != nil {
		return err
	}
	return l.Delete(ctx, o)
}

package flow

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/scenarios/object"
	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/kube/store"
)

func init() {
	src, restored := filesystem.claim("source"), filesystem.claim("restored", object.FromSnapshot("cut"))
	// What was then is in the restored volume, what is now in the source.
	end := func(ctx context.Context, l *sim.Lab) error {
		return steps(
			func() error { return holds(ctx, l, filesystem, restored, l.Nodes()[1], "then") },
			func() error { return l.Expect(ctx, "app", filesystem.file(src.Name), "now!") },
			func() error { return l.DeletePod(ctx, "app") },
			func() error { return l.DeletePVC(ctx, restored.Name) },
			func() error { return l.DeleteSnapshot(ctx, "cut") },
			func() error { return l.DeletePVC(ctx, src.Name) },
		)
	}
	cut := func(ctx context.Context, l *sim.Lab) error {
		_, err := l.TakeSnapshot(ctx, "cut", src.Name, "snap")
		return err
	}
	now := func(ctx context.Context, l *sim.Lab) error {
		return l.Write(ctx, "app", filesystem.file(src.Name), "now!")
	}
	then := func(ctx context.Context, l *sim.Lab) error {
		return written(ctx, l, filesystem, src, "app", l.Nodes()[0], "then")
	}
	register(Flow{
		Name:    "snapshot",
		Text:    "a volume in use is snapshotted",
		Prepare: then,
		Body:    cut,
		End: func(ctx context.Context, l *sim.Lab) error {
			return steps(
				func() error { return now(ctx, l) },
				func() error { return bound(ctx, l, restored) },
				func() error { return end(ctx, l) },
			)
		},
	})
	register(Flow{
		Name: "restore",
		Text: "a claim gets a volume with what a snapshot holds, while its source has changed",
		Prepare: func(ctx context.Context, l *sim.Lab) error {
			return steps(
				func() error { return then(ctx, l) },
				func() error { return cut(ctx, l) },
				func() error { return now(ctx, l) },
			)
		},
		Body: func(ctx context.Context, l *sim.Lab) error { return bound(ctx, l, restored) },
		End:  end,
	})

	logs, files := filesystem.claim("logs"), filesystem.claim("files")
	oldLogs, oldFiles := filesystem.claim("old-logs", object.FromSnapshot("cut-logs")), filesystem.claim("old-files", object.FromSnapshot("cut-files"))
	two := func(ctx context.Context, l *sim.Lab) error {
		return steps(
			func() error { return bound(ctx, l, logs, files) },
			func() error { return running(ctx, l, object.Pod("app", l.Nodes()[0], logs, files)) },
			func() error { return l.Write(ctx, "app", filesystem.file(logs.Name), "one was written") },
			func() error { return l.Write(ctx, "app", filesystem.file(files.Name), "number one") },
		)
	}
	take := func(ctx context.Context, l *sim.Lab) (group string, ids map[string]string, err error) {
		err = again(ctx, l, func(ctx context.Context) (err error) {
			group, ids, err = l.TakeGroupSnapshot(ctx, "groupsnapshot-1", logs.Name, files.Name)
			return err
		})
		return group, ids, err
	}
	// The controller of groups makes their objects; a lab has none, so a person does.
	objects := func(ctx context.Context, l *sim.Lab) error {
		_, ids, err := take(ctx, l)
		if err != nil {
			return err
		}
		return steps(
			func() error { return l.SnapshotOfGroup(ctx, "cut-logs", ids[logs.Name]) },
			func() error { return l.SnapshotOfGroup(ctx, "cut-files", ids[files.Name]) },
		)
	}
	drop := func(ctx context.Context, l *sim.Lab, group string, ids map[string]string) error {
		return steps(
			func() error { return dropSnapshot(ctx, l, "cut-logs") },
			func() error { return dropSnapshot(ctx, l, "cut-files") },
			func() error {
				return again(ctx, l, func(ctx context.Context) error { return l.DeleteGroupSnapshot(ctx, group, ids) })
			},
		)
	}
	away := func(ctx context.Context, l *sim.Lab) error {
		return steps(
			func() error { return l.DeletePod(ctx, "app") },
			func() error { return l.DeletePVC(ctx, logs.Name) },
			func() error { return l.DeletePVC(ctx, files.Name) },
		)
	}
	register(Flow{
		Name:     "group-snapshot",
		Text:     "two volumes that a pod writes to are snapshotted at one moment, and the snapshots get their objects",
		Backends: []string{sim.HPE},
		Prepare:  two,
		Body:     objects,
		End: func(ctx context.Context, l *sim.Lab) error {
			// Asked once more, the driver answers with the group that is there.
			group, ids, err := take(ctx, l)
			if err != nil {
				return err
			}
			return steps(
				func() error { return l.Write(ctx, "app", filesystem.file(files.Name), "number two") },
				func() error { return l.Write(ctx, "app", filesystem.file(logs.Name), "two was written") },
				func() error { return bound(ctx, l, oldLogs, oldFiles) },
				func() error { return holds(ctx, l, filesystem, oldLogs, l.Nodes()[1], "one was written") },
				func() error { return holds(ctx, l, filesystem, oldFiles, l.Nodes()[1], "number one") },
				func() error { return l.DeletePVC(ctx, oldLogs.Name) },
				func() error { return l.DeletePVC(ctx, oldFiles.Name) },
				func() error { return drop(ctx, l, group, ids) },
				func() error { return away(ctx, l) },
			)
		},
	})
	register(Flow{
		Name:     "group-delete",
		Text:     "the snapshots of a group are deleted together",
		Backends: []string{sim.HPE},
		Prepare: func(ctx context.Context, l *sim.Lab) error {
			return steps(
				func() error { return two(ctx, l) },
				func() error { return objects(ctx, l) },
			)
		},
		Body: func(ctx context.Context, l *sim.Lab) error {
			// Who deletes knows the group from its object; here, by asking again.
			group, ids, err := take(ctx, l)
			if err != nil {
				return err
			}
			err = again(ctx, l, func(ctx context.Context) error {
				return l.Ask(ctx, func(ctx context.Context, a sim.Asker) error {
					r, err := a.Groups.GetVolumeGroupSnapshot(ctx, &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: group, Secrets: a.Secrets})
					if n := len(r.GetGroupSnapshot().GetSnapshots()); err == nil && n != 2 {
						err = fmt.Errorf("the group has %d snapshots", n)
					}
					return err
				})
			})
			if err != nil {
				return err
			}
			return drop(ctx, l, group, ids)
		},
		End: func(ctx context.Context, l *sim.Lab) error {
			return steps(
				func() error { return l.Expect(ctx, "app", filesystem.file(files.Name), "number one") },
				func() error { return away(ctx, l) },
			)
		},
	})
}

// dropSnapshot deletes a snapshot of a group and its content, whose policy is
// Retain.
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

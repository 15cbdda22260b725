package scenarios

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:      "old-backup-restored",
		Text:      "the API is restored from a backup from before volumes were deleted, made and moved: what is gone can't be attached, what has moved is not attached twice, and what the API does not know is let alone",
		Labels:    []string{"K49", "incident", "attach", "backup"},
		Incidents: []string{"K49 openshift/openshift-docs#29532"},
		Flow:      oldBackup,
		Mutation:  "a ControllerPublishVolume that takes the volume away from the node that has it",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "the last one wins", Hop: ledger.CSI, Op: "ControllerPublishVolume", Component: second, Nth: 1,
				Do: fault.Func("take it away", func(ctx context.Context, _ fault.Call) error {
					return l.PullDisk(ctx, l.OtherNode(l.Nodes()[0]), "moved")
				})})
		},
	})
}

func oldBackup(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	moved, gone, late := claim("moved", "fast", "256Mi"), claim("gone", "fast", "256Mi"), claim("late", "fast", "256Mi")
	uses := pod("uses-gone", b, gone)
	var backup store.Backup
	var from uint64
	movedID, lateID := "", ""
	return steps(
		func() error { return startWriter(ctx, l, "app", a, moved, "before the backup") },
		func() error { return l.Create(ctx, gone) },
		func() error { _, err := l.Bound(ctx, "gone"); return err },
		func() error { backup = l.SaveAPI(); return nil },
		// Life goes on.
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return startReader(ctx, l, "next", b, moved, "before the backup") },
		func() error { return l.Write(ctx, "next", "/moved/b", "after the backup") },
		func() error { return l.DeletePVC(ctx, "gone") },
		func() error { return l.Create(ctx, late) },
		func() error { _, err := l.Bound(ctx, "late"); return err },
		func() error {
			movedID, lateID = l.VolumeID("moved"), l.VolumeID("late")
			l.Retain(lateID) // nobody may delete it
			return l.Check(ctx)
		},

		func() error { from = now(l); return l.RestoreAPI(backup) },
		func() error { return l.NodesReady(ctx) },
		// The API says that the volume is on the first node; it is on the second.
		func() error {
			return stays(ctx, l, longer(l, time.Second, 10*time.Minute), func() error {
				if got := l.ExportedTo("moved"); len(got) > 1 {
					return fmt.Errorf("the volume is exported to %q: %w", got, errUnexpected)
				}
				if !l.OnBackend(lateID) {
					return fmt.Errorf("a volume that the API does not know was deleted: %w", errUnexpected)
				}
				for _, e := range csiCalls(l, "DeleteVolume", ledger.After(from)) {
					if e.Volume == lateID || e.Volume == movedID {
						return fmt.Errorf("%s: %w", e, errUnexpected)
					}
				}
				return l.Broken(ctx)
			})
		},
		func() error { return l.Create(ctx, uses) },
		func() error { return l.HasEvent(ctx, uses, "FailedAttachVolume", "NotFound") },
		func() error { return noteEvent(l, "of a volume that is gone", uses, "FailedAttachVolume") },
		func() error {
			if err := onlyOn(l, "moved", b); err != nil {
				return err
			}
			return refusedWith(l.As(second).Publish(ctx, "moved", a), "a publish where the API has it", codes.FailedPrecondition)
		},
		func() error { return onlyOn(l, "moved", b) },
		// An administrator clears up.
		func() error { return l.DeletePod(ctx, "uses-gone") },
		func() error { return l.DeletePVC(ctx, "gone") },
		func() error { return l.As(second).UnpublishVolume(ctx, movedID, b) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Detached(ctx, l.PVName("moved")) },
		func() error { return startReader(ctx, l, "again", a, moved, "before the backup") },
		func() error { return l.Expect(ctx, "again", "/moved/b", "after the backup") },
		func() error { return l.As(second).DeleteVolume(ctx, lateID) },
		func() error { return l.Check(ctx) },
		func() error { return allGone(ctx, l, []string{"again"}, []string{"moved"}) },
	)
}

package scenarios

import (
	"context"
	"fmt"
	"slices"

	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/vim25/types"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/vcenter"
	"github.com/csilab/csilab/sim/vcenter/task"
)

func init() {
	// A driver that passes the fault on and has forgotten the snapshot: each
	// retry of its caller is for another one.
	forgets := func(l *sim.Lab) {
		l.Inject(fault.Rule{Name: "the snapshot is forgotten", Hop: ledger.CSI, Op: "CreateSnapshot", Phase: fault.After, First: 2,
			Do: fault.Error(status.Error(codes.Internal, "snapshot created, post-processing failed"))})
	}
	register(Scenario{
		Name:          "snapshot-made-then-fault",
		Text:          "CNS makes a snapshot and answers with a fault that says so: the snapshot is taken, and no second one is made",
		Labels:        []string{"snapshot", "fault"},
		Incidents:     []string{"V13 kubernetes-sigs/vsphere-csi-driver#2720"},
		Backends:      []string{sim.VSphere},
		Flow:          snapshotMadeThenFault,
		Mutation:      "a driver that answers with the fault and makes another snapshot with each retry",
		Mutate:        forgets,
		MutateOptions: newSnapshotNames,
	})
	register(Scenario{
		Name:          "vcenter-dies-in-snapshot",
		Text:          "the vCenter dies while it makes a snapshot: the task counts as failed, tasks and sessions are gone, the snapshot is there; it is found, and no second one is made",
		Labels:        []string{"snapshot", "crash", "fault"},
		Incidents:     []string{"V14 kubernetes-sigs/vsphere-csi-driver#2571"},
		Backends:      []string{sim.VSphere},
		Flow:          vcenterDiesInSnapshot,
		Mutation:      "a driver that makes another snapshot with each retry",
		Mutate:        forgets,
		MutateOptions: newSnapshotNames,
	})
}

// oneSnapshot takes a snapshot over a fault and sees that there is one, made
// once, and that it holds what it must.
func oneSnapshot(ctx context.Context, l *sim.Lab, arm func(), during func() error) error {
	restored := claim("restored", "fast", "256Mi", fromSnapshot("snap"))
	return steps(
		func() error { return used(ctx, l, "data", "app", "", "as of the snapshot") },
		func() error { arm(); return l.Create(ctx, snapshotOf("snap", "data")) },
		during,
		func() error { _, err := l.SnapshotReady(ctx, "snap"); return err },
		func() error { return times(l, l.StorageHop(), l.Operations().Snapshot, 1) },
		func() error {
			if n := len(l.World(ctx, false).Snapshots); n != 1 {
				return fmt.Errorf("the backend has %d snapshots, expected is one: %w", n, errUnexpected)
			}
			return nil
		},
		func() error { return l.Write(ctx, "app", "/data/a", "after the snapshot") },
		func() error { return l.Create(ctx, restored, pod("reader", "", restored)) },
		func() error { _, err := l.Running(ctx, "reader"); return err },
		func() error { return l.Expect(ctx, "reader", "/restored/a", "as of the snapshot") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "reader") },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePVC(ctx, "restored") },
		func() error { return l.DeleteSnapshot(ctx, "snap") },
		func() error { return removed(ctx, l, nil, []string{"data"}) },
	)
}

func snapshotMadeThenFault(ctx context.Context, l *sim.Lab) error {
	return oneSnapshot(ctx, l, func() {
		l.Inject(fault.Rule{Name: "made, but post-processing failed", Hop: ledger.VCenter, Op: "task:" + l.Operations().Snapshot, Phase: fault.After, Nth: 1,
			Do: fault.Func("answer with a fault that names the snapshot", func(context.Context, fault.Call) error {
				s := l.VCenter().Snapshots()[0]
				return &vcenter.Fault{Result: true, Message: "The snapshot is created, but post-processing failed.", Fault: &cnstypes.CnsSnapshotCreatedFault{
					CnsFault: cnstypes.CnsFault{Reason: "post-processing failed"},
					VolumeId: cnstypes.CnsVolumeId{Id: s.Volume}, SnapshotId: cnstypes.CnsSnapshotId{Id: s.ID}}}
			})})
	}, func() error { return nil })
}

func vcenterDiesInSnapshot(ctx context.Context, l *sim.Lab) error {
	vc, op := l.VCenter(), l.Operations().Snapshot
	return oneSnapshot(ctx, l, func() {
		l.Inject(fault.Rule{Name: "the vCenter dies after the commit", Hop: ledger.VCenter, Op: "task:" + op, Phase: fault.After, Nth: 1,
			Do: fault.Func("the vCenter dies", func(context.Context, fault.Call) error {
				vc.SetReachable(false)
				vc.KillSessions()
				return &vcenter.Fault{Fault: &types.SystemError{Reason: "vCenter Server was restarted"}}
			})})
	}, func() error {
		return steps(
			func() error {
				return l.Until(ctx, "the task has failed", func() bool {
					return slices.ContainsFunc(vc.Tasks(), func(t task.Status) bool { return t.Op == op && t.Info.State == types.TaskInfoStateError })
				})
			},
			func() error { vc.PurgeTasks(); vc.SetReachable(true); return nil },
		)
	})
}

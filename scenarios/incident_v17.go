package scenarios

import (
	"context"
	"fmt"
	"slices"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:      "snapshot-limit",
		Text:      "more snapshots of one volume are asked for at once than it may have: the limit is kept, what is refused makes nothing, and comes about once another is deleted",
		Labels:    []string{"snapshot", "limit"},
		Incidents: []string{"V17 kubernetes-sigs/vsphere-csi-driver#1224, kubernetes-sigs/vsphere-csi-driver#3745"},
		Backends:  []string{sim.VSphere}, // an array's limit is in the hundreds
		Flow:      snapshotLimit,
		Mutation:  "a driver whose count of snapshots is old when it makes another",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "the count is old", Hop: ledger.CSI, Op: "CreateSnapshot", Nth: snapshotsAllowed + 1,
				Do: fault.Func("make it all the same", func(ctx context.Context, _ fault.Call) error {
					_, _, err := l.BackupSnapshot(ctx, l.VolumeID("data"))
					return err
				})})
		},
	})
	register(Scenario{
		Name:      "leftover-snapshot-blocks-expansion",
		Text:      "a volume has a snapshot, and one more that only the backend knows: it does not grow and the event says which stands against it, until the last of both is gone",
		Labels:    []string{"expand", "snapshot", "behind-the-back", "block"},
		Incidents: []string{"V19 kubernetes-sigs/vsphere-csi-driver#2623"},
		Backends:  []string{sim.VSphere}, // an array grows a volume with snapshots
		Flow:      leftoverSnapshot,
		Mutation:  "a ControllerExpandVolume that goes by an old list of snapshots",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "the list is old", Hop: ledger.CSI, Op: "ControllerExpandVolume", Phase: fault.After,
				Do: fault.Func("still refused", func(ctx context.Context, _ fault.Call) error {
					if len(l.World(ctx, false).Snapshots) > 0 {
						return nil // as it is
					}
					return status.Error(codes.FailedPrecondition, "the volume has 1 snapshots")
				})})
		},
	})
}

// snapshotsAllowed is how many of a volume the driver makes, as upstream's:
// global-max-snapshots-per-block-volume, by default.
const snapshotsAllowed = 3

func snapshotLimit(ctx context.Context, l *sim.Lab) error {
	var names []string
	for i := range snapshotsAllowed + 1 {
		names = append(names, fmt.Sprintf("s%d", i))
	}
	ready := func() (yes, no []string) {
		for _, s := range store.List[snapshotv1.VolumeSnapshot](l.Client(), sim.Namespace) {
			if s.Status != nil && s.Status.ReadyToUse != nil && *s.Status.ReadyToUse {
				yes = append(yes, s.Name)
			} else {
				no = append(no, s.Name)
			}
		}
		return yes, no
	}
	have := func(want int) error {
		if n := len(l.World(ctx, false).Snapshots); n != want {
			return fmt.Errorf("the volume has %d snapshots, allowed are %d: %w", n, want, errUnexpected)
		}
		return nil
	}
	last := ""
	return steps(
		func() error { return used(ctx, l, "data", "app", "", "in each of them") },
		func() error {
			for _, n := range names {
				if err := l.Create(ctx, snapshotOf(n, "data")); err != nil {
					return err
				}
			}
			return nil
		},
		func() error {
			return await(ctx, l, "all but one are made, and that one is refused", func() (bool, error) {
				if n := len(l.World(ctx, false).Snapshots); n > snapshotsAllowed {
					return false, have(snapshotsAllowed)
				}
				yes, no := ready()
				refused := slices.ContainsFunc(l.Ledger.Entries(ledger.OnHop(ledger.CSI, "CreateSnapshot")), func(e ledger.Entry) bool {
					return e.Code == codes.ResourceExhausted.String() || e.Code == codes.FailedPrecondition.String()
				})
				if len(no) > 0 {
					last = no[0]
				}
				return len(yes) == snapshotsAllowed && refused, nil
			})
		},
		func() error { return have(snapshotsAllowed) },
		func() error {
			gone := names[0]
			if gone == last {
				gone = names[1]
			}
			names = slices.DeleteFunc(names, func(n string) bool { return n == gone })
			return l.DeleteSnapshot(ctx, gone)
		},
		func() error { _, err := l.SnapshotReady(ctx, last); return err },
		func() error { return have(snapshotsAllowed) },
		func() error { return l.Check(ctx) },
		func() error {
			for _, n := range names {
				if err := l.DeleteSnapshot(ctx, n); err != nil {
					return err
				}
			}
			return removed(ctx, l, []string{"app"}, []string{"data"})
		},
	)
}

func leftoverSnapshot(ctx context.Context, l *sim.Lab) error {
	c := claim("data", "fast", "256Mi", block)
	known, leftover := "", ""
	var remove func(context.Context) error
	refused := func(id *string) func() error {
		return func() error {
			_, snap, _ := strings.Cut(*id, "+") // volume+snapshot
			return steps(
				func() error { return l.HasEvent(ctx, c, "VolumeResizeFailed", snap) },
				func() error { return noteEvent(l, "refused", c, "VolumeResizeFailed") },
				func() error { return l.BackendSize(ctx, "data", "256Mi") },
			)
		}
	}
	return steps(
		func() error { return l.Create(ctx, c, pod("app", "", c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/dev/data", "before it grew") },
		func() error {
			s, err := l.TakeSnapshot(ctx, "one", "data", "snap")
			if err != nil {
				return err
			}
			_, known, err = contentOf(l, s)
			return err
		},
		func() error { return l.Expand(ctx, "data", "512Mi") },
		refused(&known),
		func() (err error) {
			leftover, remove, err = l.BackupSnapshot(ctx, l.VolumeID("data"))
			return err
		},
		func() error { return l.DeleteSnapshot(ctx, "one") },
		refused(&leftover),
		func() error { return remove(ctx) },
		func() error { return l.Expanded(ctx, "data", "512Mi") },
		func() error { return l.BackendSize(ctx, "data", "512Mi") },
		func() error {
			return await(ctx, l, "the claim says nothing of a resize any more", func() (bool, error) {
				now, err := l.PVC("data")
				if err != nil {
					return false, err
				}
				return !slices.ContainsFunc(now.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool { return c.Status == corev1.ConditionTrue }), nil
			})
		},
		func() error { return l.Expect(ctx, "app", "/dev/data", "before it grew") },
		func() error { return l.Check(ctx) },
		func() error { return removed(ctx, l, []string{"app"}, []string{"data"}) },
	)
}

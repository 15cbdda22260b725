package scenarios

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:          "snapshot-times-out",
		Text:          "a snapshot is cut and its answer is lost: asked again under its name it is the same one, the name for another source is refused, and one that is deleted meanwhile is deleted once its end is known",
		Labels:        []string{"K50", "incident", "snapshot", "lost-reply"},
		Incidents:     []string{"K50 kubernetes-csi/external-snapshotter#134", "K50 ceph/ceph-csi#446"},
		Flow:          snapshotTimesOut,
		Mutation:      "a snapshotter that gives each attempt a new name",
		MutateOptions: newSnapshotNames,
	})
	register(Scenario{
		Name:      "driver-is-not-hammered",
		Text:      "a driver is too busy for snapshots and growth for a while: it is asked at growing intervals, nothing is taken for final, and all is done afterwards, once",
		Labels:    []string{"K52", "incident", "snapshot", "expand", "busy"},
		Incidents: []string{"K52 kubernetes-csi/external-snapshotter#651", "K52 cloudnative-pg/cloudnative-pg#10718"},
		Flow:      notHammered,
		Mutation:  "a snapshotter that asks again at once",
		Mutate: func(l *sim.Lab) {
			l.Ledger.Subscribe(func(e ledger.Entry) {
				if e.Op == "CreateSnapshot" && e.Fault == tooBusy {
					l.As(e.Component).CreateSnapshot(l.Context(), e.Snapshot, e.Volume)
				}
			})
		},
	})
	register(Scenario{
		Name:      "clone-outlives-its-sources",
		Text:      "a snapshot is deleted while a volume that was restored from it is in use, then its source: the restored one keeps its data, on another node too, and nothing waits for it",
		Labels:    []string{"K53", "incident", "restore", "delete"},
		Incidents: []string{"K53 democratic-csi/democratic-csi#549"},
		Flow:      cloneOutlives,
		Mutation:  "a DeleteSnapshot that takes along what was restored from it",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "takes the restored along", Hop: ledger.CSI, Op: "DeleteSnapshot", Phase: fault.After, Nth: 1,
				Do: fault.Func("take the restored volume away", func(ctx context.Context, _ fault.Call) error {
					return l.PullDisk(ctx, l.Nodes()[0], "restored")
				})})
		},
	})
}

func newSnapshotNames(o *sim.Options) {
	var n atomic.Int64
	o.AlterCSI = func(_ string, req any) any {
		r, ok := req.(*csi.CreateSnapshotRequest)
		if !ok {
			return req
		}
		r = proto.CloneOf(r)
		r.Name = fmt.Sprintf("%s-%d", r.Name, n.Add(1))
		return r
	}
}

// backendSnapshots fails at once where a snapshot was made twice.
func backendSnapshots(ctx context.Context, l *sim.Lab, want int) error {
	if n := len(l.World(ctx, false).Snapshots); n != want {
		return fmt.Errorf("the backend has %d snapshots, must have %d: %w", n, want, errUnexpected)
	}
	return nil
}

func snapshotTimesOut(ctx context.Context, l *sim.Lab) error {
	c, other := claim("data", "fast", "256Mi"), claim("other", "fast", "256Mi")
	late := fault.Error(status.Error(codes.DeadlineExceeded, "context deadline exceeded"))
	caller := l.As("second-snapshotter")
	var rule *fault.Armed
	return steps(
		func() error { return startWriter(ctx, l, "app", "", c, "cut once") },
		func() error { return l.Create(ctx, other) },
		func() error { _, err := l.Bound(ctx, "other"); return err },
		func() error {
			l.Inject(fault.Rule{Name: "the answer is late", Hop: ledger.CSI, Op: "CreateSnapshot", Phase: fault.After, First: 2, Do: late})
			s, err := l.TakeSnapshot(ctx, "cut", "data", "snap")
			if err != nil {
				return err
			}
			_, id, err := contentOf(l, s)
			if err != nil {
				return err
			}
			es := csiCalls(l, "CreateSnapshot")
			name := es[0].Snapshot
			for _, e := range es {
				if e.Snapshot != name {
					return fmt.Errorf("the snapshot was asked for as %s and as %s: %w", name, e.Snapshot, errUnexpected)
				}
			}
			again, err := caller.CreateSnapshot(ctx, name, l.VolumeID("data"))
			if err != nil || again != id {
				return fmt.Errorf("the name again gave %q (%v), the snapshot is %q: %w", again, err, id, errUnexpected)
			}
			_, err = caller.CreateSnapshot(ctx, name, l.VolumeID("other"))
			return refusedWith(err, "the name for another source", codes.AlreadyExists)
		},
		func() error { return backendSnapshots(ctx, l, 1) },
		func() error { return l.Check(ctx) },
		// The user gives up on one whose end is not known.
		func() error {
			rule = l.Inject(fault.Rule{Name: "no answer comes", Hop: ledger.CSI, Op: "CreateSnapshot", Phase: fault.After, Do: late})
			return l.Create(ctx, snapshotOf("given-up", "data"))
		},
		func() error {
			return l.Until(ctx, "the second snapshot was asked for", func() bool { return rule.Fired() > 0 })
		},
		func() error { return l.Client().Delete(ctx, snapshotOf("given-up", "data")) },
		func() error { l.Disarm(rule); return l.Gone(ctx, snapshotOf("given-up", "data")) },
		func() error {
			return l.Until(ctx, "one snapshot is left on the backend", func() bool { return backendSnapshots(ctx, l, 1) == nil })
		},
		func() error { return l.Check(ctx) },
		func() error { return l.DeleteSnapshot(ctx, "cut") },
		func() error { return allGone(ctx, l, []string{"app"}, []string{"data", "other"}) },
	)
}

// tooBusy is the name of the rule that refuses as busy.
const tooBusy = "too busy"

func notHammered(ctx context.Context, l *sim.Lab) error {
	class, err := l.GrowableClass("fast", "fast-xfs")
	if err != nil {
		return sim.Skip("online growth: %v", err)
	}
	c := claim("data", class, "512Mi")
	const times = 6
	grows := func(op string) error {
		es := csiCalls(l, op, func(e ledger.Entry) bool { return e.Fault == tooBusy })
		if len(es) != times {
			return fmt.Errorf("%s was refused %d times: %w", op, len(es), errUnexpected)
		}
		var waits []string
		ok := true
		for i := 1; i < len(es); i++ {
			d := es[i].Start.Sub(es[i-1].Start)
			waits = append(waits, d.Round(time.Millisecond).String())
			ok = ok && d > 0
			// On the wall a busy machine is in it.
			if i > 1 && l.Options().Bubble {
				ok = ok && d >= es[i-1].Start.Sub(es[i-2].Start)*3/2
			}
		}
		if !ok || es[times-1].Start.Sub(es[0].Start) < 300*time.Millisecond {
			return fmt.Errorf("%s was called at intervals of %s, they must grow: %w", op, strings.Join(waits, ", "), errUnexpected)
		}
		l.Note("%s was asked again after %s", op, strings.Join(waits, ", "))
		if all := csiCalls(l, op); len(all) > times+2 {
			return fmt.Errorf("%s was called %d times: %w", op, len(all), errUnexpected)
		}
		return nil
	}
	busy := func(op string) {
		l.Inject(fault.Rule{Name: tooBusy, Hop: ledger.CSI, Op: op, First: times, Do: fault.Error(status.Error(codes.ResourceExhausted, "429 too many requests"))})
	}
	return steps(
		func() error { return startWriter(ctx, l, "app", "", c, "at its pace") },
		func() error {
			busy("CreateSnapshot")
			_, err := l.TakeSnapshot(ctx, "cut", "data", "snap")
			return err
		},
		func() error { return grows("CreateSnapshot") },
		func() error { return backendSnapshots(ctx, l, 1) },
		func() error { return l.DeleteSnapshot(ctx, "cut") },
		func() error { busy("ControllerExpandVolume"); return l.Expand(ctx, "data", "1Gi") },
		func() error { return l.Expanded(ctx, "data", "1Gi") },
		func() error { return grows("ControllerExpandVolume") },
		func() error { return l.BackendSize(ctx, "data", "1Gi") },
		func() error { return l.Check(ctx) },
		func() error { return allGone(ctx, l, []string{"app"}, []string{"data"}) },
	)
}

func cloneOutlives(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	src := claim("source", "fast", "256Mi")
	restored := claim("restored", "fast", "256Mi", fromSnapshot("cut"))
	return steps(
		func() error { return startWriter(ctx, l, "app", a, src, "as of the snapshot") },
		func() error { _, err := l.TakeSnapshot(ctx, "cut", "source", "snap"); return err },
		func() error { return l.Write(ctx, "app", "/source/a", "after the snapshot") },
		func() error { return l.Create(ctx, restored) },
		func() error { _, err := l.Bound(ctx, "restored"); return err },
		func() error { return startReader(ctx, l, "reader", a, restored, "as of the snapshot") },
		func() error { return l.DeleteSnapshot(ctx, "cut") },
		func() error { return backendSnapshots(ctx, l, 0) },
		func() error { return l.Expect(ctx, "reader", "/restored/a", "as of the snapshot") },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePVC(ctx, "source") },
		func() error { return backendVolumes(l, 1) },
		func() error { return l.Expect(ctx, "reader", "/restored/a", "as of the snapshot") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "reader") },
		func() error { return startReader(ctx, l, "elsewhere", l.OtherNode(a), restored, "as of the snapshot") },
		func() error { return l.Check(ctx) },
		func() error { return allGone(ctx, l, []string{"elsewhere"}, []string{"restored"}) },
	)
}

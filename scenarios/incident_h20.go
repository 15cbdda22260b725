package scenarios

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:      "snapshot-outlives-its-clones",
		Text:      "volumes are made from a user's snapshot and from its volume, one of them in two attempts: the snapshot stays as it was, and of what was made on the way nothing",
		Labels:    []string{"snapshot", "restore", "clone", "lost-reply"},
		Incidents: []string{"H20 hpe-storage/csi-driver release notes v2.2.0 (CON-2166)"},
		Backends:  onArray,
		Flow:      snapshotOutlives,
		Mutation:  "a provider that takes the user's snapshot for one of its own, and drops it once the clone is done",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "the source of the clone is dropped", Hop: ledger.CSI, Op: "CreateVolume", Phase: fault.After, OnlySuccess: true,
				Match: func(c fault.Call) bool { return strings.Contains(c.Request, `"snapshot_id":"`) },
				Do: fault.Func("drop the snapshot", func(ctx context.Context, c fault.Call) error {
					_, id, _ := strings.Cut(c.Request, `"snapshot_id":"`)
					id, _, _ = strings.Cut(id, `"`)
					return l.RemoveVolume(ctx, id)
				})})
		},
	})
	register(Scenario{
		Name:      "two-clones-at-once",
		Text:      "two claims are cloned from a third at the same moment: both come about, each a volume of its own",
		Labels:    []string{"clone", "provision"},
		Incidents: []string{"H23 hpe-storage/csi-driver release notes v2.5.2 (CON-3123)"},
		Backends:  onArray,
		Flow:      twoClones,
		Mutation:  "a driver that names what it makes for a clone after the source and the minute",
		MutateOptions: func(o *sim.Options) {
			o.AlterCSI = func(_ string, req any) any {
				r, ok := req.(*csi.CreateVolumeRequest)
				if !ok || r.GetVolumeContentSource().GetVolume() == nil {
					return req
				}
				r = proto.CloneOf(r)
				r.Name = "clone-of-" + r.GetVolumeContentSource().GetVolume().GetVolumeId()
				return r
			}
		},
	})
	register(Scenario{
		Name:      "deleted-under-its-snapshot",
		Text:      "a claim is deleted while a snapshot of its volume is there: the volume stays until the snapshot is gone, and the snapshot can be restored all that time",
		Labels:    []string{"snapshot", "restore", "delete"},
		Incidents: []string{"H22 hpe-storage/csi-driver release notes v2.5.2 (CON-3116), PR #421; dell/csm#1338"},
		Flow:      deletedUnderSnapshot,
		Mutation:  "a DeleteVolume that takes the volume away from under its snapshot",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "delete takes all", Hop: ledger.CSI, Op: "DeleteVolume", Do: fault.Skip()})
		},
	})
}

func snapshotOutlives(ctx context.Context, l *sim.Lab) error {
	src := claim("source", "fast", "256Mi")
	one := claim("one", "fast", "256Mi", fromSnapshot("kept"))
	two := claim("two", "fast", "512Mi", fromSnapshot("kept"))
	copied := claim("copied", "fast", "256Mi", fromClaim("source"))
	last := claim("last", "fast", "256Mi", fromSnapshot("kept"))
	id := ""
	intact := func() error {
		if !l.OnBackend(id) {
			return fmt.Errorf("the user's snapshot %s is gone: %w", id, errUnexpected)
		}
		return nil
	}
	holds := func(pvc, want string) func() error {
		return func() error {
			name := "reads-" + pvc
			c := claim(pvc, "fast", "256Mi")
			return steps(
				func() error { return l.Create(ctx, pod(name, "", c)) },
				func() error { _, err := l.Running(ctx, name); return err },
				func() error { return step(l.Expect(ctx, name, "/"+pvc+"/a", want), "what %s holds", pvc) },
				func() error { return l.DeletePod(ctx, name) },
			)
		}
	}
	return steps(
		func() error { return l.Create(ctx, src, pod("app", "", src)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/source/a", "then") },
		func() error {
			s, err := l.TakeSnapshot(ctx, "kept", "source", "snap")
			if err != nil {
				return err
			}
			_, id, err = contentOf(l, s)
			return err
		},
		func() error { return l.Write(ctx, "app", "/source/a", "now!") },
		// Half of the first is done when nobody hears of it.
		func() error {
			l.Inject(fault.Rule{Name: "the copy is begun and its answer lost", Hop: ledger.WSAPI, Op: "POST /volumes/{name}", Phase: fault.After, Nth: 1, Do: fault.Drop()})
			l.Inject(fault.Rule{Name: "the volume is made and its answer lost", Hop: ledger.CSP, Op: l.Operations().Create, Phase: fault.After, Nth: 1, Do: fault.Crash("csp")})
			return l.Create(ctx, one)
		},
		func() error { _, err := l.Bound(ctx, "one"); return err },
		intact,
		holds("one", "then"),
		func() error { return l.Create(ctx, two, copied) },
		func() error { _, err := l.Bound(ctx, "two"); return err },
		func() error { _, err := l.Bound(ctx, "copied"); return err },
		func() error { l.Expects("copied", map[string]string{"a": "now!"}); return nil },
		intact,
		holds("two", "then"),
		holds("copied", "now!"),
		func() error {
			var names []string
			return step(l.Until(ctx, "the volume has the user's snapshot and no other", func() bool {
				names, _ = l.ArraySnapshots("source")
				return len(names) == 1
			}), "it has %v", names)
		},
		func() error { _, err := l.SnapshotReady(ctx, "kept"); return err },
		func() error { return l.Create(ctx, last) },
		func() error { _, err := l.Bound(ctx, "last"); return err },
		holds("last", "then"),
		func() error { return backendVolumes(l, 5) },
		func() error { return l.Check(ctx) },
		func() error { return l.DeleteSnapshot(ctx, "kept") },
		func() error {
			if l.OnBackend(id) {
				return fmt.Errorf("snapshot %s is still there after it was deleted: %w", id, errUnexpected)
			}
			return nil
		},
		func() error { return l.DeletePod(ctx, "app") },
		func() error {
			for _, n := range []string{"source", "one", "two", "copied", "last"} {
				if err := l.DeletePVC(ctx, n); err != nil {
					return err
				}
			}
			return nil
		},
		func() error { return l.Empty(ctx) },
	)
}

// together holds calls until there are n of them.
func together(n int64) fault.Action {
	var here atomic.Int64
	all := make(chan struct{})
	return fault.Func(fmt.Sprintf("%d together", n), func(ctx context.Context, _ fault.Call) error {
		if here.Add(1) == n {
			close(all)
		}
		select {
		case <-all:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

func twoClones(ctx context.Context, l *sim.Lab) error {
	src := claim("source", "fast", "256Mi")
	left, right := claim("left", "fast", "256Mi", fromClaim("source")), claim("right", "fast", "256Mi", fromClaim("source"))
	return steps(
		func() error { return l.Create(ctx, src, pod("app", "", src)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/source/a", "of both") },
		// Both stand before the snapshot that each is copied from.
		func() error {
			l.Inject(fault.Rule{Name: "both at once", Hop: ledger.CSP, Op: "POST /snapshots", First: 2, Do: together(2)})
			return l.Create(ctx, left, right)
		},
		func() error { _, err := l.Bound(ctx, "left"); return err },
		func() error { _, err := l.Bound(ctx, "right"); return err },
		func() error {
			if a, b := l.VolumeID("left"), l.VolumeID("right"); a == b {
				return fmt.Errorf("both claims have volume %s: %w", a, errUnexpected)
			}
			return backendVolumes(l, 3)
		},
		func() error {
			l.Expects("left", map[string]string{"a": "of both"})
			l.Expects("right", map[string]string{"a": "of both"})
			return nil
		},
		func() error { return l.Create(ctx, pod("one", "", left), pod("two", "", right)) },
		func() error { _, err := l.Running(ctx, "one"); return err },
		func() error { _, err := l.Running(ctx, "two"); return err },
		func() error { return l.Write(ctx, "one", "/left/a", "of left") },
		func() error { return l.Expect(ctx, "two", "/right/a", "of both") },
		func() error { return l.Expect(ctx, "app", "/source/a", "of both") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePod(ctx, "one") },
		func() error { return l.DeletePod(ctx, "two") },
		func() error { return l.DeletePVC(ctx, "left") },
		func() error { return l.DeletePVC(ctx, "right") },
		func() error { return l.DeletePVC(ctx, "source") },
		func() error { return l.Empty(ctx) },
	)
}

func deletedUnderSnapshot(ctx context.Context, l *sim.Lab) error {
	src := claim("source", "fast", "256Mi")
	restored := claim("restored", "fast", "256Mi", fromSnapshot("kept"))
	pv, id := "", ""
	return steps(
		func() error { return l.Create(ctx, src, pod("app", "", src)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/source/a", "in the snapshot") },
		func() error { _, err := l.TakeSnapshot(ctx, "kept", "source", "snap"); return err },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { pv, id = l.PVName("source"), l.VolumeID("source"); return l.Delete(ctx, src) },
		func() error {
			p, err := l.Volume(pv)
			if err != nil {
				return err
			}
			if err := l.HasEvent(ctx, p, "VolumeFailedDelete", "snapshot"); err != nil {
				return err
			}
			return noteEvent(l, "while its snapshot is there", p, "VolumeFailedDelete")
		},
		func() error {
			for _, e := range l.Ledger.Entries(ledger.OnHop(ledger.CSI, "DeleteVolume"), ledger.About(id)) {
				if e.Code != "FailedPrecondition" {
					return fmt.Errorf("%v: must be FailedPrecondition: %w", e, errUnexpected)
				}
			}
			return stillThere(l, id)
		},
		func() error { return l.Create(ctx, restored, pod("reader", "", restored)) },
		func() error { _, err := l.Running(ctx, "reader"); return err },
		func() error { return l.Expect(ctx, "reader", "/restored/a", "in the snapshot") },
		func() error { return stillThere(l, id) },
		func() error { return l.DeleteSnapshot(ctx, "kept") },
		// The volume goes by itself then.
		func() error {
			p, err := l.Volume(pv)
			if err != nil {
				return err
			}
			return l.Gone(ctx, p)
		},
		func() error { return l.Expect(ctx, "reader", "/restored/a", "in the snapshot") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "reader") },
		func() error { return l.DeletePVC(ctx, "restored") },
		func() error { return l.Empty(ctx) },
	)
}

package scenarios

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/utils/exec"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:      "multipathd-says-nothing",
		Text:      "multipathd answers with nothing, with half a line or not at all, on SCSI hosts with two digits: volumes are staged on their own paths all the same, paths that are orphans go, and the driver stays up",
		Labels:    []string{"stage", "lun"},
		Incidents: []string{"H10 hpe-storage/common-host-libs#134, #227; hpe-storage/csi-driver release notes v2.3.0 (CON-3000)"},
		Backends:  onArray,
		Options:   func(o *sim.Options) { o.Arrays = 3 },
		Flow:      multipathdSilent,
		Mutation:  "a NodeStageVolume that takes what it finds for the volume",
		Mutate:    func(l *sim.Lab) { l.Inject(stageLies) },
	})
	register(Scenario{
		Name:      "map-grows-late",
		Text:      "a volume has grown on the array and the multipath map on the node has not: the node's expansion is not done, whatever multipathd answers, until map and filesystem have the size",
		Labels:    []string{"expand"},
		Incidents: []string{"H11 hpe-storage/common-host-libs#100, #101"},
		Backends:  onArray,
		Flow:      mapGrowsLate,
		Mutation:  "a NodeExpandVolume that answers OK with the old size",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "expand lies", Hop: ledger.CSI, Op: "NodeExpandVolume", Do: fault.Skip()})
		},
	})
}

// multipathd matches calls of multipathd with a word among their arguments.
func multipathd(word string) func(fault.Call) bool {
	return func(c fault.Call) bool { return strings.Contains(c.Request, word) }
}

func multipathdSilent(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	one, two, three := claim("one", "fast", "256Mi"), claim("two", "fast", "256Mi"), claim("three", "fast", "256Mi")
	starts := 0
	var silent []*fault.Armed
	return steps(
		func() error { return l.Create(ctx, one, two, three) },
		func() error { _, err := l.Bound(ctx, "one"); return err },
		func() error { _, err := l.Bound(ctx, "two"); return err },
		func() error { _, err := l.Bound(ctx, "three"); return err },
		// Each session is a SCSI host of its own: those to other arrays come first.
		func() error {
			if l.Options().Protocol != "iscsi" {
				return nil
			}
			for _, x := range l.SAN().Arrays()[1:] {
				if err := loginAt(l, x, a); err != nil {
					return err
				}
			}
			return nil
		},
		func() error { return l.Create(ctx, pod("app", a, one)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/one/a", "of the first") },
		func() error {
			es, err := l.Host(a).ReadDir("/sys/class/scsi_host")
			for _, e := range es {
				if len(strings.TrimPrefix(e.Name(), "host")) > 1 {
					return nil
				}
			}
			if err == nil && l.Options().Protocol == "iscsi" {
				err = fmt.Errorf("the SCSI hosts of %s are %v, none with two digits: %w", a, es, errUnexpected)
			}
			return err
		},
		func() error { return l.PullDisk(ctx, a, "one") },
		func() error {
			starts = l.Starts("driver@" + a)
			silent = append(silent, l.Inject(fault.Rule{Name: "multipathd answers nothing", Hop: ledger.Host, Op: "exec multipathd", Match: multipathd("show"), Every: 2, Do: fault.Skip()}),
				l.Inject(fault.Rule{Name: "multipathd times out", Hop: ledger.Host, Op: "exec multipathd", Match: multipathd("show"),
					Do: fault.Error(exec.CodeExitError{Err: fmt.Errorf("exit status 1: timeout receiving packet"), Code: 1})}))
			return l.Create(ctx, pod("next", a, two))
		},
		func() error { _, err := l.Running(ctx, "next"); return err },
		func() error { return l.Write(ctx, "next", "/two/a", "of the second") },
		func() error {
			if err := l.Write(ctx, "app", "/one/b", "to nowhere, not to the other"); err == nil {
				return step(errUnexpected, "a pod writes and syncs to a volume that its node does not have")
			}
			return nil
		},
		func() error { return l.Create(ctx, pod("third", a, three)) },
		func() error { _, err := l.Running(ctx, "third"); return err },
		func() error { return l.Write(ctx, "third", "/three/a", "of the third") },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Detached(ctx, l.PVName("one")) },
		func() error { return l.Expect(ctx, "next", "/two/a", "of the second") },
		func() error {
			for _, r := range silent {
				l.Disarm(r)
			}
			if n := l.Starts("driver@" + a); n != starts {
				return fmt.Errorf("the driver on %s was started %d times more: %w", a, n-starts, errUnexpected)
			}
			return nil
		},
		func() error { return l.Create(ctx, pod("app", l.OtherNode(a), one)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Expect(ctx, "app", "/one/a", "of the first") },
		func() error { return l.Check(ctx) },
		func() error {
			for _, n := range []string{"app", "next", "third"} {
				if err := l.DeletePod(ctx, n); err != nil {
					return err
				}
			}
			for _, n := range []string{"one", "two", "three"} {
				if err := l.DeletePVC(ctx, n); err != nil {
					return err
				}
			}
			return nil
		},
		func() error { return l.Empty(ctx) },
	)
}

func mapGrowsLate(ctx context.Context, l *sim.Lab) error {
	class, err := l.GrowableClass("fast", "fast-xfs")
	if err != nil {
		return sim.Skip("%v", err)
	}
	a := l.Nodes()[0]
	c := claim("data", class, "512Mi")
	var late *fault.Armed
	var from uint64
	expanded := func() []ledger.Entry {
		return l.Ledger.Entries(ledger.After(from), ledger.OnHop(ledger.CSI, "NodeExpandVolume"), ledger.About(l.VolumeID("data")))
	}
	return steps(
		func() error { return l.Create(ctx, c) },
		func() error { _, err := l.Bound(ctx, "data"); return err },
		func() error { return l.Create(ctx, pod("app", a, c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/data/a", "while it grows") },
		func() error {
			from = uint64(l.Ledger.Len())
			late = l.Inject(fault.Rule{Name: "the map keeps its size", Hop: ledger.Host, Op: "exec multipathd", Match: multipathd("resize"), Do: fault.Skip()})
			return l.Expand(ctx, "data", "1Gi")
		},
		func() error { return l.BackendSize(ctx, "data", "1Gi") },
		func() error {
			return l.Until(ctx, "the node's expansion was tried twice", func() bool {
				n := 0
				for _, e := range expanded() {
					if e.Outcome == ledger.OK {
						return true
					}
					if e.Outcome != ledger.Pending {
						n++
					}
				}
				return n >= 2
			})
		},
		func() error {
			for _, e := range expanded() {
				if e.Outcome == ledger.OK {
					return fmt.Errorf("%v, while the map has its old size: %w", e, errUnexpected)
				}
			}
			pvc, err := l.PVC("data")
			if err == nil && pvc.Status.Capacity.Storage().Value() >= 1<<30 {
				err = fmt.Errorf("the claim says %v, and its filesystem is not grown: %w", pvc.Status.Capacity.Storage(), errUnexpected)
			}
			return err
		},
		func() error { return l.Expect(ctx, "app", "/data/a", "while it grows") },
		func() error { l.Disarm(late); return nil },
		func() error { return l.Expanded(ctx, "data", "1Gi") },
		func() error { return filesystemSize(l, ctx, "app", "/data", "1Gi") },
		func() error { return l.Expect(ctx, "app", "/data/a", "while it grows") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePVC(ctx, "data") },
		func() error { return l.Empty(ctx) },
	)
}

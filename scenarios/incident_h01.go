package scenarios

import (
	"context"
	"fmt"
	"strings"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/csp"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	attachLies := func(l *sim.Lab) {
		l.Inject(fault.Rule{Name: "attach lies", Hop: ledger.CSI, Op: "ControllerPublishVolume", Do: fault.Skip()})
	}
	register(Scenario{
		Name:      "unpublish-leaves-export",
		Text:      "the storage provider says that a volume is unpublished and leaves its exports on the array: the driver does not believe it, and the volume goes to the next node only when the exports are gone",
		Labels:    []string{"detach", "attach", "move"},
		Incidents: []string{"H01 hpe-storage/csi-driver#518"},
		Backends:  onArray,
		Flow:      unpublishLeavesExport,
		Mutation:  "a ControllerUnpublishVolume that takes the provider's word, and leaves the exports",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "detach lies", Hop: ledger.CSI, Op: "ControllerUnpublishVolume", Do: fault.Skip()})
		},
	})
	register(Scenario{
		Name:      "exported-elsewhere",
		Text:      "the array still exports a volume to a node that nobody knows to have it, and later answers a publish without making an export: neither is taken for an attach to the node that asks",
		Labels:    []string{"attach"},
		Incidents: []string{"H02 hpe-storage/csi-driver#518 (CON-4496)"},
		Backends:  onArray,
		Flow:      exportedElsewhere,
		Mutation:  "a ControllerPublishVolume that is content with any export of the volume",
		Mutate:    attachLies,
	})
}

// endOf is when a call of the ledger ended.
func endOf(e ledger.Entry) int64 { return e.Start.Add(e.Duration).UnixNano() }

// exportsLeft names the hosts that the array still exports a claim's volume to.
func exportsLeft(l *sim.Lab, pvc string) (string, error) {
	xs, err := l.ArrayExports(pvc)
	var hosts []string
	for _, x := range xs {
		hosts = append(hosts, x.Host)
	}
	return strings.Join(hosts, ", "), err
}

func unpublishLeavesExport(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	c := claim("data", "fast", "256Mi")
	unpublished := ledger.OnHop(ledger.CSI, "ControllerUnpublishVolume")
	return steps(
		func() error { return l.Create(ctx, c) },
		func() error { _, err := l.Bound(ctx, "data"); return err },
		func() error { return l.Create(ctx, pod("app", a, c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/data/a", "before the move") },
		func() error {
			l.Inject(fault.Rule{Name: "the provider unpublishes nothing", Hop: ledger.CSP, Op: l.Operations().Detach, First: 2, Do: fault.Skip()})
			return l.DeletePod(ctx, "app")
		},
		func() error { return l.Detached(ctx, l.PVName("data")) },
		func() error {
			left, err := exportsLeft(l, "data")
			if err == nil && left != "" {
				err = fmt.Errorf("the volume is detached, and exported to %s: %w", left, errUnexpected)
			}
			return err
		},
		func() error {
			gone := l.Ledger.Entries(ledger.OnHop(ledger.WSAPI, "DELETE /vluns/{id}"))
			refused := 0
			for _, e := range l.Ledger.Entries(unpublished, ledger.About(l.VolumeID("data"))) {
				switch {
				case e.Outcome != ledger.OK:
					refused++
				case len(gone) == 0 || endOf(e) < endOf(gone[len(gone)-1]):
					return fmt.Errorf("%v: it is OK before the export is deleted: %w", e, errUnexpected)
				}
			}
			if refused == 0 {
				return fmt.Errorf("no ControllerUnpublishVolume failed while the provider lied: %w", errUnexpected)
			}
			return nil
		},
		func() error { return l.Create(ctx, pod("app", b, c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Expect(ctx, "app", "/data/a", "before the move") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePVC(ctx, "data") },
		func() error { return l.Empty(ctx) },
	)
}

// notAttached waits until an attach is told as refused, with a text in it, and
// fails at once when the volume counts as attached.
func notAttached(ctx context.Context, l *sim.Lab, pvc string, pod store.Object, text string) error {
	told := false
	err := l.Until(ctx, fmt.Sprintf("the attach of %s is refused with %q", pvc, text), func() bool {
		for _, e := range l.Events(pod) {
			told = told || strings.Contains(e, " FailedAttachVolume: ") && strings.Contains(e, text)
		}
		return told || attached(l, pvc)
	})
	if err == nil && !told {
		err = fmt.Errorf("%s counts as attached: %w", pvc, errUnexpected)
	}
	return err
}

// attached says whether a ControllerPublishVolume of a claim's volume has
// succeeded.
func attached(l *sim.Lab, pvc string) bool {
	for _, e := range l.Ledger.Entries(ledger.OnHop(ledger.CSI, "ControllerPublishVolume"), ledger.About(l.VolumeID(pvc))) {
		if e.Outcome == ledger.OK {
			return true
		}
	}
	return false
}

func exportedElsewhere(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	c, other := claim("data", "fast", "256Mi"), claim("other", "fast", "256Mi")
	app, second := pod("app", b, c), pod("second", a, other)
	return steps(
		func() error { return l.Create(ctx, c, other) },
		func() error { _, err := l.Bound(ctx, "data"); return err },
		func() error { _, err := l.Bound(ctx, "other"); return err },
		func() error { return l.ExportByHand("data", a) },
		func() error { return l.Create(ctx, app) },
		func() error { return notAttached(ctx, l, "data", app, "export") },
		func() error { return noteEvent(l, "exported to another node", app, "FailedAttachVolume") },
		func() error {
			if xs := l.LUNs(b); len(xs) > 0 {
				return fmt.Errorf("%s has %v beside the export to %s: %w", b, xs, a, errUnexpected)
			}
			return l.Broken(ctx)
		},
		func() error { return l.EndExport("data", a) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/data/a", "on the one node") },

		// The provider's other way to say that it has made no export.
		func() error {
			l.Inject(fault.Rule{Name: "an answer without a LUN", Hop: ledger.CSP, Op: l.Operations().Attach, Phase: fault.After, Nth: 1, Volume: l.VolumeID("other"),
				Do: fault.Error(&csp.Fault{Edit: func(reply map[string]any) { reply["lun_id"] = -1 }})})
			return l.Create(ctx, second)
		},
		func() error { return refusedFor(ctx, l, "ControllerPublishVolume", "lun_id is -1") },
		func() error { _, err := l.Running(ctx, "second"); return err },
		func() error { return l.Write(ctx, "second", "/other/a", "at a LUN") },
		func() error {
			if n, err := lun(l, "other", a); err != nil || n < 0 {
				return fmt.Errorf("LUN %d: %w", n, err)
			}
			return nil
		},
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePod(ctx, "second") },
		func() error { return l.DeletePVC(ctx, "data") },
		func() error { return l.DeletePVC(ctx, "other") },
		func() error { return l.Empty(ctx) },
	)
}

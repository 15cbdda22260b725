package scenarios

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:      "busy-in-the-middle-of-exports",
		Text:      "the array makes the export at the first of its ports and is too busy for the others, so that the publish fails: the next one makes those that are missing, at the same LUN",
		Labels:    []string{"attach", "busy", "fault"},
		Incidents: []string{"H04 hpe-storage/csi-driver release notes v2.2.0 (CON-2642)"},
		Backends:  onArray,
		Flow:      busyMidway,
		Mutation:  "a provider that does not look for the exports that are there, and makes a second set",
		Mutate:    exportsTwice,
	})
	register(Scenario{
		Name:      "export-reply-lost",
		Text:      "the answer to each export of a volume at the array is lost, then that of the publish, and the provider dies: the volume has one LUN at each port, and the node finds one device",
		Labels:    []string{"attach", "lost-reply", "crash", "fault"},
		Incidents: []string{"H05 hpe-storage/csi-driver release notes v2.5.2 (CON-3142)"},
		Backends:  onArray,
		Flow:      exportReplyLost,
		Mutation:  "a provider that exports the volume again, at another LUN",
		Mutate:    exportsTwice,
	})
}

// exportsTwice lets the array make a second export, at another LUN, beside the
// first of a volume: what a client has done that did not look what is there.
func exportsTwice(l *sim.Lab) {
	l.Inject(fault.Rule{Name: "a second set of exports", Hop: ledger.CSP, Op: l.Operations().Attach, Phase: fault.After, OnlySuccess: true,
		Do: fault.Func("export again", func(context.Context, fault.Call) error {
			a := l.SAN().Arrays()[0]
			return a.Change(func(now time.Time) ([]array.ContentOp, error) {
				for _, x := range a.Core().VLUNs() {
					_, err := a.Core().CreateVLUN(now, array.VLUNSpec{Volume: x.Volume, Host: x.Host, Port: x.Port, LUN: x.LUN + 50})
					if err != nil {
						return nil, err
					}
				}
				return nil, nil
			})
		})})
}

// oneExport requires that a claim's volume is exported to one host, once at each
// of its ports, at one LUN.
func oneExport(l *sim.Lab, pvc string, ports int) error {
	xs, err := l.ArrayExports(pvc)
	if err != nil {
		return err
	}
	at := map[string]bool{}
	for _, x := range xs {
		if x.Port == nil {
			return fmt.Errorf("%s is exported to %s at all ports: %w", pvc, x.Host, errUnexpected)
		}
		where := x.Host + " " + x.Port.String()
		if at[where] || x.LUN != xs[0].LUN || x.Host != xs[0].Host {
			return fmt.Errorf("%s is exported as %s at LUN %d, and elsewhere at LUN %d: %w", pvc, where, x.LUN, xs[0].LUN, errUnexpected)
		}
		at[where] = true
	}
	if len(at) != ports {
		return fmt.Errorf("%s is exported at %d ports, want %d: %w", pvc, len(at), ports, errUnexpected)
	}
	return nil
}

// portsFor is how many ports the first array has for the lab's protocol.
func portsFor(l *sim.Lab) (n int) {
	for _, p := range l.SAN().Arrays()[0].Ports() {
		if l.Options().Protocol == "fc" && p.Protocol == array.FC && p.Type == array.HostPort || l.Options().Protocol == "iscsi" && p.Protocol == array.ISCSI {
			n++
		}
	}
	return n
}

func busyMidway(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	c := claim("data", "fast", "256Mi")
	app := pod("app", a, c)
	var n atomic.Int64
	return steps(
		func() error { return l.Create(ctx, c) },
		func() error { _, err := l.Bound(ctx, "data"); return err },
		func() error {
			// The provider itself tries five times.
			l.Inject(fault.Rule{Name: "busy from the second export on", Hop: ledger.WSAPI, Op: "POST /vluns", Do: busy,
				Match: func(fault.Call) bool { i := n.Add(1); return i >= 2 && i <= 8 }})
			return l.Create(ctx, app)
		},
		func() error { return l.HasEvent(ctx, app, "FailedAttachVolume", "busy") },
		func() error { return noteEvent(l, "in the middle of its exports", app, "FailedAttachVolume") },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return oneExport(l, "data", portsFor(l)) },
		func() error { return l.Write(ctx, "app", "/data/a", "over all ports") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePVC(ctx, "data") },
		func() error { return l.Empty(ctx) },
	)
}

func exportReplyLost(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	c, again := claim("data", "fast", "256Mi"), claim("again", "fast", "256Mi")
	return steps(
		func() error { return l.Create(ctx, c, again) },
		func() error { _, err := l.Bound(ctx, "data"); return err },
		func() error { _, err := l.Bound(ctx, "again"); return err },
		func() error {
			l.Inject(fault.Rule{Name: "the answer to an export is lost", Hop: ledger.WSAPI, Op: "POST /vluns", Phase: fault.After, Every: 2, Do: fault.Drop()})
			return l.Create(ctx, pod("app", a, c))
		},
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return oneExport(l, "data", portsFor(l)) },
		func() error { return l.Write(ctx, "app", "/data/a", "at one LUN") },
		// Now the whole answer, with what the provider and the driver know of it.
		func() error {
			l.Inject(fault.Rule{Name: "the provider dies after the publish", Hop: ledger.CSP, Op: l.Operations().Attach, Phase: fault.After, Nth: 1, Do: fault.Crash("csp")})
			l.Inject(fault.Rule{Name: "the driver dies after the next", Hop: ledger.CSP, Op: l.Operations().Attach, Phase: fault.After, Nth: 1, Do: fault.Crash("driver-controller")})
			return l.Create(ctx, pod("user", a, again))
		},
		func() error { _, err := l.Running(ctx, "user"); return err },
		func() error { return oneExport(l, "again", portsFor(l)) },
		func() error {
			for _, e := range l.Ledger.Entries(ledger.OnHop(ledger.CSI, "ControllerUnpublishVolume")) {
				return fmt.Errorf("%v: nobody has to detach for it: %w", e, errUnexpected)
			}
			for _, e := range l.Ledger.Entries(ledger.OnHop(ledger.WSAPI, "DELETE /vluns/{id}")) {
				if !strings.Contains(e.Error, "not exist") {
					return fmt.Errorf("%v: an export was taken back: %w", e, errUnexpected)
				}
			}
			return nil
		},
		func() error { return l.Write(ctx, "user", "/again/a", "at one LUN too") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePod(ctx, "user") },
		func() error { return l.DeletePVC(ctx, "data") },
		func() error { return l.DeletePVC(ctx, "again") },
		func() error { return l.Empty(ctx) },
	)
}

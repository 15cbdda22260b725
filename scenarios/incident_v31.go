package scenarios

import (
	"context"
	"fmt"
	"strings"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:      "certificate-changed-under-the-driver",
		Text:      "the vCenter has a new certificate while the driver trusts the old one: calls are answered with UNAVAILABLE and the reason, no password is sent and nothing changes, the pod that runs goes on; once the driver is told the new one it works, without a restart of anybody else",
		Labels:    []string{"session", "provision", "detach"},
		Incidents: []string{"V31 kubernetes-sigs/vsphere-csi-driver#2821", "V31 kubernetes-sigs/cluster-api-provider-vsphere#1904"},
		Backends:  []string{sim.VSphere},
		OnWall:    true,
		Flow:      certificateChanged,
		Mutation:  "a driver that goes to the vCenter whatever certificate it has",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "goes to it all the same", Hop: ledger.CSI, Op: "CreateVolume", Phase: fault.After,
				Do: fault.Func("log in", func(ctx context.Context, _ fault.Call) error { return l.AskBackend(ctx, "driver-controller") })})
		},
	})
}

func certificateChanged(ctx context.Context, l *sim.Lab) error {
	if l.Lacks("certificate-changed") != "" {
		return sim.Skip("a vCenter in a bubble serves without TLS")
	}
	a := l.Nodes()[0]
	c, next := claim("data", "fast", "256Mi"), claim("next", "fast", "256Mi")
	var from uint64
	const tries = 3
	refused := func() (out []ledger.Entry) {
		return csiCalls(l, "CreateVolume", ledger.After(from), func(e ledger.Entry) bool { return e.Outcome != ledger.OK && e.Outcome != ledger.Pending })
	}
	distrusted := func() (n int) {
		for _, e := range refused() {
			if strings.Contains(e.Error, "certificate") {
				n++
			}
		}
		return n
	}
	return steps(
		func() error { return startWriter(ctx, l, "app", a, c, "with the old certificate") },
		func() error { return l.ReplaceCertificates() },
		func() error { from = now(l); return l.Create(ctx, next) },
		func() error { return l.HasEvent(ctx, next, "ProvisioningFailed", "certificate") },
		func() error { return noteEvent(l, "with the new certificate", next, "ProvisioningFailed") },
		func() error {
			return l.Until(ctx, "the driver was asked a few times", func() bool { return distrusted() >= tries })
		},
		func() error {
			// The connection that was open broke first.
			for _, e := range refused() {
				if e.Code != "Unavailable" {
					return fmt.Errorf("%v: must be UNAVAILABLE: %w", e, errUnexpected)
				}
			}
			for _, e := range l.Ledger.Entries(ledger.OnHop(ledger.VCenter), ledger.After(from), func(e ledger.Entry) bool { return e.Component == "driver-controller" }) {
				return fmt.Errorf("%v: a call went to a vCenter whose certificate is not trusted: %w", e, errUnexpected)
			}
			return backendVolumes(l, 1)
		},
		func() error { return l.Write(ctx, "app", "/data/b", "goes on") },
		func() error { return l.Redeploy(ctx) },
		func() error { _, err := l.Bound(ctx, "next"); return err },
		func() error { return backendVolumes(l, 2) },
		func() error { return l.Expect(ctx, "app", "/data/a", "with the old certificate") },
		func() error { return l.Check(ctx) },
		func() error { return allGone(ctx, l, []string{"app"}, []string{"data", "next"}) },
	)
}

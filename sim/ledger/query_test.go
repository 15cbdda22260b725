package ledger_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/csilab/csilab/sim/ledger"
)

// attach is a publish with what it causes, and an other call in between.
func attach() *ledger.Ledger {
	var l ledger.Ledger
	publish := l.Begin(ledger.Entry{Hop: ledger.CSI, Op: "ControllerPublishVolume", Component: "csi-attacher", Volume: "v1", Node: "n1"})
	other := l.Begin(ledger.Entry{Hop: ledger.CSI, Op: "Probe", Component: "csi-provisioner"})
	call := l.Begin(ledger.Entry{Hop: ledger.VCenter, Op: "CnsAttachVolume", Component: "driver-controller", Volume: "v1", Cause: publish})
	task := l.Begin(ledger.Entry{Hop: ledger.VCenter, Op: "task:CnsAttachVolume", Component: "vcenter", Volume: "v1", Cause: call})
	l.End(call, func(e *ledger.Entry) { e.Outcome, e.Fault = ledger.MaybeApplied, "reply lost" })
	l.End(other, ok)
	l.End(task, ok)
	return &l
}

func TestQueries(t *testing.T) {
	l := attach()
	for _, tc := range []struct {
		name string
		got  []ledger.Entry
		want string
	}{
		{"all", l.Entries(), "[1 2 3 4]"},
		{"caused by the publish", l.Entries(ledger.CausedBy(1)), "[3]"},
		{"caused by nothing", l.Entries(ledger.CausedBy(0)), "[]"},
		{"descendants", l.Descendants(1), "[3 4]"},
		{"descendants that ended well", l.Descendants(1, ledger.Ended(ledger.OK)), "[4]"},
		{"descendants of nothing", l.Descendants(0), "[]"},
		{"roots", l.Entries(ledger.Roots()), "[1 2]"},
		{"chain", l.Chain(4), "[1 3 4]"},
		{"chain of none", l.Chain(9), "[]"},
		{"open", l.Open(), "[1]"},
		{"ended", l.Entries(ledger.Ended()), "[2 3 4]"},
		{"maybe applied", l.Entries(ledger.Ended(ledger.MaybeApplied)), "[3]"},
		{"with a fault", l.Entries(ledger.WithFault("")), "[3]"},
		{"with another fault", l.Entries(ledger.WithFault("other")), "[]"},
		{"about the volume, not by the driver", l.Entries(ledger.About("v1"), ledger.Not(ledger.By("driver-controller"))), "[1 4]"},
		{"either", l.Entries(ledger.Any(ledger.By("vcenter"), ledger.OnHop(ledger.CSI, "Probe"))), "[2 4]"},
		{"between", l.Entries(ledger.After(1), ledger.Until(3)), "[2 3]"},
	} {
		var seqs []uint64
		for _, e := range tc.got {
			seqs = append(seqs, e.Seq)
		}
		if got := fmt.Sprint(seqs); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
	if n := l.Count(ledger.OnHop(ledger.VCenter)); n != 2 {
		t.Errorf("%d calls on the hop", n)
	}
	if s := l.Entries()[2].String(); s != "#3 vcenter/CnsAttachVolume by driver-controller v1 for #1 maybe-applied [reply lost]" {
		t.Error(s)
	}
	for _, h := range []ledger.Hop{ledger.CSI, ledger.VCenter, ledger.Host, ledger.Registration, ledger.Kube, ledger.CSP, ledger.WSAPI} {
		if !slices.Contains(ledger.Hops(), h) {
			t.Errorf("Hops lacks %s", h)
		}
	}
}

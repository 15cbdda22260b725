package ledger_test

import (
	"testing"
	"time"

	"github.com/csilab/csilab/sim/ledger"
)

// Two runs differ in their sequence and their digest when anything but the day
// of the run does.
func TestSequence(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	call := func(change func(*ledger.Entry)) []ledger.Entry {
		es := []ledger.Entry{
			{Seq: 1, Start: at, Hop: ledger.Kube, Op: "create pods", Component: "user", Outcome: ledger.OK},
			{Seq: 2, Start: at.Add(time.Second), Duration: time.Millisecond, Hop: ledger.CSI, Op: "CreateVolume", Component: "csi-provisioner", Volume: "v", Outcome: ledger.OK},
		}
		change(&es[1])
		return es
	}
	sum := func(es []ledger.Entry) string {
		var d ledger.Digest
		for _, e := range es {
			d.Add(e)
		}
		return d.String()
	}
	base := call(func(*ledger.Entry) {})
	later := call(func(*ledger.Entry) {})
	for i := range later {
		later[i].Start = later[i].Start.Add(24 * time.Hour)
	}
	if ledger.Sequence(base)[1] != ledger.Sequence(later)[1] || sum(base) != sum(later) {
		t.Error("another day is another sequence")
	}
	if sum(nil) != "" || len(sum(base)) != 16 {
		t.Errorf("digests %q and %q", sum(nil), sum(base))
	}
	for name, change := range map[string]func(*ledger.Entry){
		"seq": func(e *ledger.Entry) { e.Seq++ }, "start": func(e *ledger.Entry) { e.Start = e.Start.Add(1) }, "duration": func(e *ledger.Entry) { e.Duration++ },
		"hop": func(e *ledger.Entry) { e.Hop = ledger.CSP }, "op": func(e *ledger.Entry) { e.Op = "DeleteVolume" }, "component": func(e *ledger.Entry) { e.Component = "x" },
		"volume": func(e *ledger.Entry) { e.Volume = "w" }, "snapshot": func(e *ledger.Entry) { e.Snapshot = "s" }, "node": func(e *ledger.Entry) { e.Node = "n" },
		"request": func(e *ledger.Entry) { e.Request = "r" }, "outcome": func(e *ledger.Entry) { e.Outcome = ledger.Failed }, "code": func(e *ledger.Entry) { e.Code = "c" },
		"fault": func(e *ledger.Entry) { e.Fault = "f" }, "cause": func(e *ledger.Entry) { e.Cause = 1 },
	} {
		other := call(change)
		if ledger.Sequence(base)[1] == ledger.Sequence(other)[1] {
			t.Errorf("another %s is the same line", name)
		}
		if sum(base) == sum(other) {
			t.Errorf("another %s has the same digest", name)
		}
	}
}

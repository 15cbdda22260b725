package ledger_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"github.com/csilab/csilab/sim/ledger"
)

func TestBeginEndQuery(t *testing.T) {
	var l ledger.Ledger
	var seen []ledger.Entry
	l.Subscribe(func(e ledger.Entry) { seen = append(seen, e) })
	a := l.Begin(ledger.Entry{Hop: ledger.CSI, Op: "CreateVolume", Volume: "pvc-1"})
	b := l.Begin(ledger.Entry{Hop: ledger.VCenter, Op: "CnsCreateVolume", Cause: a})
	l.End(b, func(e *ledger.Entry) { e.Outcome = ledger.OK })
	l.End(b, func(e *ledger.Entry) { e.Outcome = ledger.Failed }) // closed already: stays
	l.End(99, func(e *ledger.Entry) { t.Error("no such entry") })
	if len(seen) != 1 || seen[0].Seq != b || seen[0].Outcome != ledger.OK {
		t.Fatalf("subscriber saw %v", seen)
	}
	if es := l.Entries(ledger.OnHop(ledger.CSI, "CreateVolume"), ledger.About("pvc-1")); len(es) != 1 || es[0].Outcome != ledger.Pending {
		t.Fatalf("entries %v", es)
	}
	if es := l.Entries(ledger.After(a)); len(es) != 1 || es[0].Cause != a {
		t.Fatalf("entries after %d: %v", a, es)
	}
	var buf bytes.Buffer
	if err := l.WriteJSON(&buf); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(buf.String()), "\n")
	var e ledger.Entry
	if len(lines) != 2 || json.Unmarshal([]byte(lines[1]), &e) != nil || e.Op != "CnsCreateVolume" || e.Outcome != ledger.OK {
		t.Fatalf("json:\n%s", buf.String())
	}
}

func TestConcurrentSequence(t *testing.T) {
	var l ledger.Ledger
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				l.End(l.Begin(ledger.Entry{Op: "x"}), func(e *ledger.Entry) { e.Outcome = ledger.OK })
			}
		})
	}
	wg.Wait()
	for i, e := range l.Entries() {
		if e.Seq != uint64(i)+1 || e.Outcome != ledger.OK {
			t.Fatalf("entry %d is %v", i, e)
		}
	}
	if l.Len() != 800 {
		t.Fatalf("%d entries", l.Len())
	}
}

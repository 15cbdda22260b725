package ledger_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/csilab/csilab/sim/ledger"
)

func ok(e *ledger.Entry) { e.Outcome = ledger.OK }

// Whatever the limit and the order in which calls end: no entry is lost or
// there twice, few stay, and those that have not ended all stay.
func TestLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 40).Draw(t, "limit")
		var l ledger.Ledger
		var spilled []uint64
		l.Limit(limit, func(e ledger.Entry) error {
			if e.Outcome != ledger.OK {
				t.Fatalf("spilled %v", e)
			}
			spilled = append(spilled, e.Seq)
			return nil
		})
		var open []uint64
		for range rapid.IntRange(0, 200).Draw(t, "steps") {
			if len(open) > 0 && rapid.Bool().Draw(t, "end") {
				i := rapid.IntRange(0, len(open)-1).Draw(t, "which")
				l.End(open[i], ok)
				l.End(open[i], func(*ledger.Entry) { t.Fatal("closed twice") })
				open = slices.Delete(open, i, i+1)
				continue
			}
			open = append(open, l.Begin(ledger.Entry{Hop: ledger.CSI, Op: "Probe"}))
		}
		var kept, pending []uint64
		for _, e := range l.Entries() {
			kept = append(kept, e.Seq)
		}
		for _, e := range l.Open() {
			pending = append(pending, e.Seq)
		}
		if !slices.IsSorted(kept) {
			t.Fatalf("kept %v", kept)
		}
		if !slices.Equal(pending, open) {
			t.Fatalf("open are %v, want %v", pending, open)
		}
		if n := len(kept) - len(open); n > limit {
			t.Fatalf("%d entries that have ended are kept, the limit is %d", n, limit)
		}
		all := slices.Sorted(slices.Values(slices.Concat(kept, spilled)))
		if len(all) != l.Len() || l.Dropped() != 0 {
			t.Fatalf("%d kept and %d spilled of %d, %d dropped", len(kept), len(spilled), l.Len(), l.Dropped())
		}
		for i, seq := range all {
			if seq != uint64(i)+1 {
				t.Fatalf("entry %d is #%d", i+1, seq)
			}
		}
	})
}

func TestDroppedAreCounted(t *testing.T) {
	var l ledger.Ledger
	l.Limit(8, nil)
	hangs := l.Begin(ledger.Entry{Op: "hangs"})
	for range 99 {
		l.End(l.Begin(ledger.Entry{Op: "x"}), ok)
	}
	if kept := len(l.Entries()); kept > 9 || uint64(kept)+l.Dropped() != 100 || l.Len() != 100 {
		t.Fatalf("%d kept, %d dropped of %d", kept, l.Dropped(), l.Len())
	}
	if e, there := l.Get(hangs); !there || e.Op != "hangs" || l.Entries()[0].Seq != hangs {
		t.Errorf("the call that hangs is %v, %v", e, there)
	}
	if _, there := l.Get(2); there {
		t.Error("entry 2 is still there")
	}
	dropped := l.Dropped()
	l.End(hangs, ok)
	if _, there := l.Get(hangs); there || l.Dropped() != dropped+1 {
		t.Errorf("after its end it is there: %v, %d dropped", there, l.Dropped())
	}
}

func TestLimitComesFirst(t *testing.T) {
	for _, f := range []func(*ledger.Ledger){
		func(l *ledger.Ledger) { l.Limit(0, nil) },
		func(l *ledger.Ledger) { l.Begin(ledger.Entry{}); l.Limit(1, nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("taken")
				}
			}()
			f(&ledger.Ledger{})
		}()
	}
}

func BenchmarkCall(b *testing.B) {
	for _, tc := range []struct {
		name  string
		limit int
	}{{"unlimited", 0}, {"limit 10000", 10000}} {
		b.Run(tc.name, func(b *testing.B) {
			var l ledger.Ledger
			if tc.limit > 0 {
				l.Limit(tc.limit, nil)
			}
			b.ReportAllocs()
			for b.Loop() {
				l.End(l.Begin(ledger.Entry{Hop: ledger.CSI, Op: "Probe", Component: "kubelet@node-1"}), ok)
			}
		})
	}
}

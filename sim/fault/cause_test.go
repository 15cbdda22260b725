package fault_test

import (
	"math"
	"net/http"
	"testing"

	"github.com/csilab/csilab/sim/fault"
)

func TestTraceparentNamesTheCall(t *testing.T) {
	for _, seq := range []uint64{1, 42, math.MaxUint64} {
		h := http.Header{}
		h.Set(fault.TraceField, fault.Traceparent(seq))
		if got := fault.CauseIn(h); got != seq {
			t.Errorf("%s names call %d, want %d", fault.Traceparent(seq), got, seq)
		}
	}
	// A driver that makes spans of its own puts its span's id there.
	if got := fault.CauseFrom("00-6373696c61620000000000000000002a-b7ad6b7169203331-01"); got != 42 {
		t.Errorf("behind a traced driver it is call %d, want 42", got)
	}
	for _, foreign := range []string{"", "00-", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		"00-6373696c6162zzzzzzzzzzzzzzzzzzzz-b7ad6b7169203331-01", "00-6373696c6162ffffffffffffffffffff-b7ad6b7169203331-01"} {
		if got := fault.CauseFrom(foreign); got != 0 {
			t.Errorf("%q names call %d", foreign, got)
		}
	}
}

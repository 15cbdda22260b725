package csp_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/csilab/csilab/sim/csp"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

// An array grows a volume by so much more: a request whose answer was lost is
// not sent again, or the volume grows twice (CON-3329).
func TestGrowWithALostAnswer(t *testing.T) {
	for name, phase := range map[string]fault.Phase{"not done": fault.Before, "done": fault.After} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, withCSP(func(c *csp.Config) { c.Backoff = []time.Duration{time.Millisecond, time.Millisecond} }))
			r.volume("v", `{"cpg":"cpg1"}`)
			was := r.arrays[0].volumes()[0].SizeMiB
			r.in.Plan.Arm(fault.Rule{Hop: ledger.WSAPI, Op: "PUT /volumes/{name}", Phase: phase, Nth: 1, Do: fault.Drop()})
			body := fmt.Sprintf(`{"size":%d}`, (was+256)<<20)
			r.refused(500, "", "PUT", "/volumes/v", body)
			r.do(200, "PUT", "/volumes/v", body)
			if got := r.arrays[0].volumes()[0].SizeMiB; got != was+256 {
				t.Errorf("the volume has %d MiB, want %d", got, was+256)
			}
		})
	}
}

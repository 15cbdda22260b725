package sim

import (
	"encoding/json"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/csilab/csilab/sim/evidence"
	"github.com/csilab/csilab/sim/invariant"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/wholefile"
)

// maxJudged is how many worlds with something broken a lab keeps.
const maxJudged = 8

// saw keeps a world that was judged: those with something broken, and of those
// without the last for each who asks.
func (l *Lab) saw(why string, w *invariant.World, vs []invariant.Violation) {
	x := evidence.World{Seq: uint64(l.Ledger.Len()), Time: time.Now(), Why: why, World: w, Violations: vs}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(vs) == 0 {
		l.judged = slices.DeleteFunc(l.judged, func(o evidence.World) bool { return o.Why == why && len(o.Violations) == 0 })
	} else if n := len(slices.DeleteFunc(slices.Clone(l.judged), func(o evidence.World) bool { return len(o.Violations) == 0 })); n >= maxJudged {
		return // the first ones explain the others
	}
	l.judged = append(l.judged, x)
}

// Evidence is what the lab has to show so far. scenario says what it was for.
func (l *Lab) Evidence(scenario string) *evidence.File {
	o := l.opts
	options, err := json.Marshal(map[string]any{
		"backend": o.Backend, "protocol": o.Protocol, "arrays": o.Arrays, "copyMiBs": o.CopyMiBs, "sameInitiator": o.SameInitiator,
		"nodes": o.Nodes, "zones": o.Zones, "vcenters": len(o.VCenters), "host": o.Host, "timers": o.Timers, "bubble": o.Bubble,
		"maxVolumesPerNode": o.MaxVolumesPerNode, "freeSlots": o.FreeSlots, "topologyGateOff": o.TopologyGateOff, "forgetfulKubelets": o.ForgetfulKubelets,
	})
	if err != nil {
		panic(err) // of plain values
	}
	f := &evidence.File{
		Header: evidence.Header{Program: evidence.Program(), Scenario: scenario, System: o.System(), Seed: o.Seed, Options: options},
		Calls:  l.Ledger.Entries(), Dropped: l.Ledger.Dropped(),
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	f.Worlds = slices.Clone(l.judged)
	return f
}

// WriteLedger writes the lab's evidence into a file of dir, which `csilab check`
// reads, and returns the file: its name is name's, with -2 and so on where there is
// such a file already.
func (l *Lab) WriteLedger(dir, name string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	stem := strings.NewReplacer("/", "_", " ", "_").Replace(name)
	return wholefile.New(dir, stem, ".ledger.jsonl", func(w io.Writer) error { return evidence.Write(w, l.Evidence(name)) })
}

// spill writes what the ledger lets go of as JSON lines; nil drops it.
func (l *Lab) spill() func(ledger.Entry) error {
	if l.opts.Spill == nil {
		return nil
	}
	enc := json.NewEncoder(l.opts.Spill)
	return func(e ledger.Entry) error { return enc.Encode(e) }
}

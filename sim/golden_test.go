package sim_test

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/csilab/csilab/scenarios"
	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/ledger"
)

var update = flag.Bool("update", false, "write the golden ledgers anew")

// told are the calls of a flow that golden ledgers hold: what is asked of the
// driver, what that asks of its backend and does on its nodes. What goes on at
// times of its own is left out.
func told(es []ledger.Entry) []ledger.Entry {
	return ledger.Select(es,
		ledger.Any(ledger.OnHop(ledger.CSI), ledger.OnHop(ledger.VCenter), ledger.OnHop(ledger.CSP), ledger.OnHop(ledger.WSAPI),
			func(e ledger.Entry) bool { return e.Hop == ledger.Host && strings.HasPrefix(e.Component, "driver@") }),
		ledger.Not(ledger.OnHop(ledger.CSI, "Probe", "NodeGetVolumeStats")),
		ledger.Not(ledger.OnHop(ledger.VCenter, "WaitForUpdatesEx", "CreateFilter", "DestroyPropertyFilter", "CreatePropertyCollector")))
}

// ran runs a scenario's flow in a bubble and returns its calls.
func ran(t *testing.T, name string, o sim.Options) (es []ledger.Entry) {
	s, ok := scenarios.Find(name)
	if !ok {
		t.Fatalf("no scenario %s", name)
	}
	bubble(t, func(t *testing.T) {
		o.Bubble = true
		if s.Options != nil {
			s.Options(&o)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Hour)
		defer cancel()
		lab, err := sim.Start(ctx, o)
		must(t, err)
		defer lab.Close()
		if !s.NotReady {
			must(t, lab.NodesReady(ctx))
		}
		if !s.NoClasses {
			must(t, lab.Apply(ctx, lab.Classes()))
		}
		if err := s.Flow(ctx, lab); err != nil {
			if sim.IsSkip(err) {
				t.Skip(err)
			}
			t.Fatal(err)
		}
		es = lab.Ledger.Entries()
	})
	return es
}

// Who asks whom for what, in a few flows, is written down.
func TestGolden(t *testing.T) {
	for _, tc := range []struct {
		name string
		opts sim.Options
	}{
		{"lifecycle-filesystem", sim.Options{Backend: sim.VSphere}},
		{"lifecycle-filesystem", sim.Options{Backend: sim.HPE, Protocol: "iscsi"}},
		{"lifecycle-filesystem", sim.Options{Backend: sim.HPE, Protocol: "fc"}},
	} {
		file := filepath.Join("..", "fixtures", "ledgers", tc.opts.System()+"."+tc.name+".txt")
		t.Run(tc.opts.System()+"/"+tc.name, func(t *testing.T) {
			got := ledger.Canonical(told(ran(t, tc.name, tc.opts)))
			if *update {
				must(t, os.MkdirAll(filepath.Dir(file), 0o755))
				must(t, os.WriteFile(file, []byte(got), 0o644))
				return
			}
			want, err := os.ReadFile(file)
			must(t, err)
			a, b := strings.Split(got, "\n"), strings.Split(string(want), "\n")
			if i := firstDifference(a, b); i >= 0 {
				t.Errorf("other calls than in %s, from line %d on:\n%s\nwant:\n%s\n(-update writes the file anew)", file, i+1, window(a, i), window(b, i))
			}
		})
	}
}

// Package realhosts_test runs scenarios with real mounts, apart from the others: the
// limit of go test is for each package, and slow cores need most of it for those.
package realhosts_test

import (
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/csilab/csilab/scenarios"
	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/simtest"
)

func TestMain(m *testing.M) { simtest.Main(m) }

// TestRealHosts runs the scenarios that are no sweeps, and on vSphere some of those
// of public bugs. `csilab run` has real mounts only where the kernel has a say.
func TestRealHosts(t *testing.T) {
	if err := host.RealSupported(); err != nil {
		t.Skip(err)
	}
	ledgers := filepath.Join(sim.Options{}.WithDefaults().StateRoot, "ledgers")
	sem := make(chan struct{}, 2*runtime.GOMAXPROCS(0))
	for _, on := range []sim.Options{{Backend: sim.VSphere}, {Backend: sim.HPE, Protocol: "iscsi"}} {
		on.Host, on.Settle = "real", slow*45*time.Second
		for i, s := range scenarios.All() {
			if s.Sweep != nil || slices.Contains(s.Labels, "incident") && (i%3 != 0 || on.Backend == sim.HPE) {
				continue
			}
			if slow > 1 && (slices.Contains(s.Labels, "incident") || i%3 != 0 || on.Backend == sim.HPE) {
				continue // of real hosts the race detector sees no more in many scenarios than in a few
			}
			if len(s.Backends) > 0 && !slices.Contains(s.Backends, on.Backend) {
				continue
			}
			t.Run(on.System()+"/"+s.Name, func(t *testing.T) {
				t.Parallel()
				sem <- struct{}{}
				defer func() { <-sem }()
				res := scenarios.Run(t.Context(), s, scenarios.Config{Options: on, Timeout: limit, Keep: ledgers})
				switch res.Class {
				case scenarios.Passed:
				case scenarios.Skipped:
					t.Skip(res.Reason)
				default:
					t.Errorf("%s: %s\nreplay: %s\nledger: %s", res.Class, res.Reason, res.Replay, res.Ledger)
				}
			})
		}
	}
}

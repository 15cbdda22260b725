package scenarios_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"

	"github.com/csilab/csilab/scenarios"
	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/bubble"
	"github.com/csilab/csilab/sim/simtest"
)

// ledgers is where the ledgers of failures stay.
var ledgers = filepath.Join(sim.Options{}.WithDefaults().StateRoot, "ledgers")

func TestMain(m *testing.M) { simtest.Main(m) }

// TestScenarios runs the Ginkgo suite on memory hosts, as anybody can.
func TestScenarios(t *testing.T) {
	gomega.RegisterFailHandler(ginkgo.Fail)
	suite, reporter := ginkgo.GinkgoConfiguration()
	var cfgs []scenarios.Config
	for _, o := range []sim.Options{{Backend: sim.VSphere}, {Backend: sim.HPE, Protocol: "iscsi"}, {Backend: sim.HPE, Protocol: "fc"}} {
		if o.Protocol == "fc" && slow > 1 {
			continue // the lab's code is that of iSCSI; the driver's and the nodes' have race runs of their own
		}
		o.Host, o.Settle = "memory", slow*45*time.Second
		every := sweepEvery
		if o.Backend == sim.HPE {
			// It makes three times the calls; `csilab run --every 1` takes all cells.
			every = max(4, 2*sweepEvery)
		}
		cfgs = append(cfgs, scenarios.Config{
			Options: o, Timeout: limit, Parallel: max(2, 4/slow) * runtime.GOMAXPROCS(0), Keep: ledgers,
			SweepEvery: every, SweepBubbles: bubble.In(t),
			// Sweeps over FC make the calls that those over iSCSI make, but for iscsiadm.
			// Incidents of both backends have sockets and real time on one of them.
			Only: func(s scenarios.Scenario) bool {
				return o.Backend == sim.VSphere || len(s.Incidents) == 0 || len(s.Backends) > 0
			},
			Label: func(labels []string) bool {
				// Incidents are run in bubbles on each system (package sim); the wall adds
				// real sockets and time, which FC has in common with iSCSI.
				if has(labels, "incident") && (slow > 1 || o.Protocol == "fc") {
					return false
				}
				return (!testing.Short() && o.Protocol != "fc") || !has(labels, "sweep")
			},
		})
	}
	stop := scenarios.Specs(cfgs...)
	defer stop()
	ginkgo.RunSpecs(t, "csilab", suite, reporter)
}

func has(labels []string, l string) bool {
	for _, x := range labels {
		if x == l {
			return true
		}
	}
	return false
}

// A ledger that can't be written is not lost in silence.
func TestLedgerNotWritten(t *testing.T) {
	t.Parallel()
	s, ok := scenarios.Find("two-pods-one-node")
	if !ok {
		t.Fatal("no such scenario")
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	res := scenarios.Run(t.Context(), s, scenarios.Config{Options: sim.Options{Host: "memory"}, Keep: file, KeepAll: true})
	if res.Class != scenarios.Passed || res.Ledger != "" || !strings.Contains(strings.Join(res.Notes, " "), "its ledger was not written") {
		t.Errorf("%s: %s, ledger %q, notes %q", res.Class, res.Reason, res.Ledger, res.Notes)
	}
}

// TestMutants shows that each scenario turns red under the mutation that it
// names: a scenario that can't fail shows nothing. CSILAB_MUTANTS limits it to
// scenarios with that label.
func TestMutants(t *testing.T) {
	if slow > 1 {
		t.Skip("a mutant shows that a scenario can fail: the race detector has nothing to add to that")
	}
	t.Parallel()
	sem := make(chan struct{}, 4*runtime.GOMAXPROCS(0))
	for _, s := range scenarios.All() {
		if s.Mutation == "" {
			t.Errorf("%s names no mutation", s.Name)
		}
		if s.Mutate == nil && s.MutateOptions == nil {
			t.Errorf("%s has no mutation", s.Name)
			continue
		}
		if l := os.Getenv("CSILAB_MUTANTS"); l != "" && !has(s.Labels, l) {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			sem <- struct{}{}
			defer func() { <-sem }()
			var res scenarios.Result
			if len(s.Incidents) > 0 {
				res = mutantInBubble(t, s)
			}
			if res.Class == "" || res.Class == scenarios.Skipped { // or there is no like of it in a bubble
				res = scenarios.Run(t.Context(), s, scenarios.Config{Options: sim.Options{Backend: backendOf(s), Host: "memory", Settle: 8 * time.Second}, Mutate: true, Timeout: mutantTimeout(s), SweepBubbles: bubble.In(t)})
			}
			switch res.Class {
			case scenarios.Skipped:
				t.Skip(res.Reason)
			case scenarios.Failed, scenarios.Invariant, scenarios.NoConverge:
				t.Logf("%s: %s", res.Class, res.Reason)
			default:
				t.Errorf("%q leaves the scenario %s: %s", s.Mutation, res.Class, res.Reason)
			}
		})
	}
}

// mutantInBubble runs a mutant in virtual time, where it costs nothing to wait
// for what never comes.
func mutantInBubble(t *testing.T, s scenarios.Scenario) (res scenarios.Result) {
	synctest.Test(t, func(*testing.T) {
		// A bubble's clock begins in 2000, before any object of this world.
		time.Sleep(time.Until(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)))
		res = scenarios.Run(context.Background(), s, scenarios.Config{Options: sim.Options{Backend: backendOf(s), Bubble: true, Settle: time.Minute}, Mutate: true, Timeout: time.Hour})
	})
	return res
}

// With this seed a claim is restored from a snapshot of one of the first size,
// which an array rounds up.
func TestRandomUsersRestoreOnAnArray(t *testing.T) {
	t.Parallel()
	for _, s := range scenarios.All() {
		if s.Name != "random-users" {
			continue
		}
		res := scenarios.Run(t.Context(), s, scenarios.Config{Timeout: limit,
			Options: sim.Options{Backend: sim.HPE, Protocol: "fc", Seed: 3, Host: "memory", Settle: slow * 45 * time.Second}})
		if res.Class != scenarios.Passed {
			t.Errorf("%s: %s", res.Class, res.Reason)
		}
		return
	}
	t.Fatal("there is no scenario random-users")
}

// backendOf is a backend that a scenario makes sense for.
func backendOf(s scenarios.Scenario) string {
	if len(s.Backends) > 0 {
		return s.Backends[0]
	}
	return sim.VSphere
}

// A mutant that keeps the lab from getting anywhere is told by time alone: a
// healthy run takes a small part of it.
func mutantTimeout(s scenarios.Scenario) time.Duration {
	if s.Sweep != nil {
		return 2 * time.Minute
	}
	return 20 * time.Second
}

func TestNamesAndLabels(t *testing.T) {
	for _, s := range scenarios.All() {
		if s.Text == "" || len(s.Labels) == 0 {
			t.Errorf("%s has no text or no label", s.Name)
		}
		if got, ok := scenarios.Find(s.Name); !ok || got.Name != s.Name {
			t.Errorf("%s is not found by its name", s.Name)
		}
	}
	if _, ok := scenarios.Find("no-such"); ok {
		t.Error("found what is not there")
	}
}

func TestDocs(t *testing.T) {
	for _, page := range []struct{ file, format, want string }{
		{"../docs/scenarios.md", "markdown", scenarios.Markdown()},
		{"../docs/incidents.md", "incidents", scenarios.IncidentsMarkdown()},
	} {
		b, err := os.ReadFile(page.file)
		if err != nil {
			t.Fatal(err)
		}
		if string(b) != page.want {
			t.Errorf("%s is not what `go run ./cmd/csilab list -o %s` prints", page.file, page.format)
		}
	}
}

// An incident has an id of the catalogue and says where it was told of; its
// scenario can be selected by the id.
func TestIncidents(t *testing.T) {
	form := regexp.MustCompile(`^[VHK]\d{2} \S.*\S$`)
	for _, s := range scenarios.All() {
		for _, i := range s.Incidents {
			if !form.MatchString(i) {
				t.Errorf("%s: incident %q, allowed is an id like V09, a space and where it was told of", s.Name, i)
			} else if !has(s.Labels, i[:3]) || !has(s.Labels, "incident") {
				t.Errorf("%s: its labels %q are without %s", s.Name, s.Labels, i[:3])
			}
		}
	}
}

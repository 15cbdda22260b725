package sim_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csilab/csilab/scenarios"
	"github.com/csilab/csilab/scenarios/flow"
	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/evidence"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/simtest"
)

// epoch is when labs in a bubble begin. A bubble's own clock starts in 2000,
// before any object of this world.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// bubble runs f in virtual time, from epoch on. At its end the bubble itself
// requires that no goroutine is left.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(epoch))
		f(t)
	})
}

// hour is long in virtual time.
func hour(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	t.Cleanup(cancel)
	return ctx
}

// Each scenario and each flow runs in virtual time with the timers of a real
// cluster, and the same seed is the same run: call by call, each at its moment.
func TestScenariosInBubbles(t *testing.T) {
	all := scenarios.All()
	for _, f := range flow.All() {
		all = append(all, scenarios.Scenario{Name: "flow-" + f.Name, Backends: f.Backends, Options: f.Options, Flow: f.Run})
	}
	for _, o := range []sim.Options{{Backend: sim.VSphere}, {Backend: sim.HPE, Protocol: "iscsi"}, {Backend: sim.HPE, Protocol: "fc"}} {
		if o.Protocol == "fc" && raced {
			continue
		}
		for i, s := range all {
			if s.Sweep != nil {
				continue // makes hundreds of labs; package scenarios runs it
			}
			if raced && len(s.Incidents) == 0 && !strings.HasPrefix(s.Name, "flow-") {
				continue // package scenarios runs it with the detector, on the wall
			}
			if raced && (i%2 == 0) != (o.Backend == sim.VSphere) {
				continue // half of them on each: the lab's code is the same
			}
			// The node's stack is all that FC has of its own, and the race detector
			// makes a run ten times as dear.
			again := o.Protocol != "fc" && (!raced || i%8 < 2)
			t.Run(o.System()+"/"+s.Name, func(t *testing.T) {
				t.Parallel()
				a := inBubble(t, s, o)
				if a == nil || !again {
					return
				}
				b := inBubble(t, s, o)
				if i := firstDifference(a, b); i >= 0 {
					t.Errorf("of %d and %d calls the same seed gave other ones from here on:\n%s\n---\n%s", len(a), len(b), window(a, i), window(b, i))
				}
			})
		}
	}
}

// inBubble runs a scenario and returns its calls; none where it did not pass.
func inBubble(t *testing.T, s scenarios.Scenario, o sim.Options) (calls []string) {
	o.Bubble = true
	bubble(t, func(t *testing.T) {
		res := scenarios.Run(context.Background(), s, scenarios.Config{Options: o, Timeout: time.Hour, Keep: t.ArtifactDir(), KeepAll: true})
		switch res.Class {
		case scenarios.Passed:
			t.Logf("%v of virtual time", res.Duration)
			calls = recorded(t, res.Ledger)
		case scenarios.Skipped:
			t.Skip(res.Reason)
		default:
			t.Errorf("%s: %s\nledger: %s", res.Class, res.Reason, res.Ledger)
		}
	})
	return calls
}

// recorded are the calls in a ledger that was written.
func recorded(t *testing.T, file string) []string {
	f, err := os.Open(file)
	must(t, err)
	defer f.Close()
	e, err := evidence.Read(f)
	must(t, err)
	return ledger.Sequence(e.Calls)
}

// A volume of a node that lost power is detached when the pod is gone and six
// minutes have passed (kubernetes v1.37.2
// pkg/controller/volume/attachdetach/attach_detach_controller.go,
// ReconcilerMaxWaitForUnmountDuration).
func TestForceDetachTakesSixMinutes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lab := simtest.New(t, simtest.Bubble())
		ctx := hour(t)
		start(ctx, t, lab, "app", "node-1", "data")
		must(t, lab.PowerOff(ctx, "node-1"))
		off := time.Now()
		must(t, lab.NotReady(ctx, "node-1"))
		if d := time.Since(off); d < 40*time.Second || d > 2*time.Minute {
			t.Errorf("the node is given up after %v", d)
		}
		must(t, lab.ForceDeletePod(ctx, "app"))
		gone := time.Now()
		must(t, lab.Detached(ctx, lab.PVName("data")))
		if d := time.Since(gone); d < 6*time.Minute || d > 6*time.Minute+30*time.Second {
			t.Errorf("detached after %v, want 6 minutes", d)
		}
		calls := lab.Ledger.Entries(ledger.OnHop(ledger.CSI, "ControllerUnpublishVolume"))
		if len(calls) == 0 || calls[0].Start.Before(gone.Add(6*time.Minute)) {
			t.Errorf("the driver was asked to unpublish too early:\n%s", ledger.Text(calls))
		}
		start(ctx, t, lab, "app", "node-2", "data")
		must(t, lab.Check(ctx))
	})
}

// Another seed is another run.
func TestOtherSeedOtherCalls(t *testing.T) {
	s, _ := scenarios.Find("lifecycle-filesystem")
	run := func(seed uint64) []string {
		return inBubble(t, s, sim.Options{Backend: sim.VSphere, Seed: seed})
	}
	if slices.Equal(run(7), run(8)) {
		t.Error("another seed gave the very same calls")
	}
}

func firstDifference(a, b []string) int {
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) || a[i] != b[i] {
			return i
		}
	}
	return -1
}

func window(s []string, i int) string {
	return strings.Join(s[max(0, i-2):min(len(s), i+3)], "\n")
}

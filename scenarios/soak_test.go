package scenarios_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csilab/csilab/scenarios"
	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/bubble"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

// soak runs one in a bubble.
func soak(t *testing.T, s scenarios.Soak) (res scenarios.SoakResult) {
	t.Helper()
	s.Options.Bubble = true
	if err := bubble.In(t).Run(t.Context(), func(ctx context.Context) error {
		res = s.Run(ctx, t.ArtifactDir())
		return nil
	}); err != nil {
		t.Error(err)
	}
	return res
}

// Seeds decide topology, load and faults, and what they decide is survived.
func TestSoak(t *testing.T) {
	for seed := range uint64(3) {
		if seed > 0 && slow > 1 {
			break // TestSoakAgain has four more
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			s := scenarios.DrawSoak(seed, scenarios.SoakLimits{Volumes: 9, Nodes: 3, Duration: time.Hour})
			res := soak(t, s)
			if res.Class != scenarios.Passed {
				t.Errorf("%s: %s: %s\nledger: %s", res.Plan, res.Class, res.Reason, res.Ledger)
			}
			if scenarios.Total(res.Steps) < 20 || len(s.Troubles) > 3 && scenarios.Total(res.Faults) == 0 {
				t.Errorf("%s: steps %v, faults %v", res.Plan, res.Steps, res.Faults)
			}
			t.Logf("%s: %v, steps %v, faults %v, %d calls", res.Plan, res.Virtual, res.Steps, res.Faults, res.Calls)
		})
	}
}

// The same seed is the same run, call by call and to the nanosecond.
func TestSoakAgain(t *testing.T) {
	for _, seed := range []uint64{3, 5} {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			s := scenarios.DrawSoak(seed, scenarios.SoakLimits{Volumes: 9, Nodes: 3, Duration: time.Hour})
			a, b := soak(t, s), soak(t, s)
			if a.Digest != b.Digest || a.Calls != b.Calls || a.Virtual != b.Virtual {
				t.Errorf("%s: %d calls, digest %s; again: %d calls, digest %s", a.Plan, a.Calls, a.Digest, b.Calls, b.Digest)
			}
		})
	}
}

// A filesystem that became read-only under a pod, as ext4 does after an I/O error,
// is mended by a new pod.
func TestSoakReadOnly(t *testing.T) {
	s := scenarios.DrawSoak(3, scenarios.SoakLimits{System: sim.Options{Backend: sim.HPE, Protocol: "iscsi"}, Volumes: 3, Nodes: 2, Duration: 30 * time.Minute, Troubles: []string{}})
	var armed *fault.Armed
	s.Mutate = func(l *sim.Lab) {
		armed = l.Inject(fault.Rule{Name: "an I/O error", Hop: ledger.CSI, Op: "NodePublishVolume", Phase: fault.After, Nth: 1, Do: fault.MakeReadOnly("", "", 0), MayNotFire: true})
	}
	res := soak(t, s)
	if res.Class != scenarios.Passed || armed.Fired() != 1 {
		t.Errorf("%s: %s, fired %d times", res.Class, res.Reason, armed.Fired())
	}
}

// A soak tells a driver that lies.
func TestSoakMutant(t *testing.T) {
	s := scenarios.DrawSoak(3, scenarios.SoakLimits{System: sim.Options{Backend: sim.VSphere}, Volumes: 9, Nodes: 3, Duration: time.Hour, Troubles: []string{}})
	s.Mutate = func(l *sim.Lab) {
		l.Inject(fault.Rule{Name: "one detach lies", Hop: ledger.CSI, Op: "ControllerUnpublishVolume", Nth: 5, Do: fault.Skip()})
	}
	if res := soak(t, s); res.Class != scenarios.Invariant {
		t.Errorf("%s: %s", res.Class, res.Reason)
	}
}

// One that does not come to an end says who waits for what.
func TestSoakThatDoesNotEnd(t *testing.T) {
	s := scenarios.DrawSoak(3, scenarios.SoakLimits{System: sim.Options{Backend: sim.VSphere}, Volumes: 3, Nodes: 2, Duration: 30 * time.Minute, Troubles: []string{}})
	s.Mutate = func(l *sim.Lab) {
		l.Inject(fault.Rule{Name: "nothing is deleted", Hop: ledger.CSI, Op: "DeleteVolume", Do: fault.Error(status.Error(codes.Unavailable, "never"))})
	}
	if res := soak(t, s); res.Class != scenarios.NoConverge || !strings.Contains(res.Reason, "u1 deletes u1-c") {
		t.Errorf("%s: %s", res.Class, res.Reason)
	}
}

// A limit on one thing changes nothing else that the seed decides.
func TestDrawSoak(t *testing.T) {
	a := scenarios.DrawSoak(7, scenarios.SoakLimits{})
	b := scenarios.DrawSoak(7, scenarios.SoakLimits{Volumes: 5})
	b.Volumes = a.Volumes
	if a.String() != b.String() || a.String() == scenarios.DrawSoak(8, scenarios.SoakLimits{}).String() {
		t.Errorf("%s\n%s", a, b)
	}
	drawn := map[string]bool{}
	for seed := range uint64(50) {
		any := scenarios.DrawSoak(seed, scenarios.SoakLimits{})
		drawn[fmt.Sprintf("%s, %d arrays, %d vCenters", any.Options.System(), any.Options.Arrays, any.VCenters)] = true
		if any.Options.Nodes < 2*any.VCenters {
			t.Errorf("%s", any)
		}
		on := scenarios.DrawSoak(seed, scenarios.SoakLimits{System: sim.Options{Backend: sim.HPE}, Arrays: 2})
		if o := on.Options; o.Arrays != 2 || any.Options.Backend == sim.HPE && o.Protocol != any.Options.Protocol || o.Protocol == "" {
			t.Errorf("%s became %s", any, on)
		}
		s := scenarios.DrawSoak(seed, scenarios.SoakLimits{System: sim.Options{Backend: sim.VSphere}})
		for _, name := range s.Troubles {
			if !slices.Contains(scenarios.Troubles(sim.VSphere), name) {
				t.Errorf("%s has %s", s, name)
			}
		}
	}
	for _, want := range []string{"vsphere, 0 arrays, 1 vCenters", "vsphere, 0 arrays, 2 vCenters", "vsphere, 0 arrays, 3 vCenters", "hpe-iscsi, 1 arrays, 0 vCenters", "hpe-iscsi, 2 arrays, 0 vCenters", "hpe-fc, 2 arrays, 0 vCenters"} {
		if !drawn[want] {
			t.Errorf("no seed has %s: %v", want, drawn)
		}
	}
}

// Users have volumes of two arrays, copies, shares, and volumes of several vCenters.
func TestSoakOfSeveral(t *testing.T) {
	for name, limits := range map[string]scenarios.SoakLimits{
		"arrays":   {System: sim.Options{Backend: sim.HPE}, Arrays: 2},
		"vCenters": {System: sim.Options{Backend: sim.VSphere}, VCenters: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limits.Volumes, limits.Nodes, limits.Duration = 9, 4, 2*time.Hour
			s := scenarios.DrawSoak(2, limits)
			res := soak(t, s)
			if res.Class != scenarios.Passed {
				t.Errorf("%s: %s: %s\nledger: %s", res.Plan, res.Class, res.Reason, res.Ledger)
			}
			if name == "arrays" && res.Steps["pair"]*res.Steps["copy"]*res.Steps["share"]*res.Steps["visit"] == 0 {
				t.Errorf("%s: steps %v", res.Plan, res.Steps)
			}
		})
	}
}

// The rules of a plan are armed for the safety phase alone, and must fire.
func TestSoakPlan(t *testing.T) {
	limits := scenarios.SoakLimits{System: sim.Options{Backend: sim.VSphere}, Volumes: 3, Nodes: 2, Duration: 30 * time.Minute, Troubles: []string{}}
	rule := fault.Rule{Name: "nothing is made", Hop: ledger.CSI, Op: "CreateVolume", Do: fault.Error(status.Error(codes.Unavailable, "not now"))}
	limits.Plan = &scenarios.SoakPlan{File: "plan.yaml", Rules: func(*sim.Lab) ([]fault.Rule, error) { return []fault.Rule{rule}, nil }}
	if res := soak(t, scenarios.DrawSoak(3, limits)); res.Class != scenarios.Passed || res.Faults[rule.Name] == 0 {
		t.Errorf("%s: %s: %s, %v", res.Plan, res.Class, res.Reason, res.Faults)
	}
	rule.Op = "ControllerModifyVolume"
	if res := soak(t, scenarios.DrawSoak(3, limits)); res.Class != scenarios.Failed || !strings.Contains(res.Reason, rule.Name) {
		t.Errorf("%s: %s: %s", res.Plan, res.Class, res.Reason)
	}
}

// What fails is shown as small as it fails.
func TestShrink(t *testing.T) {
	s := scenarios.DrawSoak(7, scenarios.SoakLimits{Volumes: 100, Nodes: 20, Duration: 24 * time.Hour, Troubles: []string{"a", "b", "c", "d", "e", "f"}})
	failed := scenarios.SoakResult{Soak: s, Class: scenarios.Invariant}
	runs := 0
	small := scenarios.Shrink(failed, func(s scenarios.Soak) (scenarios.SoakResult, bool) {
		runs++
		res := scenarios.SoakResult{Soak: s, Class: scenarios.Passed}
		switch {
		case s.Duration < time.Hour:
			res.Class = scenarios.NoConverge // another failure is not this one
		case s.Volumes >= 7 && slices.Contains(s.Troubles, "c") && slices.Contains(s.Troubles, "e"):
			res.Class = scenarios.Invariant
		}
		return res, true
	}).Soak
	if small.Volumes > 13 || small.Options.Nodes != 2 || small.Duration > 2*time.Hour || !slices.Equal(small.Troubles, []string{"c", "e"}) || runs > 100 {
		t.Errorf("%s after %d runs", small, runs)
	}
	if got := scenarios.Shrink(failed, func(scenarios.Soak) (scenarios.SoakResult, bool) { return scenarios.SoakResult{}, false }); got.Soak.String() != s.String() {
		t.Errorf("%s", got.Soak)
	}
}

// BenchmarkSoak is two virtual hours of 60 volumes on 20 nodes.
func BenchmarkSoak(b *testing.B) {
	for b.Loop() {
		s := scenarios.DrawSoak(2, scenarios.SoakLimits{System: sim.Options{Backend: sim.VSphere}, Volumes: 60, Nodes: 20, Duration: 2 * time.Hour})
		s.Options.Bubble = true
		if err := bubble.Program().Run(b.Context(), func(ctx context.Context) error {
			if res := s.Run(ctx, ""); res.Class != scenarios.Passed {
				b.Errorf("%s: %s", res.Plan, res.Reason)
			}
			return nil
		}); err != nil {
			b.Error(err)
		}
	}
}

package fault_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

// wound is a change that counts how often it is done and undone.
type wound struct {
	done, healed int
	mu           sync.Mutex
}

func (w *wound) count() (done, healed int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.done, w.healed
}

func (w *wound) change(last time.Duration) *fault.Change {
	return fault.NewChange("wound", last, func(context.Context, *fault.Interceptor, fault.Call) (func(), error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.done++
		return func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.healed++
		}, nil
	})
}

func ok(context.Context) error { return nil }

// A change happens at the call that its rule matches, before or after it, and the
// rules behind it act on the call too.
func TestChangeLeavesTheCallToOthers(t *testing.T) {
	boom := errors.New("boom")
	for _, phase := range []fault.Phase{fault.Before, fault.After} {
		in, l, p := interceptor()
		w, ran := &wound{}, false
		seen := -1
		a := p.Arm(fault.Rule{Name: "change", Phase: phase, Nth: 2, Do: w.change(0)})
		b := p.Arm(fault.Rule{Name: "error", Phase: phase, Do: fault.Error(boom), Nth: 2})
		for range 2 {
			_ = in.Do(t.Context(), attach, func(context.Context) error { ran, seen = true, w.done; return nil })
		}
		if w.done != 1 || a.Fired() != 1 || b.Fired() != 1 || !ran || seen != 0 {
			t.Errorf("%s: done %d, fired %d and %d, seen %d", phase, w.done, a.Fired(), b.Fired(), seen)
		}
		es := l.Entries()
		if es[0].Fault != "" || es[1].Fault != "error" {
			t.Errorf("%s: the ledger names %q and %q", phase, es[0].Fault, es[1].Fault)
		}
	}
	in, l, p := interceptor()
	w := &wound{}
	p.Arm(fault.Rule{Name: "change", Do: w.change(0)})
	if err := in.Do(t.Context(), attach, ok); err != nil || l.Entries()[0].Fault != "change" || l.Entries()[0].Outcome != ledger.OK {
		t.Errorf("%v: %v", err, l.Entries())
	}
}

// What a rule has done heals once: when its time is over, when it is taken out by
// any way, or when the faulty phase ends.
func TestChangesHeal(t *testing.T) {
	for name, tc := range map[string]struct {
		last time.Duration
		heal func(p *fault.Plan, a *fault.Armed)
		left int
	}{
		"by time":           {time.Minute, func(*fault.Plan, *fault.Armed) { time.Sleep(time.Minute + time.Second) }, 1},
		"too early":         {time.Hour, func(*fault.Plan, *fault.Armed) { time.Sleep(time.Minute) }, -1},
		"disarmed":          {0, func(p *fault.Plan, a *fault.Armed) { p.Disarm(a) }, 0},
		"cleared by name":   {0, func(p *fault.Plan, _ *fault.Armed) { p.ClearNamed("change") }, 0},
		"cleared":           {0, func(p *fault.Plan, _ *fault.Armed) { p.ClearAll() }, 0},
		"end of the faults": {0, func(p *fault.Plan, _ *fault.Armed) { p.Heal() }, 1},
		"twice":             {time.Minute, func(p *fault.Plan, a *fault.Armed) { p.Heal(); time.Sleep(2 * time.Minute); p.Disarm(a) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				in, _, p := interceptor()
				defer in.Close()
				w := &wound{}
				a := p.Arm(fault.Rule{Name: "change", First: 2, Do: w.change(tc.last)})
				for range 3 {
					_ = in.Do(t.Context(), attach, ok)
				}
				if done, healed := w.count(); done != 2 || healed != 0 {
					t.Fatalf("done %d, healed %d", done, healed)
				}
				tc.heal(p, a)
				synctest.Wait()
				want := 2
				if tc.left < 0 {
					want, tc.left = 0, 1
				}
				if _, healed := w.count(); healed != want || len(p.Rules()) != tc.left {
					t.Errorf("healed %d, want %d; %d rules are left, want %d", healed, want, len(p.Rules()), tc.left)
				}
			})
		})
	}
}

// A change that can't be made is no fault: the call goes on, the rule has not
// fired, nor has what waits for it, and it says why.
func TestMissedChange(t *testing.T) {
	for _, phase := range []fault.Phase{fault.Before, fault.After} {
		in, l, p := interceptor()
		in.World = struct{}{}
		for name, do := range map[string]fault.Action{"change": fault.LoseVolume(""), "crash": fault.CrashWith(fault.CrashParams{State: "lost"})} {
			a := p.Arm(fault.Rule{Name: name, Phase: phase, Do: do})
			b := p.Arm(fault.Rule{Name: "after it", Phase: phase, AfterRule: name, Do: fault.Drop(), MayNotFire: true})
			for range 2 {
				if err := in.Do(t.Context(), attach, ok); err != nil {
					t.Error(err)
				}
			}
			es := l.Entries()
			if a.Fired() != 0 || b.Fired() != 0 || a.Missed() == nil || !strings.Contains(a.Missed().Error(), "this lab can't") || es[len(es)-1].Fault != "" {
				t.Errorf("%s: fired %d and %d, missed: %v; %v", name, a.Fired(), b.Fired(), a.Missed(), es)
			}
			if u := p.Unfired(); len(u) != 1 || u[0] != a {
				t.Errorf("%s: unfired are %v", name, u)
			}
			p.ClearAll()
		}
	}
}

// shelf is a world with volumes and nodes.
type shelf struct{ lost, off, on []string }

func (s *shelf) ResolveVolume(subject string) (string, bool) {
	id, ok := map[string]string{"v1": "v1", "pv-1": "v1", "v2": "v2"}[subject]
	return id, ok
}
func (s *shelf) ResolveNode(subject string) (string, bool) {
	id, ok := map[string]string{"node-1": "node-1", "uuid-1": "node-1", "driver@node-2": "node-2"}[subject]
	return id, ok
}
func (s *shelf) LoseVolume(_ context.Context, id string) error {
	s.lost = append(s.lost, id)
	return nil
}
func (s *shelf) PowerOff(_ context.Context, n string) error { s.off = append(s.off, n); return nil }
func (s *shelf) PowerOn(_ context.Context, n string) error  { s.on = append(s.on, n); return nil }

// What a rule does not name is that of the call, or of the calls that it is made
// for.
func TestSubjects(t *testing.T) {
	for name, tc := range map[string]struct {
		do   fault.Action
		call fault.Call
		want string // "": missed
		why  string
	}{
		"volume that is said":    {fault.LoseVolume("v2"), fault.Call{Volume: "v1"}, "v2", ""},
		"volume of the call":     {fault.LoseVolume(""), fault.Call{Volume: "pv-1"}, "v1", ""},
		"volume of its cause":    {fault.LoseVolume(""), fault.Call{}, "v1", ""},
		"volume that is unknown": {fault.LoseVolume("v3"), fault.Call{Volume: "v1"}, "", `volume "v3": there is none`},
		"node that is said":      {fault.LosePower("node-1", 0), fault.Call{}, "node-1", ""},
		"node of the call":       {fault.LosePower("", 0), fault.Call{Node: "uuid-1"}, "node-1", ""},
		"node of its caller":     {fault.LosePower("", 0), fault.Call{Component: "driver@node-2"}, "node-2", ""},
		"node of its cause":      {fault.LosePower("", 0), fault.Call{Component: "driver-controller"}, "node-1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			in, l, p := interceptor()
			w := &shelf{}
			in.World = w
			cause := l.Begin(ledger.Entry{Hop: ledger.CSI, Volume: "v1", Node: "uuid-1"})
			between := l.Begin(ledger.Entry{Hop: ledger.CSP, Cause: cause})
			tc.call.Cause = between
			a := p.Arm(fault.Rule{Do: tc.do})
			if err := in.Do(t.Context(), tc.call, ok); err != nil {
				t.Fatal(err)
			}
			got := strings.Join(append(w.lost, w.off...), " ")
			if got != tc.want || tc.want == "" && (a.Missed() == nil || !strings.Contains(a.Missed().Error(), tc.why)) {
				t.Errorf("changed %q, want %q; missed: %v", got, tc.want, a.Missed())
			}
			p.Disarm(a)
			if len(w.on) != len(w.off) {
				t.Error("the power does not come back")
			}
		})
	}
	in, _, p := interceptor()
	in.World = &shelf{}
	a := p.Arm(fault.Rule{Do: fault.LoseVolume("")})
	if _ = in.Do(t.Context(), fault.Call{}, ok); a.Missed() == nil || !strings.Contains(a.Missed().Error(), "the call names no volume: name one in the rule") {
		t.Error(a.Missed())
	}
}

// Rules are not about what the lab's own administrator does, unless they name
// him: what a change does by calls must not set it off again.
func TestAdministrator(t *testing.T) {
	in, _, p := interceptor()
	all := p.Arm(fault.Rule{Name: "all", Do: fault.Drop(), MayNotFire: true})
	if err := in.Do(t.Context(), fault.Call{Component: fault.Administrator, Op: "Login"}, ok); err != nil || all.Seen() != 0 {
		t.Error(err, all.Seen())
	}
	own := p.Arm(fault.Rule{Name: "own", Component: fault.Administrator, Do: fault.Drop()})
	if err := in.Do(t.Context(), fault.Call{Component: fault.Administrator, Op: "Login"}, ok); !errors.Is(err, fault.ErrDrop) || own.Fired() != 1 {
		t.Error(err)
	}
}

package fault_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func interceptor() (*fault.Interceptor, *ledger.Ledger, *fault.Plan) {
	l, p := &ledger.Ledger{}, &fault.Plan{Seed: 1}
	return &fault.Interceptor{Ledger: l, Plan: p}, l, p
}

var attach = fault.Call{Hop: ledger.CSI, Op: "ControllerPublishVolume", Volume: "v1", Component: "csi-attacher"}

func TestPhases(t *testing.T) {
	boom := errors.New("boom")
	refused := errors.New("refused by the callee")
	for _, tc := range []struct {
		name    string
		rule    fault.Rule
		op      error
		err     error
		ran     bool
		outcome ledger.Outcome
	}{
		{"no rule matches", fault.Rule{Op: "Other", Do: fault.Error(boom), MayNotFire: true}, nil, nil, true, ledger.OK},
		{"callee refuses", fault.Rule{Op: "Other", Do: fault.Error(boom), MayNotFire: true}, refused, refused, true, ledger.Failed},
		{"error before", fault.Rule{Op: attach.Op, Do: fault.Error(boom)}, nil, boom, false, ledger.Refused},
		{"error after commit", fault.Rule{Phase: fault.After, Do: fault.Error(boom)}, nil, boom, true, ledger.MaybeApplied},
		{"drop before", fault.Rule{Do: fault.Drop()}, nil, fault.ErrDrop, false, ledger.Refused},
		{"drop after commit", fault.Rule{Phase: fault.After, Do: fault.Drop()}, nil, fault.ErrDrop, true, ledger.MaybeApplied},
		{"crash before", fault.Rule{Do: fault.Crash("")}, nil, fault.ErrCrashed, false, ledger.Refused},
		{"crash after commit", fault.Rule{Phase: fault.After, Do: fault.Crash("driver-controller")}, nil, fault.ErrCrashed, true, ledger.MaybeApplied},
		{"after, only success, refused", fault.Rule{Phase: fault.After, OnlySuccess: true, Do: fault.Drop(), MayNotFire: true}, refused, refused, true, ledger.Failed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in, l, p := interceptor()
			var crashed []string
			in.OnCrash = func(c string) { crashed = append(crashed, c) }
			armed := p.Arm(tc.rule)
			ran := false
			err := in.Do(t.Context(), attach, func(context.Context) error { ran = true; return tc.op })
			if !errors.Is(err, tc.err) || ran != tc.ran {
				t.Fatalf("err %v, ran %v; want %v, %v", err, ran, tc.err, tc.ran)
			}
			es := l.Entries()
			if len(es) != 1 || es[0].Outcome != tc.outcome {
				t.Fatalf("ledger: %v, want outcome %s", es, tc.outcome)
			}
			fires := !tc.rule.MayNotFire
			if got := armed.Fired() == 1; got != fires {
				t.Errorf("fired %d times", armed.Fired())
			}
			if fires && es[0].Fault != armed.Name {
				t.Errorf("ledger names fault %q, want %q", es[0].Fault, armed.Name)
			}
			if errors.Is(tc.err, fault.ErrCrashed) != (len(crashed) == 1) {
				t.Errorf("crashed %v", crashed)
			}
		})
	}
}

func TestOccurrence(t *testing.T) {
	boom := errors.New("boom")
	for _, tc := range []struct {
		name string
		rule fault.Rule
		want []int
	}{
		{"always", fault.Rule{}, []int{1, 2, 3, 4, 5, 6}},
		{"nth", fault.Rule{Nth: 3}, []int{3}},
		{"first", fault.Rule{First: 2}, []int{1, 2}},
		{"every", fault.Rule{Every: 2}, []int{2, 4, 6}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in, _, p := interceptor()
			tc.rule.Do = fault.Error(boom)
			a := p.Arm(tc.rule)
			var got []int
			for i := 1; i <= 6; i++ {
				if in.Do(t.Context(), attach, func(context.Context) error { return nil }) != nil {
					got = append(got, i)
				}
			}
			if !slices.Equal(got, tc.want) || a.Seen() != 6 || a.Fired() != len(tc.want) {
				t.Errorf("fired at %v (seen %d), want %v", got, a.Seen(), tc.want)
			}
		})
	}
}

// The draws of a probability do not depend on what else happens in the lab.
func TestProbabilityIsAFunctionOfTheSubject(t *testing.T) {
	run := func(noise bool) (fired int) {
		in, _, p := interceptor()
		a := p.Arm(fault.Rule{Name: "p", Volume: "v1", Probability: 0.3, Do: fault.Drop()})
		for range 1000 {
			if noise {
				_ = in.Do(context.Background(), fault.Call{Hop: ledger.CSI, Op: "NodeStageVolume", Volume: "v2"}, func(context.Context) error { return nil })
			}
			_ = in.Do(context.Background(), attach, func(context.Context) error { return nil })
		}
		return a.Fired()
	}
	a, b := run(false), run(true)
	if a != b || a < 200 || a > 400 {
		t.Errorf("fired %d times alone, %d with noise; want the same, near 300", a, b)
	}
}

func TestUnfired(t *testing.T) {
	in, _, p := interceptor()
	p.Arm(fault.Rule{Name: "fires", Op: attach.Op, Do: fault.Delay(0)})
	p.Arm(fault.Rule{Name: "never", Op: "NoSuchCall", Do: fault.Drop()})
	p.Arm(fault.Rule{Name: "may", Op: "NoSuchCall", Do: fault.Drop(), MayNotFire: true})
	if err := in.Do(t.Context(), attach, func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if u := p.Unfired(); len(u) != 1 || u[0].Name != "never" {
		t.Errorf("unfired: %v", u)
	}
}

func TestDelayAndHangEndWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, l, p := interceptor()
		d := p.Arm(fault.Rule{Do: fault.Delay(time.Minute)})
		start := time.Now()
		if err := in.Do(context.Background(), attach, func(context.Context) error { return nil }); err != nil || time.Since(start) != time.Minute {
			t.Errorf("delayed %v, %v", time.Since(start), err)
		}
		p.Disarm(d)
		p.Arm(fault.Rule{Do: fault.Hang()})
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		defer cancel()
		start = time.Now()
		err := in.Do(ctx, attach, func(context.Context) error { t.Error("op ran"); return nil })
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 15*time.Second {
			t.Errorf("hang: %v after %v", err, time.Since(start))
		}
		// Closing the lab lets hung calls go.
		done := make(chan error)
		go func() { done <- in.Do(context.Background(), attach, func(context.Context) error { return nil }) }()
		synctest.Wait()
		in.Close()
		if err := <-done; !errors.Is(err, fault.ErrDrop) {
			t.Errorf("after close: %v", err)
		}
		if n := len(l.Entries(func(e ledger.Entry) bool { return e.Outcome == ledger.Pending })); n != 0 {
			t.Errorf("%d entries still pending", n)
		}
	})
}

func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, _, p := interceptor()
		g := fault.NewGate()
		p.Arm(fault.Rule{Phase: fault.After, Do: g})
		committed := false
		done := make(chan error, 1)
		go func() {
			done <- in.Do(context.Background(), attach, func(context.Context) error { committed = true; return nil })
		}()
		c, err := g.Reached(context.Background())
		if err != nil || c.Volume != "v1" || !committed {
			t.Fatalf("at the gate: %+v, %v, committed %v", c, err, committed)
		}
		select {
		case <-done:
			t.Fatal("passed a closed gate")
		default:
		}
		g.Release()
		g.Release()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}

func TestCauseIsTheCallAround(t *testing.T) {
	in, l, _ := interceptor()
	_ = in.Do(t.Context(), attach, func(ctx context.Context) error {
		return in.Do(ctx, fault.Call{Hop: ledger.VCenter, Op: "CnsAttachVolume"}, func(context.Context) error { return nil })
	})
	if es := l.Entries(ledger.OnHop(ledger.VCenter)); len(es) != 1 || es[0].Cause != 1 {
		t.Errorf("entries: %v", es)
	}
}

func TestArmWithoutActionPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	new(fault.Plan).Arm(fault.Rule{Name: "x"})
}

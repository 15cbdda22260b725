package fault_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

var errBoom = errors.New("boom")

func nothing(context.Context) error { return nil }

// firesOn tells which of some calls a rule acts on.
func firesOn(t *testing.T, r fault.Rule, calls ...fault.Call) []int {
	t.Helper()
	in, _, p := interceptor()
	r.Do = fault.Error(errBoom)
	p.Arm(r)
	var out []int
	for i, c := range calls {
		if in.Do(t.Context(), c, nothing) != nil {
			out = append(out, i)
		}
	}
	return out
}

func TestWhereOfARule(t *testing.T) {
	calls := []fault.Call{
		{Hop: ledger.VCenter, Op: "CnsAttachVolume", Volume: "v1", Node: "uuid-1", Component: "driver-controller"},
		{Hop: ledger.VCenter, Op: "task:CnsAttachVolume", Volume: "v1", Node: "node-1", Component: "vcenter"},
		{Hop: ledger.Host, Op: "exec mkfs.ext4", Node: "node-1"},
		{Hop: ledger.Host, Op: "exec mkfs.xfs", Node: "node-2"},
		{Hop: ledger.CSI, Op: "DeleteSnapshot", Snapshot: "s1"},
	}
	for _, tc := range []struct {
		name string
		rule fault.Rule
		want []int
	}{
		{"all", fault.Rule{}, []int{0, 1, 2, 3, 4}},
		{"hop", fault.Rule{Hop: ledger.Host}, []int{2, 3}},
		{"op", fault.Rule{Op: "CnsAttachVolume"}, []int{0}},
		{"op with a star", fault.Rule{Op: "exec mkfs.*"}, []int{2, 3}},
		{"op with stars", fault.Rule{Op: "*Attach*"}, []int{0, 1}},
		{"snapshot", fault.Rule{Snapshot: "s1"}, []int{4}},
		{"node", fault.Rule{Node: "node-1"}, []int{1, 2}},
		{"condition", fault.Rule{Where: fault.MustWhere(`volume == "v1" && component != "vcenter"`)}, []int{0}},
		{"phase task", fault.Rule{Op: "CnsAttachVolume", Phase: fault.Task}, []int{1}},
		{"phase task of any operation", fault.Rule{Phase: fault.Task}, []int{1}},
	} {
		if got := firesOn(t, tc.rule, calls...); !slices.Equal(got, tc.want) {
			t.Errorf("%s: fired on %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestWhenOfARule(t *testing.T) {
	a, b := fault.Call{Op: "x", Volume: "a"}, fault.Call{Op: "x", Volume: "b"}
	for _, tc := range []struct {
		name string
		rule fault.Rule
		want []int
	}{
		{"first of all", fault.Rule{First: 2}, []int{0, 1}},
		{"first of each subject", fault.Rule{First: 2, PerSubject: true}, []int{0, 1, 2, 4}},
		{"second of each subject", fault.Rule{Nth: 2, PerSubject: true}, []int{1, 4}},
		{"attempt", fault.Rule{Where: fault.MustWhere("attempt == 2")}, []int{1, 4}},
		{"attempt and nth", fault.Rule{Nth: 2, Where: fault.MustWhere("attempt >= 2")}, []int{3}},
	} {
		if got := firesOn(t, tc.rule, a, a, b, a, b); !slices.Equal(got, tc.want) {
			t.Errorf("%s: fired on %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestNodesGoByNameOrID(t *testing.T) {
	in, _, p := interceptor()
	p.NodeName = func(id string) string {
		if id == "uuid-1" {
			return "node-1"
		}
		return id
	}
	byName := p.Arm(fault.Rule{Node: "node-1", Do: fault.Delay(0)})
	for range 3 {
		if err := in.Do(t.Context(), fault.Call{Op: "x", Node: "uuid-1"}, nothing); err != nil {
			t.Fatal(err)
		}
	}
	p.Disarm(byName)
	where := p.Arm(fault.Rule{Where: fault.MustWhere(`node == "node-1"`), Do: fault.Delay(0)})
	_ = in.Do(t.Context(), fault.Call{Op: "x", Node: "uuid-1"}, nothing)
	if byName.Fired() != 3 || where.Fired() != 1 {
		t.Errorf("fired %d and %d times", byName.Fired(), where.Fired())
	}
}

// A rule that waits for another is armed by its first firing.
func TestAfterRule(t *testing.T) {
	in, _, p := interceptor()
	second := p.Arm(fault.Rule{Name: "second", Op: "b", AfterRule: "first", Nth: 1, Do: fault.Error(errBoom)})
	first := p.Arm(fault.Rule{Name: "first", Op: "a", Nth: 2, Do: fault.Delay(0)})
	call := func(op string) error { return in.Do(t.Context(), fault.Call{Op: op}, nothing) }
	for _, step := range []struct {
		op   string
		want error
	}{{"b", nil}, {"a", nil}, {"b", nil}, {"a", nil}, {"b", errBoom}, {"b", nil}} {
		if err := call(step.op); err != step.want {
			t.Fatalf("%s: %v, want %v", step.op, err, step.want)
		}
	}
	if second.Seen() != 2 {
		t.Errorf("%d calls counted, want those after the first rule", second.Seen())
	}
	p.Disarm(first)
	p.Clear()
	p.Arm(fault.Rule{Name: "second", Op: "b", AfterRule: "first", Do: fault.Error(errBoom)})
	if err := call("b"); err != nil {
		t.Error("a cleared plan remembers what has fired")
	}
}

// The first rule that was armed decides, whether it names the operation or not.
func TestRulesAreAskedInOrder(t *testing.T) {
	in, l, p := interceptor()
	p.Arm(fault.Rule{Name: "one", Op: "x", Nth: 1, Do: fault.Delay(0)})
	p.Arm(fault.Rule{Name: "two", Nth: 2, Do: fault.Delay(0)})
	p.Arm(fault.Rule{Name: "three", Op: "x", Do: fault.Delay(0)})
	p.Arm(fault.Rule{Name: "four", Do: fault.Delay(0), MayNotFire: true})
	for range 4 {
		_ = in.Do(t.Context(), fault.Call{Op: "x"}, nothing)
	}
	var got []string
	for _, e := range l.Entries() {
		got = append(got, e.Fault)
	}
	// "two" sees what "one" lets pass.
	if want := []string{"one", "three", "two", "three"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestResultReachesTheFace(t *testing.T) {
	in, _, p := interceptor()
	p.Arm(fault.Rule{Op: "CnsCreateVolume", Phase: fault.Result, Do: fault.Error(errBoom)})
	err := in.Do(t.Context(), fault.Call{Op: "task:CnsCreateVolume"}, nothing)
	var r *fault.InResult
	if !errors.As(err, &r) || !errors.Is(err, errBoom) {
		t.Errorf("%v", err)
	}
}

func TestDuplicate(t *testing.T) {
	for _, first := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			in, l, p := interceptor()
			p.Arm(fault.Rule{Name: "twice", Nth: 1, Do: fault.Duplicate(first, time.Minute)})
			reply, runs, start := 0, 0, time.Now()
			call := func() error {
				return in.Do(context.Background(), attach, func(ctx context.Context) error {
					runs++
					if !fault.Discarded(ctx) {
						reply = runs
					}
					if runs == 1 {
						return errBoom
					}
					return nil
				})
			}
			err := call()
			want, wantErr := 2, error(nil)
			if first {
				want, wantErr = 1, errBoom
			}
			if runs != 2 || reply != want || err != wantErr || time.Since(start) != time.Minute {
				t.Errorf("first %v: %d runs, reply %d, %v, after %v", first, runs, reply, err, time.Since(start))
			}
			es := l.Entries()
			if len(es) != 2 || es[1].Cause != es[0].Seq || es[0].Fault != "twice" || es[0].Outcome == es[1].Outcome {
				t.Errorf("ledger:\n%s", ledger.Text(es))
			}
			if call(); runs != 3 {
				t.Errorf("cleared: %d runs", runs)
			}
			in.Close()
		})
	}
}

func TestBodyCarriesTheError(t *testing.T) {
	for _, tc := range []struct {
		do      fault.Action
		op      error
		outcome ledger.Outcome
	}{
		{fault.SlowBody(time.Second), nil, ledger.OK},
		{fault.SlowBody(time.Second), errBoom, ledger.Failed},
		{fault.TruncatedBody(50, false), nil, ledger.MaybeApplied},
	} {
		in, l, p := interceptor()
		p.Arm(fault.Rule{Phase: fault.After, Do: tc.do})
		err := in.Do(t.Context(), attach, func(context.Context) error { return tc.op })
		var b *fault.Body
		if !errors.As(err, &b) || b.Err != tc.op || l.Entries()[0].Outcome != tc.outcome {
			t.Errorf("%s of %v: %v, %s", tc.do, tc.op, err, l.Entries()[0].Outcome)
		}
	}
}

func TestLatencyIsDrawnFromTheSeed(t *testing.T) {
	took := func(seed uint64) (out []time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			in, _, p := interceptor()
			p.Seed = seed
			p.Arm(fault.Rule{Name: "slow", Do: fault.Latency(time.Second, 10*time.Second)})
			for range 5 {
				start := time.Now()
				_ = in.Do(context.Background(), attach, nothing)
				out = append(out, time.Since(start))
			}
			in.Close()
		})
		return out
	}
	a, b, c := took(1), took(1), took(2)
	if !slices.Equal(a, b) || slices.Equal(a, c) || a[0] == a[1] || slices.Min(a) < time.Second || slices.Max(a) >= 11*time.Second {
		t.Errorf("%v, %v, %v", a, b, c)
	}
}

func TestGateByName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, _, p := interceptor()
		a := p.Arm(fault.Rule{Name: "stage", Do: fault.NewGate()})
		done := make(chan error, 2)
		for range 2 {
			go func() { done <- in.Do(context.Background(), attach, nothing) }()
		}
		synctest.Wait()
		if h := a.Held(); len(h) != 2 || h[0].Volume != "v1" {
			t.Errorf("held: %+v", h)
		}
		if _, err := p.Release("stages"); !errors.Is(err, fault.ErrNoRule) {
			t.Errorf("release of none: %v", err)
		}
		if n, err := p.Release("stage"); n != 2 || err != nil {
			t.Errorf("released %d, %v", n, err)
		}
		if err := errors.Join(<-done, <-done); err != nil || len(a.Held()) != 0 {
			t.Errorf("%v, still held %v", err, a.Held())
		}
		in.Close()
	})
}

// A kind that does not fit a call is not carried out on it by a rule about all.
func TestWideRulesKeepToWhatTheirKindFits(t *testing.T) {
	k, ok := fault.Lookup("drop")
	if !ok {
		t.Fatal("no kind drop")
	}
	r, err := k.Rule(fault.Rule{Hop: ledger.VCenter}, nil)
	if err != nil {
		t.Fatal(err)
	}
	in, _, p := interceptor()
	p.Arm(r)
	if err := in.Do(t.Context(), fault.Call{Hop: ledger.VCenter, Op: "task:CnsCreateVolume"}, nothing); err != nil {
		t.Errorf("a task was dropped: %v", err)
	}
	if err := in.Do(t.Context(), fault.Call{Hop: ledger.VCenter, Op: "CnsCreateVolume"}, nothing); !errors.Is(err, fault.ErrDrop) {
		t.Errorf("%v", err)
	}
	if _, err := k.Rule(fault.Rule{Hop: ledger.Host}, nil); err == nil {
		t.Error("hop host can drop")
	}
	if _, err := k.Rule(fault.Rule{Hop: ledger.CSI, Phase: fault.Task}, nil); err == nil {
		t.Error("drop in phase task")
	}
}

func TestUnknownWorldIsAnError(t *testing.T) {
	in, _, p := interceptor()
	in.World = struct{}{}
	a := p.Arm(fault.Rule{Do: fault.Crash("")})
	var none *fault.NoWorldError
	if err := in.Do(t.Context(), attach, nothing); err != nil || !errors.As(a.Missed(), &none) || a.Fired() != 0 {
		t.Errorf("%v, missed: %v", err, a.Missed())
	}
}

// A call that no rule is about costs its ledger entry and the context that
// carries its number.
func TestIdleCallsDoNotAllocate(t *testing.T) {
	in, _, p := interceptor()
	for i := range 100 {
		p.Arm(fault.Rule{Hop: ledger.CSI, Op: fmt.Sprint("Other", i), Do: fault.Drop()})
	}
	ctx := context.Background()
	for _, tc := range []struct {
		name   string
		ledger *ledger.Ledger
		want   float64
	}{{"with a ledger", in.Ledger, 1}, {"without", nil, 0}} {
		in.Ledger = tc.ledger
		if got := testing.AllocsPerRun(1000, func() { _ = in.Do(ctx, attach, nothing) }); got > tc.want {
			t.Errorf("%s: %v allocations, want %v", tc.name, got, tc.want)
		}
	}
}

// The cost of a call that no rule is about.
func BenchmarkInterceptorIdle(b *testing.B) {
	for _, rules := range []int{0, 1000} {
		b.Run(fmt.Sprintf("rules-%d", rules), func(b *testing.B) {
			in, _, p := interceptor()
			for i := range rules {
				p.Arm(fault.Rule{Hop: ledger.CSI, Op: fmt.Sprint("Other", i), Do: fault.Drop()})
			}
			ctx := context.Background()
			b.ReportAllocs()
			for b.Loop() {
				_ = in.Do(ctx, attach, nothing)
			}
		})
	}
}

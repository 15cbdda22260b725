// Package fault is the fault plan of a lab and the one interceptor that every
// hop passes: it writes the ledger and asks the plan.
package fault

import (
	"context"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	"github.com/csilab/csilab/sim/ledger"
)

// Call describes one call to the interceptor. Faces fill in what they know;
// no field may hold a secret.
type Call struct {
	Hop       ledger.Hop
	Op        string
	Component string
	Node      string
	Volume    string
	Snapshot  string
	Request   string
	Cause     uint64
}

// Phase is where in a call a rule acts.
type Phase string

// The phases.
const (
	Before Phase = "before" // the operation has not happened
	After  Phase = "after"  // the operation is committed, the reply not sent
)

// Rule says where, when and what. The zero values of the selectors match all.
type Rule struct {
	// Name shows up in the ledger and in reports.
	Name string

	// Where.
	Hop       ledger.Hop
	Op        string
	Component string
	Node      string
	Volume    string
	Match     func(Call) bool // further condition; nil matches

	// When. Phase defaults to Before.
	Phase Phase
	// OnlySuccess limits an After rule to calls that succeeded.
	OnlySuccess bool
	// Nth acts on the nth matching call only (1 is the first).
	Nth int
	// First acts on the first n matching calls.
	First int
	// Every acts on each nth matching call.
	Every int
	// Probability acts on a share of the matching calls, 0 < p < 1. The draw is
	// a pure function of (seed, rule, subject, operation, occurrence).
	Probability float64

	// Do is what happens.
	Do Action

	// MayNotFire says that the rule need not fire. All others must.
	MayNotFire bool
}

// Action is what a rule does to a call. An action that returns a nil error
// lets the call go on. In phase After the returned error replaces the reply.
type Action interface {
	Act(ctx context.Context, in *Interceptor, c Call) error
	String() string
}

// Armed is a rule in a plan.
type Armed struct {
	Rule
	mu    sync.Mutex
	seen  int
	fired int
}

// Fired is how often the rule acted.
func (a *Armed) Fired() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.fired
}

// Seen is how many calls matched the rule's Where.
func (a *Armed) Seen() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.seen
}

func (a *Armed) matches(p Phase, c Call) bool {
	r := &a.Rule
	return r.Phase == p && (r.Hop == "" || r.Hop == c.Hop) && (r.Op == "" || r.Op == c.Op) &&
		(r.Component == "" || r.Component == c.Component) && (r.Node == "" || r.Node == c.Node) &&
		(r.Volume == "" || r.Volume == c.Volume) && (r.Match == nil || r.Match(c))
}

// take counts a matching call and says whether the rule acts on it.
func (a *Armed) take(seed uint64, c Call) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen++
	r := &a.Rule
	switch {
	case r.Nth > 0 && a.seen != r.Nth,
		r.First > 0 && a.seen > r.First,
		r.Every > 0 && a.seen%r.Every != 0,
		r.Probability > 0 && draw(seed, r.Name, c, a.seen) >= r.Probability:
		return false
	}
	a.fired++
	return true
}

// draw maps (seed, rule, subject, operation, occurrence) to [0,1).
func draw(seed uint64, rule string, c Call, n int) float64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d|%s|%s|%s|%s|%s|%s|%d", seed, rule, c.Hop, c.Op, c.Node, c.Volume, c.Snapshot, n)
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return float64(x>>11) / float64(1<<53)
}

// Plan holds the armed rules. The zero value has none.
type Plan struct {
	Seed uint64

	mu    sync.Mutex
	rules []*Armed
}

// Arm adds a rule; the first rule that matches and fires decides.
// It panics on a rule without an action: that is a mistake in a test.
func (p *Plan) Arm(r Rule) *Armed {
	if r.Do == nil {
		panic(fmt.Sprintf("fault: rule %q has no action", r.Name))
	}
	if r.Phase == "" {
		r.Phase = Before
	}
	if r.Name == "" {
		r.Name = fmt.Sprintf("%s %s/%s: %s", r.Phase, r.Hop, r.Op, r.Do)
	}
	a := &Armed{Rule: r}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, a)
	return a
}

// Disarm takes a rule out; calls that it already holds stay held.
func (p *Plan) Disarm(a *Armed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, r := range p.rules {
		if r == a {
			p.rules = append(p.rules[:i:i], p.rules[i+1:]...)
			return
		}
	}
}

// Clear takes all rules out and returns them.
func (p *Plan) Clear() []*Armed {
	p.mu.Lock()
	defer p.mu.Unlock()
	rs := p.rules
	p.rules = nil
	return rs
}

// Unfired lists the armed rules that had to fire and have not.
func (p *Plan) Unfired() []*Armed {
	p.mu.Lock()
	rs := p.rules
	p.mu.Unlock()
	var out []*Armed
	for _, r := range rs {
		if !r.MayNotFire && r.Fired() == 0 {
			out = append(out, r)
		}
	}
	return out
}

// ask returns the rule that acts on call c in phase ph, or nil. ok says
// whether the call succeeded (phase After).
func (p *Plan) ask(ph Phase, c Call, ok bool) *Armed {
	p.mu.Lock()
	if len(p.rules) == 0 {
		p.mu.Unlock()
		return nil
	}
	rs := append([]*Armed(nil), p.rules...)
	p.mu.Unlock()
	for _, r := range rs {
		if r.OnlySuccess && !ok {
			continue
		}
		if r.matches(ph, c) && r.take(p.Seed, c) {
			return r
		}
	}
	return nil
}

// wait sleeps for d or until ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

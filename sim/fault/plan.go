package fault

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Plan holds the armed rules. The zero value has none.
//
// Rules are kept by operation, so that a call looks only at those that may be
// about it.
type Plan struct {
	Seed uint64
	// NodeName gives the name of a node that a call names by its id, and any other
	// text as it is: rules name nodes. nil: calls have names. Set it before calls.
	NodeName func(id string) string

	armed atomic.Int32 // how many rules there are: calls of a plan without look no further
	mu    sync.RWMutex
	next  int
	rules []*Armed
	// at are rules of one operation, wide those of several, each by order of
	// arming and by phase. The slices are never changed in place.
	at   map[place][]*Armed
	wide map[Phase][]*Armed
	done map[string]bool // names of rules that have fired
}

type place struct {
	op    string
	phase Phase
}

// Arm adds a rule; the first rule that matches and fires decides.
// It panics on a rule without an action: that is a mistake in a test.
func (p *Plan) Arm(r Rule) *Armed {
	if r.Do == nil {
		panic(fmt.Sprintf("fault: rule %q has no action", r.Name))
	}
	if r.Name == "" {
		if r.Phase == "" {
			r.Phase = Before
		}
		r.Name = fmt.Sprintf("%s %s/%s: %s", r.Phase, r.Hop, r.Op, r.Do)
	}
	a := &Armed{Rule: r.Normal()}
	if strings.Contains(a.Op, "*") {
		a.parts = strings.Split(a.Op, "*")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next++
	a.seq = p.next
	p.rules = append(slices.Clip(p.rules), a)
	p.enter(a)
	p.armed.Store(int32(len(p.rules)))
	return a
}

// enter puts a rule where calls look for it.
func (p *Plan) enter(a *Armed) {
	ph := a.at()
	if a.Op == "" || a.parts != nil {
		if p.wide == nil {
			p.wide = map[Phase][]*Armed{}
		}
		p.wide[ph] = append(slices.Clip(p.wide[ph]), a)
		return
	}
	if p.at == nil {
		p.at = map[place][]*Armed{}
	}
	k := place{a.Op, ph}
	p.at[k] = append(slices.Clip(p.at[k]), a)
}

// Disarm takes a rule out and heals what it has done; calls that it already holds
// stay held.
func (p *Plan) Disarm(a *Armed) {
	defer a.Heal()
	p.mu.Lock()
	defer p.mu.Unlock()
	without := func(rs []*Armed) []*Armed {
		return slices.DeleteFunc(slices.Clone(rs), func(r *Armed) bool { return r == a })
	}
	ph := a.at()
	p.rules = without(p.rules)
	p.armed.Store(int32(len(p.rules)))
	if a.Op == "" || a.parts != nil {
		p.wide[ph] = without(p.wide[ph])
		return
	}
	k := place{a.Op, ph}
	if rs := without(p.at[k]); len(rs) > 0 {
		p.at[k] = rs
	} else {
		delete(p.at, k)
	}
}

// Clear takes all rules out, heals what they have done and returns them. What
// has fired is forgotten.
func (p *Plan) Clear() []*Armed {
	p.mu.Lock()
	rs := p.rules
	p.rules, p.at, p.wide, p.done = nil, nil, nil, nil
	p.armed.Store(0)
	p.mu.Unlock()
	for _, r := range slices.Backward(rs) {
		r.Heal()
	}
	return rs
}

// Heal undoes what all armed rules have done, the last first. They stay armed.
func (p *Plan) Heal() {
	for _, r := range slices.Backward(p.Rules()) {
		r.Heal()
	}
}

// Rules lists the armed rules in order.
func (p *Plan) Rules() []*Armed {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return slices.Clone(p.rules)
}

// Named returns the armed rules of a name.
func (p *Plan) Named(name string) (out []*Armed) {
	for _, r := range p.Rules() {
		if r.Name == name {
			out = append(out, r)
		}
	}
	return out
}

// ErrNoRule says that there is no rule, or no gate, of a name.
var ErrNoRule = errors.New("no such rule")

// ClearAll takes out all rules and lets go the calls that stand at their gates.
// It returns how many rules there were.
func (p *Plan) ClearAll() int {
	rs := p.Clear()
	for _, r := range rs {
		if g, ok := r.Do.(*Gate); ok {
			g.Release()
		}
	}
	return len(rs)
}

// ClearNamed takes out the rules of a name, and lets go the calls that stand at
// their gates. It returns how many rules there were.
func (p *Plan) ClearNamed(name string) int {
	rs := p.Named(name)
	for _, r := range rs {
		p.Disarm(r)
		if g, ok := r.Do.(*Gate); ok {
			g.Release()
		}
	}
	return len(rs)
}

// Release opens the gates of the rules of a name for good and returns how many
// calls stood there. Errors: ErrNoRule.
func (p *Plan) Release(name string) (held int, err error) {
	err = fmt.Errorf("gate %q: %w", name, ErrNoRule)
	for _, r := range p.Named(name) {
		if g, ok := r.Do.(*Gate); ok {
			held += len(g.Held())
			g.Release()
			err = nil
		}
	}
	return held, err
}

// Unfired lists the armed rules that had to fire and have not.
func (p *Plan) Unfired() []*Armed {
	var out []*Armed
	for _, r := range p.Rules() {
		if !r.MayNotFire && r.Fired() == 0 {
			out = append(out, r)
		}
	}
	return out
}

// ask returns the first rule behind a place in the order of arming (0: of all)
// that acts on call c in phase ph, or nil, and what its draws are made from. ok
// says whether the call succeeded (phase After).
func (p *Plan) ask(ph Phase, c Call, ok bool, behind int) (*Armed, firing) {
	if p == nil || p.armed.Load() == 0 {
		return nil, firing{}
	}
	p.mu.RLock()
	own, wide := p.at[place{c.Op, ph}], p.wide[ph]
	p.mu.RUnlock()
	name := ""
	if len(own)+len(wide) > 0 && p.NodeName != nil && c.Node != "" {
		name = p.NodeName(c.Node)
	}
	for len(own) > 0 || len(wide) > 0 {
		var r *Armed
		if len(wide) == 0 || len(own) > 0 && own[0].seq < wide[0].seq {
			r, own = own[0], own[1:]
		} else {
			r, wide = wide[0], wide[1:]
		}
		if r.seq <= behind || r.OnlySuccess && !ok || !r.matches(c, name) || r.AfterRule != "" && !p.hasFired(r.AfterRule) {
			continue
		}
		if n, acts := r.take(p.Seed, c, name); acts {
			p.fired(r.Name)
			if r.Tell != nil {
				r.Tell(c)
			}
			return r, firing{p.Seed, r.Name, n}
		}
	}
	return nil, firing{}
}

func (p *Plan) hasFired(name string) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.done[name]
}

func (p *Plan) fired(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done == nil {
		p.done = map[string]bool{}
	}
	p.done[name] = true
}

// missed takes a firing back that came to nothing.
func (p *Plan) missed(a *Armed, why error) {
	a.mu.Lock()
	a.fired--
	a.why = why
	never := a.fired == 0
	a.mu.Unlock()
	if never {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.done, a.Name)
	}
}

// Package fault is the fault plan of a lab and the one interceptor that every
// hop passes: it writes the ledger and asks the plan.
//
// A Rule says where, when and what. What can happen is a kind: each has a file
// kind_*.go, which registers it by name with its parameters and the calls that
// it fits. The protocols register their operations (RegisterOps) and how an
// error of theirs is made from its name (RegisterErrors), so that this package
// knows none of them. Package faultfile reads rules from YAML.
package fault

import (
	"context"
	"fmt"
	"hash/fnv"
	"strings"
	"sync"

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

	firing firing // set for the action of a rule that fires
}

// firing is what a rule's draws are made from.
type firing struct {
	seed uint64
	rule string
	n    int
}

// Draw maps the firing of a rule to [0,1): the same for the same seed, rule,
// component, subject, operation and occurrence. what tells several draws of one
// firing apart.
func (c Call) Draw(what string) float64 {
	return draw(c.firing.seed, c.firing.rule+"|"+what, c, c.firing.n)
}

// Occurrence is which of the calls about this subject it is that the rule fires
// on: 1 for the first that the rule has seen.
func (c Call) Occurrence() int { return c.firing.n }

// subject is what occurrences are counted by.
type subject struct {
	hop                               ledger.Hop
	op, component                     string
	node, volume, snapshot, otherwise string
}

func subjectOf(c Call) subject {
	s := subject{c.Hop, c.Op, c.Component, c.Node, c.Volume, c.Snapshot, ""}
	if s.volume == "" && s.snapshot == "" {
		s.otherwise = c.Request
	}
	return s
}

// Administrator is the component that calls of the lab itself are made by: what
// somebody does behind the driver's back. A rule is about them only if it names it.
const Administrator = "admin"

// Phase is where in a call a rule acts.
type Phase string

// The phases.
const (
	Before Phase = "before" // the operation has not happened
	After  Phase = "after"  // the operation is committed, the reply not sent
	// Task is while the task runs that the operation started, before it has done
	// its work: a rule on CnsCreateVolume is one on task:CnsCreateVolume.
	Task Phase = "task"
	// Result is that of one volume in a task that succeeds: likewise, with the
	// action's error told in the volume's result.
	Result Phase = "result"
)

// Phases in their order in a call.
var Phases = []Phase{Before, Task, Result, After}

// TaskPrefix begins the operation that is the work of a task.
const TaskPrefix = "task:"

// InResult carries the error of a rule of phase Result to the face.
type InResult struct{ Err error }

func (r *InResult) Error() string { return r.Err.Error() }
func (r *InResult) Unwrap() error { return r.Err }

// Rule says where, when and what. The zero values of the selectors match all.
type Rule struct {
	// Name shows up in the ledger and in reports.
	Name string

	// Where. Op may have * for any text, e.g. "exec mkfs.*".
	Hop       ledger.Hop
	Op        string
	Component string
	Node      string
	Volume    string
	Snapshot  string
	Where     *Where          // further condition as text; nil matches
	Match     func(Call) bool // further condition in Go; nil matches

	// When. Phase defaults to Before.
	Phase Phase
	// OnlySuccess limits an After rule to calls that succeeded.
	OnlySuccess bool
	// AfterRule arms the rule once the rule of that name has fired; calls before
	// it are not counted.
	AfterRule string
	// Nth acts on the nth matching call only (1 is the first).
	Nth int
	// First acts on the first n matching calls.
	First int
	// Every acts on each nth matching call.
	Every int
	// Probability acts on a share of the matching calls, 0 < p < 1. The draw is
	// a pure function of (seed, rule, component, subject, operation, occurrence).
	Probability float64
	// PerSubject counts for Nth, First and Every the calls of each subject
	// (operation, caller, node, volume, snapshot) on their own.
	PerSubject bool

	// Do is what happens.
	Do Action

	// Tell is told of each call that the rule acts on, before it does; nil: nobody.
	// It must be quick.
	Tell func(Call)

	// MayNotFire says that the rule need not fire. All others must.
	MayNotFire bool
}

// Action is what a rule does to a call. An action that returns a nil error
// lets the call go on. In phase After the returned error replaces the reply.
type Action interface {
	Act(ctx context.Context, in *Interceptor, c Call) error
	String() string
}

// Delivery is an action that carries the call itself out, e.g. twice. It acts in
// phase Before only.
type Delivery interface {
	Action
	// Deliver runs op as often as it likes; its error is the call's.
	Deliver(ctx context.Context, in *Interceptor, c Call, op func(context.Context) error) error
}

// Armed is a rule in a plan.
type Armed struct {
	Rule
	seq   int      // order of arming
	parts []string // of Op around its stars, where it has any

	mu       sync.Mutex
	seen     int
	fired    int
	why      error // of the last firing that came to nothing
	subjects map[subject]int
}

// Fired is how often the rule acted.
func (a *Armed) Fired() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.fired
}

// Missed says why the rule could not act the last time that it was to and could
// not; nil: it always could.
func (a *Armed) Missed() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.why
}

// Seen is how many calls matched the rule's Where.
func (a *Armed) Seen() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.seen
}

// Held are the calls that stand at the rule's gate now, oldest first.
func (a *Armed) Held() []Call {
	if g, ok := a.Do.(*Gate); ok {
		return g.Held()
	}
	return nil
}

// Normal is the rule in the terms of calls: phase task of an operation is phase
// before of the operation that is the task's work.
func (r Rule) Normal() Rule {
	switch r.Phase {
	case "":
		r.Phase = Before
	case Task, Result:
		if r.Op != "" && !strings.HasPrefix(r.Op, TaskPrefix) {
			r.Op = TaskPrefix + r.Op
		} else if r.Op == "" {
			r.Op = TaskPrefix + "*"
		}
	}
	return r
}

// at is the phase of a call that the rule acts in.
func (r *Rule) at() Phase {
	if r.Phase == After {
		return After
	}
	return Before
}

// fits says whether the rule may be about calls of an operation.
func (a *Armed) fits(op string) bool {
	switch {
	case a.Op == "" || a.Op == op:
		return true
	case a.parts == nil:
		return false
	}
	return globbed(a.parts, op)
}

// globbed says whether text is the parts with anything between them.
func globbed(parts []string, text string) bool {
	first, last := parts[0], parts[len(parts)-1]
	if len(text) < len(first)+len(last) || !strings.HasPrefix(text, first) || !strings.HasSuffix(text, last) {
		return false
	}
	text = text[len(first) : len(text)-len(last)]
	for _, p := range parts[1 : len(parts)-1] {
		i := strings.Index(text, p)
		if i < 0 {
			return false
		}
		text = text[i+len(p):]
	}
	return true
}

// matches says whether a call is one of the rule's; node is the name of its node
// where the call has its id.
func (a *Armed) matches(c Call, node string) bool {
	r := &a.Rule
	if c.Component == Administrator && r.Component != Administrator {
		return false
	}
	return (r.Hop == "" || r.Hop == c.Hop) && a.fits(c.Op) &&
		(r.Component == "" || r.Component == c.Component) && (r.Node == "" || r.Node == c.Node || r.Node == node) &&
		(r.Volume == "" || r.Volume == c.Volume) && (r.Snapshot == "" || r.Snapshot == c.Snapshot) &&
		(r.Match == nil || r.Match(c))
}

// take counts a matching call and says whether the rule acts on it, and as
// which occurrence of its subject.
func (a *Armed) take(seed uint64, c Call, node string) (n int, acts bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := &a.Rule
	own := 0
	if r.PerSubject || r.Probability > 0 || r.Where.asksAttempt() {
		if a.subjects == nil {
			a.subjects = map[subject]int{}
		}
		s := subjectOf(c)
		own = a.subjects[s] + 1
		a.subjects[s] = own
	}
	named := c
	if node != "" {
		named.Node = node
	}
	if !r.Where.holds(named, own) {
		return 0, false
	}
	a.seen++
	if own == 0 {
		own = a.seen
	}
	count := a.seen
	if r.PerSubject {
		count = own
	}
	switch {
	case r.Nth > 0 && count != r.Nth,
		r.First > 0 && count > r.First,
		r.Every > 0 && count%r.Every != 0,
		r.Probability > 0 && draw(seed, r.Name, c, own) >= r.Probability:
		return 0, false
	}
	a.fired++
	return own, true
}

// draw maps (seed, rule, caller, subject, operation, occurrence) to [0,1).
func draw(seed uint64, rule string, c Call, n int) float64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d|%s|%s|%s|%s|%s|%s|%s|%d", seed, rule, c.Hop, c.Op, c.Component, c.Node, c.Volume, c.Snapshot, n)
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return float64(x>>11) / float64(1<<53)
}

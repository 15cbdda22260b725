package invariant

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/csilab/csilab/sim/ledger"
)

// Violation is a broken invariant.
type Violation struct {
	ID       string `json:"id"`
	Sentence string `json:"sentence"`
	Detail   string `json:"detail"`
}

func (v Violation) String() string {
	return fmt.Sprintf("%s broken: %s (%s)", v.ID, v.Detail, v.Sentence)
}

// Skipped is what could not be checked.
type Skipped struct {
	ID     string `json:"id"`
	Reason string `json:"reason"`
}

func (s Skipped) String() string { return fmt.Sprintf("%s not checked: %s", s.ID, s.Reason) }

// Calls is a record of calls: a *ledger.Ledger, or a Record.
type Calls interface {
	Get(seq uint64) (ledger.Entry, bool)
	Entries(...ledger.Filter) []ledger.Entry
}

// Record is calls that were read back, in order of sequence.
type Record []ledger.Entry

// Get implements Calls.
func (r Record) Get(seq uint64) (ledger.Entry, bool) {
	i, ok := slices.BinarySearchFunc(r, seq, func(e ledger.Entry, seq uint64) int { return cmp.Compare(e.Seq, seq) })
	if !ok {
		return ledger.Entry{}, false
	}
	return r[i], true
}

// Entries implements Calls.
func (r Record) Entries(fs ...ledger.Filter) []ledger.Entry { return ledger.Select(r, fs...) }

// Invariant is a property of a World.
type Invariant struct {
	ID string // I1 …
	// Sentence is what reports print.
	Sentence string
	// WhenQuiet invariants hold only once the lab is quiet.
	WhenQuiet bool
	// Check returns a detail for each violation.
	Check func(*World) []string
	// OfCalls is what of it the calls tell; nil: nothing.
	OfCalls func(*World, Calls) []string
	// Skip returns a reason for each part that this world can't be checked for;
	// nil: there is none.
	Skip func(*World) []string
}

var all []Invariant

func register(i Invariant) {
	all = append(all, i)
	slices.SortFunc(all, func(a, b Invariant) int {
		return cmp.Or(cmp.Compare(len(a.ID), len(b.ID)), cmp.Compare(a.ID, b.ID))
	})
}

// All lists the invariants by id.
func All() []Invariant { return slices.Clone(all) }

// Applying are the ids of the invariants that hold in a world like w.
func Applying(w *World) (ids []string) {
	for _, i := range all {
		if w.Quiet || !i.WhenQuiet {
			ids = append(ids, i.ID)
		}
	}
	return ids
}

// Check returns what is broken in w. calls are those that led to it; nil leaves
// out what only they tell.
func Check(w *World, calls Calls) []Violation {
	var out []Violation
	for _, i := range all {
		if i.WhenQuiet && !w.Quiet {
			continue
		}
		var details []string
		if i.Check != nil {
			details = i.Check(w)
		}
		if i.OfCalls != nil && calls != nil {
			details = append(details, i.OfCalls(w, calls)...)
		}
		for _, d := range details {
			out = append(out, Violation{i.ID, i.Sentence, d})
		}
	}
	return out
}

// Skips returns what of w could not be checked.
func Skips(w *World) (out []Skipped) {
	for _, i := range all {
		if i.Skip == nil || i.WhenQuiet && !w.Quiet {
			continue
		}
		for _, r := range i.Skip(w) {
			out = append(out, Skipped{i.ID, r})
		}
	}
	return out
}

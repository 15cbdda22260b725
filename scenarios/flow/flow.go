// Package flow holds what a storage driver is for, step by step: provision,
// attach, stage, … Each flow is plain functions over a lab, written in its
// verbs and registered by name. Sweeps run them with a fault at each call; so
// a flow waits for states and never for times.
package flow

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/ledger"
)

// Flow is one thing that users of storage do, from a lab that is ready and
// empty to one that is empty again.
type Flow struct {
	// Name is unique, lower case, words joined by dashes.
	Name string
	// Text says what its body does, in one sentence.
	Text string
	// Backends are those that it makes sense for; none means all.
	Backends []string
	// Whole marks a flow that is made of the steps of others: "all" leaves it out.
	Whole bool
	// Options adapts the lab; nil takes it as it is.
	Options func(*sim.Options)
	// Prepare makes what the body begins with; nil: nothing.
	Prepare func(ctx context.Context, l *sim.Lab) error
	// Body is what the flow is about. It comes back when its state is reached,
	// whatever went wrong meanwhile, as long as it can be tried again.
	Body func(ctx context.Context, l *sim.Lab) error
	// Calls says which calls of the body belong to it; nil: all.
	Calls func(ledger.Entry) bool
	// End uses what the body made, sees that its data is right, and deletes all.
	End func(ctx context.Context, l *sim.Lab) error
}

// Run runs a flow: nothing goes wrong, or what the caller has armed.
func (f Flow) Run(ctx context.Context, l *sim.Lab) error {
	if err := f.Begin(ctx, l); err != nil {
		return err
	}
	if err := f.Body(ctx, l); err != nil {
		return err
	}
	return f.Finish(ctx, l)
}

// Begin makes what the body begins with.
func (f Flow) Begin(ctx context.Context, l *sim.Lab) error {
	if f.Prepare == nil {
		return nil
	}
	if err := f.Prepare(ctx, l); err != nil {
		return fmt.Errorf("prepare %s: %w", f.Name, err)
	}
	return nil
}

// Finish comes after the body: the invariants hold, the data is right, and
// nothing is left.
func (f Flow) Finish(ctx context.Context, l *sim.Lab) error {
	return steps(
		func() error { return l.Check(ctx) },
		func() error { return f.End(ctx, l) },
		func() error { return l.Empty(ctx) },
	)
}

// Fits says whether a flow makes sense on a backend.
func (f Flow) Fits(backend string) bool {
	return len(f.Backends) == 0 || slices.Contains(f.Backends, backend)
}

var all []Flow

func register(f Flow) {
	if slices.ContainsFunc(all, func(o Flow) bool { return o.Name == f.Name }) {
		panic(fmt.Sprintf("flow %s is registered twice", f.Name))
	}
	if f.Body == nil || f.End == nil {
		panic(fmt.Sprintf("flow %s has no body or no end", f.Name))
	}
	all = append(all, f)
}

// All lists the flows by name.
func All() []Flow {
	out := slices.Clone(all)
	slices.SortFunc(out, func(a, b Flow) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Find returns a flow by name.
func Find(name string) (Flow, bool) {
	i := slices.IndexFunc(all, func(f Flow) bool { return f.Name == name })
	if i < 0 {
		return Flow{}, false
	}
	return all[i], true
}

// OnNode says whether a call is made on a node: by its kubelet, its driver or
// its registrar.
func OnNode(e ledger.Entry) bool { return strings.Contains(e.Component, "@") }

// steps runs functions in order and stops at the first error.
func steps(fs ...func() error) error {
	for _, f := range fs {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

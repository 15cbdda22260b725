// Package scenarios holds the flows that csilab runs, written against the
// verbs of a lab, and the Ginkgo specs that wrap them.
package scenarios

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/csilab/csilab/scenarios/sweep"
	"github.com/csilab/csilab/sim"
)

// Scenario is a named flow over a lab of its own.
type Scenario struct {
	// Name is unique, lower case, words joined by dashes.
	Name string
	// Text is what the scenario shows, in one sentence.
	Text string
	// Labels select scenarios by flow, e.g. "attach", "snapshot", "fault".
	Labels []string
	// Incidents are the public issues that it shows: the id in the catalogue and
	// the reference, e.g. "K07 kubernetes/kubernetes#106710". Their
	// ids become labels.
	Incidents []string
	// Kernel: filesystems, devices or mounts of a real node have a say in
	// what it shows. OnWall: it is about what a bubble lacks. `csilab run` takes it
	// where it shows most.
	Kernel, OnWall bool
	// Long scenarios are begun before the others that run as they do: nothing
	// should be left to wait for alone.
	Long bool
	// Backends are those that it makes sense for; none means all.
	Backends []string
	// Options adapts the lab; nil takes the default one.
	Options func(*sim.Options)
	// Replay is how the command line selects it; "" is by its name.
	Replay string
	// NotReady says that the flow itself waits for what it needs of its nodes.
	NotReady bool
	// NoClasses leaves out the classes of fixtures/manifests/classes.yaml.
	NoClasses bool
	// Flow does the steps. It returns the first thing that is not as it must be.
	Flow func(ctx context.Context, l *sim.Lab) error
	// Sweep scenarios make labs of their own; Flow is nil then.
	Sweep func(ctx context.Context, opts sim.Options, rep Report) error

	// Mutation names what must turn the scenario red; Mutate does it. The
	// mutants' test runs each.
	Mutation      string
	Mutate        func(*sim.Lab)
	MutateOptions func(*sim.Options)
}

// Report is where a sweep tells how it goes.
type Report struct {
	Note func(line string)  // stays in the report
	Live func(state string) // shown while it runs
	// Every limits a sweep to every nth cell; 0 means all.
	Every int
	// Bubbles run cells on memory hosts in virtual time; nil runs them on the wall.
	Bubbles sweep.Bubbles
	// Ledgers is the directory for the ledger of a cell that failed; "" keeps none.
	Ledgers string
}

var all []Scenario

func register(s Scenario) {
	if slices.ContainsFunc(all, func(o Scenario) bool { return o.Name == s.Name }) {
		panic(fmt.Sprintf("scenario %s is registered twice", s.Name))
	}
	all = append(all, withIncidents(s))
}

// fits says whether the scenario makes sense on a backend.
func (s Scenario) fits(backend string) bool {
	return len(s.Backends) == 0 || slices.Contains(s.Backends, backend)
}

// All lists the scenarios by name.
func All() []Scenario {
	out := slices.Clone(all)
	slices.SortFunc(out, func(a, b Scenario) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Find returns a scenario by name.
func Find(name string) (Scenario, bool) {
	i := slices.IndexFunc(all, func(s Scenario) bool { return s.Name == name })
	if i < 0 {
		return Scenario{}, false
	}
	return all[i], true
}

// step wraps the error of a step with the user's words for it.
func step(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

// steps runs functions in order and stops at the first error.
func steps(fs ...func() error) error {
	for _, f := range fs {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

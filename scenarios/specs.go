package scenarios

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onsi/ginkgo/v2"

	"github.com/csilab/csilab/scenarios/flow"
	"github.com/csilab/csilab/scenarios/shell"
	"github.com/csilab/csilab/scenarios/sweep"
	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/bubble"
)

// Class says how a scenario ended.
type Class = flow.Class

// The classes, worst first.
const (
	Invariant   = flow.Invariant
	NoConverge  = flow.NoConverge
	Failed      = flow.Failed
	Environment = flow.Environment
	Interrupted = flow.Interrupted
	Skipped     = flow.Skipped
	Passed      = flow.Passed
)

var classify = flow.Classify

// Result is the end of one scenario.
type Result struct {
	Scenario string        `json:"scenario"`
	System   string        `json:"system"` // backend, e.g. "vsphere", "hpe-fc"
	Text     string        `json:"text"`
	Class    Class         `json:"class"`
	Reason   string        `json:"reason,omitempty"`
	Duration time.Duration `json:"duration"`
	Virtual  time.Duration `json:"virtual,omitempty"` // the lab's time, in a bubble
	Seed     uint64        `json:"seed"`
	Host     string        `json:"host"`
	Timers   string        `json:"timers"`
	Ledger   string        `json:"ledger,omitempty"` // file, for a scenario that failed
	Replay   string        `json:"replay,omitempty"` // the command that runs it again
	Notes    []string      `json:"notes,omitempty"`
}

// NotBegun is the reason of a scenario that was skipped because the run was
// interrupted before its turn came.
const NotBegun = "interrupted before it began"

// Config is how scenarios are run.
type Config struct {
	Options sim.Options
	// Lab is the file that Options are from, for the command that replays.
	Lab string
	// Focus selects scenarios by name; nil takes all.
	Focus *regexp.Regexp
	// Label selects scenarios by their labels; nil takes all.
	Label func(labels []string) bool
	// Only selects them by what they are; nil takes all.
	Only func(Scenario) bool
	// Parallel is how many scenarios run side by side; 0 means 1.
	Parallel int
	// Timeout bounds a scenario; 0 means two minutes, twenty for a sweep or with
	// real timers, eight hours for a sweep with real timers, and twelve hours of
	// the lab's time in a bubble.
	Timeout time.Duration
	// Start and Done are told of each scenario, from several goroutines; of one
	// that was NotBegun only Done is. Progress is told of the state of a sweep. All
	// may be nil.
	Start    func(system string, s Scenario)
	Progress func(system, scenario, line string)
	Done     func(Result)
	// Keep is the directory that gets the ledger of a scenario that failed;
	// "" keeps none.
	Keep string
	// KeepAll keeps that of a scenario that passed too.
	KeepAll bool
	// SweepBubbles run the cells of sweeps on memory hosts in virtual time; nil
	// runs them on the wall.
	SweepBubbles sweep.Bubbles
	// SweepEvery limits sweeps to every nth cell, which ones by the seed; 0 means
	// all.
	SweepEvery int
	// Bubbles runs each scenario that is no sweep in virtual time; nil: on the wall.
	Bubbles *bubble.Runner
	// Arm arms faults of the user's in each lab; scenarios that sweep have their
	// own and are skipped. nil arms none.
	Arm func(*sim.Lab) error
	// Faults is the file that they are from, for the command that replays.
	Faults string
	// Mutate applies each scenario's mutation: all must turn red.
	Mutate bool
}

func (c Config) timeout(s Scenario) time.Duration {
	switch {
	case c.Timeout > 0:
		return c.Timeout
	case c.Options.Bubble:
		return 12 * time.Hour // of the lab's time
	case s.Sweep != nil && c.Options.Timers == "real":
		return 8 * time.Hour
	case s.Sweep != nil, c.Options.Timers == "real":
		return 20 * time.Minute
	}
	return 2 * time.Minute
}

// Run runs one scenario in a lab of its own.
func Run(ctx context.Context, s Scenario, cfg Config) Result {
	if cfg.Bubbles == nil || s.Sweep != nil {
		return run(ctx, s, cfg)
	}
	cfg.Options.Bubble = true
	res := Result{Scenario: s.Name, System: cfg.Options.System(), Text: s.Text, Seed: cfg.Options.WithDefaults().Seed, Class: Interrupted}
	start := time.Now()
	err := cfg.Bubbles.Run(ctx, func(ctx context.Context) error { res = run(ctx, s, cfg); return nil })
	res.Virtual, res.Duration = res.Duration, time.Since(start)
	switch {
	case ctx.Err() != nil:
		res.Class, res.Reason = Interrupted, context.Cause(ctx).Error()
	case err != nil && res.Class == Passed:
		res.Class, res.Reason = Invariant, "left behind: "+err.Error()
	}
	return res
}

func run(ctx context.Context, s Scenario, cfg Config) (res Result) {
	opts, misfit := cfg.lab(s)
	res = Result{Scenario: s.Name, System: opts.System(), Text: s.Text, Seed: opts.Seed, Host: opts.Host, Timers: opts.Timers}
	start := time.Now()
	defer func() {
		res.Duration = time.Since(start)
		if res.Class != Passed && res.Class != Skipped {
			what := s.Replay
			if what == "" {
				what = "--focus " + shell.Word("^"+s.Name+"$")
			}
			res.Replay = fmt.Sprintf("%s run --backend %s %s --host %s --timers %s --seed %d", shell.Program(), opts.System(), what, opts.Host, opts.Timers, opts.Seed)
			if opts.Bubble {
				res.Replay += " --time bubble"
			}
			if cfg.Lab != "" {
				res.Replay += " --lab " + shell.Word(cfg.Lab)
			} else if n := cfg.Options.Nodes; n > 2 {
				res.Replay += fmt.Sprintf(" --nodes %d", n)
			}
			if s.Sweep != nil && cfg.SweepEvery > 1 {
				res.Replay += fmt.Sprintf(" --every %d", cfg.SweepEvery)
			}
			if cfg.Faults != "" {
				res.Replay += " --faults " + shell.Word(cfg.Faults)
			}
			if cfg.Timeout > 0 {
				res.Replay += fmt.Sprintf(" --timeout %v", cfg.Timeout)
			}
		}
	}()
	if !s.fits(opts.Backend) {
		res.Class, res.Reason = Skipped, fmt.Sprintf("it is about %s", strings.Join(s.Backends, " and "))
		return res
	}
	if misfit {
		res.Class, res.Reason = Skipped, "it needs a lab of its own shape"
		return res
	}
	if cfg.Arm != nil {
		if s.Sweep != nil {
			res.Class, res.Reason = Skipped, "it has faults of its own"
			return res
		}
		opts.Arm = cfg.Arm
	}
	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, cfg.timeout(s))
	defer cancel()
	if s.Sweep != nil {
		progress := cfg.Progress
		if progress == nil {
			progress = func(string, string, string) {}
		}
		var mu sync.Mutex
		err := s.Sweep(ctx, opts, Report{
			Note: func(line string) {
				mu.Lock()
				defer mu.Unlock()
				res.Notes = append(res.Notes, line)
			},
			Every: cfg.SweepEvery, Bubbles: cfg.SweepBubbles, Ledgers: cfg.Keep,
			Live: func(state string) { progress(res.System, s.Name, state) },
		})
		res.Class, res.Reason = classify(outer, err)
		return res
	}
	lab, err := sim.Start(ctx, opts)
	if err != nil {
		res.Class, res.Reason = classify(outer, err)
		return res
	}
	err = func() error {
		if !s.NotReady {
			if err := lab.NodesReady(ctx); err != nil {
				return err
			}
		}
		if !s.NoClasses {
			if err := lab.Apply(ctx, lab.Classes()); err != nil {
				return err
			}
		}
		if cfg.Mutate && s.Mutate != nil {
			s.Mutate(lab)
		}
		if err := s.Flow(ctx, lab); err != nil {
			return err
		}
		return lab.Unfired()
	}()
	res.Notes = lab.Notes()
	// What is already broken explains a step that failed or never came.
	if err != nil && !sim.IsSkip(err) {
		if v := lab.Broken(context.WithoutCancel(ctx)); v != nil {
			err = errors.Join(v, err)
		}
	}
	res.Class, res.Reason = classify(outer, err)
	keep := res.Class != Skipped && res.Class != Interrupted && (res.Class != Passed || cfg.KeepAll)
	if keep && cfg.Keep != "" {
		var lost error
		if res.Ledger, lost = lab.WriteLedger(cfg.Keep, fmt.Sprintf("%s.%s.seed-%d", opts.System(), s.Name, opts.Seed)); lost != nil {
			res.Notes = append(res.Notes, unwritten(nil, lost).Error())
		}
	}
	if cerr := lab.Close(); cerr != nil && res.Class == Passed {
		res.Class, res.Reason = classify(outer, cerr)
	}
	return res
}

// unwritten adds to an error that the ledger that shows it could not be written.
func unwritten(err, lost error) error {
	if lost == nil {
		return err
	}
	return errors.Join(err, fmt.Errorf("its ledger was not written: %w", lost))
}

// Specs adds a Ginkgo spec for each scenario that one of the configurations
// selects to the tree under construction. Parallel is the last one's. They are
// written one after the other, but run side by side: the first spec that starts gets all going, each waits for its own result.
//
// The caller must call stop after the suite has ended: it ends what an
// interrupted suite has left running and waits until its labs are closed.
func Specs(cfgs ...Config) (stop func()) {
	var selected []selection
	for _, cfg := range cfgs {
		for _, s := range cfg.selected() {
			selected = append(selected, selection{s, cfg, cfg.Options.System()})
		}
	}
	several := slices.ContainsFunc(selected, func(s selection) bool { return s.system != selected[0].system })
	var once sync.Once
	results := make([]chan Result, len(selected))
	for i := range results {
		results[i] = make(chan Result, 1)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	var running sync.WaitGroup
	start := func() {
		order := make([]int, 0, len(selected))
		for i := range selected {
			order = append(order, i)
		}
		slices.SortStableFunc(order, func(a, b int) int { return selected[a].rank() - selected[b].rank() })
		next := make(chan int, len(order))
		for _, i := range order {
			next <- i
		}
		close(next)
		for range max(1, cfgs[len(cfgs)-1].Parallel) {
			running.Go(func() {
				for i := range next {
					s, cfg := selected[i].scenario, selected[i].cfg
					res := Result{Scenario: s.Name, System: selected[i].system, Text: s.Text, Seed: cfg.Options.WithDefaults().Seed, Class: Skipped, Reason: NotBegun}
					if ctx.Err() == nil {
						if cfg.Start != nil {
							cfg.Start(selected[i].system, s)
						}
						res = Run(ctx, s, cfg)
					}
					if cfg.Done != nil {
						cfg.Done(res)
					}
					results[i] <- res
				}
			})
		}
	}
	ginkgo.Describe("csilab", func() {
		for i := range selected {
			s, name := selected[i].scenario, selected[i].scenario.Name
			if several {
				name = selected[i].system + " " + name
			}
			ginkgo.It(name, ginkgo.Label(s.Labels...), func(sctx ginkgo.SpecContext) {
				ginkgo.By(s.Text)
				once.Do(start)
				var res Result
				select {
				case res = <-results[i]:
				case <-sctx.Done():
					cancel(context.Cause(sctx))
					res = <-results[i]
				}
				for _, n := range res.Notes {
					ginkgo.GinkgoWriter.Println(n)
				}
				ginkgo.AddReportEntry("result", res, ginkgo.ReportEntryVisibilityNever)
				switch res.Class {
				case Passed:
				case Skipped:
					ginkgo.Skip(res.Reason)
				default:
					ginkgo.Fail(fmt.Sprintf("%s: %s\nreplay: %s\nledger: %s", res.Class, res.Reason, res.Replay, res.Ledger))
				}
			})
		}
	}, ginkgo.Ordered, ginkgo.ContinueOnFailure)
	return func() {
		cancel(errors.New("the suite has ended"))
		once.Do(start) // an interrupt that came before the first: all of them are told
		running.Wait()
	}
}

// selection is a scenario to run with a configuration.
type selection struct {
	scenario Scenario
	cfg      Config
	system   string
}

// rank orders scenarios: first the longest, then those that compute all the time
// they take, then those that wait.
func (s selection) rank() int {
	switch {
	case s.scenario.Sweep != nil:
		return 0
	case s.cfg.Bubbles != nil:
		return 1
	case s.scenario.Long:
		return 2
	}
	return 3
}

// selects says whether a scenario is to be run.
func (c Config) selects(s Scenario) bool {
	return (c.Focus == nil || c.Focus.MatchString(s.Name)) && (c.Label == nil || c.Label(s.Labels)) && (c.Only == nil || c.Only(s))
}

// lab is what a scenario's lab is made of; misfit says that it needs one of its own
// shape, and the options have another.
func (c Config) lab(s Scenario) (opts sim.Options, misfit bool) {
	opts = c.Options
	// Before WithDefaults, and so not seen by what it fills in.
	misfit = (len(opts.VCenters) > 0 || opts.Storage != nil) && s.Options != nil
	if s.Options != nil && !misfit {
		s.Options(&opts)
	}
	if c.Mutate && s.MutateOptions != nil {
		s.MutateOptions(&opts)
	}
	return opts.WithDefaults(), misfit
}

// selected are the scenarios to be run.
func (c Config) selected() (out []Scenario) {
	for _, s := range All() {
		if c.selects(s) && s.fits(c.Options.WithDefaults().Backend) {
			out = append(out, s)
		}
	}
	return out
}

// Empty says whether no scenario is to be run.
func (c Config) Empty() bool { return len(c.selected()) == 0 }

// LabOf is what the lab of a scenario is made of.
type LabOf struct {
	Scenario string
	Options  sim.Options
}

// Labs are those that faults of the user's are armed in: of the scenarios to be run
// all that have a lab, and no faults of their own.
func (c Config) Labs() (out []LabOf) {
	for _, s := range c.selected() {
		if opts, misfit := c.lab(s); !misfit && s.Sweep == nil {
			out = append(out, LabOf{s.Name, opts})
		}
	}
	return out
}

// InVirtualTime says whether a scenario shows all that it is about on memory
// hosts in virtual time, as those do that are about the order of calls between
// components.
func InVirtualTime(s Scenario) bool { return !s.Kernel && !s.OnWall }

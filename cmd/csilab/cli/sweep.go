package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/onsi/ginkgo/v2/types"
	"github.com/spf13/cobra"

	"github.com/csilab/csilab/scenarios/flow"
	"github.com/csilab/csilab/scenarios/sweep"
	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/bubble"
)

type sweepFlags struct {
	run     runFlags // the flags that both commands have
	pairs   int
	shard   string
	cells   []string
	kinds   []string
	every   int
	workers int
	stop    int
	misfits bool
	list    bool
}

func newSweep(s Streams) *cobra.Command {
	var f sweepFlags
	cmd := &cobra.Command{
		Use:   "sweep FLOW…|all",
		Short: "Run flows with a fault at each of their calls",
		Long: `Runs each flow once with nothing wrong, lists the calls that it makes on every
hop, and runs it again once for each call and each kind of fault that fits it.
Each time everything must come right by itself: the flow's state is reached, the
invariants hold, the data is there, and at the end nothing is left. A cell whose
fault did not fire is no cell.

On memory hosts the cells run in virtual time with the timers of a real cluster;
on real hosts on the wall, with fast ones.

Exit codes: 0 ok, 1 a cell failed, 2 usage or configuration, 3 this machine
can't do it, 4 unknown, 5 an invariant broke, 6 no convergence, 130 interrupted.`,
		Example: `  csilab sweep attach
  csilab sweep all --backend vsphere,hpe-iscsi
  csilab sweep all --shard 2/4 --junit sweep.xml
  csilab sweep provision --pairs 200 --seed 7
  csilab sweep stage --host real --kinds crash-caller-after,error-final`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.list {
				return listFlows(s)
			}
			f.run.given = cmd.Flags().Changed
			return runSweep(cmd.Context(), s, f, args)
		},
	}
	fl := cmd.Flags()
	fl.StringSliceVar(&f.run.backend, "backend", []string{"vsphere", "hpe-iscsi"}, "what to sweep on: vsphere, hpe-iscsi, hpe-fc, hpe (both), all; comma-separated")
	fl.StringVar(&f.run.host, "host", "memory", "nodes: memory (virtual time) or real (root on Linux, on the wall)")
	fl.IntVar(&f.pairs, "pairs", 0, "sample so many pairs of two faults for each flow and backend, by the seed, in place of single faults")
	fl.StringVar(&f.shard, "shard", "", "take one of several parts of the cells, e.g. 1/4")
	fl.Uint64Var(&f.run.seed, "seed", 1, "seed of all ids and draws")
	fl.StringArrayVar(&f.cells, "cell", nil, "run this cell only, by its id (repeatable)")
	fl.StringSliceVar(&f.kinds, "kinds", nil, "kinds of fault (--list names them); default all")
	fl.IntVar(&f.every, "every", 1, "take every nth cell")
	fl.IntVar(&f.stop, "stop-after", 0, "end the sweep after so many failed cells; 0 never")
	fl.IntVar(&f.workers, "workers", 0, "cells side by side; 0 as fits")
	fl.BoolVar(&f.misfits, "misfits", false, "print which kinds do not fit which calls, and why")
	fl.BoolVar(&f.list, "list", false, "list flows and kinds, and end")
	fl.DurationVar(&f.run.timeout, "timeout", 0, "limit of one cell in its own time (default 2h of virtual time, 3m on the wall)")
	fl.StringVar(&f.run.junit, "junit", "", "write a JUnit report to this file")
	fl.StringVarP(&f.run.output, "output", "o", "text", "text or json (results on standard output, progress on standard error)")
	fl.StringVar(&f.run.keep, "keep", "", "directory for the ledgers of cells that fail (default: ledgers in the state directory)")
	fl.CountVarP(&f.run.verbose, "verbose", "v", "log to standard error (-v warnings, -vv info, -vvv debug)")
	return cmd
}

// programs are the bubbles of the program, made when the first one is wanted.
type programs struct{}

func (programs) Run(ctx context.Context, f func(context.Context) error) error {
	return bubble.Program().Run(ctx, f)
}

func listFlows(s Streams) error {
	fmt.Fprintln(s.Out, "flows:")
	for _, f := range flow.All() {
		on := ""
		if len(f.Backends) > 0 {
			on = " (" + strings.Join(f.Backends, ", ") + ")"
		}
		if f.Whole {
			on += " (not in all)"
		}
		fmt.Fprintf(s.Out, "  %-16s %s%s\n", f.Name, f.Text, on)
	}
	fmt.Fprintln(s.Out, "kinds:")
	for _, k := range sweep.Kinds() {
		fmt.Fprintf(s.Out, "  %-20s %s\n", k.Name, k.Doc)
	}
	return nil
}

// config checks the flags.
func (f *sweepFlags) config(s Streams, args []string) (cfg sweep.Config, err error) {
	usage := func(format string, a ...any) (sweep.Config, error) { return cfg, exitf(ExitUsage, format, a...) }
	var names []string
	for _, x := range flow.All() {
		names = append(names, x.Name)
	}
	if len(args) == 0 {
		return usage("which flow? allowed are all, %s", strings.Join(names, ", "))
	}
	for _, a := range args {
		if a == "all" {
			for _, x := range flow.All() {
				if !x.Whole && !slices.ContainsFunc(cfg.Flows, func(o flow.Flow) bool { return o.Name == x.Name }) {
					cfg.Flows = append(cfg.Flows, x)
				}
			}
			continue
		}
		x, ok := flow.Find(a)
		if !ok {
			return usage("flow %q: allowed are all, %s", a, strings.Join(names, ", "))
		}
		if !slices.ContainsFunc(cfg.Flows, func(o flow.Flow) bool { return o.Name == x.Name }) {
			cfg.Flows = append(cfg.Flows, x)
		}
	}
	for _, name := range f.kinds {
		k, ok := sweep.FindKind(name)
		if !ok {
			var all []string
			for _, k := range sweep.Kinds() {
				all = append(all, k.Name)
			}
			return usage("--kinds %q: allowed are %s", name, strings.Join(all, ", "))
		}
		cfg.Kinds = append(cfg.Kinds, k)
	}
	for _, n := range []struct {
		flag string
		n    int
	}{{"pairs", f.pairs}, {"every", f.every}, {"workers", f.workers}, {"stop-after", f.stop}} {
		if n.n < 0 {
			return usage("--%s %d: must not be negative", n.flag, n.n)
		}
	}
	cfg.Pairs, cfg.Every, cfg.Workers, cfg.StopAfter, cfg.Cells, cfg.Limit = f.pairs, f.every, f.workers, f.stop, f.cells, f.run.timeout
	if f.shard != "" {
		i, n, ok := strings.Cut(f.shard, "/")
		a, err1 := strconv.Atoi(i)
		b, err2 := strconv.Atoi(n)
		if !ok || err1 != nil || err2 != nil || a < 1 || b < 1 || a > b {
			return usage("--shard %q: must be i/n with 1 ≤ i ≤ n, e.g. 1/4", f.shard)
		}
		cfg.Shard, cfg.Shards = a, b
	}
	f.run.time, f.run.timers, f.run.nodes = "wall", "fast", 2 // bubbles are the engine's
	if f.run.host == "memory" {
		f.run.timers = "real"
	}
	if cfg.Systems, err = f.run.labs(s); err != nil {
		return cfg, err
	}
	fits := func(x flow.Flow) bool {
		return slices.ContainsFunc(cfg.Systems, func(o sim.Options) bool { return x.Fits(o.Backend) })
	}
	if !slices.ContainsFunc(cfg.Flows, fits) {
		var can []string
		for _, x := range flow.All() {
			if fits(x) {
				can = append(can, x.Name)
			}
		}
		return usage("flow %s: none of the flows makes sense on --backend %s; allowed are all, %s", strings.Join(args, ", "), strings.Join(f.run.backend, ","), strings.Join(can, ", "))
	}
	return cfg, nil
}

// leftOut are the flows that make no sense on one of the systems, and so are not run
// there.
func leftOut(cfg sweep.Config) (out []string) {
	for _, x := range cfg.Flows {
		for _, o := range cfg.Systems {
			if !x.Fits(o.Backend) {
				out = append(out, fmt.Sprintf("%s on %s (it is about %s)", x.Name, o.System(), strings.Join(x.Backends, " and ")))
			}
		}
	}
	return out
}

func runSweep(ctx context.Context, s Streams, f sweepFlags, args []string) error {
	cfg, err := f.config(s, args)
	if err != nil {
		return err
	}
	real := cfg.Systems[0].Host == "real"
	if f.run.keep == "" {
		f.run.keep = filepath.Join(cfg.Systems[0].StateRoot, "ledgers")
	} else if err := usable(f.run.keep); err != nil {
		return exitf(ExitUsage, "--keep %q: %v", f.run.keep, err)
	}
	cfg.Ledgers = f.run.keep
	if f.run.junit != "" {
		if err := writable(f.run.junit); err != nil {
			return exitf(ExitUsage, "--junit %q: %v", f.run.junit, err)
		}
	}
	if !real {
		cfg.Bubbles = programs{}
	}
	sim.Sweep(cfg.Systems[0]) // what labs that were killed have left
	w := s.Out
	if f.run.output == "json" {
		w = s.Err
	}
	if out := leftOut(cfg); len(out) > 0 {
		fmt.Fprintf(w, "csilab: left out: %s\n", strings.Join(out, ", "))
	}
	show := newSweepProgress(w)
	cfg.Progress = show.cell
	r, err := sweep.Run(ctx, cfg)
	show.end()
	if err != nil {
		return exitf(ExitUsage, "%v", err)
	}
	worst := ExitOK
	worse := func(code int) {
		if severity(code) > severity(worst) {
			worst = code
		}
	}
	cells := 0
	for _, p := range r.Parts {
		cells += len(p.Cells)
		worse(codeOfClass(p.Class))
		for _, c := range p.Cells {
			if c.State == sweep.Failed {
				worse(codeOfClass(flow.Class(c.Class)))
			}
		}
	}
	if ctx.Err() != nil {
		worst = ExitInterrupted
	}
	if worst == ExitOK && cells == 0 {
		if len(f.cells) > 0 {
			return exitf(ExitUsage, "--cell %q: the flow makes no such cell; without --cell the sweep lists its calls, and -o json its cells", f.cells)
		}
		return exitf(ExitUsage, "no cell to run: %s", f.noCell(r))
	}
	if f.run.output == "json" {
		enc := json.NewEncoder(s.Out)
		enc.SetIndent("", "  ")
		if err := enc.Encode(map[string]any{"parts": r.Parts, "duration": r.Duration, "stopped": r.Stopped, "healed": r.Count(sweep.Healed),
			"failed": r.Count(sweep.Failed), "unfired": r.Count(sweep.NoFault), "exitCode": worst}); err != nil {
			return err
		}
	}
	writeSweep(w, r, f.misfits)
	if f.run.junit != "" {
		if err := junit(sweepReport(r), f.run.junit); err != nil {
			return exitf(ExitUsage, "--junit %q: %v", f.run.junit, err)
		}
	}
	if worst != ExitOK {
		return &exitError{worst, errors.New("")}
	}
	return nil
}

// noCell says of each part why it has no cell.
func (f sweepFlags) noCell(r *sweep.Report) string {
	var given []string
	if f.every > 1 {
		given = append(given, fmt.Sprintf("--every %d", f.every))
	}
	if f.shard != "" {
		given = append(given, "--shard "+f.shard)
	}
	if f.pairs > 0 {
		given = append(given, fmt.Sprintf("--pairs %d", f.pairs))
	}
	var why []string
	for _, p := range r.Parts {
		switch {
		case p.Class == flow.Skipped:
			why = append(why, fmt.Sprintf("%s is skipped: %s", p, p.Reason))
		case p.Possible == 0:
			why = append(why, fmt.Sprintf("%s has no call that the kinds of fault fit", p))
		default:
			why = append(why, fmt.Sprintf("%s takes none of its %d cells", strings.TrimSpace(strings.Join(given, " ")+" on "+p.String()), p.Possible))
		}
	}
	return strings.Join(why, "; ")
}

// writeSweep writes the matrix, what failed, and the counts.
func writeSweep(w io.Writer, r *sweep.Report, misfits bool) {
	r.WriteMatrix(w)
	if misfits {
		fmt.Fprintln(w)
		r.WriteMisfits(w)
	}
	fmt.Fprintln(w)
	for _, p := range r.Parts {
		healed, failed, idle := 0, 0, 0
		for _, c := range p.Cells {
			switch c.State {
			case sweep.Healed:
				healed++
			case sweep.Failed:
				failed++
			default:
				idle++
			}
		}
		switch {
		case p.Class == flow.Skipped:
			fmt.Fprintf(w, " - %s: skipped: %s\n", p, p.Reason)
		case p.Class != flow.Passed:
			fmt.Fprintf(w, " ✗ %s: with nothing wrong: %s: %s\n", p, p.Class, indent(p.Reason))
			if p.Ledger != "" {
				fmt.Fprintf(w, "     ledger: %s\n", p.Ledger)
			}
		default:
			mark, stopped := "✓", ""
			if n := p.Chosen - len(p.Cells); n > 0 {
				mark, stopped = "-", fmt.Sprintf("; the run was stopped before %d more", n)
			}
			if failed > 0 {
				mark = "✗"
			}
			fmt.Fprintf(w, " %s %s: %d calls, %d of %d cells: %d healed, %d failed, %d did not fire%s\n", mark, p, len(p.Calls), len(p.Cells), p.Possible, healed, failed, idle, stopped)
		}
		for _, c := range p.Cells {
			switch c.State {
			case sweep.NoFault:
				fmt.Fprintf(w, "     no cell: %s: %s\n", c.ID, c.Reason)
			case sweep.Failed:
				fmt.Fprintf(w, "     ✗ %s\n       %s: %s\n", c.ID, c.Class, indent(c.Reason))
				if c.Ledger != "" {
					fmt.Fprintf(w, "       ledger: %s\n", c.Ledger)
				}
				fmt.Fprintf(w, "       again:  %s\n", c.Replay)
			}
		}
	}
	healed, failed := r.Count(sweep.Healed), r.Count(sweep.Failed)
	rate := ""
	if r.Duration > 0 {
		rate = fmt.Sprintf(", %.0f cells a minute", float64(healed+failed)/r.Duration.Minutes())
	}
	if r.Stopped != "" {
		fmt.Fprintf(w, "stopped: %s\n", r.Stopped)
	}
	fmt.Fprintf(w, "%d cells: %d healed, %d failed; %d did not fire; %.1f s%s\n", healed+failed, healed, failed, r.Count(sweep.NoFault), r.Duration.Seconds(), rate)
}

func indent(s string) string { return strings.ReplaceAll(s, "\n", "\n       ") }

// sweepReport is a sweep as JUnit has it: a case for each cell.
func sweepReport(r *sweep.Report) types.Report {
	end := time.Now()
	out := types.Report{SuiteDescription: "csilab sweep", SuiteSucceeded: true, StartTime: end.Add(-r.Duration), EndTime: end, RunTime: r.Duration}
	add := func(p *sweep.Part, name string, state types.SpecState, took time.Duration, failure, output string) {
		if state == types.SpecStateFailed {
			out.SuiteSucceeded = false
		}
		out.SpecReports = append(out.SpecReports, types.SpecReport{LeafNodeType: types.NodeTypeIt, LeafNodeText: name,
			ContainerHierarchyTexts: []string{"csilab", p.System, p.Flow}, State: state, StartTime: end, EndTime: end, RunTime: took,
			Failure: types.Failure{Message: failure}, CapturedGinkgoWriterOutput: output})
	}
	if r.Stopped != "" {
		out.SuiteSucceeded = false
		out.SpecReports = append(out.SpecReports, types.SpecReport{LeafNodeType: types.NodeTypeIt, LeafNodeText: "all cells", ContainerHierarchyTexts: []string{"csilab"},
			State: types.SpecStateInterrupted, StartTime: end, EndTime: end, Failure: types.Failure{Message: "stopped: " + r.Stopped}})
	}
	for _, p := range r.Parts {
		switch p.Class {
		case flow.Passed:
			add(p, "with nothing wrong", types.SpecStatePassed, 0, "", "")
		case flow.Skipped:
			add(p, "with nothing wrong", types.SpecStateSkipped, 0, p.Reason, "")
		default:
			add(p, "with nothing wrong", types.SpecStateFailed, 0, string(p.Class)+": "+p.Reason, "")
		}
		for _, c := range p.Cells {
			state, failure := types.SpecStatePassed, ""
			switch c.State {
			case sweep.NoFault:
				state, failure = types.SpecStateSkipped, c.Reason
			case sweep.Failed:
				state, failure = types.SpecStateFailed, c.Class+": "+c.Reason
			}
			add(p, c.ID, state, c.Duration, failure, strings.TrimSpace("replay: "+c.Replay+"\nledger: "+c.Ledger))
		}
	}
	return out
}

// sweepProgress shows how far a sweep is: on a terminal in one line, and each
// cell that fails as it fails.
type sweepProgress struct {
	w    io.Writer
	live bool

	mu     sync.Mutex
	last   time.Time
	failed int
}

func newSweepProgress(w io.Writer) *sweepProgress { return &sweepProgress{w: w, live: isTerminal(w)} }

func (s *sweepProgress) cell(p *sweep.Part, c sweep.Cell, done, all int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.State == sweep.Failed {
		s.failed++
		s.clear()
		fmt.Fprintf(s.w, " ✗ %s: %s: %s\n", p, c.ID, c.Class)
	}
	if s.live && (time.Since(s.last) > 100*time.Millisecond || done == all) {
		s.last = time.Now()
		fmt.Fprintf(s.w, "\r\x1b[K … %d of %d cells, %d failed (%s)", done, all, s.failed, p)
	}
}

func (s *sweepProgress) clear() {
	if s.live {
		fmt.Fprint(s.w, "\r\x1b[K")
	}
}

func (s *sweepProgress) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
}

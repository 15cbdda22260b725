package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/csilab/csilab/scenarios"
	"github.com/csilab/csilab/scenarios/shell"
	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/bubble"
)

type soakFlags struct {
	seed     uint64
	seeds    int
	backend  string
	volumes  int
	nodes    int
	arrays   int
	vcenters int
	duration time.Duration
	faults   string
	shrink   time.Duration
	keep     string
	output   string
	verbose  int
}

func newSoak(s Streams) *cobra.Command {
	var f soakFlags
	cmd := &cobra.Command{
		Use:   "soak",
		Short: "Run many volumes and nodes under random faults, in virtual time, from a seed",
		Long: `Starts labs in virtual time and lets users make, use, move, grow, snapshot and
delete volumes, while faults happen. The seed decides how many nodes and volumes
there are, on which system, what the users do and which kinds of faults are on.
First comes the safety phase, in which no invariant may break; then all faults
are healed and everybody must come to an end, with nothing left behind.

A run that fails is made smaller before it is shown, with the command that runs
it again. Exit codes are those of csilab run.`,
		Example: `  csilab soak
  csilab soak --seeds 20 --duration 2h
  csilab soak --backend vsphere --volumes 200 --nodes 20 --duration 24h
  csilab soak --backend hpe --arrays 2
  csilab soak --backend vsphere --vcenters 3
  csilab soak --seed 7 --faults power-loss,csi-reply-lost
  csilab soak --backend vsphere --faults faults.yaml,swarm`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return soak(cmd.Context(), s, f) },
	}
	fl := cmd.Flags()
	fl.Uint64Var(&f.seed, "seed", 1, "the first seed")
	fl.IntVar(&f.seeds, "seeds", 1, "how many seeds to run, from --seed on (1 to 10000)")
	fl.StringVar(&f.backend, "backend", "", "vsphere, hpe-iscsi, hpe-fc, or hpe: the seed decides which of both (default: the seed decides)")
	fl.IntVar(&f.volumes, "volumes", 0, "about how many volumes there are at a time (1 to 1000; 0: the seed decides)")
	fl.IntVar(&f.nodes, "nodes", 0, "number of nodes (2 to 64; 0: the seed decides)")
	fl.IntVar(&f.arrays, "arrays", 0, "number of arrays; two are a pair, and some volumes are on both (1 to 4; 0: the seed decides)")
	fl.IntVar(&f.vcenters, "vcenters", 0, "number of vCenters, each with a zone of its own (1 to 5; 0: the seed decides)")
	fl.DurationVar(&f.duration, "duration", 2*time.Hour, "the safety phase, in virtual time (1m to 1000h)")
	fl.StringVar(&f.faults, "faults", "swarm", "kinds of faults, or a fault file, comma-separated; swarm: the seed decides which; all; none")
	fl.DurationVar(&f.shrink, "shrink", 2*time.Minute, "how long to look for a smaller run that fails as well; 0: not at all")
	fl.StringVar(&f.keep, "keep", "", "directory for the ledgers of runs that fail (default: ledgers in the state directory)")
	fl.StringVarP(&f.output, "output", "o", "text", "text or json")
	fl.CountVarP(&f.verbose, "verbose", "v", "log to standard error (-v warnings, -vv info, -vvv debug)")
	return cmd
}

// limits checks the flags.
func (f soakFlags) limits() (l scenarios.SoakLimits, err error) {
	switch {
	case f.seeds < 1 || f.seeds > 10000:
		return l, exitf(ExitUsage, "--seeds %d: allowed are 1 to 10000", f.seeds)
	case f.seed > math.MaxUint64-uint64(f.seeds-1):
		return l, exitf(ExitUsage, "--seed %d: with --seeds %d the last would be beyond %d", f.seed, f.seeds, uint64(math.MaxUint64))
	case f.volumes < 0 || f.volumes > 1000:
		return l, exitf(ExitUsage, "--volumes %d: allowed are 1 to 1000, and 0 for the seed's", f.volumes)
	case f.nodes < 0 || f.nodes == 1 || f.nodes > 64:
		return l, exitf(ExitUsage, "--nodes %d: allowed are 2 to 64, and 0 for the seed's", f.nodes)
	case f.arrays < 0 || f.arrays > 4:
		return l, exitf(ExitUsage, "--arrays %d: allowed are 1 to 4, and 0 for the seed's", f.arrays)
	case f.vcenters < 0 || f.vcenters > 5:
		return l, exitf(ExitUsage, "--vcenters %d: allowed are 1 to 5, and 0 for the seed's", f.vcenters)
	case f.nodes > 0 && f.vcenters > f.nodes:
		return l, exitf(ExitUsage, "--vcenters %d: allowed are 1 to %d with --nodes %d, for each has a node", f.vcenters, min(5, f.nodes), f.nodes)
	case f.duration < time.Minute || f.duration > 1000*time.Hour:
		return l, exitf(ExitUsage, "--duration %v: allowed are 1m to 1000h", f.duration)
	case f.shrink < 0:
		return l, exitf(ExitUsage, "--shrink %v: must not be negative; 0 is not at all", f.shrink)
	case f.output != "text" && f.output != "json":
		return l, exitf(ExitUsage, "--output %q: allowed are text, json", f.output)
	}
	l = scenarios.SoakLimits{Volumes: f.volumes, Nodes: f.nodes, Arrays: f.arrays, VCenters: f.vcenters, Duration: f.duration}
	switch {
	case f.backend == "":
	case f.backend == "hpe":
		l.System = sim.Options{Backend: sim.HPE}
	case len(systems[f.backend]) == 1:
		l.System = systems[f.backend][0]
	default:
		return l, exitf(ExitUsage, "--backend %q: allowed are vsphere, hpe, hpe-iscsi, hpe-fc", f.backend)
	}
	for _, n := range []struct {
		flag, on, with string
		n              int
	}{{"arrays", sim.HPE, "hpe, hpe-iscsi and hpe-fc", f.arrays}, {"vcenters", sim.VSphere, "vsphere", f.vcenters}} {
		if n.n > 0 && l.System.Backend != n.on {
			return l, exitf(ExitUsage, "--%s %d: allowed with --backend %s", n.flag, n.n, n.with)
		}
	}
	return l, f.faultsOf(&l)
}

// faultsOf reads --faults: kinds, words for several, and a fault file.
func (f soakFlags) faultsOf(l *scenarios.SoakLimits) error {
	known := scenarios.Troubles("")
	var named []string
	swarm := false
	l.Troubles = []string{}
	all := strings.Split(f.faults, ",")
	for _, name := range all {
		switch {
		case name == "none" && slices.ContainsFunc(all, func(n string) bool { return n != "none" && !strings.ContainsAny(n, "./\\") }):
			return exitf(ExitUsage, "--faults %q: none is no kind at all; leave out it or the others", f.faults)
		case name == "swarm":
			swarm = true
		case name == "all":
			l.Troubles = append(l.Troubles, known...)
		case name == "none":
		case slices.Contains(known, name):
			l.Troubles, named = append(l.Troubles, name), append(named, name)
		case strings.ContainsAny(name, "./\\") && l.Plan == nil: // names of kinds have none of them
			p, err := readPlan(name)
			if err != nil {
				return err
			}
			l.Plan = &scenarios.SoakPlan{File: name, Fits: p.fits, Rules: p.rules}
			if err := f.fitPlan(*l); err != nil {
				return err
			}
		case strings.ContainsAny(name, "./\\"):
			return exitf(ExitUsage, "--faults %q: allowed is one file, and %q is one", name, l.Plan.File)
		default:
			return exitf(ExitUsage, "--faults %q: allowed are a fault file, swarm, all, none, %s", name, strings.Join(known, ", "))
		}
	}
	if swarm {
		if len(named) > 0 {
			return exitf(ExitUsage, "--faults %q: swarm leaves the kinds to the seed; leave out %s", f.faults, strings.Join(named, ", "))
		}
		if len(l.Troubles) == 0 { // all is more than the seed's
			l.Troubles = nil
		}
	}
	return f.fit(*l, named)
}

// fitPlan refuses a fault file that the lab of a seed can't have.
func (f soakFlags) fitPlan(l scenarios.SoakLimits) error {
	type lab struct {
		system string
		nodes  int
	}
	seen := map[lab]bool{}
	for i := range f.seeds {
		seed := f.seed + uint64(i)
		on := scenarios.DrawSoak(seed, l).Options
		on.Bubble = true
		if seen[lab{on.System(), on.Nodes}] {
			continue
		}
		seen[lab{on.System(), on.Nodes}] = true
		if err := l.Plan.Fits(on); err != nil {
			return exitf(ExitUsage, "--faults with seed %d (--backend %s, --nodes %d): %w", seed, on.System(), on.Nodes, err)
		}
	}
	return nil
}

// fit refuses kinds of faults that were named and that the system of a seed does
// not have.
func (f soakFlags) fit(l scenarios.SoakLimits, named []string) error {
	for i := range f.seeds {
		seed := f.seed + uint64(i)
		on := scenarios.DrawSoak(seed, l).Options
		for _, name := range named {
			if slices.Contains(scenarios.Troubles(on.Backend), name) {
				continue
			}
			var has []string
			for _, system := range []string{"vsphere", "hpe-iscsi", "hpe-fc"} {
				if slices.Contains(scenarios.Troubles(systems[system][0].Backend), name) {
					has = append(has, "--backend "+system)
				}
			}
			who := on.System()
			if f.backend == "" {
				who += ", the system of seed " + fmt.Sprint(seed) + ","
			}
			return exitf(ExitUsage, "--faults %q: %s does not have it; allowed with %s", name, who, strings.Join(has, ", "))
		}
	}
	return nil
}

func soak(ctx context.Context, s Streams, f soakFlags) error {
	limits, err := f.limits()
	if err != nil {
		return err
	}
	if f.keep == "" {
		f.keep = filepath.Join(sim.Options{}.WithDefaults().StateRoot, "ledgers")
	} else if err := usable(f.keep); err != nil {
		return exitf(ExitUsage, "--keep %q: %v", f.keep, err)
	}
	sim.Sweep(sim.Options{Log: logger(s.Err, f.verbose)}) // what labs that were killed have left
	run := func(ctx context.Context, p scenarios.Soak) (res scenarios.SoakResult) {
		p.Options.Bubble, p.Options.Log = true, logger(s.Err, f.verbose)
		err := bubble.Program().Run(ctx, func(ctx context.Context) error {
			res = p.Run(ctx, f.keep)
			return nil
		})
		switch {
		case ctx.Err() != nil:
			res.Class, res.Reason = scenarios.Interrupted, context.Cause(ctx).Error()
		case err != nil && res.Class == scenarios.Passed:
			res.Class, res.Reason = scenarios.Invariant, "left behind: "+err.Error()
		}
		res.Soak, res.Plan = p, p.String()
		return res
	}
	var mu sync.Mutex
	var results []scenarios.SoakResult
	notBegun := []uint64{} // seeds, where the run is interrupted
	worst := ExitOK
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i := range f.seeds {
		g.Go(func() error {
			seed := f.seed + uint64(i)
			if ctx.Err() != nil {
				mu.Lock()
				defer mu.Unlock()
				notBegun = append(notBegun, seed)
				return nil
			}
			start := time.Now()
			res := run(ctx, scenarios.DrawSoak(seed, limits))
			if code := codeOfClass(res.Class); code != ExitOK && code != ExitInterrupted && f.shrink > 0 && !res.Unfired {
				end := time.Now().Add(f.shrink)
				ledgers := []string{res.Ledger}
				res = scenarios.Shrink(res, func(p scenarios.Soak) (scenarios.SoakResult, bool) {
					if ctx.Err() != nil || time.Now().After(end) {
						return scenarios.SoakResult{}, false
					}
					r := run(ctx, p)
					ledgers = append(ledgers, r.Ledger)
					return r, true
				})
				for _, l := range ledgers { // of runs that are not shown
					if l != "" && l != res.Ledger {
						os.Remove(l)
					}
				}
			}
			mu.Lock()
			defer mu.Unlock()
			results = append(results, res)
			if c := codeOfClass(res.Class); severity(c) > severity(worst) {
				worst = c
			}
			if f.output == "text" {
				fmt.Fprint(s.Out, soakText(res, time.Since(start)))
			}
			return nil
		})
	}
	_ = g.Wait()
	if context.Cause(ctx) == errSignal {
		worst = ExitInterrupted
	}
	passed, interrupted := 0, 0
	for _, r := range results {
		switch r.Class {
		case scenarios.Passed:
			passed++
		case scenarios.Interrupted: // nothing is known of it
			interrupted++
		}
	}
	failed := len(results) - passed - interrupted
	slices.Sort(notBegun)
	if f.output == "json" {
		enc := json.NewEncoder(s.Out)
		enc.SetIndent("", "  ")
		if err := enc.Encode(map[string]any{"results": results, "passed": passed, "failed": failed, "interrupted": interrupted, "notBegun": notBegun, "exitCode": worst}); err != nil {
			return err
		}
	} else {
		why := ""
		if interrupted+len(notBegun) > 0 {
			why = fmt.Sprintf(" (interrupted: %d had begun%s)", interrupted, notBegunText(notBegun))
		}
		fmt.Fprintf(s.Out, "%d passed, %d failed%s\n", passed, failed, why)
	}
	if worst != ExitOK {
		return &exitError{worst, errors.New("")}
	}
	return nil
}

// notBegunText tells of the seeds, in order, whose turn had not come: they follow
// each other, for seeds are begun in order.
func notBegunText(seeds []uint64) string {
	switch n := len(seeds); n {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf(", seed %d had not", seeds[0])
	default:
		return fmt.Sprintf(", seeds %d to %d had not", seeds[0], seeds[n-1])
	}
}

// soakText tells of one run.
func soakText(r scenarios.SoakResult, took time.Duration) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s\n", r.Class, r.Plan)
	fmt.Fprintf(&b, "  %v of virtual time in %.1f s: %d steps, %d faults, %d calls (digest %s)\n", r.Virtual.Round(time.Second), took.Seconds(), scenarios.Total(r.Steps), scenarios.Total(r.Faults), r.Calls, r.Digest)
	for _, k := range slices.Sorted(maps.Keys(r.Faults)) {
		fmt.Fprintf(&b, "    %6d %s\n", r.Faults[k], k)
	}
	if r.Class != scenarios.Passed {
		fmt.Fprintf(&b, "  %s\n  replay: %s\n", strings.ReplaceAll(r.Reason, "\n", "\n  "), soakReplay(r.Soak))
		if r.Ledger != "" {
			fmt.Fprintf(&b, "  ledger: %s\n", r.Ledger)
		}
	}
	return b.String()
}

// soakReplay is the command that runs it again.
func soakReplay(s scenarios.Soak) string {
	faults := strings.Join(s.Troubles, ",")
	if faults == "" {
		faults = "none"
	}
	if s.Plan != nil {
		faults = s.Plan.File + "," + faults
	}
	several := fmt.Sprintf("--vcenters %d", max(1, s.VCenters))
	if s.Options.Backend == sim.HPE {
		several = fmt.Sprintf("--arrays %d", max(1, s.Options.Arrays))
	}
	return fmt.Sprintf("%s soak --seed %d --backend %s %s --volumes %d --nodes %d --duration %v --faults %s --shrink 0", shell.Program(),
		s.Seed, s.Options.System(), several, s.Volumes, s.Options.Nodes, s.Duration, shell.Word(faults))
}

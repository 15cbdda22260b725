package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/formatter"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/spf13/cobra"

	"github.com/csilab/csilab/scenarios"
	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/bubble"
	"github.com/csilab/csilab/sim/labfile"
)

type runFlags struct {
	files   []string
	lab     string
	faults  string
	backend []string
	host    string
	timers  string
	time    string
	nodes   int
	every   int
	seed    uint64
	focus   string
	label   string
	junit   string
	output  string
	keep    string
	keepAll bool
	timeout time.Duration
	mutate  bool
	verbose int
	given   func(flag string) bool // whether a flag was given
}

func newRun(s Streams) *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run scenarios, or drive your own manifests through a whole life",
		Long: `Starts a lab (a vCenter with CNS, nodes with kubelets, a control plane, the CSI
driver) and runs all scenarios in it, or with -f the objects of your own
manifests. The last line is "N passed, N failed, N skipped".

Exit codes: 0 ok, 1 a scenario failed, 2 usage or configuration, 3 this machine
can't do it, 4 unknown, 5 an invariant broke, 6 no convergence, 130 interrupted.`,
		Example: `  csilab run
  csilab run --focus snapshot --host memory
  csilab run --time bubble
  csilab run --time wall
  csilab run -f claim.yaml -f pod.yaml
  csilab run --faults slow-array.yaml --backend hpe-iscsi
  csilab run --junit report.xml -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.given = cmd.Flags().Changed
			return run(cmd.Context(), s, f)
		},
	}
	fl := cmd.Flags()
	fl.StringArrayVarP(&f.files, "file", "f", nil, "a manifest to drive instead of the scenarios (repeatable, - is standard input)")
	fl.StringVar(&f.lab, "lab", "", "lab file (lab.yaml) that says which vCenters, nodes and arrays there are; scenarios that need a lab of their own shape are skipped")
	fl.StringVar(&f.faults, "faults", "", "fault file that is armed in each lab before its nodes start; scenarios that sweep faults of their own are skipped")
	fl.StringSliceVar(&f.backend, "backend", []string{"vsphere", "hpe-iscsi"}, "what to run on: vsphere, hpe-iscsi, hpe-fc, hpe (both), all; comma-separated")
	fl.StringVar(&f.host, "host", "auto", "nodes: real (root on Linux), memory, or auto")
	fl.StringVar(&f.time, "time", "auto", "wall; bubble: virtual time, in which hours pass in moments (memory hosts, real timers); auto: what the kernel has a say in on the wall, other scenarios in bubbles, and all on the wall with --host, --timers, --lab, --faults or -f")
	fl.StringVar(&f.timers, "timers", "fast", "timers of kubelets and controllers: real or fast")
	fl.IntVar(&f.nodes, "nodes", 2, "number of nodes (2 to 64)")
	fl.IntVar(&f.every, "every", 0, fmt.Sprintf("take every nth cell of scenarios that sweep, which ones by the seed; 0: all of them on one backend, every %d. on several", sampled))
	fl.Uint64Var(&f.seed, "seed", 1, "seed of all ids and draws")
	fl.StringVar(&f.focus, "focus", "", "run only scenarios whose name matches this regular expression")
	fl.StringVar(&f.label, "label", "", "run only scenarios that match this label expression, e.g. 'attach && !fault'")
	fl.StringVar(&f.junit, "junit", "", "write a JUnit report to this file")
	fl.StringVarP(&f.output, "output", "o", "text", "text or json (results on standard output, progress on standard error)")
	fl.StringVar(&f.keep, "keep", "", "directory for the ledgers of scenarios that fail (default: ledgers in the state directory)")
	fl.BoolVar(&f.keepAll, "keep-all", false, "keep the ledgers of all scenarios, not only of those that fail")
	fl.DurationVar(&f.timeout, "timeout", 0, "limit of one scenario (default 2m, 20m for sweeps and with real timers)")
	fl.BoolVar(&f.mutate, "mutate", false, "apply each scenario's mutation: all that have one must fail")
	fl.CountVarP(&f.verbose, "verbose", "v", "log to standard error (-v warnings, -vv info, -vvv debug)")
	_ = fl.MarkHidden("mutate")
	return cmd
}

// systems are what --backend names.
var systems = map[string][]sim.Options{
	"vsphere":   {{Backend: sim.VSphere}},
	"hpe-iscsi": {{Backend: sim.HPE, Protocol: "iscsi"}},
	"hpe-fc":    {{Backend: sim.HPE, Protocol: "fc"}},
	"hpe":       {{Backend: sim.HPE, Protocol: "iscsi"}, {Backend: sim.HPE, Protocol: "fc"}},
	"all":       {{Backend: sim.VSphere}, {Backend: sim.HPE, Protocol: "iscsi"}, {Backend: sim.HPE, Protocol: "fc"}},
}

// backends are the systems of --backend, each once.
func (f runFlags) backends() (out []sim.Options, err error) {
	seen := map[string]bool{}
	for _, name := range f.backend {
		if systems[name] == nil {
			return nil, exitf(ExitUsage, "--backend %q: allowed are %s", name, strings.Join(slices.Sorted(maps.Keys(systems)), ", "))
		}
		for _, o := range systems[name] {
			if !seen[o.System()] {
				seen[o.System()] = true
				out = append(out, o)
			}
		}
	}
	if len(out) == 0 {
		return nil, exitf(ExitUsage, "--backend is empty: allowed are %s", strings.Join(slices.Sorted(maps.Keys(systems)), ", "))
	}
	return out, nil
}

// labs checks the flags and turns them into the options of a lab for each
// backend.
func (f *runFlags) labs(s Streams) (all []sim.Options, err error) {
	var lab *labfile.Lab
	if f.lab != "" {
		if lab, err = loadLab(f.lab); err != nil {
			return nil, &exitError{ExitUsage, err}
		}
		if err := f.matches(lab); err != nil {
			return nil, err
		}
	}
	on, err := f.backends()
	if err != nil {
		return nil, err
	}
	if len(f.files) > 0 && len(on) > 1 {
		return nil, exitf(ExitUsage, "--backend %s: manifests are for one backend", strings.Join(f.backend, ","))
	}
	for _, b := range on {
		o, err := f.options(s, b, lab)
		if err != nil {
			return nil, err
		}
		all = append(all, o)
	}
	return all, nil
}

// options checks the flags and turns them into a lab's options.
func (f runFlags) options(s Streams, on sim.Options, lab *labfile.Lab) (sim.Options, error) {
	oneOf := func(flag, value string, allowed ...string) error {
		for _, a := range allowed {
			if a == value {
				return nil
			}
		}
		return exitf(ExitUsage, "--%s %q: allowed are %s", flag, value, strings.Join(allowed, ", "))
	}
	if err := errors.Join(oneOf("host", f.host, "auto", "real", "memory"),
		oneOf("timers", f.timers, "real", "fast"), oneOf("time", f.time, "auto", "wall", "bubble"), oneOf("output", f.output, "text", "json")); err != nil {
		return sim.Options{}, &exitError{ExitUsage, err}
	}
	if f.timeout < 0 {
		return sim.Options{}, exitf(ExitUsage, "--timeout %v: must not be negative; 0 is the default", f.timeout)
	}
	if f.every < 0 {
		return sim.Options{}, exitf(ExitUsage, "--every %d: must not be negative; 0 is the default", f.every)
	}
	if f.nodes < 2 || f.nodes > 64 {
		return sim.Options{}, exitf(ExitUsage, "--nodes %d: allowed are 2 to 64", f.nodes)
	}
	if _, err := regexp.Compile(f.focus); err != nil {
		return sim.Options{}, exitf(ExitUsage, "--focus %q: %v", f.focus, err)
	}
	if f.label != "" {
		if _, err := types.ParseLabelFilter(f.label); err != nil {
			return sim.Options{}, exitf(ExitUsage, "--label %q: is no label expression, e.g. 'attach && !fault'", f.label)
		}
	}
	if f.time == "bubble" {
		if f.host == "real" {
			return sim.Options{}, exitf(ExitUsage, "--host real: allowed is memory with --time bubble")
		}
		f.inBubbles()
	}
	o := sim.Options{Backend: on.Backend, Protocol: on.Protocol, Seed: f.seed, Nodes: f.nodes, Host: f.host, Timers: f.timers, Log: logger(s.Err, f.verbose)}
	if lab != nil {
		if err := f.fromLab(&o, lab); err != nil {
			return o, err
		}
	}
	o = o.WithDefaults()
	if err := sim.Preflight(o); err != nil {
		code := ExitUsage
		if errors.As(err, new(*sim.EnvironmentError)) {
			code = ExitEnvironment
		}
		return o, &exitError{code, err}
	}
	return o, nil
}

// inBubbles chooses what labs in virtual time have: memory hosts, and the timers
// of a real cluster.
func (f *runFlags) inBubbles() {
	f.host = "memory"
	if !f.given("timers") {
		f.timers = "real"
	}
}

// mixes says whether each scenario is run where it shows most: there is no flag
// that decides where.
func (f *runFlags) mixes() bool {
	return f.time == "auto" && len(f.files) == 0 && !slices.ContainsFunc([]string{"host", "timers", "lab", "faults"}, f.given)
}

// virtual are the options of a lab of the same system in virtual time.
func (f runFlags) virtual(s Streams, on sim.Options) (sim.Options, error) {
	f.inBubbles()
	return f.options(s, on, nil)
}

// hasVCenters says whether a lab file has vCenters: one that says of nothing has
// one by default.
func hasVCenters(lab *labfile.Lab) bool { return len(lab.VCenters) > 0 || len(lab.Arrays) == 0 }

// matches chooses the backends that a lab file has where none are given, and
// refuses flags that do not fit it: a lab of another kind than the file's would
// pass for it.
func (f *runFlags) matches(lab *labfile.Lab) error {
	if !f.given("backend") {
		f.backend = nil
		if hasVCenters(lab) {
			f.backend = append(f.backend, "vsphere")
		}
		if len(lab.Arrays) > 0 {
			f.backend = append(f.backend, "hpe-iscsi")
		}
	}
	on, err := f.backends()
	if err != nil {
		return err
	}
	for _, o := range on {
		switch {
		case o.Backend == sim.VSphere && !hasVCenters(lab):
			return exitf(ExitUsage, "--backend %s: --lab %s has arrays and no vCenter; allowed are hpe-iscsi, hpe-fc and hpe", o.System(), f.lab)
		case o.Backend == sim.HPE && len(lab.Arrays) == 0:
			return exitf(ExitUsage, "--backend %s: --lab %s has no arrays; allowed is vsphere", o.System(), f.lab)
		}
	}
	if f.given("nodes") && hasVCenters(lab) {
		return exitf(ExitUsage, "--nodes: the lab file says that; leave out one of them")
	}
	return nil
}

// fromLab takes what the lab file says; flags that were given go before it.
func (f runFlags) fromLab(o *sim.Options, lab *labfile.Lab) error {
	for flag, set := range map[string]func(){
		"seed":   func() { o.Seed = max(lab.Seed, 1) },
		"host":   func() { o.Host = lab.Host },
		"timers": func() { o.Timers = lab.Timers },
	} {
		if !f.given(flag) && (flag == "seed" || f.time != "bubble") { // a bubble has hosts and timers of its own
			set()
		}
	}
	o.MaxVolumesPerNode = lab.MaxVolumes
	if o.Backend == sim.HPE { // its nodes are servers, of which the file says nothing
		a, _ := lab.Storage()
		o.Storage = &sim.Storage{SAN: a.SAN, Devices: a.Devices}
		return nil
	}
	o.VCenters, _ = lab.Configs()
	nodes := 0
	for _, v := range o.VCenters {
		for i := range v.Nodes {
			v.Nodes[i].PoweredOff = false // it would never get ready
			nodes++
		}
	}
	if nodes < 2 {
		return exitf(ExitUsage, "--lab %s: has %d nodes, run needs 2 to 64", f.lab, nodes)
	}
	return nil
}

func run(ctx context.Context, s Streams, f runFlags) error {
	for _, x := range []struct{ flag, does string }{{"focus", "chooses scenarios"}, {"label", "chooses scenarios"}, {"every", "is about scenarios that sweep"}} {
		if len(f.files) > 0 && f.given(x.flag) {
			return exitf(ExitUsage, "--%s %s, and -f takes their place; leave out one of them", x.flag, x.does)
		}
	}
	var manifests scenarios.Manifests
	if len(f.files) > 0 {
		var err error
		if manifests, err = f.read(s); err != nil {
			return err
		}
		if names := manifests.Drivers(); len(names) > 1 && !f.given("backend") && f.lab == "" {
			return exitf(ExitUsage, "-f: the manifests name %s, and a lab has one driver: drive them apart, or say which with --backend", strings.Join(names, " and "))
		}
		if !f.given("backend") && f.lab == "" {
			f.backend = []string{manifests.System()}
		}
	}
	all, err := f.labs(s)
	if err != nil {
		return err
	}
	opts := all[0]
	if f.keep == "" {
		f.keep = filepath.Join(opts.StateRoot, "ledgers") // made when one is written
	} else if err := usable(f.keep); err != nil {
		return exitf(ExitUsage, "--keep %q: %v", f.keep, err)
	}
	if f.junit != "" {
		// Better now than after the run.
		if err := writable(f.junit); err != nil {
			return exitf(ExitUsage, "--junit %q: %v", f.junit, err)
		}
	}
	progress := newProgress(s, f.output == "json")
	var mu sync.Mutex
	var results []scenarios.Result
	var labels func([]string) bool
	if f.label != "" {
		filter := types.MustParseLabelFilter(f.label) // options has checked it
		labels = func(l []string) bool { return filter(l) }
	}
	cfg := scenarios.Config{
		Options: opts, Lab: f.lab, Faults: f.faults, Focus: regexp.MustCompile(f.focus), Label: labels, Parallel: parallel(f.time, opts), Timeout: f.timeout, Keep: f.keep, KeepAll: f.keepAll, Mutate: f.mutate, SweepBubbles: programs{},
		Start: progress.start, Progress: progress.cell,
		Done: func(r scenarios.Result) {
			mu.Lock()
			defer mu.Unlock()
			results = append(results, r)
			progress.done(r)
		},
	}
	if f.time == "bubble" {
		cfg.Bubbles = bubble.Program()
	}
	var cfgs []scenarios.Config // none with the user's manifests
	if len(f.files) == 0 {
		for _, o := range all {
			c := cfg
			c.Options, c.SweepEvery = o, f.cells(len(all))
			cfgs = append(cfgs, c)
		}
		if !slices.ContainsFunc(cfgs, func(c scenarios.Config) bool { return !c.Empty() }) {
			return exitf(ExitUsage, "no scenario matches --focus %q --label %q; `csilab list` lists them", f.focus, f.label)
		}
	}
	arm, err := f.arm(all, cfgs)
	if err != nil {
		return err
	}
	sim.Sweep(opts) // what labs that were killed have left
	progress.header(all, f.mixes())
	if len(f.files) > 0 {
		cfg.Arm = arm
		err = runFiles(ctx, f, manifests.Scenario(f.timeout), cfg)
	} else {
		var mixed []scenarios.Config
		for _, c := range cfgs {
			c.Arm = arm
			if f.mixes() {
				v := c
				if v.Options, err = f.virtual(s, c.Options); err != nil {
					return err
				}
				v.Bubbles, v.Only = bubble.Program(), scenarios.InVirtualTime
				mixed = append(mixed, v)
				c.Only = func(sc scenarios.Scenario) bool { return !scenarios.InVirtualTime(sc) }
			}
			mixed = append(mixed, c)
		}
		report := runScenarios(mixed)
		if f.junit != "" {
			if err = junit(told(report, results), f.junit); err != nil {
				err = exitf(ExitUsage, "--junit %q: write: %w", f.junit, err)
			}
		}
	}
	if err != nil {
		return err
	}
	worst, passed, failed, skipped, interrupted, notBegun := ExitOK, 0, 0, 0, 0, 0
	for _, r := range results {
		code := codeOfClass(r.Class)
		if r.Reason == scenarios.NotBegun {
			notBegun++
		}
		switch {
		case r.Class == scenarios.Skipped:
			skipped++
		case code == ExitOK:
			passed++
		case code == ExitInterrupted: // nothing is known of it
			interrupted++
		default:
			failed++
		}
		if severity(code) > severity(worst) {
			worst = code
		}
	}
	nothing := skipped > 0 && passed+failed+interrupted == 0
	if nothing {
		worst = ExitEnvironment // a gate that lets pass what nobody looked at is none
	}
	if context.Cause(ctx) == errSignal {
		worst = ExitInterrupted
	}
	if f.output == "json" {
		enc := json.NewEncoder(s.Out)
		enc.SetIndent("", "  ")
		if err := enc.Encode(map[string]any{"results": results, "passed": passed, "failed": failed, "skipped": skipped, "interrupted": interrupted, "exitCode": worst}); err != nil {
			return err
		}
	}
	progress.summary(passed, failed, skipped, interrupted, notBegun)
	if worst == ExitEnvironment && nothing {
		return exitf(worst, "nothing was run: all that was chosen was skipped, for the reasons above")
	}
	if worst != ExitOK {
		return &exitError{worst, errors.New("")}
	}
	return nil
}

// sampled is the n of the every nth cell that is taken on several backends: a first
// run is for a look at everything, in a minute.
const sampled = 8

// cells is the n of the every nth cell that is taken on so many backends.
func (f runFlags) cells(backends int) int {
	if f.every == 0 && backends > 1 {
		return sampled
	}
	return f.every
}

// parallel is how many scenarios run side by side. They wait most of the time.
func parallel(mode string, o sim.Options) int {
	if mode == "bubble" {
		return runtime.GOMAXPROCS(0) // nobody waits
	}
	if o.Timers == "real" || o.Host == "memory" {
		return 4 * runtime.GOMAXPROCS(0)
	}
	return 2 * runtime.GOMAXPROCS(0)
}

// verdict takes Ginkgo's word; the results say the rest.
type verdict struct{ failed bool }

func (v *verdict) Fail() { v.failed = true }

// runScenarios runs the Ginkgo suite in this process. When it returns, all results
// have been told.
func runScenarios(cfgs []scenarios.Config) (report types.Report) {
	stop := scenarios.Specs(cfgs...)
	defer stop()
	formatter.ColorableStdOut = io.Discard // the progress lines tell it
	suite, reporter := ginkgo.GinkgoConfiguration()
	suite.RandomSeed = int64(cfgs[0].Options.Seed)
	suite.Timeout = 24 * time.Hour
	ginkgo.ReportAfterSuite("--junit", func(r ginkgo.Report) { report = r })
	var v verdict
	ginkgo.RunSpecs(&v, "csilab", suite, reporter)
	return report
}

// told is Ginkgo's report with what came of scenarios that it did not wait for: of
// an interrupted run it skips all behind the first that had not ended.
func told(r types.Report, results []scenarios.Result) types.Report {
	r.SpecReports = slices.Clone(r.SpecReports)
	for i := range r.SpecReports {
		s := &r.SpecReports[i]
		j := slices.IndexFunc(results, func(x scenarios.Result) bool { return strings.TrimPrefix(s.LeafNodeText, x.System+" ") == x.Scenario })
		if s.LeafNodeType != types.NodeTypeIt || j < 0 || s.State == stateOf(results[j].Class) {
			continue
		}
		x := results[j]
		s.State, s.RunTime, s.Failure = stateOf(x.Class), x.Duration, types.Failure{}
		if x.Class != scenarios.Passed {
			s.Failure.Message = x.Reason
		}
	}
	return r
}

// stateOf is what Ginkgo calls the end of a scenario.
func stateOf(c scenarios.Class) types.SpecState {
	switch codeOfClass(c) {
	case ExitOK:
		if c == scenarios.Skipped {
			return types.SpecStateSkipped
		}
		return types.SpecStatePassed
	case ExitInterrupted:
		return types.SpecStateInterrupted
	}
	return types.SpecStateFailed
}

// read reads the user's manifests.
func (f runFlags) read(s Streams) (scenarios.Manifests, error) {
	var files []scenarios.File
	for _, name := range f.files {
		b, err := readInput(s.In, name)
		if err != nil {
			return scenarios.Manifests{}, exitf(ExitUsage, "-f %s: %w", name, err)
		}
		files = append(files, scenarios.File{Name: name, Data: b})
	}
	m, err := scenarios.ReadManifests(files)
	if err != nil {
		return m, &exitError{ExitUsage, err}
	}
	return m, nil
}

// runFiles drives the user's manifests.
func runFiles(ctx context.Context, f runFlags, sc scenarios.Scenario, cfg scenarios.Config) error {
	cfg.Start(cfg.Options.System(), sc)
	res := scenarios.Run(ctx, sc, cfg)
	if context.Cause(ctx) == errSignal {
		res.Class, res.Reason = scenarios.Interrupted, errSignal.Error()
	}
	if res.Class == scenarios.NoConverge {
		// An object of the user's that never gets ready is the user's failure.
		res.Class = scenarios.Failed
	}
	cfg.Done(res)
	if f.junit != "" {
		if err := writeJUnit(f.junit, res); err != nil {
			return exitf(ExitUsage, "--junit %q: %w", f.junit, err)
		}
	}
	return nil
}

func writeJUnit(file string, r scenarios.Result) error {
	state := stateOf(r.Class)
	end := time.Now()
	report := types.Report{
		SuiteDescription: "csilab", SuiteSucceeded: state == types.SpecStatePassed || state == types.SpecStateSkipped,
		StartTime: end.Add(-r.Duration), EndTime: end, RunTime: r.Duration,
		SpecReports: types.SpecReports{{
			LeafNodeType: types.NodeTypeIt, LeafNodeText: r.Scenario, ContainerHierarchyTexts: []string{"csilab"},
			State: state, StartTime: end.Add(-r.Duration), EndTime: end, RunTime: r.Duration,
			Failure:                    types.Failure{Message: r.Reason},
			CapturedGinkgoWriterOutput: strings.Join(r.Notes, "\n"),
		}},
	}
	if err := junit(report, file); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

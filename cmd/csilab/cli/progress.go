package cli

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onsi/ginkgo/v2/reporters"
	"github.com/onsi/ginkgo/v2/types"

	"github.com/csilab/csilab/scenarios"
	"github.com/csilab/csilab/sim"
)

// junit writes a report as JUnit has it. Ginkgo's own writer says nothing of what
// it can't write, and of an interrupted scenario it tells all goroutines.
func junit(r types.Report, file string) error {
	dir, err := os.MkdirTemp("", "csilab-junit-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	whole := filepath.Join(dir, "report.xml")
	r.SpecReports = slices.Clone(r.SpecReports)
	for i := range r.SpecReports {
		s := &r.SpecReports[i]
		s.ProgressReports, s.Failure.ProgressReport = nil, types.ProgressReport{}
	}
	if err := reporters.GenerateJUnitReport(r, whole); err != nil {
		return err
	}
	b, err := os.ReadFile(whole)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, b, 0o644)
}

// progress prints a line per scenario; on a terminal the one under way is
// shown live.
type progress struct {
	w    io.Writer
	live bool

	mu      sync.Mutex
	running map[string]*under
	several bool // systems
	stop    chan struct{}
	stopped chan struct{}
}

type under struct {
	since time.Time
	state string
}

func newProgress(s Streams, toErr bool) *progress {
	w := s.Out
	if toErr {
		w = s.Err
	}
	return &progress{w: w, live: isTerminal(w), running: map[string]*under{}}
}

func isTerminal(w io.Writer) bool {
	if o, ok := w.(*output); ok {
		w = o.w
	}
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	fi, err := f.Stat()
	return err == nil && fi.Mode()&os.ModeCharDevice != 0 && os.Getenv("CI") == ""
}

func (p *progress) header(all []sim.Options, mixed bool) {
	p.several = len(all) > 1
	for _, o := range all {
		p.system(o)
	}
	if mixed {
		fmt.Fprintln(p.w, "csilab: that is for what the kernel has a say in; the other scenarios are in virtual time on memory hosts (--time wall runs all as above)")
	}
}

func (p *progress) system(o sim.Options) {
	vcs := ""
	if n := len(o.VCenters); n > 1 {
		vcs = fmt.Sprintf("%d vCenters, ", n)
	}
	what := map[string]string{"vsphere": "vSphere", "hpe-iscsi": "HPE (iSCSI)", "hpe-fc": "HPE (FC)"}[o.System()]
	fmt.Fprintf(p.w, "csilab: %s backend, %s%d nodes (%s hosts), %s timers, seed %d\n", what, vcs, o.Nodes, o.Host, o.Timers, o.Seed)
}

// start shows a scenario as under way.
func (p *progress) start(system string, s scenarios.Scenario) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running[p.title(system, s.Name)] = &under{since: time.Now()}
	if p.live && p.stop == nil {
		p.stop, p.stopped = make(chan struct{}), make(chan struct{})
		go p.paint()
	}
}

// paint keeps the last line of the terminal up to date.
func (p *progress) paint() {
	defer close(p.stopped)
	t := time.NewTicker(100 * time.Millisecond)
	defer t.Stop()
	for {
		p.mu.Lock()
		var parts []string
		for _, name := range slices.Sorted(maps.Keys(p.running)) {
			u := p.running[name]
			parts = append(parts, strings.TrimSpace(fmt.Sprintf("%s %.0fs %s", name, time.Since(u.since).Seconds(), u.state)))
		}
		line := []rune(" … " + strings.Join(parts, ", "))
		fmt.Fprintf(p.w, "\r\x1b[K%s", string(line[:min(len(line), 100)]))
		p.mu.Unlock()
		select {
		case <-t.C:
		case <-p.stop:
			fmt.Fprint(p.w, "\r\x1b[K")
			return
		}
	}
}

// cell notes how far a sweep is.
func (p *progress) cell(system, scenario, state string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if u := p.running[p.title(system, scenario)]; u != nil {
		u.state = state
	}
}

// title names a scenario, with the system where several are run.
func (p *progress) title(system, scenario string) string {
	if p.several {
		return system + " " + scenario
	}
	return scenario
}

// done prints the end of a scenario; of those that were not begun the summary
// tells.
func (p *progress) done(r scenarios.Result) {
	if r.Reason == scenarios.NotBegun {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	title := p.title(r.System, r.Scenario)
	delete(p.running, title)
	if p.live {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
	mark := map[scenarios.Class]string{scenarios.Passed: "✓", scenarios.Skipped: "-"}[r.Class]
	if mark == "" {
		mark = "✗"
	}
	virtual := ""
	if r.Virtual > 0 {
		virtual = fmt.Sprintf(" (%v of virtual time)", r.Virtual.Round(time.Second))
	}
	fmt.Fprintf(p.w, " %s %s  %.1fs%s\n", mark, title, r.Duration.Seconds(), virtual)
	for _, n := range r.Notes {
		fmt.Fprintf(p.w, "     %s\n", strings.ReplaceAll(n, "\n", "\n     "))
	}
	if r.Class == scenarios.Passed {
		return
	}
	fmt.Fprintf(p.w, "     %s: %s\n", r.Class, strings.ReplaceAll(r.Reason, "\n", "\n     "))
	if r.Ledger != "" {
		fmt.Fprintf(p.w, "     ledger: %s\n", r.Ledger)
	}
	if r.Replay != "" {
		fmt.Fprintf(p.w, "     again:  %s\n", r.Replay)
	}
}

// summary prints the last line.
func (p *progress) summary(passed, failed, skipped, interrupted, notBegun int) {
	if p.stop != nil {
		close(p.stop)
		<-p.stopped
	}
	why := ""
	switch {
	case interrupted+notBegun == 0:
	case notBegun == 0:
		why = fmt.Sprintf(" (interrupted: %d had begun)", interrupted)
	case interrupted == 0:
		why = fmt.Sprintf(" (interrupted: %d had not begun)", notBegun)
	default:
		why = fmt.Sprintf(" (interrupted: %d had begun, %d had not)", interrupted, notBegun)
	}
	fmt.Fprintf(p.w, "%d passed, %d failed, %d skipped%s\n", passed, failed, skipped, why)
}

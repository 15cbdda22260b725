package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/onsi/ginkgo/v2/reporters"
	"github.com/onsi/ginkgo/v2/types"

	"github.com/csilab/csilab/scenarios"
	"github.com/csilab/csilab/sim"
)

func junit(r types.Report, file string) error { return reporters.GenerateJUnitReport(r, file) }

// progress prints a line per scenario; on a terminal the one under way is
// shown live.
type progress struct {
	w    io.Writer
	live bool

	mu      sync.Mutex
	current string
	since   time.Time
	note    string
	stop    chan struct{}
	stopped chan struct{}
}

func newProgress(s Streams, toErr bool) *progress {
	w := s.Out
	if toErr {
		w = s.Err
	}
	return &progress{w: w, live: isTerminal(w)}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	fi, err := f.Stat()
	return err == nil && fi.Mode()&os.ModeCharDevice != 0 && os.Getenv("CI") == ""
}

func (p *progress) header(o sim.Options) {
	fmt.Fprintf(p.w, "csilab: vSphere backend, %d nodes (%s hosts), %s timers, seed %d\n", o.Nodes, o.Host, o.Timers, o.Seed)
}

func (p *progress) start(s scenarios.Scenario) {
	p.mu.Lock()
	p.current, p.since, p.note = s.Name, time.Now(), ""
	p.mu.Unlock()
	if !p.live {
		return
	}
	p.stop, p.stopped = make(chan struct{}), make(chan struct{})
	go func() {
		defer close(p.stopped)
		t := time.NewTicker(100 * time.Millisecond)
		defer t.Stop()
		for {
			p.mu.Lock()
			fmt.Fprintf(p.w, "\r\x1b[K … %s  %.1fs  %s", p.current, time.Since(p.since).Seconds(), p.note)
			p.mu.Unlock()
			select {
			case <-t.C:
			case <-p.stop:
				fmt.Fprint(p.w, "\r\x1b[K")
				return
			}
		}
	}()
}

func (p *progress) cell(line string) {
	p.mu.Lock()
	p.note = line
	p.mu.Unlock()
}

func (p *progress) done(r scenarios.Result) {
	if p.live {
		close(p.stop)
		<-p.stopped
	}
	mark := map[scenarios.Class]string{scenarios.Passed: "✓", scenarios.Skipped: "-"}[r.Class]
	if mark == "" {
		mark = "✗"
	}
	fmt.Fprintf(p.w, " %s %s  %.1fs\n", mark, r.Scenario, r.Duration.Seconds())
	for _, n := range r.Notes {
		fmt.Fprintf(p.w, "     %s\n", n)
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

func (p *progress) summary(passed, failed, skipped int) {
	fmt.Fprintf(p.w, "%d passed, %d failed, %d skipped\n", passed, failed, skipped)
}

// Package sweep runs a flow once with nothing wrong, lists the calls that it
// makes on every hop, and runs it again once for each call and each kind of
// trouble that fits it: the trouble comes, it heals, and then everything must
// come right by itself: the flow's state is reached, the invariants hold, the
// data is there, and at the end nothing is left.
package sweep

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/csilab/csilab/scenarios/flow"
	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/ledger"
)

// Bubbles run functions in bubbles of virtual time, each in one of its own,
// several side by side. ctx of f is made inside.
type Bubbles interface {
	Run(ctx context.Context, f func(ctx context.Context) error) error
}

// Config is what is swept. Flows and Systems are required.
type Config struct {
	Flows []flow.Flow
	// Systems are the labs to sweep on.
	Systems []sim.Options
	// Kinds of trouble; nil takes all.
	Kinds []Kind
	// Calls says which calls are swept, besides the flow's own word; nil: all.
	Calls func(ledger.Entry) bool
	// Keep says which cells there are, by call, kind and their place in the list;
	// nil: all.
	Keep func(c Call, kind string, index int) bool
	// Cells are ids of cells; nil takes all.
	Cells []string
	// Pairs of two faults are drawn by the seed of each system, so many for each
	// flow and system, in place of single faults.
	Pairs int
	// Shard n of Shards (1 is the first); 0 takes all.
	Shard, Shards int
	// Every takes every nth cell; 0 and 1 all.
	Every int

	// Bubbles run the cells in virtual time, each in a lab of its own; nil runs
	// them on the wall, where a lab that is empty again takes the next.
	Bubbles Bubbles
	// Workers is how many cells run side by side; 0 means as fits.
	Workers int
	// Limit bounds one cell in its lab's time; 0 means 2 h with real timers, 3 min
	// with fast ones.
	Limit time.Duration
	// Ledgers is the directory for the ledgers of cells that fail; "" keeps none.
	Ledgers string
	// StopAfter ends the sweep after so many cells that failed; 0 never.
	StopAfter int
	// Mutate changes each lab before its flow begins, for mutants.
	Mutate func(*sim.Lab)
	// Progress is told after each cell, from several goroutines; may be nil.
	Progress func(part *Part, c Cell, done, all int)
}

// Part is a flow on a system.
type Part struct {
	Flow    string   `json:"flow"`
	System  string   `json:"system"`
	Host    string   `json:"host"`
	Timers  string   `json:"timers"`
	Seed    uint64   `json:"seed"`
	Calls   []Call   `json:"calls"`
	Cells   []Cell   `json:"cells"`
	Misfits []Misfit `json:"misfits"`
	// Class and Reason are of the run without a fault: "passed", or why there are no
	// cells.
	Class  flow.Class `json:"class"`
	Reason string     `json:"reason,omitempty"`
	Ledger string     `json:"ledger,omitempty"`
	// Possible is how many cells there are before Shard, Every and Pairs.
	Possible int `json:"possibleCells"`
	// Chosen is how many they leave; Cells are fewer when the run was stopped.
	Chosen int `json:"chosenCells"`
	// Length is how many calls the whole run without a fault made.
	Length int `json:"-"`

	err  error
	opts sim.Options
	flow flow.Flow
	todo [][]planned
}

// Report is the end of a sweep.
type Report struct {
	Parts    []*Part       `json:"parts"`
	Duration time.Duration `json:"duration"`
	// Stopped says why not all cells were run, or "".
	Stopped string `json:"stopped,omitempty"`
}

// Count is how many cells ended in a state.
func (r *Report) Count(s State) (n int) {
	for _, p := range r.Parts {
		for _, c := range p.Cells {
			if c.State == s {
				n++
			}
		}
	}
	return n
}

var errEnough = errors.New("enough cells have failed")

type engine struct {
	Config
	outer context.Context
	mu    sync.Mutex
	done  int
	all   int
	bad   int
	stop  context.CancelCauseFunc
}

// Run sweeps. The error says why there could be no sweep at all; what cells
// found is in the report.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	if len(cfg.Flows) == 0 || len(cfg.Systems) == 0 {
		return nil, errors.New("sweep: Flows and Systems are required")
	}
	if cfg.Kinds == nil {
		cfg.Kinds = Kinds()
	}
	start := time.Now()
	rctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	e := &engine{Config: cfg, outer: ctx, stop: stop}
	r := &Report{}
	for _, o := range cfg.Systems {
		o.Bubble = cfg.Bubbles != nil
		for _, f := range cfg.Flows {
			if !f.Fits(o.WithDefaults().Backend) {
				continue
			}
			fo := o
			if f.Options != nil {
				f.Options(&fo)
			}
			fo = fo.WithDefaults()
			r.Parts = append(r.Parts, &Part{Flow: f.Name, System: fo.System(), Host: fo.Host, Timers: fo.Timers, Seed: fo.Seed, opts: fo, flow: f})
		}
	}
	if len(r.Parts) == 0 {
		return nil, errors.New("none of the flows makes sense on any of the systems")
	}
	e.each(rctx, len(r.Parts), func(ctx context.Context, i int, _ *holder) { e.clean(ctx, r.Parts[i]) })
	type job struct {
		p *Part
		i int
	}
	var jobs []job
	for _, p := range r.Parts {
		p.Cells = make([]Cell, len(p.todo))
		for i := range p.todo {
			p.Cells[i] = e.label(p, p.todo[i])
			jobs = append(jobs, job{p, i})
		}
	}
	e.all = len(jobs)
	e.each(rctx, len(jobs), func(ctx context.Context, i int, h *holder) {
		p := jobs[i].p
		c := &p.Cells[jobs[i].i]
		e.run(ctx, p, p.todo[jobs[i].i], c, h)
		e.mu.Lock()
		e.done++
		if c.State == Failed {
			e.bad++
		}
		enough := e.StopAfter > 0 && e.bad >= e.StopAfter
		done := e.done
		e.mu.Unlock()
		if e.Progress != nil {
			e.Progress(p, *c, done, e.all)
		}
		if enough {
			e.stop(errEnough)
		}
	})
	// What was not run is no cell.
	for _, p := range r.Parts {
		p.Cells = slices.DeleteFunc(p.Cells, func(c Cell) bool { return c.State == "" })
	}
	if rctx.Err() != nil {
		r.Stopped = context.Cause(rctx).Error()
	}
	r.Duration = time.Since(start)
	return r, nil
}

// label makes the cell of some faults.
func (e *engine) label(p *Part, ps []planned) Cell {
	c := Cell{ID: idOf(ps)}
	for _, x := range ps {
		c.Calls, c.Kinds = append(c.Calls, x.call), append(c.Kinds, x.kind)
	}
	return c
}

// each does n jobs, several side by side; a worker on the wall may keep a lab
// from one to the next.
func (e *engine) each(ctx context.Context, n int, do func(ctx context.Context, i int, h *holder)) {
	workers := e.Workers
	if workers == 0 {
		workers = runtime.GOMAXPROCS(0)
		if e.Bubbles == nil {
			workers *= 4 // they wait most of the time
			if e.Systems[0].Host == "real" {
				workers /= 2
			}
		}
	}
	queue := make(chan int)
	var wg sync.WaitGroup
	for range min(workers, n) {
		wg.Go(func() {
			var h holder
			defer h.drop()
			for i := range queue {
				do(ctx, i, &h)
			}
		})
	}
	defer wg.Wait()
	defer close(queue)
	for i := range n {
		select {
		case queue <- i:
		case <-ctx.Done():
			return
		}
	}
}

// choose takes the cells of a part that the configuration asks for.
func (e *engine) choose(p *Part, cells []planned) {
	if e.Keep != nil {
		i := -1
		cells = slices.DeleteFunc(cells, func(c planned) bool { i++; return !e.Keep(c.call, c.kind, i) })
	}
	p.Possible = len(cells)
	defer func() { p.Chosen = len(p.todo) }()
	switch {
	case len(e.Cells) > 0:
		byID := map[string]planned{}
		for _, c := range cells {
			byID[c.id()] = c
		}
	next:
		for _, id := range e.Cells {
			var ps []planned
			for _, one := range strings.Split(id, between) {
				c, ok := byID[one]
				if !ok {
					continue next
				}
				ps = append(ps, c)
			}
			p.todo = append(p.todo, ps)
		}
	case e.Pairs > 0:
		p.todo = pairs(cells, e.Pairs, p.Seed)
	default:
		for _, c := range cells {
			p.todo = append(p.todo, []planned{c})
		}
	}
	if len(e.Cells) > 0 {
		return
	}
	p.todo = slices.DeleteFunc(p.todo, func(ps []planned) bool {
		// By name, not by place: a shard is the same part in each process.
		at := place(p.String() + ": " + idOf(ps))
		return e.Every > 1 && (at/64+p.Seed)%uint64(e.Every) != 0 || e.Shards > 1 && at%uint64(e.Shards) != uint64(e.Shard-1)
	})
}

// place is a number that a name alone decides.
func place(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	return x ^ x>>33
}

func (e *engine) limit(p *Part) time.Duration {
	switch {
	case e.Limit > 0:
		return e.Limit
	case p.Timers == "real":
		return 2 * time.Hour
	}
	return 3 * time.Minute
}

// Err is why the flow failed with nothing wrong, or nil.
func (p *Part) Err() error { return p.err }

func (p *Part) String() string { return fmt.Sprintf("%s on %s", p.Flow, p.System) }

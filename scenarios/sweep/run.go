package sweep

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/csilab/csilab/scenarios/flow"
	"github.com/csilab/csilab/scenarios/shell"
	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/wholefile"
)

// holder keeps a lab on the wall that is empty again.
type holder struct {
	lab  *sim.Lab
	part string // flow and system: flows differ in the labs that they need
}

func (h *holder) drop() error {
	if h.lab == nil {
		return nil
	}
	l := h.lab
	h.lab = nil
	return l.Close()
}

// inside runs f where the cells run: in a bubble, or right here.
func (e *engine) inside(ctx context.Context, p *Part, f func(ctx context.Context) error) error {
	limit := func(ctx context.Context) error {
		ctx, cancel := context.WithTimeoutCause(ctx, e.limit(p), fmt.Errorf("it did not converge within %v", e.limit(p)))
		defer cancel()
		return f(ctx)
	}
	if e.Bubbles == nil {
		return limit(ctx)
	}
	done := make(chan error, 1)
	go func() { done <- e.Bubbles.Run(ctx, limit) }()
	t := time.NewTimer(frozen)
	defer t.Stop()
	select {
	case err := <-done:
		return err
	case <-t.C:
		return e.stands(p)
	}
}

// frozen is how long a bubble may take on the wall, where a flow takes a part of
// a second: one that takes longer has lost its clock, which stops while a
// goroutine waits for a lock that another holds over a wait. Such a bubble can't
// be ended; it is left as it is.
const frozen = 5 * time.Minute

var errFrozen = fmt.Errorf("after %v on the wall", frozen)

// stands is the error of a bubble whose clock stands, with a file that has all
// goroutines.
func (e *engine) stands(p *Part) error {
	buf := make([]byte, 16<<20)
	buf = buf[:runtime.Stack(buf, true)]
	where := "no directory for its goroutines"
	if e.Ledgers != "" {
		stem := fmt.Sprintf("sweep.%s.%s.seed%d.goroutines", p.Flow, p.System, p.Seed)
		f, err := wholefile.New(e.Ledgers, stem, ".txt", func(w io.Writer) error { _, err := w.Write(buf); return err })
		if err == nil {
			where = "goroutines: " + f
		}
	}
	return &sim.TimeoutError{What: "the bubble's clock stands: something waits for a lock that is held over a wait; " + where, Err: errFrozen}
}

// ready starts a lab for a flow.
func (e *engine) ready(ctx context.Context, p *Part) (*sim.Lab, error) {
	lab, err := sim.Start(ctx, p.opts)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(lab.NodesReady(ctx), lab.Apply(ctx, lab.Classes())); err != nil {
		return nil, errors.Join(err, lab.Close())
	}
	if e.Mutate != nil {
		e.Mutate(lab)
	}
	return lab, nil
}

// begin brings a lab to where the body begins, and waits until nothing of what
// was before is still on its way: start-ups of sidecars, the ends of pods.
func (e *engine) begin(ctx context.Context, p *Part, lab *sim.Lab) error {
	if err := p.flow.Begin(ctx, lab); err != nil {
		return err
	}
	return e.pass(ctx, lab, calm)
}

// pass lets time pass in a bubble; on the wall it would take it.
func (e *engine) pass(ctx context.Context, lab *sim.Lab, d time.Duration) error {
	if e.Bubbles == nil {
		return nil
	}
	return lab.Sleep(ctx, d)
}

// calm is longer than what a lab does by itself without being asked, and shorter
// than the next comparison of a sidecar.
const calm = 15 * time.Second

// clean runs a flow with nothing wrong and lists its cells.
func (e *engine) clean(ctx context.Context, p *Part) {
	var calls []Call
	var entries []ledger.Entry
	lacking := map[string]string{}
	stopped := func() bool { return ctx.Err() != nil } // from outside
	err := e.inside(ctx, p, func(ctx context.Context) error {
		lab, err := e.ready(ctx, p)
		if err != nil {
			return err
		}
		for _, k := range fault.Kinds() {
			lacking[k.Name] = k.Lacks(lab)
		}
		err = func() error {
			if e.Bubbles == nil {
				// A lab on the wall has been used before: the first logins and the first
				// look-ups are over.
				if err := p.flow.Run(ctx, lab); err != nil {
					return err
				}
			}
			begin := lab.Ledger.Len()
			if err := e.begin(ctx, p, lab); err != nil {
				return err
			}
			from := uint64(lab.Ledger.Len())
			if err := p.flow.Body(ctx, lab); err != nil {
				return err
			}
			all := lab.Ledger.Entries(ledger.After(from))
			calls, entries = callsOf(all, func(x ledger.Entry) bool {
				return (p.flow.Calls == nil || p.flow.Calls(x)) && (e.Calls == nil || e.Calls(x))
			})
			if err := p.flow.Finish(ctx, lab); err != nil {
				return err
			}
			p.Length = lab.Ledger.Len() - begin
			return nil
		}()
		if err != nil {
			err = explain(ctx, lab, err)
			if !stopped() || errors.As(err, new(*sim.InvariantError)) {
				p.Ledger, err = e.keep(lab, p, "clean", err)
			}
		}
		return errors.Join(err, lab.Close())
	})
	p.Class, p.Reason = flow.Classify(e.outer, err)
	p.err = err
	if err != nil {
		return
	}
	p.Calls = calls
	var cells []planned
	cells, p.Misfits = plan(calls, entries, e.Kinds, timesOf(p.Timers), func(kind string) string { return lacking[kind] })
	e.choose(p, cells)
}

// explain puts what is broken already before the error of a step.
func explain(ctx context.Context, lab *sim.Lab, err error) error {
	if sim.IsSkip(err) {
		return err
	}
	if v := lab.Broken(context.WithoutCancel(ctx)); v != nil && !errors.As(err, new(*sim.InvariantError)) {
		return errors.Join(v, err)
	}
	return err
}

// keep writes the ledger of a failure; the error says as well if it could not.
func (e *engine) keep(lab *sim.Lab, p *Part, what string, err error) (string, error) {
	if e.Ledgers == "" || sim.IsSkip(err) {
		return "", err
	}
	name := fmt.Sprintf("sweep.%s.%s.seed%d.%s", p.Flow, p.System, p.Seed, what)
	name = strings.NewReplacer("{", "", "}", "", "@", "-", "#", "-", ",", ".", ":", "-", "+", "and").Replace(name)
	f, lost := lab.WriteLedger(e.Ledgers, name)
	if lost != nil {
		err = errors.Join(err, fmt.Errorf("its ledger was not written: %w", lost))
	}
	return f, err
}

// outcome is what a cell's run has found.
type outcome struct {
	fired    bool // all its faults
	never    string
	ledger   string
	duration time.Duration
	extra    int
}

// run runs a flow with its faults.
func (e *engine) run(ctx context.Context, p *Part, ps []planned, c *Cell, h *holder) {
	// A bubble that is left goes on writing to what it was given.
	got, lab := &outcome{}, h.lab
	stopped := func() bool { return ctx.Err() != nil } // from outside
	err := e.inside(ctx, p, func(ctx context.Context) error {
		if lab == nil || h.part != p.String() {
			if err := h.drop(); err != nil {
				return err
			}
			var err error
			if lab, err = e.ready(ctx, p); err != nil {
				return err
			}
		}
		err := e.cell(ctx, p, lab, ps, got)
		if err != nil {
			err = explain(ctx, lab, err)
			if !stopped() || errors.As(err, new(*sim.InvariantError)) {
				got.ledger, err = e.keep(lab, p, c.ID, err)
			}
		}
		if err == nil && e.Bubbles == nil {
			h.lab, h.part = lab, p.String()
			return nil
		}
		h.lab = nil
		return errors.Join(err, lab.Close())
	})
	class, reason := flow.Classify(e.outer, err)
	if stopped() && class != flow.Passed && class != flow.Invariant {
		return // nothing is known of it
	}
	if errors.Is(err, errFrozen) {
		got = &outcome{}
	}
	c.Duration, c.Extra, c.Ledger = got.duration, got.extra, got.ledger
	switch {
	case err != nil:
		c.State, c.Class, c.Reason, c.err = Failed, string(class), reason, err
		c.Replay = e.replay(p, c.ID)
	case got.fired:
		c.State = Healed
	default:
		c.State, c.Reason = NoFault, got.never
	}
}

// replay is the command that runs one cell again.
func (e *engine) replay(p *Part, id string) string {
	host := "memory"
	if e.Bubbles == nil {
		host = p.Host
	}
	return fmt.Sprintf("%s sweep %s --backend %s --host %s --seed %d --cell %s", shell.Program(), p.Flow, p.System, host, p.Seed, shell.Word(id))
}

// cell is the run itself, in a lab that is empty.
func (e *engine) cell(ctx context.Context, p *Part, lab *sim.Lab, ps []planned, got *outcome) error {
	begin := lab.Ledger.Len()
	if err := e.begin(ctx, p, lab); err != nil {
		return err
	}
	var first atomic.Pointer[time.Time] // when the first fault came
	var armed []*fault.Armed
	for _, x := range ps {
		r, err := x.rule()
		if err != nil {
			return err
		}
		r.Tell = func(call fault.Call) {
			now := time.Now()
			first.CompareAndSwap(nil, &now)
			if x.trouble.Purge > 0 {
				purgeLater(lab, call.Request, x.trouble.Purge)
			}
		}
		armed = append(armed, lab.Inject(r))
	}
	defer func() {
		for _, a := range armed {
			lab.Disarm(a)
		}
	}()
	err := p.flow.Body(ctx, lab)
	if err == nil {
		// The last call may have done its work, which ends the body, and not be over.
		err = e.pass(ctx, lab, time.Second)
	}
	var never []string
	for i, a := range armed {
		lab.Disarm(a)
		switch why := a.Missed(); {
		case a.Fired() > 0:
		case why != nil:
			never = append(never, fmt.Sprintf("%s: %v", ps[i].id(), why))
		default:
			never = append(never, ps[i].id()+": the call did not come again")
		}
	}
	got.fired = len(never) == 0
	if !got.fired {
		got.never = strings.Join(never, "; ")
	}
	if err != nil {
		return fmt.Errorf("with the fault: %w", err)
	}
	if err := lab.Converge(ctx); err != nil {
		return fmt.Errorf("after the fault: %w", err)
	}
	if err := p.flow.Finish(ctx, lab); err != nil {
		return fmt.Errorf("after the fault: %w", err)
	}
	if at := first.Load(); at != nil {
		got.duration = time.Since(*at)
	}
	got.extra = lab.Ledger.Len() - begin - p.Length
	if most := callLimit(p.Length); p.Length > 0 && got.extra > most {
		return &sim.TimeoutError{What: fmt.Sprintf("it took %d calls more than the %d that it takes with nothing wrong, %d more are allowed", got.extra, p.Length, most),
			Err: errors.New("too many calls")}
	}
	return nil
}

// callLimit is how many calls more than without a fault a flow may need: what
// retries for the longest of troubles cost, several times over. A loop that
// goes round without waiting makes thousands.
func callLimit(length int) int { return 10*length + 1000 }

// purgeLater clears a task away some time after it was found that it does not
// end.
func purgeLater(lab *sim.Lab, task string, after time.Duration) {
	ctx := fault.About(lab.Context(), "the purge of "+task)
	go func() {
		if lab.Sleep(ctx, after) == nil {
			lab.PurgeTask(task)
		}
	}()
}

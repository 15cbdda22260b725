package fault

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/csilab/csilab/sim/ledger"
)

// Interceptor is what every call on every hop passes. It is safe for
// concurrent use; a nil *Interceptor lets all calls through unrecorded.
type Interceptor struct {
	Ledger *ledger.Ledger
	Plan   *Plan

	// OnCrash kills a component. It must fence the component before it
	// returns: nothing that the dead incarnation does later has an effect.
	// It must not wait for the component's calls to end, for the crash comes
	// from inside one of them.
	OnCrash func(component string)

	// Classify gives the protocol code of an error for the ledger; nil leaves
	// it empty.
	Classify func(h ledger.Hop, err error) string

	// Turn holds a call until it is its turn; nil lets all in at once.
	Turn func(ctx context.Context, c Call)

	// Infer says for which call, by its number in the ledger, a call is made that
	// does not know it; 0 is unknown, nil never knows. It must be quick.
	Infer func(Call) uint64

	// World is what kinds act on that change the lab: each looks for the few
	// methods that it needs (WorldOf). nil where there is none.
	World any

	// Observe sees every call that is about to happen, after the rules of phase
	// Before let it pass, with its number in the ledger. It must be quick and must
	// not call back.
	Observe func(seq uint64, c Call)

	once sync.Once
	done chan struct{}
}

func (in *Interceptor) closed() chan struct{} {
	in.once.Do(func() { in.done = make(chan struct{}) })
	return in.done
}

// Close lets go every call that hangs at a rule. Call it once.
func (in *Interceptor) Close() { close(in.closed()) }

// entry is the context of a call: it carries the number of its ledger entry.
type entry struct {
	context.Context
	seq uint64
}

type seqKey struct{}

// Value implements context.Context.
func (e *entry) Value(key any) any {
	if key == (seqKey{}) {
		return e.seq
	}
	return e.Context.Value(key)
}

// CauseOf returns the ledger sequence of the call that ctx belongs to, or 0.
func CauseOf(ctx context.Context) uint64 {
	if e, ok := ctx.(*entry); ok {
		return e.seq
	}
	n, _ := ctx.Value(seqKey{}).(uint64)
	return n
}

// Await holds something that is no call, but whose order matters as that of
// calls does, until it is its turn: the delivery of an event, a connection, what
// a timer has woken.
func (in *Interceptor) Await(ctx context.Context, c Call) {
	if in != nil && in.Turn != nil {
		in.Turn(ctx, c)
	}
}

// Sleep waits for d, or until ctx ends, and then for its turn: who wakes at one
// moment with others goes on in the order of the seed. c says who it is. The error
// is the cause of ctx's end, or nil.
func (in *Interceptor) Sleep(ctx context.Context, d time.Duration, c Call) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
	in.Await(ctx, c)
	return context.Cause(ctx)
}

// Do passes op through the hop: ledger entry, rules before, op, rules after.
//
// The error is what the caller of the hop must see. errors.Is(err, ErrDrop)
// or ErrCrashed mean that the face must close the connection without a reply;
// a *Body that it must send the reply otherwise than at once and whole.
func (in *Interceptor) Do(ctx context.Context, c Call, op func(context.Context) error) error {
	if in == nil {
		return op(ctx)
	}
	if c.Cause == 0 {
		c.Cause = CauseOf(ctx)
	}
	if in.Turn != nil {
		in.Turn(ctx, c)
		if ctx.Err() != nil { // it came to an end at the moment at which it was to be made
			return ended(ctx)
		}
	}
	if c.Cause == 0 && in.Infer != nil { // what is under way, once it is its turn
		c.Cause = in.Infer(c)
	}
	var seq uint64
	if in.Ledger != nil {
		seq = in.begin(c)
		ctx = &entry{ctx, seq}
	}
	before, at, changed := in.rule(ctx, Before, c, true)
	if before == nil {
		before = changed // for the ledger
	} else {
		c.firing = at
		d, delivers := before.Do.(Delivery)
		if !delivers {
			err := before.Do.Act(ctx, in, c)
			if in.Turn != nil { // it may have held the call for a while
				in.Turn(ctx, c)
			}
			switch {
			case errors.Is(err, ErrSkip):
				in.end(seq, c.Hop, ledger.OK, nil, before)
				return nil
			case isMissed(err):
				in.Plan.missed(before, err)
				before = changed
			case err != nil:
				if before.Phase == Result {
					err = &InResult{err}
				}
				in.end(seq, c.Hop, ledger.Refused, err, before)
				return err
			}
		} else {
			op = delivered(d, in, c, op)
		}
	}
	if in.Observe != nil {
		in.Observe(seq, c)
	}
	err := op(ctx)
	if in.Turn != nil && in.Plan != nil { // what ends at the same moment must not draw in any order
		in.Turn(ctx, c)
	}
	after, at, changed := in.rule(ctx, After, c, err == nil)
	if after == nil {
		if changed == nil {
			changed = before
		}
		in.end(seq, c.Hop, outcome(err), err, changed)
		return err
	}
	c.firing = at
	ferr := after.Do.Act(ctx, in, c)
	if in.Turn != nil { // it may have held the reply for a while
		in.Turn(ctx, c)
	}
	var body *Body
	switch {
	case isMissed(ferr):
		in.Plan.missed(after, ferr)
		if changed == nil {
			changed = before
		}
		in.end(seq, c.Hop, outcome(err), err, changed)
		return err
	case ferr == nil:
		in.end(seq, c.Hop, outcome(err), err, after)
		return err
	case errors.As(ferr, &body):
		told := *body
		told.Err = err
		ferr = &told
		if !told.Cut { // it comes whole, if late
			in.end(seq, c.Hop, outcome(err), err, after)
			return ferr
		}
	}
	in.end(seq, c.Hop, ledger.MaybeApplied, ferr, after)
	return ferr
}

// rule is the rule that decides on a call in a phase, or nil, and what its draws
// are made from. Changes of the lab on the way to it are made, and changed is the
// first of them.
func (in *Interceptor) rule(ctx context.Context, ph Phase, c Call, ok bool) (r *Armed, at firing, changed *Armed) {
	r, at = in.Plan.ask(ph, c, ok, 0)
	for r != nil {
		change, is := r.Do.(*Change)
		if !is {
			return r, at, changed
		}
		c.firing = at
		if err := change.Act(ctx, in, c); err != nil {
			in.Plan.missed(r, err)
		} else if changed == nil {
			changed = r
		}
		r, at = in.Plan.ask(ph, c, ok, r.seq)
	}
	return nil, at, changed
}

// ended is the error of a call that was not made because its context had ended.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// delivered is op as a rule delivers it. It is a function of its own so that the
// calls of no rule need not live on the heap.
func delivered(d Delivery, in *Interceptor, c Call, op func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error { return d.Deliver(ctx, in, c, op) }
}

// begin writes the entry of a call.
func (in *Interceptor) begin(c Call) uint64 {
	return in.Ledger.Begin(ledger.Entry{Hop: c.Hop, Op: c.Op, Component: c.Component, Node: c.Node,
		Volume: c.Volume, Snapshot: c.Snapshot, Request: c.Request, Cause: c.Cause})
}

// end closes the entry of a call; rule is that which acted on it, or nil.
func (in *Interceptor) end(seq uint64, h ledger.Hop, o ledger.Outcome, err error, rule *Armed) {
	if in.Ledger == nil {
		return
	}
	in.Ledger.End(seq, func(e *ledger.Entry) {
		e.Outcome = o
		if err != nil {
			e.Error = err.Error()
			if in.Classify != nil {
				e.Code = in.Classify(h, err)
			}
		}
		if rule != nil {
			e.Fault = rule.Name
		}
	})
}

func outcome(err error) ledger.Outcome {
	switch {
	case err == nil:
		return ledger.OK
	case errors.Is(err, ErrDrop), errors.Is(err, ErrCrashed), errors.Is(err, ErrReplyLost):
		return ledger.MaybeApplied
	}
	return ledger.Failed
}

// wait sleeps for d, until ctx ends or the lab is closed, and then for c's turn. Where
// d ends at the moment at which ctx does, ctx has ended: also one that ends because
// somebody else, such as the caller of this call, has waited for as long.
func (in *Interceptor) wait(ctx context.Context, d time.Duration, c Call) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
			<-ctx.Done()
		}
	case <-ctx.Done():
	case <-in.closed():
		return ErrDrop
	}
	in.Await(ctx, c)
	return context.Cause(ctx)
}

package fault

import (
	"context"
	"errors"
	"sync"

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

func (in *Interceptor) crash(component string) {
	if in.OnCrash != nil {
		in.OnCrash(component)
	}
}

type seqKey struct{}

// CauseOf returns the ledger sequence of the call that ctx belongs to, or 0.
func CauseOf(ctx context.Context) uint64 {
	n, _ := ctx.Value(seqKey{}).(uint64)
	return n
}

// Await holds something that is no call, but whose order matters as that of
// calls does, until it is its turn: the delivery of an event, a connection.
func (in *Interceptor) Await(ctx context.Context, c Call) {
	if in != nil && in.Turn != nil {
		in.Turn(ctx, c)
	}
}

// Do passes op through the hop: ledger entry, rules before, op, rules after.
//
// The error is what the caller of the hop must see. errors.Is(err, ErrDrop)
// or ErrCrashed mean that the face must close the connection without a reply.
func (in *Interceptor) Do(ctx context.Context, c Call, op func(context.Context) error) error {
	if in == nil {
		return op(ctx)
	}
	if c.Cause == 0 {
		c.Cause = CauseOf(ctx)
	}
	if in.Turn != nil {
		in.Turn(ctx, c)
	}
	if c.Cause == 0 && in.Infer != nil { // what is under way, once it is its turn
		c.Cause = in.Infer(c)
	}
	var seq uint64
	if in.Ledger != nil {
		seq = in.Ledger.Begin(ledger.Entry{Hop: c.Hop, Op: c.Op, Component: c.Component, Node: c.Node,
			Volume: c.Volume, Snapshot: c.Snapshot, Request: c.Request, Cause: c.Cause})
		ctx = context.WithValue(ctx, seqKey{}, seq)
	}
	end := func(o ledger.Outcome, err error, rule *Armed) {
		if in.Ledger == nil {
			return
		}
		in.Ledger.End(seq, func(e *ledger.Entry) {
			e.Outcome = o
			if err != nil {
				e.Error = err.Error()
				if in.Classify != nil {
					e.Code = in.Classify(c.Hop, err)
				}
			}
			if rule != nil {
				e.Fault = rule.Name
			}
		})
	}
	var before *Armed
	if in.Plan != nil {
		before = in.Plan.ask(Before, c, true)
	}
	if before != nil {
		err := before.Do.Act(ctx, in, c)
		if errors.Is(err, ErrSkip) {
			end(ledger.OK, nil, before)
			return nil
		}
		if err != nil {
			end(ledger.Refused, err, before)
			return err
		}
	}
	if in.Observe != nil {
		in.Observe(seq, c)
	}
	if in.Plan == nil {
		err := op(ctx)
		end(outcome(err), err, nil)
		return err
	}
	err := op(ctx)
	if in.Turn != nil { // what ends at the same moment must not draw in any order
		in.Turn(ctx, c)
	}
	if after := in.Plan.ask(After, c, err == nil); after != nil {
		if ferr := after.Do.Act(ctx, in, c); ferr != nil {
			end(ledger.MaybeApplied, ferr, after)
			return ferr
		}
		end(outcome(err), err, after)
		return err
	}
	end(outcome(err), err, before)
	return err
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

// ErrReplyLost marks a call whose reply did not arrive for another reason than
// a rule on it: its deadline passed, or the drop of another call closed the
// connection that both shared. Whether it was applied is not known.
var ErrReplyLost = errors.New("fault: reply lost")

package fault

import (
	"context"
	"time"

	"github.com/csilab/csilab/sim/ledger"
)

// Duplicate delivers the call twice, the second time after the first is done and
// a pause: as a proxy does that tries again. The caller gets the reply of the
// second, or of the first.
func Duplicate(first bool, pause time.Duration) Action { return duplicateAction{first, pause} }

type duplicateAction struct {
	first bool
	pause time.Duration
}

// Act implements Action; in phase After there is nothing to deliver.
func (duplicateAction) Act(context.Context, *Interceptor, Call) error { return nil }

func (a duplicateAction) String() string {
	if a.first {
		return "duplicate, first reply"
	}
	return "duplicate"
}

// Deliver implements Delivery. The delivery whose reply is
// lost has a ledger entry of its own.
func (a duplicateAction) Deliver(ctx context.Context, in *Interceptor, c Call, op func(context.Context) error) error {
	again := func(ctx context.Context) error {
		c := c
		c.Cause = CauseOf(ctx)
		var seq uint64
		if in.Ledger != nil {
			seq = in.begin(c)
			ctx = &entry{ctx, seq}
		}
		err := op(ctx)
		in.end(seq, c.Hop, outcome(err), err, nil)
		return err
	}
	discarded := context.WithValue(ctx, discardKey{}, true)
	if a.first {
		err := op(ctx)
		if in.wait(ctx, a.pause, c) == nil {
			_ = again(discarded)
		}
		return err
	}
	_ = again(discarded)
	if err := in.wait(ctx, a.pause, c); err != nil {
		return err
	}
	return op(ctx)
}

// DuplicateParams are those of kind duplicate.
type DuplicateParams struct {
	Reply string        `yaml:"reply" enum:"first|second" default:"second" doc:"which reply the caller gets"`
	Pause time.Duration `yaml:"pause" unit:"duration" min:"0" max:"3600000000000" default:"0" doc:"how long after the first is done the second comes"`
}

func init() {
	Register(Kind{
		Name:   "duplicate",
		Doc:    "The call is delivered twice, the second after the first is done, as by a proxy that tries again. The delivery whose reply nobody gets has a ledger entry of its own.",
		Phases: []Phase{Before},
		Hops:   []ledger.Hop{ledger.CSI, ledger.Registration, ledger.VCenter, ledger.CSP, ledger.WSAPI},
		Fits:   notOfTask,
		Params: DuplicateParams{},
		New: Make(func(_ Rule, p DuplicateParams) (Action, error) {
			return Duplicate(p.Reply == "first", p.Pause), nil
		}),
		Samples: func(Call) []any { return []any{&DuplicateParams{}, &DuplicateParams{Reply: "first"}} },
		Example: `name: each volume is created twice
hop: vcenter
op: CnsCreateVolume
do:
  duplicate: {reply: second}`,
	})
}

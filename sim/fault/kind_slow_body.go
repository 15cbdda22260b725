package fault

import (
	"context"
	"time"

	"github.com/csilab/csilab/sim/ledger"
)

// SlowBody sends the reply in parts over d.
func SlowBody(d time.Duration) Action { return bodyAction{Body{Over: d}} }

type bodyAction struct{ body Body }

func (a bodyAction) Act(context.Context, *Interceptor, Call) error { return &a.body }
func (a bodyAction) String() string                                { return a.body.Error() }

// documents are the hops whose replies are documents of HTTP.
var documents = []ledger.Hop{ledger.VCenter, ledger.CSP, ledger.WSAPI}

// SlowBodyParams are those of kind slow-body.
type SlowBodyParams struct {
	Over time.Duration `yaml:"over" need:"yes" unit:"duration" min:"1000000" max:"86400000000000" doc:"how long it takes"`
}

func init() {
	Register(Kind{
		Name:   "slow-body",
		Doc:    "The reply's head comes at once and its body in parts: who has a deadline for the first byte only waits on.",
		Phases: []Phase{After},
		Hops:   documents,
		Fits:   notOfTask,
		Params: SlowBodyParams{},
		New: Make(func(_ Rule, p SlowBodyParams) (Action, error) {
			return SlowBody(p.Over), nil
		}),
		Samples: func(Call) []any { return []any{&SlowBodyParams{20 * time.Second}} },
		Example: `name: the provider's lists come slowly
hop: csp
op: GET /volumes
do:
  slow-body: {over: 30s}`,
	})
}

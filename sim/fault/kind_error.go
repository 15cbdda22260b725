package fault

import (
	"context"
	"fmt"
)

// Error answers with a typed error of the hop's protocol: a gRPC status error
// on csi and registration, a vim25 fault (wrapped by vcenter.Fault) on
// vcenter, a syscall.Errno on host, an apimachinery StatusError on kube.
func Error(err error) Action { return errorAction{err} }

type errorAction struct{ err error }

func (a errorAction) Act(context.Context, *Interceptor, Call) error { return a.err }
func (a errorAction) String() string                                { return fmt.Sprintf("error %v", a.err) }

// ErrorParams are those of kind error.
type ErrorParams struct {
	Code    string `yaml:"code" need:"yes" min:"1" doc:"the error in the protocol's own words: a gRPC code, a fault's type, a status of HTTP, a symbol or number of the array, an errno, a reason of the API server"`
	Message string `yaml:"message" default:"what the real system says, where known" doc:"its text"`
	Status  int    `yaml:"status" min:"400" max:"599" default:"that of the code" doc:"status of HTTP; hop wsapi only"`
	Body    string `yaml:"body" enum:"empty|html|truncated|list" default:"a good one" doc:"what the answer holds; hop csp only"`
}

func init() {
	Register(Kind{
		Name:   "error",
		Doc:    "The call is answered with an error of its protocol. Before, nothing has been done; after, it has been, and the caller is told that it has not. In phase task the task fails, in phase result the volume's result does in a task that succeeds.",
		Phases: []Phase{Before, Task, Result, After},
		Params: ErrorParams{},
		New: Make(func(at Rule, p ErrorParams) (Action, error) {
			err, wrong := NewError(at.Hop, at.Normal().Op, ErrorSpec(p))
			if wrong != nil {
				return nil, wrong
			}
			return Error(err), nil
		}),
		Samples: func(c Call) (out []any) {
			p, ok := ProtocolOf(c.Hop)
			if !ok || p.Typical == nil {
				return nil
			}
			for _, code := range p.Typical(c.Op) {
				out = append(out, &ErrorParams{Code: code})
			}
			return out
		},
		Fits: func(c Call) bool {
			_, ok := ProtocolOf(c.Hop)
			return ok
		},
		Example: `name: the volume is in use when it is detached
hop: vcenter
op: CnsDetachVolume
phase: task
first: 2
do:
  error: {code: ResourceInUse}`,
	})
}

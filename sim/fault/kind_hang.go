package fault

import "context"

// Hang holds the call until its context ends or the plan's owner closes the lab.
func Hang() Action { return hangAction{} }

type hangAction struct{}

func (hangAction) Act(ctx context.Context, in *Interceptor, _ Call) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-in.closed():
		return ErrDrop
	}
}
func (hangAction) String() string { return "hang" }

func init() {
	Register(Kind{
		Name:   "hang",
		Doc:    "The call is held until the caller gives up: before it is carried out, or with its reply ready. On a node it ends with the component that made it. A task that shall never end is kind task-never-ends.",
		Phases: []Phase{Before, After},
		Fits:   notOfTask,
		New:    func(Rule, any) (Action, error) { return Hang(), nil },
		Example: `name: staging hangs once
hop: csi
op: NodeStageVolume
nth: 1
do: hang`,
	})
}

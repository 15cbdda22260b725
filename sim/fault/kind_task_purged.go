package fault

import (
	"context"

	"github.com/csilab/csilab/sim/ledger"
)

// PurgeTask takes the task out of the inventory and its history.
func PurgeTask() Action { return purgeAction{} }

type purgeAction struct{}

func (purgeAction) Act(context.Context, *Interceptor, Call) error { return ErrPurged }
func (purgeAction) String() string                                { return "purge task" }

func init() {
	Register(Kind{
		Name:   "task-purged",
		Doc:    "The vCenter forgets the task, as one that is restored or cleans its database: who comes to wait for it is told ManagedObjectNotFound, who has seen it that it left. In phase task its work is never done, in phase after it is done.",
		Phases: []Phase{After, Task},
		Hops:   []ledger.Hop{ledger.VCenter},
		Fits:   ofTask,
		Tasks:  true,
		New:    func(Rule, any) (Action, error) { return PurgeTask(), nil },
		Example: `name: the volume is made and its task forgotten
hop: vcenter
op: CnsCreateVolume
phase: after
nth: 1
do: task-purged`,
	})
}

package fault

import (
	"strings"

	"github.com/csilab/csilab/sim/ledger"
)

// ofTask keeps to the work of tasks.
func ofTask(c Call) bool { return strings.HasPrefix(c.Op, TaskPrefix) }

func init() {
	Register(Kind{
		Name:   "task-never-ends",
		Doc:    "The task runs for ever: in phase task it never does its work, in phase after its work is done and its end is never told.",
		Phases: []Phase{Task, After},
		Hops:   []ledger.Hop{ledger.VCenter},
		Fits:   ofTask,
		Tasks:  true,
		New:    func(Rule, any) (Action, error) { return Drop(), nil },
		Example: `name: the attach is done and its task runs on
hop: vcenter
op: CnsAttachVolume
phase: after
nth: 1
do: task-never-ends`,
	})
}

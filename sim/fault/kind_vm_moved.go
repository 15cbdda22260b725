package fault

import (
	"context"

	"github.com/csilab/csilab/sim/ledger"
)

// mover is a world whose nodes are VMs that move between hosts.
type mover interface {
	machines
	MoveVM(node string) error
}

// MoveVM migrates a node's VM to another host; "" is that of the call.
func MoveVM(node string) Action {
	return NewChange(named("move VM", node), 0, func(_ context.Context, in *Interceptor, c Call) (func(), error) {
		w, err := WorldOf[mover](in, "move VMs")
		if err != nil {
			return nil, err
		}
		name, err := nodeOf(in, w, node, c)
		if err != nil {
			return nil, err
		}
		return nil, w.MoveVM(name)
	})
}

func init() {
	Register(Kind{
		Name:   "vm-moved",
		Doc:    "A node's VM is migrated to another host of its cluster while it runs, with its disks attached. There is nothing to heal.",
		Phases: []Phase{Before, After},
		Params: NodeParams{},
		Needs:  NeedsWorld[mover]("move VMs"),
		New:    Make(func(_ Rule, p NodeParams) (Action, error) { return MoveVM(p.Node), nil }),
		Sweep: func(c Call, _ Phase) bool {
			return notOfTask(c) && (c.Op == "CnsAttachVolume" || c.Op == "CnsDetachVolume") ||
				c.Hop == ledger.CSI && (c.Op == "ControllerPublishVolume" || c.Op == "ControllerUnpublishVolume")
		},
		Example: `name: the VM moves as its disk comes
hop: vcenter
op: CnsAttachVolume
phase: after
nth: 1
do: vm-moved`,
	})
}

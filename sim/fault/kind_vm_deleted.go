package fault

import "context"

// destroyer is a world whose nodes' machines can be deleted.
type destroyer interface {
	machines
	DestroyVM(ctx context.Context, node string) error
}

// DestroyVM deletes a node's machine; "" is that of the call.
func DestroyVM(node string) Action {
	return NewChange(named("delete VM", node), 0, func(ctx context.Context, in *Interceptor, c Call) (func(), error) {
		w, err := WorldOf[destroyer](in, "delete VMs")
		if err != nil {
			return nil, err
		}
		name, err := nodeOf(in, w, node, c)
		if err != nil {
			return nil, err
		}
		return nil, w.DestroyVM(ctx, name)
	})
}

func init() {
	Register(Kind{
		Name:   "vm-deleted",
		Doc:    "A node's VM is deleted: power, memory and hardware are gone, the volumes stay on the backend. There is no way back.",
		Phases: []Phase{Before, After},
		Params: NodeParams{},
		Needs:  NeedsWorld[destroyer]("delete VMs"),
		New:    Make(func(_ Rule, p NodeParams) (Action, error) { return DestroyVM(p.Node), nil }),
		Example: `name: the VM goes while its disk is detached
hop: vcenter
op: CnsDetachVolume
nth: 1
do: vm-deleted`,
	})
}

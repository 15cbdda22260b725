package fault

import "context"

// hostRemover is a world whose arrays have hosts for nodes.
type hostRemover interface {
	machines
	// RemoveHostEntry deletes the host that stands for a node on each array, with
	// its exports.
	RemoveHostEntry(node string) error
}

// RemoveHostEntry deletes a node's host on the arrays; "" is that of the call.
func RemoveHostEntry(node string) Action {
	return NewChange(named("remove host entry", node), 0, func(_ context.Context, in *Interceptor, c Call) (func(), error) {
		w, err := WorldOf[hostRemover](in, "remove host entries")
		if err != nil {
			return nil, err
		}
		name, err := nodeOf(in, w, node, c)
		if err != nil {
			return nil, err
		}
		return nil, w.RemoveHostEntry(name)
	})
}

func init() {
	Register(Kind{
		Name:   "host-entry-removed",
		Doc:    "Somebody deletes the host that stands for a node at the arrays' consoles, with all of its exports: the node's I/O to all of its volumes fails. There is no way back but to publish them anew. Beside csilab serve node is the name of the host, e.g. iqn-node-a.",
		Phases: []Phase{Before, After},
		Params: NodeParams{},
		Needs:  NeedsWorld[hostRemover]("remove host entries"),
		New:    Make(func(_ Rule, p NodeParams) (Action, error) { return RemoveHostEntry(p.Node), nil }),
		// After a publish nobody would publish again: Kubernetes takes it for attached.
		Sweep: func(c Call, p Phase) bool { return p == Before && unpublishing(c) },
		Example: `name: the host is gone when an export is to be removed
hop: csi
op: ControllerUnpublishVolume
nth: 1
do: host-entry-removed`,
	})
}

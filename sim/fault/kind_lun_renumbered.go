package fault

import (
	"context"

	"github.com/csilab/csilab/sim/ledger"
)

// RenumberLUN gives a volume's export to a node another LUN; "" is what the call
// is about.
func RenumberLUN(volume, node string) Action {
	return NewChange(named("renumber LUN", volume, node), 0, func(_ context.Context, in *Interceptor, c Call) (func(), error) {
		w, id, name, err := attachment[exporter](in, "renumber LUNs", volume, node, c)
		if err != nil {
			return nil, err
		}
		return nil, w.RenumberLUN(id, name)
	})
}

func init() {
	Register(Kind{
		Name:   "lun-renumbered",
		Doc:    "A volume's export to a node gets another LUN, one that is free: the node's devices at the old one answer no more, and no call has told anybody the new one. There is no way back.",
		Phases: []Phase{Before, After},
		Params: AttachmentParams{},
		Needs:  NeedsWorld[exporter]("renumber LUNs"),
		New:    Make(func(_ Rule, p AttachmentParams) (Action, error) { return RenumberLUN(p.Volume, p.Node), nil }),
		Sweep:  func(c Call, p Phase) bool { return p == Before && unpublishing(c) && c.Hop != ledger.WSAPI },
		Example: `name: the LUN is another one when the node looks for it
hop: csi
op: NodeStageVolume
nth: 1
do: lun-renumbered`,
	})
}

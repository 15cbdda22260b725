package fault

import (
	"context"
	"time"
)

// blanker is a world whose disks read as zeros.
type blanker interface {
	volumes
	machines
	// BlankDevice makes a volume read as zeros on a node although it holds data.
	BlankDevice(volume, node string) (heal func(), err error)
}

// BlankDevice makes a volume read as zeros on a node; "" is what the call is
// about.
func BlankDevice(volume, node string, last time.Duration) Action {
	return NewChange(named("blank device", volume, node), last, func(_ context.Context, in *Interceptor, c Call) (func(), error) {
		w, id, name, err := attachment[blanker](in, "blank devices", volume, node, c)
		if err != nil {
			return nil, err
		}
		return w.BlankDevice(id, name)
	})
}

func init() {
	Register(Kind{
		Name:   "device-blank",
		Doc:    "A volume reads as zeros on a node although it holds data: a driver that has nothing else to go by takes it for new and formats it. It heals: what was not written over is there again. No sweep and no soak has it, for no driver can tell.",
		Phases: []Phase{Before, After},
		Params: AttachmentLastParams{},
		Needs:  NeedsWorld[blanker]("blank devices"),
		New: Make(func(_ Rule, p AttachmentLastParams) (Action, error) {
			return BlankDevice(p.Volume, p.Node, p.For), nil
		}),
		Example: `name: the disk reads as zeros
hop: csi
op: NodePublishVolume
phase: after
nth: 1
do:
  device-blank: {for: 1m}`,
	})
}

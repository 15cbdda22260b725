package fault

import (
	"context"
	"time"

	"github.com/csilab/csilab/sim/ledger"
)

// silencer is a world whose disks say nothing.
type silencer interface {
	volumes
	machines
	// SilentDevice makes a volume's disk on a node say that it has no size.
	SilentDevice(volume, node string) (heal func(), err error)
}

// SilentDevice makes a volume's disk on a node say that it has no size; "" is
// what the call is about.
func SilentDevice(volume, node string, last time.Duration) Action {
	return NewChange(named("silence device", volume, node), last, func(_ context.Context, in *Interceptor, c Call) (func(), error) {
		w, id, name, err := attachment[silencer](in, "silence devices", volume, node, c)
		if err != nil {
			return nil, err
		}
		return w.SilentDevice(id, name)
	})
}

func init() {
	Register(Kind{
		Name:   "device-silent",
		Doc:    "A volume's disk on a node says that it has no size, and reads of it return nothing: not an error, and no data either. It heals with a look at its size.",
		Phases: []Phase{Before, After},
		Params: AttachmentLastParams{},
		Needs:  NeedsWorld[silencer]("silence devices"),
		New: Make(func(_ Rule, p AttachmentLastParams) (Action, error) {
			return SilentDevice(p.Volume, p.Node, p.For), nil
		}),
		// Later a pod reads and writes.
		Sweep: func(c Call, p Phase) bool { return p == Before && c.Hop == ledger.CSI && c.Op == "NodeStageVolume" },
		Example: `name: the disk is there and says nothing
hop: csi
op: NodeStageVolume
nth: 1
do:
  device-silent: {for: 2m}`,
	})
}

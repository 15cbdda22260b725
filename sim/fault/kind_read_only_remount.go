package fault

import (
	"context"
	"time"

	"github.com/csilab/csilab/sim/ledger"
)

// remounter is a world whose nodes' kernels remount filesystems.
type remounter interface {
	volumes
	machines
	// MakeReadOnly makes what is mounted from a volume on a node read-only.
	MakeReadOnly(volume, node string) (heal func(), err error)
}

// MakeReadOnly remounts a volume read-only on a node; "" is what the call is about.
func MakeReadOnly(volume, node string, last time.Duration) Action {
	return NewChange(named("remount read-only", volume, node), last, func(_ context.Context, in *Interceptor, c Call) (func(), error) {
		w, id, name, err := attachment[remounter](in, "remount filesystems", volume, node, c)
		if err != nil {
			return nil, err
		}
		return w.MakeReadOnly(id, name)
	})
}

func init() {
	Register(Kind{
		Name:   "read-only-remount",
		Doc:    "What is mounted from a volume on a node becomes read-only, as a kernel does with a filesystem after an error. It heals by an unmount and a new mount, or in place.",
		Phases: []Phase{Before, After},
		Params: AttachmentLastParams{},
		Needs:  NeedsWorld[remounter]("remount filesystems"),
		New: Make(func(_ Rule, p AttachmentLastParams) (Action, error) {
			return MakeReadOnly(p.Volume, p.Node, p.For), nil
		}),
		// Before that a pod writes.
		Sweep: func(c Call, p Phase) bool {
			return p == Before && c.Hop == ledger.CSI && (c.Op == "NodeUnpublishVolume" || c.Op == "NodeUnstageVolume")
		},
		Example: `name: the filesystem is read-only once the pod has it
hop: csi
op: NodePublishVolume
phase: after
nth: 1
do:
  read-only-remount: {for: 5m}`,
	})
}

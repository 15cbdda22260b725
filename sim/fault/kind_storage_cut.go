package fault

import (
	"context"
	"time"

	"github.com/csilab/csilab/sim/ledger"
)

// cutter is a world whose nodes lose their storage.
type cutter interface {
	machines
	// CutStorage takes all of a node's paths to its disks; calls go on.
	CutStorage(node string) (heal func(), err error)
}

// CutStorage takes a node's paths to its disks; "" is that of the call.
func CutStorage(node string, last time.Duration) Action {
	return NewChange(named("cut storage", node), last, func(_ context.Context, in *Interceptor, c Call) (func(), error) {
		w, err := WorldOf[cutter](in, "cut storage")
		if err != nil {
			return nil, err
		}
		name, err := nodeOf(in, w, node, c)
		if err != nil {
			return nil, err
		}
		return w.CutStorage(name)
	})
}

// NodeLastParams are those of kinds that act on a node for a while.
type NodeLastParams struct {
	Node string        `yaml:"node" default:"that of the call, or of its caller" doc:"name of the node"`
	For  time.Duration `yaml:"for" unit:"duration" min:"0" max:"86400000000000" default:"until the rule is cleared or the faulty phase ends" doc:"how long it lasts"`
}

func init() {
	Register(Kind{
		Name:   "storage-cut",
		Doc:    "A node loses all paths to its disks; calls go on. On arrays its sessions break and its I/O waits or fails as multipath has it, on vSphere it fails. It heals as the cable is back.",
		Phases: []Phase{Before, After},
		Params: NodeLastParams{},
		Needs:  NeedsWorld[cutter]("cut storage"),
		New:    Make(func(_ Rule, p NodeLastParams) (Action, error) { return CutStorage(p.Node, p.For), nil }),
		// Before a pod writes: what was not synced is lost with the filesystem.
		Sweep: func(c Call, p Phase) bool { return p == Before && c.Hop == ledger.CSI && c.Op == "NodeStageVolume" },
		Example: `name: the node loses its paths when it stages
hop: csi
op: NodeStageVolume
nth: 1
do:
  storage-cut: {for: 5m}`,
	})
}

package fault

import (
	"context"
	"fmt"
	"time"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/ledger"
)

// failer is a world whose disks fail.
type failer interface {
	volumes
	machines
	// FailIO makes a node's I/O to a range of a volume fail; length 0 is to its end.
	FailIO(volume, node string, offset, length int64, dir disk.Direction) (heal func(), err error)
}

// FailIO makes a node's I/O to a range of a volume fail, in bytes; length 0 is to
// its end, volume and node "" are what the call is about.
func FailIO(volume, node string, offset, length int64, dir disk.Direction, last time.Duration) Action {
	return NewChange(named(fmt.Sprintf("fail I/O at %d+%d", offset, length), volume, node), last, func(_ context.Context, in *Interceptor, c Call) (func(), error) {
		w, id, name, err := attachment[failer](in, "fail I/O", volume, node, c)
		if err != nil {
			return nil, err
		}
		return w.FailIO(id, name, offset, length, dir)
	})
}

// IOErrorParams are those of kind io-error.
type IOErrorParams struct {
	Volume string        `yaml:"volume" default:"that of the call, or of the calls that it is made for" doc:"the volume: its id in CSI, its claim or its PersistentVolume"`
	Node   string        `yaml:"node" default:"that of the call, or of its caller" doc:"name of the node"`
	Offset int64         `yaml:"offset" min:"0" default:"0" doc:"where the range begins, in bytes"`
	Length int64         `yaml:"length" min:"0" default:"to the volume's end" doc:"how long it is, in bytes"`
	Of     string        `yaml:"of" enum:"all|reads|writes" default:"all" doc:"what fails"`
	For    time.Duration `yaml:"for" unit:"duration" min:"0" max:"86400000000000" default:"until the rule is cleared or the faulty phase ends" doc:"how long it lasts"`
}

func init() {
	Register(Kind{
		Name:   "io-error",
		Doc:    "A node's reads and writes of a range of a volume fail with EIO. It heals as a disk whose errors were those of its path.",
		Phases: []Phase{Before, After},
		Params: IOErrorParams{},
		Needs:  NeedsWorld[failer]("fail I/O"),
		New: Make(func(_ Rule, p IOErrorParams) (Action, error) {
			dir := map[string]disk.Direction{"reads": disk.Reads, "writes": disk.Writes}[p.Of]
			return FailIO(p.Volume, p.Node, p.Offset, p.Length, dir, p.For), nil
		}),
		// Later a pod reads and writes.
		Sweep: func(c Call, p Phase) bool { return p == Before && c.Hop == ledger.CSI && c.Op == "NodeStageVolume" },
		Example: `name: the superblock can't be read
hop: csi
op: NodeStageVolume
nth: 1
do:
  io-error: {length: 4096, of: reads, for: 2m}`,
	})
}

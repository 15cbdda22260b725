package fault

import (
	"context"
	"fmt"
	"time"

	"github.com/csilab/csilab/sim/ledger"
)

// delayer is a world whose nodes see disks late.
type delayer interface {
	machines
	// LateDevices makes disks show up on a node only so long after the storage has
	// attached them.
	LateDevices(node string, by time.Duration) (heal func(), err error)
}

// LateDevices makes disks show up late on a node; "" is that of the call.
func LateDevices(node string, by, last time.Duration) Action {
	return NewChange(named(fmt.Sprintf("devices late by %s", by), node), last, func(_ context.Context, in *Interceptor, c Call) (func(), error) {
		w, err := WorldOf[delayer](in, "delay devices")
		if err != nil {
			return nil, err
		}
		name, err := nodeOf(in, w, node, c)
		if err != nil {
			return nil, err
		}
		return w.LateDevices(name, by)
	})
}

// DeviceLateParams are those of kind device-late.
type DeviceLateParams struct {
	Node string        `yaml:"node" default:"that of the call, or of its caller" doc:"name of the node"`
	By   time.Duration `yaml:"by" unit:"duration" min:"1000000" max:"86400000000000" default:"30s" doc:"how long after the storage has attached it a disk shows up"`
	For  time.Duration `yaml:"for" unit:"duration" min:"0" max:"86400000000000" default:"until the rule is cleared or the faulty phase ends" doc:"how long it lasts: for disks that are attached meanwhile"`
}

func init() {
	Register(Kind{
		Name:   "device-late",
		Doc:    "Disks show up on a node only a while after the storage has attached them; on arrays after the node first looked for them. Those that it has stay. It heals: the next ones come at once.",
		Phases: []Phase{Before, After},
		Params: DeviceLateParams{},
		Needs:  NeedsWorld[delayer]("delay devices"),
		New: Make(func(_ Rule, p DeviceLateParams) (Action, error) {
			if p.By == 0 {
				p.By = 30 * time.Second
			}
			return LateDevices(p.Node, p.By, p.For), nil
		}),
		Sweep: func(c Call, p Phase) bool {
			return p == Before && c.Hop == ledger.CSI && c.Op == "ControllerPublishVolume"
		},
		Example: `name: the disk shows up late
hop: csi
op: ControllerPublishVolume
nth: 1
do:
  device-late: {by: 45s, for: 10m}`,
	})
}

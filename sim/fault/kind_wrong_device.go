package fault

import (
	"context"
	"time"
)

// swapper is a world whose devices can be taken for each other.
type swapper interface {
	volumes
	machines
	// WrongDevice makes a node find another volume where it looks for one.
	WrongDevice(ctx context.Context, volume, other, node string) (heal func(), err error)
}

// WrongDevice exchanges two volumes at a node; volume and node "" are those of the
// call.
func WrongDevice(volume, other, node string, last time.Duration) Action {
	return NewChange(named("exchange devices", volume, other, node), last, func(ctx context.Context, in *Interceptor, c Call) (func(), error) {
		w, id, name, err := attachment[swapper](in, "exchange devices", volume, node, c)
		if err != nil {
			return nil, err
		}
		by, err := volumeOf(in, w, other, Call{})
		if err != nil {
			return nil, err
		}
		return w.WrongDevice(ctx, id, by, name)
	})
}

// WrongDeviceParams are those of kind wrong-device.
type WrongDeviceParams struct {
	Volume string        `yaml:"volume" default:"that of the call, or of the calls that it is made for" doc:"the volume that is looked for"`
	Other  string        `yaml:"other" need:"yes" min:"1" doc:"the volume that is found: its id in CSI, its claim or its PersistentVolume; it must be attached to the node too"`
	Node   string        `yaml:"node" default:"that of the call, or of its caller" doc:"name of the node"`
	For    time.Duration `yaml:"for" unit:"duration" min:"0" max:"86400000000000" default:"until the rule is cleared or the faulty phase ends" doc:"how long it lasts"`
}

func init() {
	Register(Kind{
		Name:   "wrong-device",
		Doc:    "A node finds another volume where it looks for one: the names of two disks are exchanged, or on arrays their LUNs while the node keeps its devices. It heals by exchanging them back.",
		Phases: []Phase{Before, After},
		Params: WrongDeviceParams{},
		Needs:  NeedsWorld[swapper]("exchange devices"),
		New: Make(func(_ Rule, p WrongDeviceParams) (Action, error) {
			return WrongDevice(p.Volume, p.Other, p.Node, p.For), nil
		}),
		Example: `name: the node finds the other disk
hop: csi
op: NodeStageVolume
nth: 1
do:
  wrong-device: {other: default/other, for: 1m}`,
	})
}

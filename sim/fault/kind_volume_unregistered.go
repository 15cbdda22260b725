package fault

import (
	"context"
	"time"

	"github.com/csilab/csilab/sim/ledger"
)

// registry is a world whose backend has volumes on record.
type registry interface {
	volumes
	// Unregister takes a volume off the records; its disk stays. heal registers it
	// again, nil where nothing does.
	Unregister(ctx context.Context, id string) (heal func(), err error)
}

// Unregister takes a volume off the records of CNS; "" is that of the call.
func Unregister(volume string, last time.Duration) Action {
	return NewChange(named("unregister volume", volume), last, func(ctx context.Context, in *Interceptor, c Call) (func(), error) {
		w, err := WorldOf[registry](in, "unregister volumes")
		if err != nil {
			return nil, err
		}
		id, err := volumeOf(in, w, volume, c)
		if err != nil {
			return nil, err
		}
		return w.Unregister(ctx, id)
	})
}

// VolumeLastParams are those of kinds that act on a volume for a while.
type VolumeLastParams struct {
	Volume string        `yaml:"volume" default:"that of the call, or of the calls that it is made for" doc:"the volume: its id in CSI, its claim or its PersistentVolume"`
	For    time.Duration `yaml:"for" unit:"duration" min:"0" max:"86400000000000" default:"until the rule is cleared or the faulty phase ends" doc:"how long it lasts"`
}

func init() {
	Register(Kind{
		Name:   "volume-unregistered",
		Doc:    "A volume is off the records of CNS, attached or not; its disk stays where it is. It heals as somebody registers the disk again; beside csilab serve that is yours to do.",
		Phases: []Phase{Before, After},
		Params: VolumeLastParams{},
		Needs:  NeedsWorld[registry]("unregister volumes"),
		New:    Make(func(_ Rule, p VolumeLastParams) (Action, error) { return Unregister(p.Volume, p.For), nil }),
		// A deletion finds nothing to delete, and the disk is nobody's then.
		Sweep: func(c Call, p Phase) bool {
			return p == Before && c.Hop == ledger.CSI && (c.Op == "ControllerPublishVolume" || c.Op == "ControllerUnpublishVolume")
		},
		Example: `name: the volume is off the records when it is attached
hop: csi
op: ControllerPublishVolume
nth: 1
do:
  volume-unregistered: {for: 3m}`,
	})
}

package fault

import (
	"context"
	"strings"
)

// volumeLoser is a world whose volumes somebody can delete.
type volumeLoser interface {
	volumes
	LoseVolume(ctx context.Context, id string) error
}

// LoseVolume deletes a volume behind the driver's back; "" is that of the call.
func LoseVolume(volume string) Action {
	return NewChange(named("delete volume", volume), 0, func(ctx context.Context, in *Interceptor, c Call) (func(), error) {
		w, err := WorldOf[volumeLoser](in, "delete volumes")
		if err != nil {
			return nil, err
		}
		id, err := volumeOf(in, w, volume, c)
		if err != nil {
			return nil, err
		}
		return nil, w.LoseVolume(ctx, id)
	})
}

// VolumeParams are those of kinds that act on a volume.
type VolumeParams struct {
	Volume string `yaml:"volume" default:"that of the call, or of the calls that it is made for" doc:"the volume: its id in CSI, its claim or its PersistentVolume"`
}

func init() {
	Register(Kind{
		Name:   "volume-deleted",
		Doc:    "Somebody deletes a volume behind the driver's back, with its content, snapshots and exports, whatever uses it. On vSphere it is the disk that goes, out of its VM first: CNS has the volume on record still. There is no way back.",
		Phases: []Phase{Before, After},
		Params: VolumeParams{},
		Needs:  NeedsWorld[volumeLoser]("delete volumes"),
		New:    Make(func(_ Rule, p VolumeParams) (Action, error) { return LoseVolume(p.Volume), nil }),
		// Anywhere else the pod has nothing to come back to.
		Sweep: func(c Call, p Phase) bool {
			return p == Before && (c.Op == "DeleteVolume" || c.Op == "CnsDeleteVolume" || strings.HasPrefix(c.Op, "DELETE /volumes/"))
		},
		Example: `name: the volume is gone when it is deleted
hop: csi
op: DeleteVolume
nth: 1
do: volume-deleted`,
	})
}

package fault

import (
	"context"
	"fmt"
	"time"
)

// flipper is a world whose media can be spoiled.
type flipper interface {
	volumes
	// FlipBits changes a byte of a volume on its medium by exclusive or with mask.
	FlipBits(volume string, offset int64, mask byte) error
}

// FlipBits changes a byte of a volume on its medium; volume "" is that of the
// call. It heals by the same flip.
func FlipBits(volume string, offset int64, mask byte, last time.Duration) Action {
	return NewChange(named(fmt.Sprintf("flip bits %#02x of byte %d", mask, offset), volume), last, func(_ context.Context, in *Interceptor, c Call) (func(), error) {
		w, err := WorldOf[flipper](in, "spoil data")
		if err != nil {
			return nil, err
		}
		id, err := volumeOf(in, w, volume, c)
		if err != nil {
			return nil, err
		}
		// The volume may be gone by then.
		return func() { _ = w.FlipBits(id, offset, mask) }, w.FlipBits(id, offset, mask)
	})
}

// BitFlipParams are those of kind bit-flip.
type BitFlipParams struct {
	Volume string        `yaml:"volume" default:"that of the call, or of the calls that it is made for" doc:"the volume: its id in CSI, its claim or its PersistentVolume"`
	Offset int64         `yaml:"offset" min:"0" default:"0" doc:"which byte of it, from 0"`
	Mask   int           `yaml:"mask" min:"1" max:"255" default:"1" doc:"which of the byte's bits, as a number"`
	For    time.Duration `yaml:"for" unit:"duration" min:"0" max:"86400000000000" default:"until the rule is cleared or the faulty phase ends" doc:"how long it lasts"`
}

func init() {
	Register(Kind{
		Name:   "bit-flip",
		Doc:    "Bits of a byte of a volume change on its medium, for whoever reads it: no checksum of a disk tells. It heals by the same flip, which spoils the byte if somebody has written it meanwhile.",
		Phases: []Phase{Before, After},
		Params: BitFlipParams{},
		Needs:  NeedsWorld[flipper]("spoil data"),
		New: Make(func(_ Rule, p BitFlipParams) (Action, error) {
			if p.Mask == 0 {
				p.Mask = 1
			}
			return FlipBits(p.Volume, p.Offset, byte(p.Mask), p.For), nil
		}),
		Example: `name: a bit of the superblock is wrong when it is mounted
hop: csi
op: NodeStageVolume
nth: 1
do:
  bit-flip: {offset: 1080, mask: 4, for: 5m}`,
	})
}

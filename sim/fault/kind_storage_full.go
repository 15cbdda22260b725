package fault

import (
	"context"
	"fmt"
	"time"

	"github.com/csilab/csilab/sim/ledger"
)

// filler is a world whose storage others fill.
type filler interface {
	// FillStorage leaves so many bytes for new volumes in each CPG or datastore.
	FillStorage(freeBytes int64) (heal func(), err error)
}

// FillStorage leaves so many bytes free, 0 and more.
func FillStorage(free int64, last time.Duration) Action {
	return NewChange(fmt.Sprintf("fill storage but for %d bytes", free), last, func(_ context.Context, in *Interceptor, _ Call) (func(), error) {
		w, err := WorldOf[filler](in, "fill storage")
		if err != nil {
			return nil, err
		}
		return w.FillStorage(free)
	})
}

// StorageFullParams are those of kind storage-full.
type StorageFullParams struct {
	Free int64         `yaml:"free" min:"0" default:"0" doc:"what is left in each CPG or datastore, in bytes"`
	For  time.Duration `yaml:"for" unit:"duration" min:"0" max:"86400000000000" default:"until the rule is cleared or the faulty phase ends" doc:"how long it lasts"`
}

func init() {
	Register(Kind{
		Name:   "storage-full",
		Doc:    "Others take the space of all datastores or CPGs: nothing new fits, and thin volumes can't grow. It heals as they give it back.",
		Phases: []Phase{Before, After},
		Params: StorageFullParams{},
		Needs:  NeedsWorld[filler]("fill storage"),
		New:    Make(func(_ Rule, p StorageFullParams) (Action, error) { return FillStorage(p.Free, p.For), nil }),
		// What is written to a thin volume needs space too: not while a pod writes.
		Sweep: func(c Call, p Phase) bool {
			return p == Before && (c.Hop == ledger.CSI && c.Op == "CreateVolume" || c.Op == "CnsCreateVolume" || c.Op == "POST /volumes" || c.Op == "POST /volumes/{name}")
		},
		Example: `name: no space when a volume is made
hop: csi
op: CreateVolume
nth: 1
do:
  storage-full: {free: 1048576, for: 10m}`,
	})
}

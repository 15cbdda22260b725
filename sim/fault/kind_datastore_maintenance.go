package fault

import (
	"context"
	"time"

	"github.com/csilab/csilab/sim/ledger"
)

// datastores is a world whose datastores go into maintenance.
type datastores interface {
	// MaintainDatastore puts one into maintenance mode; "" is all.
	MaintainDatastore(name string) (heal func(), err error)
}

// MaintainDatastore puts a datastore into maintenance mode; "" is all.
func MaintainDatastore(name string, last time.Duration) Action {
	return NewChange(named("maintenance of datastore", name), last, func(_ context.Context, in *Interceptor, _ Call) (func(), error) {
		w, err := WorldOf[datastores](in, "maintain datastores")
		if err != nil {
			return nil, err
		}
		return w.MaintainDatastore(name)
	})
}

// DatastoreParams are those of kind datastore-maintenance.
type DatastoreParams struct {
	Datastore string        `yaml:"datastore" default:"all" doc:"name of the datastore"`
	For       time.Duration `yaml:"for" unit:"duration" min:"0" max:"86400000000000" default:"until the rule is cleared or the faulty phase ends" doc:"how long it lasts"`
}

func init() {
	Register(Kind{
		Name:   "datastore-maintenance",
		Doc:    "A datastore goes into maintenance mode: nothing new is placed there. It heals by leaving it.",
		Phases: []Phase{Before, After},
		Params: DatastoreParams{},
		Needs:  NeedsWorld[datastores]("maintain datastores"),
		New:    Make(func(_ Rule, p DatastoreParams) (Action, error) { return MaintainDatastore(p.Datastore, p.For), nil }),
		Sweep: func(c Call, p Phase) bool {
			return p == Before && (c.Hop == ledger.CSI && c.Op == "CreateVolume" || c.Op == "CnsCreateVolume")
		},
		Example: `name: maintenance begins when a volume is made
hop: csi
op: CreateVolume
nth: 1
do:
  datastore-maintenance: {for: 10m}`,
	})
}

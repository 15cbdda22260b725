package fault

import (
	"context"
	"strings"

	"github.com/csilab/csilab/sim/ledger"
)

// snapshotLoser is a world whose snapshots somebody can delete.
type snapshotLoser interface {
	snapshots
	LoseSnapshot(ctx context.Context, id string) error
}

// LoseSnapshot deletes a snapshot behind the driver's back; "" is that of the call.
func LoseSnapshot(snapshot string) Action {
	return NewChange(named("delete snapshot", snapshot), 0, func(ctx context.Context, in *Interceptor, c Call) (func(), error) {
		w, err := WorldOf[snapshotLoser](in, "delete snapshots")
		if err != nil {
			return nil, err
		}
		id, err := snapshotOf(in, w, snapshot, c)
		if err != nil {
			return nil, err
		}
		return nil, w.LoseSnapshot(ctx, id)
	})
}

// SnapshotParams are those of kind snapshot-removed.
type SnapshotParams struct {
	Snapshot string `yaml:"snapshot" default:"that of the call, or of the calls that it is made for" doc:"the snapshot: its id in CSI or its VolumeSnapshot"`
}

func init() {
	Register(Kind{
		Name:   "snapshot-removed",
		Doc:    "Somebody deletes a snapshot behind the driver's back. There is no way back.",
		Phases: []Phase{Before, After},
		Params: SnapshotParams{},
		Needs:  NeedsWorld[snapshotLoser]("delete snapshots"),
		New:    Make(func(_ Rule, p SnapshotParams) (Action, error) { return LoseSnapshot(p.Snapshot), nil }),
		Sweep: func(c Call, p Phase) bool {
			return p == Before && (c.Hop == ledger.CSI && c.Op == "DeleteSnapshot" || c.Op == "CnsDeleteSnapshots" || c.Hop == ledger.CSP && strings.HasPrefix(c.Op, "DELETE /snapshots"))
		},
		Example: `name: the snapshot is gone when it is deleted
hop: csi
op: DeleteSnapshot
nth: 1
do: snapshot-removed`,
	})
}

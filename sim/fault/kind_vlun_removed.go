package fault

import (
	"context"
	"strings"
	"time"

	"github.com/csilab/csilab/sim/ledger"
)

// exporter is a world whose volumes are exported to nodes.
type exporter interface {
	volumes
	machines
	// RemoveVLUN ends a volume's exports to a node.
	RemoveVLUN(ctx context.Context, volume, node string) error
	// RenumberLUN gives the export another LUN that is free.
	RenumberLUN(volume, node string) error
}

// RemoveVLUN ends a volume's exports to a node; "" is what the call is about.
func RemoveVLUN(volume, node string) Action {
	return NewChange(named("remove VLUN", volume, node), 0, func(ctx context.Context, in *Interceptor, c Call) (func(), error) {
		w, id, name, err := attachment[exporter](in, "remove VLUNs", volume, node, c)
		if err != nil {
			return nil, err
		}
		return nil, w.RemoveVLUN(ctx, id, name)
	})
}

// attachment is a volume at a node in a world.
func attachment[T interface {
	volumes
	machines
}](in *Interceptor, can, volume, node string, c Call) (w T, id, name string, err error) {
	if w, err = WorldOf[T](in, can); err != nil {
		return w, "", "", err
	}
	if id, err = volumeOf(in, w, volume, c); err != nil {
		return w, "", "", err
	}
	name, err = nodeOf(in, w, node, c)
	return w, id, name, err
}

// AttachmentParams are those of kinds that act on a volume at a node.
type AttachmentParams struct {
	Volume string `yaml:"volume" default:"that of the call, or of the calls that it is made for" doc:"the volume: its id in CSI, its claim or its PersistentVolume"`
	Node   string `yaml:"node" default:"that of the call, or of its caller" doc:"name of the node"`
}

// AttachmentLastParams are those of kinds that act on a volume at a node for a
// while.
type AttachmentLastParams struct {
	Volume string        `yaml:"volume" default:"that of the call, or of the calls that it is made for" doc:"the volume: its id in CSI, its claim or its PersistentVolume"`
	Node   string        `yaml:"node" default:"that of the call, or of its caller" doc:"name of the node"`
	For    time.Duration `yaml:"for" unit:"duration" min:"0" max:"86400000000000" default:"until the rule is cleared or the faulty phase ends" doc:"how long it lasts"`
}

// unpublishing says whether a call ends an export.
func unpublishing(c Call) bool {
	return c.Hop == ledger.CSI && c.Op == "ControllerUnpublishVolume" || c.Hop == ledger.CSP && strings.HasSuffix(c.Op, "/actions/unpublish") ||
		c.Hop == ledger.WSAPI && strings.HasPrefix(c.Op, "DELETE /vluns")
}

func init() {
	Register(Kind{
		Name:   "vlun-removed",
		Doc:    "Somebody removes a volume's VLUNs to a node at the array's console: the node's I/O to it fails. There is no way back but to publish the volume anew.",
		Phases: []Phase{Before, After},
		Params: AttachmentParams{},
		Needs:  NeedsWorld[exporter]("remove VLUNs"),
		New:    Make(func(_ Rule, p AttachmentParams) (Action, error) { return RemoveVLUN(p.Volume, p.Node), nil }),
		// After a publish nobody would publish again: Kubernetes takes it for attached.
		Sweep: func(c Call, p Phase) bool { return p == Before && unpublishing(c) },
		Example: `name: the VLUN is gone when it is to be removed
hop: csi
op: ControllerUnpublishVolume
nth: 1
do: vlun-removed`,
	})
}

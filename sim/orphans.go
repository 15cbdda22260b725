package sim

import (
	"context"

	"github.com/csilab/csilab/sim/invariant"
)

// Orphans are what the backend has that no object owns, now: the leaks that
// nobody but an administrator can clean up.
func (l *Lab) Orphans(ctx context.Context) (out []string) {
	for _, v := range invariant.Check(l.World(ctx, true), nil) {
		if v.ID == "I2" {
			out = append(out, v.Detail)
		}
	}
	return out
}

// ExportedTo lists the nodes that the backend lets have a claim's volume.
func (l *Lab) ExportedTo(pvc string) (nodes []string) {
	id := l.VolumeID(pvc)
	for _, x := range l.backend.exports() {
		if x.VolumeID == id {
			nodes = append(nodes, x.Node)
		}
	}
	return nodes
}

package sim

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
)

// MakeVolume makes a volume on the backend by hand: no driver and no Kubernetes
// object knows it. It returns the id that CSI would use.
func (l *Lab) MakeVolume(ctx context.Context, name, size string) (string, error) {
	q, err := resource.ParseQuantity(size)
	if err != nil {
		return "", fmt.Errorf("size %q: %w", size, err)
	}
	id, err := l.backend.makeVolume(ctx, name, l.rounded(q.Value()))
	if err != nil {
		return "", fmt.Errorf("make volume %s: %w", name, err)
	}
	return id, nil
}

// RemoveVolume deletes a volume on the backend by hand, with its content.
func (l *Lab) RemoveVolume(ctx context.Context, id string) error {
	if err := l.backend.removeVolume(ctx, id); err != nil {
		return fmt.Errorf("remove volume %s: %w", id, err)
	}
	return nil
}

// OnBackend says whether the backend has a volume, or a snapshot as its
// handle names it.
func (l *Lab) OnBackend(id string) bool {
	return slices.ContainsFunc(l.backend.volumes(), func(v volume) bool { return v.id == id }) ||
		slices.ContainsFunc(l.backend.snapshots(), func(s snapshot) bool { return s.id == id })
}

// BackendVolumes is how many volumes the backend has.
func (l *Lab) BackendVolumes() int { return len(l.backend.volumes()) }

// RotatePassword changes the driver's password at the backend and ends all
// sessions. The driver does not know the new one before Redeploy.
func (l *Lab) RotatePassword(ctx context.Context, password string) error {
	return l.backend.rotatePassword(ctx, password)
}

// Redeploy gives the driver the present password, as its deployment does: in
// the configuration that a new life of it reads, or in the Secret of its
// requests.
func (l *Lab) Redeploy(ctx context.Context) error { return l.backend.redeploy(ctx) }

// KillSessions ends all sessions at the backend.
func (l *Lab) KillSessions() { l.backend.killSessions() }

// PullDisk takes a claim's volume from a node by hand and waits until the node
// has lost it.
func (l *Lab) PullDisk(ctx context.Context, node, pvc string) error {
	n := l.node(node)
	if n == nil {
		return fmt.Errorf("no node %q", node)
	}
	return l.backend.pullDisk(ctx, n, l.VolumeID(pvc))
}

// Smallest is the size of the smallest volume that the backend has, in bytes.
func (l *Lab) Smallest() int64 { return l.facts().least }

// rounded is the size that the backend makes of one, in bytes.
func (l *Lab) rounded(bytes int64) int64 {
	f := l.facts()
	return max(f.least, (bytes+f.unit-1)/f.unit*f.unit)
}

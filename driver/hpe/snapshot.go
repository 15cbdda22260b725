package hpe

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/csilab/csilab/driver/controller"
	"github.com/csilab/csilab/driver/hpe/csp"
)

// clonePrefix is that of snapshots which exist for the making of a clone only.
// Upstream follows it with the time, by which a second try doesn't find what
// the first has made; here the clone's name follows.
const clonePrefix = "snap-for-clone-"

func cloneSnapshot(volume string) string { return clonePrefix + volume }

// CreateSnapshot implements controller.Backend.
func (b *Backend) CreateSnapshot(ctx context.Context, r controller.CreateSnapshot) (controller.Snapshot, error) {
	s, err := b.session(ctx)
	if err != nil {
		return controller.Snapshot{}, err
	}
	v, err := s.Volume(ctx, r.Volume)
	if csp.StatusOf(err) == http.StatusNotFound {
		return controller.Snapshot{}, controller.Errorf(controller.NotFound, "source volume %q doesn't exist", r.Volume)
	}
	if err != nil {
		return controller.Snapshot{}, fail(ctx, err, nil, "source volume %s", r.Volume)
	}
	if err := notFiles(v, "source_volume_id"); err != nil {
		return controller.Snapshot{}, err
	}
	q := csp.Snapshot{Name: r.Name, Volume: v.ID, Description: r.Parameters[paramDescription]}
	for k, x := range r.Parameters {
		if k == paramDescription || strings.HasPrefix(k, foreign) {
			continue
		}
		if q.Config == nil {
			q.Config = map[string]any{}
		}
		q.Config[snake(k)] = x
	}
	snap, err := b.makeSnapshot(ctx, s, q)
	if err != nil {
		return controller.Snapshot{}, err
	}
	return b.snapshot(snap, v.Size), nil
}

// makeSnapshot cuts a snapshot, unless the volume has one of the name.
func (b *Backend) makeSnapshot(ctx context.Context, s *csp.Session, q csp.Snapshot) (csp.Snapshot, error) {
	snap, found, err := s.SnapshotNamed(ctx, q.Volume, q.Name)
	if err != nil {
		return snap, fail(ctx, err, nil, "looking for snapshot %s", q.Name)
	}
	if found {
		return snap, nil
	}
	snap, err = s.CreateSnapshot(ctx, q)
	if err == nil {
		if snap.ID == "" {
			return snap, controller.Errorf(controller.Unavailable, "snapshot %s: the provider's reply has no id", q.Name)
		}
		return snap, nil
	}
	if csp.Unknown(err) || csp.StatusOf(err) == http.StatusConflict {
		if snap, found, lookup := s.SnapshotNamed(ctx, q.Volume, q.Name); lookup == nil && found {
			return snap, nil
		}
	}
	// A conflict with none of that name on the volume: it is another's.
	return snap, fail(ctx, err, kinds{http.StatusConflict: controller.AlreadyExists}, "snapshot %s of volume %s", q.Name, q.Volume)
}

func (b *Backend) snapshot(x csp.Snapshot, size csp.Bytes) controller.Snapshot {
	return controller.Snapshot{ID: x.ID, Volume: x.Volume, Bytes: int64(cmp.Or(x.Size, size)), Created: time.Unix(x.Created, 0), Ready: x.Ready}
}

// DeleteSnapshot implements controller.Backend.
func (b *Backend) DeleteSnapshot(ctx context.Context, id string) error {
	s, err := b.session(ctx)
	if err != nil {
		return err
	}
	if err := s.DeleteSnapshot(ctx, id); err != nil {
		return fail(ctx, err, kinds{http.StatusBadRequest: controller.InUse, http.StatusNotFound: controller.Internal}, "snapshot %s", id)
	}
	return nil
}

// forgetCloneSnapshot removes the snapshot that a clone was made from, now that
// the clone is done. Where the clone lives on it the provider says no, and it
// goes with the source.
func (b *Backend) forgetCloneSnapshot(ctx context.Context, s *csp.Session, source, clone string) {
	snap, found, err := s.SnapshotNamed(ctx, source, cloneSnapshot(clone))
	if err == nil && found {
		err = s.DeleteSnapshot(ctx, snap.ID)
	}
	if err != nil {
		b.log.InfoContext(ctx, "the snapshot that a clone was made from stays", "source", source, "clone", clone, "err", err)
	}
}

// deleteCloneSnapshots removes a volume's snapshots that were made for clones,
// before it is deleted itself, or refuses when it has others.
func (b *Backend) deleteCloneSnapshots(ctx context.Context, s *csp.Session, volume string, snaps []csp.Snapshot) error {
	own := func(x csp.Snapshot) bool { return strings.HasPrefix(x.Name, clonePrefix) }
	for _, x := range snaps {
		if !own(x) {
			return controller.Errorf(controller.InUse, "volume %s has snapshots, such as %s", volume, cmp.Or(x.Name, x.ID))
		}
	}
	// The reply to "are there any" needn't have all.
	all, err := s.Snapshots(ctx, volume)
	if err != nil {
		return fail(ctx, err, nil, "snapshots of volume %s", volume)
	}
	for _, x := range all {
		if !own(x) {
			return controller.Errorf(controller.InUse, "volume %s has snapshots, such as %s", volume, cmp.Or(x.Name, x.ID))
		}
	}
	for _, x := range all {
		if err := s.DeleteSnapshot(ctx, x.ID); err != nil {
			return fail(ctx, err, kinds{http.StatusBadRequest: controller.InUse}, "snapshot %s, which a clone was made from", x.ID)
		}
	}
	return nil
}

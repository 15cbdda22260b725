package csp

import (
	"context"
	"net/http"
	"net/url"
)

func snapshotPath(id string) string { return "/snapshots/" + url.PathEscape(id) }

// Snapshot returns a snapshot by id.
func (s *Session) Snapshot(ctx context.Context, id string) (x Snapshot, err error) {
	err = s.do(ctx, call{method: http.MethodGet, path: snapshotPath(id)}.again(), &x)
	return x, err
}

// SnapshotNamed returns the snapshot of a volume that has a name; ok is false
// when there is none.
func (s *Session) SnapshotNamed(ctx context.Context, volume, name string) (x Snapshot, ok bool, err error) {
	return named(ctx, s, "/snapshots", url.Values{"name": {name}, "volume_id": {volume}}, func(x Snapshot) bool {
		return x.Name == name && (x.Volume == "" || x.Volume == volume)
	})
}

// Snapshots returns all snapshots, or those of a volume. None is no error, nor
// is a volume that doesn't exist.
func (s *Session) Snapshots(ctx context.Context, volume string) (xs []Snapshot, err error) {
	q := url.Values{}
	if volume != "" {
		q.Set("volume_id", volume)
	}
	return s.snapshots(ctx, q)
}

// HasSnapshots returns the snapshots that a volume can't be deleted for.
func (s *Session) HasSnapshots(ctx context.Context, volume string) (xs []Snapshot, err error) {
	return s.snapshots(ctx, url.Values{"volume_id": {volume}, "mode": {"exists"}})
}

func (s *Session) snapshots(ctx context.Context, q url.Values) (xs []Snapshot, err error) {
	err = s.do(ctx, call{method: http.MethodGet, path: "/snapshots", query: q}.again(), &xs)
	if StatusOf(err) == http.StatusNotFound {
		return nil, nil
	}
	return xs, err
}

// CreateSnapshot cuts a snapshot. It is not sent again: see Unknown and
// SnapshotNamed.
func (s *Session) CreateSnapshot(ctx context.Context, x Snapshot) (got Snapshot, err error) {
	err = s.do(ctx, call{method: http.MethodPost, path: "/snapshots", body: x}, &got)
	return got, err
}

// DeleteSnapshot removes a snapshot. A missing one is no error, as with DeleteVolume.
func (s *Session) DeleteSnapshot(ctx context.Context, id string) error {
	err := s.do(ctx, call{method: http.MethodDelete, path: snapshotPath(id)}.again(), nil)
	if StatusOf(err) == http.StatusNotFound {
		if _, lookup := s.Snapshot(ctx, id); StatusOf(lookup) == http.StatusNotFound {
			return nil
		}
	}
	return err
}

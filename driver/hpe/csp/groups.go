package csp

import (
	"context"
	"net/http"
	"net/url"
)

// VolumeGroup returns a volume group by id.
func (s *Session) VolumeGroup(ctx context.Context, id string) (g VolumeGroup, err error) {
	err = s.do(ctx, call{method: http.MethodGet, path: "/volume_groups/" + url.PathEscape(id)}.again(), &g)
	return g, err
}

// VolumeGroupNamed returns the volume group of a name; ok is false when there
// is none.
func (s *Session) VolumeGroupNamed(ctx context.Context, name string) (g VolumeGroup, ok bool, err error) {
	return named(ctx, s, "/volume_groups", url.Values{"name": {name}}, func(g VolumeGroup) bool { return g.Name == name })
}

// CreateVolumeGroup makes a volume group without volumes. It is not sent again.
func (s *Session) CreateVolumeGroup(ctx context.Context, g VolumeGroup) (got VolumeGroup, err error) {
	err = s.do(ctx, call{method: http.MethodPost, path: "/volume_groups", body: g}, &got)
	return got, err
}

// DeleteVolumeGroup removes a volume group. A missing one is no error.
func (s *Session) DeleteVolumeGroup(ctx context.Context, id string) error {
	err := s.do(ctx, call{method: http.MethodDelete, path: "/volume_groups/" + url.PathEscape(id)}.again(), nil)
	if StatusOf(err) == http.StatusNotFound {
		return nil
	}
	return err
}

// SnapshotGroup returns a snapshot group by id.
func (s *Session) SnapshotGroup(ctx context.Context, id string) (g SnapshotGroup, err error) {
	err = s.do(ctx, call{method: http.MethodGet, path: "/snapshot_groups/" + url.PathEscape(id)}.again(), &g)
	return g, err
}

// SnapshotGroupNamed returns the snapshot group of a name, of a volume group or
// of all; ok is false when there is none.
func (s *Session) SnapshotGroupNamed(ctx context.Context, group, name string) (g SnapshotGroup, ok bool, err error) {
	q := url.Values{}
	if group != "" {
		q.Set("volume_group_id", group)
	}
	return named(ctx, s, "/snapshot_groups", q, func(g SnapshotGroup) bool { return g.Name == name })
}

// CreateSnapshotGroup cuts snapshots of all volumes of a volume group at one
// moment. It is not sent again.
func (s *Session) CreateSnapshotGroup(ctx context.Context, g SnapshotGroup) (got SnapshotGroup, err error) {
	err = s.do(ctx, call{method: http.MethodPost, path: "/snapshot_groups", body: g}, &got)
	return got, err
}

// DeleteSnapshotGroup removes a snapshot group with its snapshots. A missing one
// is no error.
func (s *Session) DeleteSnapshotGroup(ctx context.Context, id string) error {
	err := s.do(ctx, call{method: http.MethodDelete, path: "/snapshot_groups/" + url.PathEscape(id)}.again(), nil)
	if StatusOf(err) == http.StatusNotFound {
		return nil
	}
	return err
}

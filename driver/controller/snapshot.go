package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// CreateSnapshot cuts a snapshot of a volume.
func (s *server) CreateSnapshot(ctx context.Context, r *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	ctx = WithSecrets(ctx, r.GetSecrets())
	snap, err := s.createSnapshot(ctx, r)
	if err != nil {
		return nil, toStatus(err)
	}
	return &csi.CreateSnapshotResponse{Snapshot: toSnapshot(snap)}, nil
}

func (s *server) createSnapshot(ctx context.Context, r *csi.CreateSnapshotRequest) (snap Snapshot, err error) {
	if r.GetSourceVolumeId() == "" {
		return snap, required("source_volume_id")
	}
	if err := checkName(r.GetName()); err != nil {
		return snap, err
	}
	req := CreateSnapshot{Name: r.GetName(), Volume: r.GetSourceVolumeId()}
	for k, v := range r.GetParameters() {
		// The snapshotter adds names of objects when asked to.
		switch {
		case isObjectName(k):
		case !s.can.SnapshotParameters:
			return snap, Errorf(Invalid, "parameters: %q: unknown, a snapshot takes none", k)
		default:
			if req.Parameters == nil {
				req.Parameters = map[string]string{}
			}
			req.Parameters[k] = v
		}
	}
	err = s.claimed("snapshot "+r.GetName(), "CreateSnapshot", func() error {
		return s.claimed(r.GetSourceVolumeId(), "CreateSnapshot", func() (err error) {
			snap, err = s.backend.CreateSnapshot(ctx, req)
			return err
		})
	})
	return snap, err
}

// isObjectName reports the keys of --extra-create-metadata,
// kubernetes-csi/external-snapshotter README.
func isObjectName(key string) bool {
	switch key {
	case "csi.storage.k8s.io/volumesnapshot/name", "csi.storage.k8s.io/volumesnapshot/namespace", "csi.storage.k8s.io/volumesnapshotcontent/name":
		return true
	}
	return false
}

func toSnapshot(s Snapshot) *csi.Snapshot {
	return &csi.Snapshot{SnapshotId: s.ID, SourceVolumeId: s.Volume, SizeBytes: s.Bytes, CreationTime: timestamppb.New(s.Created), ReadyToUse: s.Ready}
}

// DeleteSnapshot removes a snapshot.
func (s *server) DeleteSnapshot(ctx context.Context, r *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	ctx = WithSecrets(ctx, r.GetSecrets())
	if r.GetSnapshotId() == "" {
		return nil, toStatus(required("snapshot_id"))
	}
	err := s.claimed(r.GetSnapshotId(), "DeleteSnapshot", func() error { return s.backend.DeleteSnapshot(ctx, r.GetSnapshotId()) })
	if err != nil {
		return nil, toStatus(err)
	}
	return &csi.DeleteSnapshotResponse{}, nil
}

// ListSnapshots lists snapshots, of one volume, or one.
func (s *server) ListSnapshots(ctx context.Context, r *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	ctx = WithSecrets(ctx, r.GetSecrets())
	p, err := checkPage(r.GetMaxEntries(), r.GetStartingToken())
	if err != nil {
		return nil, toStatus(err)
	}
	ss, next, err := s.backend.Snapshots(ctx, SnapshotFilter{ID: r.GetSnapshotId(), Volume: r.GetSourceVolumeId()}, p)
	if err != nil {
		return nil, toStatus(err)
	}
	out := &csi.ListSnapshotsResponse{NextToken: next}
	for _, snap := range ss {
		out.Entries = append(out.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: toSnapshot(snap)})
	}
	return out, nil
}

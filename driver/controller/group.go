package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Grouper is a Backend that cuts snapshots of several volumes at one moment.
// Each method is idempotent, as those of a Backend are.
type Grouper interface {
	// CreateGroupSnapshot cuts a snapshot of each volume at one moment, or
	// returns what has the name. AlreadyExists when that is of other volumes,
	// InUse when the volumes can't be taken together, NotFound for a missing one.
	CreateGroupSnapshot(ctx context.Context, r CreateGroupSnapshot) (GroupSnapshot, error)
	// GroupSnapshot returns a group by id, or NotFound.
	GroupSnapshot(ctx context.Context, id string) (GroupSnapshot, error)
	// DeleteGroupSnapshot removes a group with its snapshots. A missing one is no
	// error.
	DeleteGroupSnapshot(ctx context.Context, id string) error
}

// CreateGroupSnapshot asks for snapshots of several volumes.
type CreateGroupSnapshot struct {
	Name string
	// Volumes are ids, sorted, at least one.
	Volumes    []string
	Parameters map[string]string
}

// GroupSnapshot is snapshots of one moment.
type GroupSnapshot struct {
	ID        string
	Created   time.Time
	Snapshots []Snapshot
}

// NewGroups returns the GroupController service, which a backend that is a
// Grouper has. It shares nothing with the Controller service but the backend.
func NewGroups(g Grouper) csi.GroupControllerServer { return &groups{backend: g} }

type groups struct {
	csi.UnimplementedGroupControllerServer
	backend  Grouper
	inFlight InFlight
}

// GroupControllerGetCapabilities implements csi.GroupControllerServer.
func (g *groups) GroupControllerGetCapabilities(context.Context, *csi.GroupControllerGetCapabilitiesRequest) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	return &csi.GroupControllerGetCapabilitiesResponse{Capabilities: []*csi.GroupControllerServiceCapability{{
		Type: &csi.GroupControllerServiceCapability_Rpc{Rpc: &csi.GroupControllerServiceCapability_RPC{
			Type: csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT}}}}}, nil
}

// CreateVolumeGroupSnapshot implements csi.GroupControllerServer.
func (g *groups) CreateVolumeGroupSnapshot(ctx context.Context, r *csi.CreateVolumeGroupSnapshotRequest) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	ctx = WithSecrets(ctx, r.GetSecrets())
	x, err := g.create(ctx, r)
	if err != nil {
		return nil, toStatus(err)
	}
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: toGroup(x)}, nil
}

func (g *groups) create(ctx context.Context, r *csi.CreateVolumeGroupSnapshotRequest) (x GroupSnapshot, err error) {
	if err := checkName(r.GetName()); err != nil {
		return x, err
	}
	if len(r.GetSourceVolumeIds()) == 0 {
		return x, required("source_volume_ids")
	}
	q := CreateGroupSnapshot{Name: r.GetName(), Volumes: slices.Sorted(slices.Values(r.GetSourceVolumeIds())), Parameters: map[string]string{}}
	for i, v := range q.Volumes {
		switch {
		case v == "":
			return x, required(fmt.Sprintf("source_volume_ids[%d]", i))
		case i > 0 && v == q.Volumes[i-1]:
			return x, Errorf(Invalid, "source_volume_ids: %q is there twice", v)
		}
	}
	for k, v := range r.GetParameters() {
		// The snapshotter adds names of objects when asked to.
		if !strings.HasPrefix(k, "csi.storage.k8s.io/") {
			q.Parameters[k] = v
		}
	}
	subjects := []string{"group snapshot " + q.Name}
	for _, v := range q.Volumes {
		subjects = append(subjects, "volume "+v)
	}
	for _, s := range subjects {
		release, err := g.inFlight.Claim(s, "CreateVolumeGroupSnapshot")
		if err != nil {
			return x, err
		}
		defer release()
	}
	return g.backend.CreateGroupSnapshot(ctx, q)
}

// GetVolumeGroupSnapshot implements csi.GroupControllerServer.
func (g *groups) GetVolumeGroupSnapshot(ctx context.Context, r *csi.GetVolumeGroupSnapshotRequest) (*csi.GetVolumeGroupSnapshotResponse, error) {
	if r.GetGroupSnapshotId() == "" {
		return nil, toStatus(required("group_snapshot_id"))
	}
	x, err := g.backend.GroupSnapshot(WithSecrets(ctx, r.GetSecrets()), r.GetGroupSnapshotId())
	if err == nil {
		err = matches(x, r.GetSnapshotIds())
	}
	if err != nil {
		return nil, toStatus(err)
	}
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: toGroup(x)}, nil
}

// DeleteVolumeGroupSnapshot implements csi.GroupControllerServer.
func (g *groups) DeleteVolumeGroupSnapshot(ctx context.Context, r *csi.DeleteVolumeGroupSnapshotRequest) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	id := r.GetGroupSnapshotId()
	if id == "" {
		return nil, toStatus(required("group_snapshot_id"))
	}
	if err := g.delete(WithSecrets(ctx, r.GetSecrets()), id, r.GetSnapshotIds()); err != nil {
		return nil, toStatus(err)
	}
	return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
}

func (g *groups) delete(ctx context.Context, id string, snapshots []string) error {
	release, err := g.inFlight.Claim("group snapshot "+id, "DeleteVolumeGroupSnapshot")
	if err != nil {
		return err
	}
	defer release()
	if len(snapshots) > 0 {
		switch x, err := g.backend.GroupSnapshot(ctx, id); {
		case KindOf(err) == NotFound && err != nil:
			return nil
		case err != nil:
			return err
		default:
			// A part of it may be gone, by an attempt that broke off.
			for _, s := range x.Snapshots {
				if !slices.Contains(snapshots, s.ID) {
					return Errorf(Invalid, "snapshot_ids: group snapshot %s has snapshot %s too", id, s.ID)
				}
			}
		}
	}
	return g.backend.DeleteGroupSnapshot(ctx, id)
}

// matches compares a group's snapshots with those that the caller knows, where
// it names any.
func matches(x GroupSnapshot, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	var has []string
	for _, s := range x.Snapshots {
		has = append(has, s.ID)
	}
	slices.Sort(has)
	if want := slices.Sorted(slices.Values(ids)); !slices.Equal(has, want) {
		return Errorf(Invalid, "snapshot_ids: group snapshot %s has %s, the request names %s", x.ID, strings.Join(has, ", "), strings.Join(want, ", "))
	}
	return nil
}

func toGroup(x GroupSnapshot) *csi.VolumeGroupSnapshot {
	out := &csi.VolumeGroupSnapshot{GroupSnapshotId: x.ID, CreationTime: timestamppb.New(x.Created), ReadyToUse: true}
	for _, s := range x.Snapshots {
		one := toSnapshot(s)
		one.GroupSnapshotId = x.ID
		out.Snapshots = append(out.Snapshots, one)
		out.ReadyToUse = out.ReadyToUse && s.Ready
	}
	return out
}

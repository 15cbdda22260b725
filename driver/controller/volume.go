package controller

import (
	"context"
	"maps"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// CreateVolume makes an empty volume, or one from a snapshot or a volume.
func (s *server) CreateVolume(ctx context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	ctx = WithSecrets(ctx, r.GetSecrets())
	v, err := s.createVolume(ctx, r)
	if err != nil {
		return nil, toStatus(err)
	}
	out := toVolume(v)
	if v.Snapshot != "" || v.Source != "" {
		out.ContentSource = r.GetVolumeContentSource()
	}
	return &csi.CreateVolumeResponse{Volume: out}, nil
}

func (s *server) createVolume(ctx context.Context, r *csi.CreateVolumeRequest) (v Volume, err error) {
	if err := checkName(r.GetName()); err != nil {
		return v, err
	}
	access, err := s.accessOf(r.GetVolumeCapabilities())
	if err != nil {
		return v, err
	}
	if len(r.GetMutableParameters()) > 0 && !s.can.Modify {
		return v, Errorf(Invalid, "mutable_parameters: not supported")
	}
	req := CreateVolume{Name: r.GetName(), Parameters: r.GetParameters(), Mutable: r.GetMutableParameters(), Access: access,
		Requisite: segments(r.GetAccessibilityRequirements().GetRequisite()),
		Preferred: segments(r.GetAccessibilityRequirements().GetPreferred())}
	if req.Bytes, req.MinBytes, req.LimitBytes, err = s.sizeOf(r.GetCapacityRange()); err != nil {
		return v, err
	}
	switch src := r.GetVolumeContentSource(); t := src.GetType().(type) {
	case nil:
		if src != nil {
			return v, required("volume_content_source.type")
		}
		if req.Bytes == 0 {
			if req.Bytes, err = s.defaultSize(req.LimitBytes); err != nil {
				return v, err
			}
		}
	case *csi.VolumeContentSource_Snapshot:
		if req.Snapshot = t.Snapshot.GetSnapshotId(); req.Snapshot == "" {
			return v, required("volume_content_source.snapshot.snapshot_id")
		}
	case *csi.VolumeContentSource_Volume:
		if !s.can.Clones {
			return v, Errorf(Invalid, "volume_content_source: a volume as source is not supported, a snapshot is")
		}
		if req.Source = t.Volume.GetVolumeId(); req.Source == "" {
			return v, required("volume_content_source.volume.volume_id")
		}
	default:
		return v, Errorf(Invalid, "volume_content_source.type: unknown, allowed: snapshot, volume")
	}
	release, err := s.inFlight.Claim("volume "+r.GetName(), "CreateVolume")
	if err != nil {
		return v, err
	}
	defer release()
	v, err = s.backend.CreateVolume(ctx, req)
	if err != nil {
		return v, err
	}
	if req.LimitBytes > 0 && v.Bytes > req.LimitBytes {
		return v, Errorf(OutOfRange, "capacity_range.limit_bytes %d: volume %s has %d", req.LimitBytes, v.ID, v.Bytes)
	}
	return v, nil
}

// segments returns nil for none: an empty list is not the same as no list on
// the wire, and no topology means reachable from everywhere.
func segments(ts []*csi.Topology) []map[string]string {
	var out []map[string]string
	for _, t := range ts {
		if len(t.GetSegments()) > 0 {
			out = append(out, t.GetSegments())
		}
	}
	return out
}

func toVolume(v Volume) *csi.Volume {
	out := &csi.Volume{VolumeId: v.ID, CapacityBytes: v.Bytes, VolumeContext: maps.Clone(v.Context)}
	for _, seg := range v.Segments {
		out.AccessibleTopology = append(out.AccessibleTopology, &csi.Topology{Segments: seg})
	}
	return out
}

// DeleteVolume removes a volume.
func (s *server) DeleteVolume(ctx context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	ctx = WithSecrets(ctx, r.GetSecrets())
	if r.GetVolumeId() == "" {
		return nil, toStatus(required("volume_id"))
	}
	err := s.claimed(r.GetVolumeId(), "DeleteVolume", func() error { return s.backend.DeleteVolume(ctx, r.GetVolumeId()) })
	if err != nil {
		return nil, toStatus(err)
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// claimed runs f while no other call works on the subject.
func (s *server) claimed(subject, op string, f func() error) error {
	release, err := s.inFlight.Claim(subject, op)
	if err != nil {
		return err
	}
	defer release()
	return f()
}

// ControllerPublishVolume attaches a volume to a node.
func (s *server) ControllerPublishVolume(ctx context.Context, r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	ctx = WithSecrets(ctx, r.GetSecrets())
	pc, err := s.publish(ctx, r)
	if err != nil {
		return nil, toStatus(err)
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: pc}, nil
}

func (s *server) publish(ctx context.Context, r *csi.ControllerPublishVolumeRequest) (pc map[string]string, err error) {
	switch {
	case r.GetVolumeId() == "":
		return nil, required("volume_id")
	case r.GetNodeId() == "":
		return nil, required("node_id")
	}
	access, err := s.access(r.GetVolumeCapability(), "volume_capability")
	if err != nil {
		return nil, err
	}
	if r.GetReadonly() && !s.can.ReadOnly {
		return nil, Errorf(Invalid, "readonly: not supported, PUBLISH_READONLY is not among the capabilities")
	}
	err = s.claimed(r.GetVolumeId(), "ControllerPublishVolume", func() (err error) {
		pc, err = s.backend.Attach(ctx, Attach{Volume: r.GetVolumeId(), Node: r.GetNodeId(), Access: access, ReadOnly: r.GetReadonly(), Context: r.GetVolumeContext()})
		return err
	})
	return pc, err
}

// ControllerUnpublishVolume detaches a volume from a node, or from all when
// the request names none.
func (s *server) ControllerUnpublishVolume(ctx context.Context, r *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	ctx = WithSecrets(ctx, r.GetSecrets())
	if r.GetVolumeId() == "" {
		return nil, toStatus(required("volume_id"))
	}
	err := s.claimed(r.GetVolumeId(), "ControllerUnpublishVolume", func() error {
		return s.backend.Detach(ctx, r.GetVolumeId(), r.GetNodeId())
	})
	if err != nil {
		return nil, toStatus(err)
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

// ControllerExpandVolume grows a volume. The node then grows what is on it,
// where there is a file system.
func (s *server) ControllerExpandVolume(ctx context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	ctx = WithSecrets(ctx, r.GetSecrets())
	bytes, err := s.expand(ctx, r)
	if err != nil {
		return nil, toStatus(err)
	}
	// A block volume needs the node too: its kernel learns the new size there.
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: bytes, NodeExpansionRequired: true}, nil
}

func (s *server) expand(ctx context.Context, r *csi.ControllerExpandVolumeRequest) (got int64, err error) {
	switch {
	case r.GetVolumeId() == "":
		return 0, required("volume_id")
	case r.GetCapacityRange() == nil:
		return 0, required("capacity_range")
	case r.GetCapacityRange().GetRequiredBytes() == 0 && r.GetCapacityRange().GetLimitBytes() == 0:
		return 0, required("capacity_range.required_bytes")
	}
	if c := r.GetVolumeCapability(); c != nil {
		if _, err := s.access(c, "volume_capability"); err != nil {
			return 0, err
		}
	}
	bytes, _, limit, err := s.sizeOf(r.GetCapacityRange())
	if err != nil {
		return 0, err
	}
	err = s.claimed(r.GetVolumeId(), "ControllerExpandVolume", func() (err error) {
		got, err = s.backend.Expand(ctx, r.GetVolumeId(), bytes)
		return err
	})
	if err == nil && limit > 0 && got > limit {
		return 0, Errorf(OutOfRange, "capacity_range.limit_bytes %d: volume %s has %d, and doesn't shrink", limit, r.GetVolumeId(), got)
	}
	return got, err
}

// ValidateVolumeCapabilities confirms what a volume can do.
func (s *server) ValidateVolumeCapabilities(ctx context.Context, r *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	ctx = WithSecrets(ctx, r.GetSecrets())
	switch {
	case r.GetVolumeId() == "":
		return nil, toStatus(required("volume_id"))
	case len(r.GetVolumeCapabilities()) == 0:
		return nil, toStatus(required("volume_capabilities"))
	}
	v, err := s.backend.Volume(ctx, r.GetVolumeId())
	if err != nil {
		return nil, toStatus(err)
	}
	access, err := s.accessOf(r.GetVolumeCapabilities())
	if err == nil {
		err = v.Check(access)
	}
	if err != nil {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: err.Error()}, nil
	}
	if len(r.GetMutableParameters()) > 0 && !s.can.Modify {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: "mutable_parameters: not supported"}, nil
	}
	// A context may have more keys than ours: the provisioner adds its own.
	for k, want := range v.Context {
		if got, ok := r.GetVolumeContext()[k]; len(r.GetVolumeContext()) > 0 && ok && got != want {
			return &csi.ValidateVolumeCapabilitiesResponse{Message: "volume_context." + k + " is " + got + ", the volume's is " + want}, nil
		}
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.GetVolumeContext(), VolumeCapabilities: r.GetVolumeCapabilities(), Parameters: r.GetParameters()}}, nil
}

// ControllerGetVolume returns a volume and the nodes that hold it.
func (s *server) ControllerGetVolume(ctx context.Context, r *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	if !s.can.Nodes {
		return nil, unable("GET_VOLUME")
	}
	if r.GetVolumeId() == "" {
		return nil, toStatus(required("volume_id"))
	}
	v, err := s.backend.Volume(ctx, r.GetVolumeId())
	if err != nil {
		return nil, toStatus(err)
	}
	nodes, err := s.backend.Nodes(ctx, r.GetVolumeId())
	if err != nil {
		return nil, toStatus(err)
	}
	return &csi.ControllerGetVolumeResponse{Volume: toVolume(v), Status: &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: nodes}}, nil
}

// ListVolumes lists volumes and the nodes that hold them.
func (s *server) ListVolumes(ctx context.Context, r *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	p, err := checkPage(r.GetMaxEntries(), r.GetStartingToken())
	if err != nil {
		return nil, toStatus(err)
	}
	vs, next, err := s.backend.Volumes(ctx, p)
	if err != nil {
		return nil, toStatus(err)
	}
	out := &csi.ListVolumesResponse{NextToken: next}
	for _, v := range vs {
		e := &csi.ListVolumesResponse_Entry{Volume: toVolume(v)}
		if s.can.Nodes {
			e.Status = &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: v.Nodes}
		}
		out.Entries = append(out.Entries, e)
	}
	return out, nil
}

// GetCapacity returns the space for new volumes.
func (s *server) GetCapacity(ctx context.Context, r *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	if !s.can.Capacity {
		return nil, unable("GET_CAPACITY")
	}
	if caps := r.GetVolumeCapabilities(); len(caps) > 0 {
		if _, err := s.accessOf(caps); err != nil {
			// No storage satisfies them.
			return &csi.GetCapacityResponse{}, nil
		}
	}
	c, err := s.backend.Capacity(ctx, r.GetParameters(), r.GetAccessibleTopology().GetSegments())
	if err != nil {
		return nil, toStatus(err)
	}
	out := &csi.GetCapacityResponse{AvailableCapacity: c.Available, MinimumVolumeSize: wrapperspb.Int64(s.cfg.MinBytes)}
	if c.MaxVolume > 0 {
		out.MaximumVolumeSize = wrapperspb.Int64(min(c.MaxVolume, s.cfg.MaxBytes))
	}
	return out, nil
}

// unable says that the service lacks a capability.
func unable(capability string) error {
	return status.Error(codes.Unimplemented, capability+" is not among the capabilities")
}

// ControllerModifyVolume changes parameters of a volume.
func (s *server) ControllerModifyVolume(ctx context.Context, r *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	m, ok := s.backend.(Modifier)
	if !ok || !s.can.Modify {
		return nil, unable("MODIFY_VOLUME")
	}
	if r.GetVolumeId() == "" {
		return nil, toStatus(required("volume_id"))
	}
	ctx = WithSecrets(ctx, r.GetSecrets())
	err := s.claimed(r.GetVolumeId(), "ControllerModifyVolume", func() error {
		return m.ModifyVolume(ctx, r.GetVolumeId(), r.GetMutableParameters())
	})
	if err != nil {
		return nil, toStatus(err)
	}
	return &csi.ControllerModifyVolumeResponse{}, nil
}

// ControllerGetCapabilities lists what the service does with this backend.
func (s *server) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	out := &csi.ControllerGetCapabilitiesResponse{}
	for _, c := range []struct {
		has bool
		t   csi.ControllerServiceCapability_RPC_Type
	}{
		{true, csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME},
		{true, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME},
		{true, csi.ControllerServiceCapability_RPC_LIST_VOLUMES},
		{s.can.Nodes, csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES},
		{s.can.Capacity, csi.ControllerServiceCapability_RPC_GET_CAPACITY},
		{true, csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT},
		{true, csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS},
		{s.can.Clones, csi.ControllerServiceCapability_RPC_CLONE_VOLUME},
		{s.can.ReadOnly, csi.ControllerServiceCapability_RPC_PUBLISH_READONLY},
		{true, csi.ControllerServiceCapability_RPC_EXPAND_VOLUME},
		{s.can.Nodes, csi.ControllerServiceCapability_RPC_GET_VOLUME},
		{s.can.Modify, csi.ControllerServiceCapability_RPC_MODIFY_VOLUME},
		{true, csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER},
	} {
		if !c.has {
			continue
		}
		out.Capabilities = append(out.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: c.t}}})
	}
	return out, nil
}

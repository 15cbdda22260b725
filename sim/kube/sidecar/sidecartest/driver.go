// Package sidecartest is a CSI driver whose answers a test writes, and the
// small lab around it that tests of the sidecars need.
package sidecartest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Name is the driver's name.
const Name = "csi.example.com"

// Driver is a CSI driver in memory: volumes by name, attachments, snapshots.
// It is idempotent, so that what is left at the end can be counted.
type Driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer

	// Without takes controller capabilities away.
	Without []csi.ControllerServiceCapability_RPC_Type
	// NodeExpansion is what ControllerExpandVolume says of the node.
	NodeExpansion bool
	// NotReady lets the first n Probe calls say that it isn't ready.
	NotReady int
	// SnapshotReadyAfter is how many CreateSnapshot calls a snapshot takes.
	SnapshotReadyAfter int
	// Zones, if set, makes volumes accessible from the first preferred place.
	Zones bool

	mu        sync.Mutex
	script    map[string][]func(context.Context) error
	requests  map[string][]any
	Volumes   map[string]*csi.Volume // by name
	Attached  map[string]string      // volume id -> node id
	Snapshots map[string]*csi.Snapshot
	cuts      map[string]int
}

// NewDriver returns an empty driver.
func NewDriver() *Driver {
	return &Driver{script: map[string][]func(context.Context) error{}, requests: map[string][]any{}, Volumes: map[string]*csi.Volume{},
		Attached: map[string]string{}, Snapshots: map[string]*csi.Snapshot{}, cuts: map[string]int{}}
}

// Answer scripts the next calls of an RPC: a nil error lets the call do its
// work; an error refuses it before it has an effect.
func (d *Driver) Answer(rpc string, errs ...error) {
	for _, e := range errs {
		d.Do(rpc, func(context.Context) error { return e })
	}
}

// Do scripts the next call of an RPC.
func (d *Driver) Do(rpc string, f func(context.Context) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.script[rpc] = append(d.script[rpc], f)
}

// Requests is what an RPC was called with, in order.
func (d *Driver) Requests(rpc string) []any {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.requests[rpc])
}

// Left says what the driver holds, e.g. "1 volumes, 0 attached, 0 snapshots".
func (d *Driver) Left() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return fmt.Sprintf("%d volumes, %d attached, %d snapshots", len(d.Volumes), len(d.Attached), len(d.Snapshots))
}

// Detach changes the world behind everybody's back.
func (d *Driver) Detach(volume string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.Attached, volume)
}

func (d *Driver) enter(ctx context.Context, rpc string, req any) error {
	d.mu.Lock()
	d.requests[rpc] = append(d.requests[rpc], req)
	var f func(context.Context) error
	if q := d.script[rpc]; len(q) > 0 {
		f, d.script[rpc] = q[0], q[1:]
	}
	d.mu.Unlock()
	if f == nil {
		return nil
	}
	return f(ctx)
}

// Hang is an answer that never comes.
func Hang(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

// Status is a gRPC error.
func Status(c codes.Code) error { return status.Error(c, "scripted "+c.String()) }

// Repeat is n times the same error.
func Repeat(n int, err error) []error { return slices.Repeat([]error{err}, n) }

func (d *Driver) Probe(ctx context.Context, r *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	if err := d.enter(ctx, "Probe", r); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.NotReady > 0 {
		d.NotReady--
		return &csi.ProbeResponse{Ready: wrapperspb.Bool(false)}, nil
	}
	return &csi.ProbeResponse{}, nil
}

func (d *Driver) GetPluginInfo(ctx context.Context, r *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: Name, VendorVersion: "1"}, d.enter(ctx, "GetPluginInfo", r)
}

func (d *Driver) GetPluginCapabilities(ctx context.Context, r *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	if err := d.enter(ctx, "GetPluginCapabilities", r); err != nil {
		return nil, err
	}
	var out []*csi.PluginCapability
	for _, t := range []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS} {
		out = append(out, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: t}}})
	}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: out}, nil
}

func (d *Driver) ControllerGetCapabilities(ctx context.Context, r *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	if err := d.enter(ctx, "ControllerGetCapabilities", r); err != nil {
		return nil, err
	}
	var out []*csi.ControllerServiceCapability
	for _, n := range slices.Sorted(maps.Keys(csi.ControllerServiceCapability_RPC_Type_name)) {
		t := csi.ControllerServiceCapability_RPC_Type(n)
		if !slices.Contains(d.Without, t) {
			out = append(out, &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}}})
		}
	}
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: out}, nil
}

func (d *Driver) CreateVolume(ctx context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if err := d.enter(ctx, "CreateVolume", r); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	v := d.Volumes[r.Name]
	if v == nil {
		v = &csi.Volume{VolumeId: "id-" + r.Name, CapacityBytes: r.CapacityRange.RequiredBytes, ContentSource: r.VolumeContentSource,
			VolumeContext: map[string]string{"type": "test"}}
		if d.Zones && len(r.GetAccessibilityRequirements().GetPreferred()) > 0 {
			v.AccessibleTopology = r.AccessibilityRequirements.Preferred[:1]
		}
		d.Volumes[r.Name] = v
	}
	return &csi.CreateVolumeResponse{Volume: v}, nil
}

func (d *Driver) DeleteVolume(ctx context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if err := d.enter(ctx, "DeleteVolume", r); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.Volumes, func(_ string, v *csi.Volume) bool { return v.VolumeId == r.VolumeId })
	return &csi.DeleteVolumeResponse{}, nil
}

func (d *Driver) ControllerPublishVolume(ctx context.Context, r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	if err := d.enter(ctx, "ControllerPublishVolume", r); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if n, ok := d.Attached[r.VolumeId]; ok && n != r.NodeId {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is attached to %s", r.VolumeId, n)
	}
	d.Attached[r.VolumeId] = r.NodeId
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"diskUUID": "uuid-" + r.VolumeId}}, nil
}

func (d *Driver) ControllerUnpublishVolume(ctx context.Context, r *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	if err := d.enter(ctx, "ControllerUnpublishVolume", r); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.Attached[r.VolumeId] == r.NodeId {
		delete(d.Attached, r.VolumeId)
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

func (d *Driver) ListVolumes(ctx context.Context, r *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	if err := d.enter(ctx, "ListVolumes", r); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	// One volume a page, so that the token is used.
	names := slices.Sorted(maps.Keys(d.Attached))
	i := 0
	if r.StartingToken != "" {
		i = slices.Index(names, r.StartingToken)
	}
	rsp := &csi.ListVolumesResponse{}
	if i >= 0 && i < len(names) {
		rsp.Entries = []*csi.ListVolumesResponse_Entry{{Volume: &csi.Volume{VolumeId: names[i]},
			Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: []string{d.Attached[names[i]]}}}}
		if i+1 < len(names) {
			rsp.NextToken = names[i+1]
		}
	}
	return rsp, nil
}

func (d *Driver) ControllerExpandVolume(ctx context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	if err := d.enter(ctx, "ControllerExpandVolume", r); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	size := r.CapacityRange.RequiredBytes
	for _, v := range d.Volumes {
		if v.VolumeId == r.VolumeId {
			v.CapacityBytes = max(v.CapacityBytes, size)
			size = v.CapacityBytes
		}
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: size, NodeExpansionRequired: d.NodeExpansion}, nil
}

func (d *Driver) CreateSnapshot(ctx context.Context, r *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	if err := d.enter(ctx, "CreateSnapshot", r); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cuts[r.Name]++
	s := d.Snapshots[r.Name]
	if s == nil {
		s = &csi.Snapshot{SnapshotId: "id-" + r.Name, SourceVolumeId: r.SourceVolumeId, SizeBytes: 1 << 30, CreationTime: timestamppb.Now()}
		d.Snapshots[r.Name] = s
	}
	s.ReadyToUse = d.cuts[r.Name] > d.SnapshotReadyAfter
	return &csi.CreateSnapshotResponse{Snapshot: s}, nil
}

func (d *Driver) DeleteSnapshot(ctx context.Context, r *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	if err := d.enter(ctx, "DeleteSnapshot", r); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.Snapshots, func(_ string, s *csi.Snapshot) bool { return s.SnapshotId == r.SnapshotId })
	return &csi.DeleteSnapshotResponse{}, nil
}

func (d *Driver) ListSnapshots(ctx context.Context, r *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	if err := d.enter(ctx, "ListSnapshots", r); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	rsp := &csi.ListSnapshotsResponse{}
	for _, n := range slices.Sorted(maps.Keys(d.Snapshots)) {
		if s := d.Snapshots[n]; s.SnapshotId == r.SnapshotId {
			rsp.Entries = append(rsp.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: s})
		}
	}
	return rsp, nil
}

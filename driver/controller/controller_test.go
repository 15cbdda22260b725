package controller_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csilab/csilab/driver/controller"
)

// fake is a backend in memory. fail, when set, is every method's error; gate,
// when set, holds every method until it is closed.
type fake struct {
	mu      sync.Mutex
	fail    error
	gate    chan struct{}
	entered chan struct{}
	created []controller.CreateVolume
	calls   []string
	volumes map[string]controller.Volume

	can      controller.Abilities
	secrets  map[string]string
	attached controller.Attach
	modified map[string]string
}

func (f *fake) ModifyVolume(ctx context.Context, id string, p map[string]string) error {
	f.modified = p
	return f.enter(ctx, "modify "+id)
}

func (f *fake) enter(ctx context.Context, call string) error {
	f.mu.Lock()
	f.calls = append(f.calls, call)
	fail, gate := f.fail, f.gate
	f.mu.Unlock()
	if gate != nil {
		f.entered <- struct{}{}
		select {
		case <-gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return fail
}

func (f *fake) CreateVolume(ctx context.Context, r controller.CreateVolume) (controller.Volume, error) {
	if err := f.enter(ctx, "create "+r.Name); err != nil {
		return controller.Volume{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.created = append(f.created, r)
	if r.Bytes == 0 {
		r.Bytes = 3 << 30 // the source's
	}
	v := controller.Volume{ID: "vol-" + r.Name, Bytes: r.Bytes, Snapshot: r.Snapshot, Source: r.Source, Context: map[string]string{"type": "t"}}
	if len(r.Requisite) > 0 {
		v.Segments = r.Requisite[:1]
	}
	f.volumes[v.ID] = v
	return v, nil
}
func (f *fake) DeleteVolume(ctx context.Context, id string) error { return f.enter(ctx, "delete "+id) }
func (f *fake) Volume(ctx context.Context, id string) (controller.Volume, error) {
	if err := f.enter(ctx, "volume "+id); err != nil {
		return controller.Volume{}, err
	}
	v, ok := f.volumes[id]
	if !ok {
		return v, controller.Errorf(controller.NotFound, "volume %q doesn't exist", id)
	}
	return v, nil
}
func (f *fake) Nodes(ctx context.Context, id string) ([]string, error) {
	return []string{"node"}, f.enter(ctx, "nodes "+id)
}
func (f *fake) Volumes(ctx context.Context, p controller.Page) ([]controller.Volume, string, error) {
	return []controller.Volume{{ID: "v", Bytes: 1, Nodes: []string{"n"}}}, "7", f.enter(ctx, fmt.Sprintf("volumes %d %q", p.Max, p.Token))
}
func (f *fake) Abilities() controller.Abilities { return f.can }
func (f *fake) Attach(ctx context.Context, r controller.Attach) (map[string]string, error) {
	f.secrets, f.attached = controller.SecretsOf(ctx), r
	return map[string]string{"disk": "d"}, f.enter(ctx, "attach "+r.Volume+" "+r.Node)
}
func (f *fake) Detach(ctx context.Context, volume, node string) error {
	return f.enter(ctx, "detach "+volume+" "+node)
}
func (f *fake) Expand(ctx context.Context, volume string, size int64) (int64, error) {
	return size, f.enter(ctx, fmt.Sprintf("expand %s %d", volume, size))
}
func (f *fake) CreateSnapshot(ctx context.Context, r controller.CreateSnapshot) (controller.Snapshot, error) {
	return controller.Snapshot{ID: "s", Volume: r.Volume, Bytes: 5, Created: time.Unix(9, 0), Ready: true}, f.enter(ctx, fmt.Sprintf("snapshot %s %s %v", r.Name, r.Volume, r.Parameters))
}
func (f *fake) DeleteSnapshot(ctx context.Context, id string) error {
	return f.enter(ctx, "delete-snapshot "+id)
}
func (f *fake) Snapshots(ctx context.Context, q controller.SnapshotFilter, p controller.Page) ([]controller.Snapshot, string, error) {
	return []controller.Snapshot{{ID: "s", Volume: "v"}}, "", f.enter(ctx, fmt.Sprintf("snapshots %v %v", q, p))
}
func (f *fake) Capacity(ctx context.Context, params, segment map[string]string) (controller.Capacity, error) {
	return controller.Capacity{Available: 100 << 40, MaxVolume: 90 << 40}, f.enter(ctx, fmt.Sprintf("capacity %v %v", params, segment))
}

func newFake() (*fake, csi.ControllerServer) {
	// The abilities are those of vSphere.
	f := &fake{can: controller.Abilities{Nodes: true, Capacity: true}, volumes: map[string]controller.Volume{"vol": {ID: "vol", Bytes: 1 << 30, Context: map[string]string{"type": "t"}}}}
	return f, controller.New(controller.Config{Backend: f})
}

func capability(mode csi.VolumeCapability_AccessMode_Mode, fs string) *csi.VolumeCapability {
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fs}}}
	if fs == "block" {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	}
	return c
}

var writer = capability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "ext4")

func capRange(required, limit int64) *csi.CapacityRange {
	return &csi.CapacityRange{RequiredBytes: required, LimitBytes: limit}
}

// check fails unless err has the code and names what is wrong.
func check(t *testing.T, err error, code codes.Code, says string) {
	t.Helper()
	if status.Code(err) != code || err != nil && !strings.Contains(err.Error(), says) {
		t.Errorf("got %v, want %s with %q", err, code, says)
	}
	if st, _ := status.FromError(err); len(st.Details()) > 0 {
		t.Error("details must be empty")
	}
}

func TestCreateVolume(t *testing.T) {
	const gib, mib = int64(1 << 30), int64(1 << 20)
	base := func(change func(*csi.CreateVolumeRequest)) *csi.CreateVolumeRequest {
		r := &csi.CreateVolumeRequest{Name: "pvc-1", VolumeCapabilities: []*csi.VolumeCapability{writer}}
		change(r)
		return r
	}
	snapshot := func(id string) *csi.VolumeContentSource {
		return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id}}}
	}
	for _, x := range []struct {
		name   string
		change func(*csi.CreateVolumeRequest)
		code   codes.Code
		says   string
		bytes  int64
	}{
		{"default size", func(r *csi.CreateVolumeRequest) {}, codes.OK, "", 10 * gib},
		{"rounded up", func(r *csi.CreateVolumeRequest) { r.CapacityRange = capRange(gib+1, 0) }, codes.OK, "", gib + mib},
		{"exact", func(r *csi.CreateVolumeRequest) { r.CapacityRange = capRange(gib, gib) }, codes.OK, "", gib},
		{"limit below the default", func(r *csi.CreateVolumeRequest) { r.CapacityRange = capRange(0, gib+5) }, codes.OK, "", gib},
		{"from a snapshot, its size", func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = snapshot("s") }, codes.OK, "", 3 * gib},
		{"read-only mode", func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities[0] = capability(csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY, "xfs")
		}, codes.OK, "", 10 * gib},
		{"ReadWriteOncePod", func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities[0] = capability(csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, "block")
		}, codes.OK, "", 10 * gib},
		{"no name", func(r *csi.CreateVolumeRequest) { r.Name = "" }, codes.InvalidArgument, "name", 0},
		{"long name", func(r *csi.CreateVolumeRequest) { r.Name = strings.Repeat("n", 129) }, codes.InvalidArgument, "128", 0},
		{"control character", func(r *csi.CreateVolumeRequest) { r.Name = "a\x01" }, codes.InvalidArgument, "U+0001", 0},
		{"no capabilities", func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities = nil }, codes.InvalidArgument, "volume_capabilities", 0},
		{"no access mode", func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities[0] = capability(csi.VolumeCapability_AccessMode_UNKNOWN, "")
		}, codes.InvalidArgument, "access_mode", 0},
		{"no access type", func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities[0] = &csi.VolumeCapability{AccessMode: writer.AccessMode}
		}, codes.InvalidArgument, "access_type", 0},
		{"many nodes", func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities = append(slices.Clone(r.VolumeCapabilities), capability(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, "block"))
		}, codes.InvalidArgument, "volume_capabilities[1]", 0},
		{"unknown file system", func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities[0] = capability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "nfs4")
		}, codes.InvalidArgument, "nfs4", 0},
		{"negative", func(r *csi.CreateVolumeRequest) { r.CapacityRange = capRange(-1, 0) }, codes.OutOfRange, "-1", 0},
		{"limit below required", func(r *csi.CreateVolumeRequest) { r.CapacityRange = capRange(2, 1) }, codes.OutOfRange, "limit_bytes", 0},
		{"nothing between", func(r *csi.CreateVolumeRequest) { r.CapacityRange = capRange(gib+1, gib+2) }, codes.OutOfRange, "multiple", 0},
		{"too small a limit", func(r *csi.CreateVolumeRequest) { r.CapacityRange = capRange(0, 5) }, codes.OutOfRange, "at least", 0},
		{"too large", func(r *csi.CreateVolumeRequest) { r.CapacityRange = capRange(1<<62, 0) }, codes.OutOfRange, "at most", 0},
		{"snapshot larger than the limit", func(r *csi.CreateVolumeRequest) {
			r.VolumeContentSource, r.CapacityRange = snapshot("s"), capRange(0, gib)
		}, codes.OutOfRange, "limit_bytes", 0},
		{"empty source", func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = &csi.VolumeContentSource{} }, codes.InvalidArgument, "volume_content_source", 0},
		{"source without id", func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = snapshot("") }, codes.InvalidArgument, "snapshot_id", 0},
		{"clone", func(r *csi.CreateVolumeRequest) {
			r.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: "v"}}}
		}, codes.InvalidArgument, "volume as source", 0},
		{"mutable parameters", func(r *csi.CreateVolumeRequest) { r.MutableParameters = map[string]string{"a": "b"} }, codes.InvalidArgument, "mutable", 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			f, s := newFake()
			res, err := s.CreateVolume(t.Context(), base(x.change))
			check(t, err, x.code, x.says)
			if x.code != codes.OK {
				if x.name != "snapshot larger than the limit" && len(f.calls) > 0 {
					t.Errorf("the backend was asked: %v", f.calls)
				}
				return
			}
			v := res.GetVolume()
			if v.GetCapacityBytes() != x.bytes || v.GetVolumeId() != "vol-pvc-1" || v.GetVolumeContext()["type"] != "t" || v.AccessibleTopology != nil {
				t.Errorf("got %v, want %d bytes", v, x.bytes)
			}
			if (v.GetContentSource() != nil) != (f.created[0].Snapshot != "") {
				t.Errorf("content source %v", v.GetContentSource())
			}
		})
	}
	t.Run("topology", func(t *testing.T) {
		f, s := newFake()
		zone := func(z string) *csi.Topology { return &csi.Topology{Segments: map[string]string{"zone": z}} }
		res, err := s.CreateVolume(t.Context(), base(func(r *csi.CreateVolumeRequest) {
			r.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{zone("a"), {}, zone("b")}, Preferred: []*csi.Topology{zone("b")}}
		}))
		if err != nil {
			t.Fatal(err)
		}
		if c := f.created[0]; len(c.Requisite) != 2 || len(c.Preferred) != 1 || c.Preferred[0]["zone"] != "b" {
			t.Errorf("asked for %v", c)
		}
		if top := res.GetVolume().GetAccessibleTopology(); len(top) != 1 || top[0].GetSegments()["zone"] != "a" {
			t.Errorf("accessible from %v", top)
		}
	})
}

// request is one valid call of each RPC that reaches the backend, and the
// fields without which it must not.
type request struct {
	name    string
	call    func(context.Context, csi.ControllerServer) error
	missing map[string]func(context.Context, csi.ControllerServer) error
}

func requests() []request {
	publish := func(change func(*csi.ControllerPublishVolumeRequest)) func(context.Context, csi.ControllerServer) error {
		return func(ctx context.Context, s csi.ControllerServer) error {
			r := &csi.ControllerPublishVolumeRequest{VolumeId: "vol", NodeId: "node", VolumeCapability: writer}
			change(r)
			_, err := s.ControllerPublishVolume(ctx, r)
			return err
		}
	}
	expand := func(change func(*csi.ControllerExpandVolumeRequest)) func(context.Context, csi.ControllerServer) error {
		return func(ctx context.Context, s csi.ControllerServer) error {
			r := &csi.ControllerExpandVolumeRequest{VolumeId: "vol", CapacityRange: capRange(5<<30, 0)}
			change(r)
			_, err := s.ControllerExpandVolume(ctx, r)
			return err
		}
	}
	snapshot := func(change func(*csi.CreateSnapshotRequest)) func(context.Context, csi.ControllerServer) error {
		return func(ctx context.Context, s csi.ControllerServer) error {
			r := &csi.CreateSnapshotRequest{Name: "snap", SourceVolumeId: "vol"}
			change(r)
			_, err := s.CreateSnapshot(ctx, r)
			return err
		}
	}
	validate := func(change func(*csi.ValidateVolumeCapabilitiesRequest)) func(context.Context, csi.ControllerServer) error {
		return func(ctx context.Context, s csi.ControllerServer) error {
			r := &csi.ValidateVolumeCapabilitiesRequest{VolumeId: "vol", VolumeCapabilities: []*csi.VolumeCapability{writer}}
			change(r)
			_, err := s.ValidateVolumeCapabilities(ctx, r)
			return err
		}
	}
	type m = map[string]func(context.Context, csi.ControllerServer) error
	return []request{
		{"CreateVolume", func(ctx context.Context, s csi.ControllerServer) error {
			_, err := s.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "pvc", VolumeCapabilities: []*csi.VolumeCapability{writer}})
			return err
		}, nil},
		{"DeleteVolume", func(ctx context.Context, s csi.ControllerServer) error {
			_, err := s.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: "vol"})
			return err
		}, m{"volume_id": func(ctx context.Context, s csi.ControllerServer) error {
			_, err := s.DeleteVolume(ctx, &csi.DeleteVolumeRequest{})
			return err
		}}},
		{"ControllerPublishVolume", publish(func(*csi.ControllerPublishVolumeRequest) {}), m{
			"volume_id":         publish(func(r *csi.ControllerPublishVolumeRequest) { r.VolumeId = "" }),
			"node_id":           publish(func(r *csi.ControllerPublishVolumeRequest) { r.NodeId = "" }),
			"volume_capability": publish(func(r *csi.ControllerPublishVolumeRequest) { r.VolumeCapability = nil }),
			"readonly":          publish(func(r *csi.ControllerPublishVolumeRequest) { r.Readonly = true }),
			"access_mode": publish(func(r *csi.ControllerPublishVolumeRequest) {
				r.VolumeCapability = capability(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, "")
			}),
		}},
		{"ControllerUnpublishVolume", func(ctx context.Context, s csi.ControllerServer) error {
			_, err := s.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: "vol"})
			return err
		}, m{"volume_id": func(ctx context.Context, s csi.ControllerServer) error {
			_, err := s.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{NodeId: "node"})
			return err
		}}},
		{"ControllerExpandVolume", expand(func(*csi.ControllerExpandVolumeRequest) {}), m{
			"volume_id":      expand(func(r *csi.ControllerExpandVolumeRequest) { r.VolumeId = "" }),
			"capacity_range": expand(func(r *csi.ControllerExpandVolumeRequest) { r.CapacityRange = nil }),
			"required_bytes": expand(func(r *csi.ControllerExpandVolumeRequest) { r.CapacityRange = &csi.CapacityRange{} }),
			"fs_type": expand(func(r *csi.ControllerExpandVolumeRequest) {
				r.VolumeCapability = capability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "zfs")
			}),
		}},
		{"CreateSnapshot", snapshot(func(*csi.CreateSnapshotRequest) {}), m{
			"source_volume_id": snapshot(func(r *csi.CreateSnapshotRequest) { r.SourceVolumeId = "" }),
			"name":             snapshot(func(r *csi.CreateSnapshotRequest) { r.Name = "" }),
			"parameters":       snapshot(func(r *csi.CreateSnapshotRequest) { r.Parameters = map[string]string{"tier": "gold"} }),
		}},
		{"DeleteSnapshot", func(ctx context.Context, s csi.ControllerServer) error {
			_, err := s.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: "snap"})
			return err
		}, m{"snapshot_id": func(ctx context.Context, s csi.ControllerServer) error {
			_, err := s.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{})
			return err
		}}},
		{"ValidateVolumeCapabilities", validate(func(*csi.ValidateVolumeCapabilitiesRequest) {}), m{
			"volume_id":           validate(func(r *csi.ValidateVolumeCapabilitiesRequest) { r.VolumeId = "" }),
			"volume_capabilities": validate(func(r *csi.ValidateVolumeCapabilitiesRequest) { r.VolumeCapabilities = nil }),
		}},
		{"ControllerGetVolume", func(ctx context.Context, s csi.ControllerServer) error {
			_, err := s.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: "vol"})
			return err
		}, m{"volume_id": func(ctx context.Context, s csi.ControllerServer) error {
			_, err := s.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{})
			return err
		}}},
		{"ListVolumes", func(ctx context.Context, s csi.ControllerServer) error {
			_, err := s.ListVolumes(ctx, &csi.ListVolumesRequest{MaxEntries: 3, StartingToken: "t"})
			return err
		}, m{"max_entries": func(ctx context.Context, s csi.ControllerServer) error {
			_, err := s.ListVolumes(ctx, &csi.ListVolumesRequest{MaxEntries: -1})
			return err
		}}},
		{"ListSnapshots", func(ctx context.Context, s csi.ControllerServer) error {
			_, err := s.ListSnapshots(ctx, &csi.ListSnapshotsRequest{})
			return err
		}, m{"max_entries": func(ctx context.Context, s csi.ControllerServer) error {
			_, err := s.ListSnapshots(ctx, &csi.ListSnapshotsRequest{MaxEntries: -1})
			return err
		}}},
		{"GetCapacity", func(ctx context.Context, s csi.ControllerServer) error {
			_, err := s.GetCapacity(ctx, &csi.GetCapacityRequest{})
			return err
		}, nil},
	}
}

func TestRequiredFields(t *testing.T) {
	for _, r := range requests() {
		f, s := newFake()
		if err := r.call(t.Context(), s); err != nil || len(f.calls) == 0 {
			t.Errorf("%s: %v, calls %v", r.name, err, f.calls)
		}
		for field, call := range r.missing {
			t.Run(r.name+" "+field, func(t *testing.T) {
				f, s := newFake()
				check(t, call(t.Context(), s), codes.InvalidArgument, field)
				if len(f.calls) > 0 {
					t.Errorf("the backend was asked: %v", f.calls)
				}
			})
		}
	}
}

// Every error of a backend gets its code, in every RPC.
func TestCodes(t *testing.T) {
	for _, r := range requests() {
		for _, x := range []struct {
			err  error
			code codes.Code
		}{
			{controller.Errorf(controller.Internal, "boom"), codes.Internal},
			{controller.Errorf(controller.Invalid, "boom"), codes.InvalidArgument},
			{controller.Errorf(controller.NotFound, "boom"), codes.NotFound},
			{controller.Errorf(controller.AlreadyExists, "boom"), codes.AlreadyExists},
			{controller.Errorf(controller.InUse, "boom"), codes.FailedPrecondition},
			{controller.Errorf(controller.Exhausted, "boom"), codes.ResourceExhausted},
			{controller.Errorf(controller.OutOfRange, "boom"), codes.OutOfRange},
			{controller.Errorf(controller.Aborted, "boom"), codes.Aborted},
			{controller.Errorf(controller.Unavailable, "boom: %w", context.DeadlineExceeded), codes.Unavailable},
			{controller.Errorf(controller.Denied, "boom"), codes.PermissionDenied},
			{controller.Errorf(controller.Unauthenticated, "boom"), codes.Unauthenticated},
			{fmt.Errorf("wrapped: %w", controller.Errorf(controller.NotFound, "boom")), codes.NotFound},
			{fmt.Errorf("boom: %w", context.DeadlineExceeded), codes.DeadlineExceeded},
			{fmt.Errorf("boom: %w", context.Canceled), codes.Canceled},
			{errors.New("boom"), codes.Internal},
		} {
			f, s := newFake()
			f.fail = x.err
			t.Run(r.name+" "+x.code.String(), func(t *testing.T) { check(t, r.call(t.Context(), s), x.code, "boom") })
		}
	}
}

// A second call on one volume is turned away while the first runs, and on
// another volume it isn't; the claim ends with the call, also a failed one.
func TestInFlight(t *testing.T) {
	for _, r := range requests() {
		switch r.name {
		case "ListVolumes", "ListSnapshots", "GetCapacity", "ControllerGetVolume", "ValidateVolumeCapabilities":
			continue // they change nothing
		}
		t.Run(r.name, func(t *testing.T) {
			f, s := newFake()
			f.gate, f.entered = make(chan struct{}), make(chan struct{}, 8)
			f.fail = controller.Errorf(controller.Unavailable, "later")
			done := make(chan error)
			go func() { done <- r.call(context.Background(), s) }()
			<-f.entered
			check(t, r.call(t.Context(), s), codes.Aborted, r.name)
			other := make(chan error)
			go func() {
				_, err := s.DeleteVolume(context.Background(), &csi.DeleteVolumeRequest{VolumeId: "another"})
				other <- err
			}()
			<-f.entered
			close(f.gate)
			check(t, <-done, codes.Unavailable, "later")
			check(t, <-other, codes.Unavailable, "later")
			f.mu.Lock()
			f.gate, f.fail = nil, nil
			f.mu.Unlock()
			check(t, r.call(t.Context(), s), codes.OK, "")
		})
	}
}

func TestAnswers(t *testing.T) {
	ctx := t.Context()
	f, s := newFake()
	exp, err := s.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{VolumeId: "vol", CapacityRange: capRange(5<<30+1, 0)})
	if err != nil || exp.GetCapacityBytes() != 5<<30+1<<20 || !exp.GetNodeExpansionRequired() {
		t.Errorf("expand %v, %v", exp, err)
	}
	snap, err := s.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "a", SourceVolumeId: "vol",
		Parameters: map[string]string{"csi.storage.k8s.io/volumesnapshot/name": "x"}})
	if err != nil || snap.GetSnapshot().GetCreationTime().GetSeconds() != 9 || snap.GetSnapshot().GetSourceVolumeId() != "vol" || !snap.GetSnapshot().GetReadyToUse() {
		t.Errorf("snapshot %v, %v", snap, err)
	}
	list, err := s.ListVolumes(ctx, &csi.ListVolumesRequest{})
	if err != nil || list.GetNextToken() != "7" || list.GetEntries()[0].GetStatus().GetPublishedNodeIds()[0] != "n" {
		t.Errorf("list %v, %v", list, err)
	}
	room, err := s.GetCapacity(ctx, &csi.GetCapacityRequest{})
	if err != nil || room.GetAvailableCapacity() != 100<<40 || room.GetMaximumVolumeSize().GetValue() != 62<<40 || room.GetMinimumVolumeSize().GetValue() != 1<<20 {
		t.Errorf("capacity %v, %v", room, err)
	}
	many := capability(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, "")
	calls := len(f.calls)
	if room, err = s.GetCapacity(ctx, &csi.GetCapacityRequest{VolumeCapabilities: []*csi.VolumeCapability{many}}); err != nil || room.GetAvailableCapacity() != 0 || len(f.calls) != calls {
		t.Errorf("capacity for many nodes %v, %v", room, err)
	}
	ok, err := s.ValidateVolumeCapabilities(ctx, &csi.ValidateVolumeCapabilitiesRequest{VolumeId: "vol", VolumeCapabilities: []*csi.VolumeCapability{writer}, VolumeContext: map[string]string{"type": "t", "more": "1"}})
	if err != nil || len(ok.GetConfirmed().GetVolumeCapabilities()) != 1 {
		t.Errorf("validate %v, %v", ok, err)
	}
	for _, q := range []*csi.ValidateVolumeCapabilitiesRequest{
		{VolumeId: "vol", VolumeCapabilities: []*csi.VolumeCapability{writer, many}},
		{VolumeId: "vol", VolumeCapabilities: []*csi.VolumeCapability{writer}, VolumeContext: map[string]string{"type": "other"}},
		{VolumeId: "vol", VolumeCapabilities: []*csi.VolumeCapability{writer}, MutableParameters: map[string]string{"a": "b"}},
	} {
		no, err := s.ValidateVolumeCapabilities(ctx, q)
		if err != nil || no.GetConfirmed() != nil || no.GetMessage() == "" {
			t.Errorf("validate %v: %v, %v", q, no, err)
		}
	}
	_, err = s.ValidateVolumeCapabilities(ctx, &csi.ValidateVolumeCapabilitiesRequest{VolumeId: "none", VolumeCapabilities: []*csi.VolumeCapability{many}})
	check(t, err, codes.NotFound, "none")
	_, err = s.ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{VolumeId: "vol"})
	check(t, err, codes.Unimplemented, "")
	caps, err := s.ControllerGetCapabilities(ctx, nil)
	if err != nil || len(caps.GetCapabilities()) != 10 {
		t.Errorf("capabilities %v, %v", caps, err)
	}
}

// What only some backends can is refused, or passed on with all that the
// request says, as the backend's abilities have it.
func TestAbilities(t *testing.T) {
	all := controller.Abilities{Clones: true, ReadOnly: true, SharedBlock: true, SnapshotParameters: true, Modify: true}
	secrets := map[string]string{"password": "hunter2"}
	shared := capability(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, "block")
	clone := &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: "vol"}}}
	for _, c := range []struct {
		name   string
		call   func(csi.ControllerServer) error
		vetoed codes.Code // without the ability
		got    func(*fake) any
		want   any
	}{
		{"clone", func(s csi.ControllerServer) error {
			res, err := s.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: []*csi.VolumeCapability{writer}, VolumeContentSource: clone})
			if err == nil && res.GetVolume().GetContentSource().GetVolume().GetVolumeId() != "vol" {
				t.Errorf("content source %v", res.GetVolume().GetContentSource())
			}
			return err
		}, codes.InvalidArgument, func(f *fake) any { return f.created[0].Source }, "vol"},
		{"shared block", func(s csi.ControllerServer) error {
			_, err := s.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: []*csi.VolumeCapability{shared}})
			return err
		}, codes.InvalidArgument, func(f *fake) any { return f.created[0].Access }, controller.Access{Block: true, Shared: true}},
		{"mutable parameters", func(s csi.ControllerServer) error {
			_, err := s.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: []*csi.VolumeCapability{writer}, MutableParameters: map[string]string{"cpg": "b"}})
			return err
		}, codes.InvalidArgument, func(f *fake) any { return f.created[0].Mutable["cpg"] }, "b"},
		{"read-only publication", func(s csi.ControllerServer) error {
			_, err := s.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{VolumeId: "vol", NodeId: "n", VolumeCapability: writer, Readonly: true, Secrets: secrets,
				VolumeContext: map[string]string{"a": "b"}})
			return err
		}, codes.InvalidArgument, func(f *fake) any {
			return fmt.Sprintf("%v %v %v %v", f.attached.ReadOnly, f.attached.Access.FSType, f.attached.Context, f.secrets)
		}, "true ext4 map[a:b] map[password:hunter2]"},
		{"snapshot parameters", func(s csi.ControllerServer) error {
			_, err := s.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "a", SourceVolumeId: "vol", Parameters: map[string]string{"read_only": "true", "csi.storage.k8s.io/volumesnapshot/name": "x"}})
			return err
		}, codes.InvalidArgument, func(f *fake) any { return f.calls[0] }, "snapshot a vol map[read_only:true]"},
		{"modify", func(s csi.ControllerServer) error {
			_, err := s.ControllerModifyVolume(t.Context(), &csi.ControllerModifyVolumeRequest{VolumeId: "vol", MutableParameters: map[string]string{"cpg": "b"}})
			return err
		}, codes.Unimplemented, func(f *fake) any { return f.modified["cpg"] }, "b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, s := newFake()
			check(t, c.call(s), c.vetoed, "")
			if len(f.calls) > 0 {
				t.Errorf("the backend was asked: %v", f.calls)
			}
			f.can = all
			check(t, c.call(controller.New(controller.Config{Backend: f})), codes.OK, "")
			if got := c.got(f); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
	f, _ := newFake()
	f.can = all
	s := controller.New(controller.Config{Backend: f, MinBytes: 256 << 20})
	_, err := s.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: []*csi.VolumeCapability{capability(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, "xfs")}})
	check(t, err, codes.InvalidArgument, "file system")
	_, err = s.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: []*csi.VolumeCapability{writer, capability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "xfs")}})
	check(t, err, codes.InvalidArgument, "another capability")
	_, err = s.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: []*csi.VolumeCapability{writer}, CapacityRange: capRange(5, 6)})
	check(t, err, codes.OutOfRange, "at least")
	if _, err = s.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: []*csi.VolumeCapability{writer}, CapacityRange: capRange(5, 0)}); err != nil || f.created[0].Bytes != 256<<20 {
		t.Errorf("%v, %v", f.created, err)
	}
	_, err = s.GetCapacity(t.Context(), &csi.GetCapacityRequest{})
	check(t, err, codes.Unimplemented, "GET_CAPACITY")
	_, err = s.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: "vol"})
	check(t, err, codes.Unimplemented, "GET_VOLUME")
	list, err := s.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	if err != nil || list.GetEntries()[0].GetStatus() != nil {
		t.Errorf("list %v, %v", list, err)
	}
	caps, err := s.ControllerGetCapabilities(t.Context(), nil)
	if err != nil || len(caps.GetCapabilities()) != 10 {
		t.Errorf("capabilities %v, %v", caps, err)
	}
}

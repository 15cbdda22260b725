package vsphere_test

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/vmware/govmomi"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
	"google.golang.org/grpc/codes"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/vcenter"
)

const zoneKey, regionKey = "topology.csi.vmware.com/k8s-zone", "topology.csi.vmware.com/k8s-region"

func segment(zone string) *csi.Topology {
	return &csi.Topology{Segments: map[string]string{zoneKey: zone, regionKey: "r1"}}
}

// datastoreOf is the name of the datastore that a volume lies on.
func (r *rig) datastoreOf(volume string) string {
	r.t.Helper()
	for _, v := range r.vc.Volumes() {
		if v.ID != volume {
			continue
		}
		c, err := govmomi.NewClient(r.ctx, r.vc.URL(), true)
		if err != nil {
			r.t.Fatal(err)
		}
		defer c.Logout(r.ctx)
		var d mo.Datastore
		if err := c.RetrieveOne(r.ctx, types.ManagedObjectReference{Type: "Datastore", Value: v.Datastore}, []string{"name"}, &d); err != nil {
			r.t.Fatal(err)
		}
		return d.Name
	}
	return ""
}

// The session of the REST API ends by itself: whichever call finds out, the volume
// is made with a new one, at once, and the session of SOAP stays the one there is.
func TestRESTSessionEnds(t *testing.T) {
	for nth := int32(1); ; nth++ {
		r := newRig(t, vcenter.Config{Seed: 21, Nodes: []vcenter.Node{{Name: "node-a", Zone: "a", Region: "r1"}}}, nil)
		var calls, logins atomic.Int32
		r.plan.Arm(fault.Rule{Name: "no such session", Hop: ledger.VCenter, MayNotFire: true, Do: fault.Error(&vcenter.HTTPError{Status: 401}),
			Match: func(c fault.Call) bool {
				if strings.HasPrefix(c.Op, "POST /rest/com/vmware/cis/session") {
					logins.Add(1)
				}
				return strings.Contains(c.Op, "/tagging/") && calls.Add(1) >= nth && logins.Load() == 1
			}})
		q := createRequest("pvc-1", 1<<30)
		q.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{segment("a")}}
		if _, err := r.CreateVolume(r.ctx, q); err != nil {
			t.Errorf("call %d of the REST API is refused: %v", nth, err)
		}
		if n := r.vc.Sessions("driver-controller"); n != 1 {
			t.Errorf("call %d of the REST API is refused: %d sessions", nth, n)
		}
		if logins.Load() != 2 {
			if nth < 4 {
				t.Errorf("%d calls of the REST API, %d logins", calls.Load(), logins.Load())
			}
			return
		}
	}
}

func TestTopology(t *testing.T) {
	r := newRig(t, vcenter.Config{Seed: 20,
		Nodes: []vcenter.Node{{Name: "node-a", Zone: "a", Region: "r1"}, {Name: "node-b", Zone: "b", Region: "r1"}},
		Datastores: []vcenter.Datastore{{Name: "only-a", Zones: []string{"a"}, CapacityBytes: 1 << 40}, {Name: "only-b", Zones: []string{"b"}, CapacityBytes: 2 << 40},
			{Name: "both", CapacityBytes: 64 << 30}},
	}, nil)
	for _, x := range []struct {
		name                 string
		preferred, requisite []*csi.Topology
		store                string
		zones                []string
	}{
		{"one zone", nil, []*csi.Topology{segment("a")}, "only-a", []string{"a"}},
		{"the preferred of two", []*csi.Topology{segment("b"), segment("a")}, []*csi.Topology{segment("a"), segment("b")}, "only-b", []string{"b"}},
		{"first fails", []*csi.Topology{segment("nowhere")}, []*csi.Topology{segment("nowhere"), segment("a")}, "only-a", []string{"a"}},
		{"none asked", nil, nil, "both", nil},
		{"an empty one", nil, []*csi.Topology{{}}, "both", nil},
	} {
		t.Run(x.name, func(t *testing.T) {
			q := createRequest("pvc "+x.name, 1<<30)
			q.AccessibilityRequirements = &csi.TopologyRequirement{Preferred: x.preferred, Requisite: x.requisite}
			for range 2 { // the second finds it
				res, err := r.CreateVolume(r.ctx, q)
				if err != nil {
					t.Fatal(err)
				}
				if got := r.datastoreOf(res.GetVolume().GetVolumeId()); got != x.store {
					t.Errorf("on datastore %s, want %s", got, x.store)
				}
				var zones []string
				for _, s := range res.GetVolume().GetAccessibleTopology() {
					zones = append(zones, s.GetSegments()[zoneKey])
				}
				if !slices.Equal(zones, x.zones) || x.zones == nil && res.GetVolume().AccessibleTopology != nil {
					t.Errorf("accessible from %v, want %v", zones, x.zones)
				}
			}
		})
	}
	t.Run("refused", func(t *testing.T) {
		q := createRequest("pvc-refused", 1<<30)
		q.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{segment("nowhere")}}
		_, err := r.CreateVolume(r.ctx, q)
		want(t, err, codes.ResourceExhausted, "nowhere")
		q.AccessibilityRequirements.Requisite[0].Segments = map[string]string{"example.com/rack": "1"}
		_, err = r.CreateVolume(r.ctx, q)
		want(t, err, codes.InvalidArgument, "example.com/rack", zoneKey)
		// The volume of this name lies in zone a.
		q = createRequest("pvc one zone", 1<<30)
		q.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{segment("b")}}
		_, err = r.CreateVolume(r.ctx, q)
		want(t, err, codes.AlreadyExists)
		q = createRequest("pvc-url", 1<<30)
		q.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{segment("b")}}
		q.Parameters = map[string]string{"DatastoreURL": r.vc.DatastoreURL("only-a")}
		_, err = r.CreateVolume(r.ctx, q)
		want(t, err, codes.ResourceExhausted, "only-a")
	})
	t.Run("capacity", func(t *testing.T) {
		get := func(params map[string]string, seg *csi.Topology, caps ...*csi.VolumeCapability) *csi.GetCapacityResponse {
			t.Helper()
			c, err := r.GetCapacity(r.ctx, &csi.GetCapacityRequest{Parameters: params, AccessibleTopology: seg, VolumeCapabilities: caps})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		everywhere, inA, inB := get(nil, nil), get(nil, segment("a")), get(nil, segment("b"))
		if a := everywhere.GetAvailableCapacity(); a <= 0 || a > 64<<30 {
			t.Errorf("everywhere %d, want what datastore both has", a)
		}
		if inA.GetAvailableCapacity() <= everywhere.GetAvailableCapacity() || inB.GetAvailableCapacity() <= inA.GetAvailableCapacity() {
			t.Errorf("zones: %v %v", inA, inB)
		}
		if m := inB.GetMaximumVolumeSize().GetValue(); m >= inB.GetAvailableCapacity() || m < 1<<40 {
			t.Errorf("largest volume %d", m)
		}
		if c := get(nil, segment("nowhere")); c.GetAvailableCapacity() != 0 {
			t.Errorf("nowhere: %v", c)
		}
		if c := get(map[string]string{"storagepolicyname": "vSAN Default Storage Policy"}, nil); c.GetAvailableCapacity() != 0 {
			t.Errorf("vSAN: %v", c)
		}
		multi := &csi.VolumeCapability{AccessType: writer1.AccessType, AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER}}
		if c := get(nil, nil, multi); c.GetAvailableCapacity() != 0 {
			t.Errorf("for many nodes: %v", c)
		}
		_, err := r.GetCapacity(r.ctx, &csi.GetCapacityRequest{Parameters: map[string]string{"nonsense": "1"}})
		want(t, err, codes.InvalidArgument, "nonsense")
	})
}

func TestParameters(t *testing.T) {
	r := newRig(t, vcenter.Config{Seed: 21, Datastores: []vcenter.Datastore{{Name: "ds-1"}, {Name: "ds-2"}, {Name: "ds-3"}},
		Policies: []vcenter.Policy{{Name: "gold", Datastores: []string{"ds-2"}}}}, nil)
	create := func(name string, params map[string]string) (string, error) {
		q := createRequest(name, 1<<30)
		q.Parameters = params
		res, err := r.CreateVolume(r.ctx, q)
		return r.datastoreOf(res.GetVolume().GetVolumeId()), err
	}
	for _, x := range []struct {
		name   string
		params map[string]string
		store  string
		code   codes.Code
		says   string
	}{
		{"policy", map[string]string{"StoragePolicyName": "gold"}, "ds-2", codes.OK, ""},
		{"url", map[string]string{"datastoreurl": r.vc.DatastoreURL("ds-3")}, "ds-3", codes.OK, ""},
		{"provisioner's", map[string]string{"csi.storage.k8s.io/pvc/name": "x", "csi.storage.k8s.io/pv/name": "y", "fstype": "ext4", "csimigration": "false"}, "ds-1", codes.OK, ""},
		{"unknown", map[string]string{"diskformat": "thin"}, "", codes.InvalidArgument, "diskformat"},
		{"twice", map[string]string{"datastoreurl": "a", "DatastoreURL": "b"}, "", codes.InvalidArgument, "given before"},
		{"no such policy", map[string]string{"storagepolicyname": "silver"}, "", codes.InvalidArgument, "silver"},
		{"no such url", map[string]string{"datastoreurl": "ds:///vmfs/volumes/none/"}, "", codes.InvalidArgument, r.vc.DatastoreURL("ds-1")},
		{"policy and url", map[string]string{"storagepolicyname": "gold", "datastoreurl": r.vc.DatastoreURL("ds-3")}, "", codes.ResourceExhausted, "ds-3"},
		{"migration", map[string]string{"csimigration": "true"}, "", codes.InvalidArgument, "csimigration"},
	} {
		t.Run(x.name, func(t *testing.T) {
			store, err := create("pvc "+x.name, x.params)
			want(t, err, x.code, x.says)
			if x.code == codes.OK && store != x.store {
				t.Errorf("on %s, want %s", store, x.store)
			}
		})
	}
	_, err := create("pvc policy", nil)
	want(t, err, codes.AlreadyExists, "gold")
	_, err = create("pvc url", map[string]string{"datastoreurl": r.vc.DatastoreURL("ds-1")})
	want(t, err, codes.AlreadyExists, "datastoreurl")

	for _, d := range []string{"ds-1", "ds-2"} {
		if err := r.vc.DatastoreMaintenance(d, true); err != nil {
			t.Fatal(err)
		}
	}
	if store, err := create("pvc-m", nil); err != nil || store != "ds-3" {
		t.Errorf("with two datastores in maintenance: %s, %v", store, err)
	}
	_, err = create("pvc-g", map[string]string{"storagepolicyname": "gold"})
	want(t, err, codes.ResourceExhausted, "ds-2")
	if err := r.vc.DatastoreMaintenance("ds-2", false); err != nil {
		t.Fatal(err)
	}
	if store, err := create("pvc-g", map[string]string{"storagepolicyname": "gold"}); err != nil || store != "ds-2" {
		t.Errorf("after maintenance: %s, %v", store, err)
	}
	if err := r.vc.SuspendDatastore("ds-3", true); err != nil {
		t.Fatal(err)
	}
	if store, err := create("pvc-s", nil); err != nil || store != "ds-2" {
		t.Errorf("with one suspended: %s, %v", store, err)
	}
	_, err = create("pvc-u", map[string]string{"datastoreurl": r.vc.DatastoreURL("ds-3")})
	want(t, err, codes.ResourceExhausted, "suspended")
}

func TestLists(t *testing.T) {
	r := newRig(t, vcenter.Config{Seed: 22}, nil)
	have := map[string]bool{}
	var vol string
	for i := range 7 {
		vol = r.create("pvc-" + string(rune('a'+i)))
		have[vol] = true
	}
	token, pages := "", 0
	for {
		res, err := r.ListVolumes(r.ctx, &csi.ListVolumesRequest{MaxEntries: 3, StartingToken: token})
		if err != nil {
			t.Fatal(err)
		}
		pages++
		for _, e := range res.GetEntries() {
			if !have[e.GetVolume().GetVolumeId()] {
				t.Errorf("%s listed twice or from nowhere", e.GetVolume().GetVolumeId())
			}
			delete(have, e.GetVolume().GetVolumeId())
		}
		if token = res.GetNextToken(); token == "" {
			break
		}
	}
	if pages != 3 || len(have) != 0 {
		t.Errorf("%d pages, %d not listed", pages, len(have))
	}
	for _, token := range []string{"x", "-1", "1.5"} {
		_, err := r.ListVolumes(r.ctx, &csi.ListVolumesRequest{StartingToken: token})
		want(t, err, codes.Aborted, token)
		_, err = r.ListSnapshots(r.ctx, &csi.ListSnapshotsRequest{StartingToken: token})
		want(t, err, codes.Aborted, token)
	}
	if res, err := r.ListVolumes(r.ctx, &csi.ListVolumesRequest{StartingToken: "99"}); err != nil || len(res.GetEntries()) != 0 {
		t.Errorf("beyond the end: %v, %v", res, err)
	}

	var last *csi.Snapshot
	for i := range 3 {
		var err error
		if last, err = r.snapshot("snap-"+string(rune('a'+i)), vol); err != nil {
			t.Fatal(err)
		}
	}
	_, err := r.snapshot("snap-d", vol)
	want(t, err, codes.ResourceExhausted, "limit is 3")
	other := r.vc.Volumes()[0].ID
	if _, err := r.snapshot("snap-e", other); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		q *csi.ListSnapshotsRequest
		n int
	}{
		{&csi.ListSnapshotsRequest{}, 4},
		{&csi.ListSnapshotsRequest{SourceVolumeId: vol}, 3},
		{&csi.ListSnapshotsRequest{SourceVolumeId: vol, MaxEntries: 2}, 2},
		{&csi.ListSnapshotsRequest{SnapshotId: last.GetSnapshotId()}, 1},
		{&csi.ListSnapshotsRequest{SnapshotId: last.GetSnapshotId(), SourceVolumeId: other}, 0},
		{&csi.ListSnapshotsRequest{SnapshotId: "nonsense"}, 0},
		{&csi.ListSnapshotsRequest{SnapshotId: vol + "+" + other}, 0},
		{&csi.ListSnapshotsRequest{SourceVolumeId: "nonsense"}, 0},
		{&csi.ListSnapshotsRequest{SourceVolumeId: "42000000-0000-4000-8000-000000000000"}, 0},
	} {
		res, err := r.ListSnapshots(r.ctx, x.q)
		if err != nil || len(res.GetEntries()) != x.n {
			t.Errorf("%v: %d entries, %v, want %d", x.q, len(res.GetEntries()), err, x.n)
			continue
		}
		if (res.GetNextToken() != "") != (x.q.GetMaxEntries() == 2) {
			t.Errorf("%v: token %q", x.q, res.GetNextToken())
		}
		for _, e := range res.GetEntries() {
			if s := e.GetSnapshot(); s.GetSizeBytes() != 1<<30 || !s.GetReadyToUse() || s.GetCreationTime().GetSeconds() <= 0 {
				t.Errorf("snapshot %v", s)
			}
		}
	}
}

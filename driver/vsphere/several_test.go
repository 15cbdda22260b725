package vsphere_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/csilab/csilab/driver/controller"
	"github.com/csilab/csilab/driver/record"
	"github.com/csilab/csilab/driver/vsphere"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/vcenter"
)

// pair is a driver before two vCenters, with zone a on the first and b on the
// second.
type pair struct {
	csi.ControllerServer
	t       *testing.T
	vc      [2]*vcenter.VCenter
	plan    [2]*fault.Plan
	records record.Store
}

func newPair(t *testing.T) *pair {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("127.0.0.2 is an address of this machine on Linux only")
	}
	p := &pair{t: t, records: record.NewMemory()}
	for i, zone := range []string{"a", "b"} {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.%d:0", i+1))
		if err != nil {
			t.Fatal(err)
		}
		p.plan[i] = &fault.Plan{Seed: 1}
		in := &fault.Interceptor{Plan: p.plan[i], Ledger: &ledger.Ledger{}}
		t.Cleanup(in.Close)
		p.vc[i], err = vcenter.New(context.Background(), vcenter.Config{Seed: uint64(i + 1), Listener: l, In: in,
			Nodes:      []vcenter.Node{{Name: "node-" + zone, Zone: zone, Region: "r1"}},
			Datastores: []vcenter.Datastore{{Name: "datastore-1"}, {Name: "only-" + zone}}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.vc[i].Close)
	}
	p.start()
	return p
}

// start starts a driver that knows nothing but the records.
func (p *pair) start() {
	p.t.Helper()
	conf, err := vsphere.ParseConfig([]byte(vcenter.Conf("cluster-1", p.vc[:]...)), nil)
	if err != nil {
		p.t.Fatal(err)
	}
	conf.VCenter.Scheme, conf.Others[0].Scheme = "http", "http"
	b, err := vsphere.NewSeveral(context.Background(), vsphere.Options{Config: conf, Records: p.records,
		Settle: 100 * time.Millisecond, CallTimeout: 10 * time.Second, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = b.Close(ctx) // one may be cut off
	})
	p.ControllerServer = controller.New(controller.Config{Backend: b})
}

func (p *pair) create(name, snapshot string, zones ...string) (*csi.Volume, error) {
	q := createRequest(name, 1<<30)
	q.AccessibilityRequirements = &csi.TopologyRequirement{}
	for _, z := range zones {
		q.AccessibilityRequirements.Preferred = append(q.AccessibilityRequirements.Preferred, segment(z))
		q.AccessibilityRequirements.Requisite = append(q.AccessibilityRequirements.Requisite, segment(z))
	}
	if snapshot != "" {
		q.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snapshot}}}
	}
	r, err := p.CreateVolume(p.t.Context(), q)
	return r.GetVolume(), err
}

func (p *pair) must(v *csi.Volume, err error) *csi.Volume {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
	return v
}

func (p *pair) publish(id string, vc int, node string) error {
	_, err := p.ControllerPublishVolume(p.t.Context(), &csi.ControllerPublishVolumeRequest{VolumeId: id, NodeId: p.vc[vc].VMUUID(node), VolumeCapability: writer1})
	return err
}

func (p *pair) unpublish(id string, vc int, node string) error {
	_, err := p.ControllerUnpublishVolume(p.t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: p.vc[vc].VMUUID(node)})
	return err
}

func (p *pair) delete(id string) error {
	_, err := p.DeleteVolume(p.t.Context(), &csi.DeleteVolumeRequest{VolumeId: id})
	return err
}

func (p *pair) has(vc int, id string) bool {
	for _, v := range p.vc[vc].Volumes() {
		if v.ID == id {
			return true
		}
	}
	return false
}

func TestSeveralVCenters(t *testing.T) {
	p := newPair(t)
	ctx := t.Context()
	a := p.must(p.create("in-a", "", "a"))
	b := p.must(p.create("in-b", "", "b", "a"))
	if !p.has(0, a.VolumeId) || !p.has(1, b.VolumeId) {
		t.Fatalf("volumes lie where they were not asked for: %+v, %+v", p.vc[0].Volumes(), p.vc[1].Volumes())
	}
	for _, x := range []struct {
		v    *csi.Volume
		zone string
	}{{a, "a"}, {b, "b"}} {
		if !proto.Equal(&csi.TopologyRequirement{Requisite: x.v.AccessibleTopology}, &csi.TopologyRequirement{Requisite: []*csi.Topology{segment(x.zone)}}) {
			t.Errorf("accessible from %v, want %s", x.v.AccessibleTopology, x.zone)
		}
	}
	// Asked again, wherever the preference lies now, it is the same.
	if again := p.must(p.create("in-b", "", "b", "a")); again.VolumeId != b.VolumeId {
		t.Errorf("asked again: %s, was %s", again.VolumeId, b.VolumeId)
	}
	if _, err := p.create("nowhere", ""); err == nil {
		t.Error("a volume without topology has a place")
	} else {
		want(t, err, codes.InvalidArgument, "topology")
	}
	_, err := p.create("far", "", "c")
	want(t, err, codes.ResourceExhausted, "127.0.0.1", "127.0.0.2", "no host there")
	// A datastore of one vCenter.
	q := createRequest("on-datastore", 1<<30)
	q.Parameters = map[string]string{"datastoreurl": p.vc[1].DatastoreURL("only-b")}
	q.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{segment("a"), segment("b")}}
	r, err := p.CreateVolume(ctx, q)
	if err != nil || !p.has(1, r.GetVolume().GetVolumeId()) {
		t.Errorf("on the datastore of the second: %v, %v", r, err)
	}
	// Nodes and volumes of one vCenter.
	for _, err := range []error{p.publish(a.VolumeId, 0, "node-a"), p.publish(b.VolumeId, 1, "node-b")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want(t, p.publish(a.VolumeId, 1, "node-b"), codes.NotFound, "127.0.0.1", "no virtual machine")
	// Snapshots and what is restored from them stay.
	s, err := p.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "snap", SourceVolumeId: b.VolumeId})
	if err != nil {
		t.Fatal(err)
	}
	restored := p.must(p.create("restored", s.Snapshot.SnapshotId, "b"))
	if !p.has(1, restored.VolumeId) {
		t.Error("a restored volume left its vCenter")
	}
	_, err = p.create("restored-away", s.Snapshot.SnapshotId, "a")
	want(t, err, codes.ResourceExhausted)
	for _, f := range []*csi.ListSnapshotsRequest{{}, {SnapshotId: s.Snapshot.SnapshotId}, {SourceVolumeId: b.VolumeId}} {
		l, err := p.ListSnapshots(ctx, f)
		if err != nil || len(l.Entries) != 1 {
			t.Errorf("snapshots of %v: %v, %v", f, l, err)
		}
	}
	// A list goes through both, page by page.
	seen := map[string]bool{}
	token := ""
	for range 10 {
		l, err := p.ListVolumes(ctx, &csi.ListVolumesRequest{MaxEntries: 1, StartingToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range l.Entries {
			seen[e.Volume.VolumeId] = true
		}
		if token = l.NextToken; token == "" {
			break
		}
	}
	if len(seen) != 4 || !seen[a.VolumeId] || !seen[b.VolumeId] {
		t.Errorf("listed %v", seen)
	}
	for _, bad := range []string{"x", "7/", "0", "-1/"} {
		_, err := p.ListVolumes(ctx, &csi.ListVolumesRequest{StartingToken: bad})
		want(t, err, codes.Aborted)
	}
	// A driver that has just started finds everything.
	p.start()
	if _, err := p.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{VolumeId: a.VolumeId, CapacityRange: &csi.CapacityRange{RequiredBytes: 2 << 30}, VolumeCapability: writer1}); err != nil {
		t.Error(err)
	}
	if _, err := p.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: s.Snapshot.SnapshotId}); err != nil {
		t.Error(err)
	}
	for _, err := range []error{p.unpublish(a.VolumeId, 0, "node-a"), p.unpublish(b.VolumeId, 1, "node-b"), p.unpublish(b.VolumeId, 1, "node-b"),
		p.delete(a.VolumeId), p.delete(b.VolumeId), p.delete(b.VolumeId), p.delete(restored.VolumeId), p.delete(r.GetVolume().GetVolumeId())} {
		if err != nil {
			t.Error(err)
		}
	}
	if n := len(p.vc[0].Volumes()) + len(p.vc[1].Volumes()); n != 0 {
		t.Errorf("%d volumes are left", n)
	}
}

// One vCenter that is away takes nothing from the other, and nothing of its
// own counts as gone.
func TestOneOfSeveralVCentersIsAway(t *testing.T) {
	p := newPair(t)
	a := p.must(p.create("in-a", "", "a"))
	b := p.must(p.create("in-b", "", "b"))
	if err := p.publish(a.VolumeId, 0, "node-a"); err != nil {
		t.Fatal(err)
	}
	p.vc[0].SetReachable(false)
	for _, fresh := range []bool{false, true} {
		if fresh {
			p.start() // nothing is remembered
		}
		if err := p.publish(b.VolumeId, 1, "node-b"); err != nil {
			t.Errorf("publish on the one that is there: %v", err)
		}
		if err := p.unpublish(b.VolumeId, 1, "node-b"); err != nil {
			t.Errorf("unpublish on the one that is there: %v", err)
		}
		c, err := p.create(fmt.Sprintf("new-%v", fresh), "", "b", "a")
		if err != nil {
			t.Errorf("create on the one that is there: %v", err)
		} else if err := p.delete(c.VolumeId); err != nil {
			t.Errorf("delete on the one that is there: %v", err)
		}
		want(t, p.unpublish(a.VolumeId, 0, "node-a"), codes.Unavailable)
		want(t, p.delete(a.VolumeId), codes.Unavailable)
		_, err = p.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
		want(t, err, codes.Unavailable)
		_, err = p.create("in-a-again", "", "a")
		want(t, err, codes.Unavailable)
	}
	p.vc[0].SetReachable(true)
	if err := p.unpublish(a.VolumeId, 0, "node-a"); err != nil {
		t.Error(err)
	}
	if err := p.delete(a.VolumeId); err != nil {
		t.Error(err)
	}
}

// A vCenter that goes away at any moment of a creation keeps it: the volume may
// be there already, and made on another it would be there twice.
func TestVCenterGoesAwayWhileItCreates(t *testing.T) {
	for _, x := range []struct {
		op    string
		phase fault.Phase
		begun bool // as far as the driver can know
	}{
		{"CnsQueryAllVolume", fault.Before, false},
		{"CnsCreateVolume", fault.Before, true},
		{"CnsCreateVolume", fault.After, true},
		{"task:CnsCreateVolume", fault.After, true},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s %s, restart %v", x.phase, x.op, restart), func(t *testing.T) {
				p := newPair(t)
				p.must(p.create("warm", "", "a", "b")) // the session is there
				p.plan[0].Arm(fault.Rule{Name: "away", Hop: ledger.VCenter, Op: x.op, Phase: x.phase, Nth: 1,
					Do: fault.Func("cut off", func(context.Context, fault.Call) error { p.vc[0].SetReachable(false); return nil })})
				_, err := p.create("v", "", "a", "b")
				want(t, err, codes.Unavailable)
				if restart {
					p.start()
				}
				for range 2 {
					_, err := p.create("v", "", "a", "b")
					want(t, err, codes.Unavailable)
				}
				// Who asks for b first gets it there, unless it may be on a.
				v, err := p.create("v", "", "b", "a")
				if x.begun {
					want(t, err, codes.Unavailable)
				} else if err != nil || !p.has(1, v.VolumeId) {
					t.Errorf("with b preferred: %v, %v", v, err)
				}
				p.vc[0].SetReachable(true)
				if v, err = p.create("v", "", "a", "b"); err != nil {
					t.Fatal(err)
				}
				n := 0
				for i := range p.vc {
					for _, y := range p.vc[i].Volumes() {
						if y.Name == "v" {
							n++
						}
					}
				}
				if n != 1 || p.has(0, v.VolumeId) != x.begun {
					t.Errorf("%d volumes, %s among them", n, v.VolumeId)
				}
				if u := p.plan[0].Unfired(); len(u) > 0 {
					t.Error("the vCenter did not go away")
				}
			})
		}
	}
}

// Whatever call it is at that a vCenter goes away, before or after it is done,
// there is one volume in the end.
func TestVCenterGoesAwayAtEachCallOfACreation(t *testing.T) {
	const most = 24 // a creation has fewer calls
	for _, phase := range []fault.Phase{fault.Before, fault.After} {
		for n := 1; n <= most; n++ {
			t.Run(fmt.Sprintf("%s call %d", phase, n), func(t *testing.T) {
				t.Parallel() // some wait for a vCenter that is away
				p := newPair(t)
				p.must(p.create("warm", "", "a", "b")) // the session is there
				var at atomic.Pointer[string]
				var over atomic.Bool
				p.plan[0].Arm(fault.Rule{Name: "away", Hop: ledger.VCenter, Phase: phase, Nth: n, MayNotFire: true,
					Do: fault.Func("cut off", func(_ context.Context, c fault.Call) error {
						if !over.Load() {
							at.Store(&c.Op)
							p.vc[0].SetReachable(false)
						}
						return nil
					})})
				var last *csi.Volume
				for _, zones := range [][]string{{"a", "b"}, {"b", "a"}, {"a", "b"}} {
					if v, err := p.create("v", "", zones...); err == nil {
						last = v
					} else {
						want(t, err, codes.Unavailable)
					}
				}
				over.Store(true)
				p.vc[0].SetReachable(true)
				v := p.must(p.create("v", "", "b", "a"))
				op := at.Load()
				if op == nil {
					return
				}
				if n == most {
					t.Errorf("a creation has %d calls or more", most)
				}
				if last != nil && last.VolumeId != v.VolumeId {
					t.Errorf("%s: %s was made, and %s", *op, last.VolumeId, v.VolumeId)
				}
				var have []string
				for i := range p.vc {
					for _, y := range p.vc[i].Volumes() {
						if y.Name == "v" {
							have = append(have, y.ID)
						}
					}
				}
				if len(have) != 1 || have[0] != v.VolumeId {
					t.Errorf("%s: volumes %v, %s was given", *op, have, v.VolumeId)
				}
			})
		}
	}
}

func TestSeveralVCentersInOneFile(t *testing.T) {
	const global = "[Global]\ncluster-id=c\nuser=u@d\npassword=p\n"
	vc := func(h string) string { return "[VirtualCenter \"" + h + "\"]\nport=44" + h[1:] + "\n" }
	const labels = "[Labels]\ntopology-categories=k8s-zone\n"
	c, err := vsphere.ParseConfig([]byte(global+vc("h1")+vc("h2")+"insecure-flag=true\nuser=x@y\n"+labels), nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.VCenter.Host != "h1" || c.VCenter.Port != 441 || c.VCenter.Insecure || c.VCenter.User != "u@d" ||
		len(c.Others) != 1 || c.Others[0].Host != "h2" || c.Others[0].Port != 442 || !c.Others[0].Insecure || c.Others[0].User != "x@y" || c.Others[0].Password != "p" {
		t.Errorf("parsed %+v", c)
	}
	env := func(k string) string { return map[string]string{"VSPHERE_PASSWORD": "q"}[k] }
	for text, x := range map[string]struct {
		file string
		env  func(string) string
	}{
		"topology-categories: missing": {global + vc("h1") + vc("h2"), nil},
		"up to 5":                      {global + vc("h1") + vc("h2") + vc("h3") + vc("h4") + vc("h5") + vc("h6") + labels, nil},
		"VSPHERE_PASSWORD: which of the 2 vCenters": {global + vc("h1") + vc("h2") + labels, env},
		`[VirtualCenter "h2"] password: missing`:    {"[Global]\ncluster-id=c\nuser=u@d\n" + vc("h1") + "password=p\n" + vc("h2") + labels, nil},
	} {
		if _, err := vsphere.ParseConfig([]byte(x.file), x.env); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want %s", err, text)
		}
	}
}

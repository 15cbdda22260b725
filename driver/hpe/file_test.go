package hpe_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/csilab/csilab/driver/hpe"
	"github.com/csilab/csilab/driver/hpe/kube"
	"github.com/csilab/csilab/driver/record"
	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/csp"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/san"
)

// fileServer is the address of the array's file service.
const fileServer = "198.18.2.1"

// asFiles makes a request one for a share that several nodes mount.
func asFiles(more ...string) func(*csi.CreateVolumeRequest) {
	return func(q *csi.CreateVolumeRequest) {
		q.Parameters = map[string]string{"accessProtocol": "NFS", "cpg": san.DefaultCPG}
		for i := 0; i+1 < len(more); i += 2 {
			q.Parameters[more[i]] = more[i+1]
		}
		q.VolumeCapabilities = []*csi.VolumeCapability{sharedMount()}
	}
}

func sharedMount() *csi.VolumeCapability {
	c := mount("")
	c.AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	return c
}

func (s *system) publishFiles(ctx context.Context, v *csi.Volume, node string, change ...func(*csi.ControllerPublishVolumeRequest)) (map[string]string, error) {
	return s.publish(ctx, v.GetVolumeId(), node, append([]func(*csi.ControllerPublishVolumeRequest){func(q *csi.ControllerPublishVolumeRequest) {
		q.VolumeCapability, q.VolumeContext = sharedMount(), v.GetVolumeContext()
	}}, change...)...)
}

// sharedWith are the clients that the file service lets mount a volume.
func (s *system) sharedWith(id string) string {
	var rules []string
	s.san.Arrays()[0].Look(func(core *array.Array) {
		for _, v := range core.Volumes() {
			if got, _ := csp.IDOf(v.Name, v.Comment); got == id {
				values, _ := core.Values(v.Name)
				x, _ := csp.ShareOf(v.Comment, values)
				rules = x.Rules
			}
		}
	})
	return strings.Join(rules, ",")
}

// A share is given to several nodes and is for their addresses only; it goes from
// each with its unpublish, also after the driver was started anew.
func TestShare(t *testing.T) {
	s := newSystem(t)
	ctx := t.Context()
	const id = "pvc-00000000-0000-0000-0000-0000000000f1"
	v, err := s.create(t, id, asFiles())
	if err != nil {
		t.Fatal(err)
	}
	if c := v.GetVolumeContext(); c["accessProtocol"] != "nfs" || c["fsType"] != "" {
		t.Errorf("volume context %v", c)
	}
	if again, err := s.create(t, id, asFiles()); err != nil || !maps.Equal(again.GetVolumeContext(), v.GetVolumeContext()) {
		t.Errorf("again: %v, %v", again, err)
	}
	want := map[string]string{"accessProtocol": "nfs", "exportIP": fileServer, "mountPath": csp.SharePath(id[:31]), "readOnly": "false"}
	for i, with := range []string{"10.0.0.11", "10.0.0.11,10.0.0.12", "10.0.0.11,10.0.0.12"} {
		node := fmt.Sprint("uuid-", min(i, 1)+1)
		if pc, err := s.publishFiles(ctx, v, node); err != nil || !maps.Equal(pc, want) {
			t.Errorf("publish for %s: %v, %v", node, pc, err)
		}
		if got := s.sharedWith(id); got != with {
			t.Errorf("shared with %q after publish for %s, expected %q", got, node, with)
		}
	}
	check(t, s.delete(ctx, id), codes.FailedPrecondition, "uuid-1")
	s.start()
	for i, with := range []string{"10.0.0.12", "10.0.0.12", ""} {
		node := fmt.Sprint("uuid-", max(i, 1))
		if err := s.unpublish(ctx, id, node); err != nil {
			t.Error(err)
		}
		if got := s.sharedWith(id); got != with {
			t.Errorf("shared with %q after unpublish from %s, expected %q", got, node, with)
		}
	}
	if n := len(s.san.Arrays()[0].Hosts()); n != 0 {
		t.Errorf("%d hosts on the array, a share needs none", n)
	}
	if err := s.delete(ctx, id); err != nil {
		t.Error(err)
	}
	if err := s.left(ctx); err != nil {
		t.Error(err)
	}
}

// What a class says of clients holds for all nodes, and unpublish from one leaves
// the other.
func TestShareOfClass(t *testing.T) {
	s := newSystem(t)
	v, err := s.create(t, "pvc-1", asFiles("accessControlList", "10.0.*.1?, *.example.com", "shareReadOnly", "false", "shareSourcePorts", "secure", "destroyOnDelete", "true", "shareSquashingOption", "no_root_squash"))
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{"uuid-1", "uuid-2"} {
		if _, err := s.publishFiles(t.Context(), v, node); err != nil {
			t.Fatal(err)
		}
	}
	// A caller that has lost the volume's context gets the same.
	if _, err := s.publishFiles(t.Context(), v, "uuid-2", func(q *csi.ControllerPublishVolumeRequest) { q.VolumeContext = nil }); err != nil {
		t.Error(err)
	}
	const all = "*.example.com,10.0.*.1?"
	if got := s.sharedWith("pvc-1"); got != all {
		t.Errorf("shared with %q", got)
	}
	for i, want := range []string{all, ""} {
		if err := s.unpublish(t.Context(), "pvc-1", fmt.Sprint("uuid-", i+1)); err != nil || s.sharedWith("pvc-1") != want {
			t.Errorf("shared with %q, %v", s.sharedWith("pvc-1"), err)
		}
	}
}

func TestShareRefused(t *testing.T) {
	s := newSystem(t)
	ctx := t.Context()
	block := func(q *csi.CreateVolumeRequest) {
		q.VolumeCapabilities = []*csi.VolumeCapability{{AccessMode: sharedMount().AccessMode, AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}}}
	}
	v, err := s.create(t, "pvc-1", asFiles())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.create(t, "pvc-2"); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change []func(*csi.CreateVolumeRequest)
		word   string
	}{
		"block":       {[]func(*csi.CreateVolumeRequest){asFiles(), block}, "block"},
		"mode":        {[]func(*csi.CreateVolumeRequest){asFiles("accessProtocol", "iscsi")}, "MULTI_NODE"},
		"clone":       {[]func(*csi.CreateVolumeRequest){asFiles(), fromVolume("pvc-2")}, "volume_content_source"},
		"clone of":    {[]func(*csi.CreateVolumeRequest){fromVolume("pvc-1")}, "share"},
		"snapshot":    {[]func(*csi.CreateVolumeRequest){asFiles(), fromSnapshot("snap")}, "volume_content_source"},
		"import":      {[]func(*csi.CreateVolumeRequest){asFiles("importVolumeName", "x")}, "importVolumeName"},
		"read only":   {[]func(*csi.CreateVolumeRequest){asFiles("shareReadOnly", "yes")}, "shareReadOnly"},
		"ports":       {[]func(*csi.CreateVolumeRequest){asFiles("shareSourcePorts", "low")}, "shareSourcePorts"},
		"squash":      {[]func(*csi.CreateVolumeRequest){asFiles("shareSquashingOption", "none")}, "shareSquashingOption"},
		"kept":        {[]func(*csi.CreateVolumeRequest){asFiles("destroyOnDelete", "false")}, "destroyOnDelete"},
		"clients":     {[]func(*csi.CreateVolumeRequest){asFiles("accessControlList", "a b")}, "accessControlList"},
		"no client":   {[]func(*csi.CreateVolumeRequest){asFiles("accessControlList", ",")}, "accessControlList"},
		"long list":   {[]func(*csi.CreateVolumeRequest){asFiles("accessControlList", strings.Repeat("10.0.0.111,", 26)+"x")}, "accessControlList"},
		"replication": {[]func(*csi.CreateVolumeRequest){asFiles("replicationDevices", "dev", "remoteCopyGroup", "g")}, "replicationDevices"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.create(t, "pvc-9", c.change...)
			check(t, err, codes.InvalidArgument, c.word)
		})
	}
	_, err = s.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "snap", SourceVolumeId: "pvc-1", Secrets: s.secrets})
	check(t, err, codes.InvalidArgument, "share")
	_, err = s.CreateVolumeGroupSnapshot(ctx, &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{"pvc-1", "pvc-2"}, Secrets: s.secrets})
	check(t, err, codes.InvalidArgument, "share")
	_, err = s.publishFiles(ctx, v, "uuid-1", func(q *csi.ControllerPublishVolumeRequest) {
		q.VolumeCapability = &csi.VolumeCapability{AccessMode: mount("").AccessMode, AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}}
	})
	check(t, err, codes.InvalidArgument, "block")
	_, err = s.publish(ctx, "pvc-2", "uuid-1", func(q *csi.ControllerPublishVolumeRequest) { q.VolumeCapability = sharedMount() })
	check(t, err, codes.InvalidArgument, "MULTI_NODE")
	_, err = s.publishFiles(ctx, v, "uuid-7")
	check(t, err, codes.NotFound, "uuid-7")
	_, err = s.publishFiles(ctx, &csi.Volume{VolumeId: "pvc-7", VolumeContext: v.GetVolumeContext()}, "uuid-1")
	check(t, err, codes.NotFound, "pvc-7")
	if err := s.cluster.PutNodeInfo(ctx, kube.NodeInfo{Name: "node-3", UUID: "uuid-3", Networks: []string{"nowhere"}}); err != nil {
		t.Fatal(err)
	}
	_, err = s.publishFiles(ctx, v, "uuid-3")
	check(t, err, codes.InvalidArgument, "no address")
	// A volume for one node at a time is.
	alone := func(q *csi.ControllerPublishVolumeRequest) { q.VolumeCapability = mount("") }
	if _, err := s.publishFiles(ctx, v, "uuid-1", alone); err != nil {
		t.Fatal(err)
	}
	_, err = s.publishFiles(ctx, v, "uuid-2", alone)
	check(t, err, codes.FailedPrecondition, "uuid-1")
	_, err = s.publishFiles(ctx, v, "uuid-1", alone, func(q *csi.ControllerPublishVolumeRequest) { q.Readonly = true })
	check(t, err, codes.AlreadyExists, "ro")
	if got := s.sharedWith("pvc-1"); got != "10.0.0.11" {
		t.Errorf("shared with %q", got)
	}

	for id, c := range map[string]*csi.VolumeCapability{"pvc-1": sharedMount(), "pvc-2": mount("")} {
		other := map[string]*csi.VolumeCapability{"pvc-1": {AccessMode: mount("").AccessMode, AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}}, "pvc-2": sharedMount()}[id]
		for _, x := range []struct {
			c  *csi.VolumeCapability
			ok bool
		}{{c, true}, {other, false}} {
			res, err := s.ValidateVolumeCapabilities(ctx, &csi.ValidateVolumeCapabilitiesRequest{VolumeId: id, VolumeCapabilities: []*csi.VolumeCapability{x.c}, Secrets: s.secrets})
			if err != nil || (res.GetConfirmed() != nil) != x.ok {
				t.Errorf("validate %s %v: %v, %v", id, x.c, res, err)
			}
		}
	}
}

// What the provider answers is checked before a node is told.
func TestShareReply(t *testing.T) {
	s := newSystem(t)
	v, err := s.create(t, "pvc-1", asFiles())
	if err != nil {
		t.Fatal(err)
	}
	for _, reply := range []map[string]any{{"export_ip": "nowhere"}, {"export_ip": ""}, {"mount_path": "file"}, {"mount_path": "/a b"}, {"mount_path": "/a,rw"}} {
		rule := s.plan.Arm(fault.Rule{Name: "reply", Hop: ledger.CSP, Op: "PUT /volumes/{id}/actions/publish", Phase: fault.After,
			Do: fault.Error(&csp.Fault{Edit: func(r map[string]any) { maps.Copy(r, reply) }})})
		_, err := s.publishFiles(t.Context(), v, "uuid-1")
		check(t, err, codes.Internal, "pvc-1")
		s.plan.Disarm(rule)
	}
}

// Without records the driver doesn't know who has a share: it is for everybody
// until it is deleted, as upstream's.
func TestShareForgetful(t *testing.T) {
	s := newSystem(t)
	s.options = func(o *hpe.Options) { o.Forgetful = true }
	s.start()
	v, err := s.create(t, "pvc-1", asFiles())
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{"uuid-1", "uuid-2"} {
		if _, err := s.publishFiles(t.Context(), v, node); err != nil {
			t.Fatal(err)
		}
	}
	s.records = record.NewMemory()
	s.start()
	if err := s.unpublish(t.Context(), "pvc-1", "uuid-1"); err != nil || s.sharedWith("pvc-1") != "*" {
		t.Errorf("shared with %q, %v", s.sharedWith("pvc-1"), err)
	}
	if err := s.delete(t.Context(), "pvc-1"); err != nil || s.count("pvc-1") != 0 {
		t.Errorf("%d left, %v", s.count("pvc-1"), err)
	}
}

// A share whose record was lost stays with the nodes that have it, until it is
// deleted. One for a single node goes over to the node that asks.
func TestShareRecordLost(t *testing.T) {
	s := newSystem(t)
	ctx := t.Context()
	v, err := s.create(t, "pvc-1", asFiles())
	if err != nil {
		t.Fatal(err)
	}
	publish := func(node, with string, change ...func(*csi.ControllerPublishVolumeRequest)) {
		t.Helper()
		if _, err := s.publishFiles(ctx, v, node, change...); err != nil {
			t.Fatal(err)
		}
		if got := s.sharedWith("pvc-1"); got != with {
			t.Errorf("shared with %q, expected %q", got, with)
		}
	}
	lose := func() {
		s.records = record.NewMemory()
		s.start()
	}
	publish("uuid-1", "10.0.0.11")
	lose()
	publish("uuid-2", "*,10.0.0.12")
	for _, node := range []string{"uuid-2", "uuid-1"} {
		if err := s.unpublish(ctx, "pvc-1", node); err != nil || s.sharedWith("pvc-1") != "*" {
			t.Errorf("shared with %q, %v", s.sharedWith("pvc-1"), err)
		}
	}
	if err := s.delete(ctx, "pvc-1"); err != nil {
		t.Error(err)
	}
	if err := s.left(ctx); err != nil {
		t.Error(err)
	}
	if v, err = s.create(t, "pvc-1", asFiles()); err != nil {
		t.Fatal(err)
	}
	alone := func(q *csi.ControllerPublishVolumeRequest) { q.VolumeCapability = mount("") }
	publish("uuid-1", "10.0.0.11", alone)
	lose()
	publish("uuid-2", "10.0.0.12", alone)
}

// shareLife takes a share through its life and looks at the array after each step.
func (s *system) shareLife(ctx context.Context, name string) error {
	var v *csi.Volume
	publish := func(node string) func(context.Context) error {
		return func(ctx context.Context) error { _, err := s.publishFiles(ctx, v, node); return err }
	}
	unpublish := func(node string) func(context.Context) error {
		return func(ctx context.Context) error { return s.unpublish(ctx, name, node) }
	}
	for _, x := range []struct {
		name string
		call func(context.Context) error
		with string
	}{
		{"create", func(ctx context.Context) error {
			res, err := s.CreateVolume(ctx, s.createRequest(name, 1<<30, asFiles()))
			v = res.GetVolume()
			return err
		}, ""},
		{"publish", publish("uuid-1"), "10.0.0.11"},
		{"publish on the other", publish("uuid-2"), "10.0.0.11,10.0.0.12"},
		{"expand", func(ctx context.Context) error {
			_, err := s.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{VolumeId: name, CapacityRange: &csi.CapacityRange{RequiredBytes: 2 << 30}, Secrets: s.secrets})
			return err
		}, "10.0.0.11,10.0.0.12"},
		{"unpublish", unpublish("uuid-1"), "10.0.0.12"},
		{"unpublish from the other", unpublish("uuid-2"), ""},
		{"delete", func(ctx context.Context) error { return s.delete(ctx, name) }, ""},
	} {
		if err := s.step(ctx, x.name, x.call); err != nil {
			return err
		}
		if got := s.sharedWith(name); got != x.with {
			return fmt.Errorf("after %s: shared with %q, expected %q", x.name, got, x.with)
		}
	}
	return s.left(ctx)
}

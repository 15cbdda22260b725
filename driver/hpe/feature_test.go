package hpe_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csilab/csilab/driver/controller"
	"github.com/csilab/csilab/driver/hpe"
	"github.com/csilab/csilab/driver/hpe/kube"
	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/csp"
	"github.com/csilab/csilab/sim/san"
)

// check fails unless err has the code and names what is wrong.
func check(t *testing.T, err error, code codes.Code, says string) {
	t.Helper()
	if status.Code(err) != code || err != nil && !strings.Contains(err.Error(), says) {
		t.Errorf("got %v, want %s with %q", err, code, says)
	}
}

func parameters(p map[string]string) func(*csi.CreateVolumeRequest) {
	return func(q *csi.CreateVolumeRequest) { q.Parameters = p }
}

func TestParameters(t *testing.T) {
	for name, c := range map[string]struct {
		p    map[string]string
		says string // "" when it is right
	}{
		"all of a file system": {map[string]string{"fsOwner": "1000:1000", "fsMode": "0770", "fsCreateOptions": "-E nodiscard", "fsRepair": "true"}, ""},
		"owner":                {map[string]string{"fsOwner": "root:root"}, "fsOwner"},
		"mode":                 {map[string]string{"fsMode": "888"}, "fsMode"},
		"options":              {map[string]string{"fsCreateOptions": "-E; reboot"}, "fsCreateOptions"},
		"repair":               {map[string]string{"fsRepair": "yes"}, "fsRepair"},
		"type":                 {map[string]string{"fsType": "ntfs"}, "fsType"},
		"protocol":             {map[string]string{"accessProtocol": "smb"}, "accessProtocol"},
		"host sees":            {map[string]string{"hostSeesVLUN": "1"}, "hostSeesVLUN"},
		"encryption":           {map[string]string{"hostEncryption": "true"}, "hostEncryption"},
		"no encryption":        {map[string]string{"hostEncryption": "false"}, ""},
		"NFS":                  {map[string]string{"nfsResources": "true"}, "nfsResources"},
		"two sources":          {map[string]string{"cloneOf": "a", "importVolAsClone": "b"}, "exclude"},
		"two groups":           {map[string]string{"oneRcgPerPvc": "true", "remoteCopyGroup": "b", "replicationDevices": "c"}, "exclude"},
		"group alone":          {map[string]string{"remoteCopyGroup": "b"}, "replicationDevices"},
		"the orchestrator's":   {map[string]string{"csi.storage.k8s.io/pvc/name": "a", "csi.storage.k8s.io/pvc/namespace": "b"}, ""},
		"the provider's":       {map[string]string{"cpg": "nowhere"}, "nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSystem(t)
			v, err := s.create(t, "pvc-1", parameters(c.p))
			if c.says != "" {
				check(t, err, codes.InvalidArgument, c.says)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for k, x := range v.GetVolumeContext() {
				if strings.Contains(k, "/") {
					t.Errorf("context has %s=%s", k, x)
				}
			}
			pc, err := s.publish(t.Context(), "pvc-1", "uuid-1", func(q *csi.ControllerPublishVolumeRequest) { q.VolumeContext = v.GetVolumeContext() })
			if err != nil {
				t.Fatal(err)
			}
			for _, k := range []string{"fsOwner", "fsMode", "fsCreateOptions", "fsRepair"} {
				if pc[k] != c.p[k] {
					t.Errorf("publish context has %s=%q, want %q", k, pc[k], c.p[k])
				}
			}
		})
	}
	t.Run("block", func(t *testing.T) {
		s := newSystem(t)
		raw := func(q *csi.CreateVolumeRequest) {
			q.VolumeCapabilities = []*csi.VolumeCapability{block(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)}
		}
		_, err := s.create(t, "pvc-1", raw, parameters(map[string]string{"fsMode": "0700"}))
		check(t, err, codes.InvalidArgument, "fsMode")
		v, err := s.create(t, "pvc-1", raw)
		if err != nil || v.GetVolumeContext()["fsType"] != "" {
			t.Errorf("%v, %v", v, err)
		}
	})
}

// What claims say: overrides that a class allows, and other claims as sources.
func TestClaims(t *testing.T) {
	s := newSystem(t)
	claim := func(uid, name, volume string, annotations map[string]string) {
		s.cluster.PutClaim(kube.Claim{UID: uid, Namespace: "ns", Name: name, Volume: volume, Annotations: annotations})
	}
	claim("1", "one", "pvc-1", map[string]string{"csi.hpe.com/cpg": san.DefaultSnapCPG, "csi.hpe.com/hostSeesVLUN": "true"})
	p := map[string]string{"accessProtocol": "iscsi", "cpg": san.DefaultCPG, "allowOverrides": "cpg, description"}
	v, err := s.create(t, "pvc-1", parameters(p))
	if err != nil || v.GetVolumeContext()["cpg"] != san.DefaultSnapCPG || v.GetVolumeContext()["hostSeesVLUN"] != "" {
		t.Errorf("%v, %v", v, err)
	}
	a, _ := s.san.Array("array1")
	if got := a.Volumes()[0].UserCPG; got != san.DefaultSnapCPG {
		t.Errorf("the volume is in %s", got)
	}
	_, err = s.create(t, "pvc-2", parameters(p))
	check(t, err, codes.Unavailable, `uid "2"`)
	_, err = s.create(t, "other", parameters(p))
	check(t, err, codes.InvalidArgument, "pvc-<uid>")

	claim("3", "three", "", nil)
	source := func(key, claim string) map[string]string {
		return map[string]string{"accessProtocol": "iscsi", "cpg": san.DefaultCPG, key: claim}
	}
	for _, key := range []string{"cloneOf", "virtualCopyOf"} {
		_, err = s.create(t, "pvc-3", parameters(source(key, "none")))
		check(t, err, codes.NotFound, "ns/none")
		_, err = s.create(t, "pvc-3", parameters(source(key, "three")))
		check(t, err, codes.Unavailable, "no volume yet")
		err = s.step(t.Context(), key, func(context.Context) error {
			v, err = s.create(t, "pvc-3", parameters(source(key, "one")))
			return err
		})
		if err != nil || v.GetVolumeContext()[key] != "pvc-1" {
			t.Errorf("%v, %v", v, err)
		}
		if err := s.delete(t.Context(), "pvc-3"); err != nil {
			t.Error(err)
		}
	}
	// Without the claim in the request its namespace is told by the provisioner.
	p = source("cloneOf", "one")
	p["csi.storage.k8s.io/pvc/namespace"] = "ns"
	if err := s.step(t.Context(), "clone", func(context.Context) error { _, err := s.create(t, "any", parameters(p)); return err }); err != nil {
		t.Error(err)
	}
}

// An administrator's volume becomes a claim's.
func TestImport(t *testing.T) {
	s := newSystem(t)
	a, _ := s.san.Array("array1")
	if err := a.Change(func(now time.Time) ([]array.ContentOp, error) {
		_, err := a.Core().CreateVolume(now, array.VolumeSpec{Name: "legacy", CPG: san.DefaultCPG, SizeMiB: 2048})
		return nil, err
	}); err != nil {
		t.Fatal(err)
	}
	p := map[string]string{"accessProtocol": "iscsi", "importVolumeName": "legacy"}
	for range 2 {
		res, err := s.CreateVolume(t.Context(), s.createRequest("pvc-1", 2<<30, parameters(p)))
		if err != nil || res.GetVolume().GetCapacityBytes() != 2<<30 || s.count("pvc-1") != 1 || len(a.Volumes()) != 1 {
			t.Fatalf("%v, %v, %v", res, err, a.Volumes())
		}
	}
	if _, err := s.publish(t.Context(), "pvc-1", "uuid-1"); err != nil {
		t.Error(err)
	}
	_, err := s.create(t, "pvc-2", parameters(map[string]string{"importVolumeName": "nowhere"}))
	check(t, err, codes.InvalidArgument, "nowhere")
}

func TestNodes(t *testing.T) {
	s := newSystem(t)
	ctx := t.Context()
	if _, err := s.create(t, "pvc-1"); err != nil {
		t.Fatal(err)
	}
	_, err := s.publish(ctx, "pvc-1", "uuid-9")
	check(t, err, codes.NotFound, "uuid-9")
	_, err = s.publish(ctx, "pvc-1", "{}")
	check(t, err, codes.NotFound, "uuid")
	_, err = s.publish(ctx, "pvc-1", "{")
	check(t, err, codes.NotFound, "JSON")
	_, err = s.publish(ctx, "pvc-9", "uuid-1")
	check(t, err, codes.NotFound, "pvc-9")
	pc, err := s.publish(ctx, "pvc-1", "uuid-1")
	if err != nil || len(pc["serialNumber"]) != 32 || pc["serialNumber"] != strings.ToLower(pc["serialNumber"]) || pc["targetNames"] == "" || pc["discoveryIps"] == "" {
		t.Fatalf("%v, %v", pc, err)
	}
	// In another way, or for another node: not while this one has it.
	_, err = s.publish(ctx, "pvc-1", "uuid-1", func(q *csi.ControllerPublishVolumeRequest) { q.Readonly = true })
	check(t, err, codes.AlreadyExists, "rw")
	_, err = s.publish(ctx, "pvc-1", "uuid-2")
	check(t, err, codes.FailedPrecondition, "uuid-1")
	s.start() // the records outlast a restart
	_, err = s.publish(ctx, "pvc-1", "uuid-2")
	check(t, err, codes.FailedPrecondition, "uuid-1")
	if got := s.exportedTo(); got != "iqn-node-1" {
		t.Errorf("exported to %q", got)
	}
	// From nodes that never had it, that nobody knows, and for a volume that is
	// gone.
	for _, node := range []string{"uuid-2", "uuid-9", "nobody", "{", vanilla} {
		if err := s.unpublish(ctx, "pvc-1", node); err != nil {
			t.Errorf("%s: %v", node, err)
		}
	}
	if err := s.unpublish(ctx, "pvc-9", "uuid-1"); err != nil {
		t.Error(err)
	}
	if got := s.exportedTo(); got != "iqn-node-1" {
		t.Errorf("exported to %q", got)
	}
	// From all.
	if err := s.unpublish(ctx, "pvc-1", ""); err != nil || s.exportedTo() != "" {
		t.Errorf("%v, exported to %q", err, s.exportedTo())
	}
	// The node itself as its id, and read-only.
	pc, err = s.publish(ctx, "pvc-1", `{"name":"node-2","uuid":"uuid-2","iqns":["iqn.1994-05.com.redhat:2"]}`, func(q *csi.ControllerPublishVolumeRequest) { q.Readonly = true })
	if err != nil || pc["readOnly"] != "true" || s.exportedTo() != "iqn-node-2" {
		t.Errorf("%v, %v, exported to %q", pc, err, s.exportedTo())
	}
	if err := s.unpublish(ctx, "pvc-1", "uuid-2"); err != nil || s.exportedTo() != "" {
		t.Errorf("%v, exported to %q", err, s.exportedTo())
	}
	// A block volume for several.
	raw := block(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER)
	shared := func(q *csi.ControllerPublishVolumeRequest) { q.VolumeCapability = raw }
	v, err := s.create(t, "pvc-2", func(q *csi.CreateVolumeRequest) { q.VolumeCapabilities = []*csi.VolumeCapability{raw} })
	if err != nil || v.GetVolumeContext()["multiInitiator"] != "true" {
		t.Fatalf("%v, %v", v, err)
	}
	for _, node := range []string{"uuid-1", "uuid-2"} {
		pc, err := s.publish(ctx, "pvc-2", node, shared)
		if err != nil || pc["fsType"] != "" {
			t.Errorf("%v, %v", pc, err)
		}
	}
	if s.exportedTo() != "iqn-node-1 iqn-node-2" {
		t.Errorf("exported to %q", s.exportedTo())
	}
	for _, node := range []string{"uuid-1", "uuid-2"} {
		if err := s.unpublish(ctx, "pvc-2", node); err != nil {
			t.Error(err)
		}
	}
	for _, v := range []string{"pvc-1", "pvc-2"} {
		if err := s.delete(ctx, v); err != nil {
			t.Error(err)
		}
	}
	if err := s.left(ctx); err != nil {
		t.Error(err)
	}
}

// An export that the provider takes for none is taken back all the same (#518).
func TestUnpublishAsks(t *testing.T) {
	s := newSystem(t)
	if _, err := s.create(t, "pvc-1"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.publish(t.Context(), "pvc-1", "uuid-1"); err != nil {
		t.Fatal(err)
	}
	s.records.Delete(t.Context(), "nodes-of-volume pvc-1") // lost
	if err := s.unpublish(t.Context(), "pvc-1", "uuid-1"); err != nil || s.exportedTo() != "" {
		t.Errorf("%v, exported to %q", err, s.exportedTo())
	}
}

func TestCHAP(t *testing.T) {
	const user, password = "csi-user", "0123456789abc"
	for name, c := range map[string]struct {
		set     func(*system)
		context map[string]string
		says    string // of InvalidArgument; "" when it works
		has     bool
	}{
		"none": {func(*system) {}, nil, "", false},
		"of the class": {func(s *system) {
			s.cluster.PutSecret("ns", "chap", map[string]string{"chapUser": user, "chapPassword": password})
		}, map[string]string{"chapSecretName": "chap", "chapSecretNamespace": "ns"}, "", true},
		"of the secrets":  {func(s *system) { s.secrets["chapUser"], s.secrets["chapPassword"] = user, password }, nil, "", true},
		"missing":         {func(*system) {}, map[string]string{"chapSecretName": "chap", "chapSecretNamespace": "ns"}, "ns/chap", false},
		"short password":  {func(s *system) { s.secrets["chapUser"], s.secrets["chapPassword"] = user, "12345678901" }, nil, "11 characters", false},
		"long password":   {func(s *system) { s.secrets["chapUser"], s.secrets["chapPassword"] = user, "12345678901234567" }, nil, "17 characters", false},
		"user that isn't": {func(s *system) { s.secrets["chapUser"], s.secrets["chapPassword"] = "-x", password }, nil, "chapUser", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSystem(t)
			c.set(s)
			if _, err := s.create(t, "pvc-1"); err != nil {
				t.Fatal(err)
			}
			pc, err := s.publish(t.Context(), "pvc-1", "uuid-1", func(q *csi.ControllerPublishVolumeRequest) {
				maps.Copy(q.VolumeContext, c.context)
			})
			if c.says != "" {
				check(t, err, codes.InvalidArgument, c.says)
			} else if err != nil {
				t.Error(err)
			}
			if err != nil && strings.Contains(err.Error(), password) || strings.Contains(fmt.Sprint(pc), password) {
				t.Errorf("the password is in %v or %v", err, pc)
			}
			a, _ := s.san.Array("array1")
			if hs := a.Hosts(); c.has && (len(hs) != 1 || hs[0].CHAPName != user) {
				t.Errorf("hosts %+v", hs)
			}
		})
	}
}

func TestPeerPersistence(t *testing.T) {
	s := newSystem(t, func(c *systemConfig) {
		c.san.Arrays = append(c.san.Arrays, san.ArrayConfig{Config: array.Config{Name: "array2", CopyMiBs: 1 << 20}})
		c.san.Pairs = []san.Pair{{"array1", "array2"}}
		c.csp.ReplicationDevices = map[string]csp.ReplicationDevice{"dev": {TargetName: "array2", TargetCPG: san.DefaultCPG}}
	})
	ctx := t.Context()
	p := map[string]string{"accessProtocol": "iscsi", "cpg": san.DefaultCPG, "replicationDevices": "dev", "remoteCopyGroup": "rcg"}
	if err := s.step(ctx, "create", func(context.Context) error { _, err := s.create(t, "pvc-1", parameters(p)); return err }); err != nil {
		t.Fatal(err)
	}
	var pc map[string]string
	until := time.Now().Add(5 * time.Second)
	for pc["secondaryArrayDetailsKey"] == "" { // once the group copies
		var err error
		if pc, err = s.publish(ctx, "pvc-1", "uuid-1"); err != nil || time.Now().After(until) {
			t.Fatalf("%v, %v", pc, err)
		}
	}
	var peers struct {
		PeerArrayDetails []struct {
			LUN     *int     `json:"lun_id"`
			Targets []string `json:"target_names"`
			IPs     []string `json:"discovery_ips"`
		}
	}
	if err := json.Unmarshal([]byte(pc["secondaryArrayDetailsKey"]), &peers); err != nil || len(peers.PeerArrayDetails) != 1 {
		t.Fatalf("%s, %v", pc["secondaryArrayDetailsKey"], err)
	}
	one := peers.PeerArrayDetails[0]
	if one.LUN == nil || len(one.Targets) == 0 || len(one.IPs) == 0 || slices.Contains(strings.Split(pc["targetNames"], ","), one.Targets[0]) {
		t.Errorf("peer %+v", one)
	}
	if err := s.unpublish(ctx, "pvc-1", "uuid-1"); err != nil || s.exportedTo() != "" {
		t.Errorf("%v, exported to %q", err, s.exportedTo())
	}
	if err := s.step(ctx, "delete", func(ctx context.Context) error { return s.delete(ctx, "pvc-1") }); err != nil {
		t.Error(err)
	}
	if err := s.left(ctx); err != nil {
		t.Error(err)
	}
}

// Snapshots of several volumes at one moment.
func TestGroupSnapshots(t *testing.T) {
	s := newSystem(t)
	ctx := t.Context()
	for _, v := range []string{"pvc-1", "pvc-2", "pvc-3"} {
		if _, err := s.create(t, v); err != nil {
			t.Fatal(err)
		}
	}
	group := func(name string, volumes ...string) (*csi.VolumeGroupSnapshot, error) {
		res, err := s.CreateVolumeGroupSnapshot(ctx, &csi.CreateVolumeGroupSnapshotRequest{Name: name, SourceVolumeIds: volumes, Secrets: s.secrets})
		return res.GetGroupSnapshot(), err
	}
	g, err := group("g-1", "pvc-2", "pvc-1")
	if err != nil || len(g.GetSnapshots()) != 2 || !g.GetReadyToUse() || g.GetSnapshots()[0].GetGroupSnapshotId() != g.GetGroupSnapshotId() || g.GetSnapshots()[0].GetSizeBytes() != 1<<30 {
		t.Fatalf("%v, %v", g, err)
	}
	ids := []string{g.GetSnapshots()[0].GetSnapshotId(), g.GetSnapshots()[1].GetSnapshotId()}
	again, err := group("g-1", "pvc-1", "pvc-2")
	if err != nil || again.GetGroupSnapshotId() != g.GetGroupSnapshotId() {
		t.Errorf("%v, %v", again, err)
	}
	_, err = group("g-1", "pvc-1", "pvc-3")
	check(t, err, codes.AlreadyExists, "pvc-2")
	_, err = group("g-2", "pvc-1", "pvc-9")
	check(t, err, codes.NotFound, "pvc-9")
	_, err = group("g-2", "pvc-1", "pvc-1")
	check(t, err, codes.InvalidArgument, "twice")
	// The volumes are others of a group now; the first snapshot stays what it is.
	if g, err := group("g-3", "pvc-1", "pvc-3"); err != nil || len(g.GetSnapshots()) != 2 {
		t.Errorf("%v, %v", g, err)
	}
	if again, err = group("g-1", "pvc-1", "pvc-2"); err != nil || again.GetGroupSnapshotId() != g.GetGroupSnapshotId() {
		t.Errorf("%v, %v", again, err)
	}
	get := func(id string, snaps ...string) (*csi.GetVolumeGroupSnapshotResponse, error) {
		return s.GetVolumeGroupSnapshot(ctx, &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: id, SnapshotIds: snaps, Secrets: s.secrets})
	}
	if res, err := get("g-1", ids...); err != nil || len(res.GetGroupSnapshot().GetSnapshots()) != 2 {
		t.Errorf("%v, %v", res, err)
	}
	_, err = get("g-1", ids[0])
	check(t, err, codes.InvalidArgument, ids[1])
	_, err = get("g-9")
	check(t, err, codes.NotFound, "g-9")
	// One of them is a snapshot like others: a volume is made from it.
	if err := s.step(ctx, "restore", func(context.Context) error { _, err := s.create(t, "pvc-4", fromSnapshot(ids[0])); return err }); err != nil {
		t.Error(err)
	}
	remove := func(id string, snaps ...string) error {
		_, err := s.DeleteVolumeGroupSnapshot(ctx, &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: id, SnapshotIds: snaps, Secrets: s.secrets})
		return err
	}
	check(t, remove("g-1", ids[0]), codes.InvalidArgument, ids[1])
	for _, g := range []string{"g-1", "g-3", "g-1"} {
		if err := remove(g); err != nil {
			t.Error(err)
		}
	}
	// An administrator's group is taken as a whole or not at all.
	for _, v := range []string{"pvc-1", "pvc-2", "pvc-3", "pvc-4"} {
		if err := s.delete(ctx, v); err != nil {
			t.Error(err)
		}
	}
	if err := s.left(ctx); err != nil {
		t.Error(err)
	}
}

func TestModify(t *testing.T) {
	s := newSystem(t)
	ctx := t.Context()
	if _, err := s.create(t, "pvc-1"); err != nil {
		t.Fatal(err)
	}
	a, _ := s.san.Array("array1")
	modify := func(p map[string]string) error {
		_, err := s.ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{VolumeId: "pvc-1", MutableParameters: p, Secrets: s.secrets})
		return err
	}
	for range 2 {
		if err := s.step(ctx, "modify", func(context.Context) error { return modify(map[string]string{"snapCpg": san.DefaultSnapCPG}) }); err != nil {
			t.Fatal(err)
		}
	}
	if got := a.Volumes()[0].SnapCPG; got != san.DefaultSnapCPG {
		t.Errorf("copies are in %q", got)
	}
	check(t, modify(map[string]string{"accessProtocol": "fc"}), codes.InvalidArgument, "accessProtocol")
	check(t, modify(map[string]string{"snapCpg": "nowhere"}), codes.InvalidArgument, "nowhere")

	b := s.backend
	ctx = controller.WithSecrets(ctx, s.secrets)
	allowed := map[string]string{"allowMutations": "snapCpg"}
	for _, x := range []struct {
		context, annotations map[string]string
		kind                 controller.Kind
		says, cpg            string
	}{
		{nil, map[string]string{"csi.hpe.com/snapCpg": san.DefaultCPG}, 0, "", san.DefaultSnapCPG},
		{allowed, map[string]string{"csi.hpe.com/cpg": "nowhere"}, 0, "", san.DefaultSnapCPG},
		{allowed, map[string]string{"csi.hpe.com/snapCpg": san.DefaultCPG}, 0, "", san.DefaultCPG},
		{allowed, map[string]string{"csi.hpe.com/snapCpg": "nowhere"}, controller.Invalid, "nowhere", san.DefaultCPG},
		{map[string]string{"allowMutations": "accessProtocol"}, nil, controller.Invalid, "accessProtocol", san.DefaultCPG},
	} {
		err := b.Mutate(ctx, "pvc-1", x.context, x.annotations)
		if x.says == "" && err != nil || x.says != "" && (err == nil || controller.KindOf(err) != x.kind || !strings.Contains(err.Error(), x.says)) {
			t.Errorf("%v: %v", x, err)
		}
		if got := a.Volumes()[0].SnapCPG; got != x.cpg {
			t.Errorf("%v: copies are in %q", x, got)
		}
	}
}

func TestLists(t *testing.T) {
	s := newSystem(t)
	ctx := t.Context()
	_, err := s.ListVolumes(ctx, &csi.ListVolumesRequest{})
	check(t, err, codes.Unavailable, "no storage system")
	var want []string
	for i := range 5 {
		id := fmt.Sprint("pvc-", i)
		want = append(want, id)
		if _, err := s.create(t, id); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	token := ""
	for pages := 0; ; pages++ {
		res, err := s.ListVolumes(ctx, &csi.ListVolumesRequest{MaxEntries: 2, StartingToken: token})
		if err != nil || pages > 5 {
			t.Fatal(err)
		}
		for _, e := range res.GetEntries() {
			got = append(got, e.GetVolume().GetVolumeId())
		}
		if pages == 0 { // the last that was seen goes
			if err := s.delete(ctx, got[1]); err != nil {
				t.Fatal(err)
			}
		}
		if token = res.GetNextToken(); token == "" {
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("listed %v, want %v", got, want)
	}
	_, err = s.ListVolumes(ctx, &csi.ListVolumesRequest{StartingToken: "no"})
	check(t, err, codes.Aborted, "starting_token")
	if _, err := s.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "snapshot-1", SourceVolumeId: "pvc-0", Secrets: s.secrets}); err != nil {
		t.Fatal(err)
	}
	for _, q := range []struct {
		id, volume string
		n          int
	}{{"", "", 1}, {"snapshot-1", "", 1}, {"", "pvc-0", 1}, {"snapshot-1", "pvc-2", 0}, {"none", "", 0}, {"", "pvc-2", 0}, {"", "none", 0}} {
		res, err := s.ListSnapshots(ctx, &csi.ListSnapshotsRequest{SnapshotId: q.id, SourceVolumeId: q.volume, Secrets: s.secrets})
		if err != nil || len(res.GetEntries()) != q.n {
			t.Errorf("%v: %v, %v", q, res, err)
		}
	}
	// The name is taken on another volume.
	_, err = s.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "snapshot-1", SourceVolumeId: "pvc-2", Secrets: s.secrets})
	check(t, err, codes.AlreadyExists, "snapshot-1")
}

// A copy that takes its time: Aborted until it is done, however often asked,
// and one clone in the end.
func TestSlowCopy(t *testing.T) {
	var now time.Time // of the array
	s := newSystem(t, func(c *systemConfig) {
		now = time.Now()
		c.san.Now = func() time.Time { return now }
		c.san.Arrays[0].CopyMiBs = 1
		c.conf.CopyWait = 2 * time.Millisecond
	})
	if _, err := s.create(t, "pvc-1"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		_, err := s.create(t, "pvc-2", fromVolume("pvc-1"))
		check(t, err, codes.Aborted, "pvc-2")
	}
	_, err := s.publish(t.Context(), "pvc-2", "uuid-1")
	check(t, err, codes.Aborted, "pvc-2")
	now = now.Add(2000 * time.Second)
	v, err := s.create(t, "pvc-2", fromVolume("pvc-1"))
	if err != nil || v.GetContentSource().GetVolume().GetVolumeId() != "pvc-1" || s.count("pvc-2") != 1 {
		t.Errorf("%v, %v, %d", v, err, s.count("pvc-2"))
	}
	for _, v := range []string{"pvc-1", "pvc-2"} {
		if err := s.delete(t.Context(), v); err != nil {
			t.Error(err)
		}
	}
	if err := s.left(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestNew(t *testing.T) {
	if _, err := hpe.New(hpe.Options{}); err == nil || !strings.Contains(err.Error(), "Records") {
		t.Error(err)
	}
}

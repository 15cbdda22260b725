package vcenter_test

import (
	"encoding/xml"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/vmware/govmomi/cns"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/find"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25/types"
	"github.com/vmware/govmomi/vsan"
	vsanmethods "github.com/vmware/govmomi/vsan/methods"
	vsantypes "github.com/vmware/govmomi/vsan/types"
	vsanfs "github.com/vmware/govmomi/vsan/vsanfs/types"

	"github.com/csilab/csilab/sim/vcenter"
)

// vsanRig has a vSAN datastore and one of VMFS.
func vsanRig(t *testing.T, change ...func(*vcenter.Config)) *rig {
	t.Helper()
	cfg := vcenter.Config{Seed: 3, Datastores: []vcenter.Datastore{{Name: "vmfs"}, {Name: "vsan", Type: "vsan"}}}
	for _, c := range change {
		c(&cfg)
	}
	return newRig(t, cfg)
}

// store finds a datastore.
func (r *rig) store(name string) *object.Datastore {
	r.t.Helper()
	f := find.NewFinder(r.Client.Client)
	ds, err := f.Datastore(r.ctx, "/*/datastore/"+name)
	if err != nil {
		r.t.Fatal(err)
	}
	return ds
}

func fileVolume(name string, mb int64, ds ...types.ManagedObjectReference) cnstypes.CnsVolumeCreateSpec {
	s := volumeSpec(name)
	s.VolumeType, s.Datastores = string(cnstypes.CnsVolumeTypeFile), ds
	s.BackingObjectDetails = &cnstypes.CnsVsanFileShareBackingDetails{}
	s.BackingObjectDetails.GetCnsBackingObjectDetails().CapacityInMb = mb
	s.CreateSpec = &cnstypes.CnsVSANFileCreateSpec{SoftQuotaInMb: mb, Permission: []vsanfs.VsanFileShareNetPermission{
		{Ips: "*", Permissions: vsanfs.VsanFileShareAccessTypeREAD_WRITE, AllowRoot: true}}}
	return s
}

// try creates a volume; the fault is that of its result, as Go type.
func (r *rig) try(s cnstypes.CnsVolumeCreateSpec) (*cnstypes.CnsVolumeCreateResult, string) {
	r.t.Helper()
	t, err := r.cns.CreateVolume(r.ctx, []cnstypes.CnsVolumeCreateSpec{s})
	_, b, err := r.client.result(r.ctx, t, err)
	c, ok := b.(*cnstypes.CnsVolumeCreateResult)
	if !ok {
		r.t.Fatalf("create %s: %v", s.Name, err)
	}
	if err != nil {
		return c, err.Error()
	}
	return c, ""
}

func (r *rig) made(s cnstypes.CnsVolumeCreateSpec) string {
	r.t.Helper()
	c, fault := r.try(s)
	if fault != "" {
		r.t.Fatalf("create %s: %s", s.Name, fault)
	}
	return c.VolumeId.Id
}

func (r *rig) query(id string) cnstypes.CnsVolume {
	r.t.Helper()
	q, err := r.cns.QueryVolume(r.ctx, &cnstypes.CnsQueryFilter{VolumeIds: []cnstypes.CnsVolumeId{{Id: id}}})
	if err != nil || len(q.Volumes) != 1 {
		r.t.Fatalf("query of %s: %+v, %v", id, q, err)
	}
	return q.Volumes[0]
}

// fault wants a fault on the result of a task, or none.
func (r *rig) fault(want string) func(*object.Task, error) {
	return func(task *object.Task, err error) {
		r.t.Helper()
		if _, _, err := r.client.result(r.ctx, task, err); err == nil && want != "" || err != nil && (want == "" || !strings.Contains(err.Error(), want)) {
			r.t.Errorf("got %v, want %q", err, want)
		}
	}
}

// Test2bCreateFile: with vSAN file service a file volume is made, on a vSAN
// datastore whichever the client named or CNS chose; what VMware's own test
// does with one under CNS_RUN_FILESHARE_TESTS.
func Test2bCreateFile(t *testing.T) {
	r := vsanRig(t)
	both := []types.ManagedObjectReference{r.store("vmfs").Reference(), r.store("vsan").Reference()}
	c, fault := r.try(fileVolume("pvc-file", 5120, both...))
	if fault != "" || len(c.PlacementResults) != 2 || len(c.PlacementResults[0].PlacementFaults) != 1 || len(c.PlacementResults[1].PlacementFaults) != 0 {
		t.Fatalf("%q, %+v", fault, c)
	}
	id := c.VolumeId.Id
	if !strings.HasPrefix(id, "file:") {
		t.Errorf("id %s", id)
	}
	chosen := r.made(fileVolume("pvc-anywhere", 10))
	for _, id := range []string{id, chosen} {
		if v := r.query(id); v.VolumeType != "FILE" || v.DatastoreUrl != r.v.DatastoreURL("vsan") {
			t.Errorf("%+v", v)
		}
	}
	d, ok := r.query(id).BackingObjectDetails.(*cnstypes.CnsVsanFileShareBackingDetails)
	if !ok || d.CapacityInMb != 5120 || d.Name == "" || len(d.AccessPoints) != 2 {
		t.Fatalf("backing %#v", d)
	}
	for i, want := range []types.KeyValue{{Key: "NFSv3", Value: ":/" + d.Name}, {Key: "NFSv4.1", Value: ":/vsanfs/" + d.Name}} {
		if p := d.AccessPoints[i]; p.Key != want.Key || !strings.HasSuffix(p.Value, want.Value) {
			t.Errorf("access point %+v, want %+v", p, want)
		}
	}

	acl := func(ips string, gone bool) cnstypes.CnsVolumeACLConfigureSpec {
		return cnstypes.CnsVolumeACLConfigureSpec{VolumeId: cnstypes.CnsVolumeId{Id: id}, AccessControlSpecList: []cnstypes.CnsNFSAccessControlSpec{
			{Permission: []vsanfs.VsanFileShareNetPermission{{Ips: ips, Permissions: "READ_ONLY"}}, Delete: gone}}}
	}
	configure := func(want string, s cnstypes.CnsVolumeACLConfigureSpec) {
		t.Helper()
		r.fault(want)(r.cns.ConfigureVolumeACLs(r.ctx, s))
	}
	configure("", acl("192.168.124.2", false))
	if got := r.permissions(id); !slices.Equal(got, []string{"* READ_WRITE true", "192.168.124.2 READ_ONLY false"}) {
		t.Errorf("permissions %q", got)
	}
	configure("", acl("192.168.124.2", true))
	configure("", acl("*", true))
	if got := r.permissions(id); !slices.Equal(got, []string{"* NO_ACCESS false"}) {
		t.Errorf("permissions %q", got)
	}
	configure("InvalidArgument", acl("not an address", false))

	r.fault("InvalidArgument")(r.cns.ExtendVolume(r.ctx, extendSpec(id, 5119)))
	r.fault("")(r.cns.ExtendVolume(r.ctx, extendSpec(id, 6000)))
	if d := r.query(id).BackingObjectDetails.GetCnsBackingObjectDetails(); d.CapacityInMb != 6000 {
		t.Errorf("extended to %d MB", d.CapacityInMb)
	}
	update := cnstypes.CnsVolumeMetadataUpdateSpec{VolumeId: cnstypes.CnsVolumeId{Id: id}, Metadata: cnstypes.CnsVolumeMetadata{ContainerCluster: volumeSpec("x").Metadata.ContainerCluster,
		EntityMetadata: []cnstypes.BaseCnsEntityMetadata{&cnstypes.CnsKubernetesEntityMetadata{CnsEntityMetadata: cnstypes.CnsEntityMetadata{EntityName: "pv-1"}, EntityType: "PERSISTENT_VOLUME"}}}}
	r.fault("")(r.cns.UpdateVolumeMetadata(r.ctx, []cnstypes.CnsVolumeMetadataUpdateSpec{update}))
	if m := r.query(id).Metadata.EntityMetadata; len(m) != 1 {
		t.Errorf("metadata %+v", m)
	}

	shares := func(q vsantypes.VsanFileShareQuerySpec) *vsantypes.FileShareQueryResult {
		t.Helper()
		c, err := vsan.NewClient(r.ctx, r.Client.Client)
		if err != nil {
			t.Fatal(err)
		}
		res, err := vsanmethods.VsanClusterQueryFileShares(r.ctx, c, &vsantypes.VsanClusterQueryFileShares{
			This: types.ManagedObjectReference{Type: "VsanFileServiceSystem", Value: "vsan-cluster-file-service-system"}, QuerySpec: q})
		if err != nil {
			t.Fatal(err)
		}
		return res.Returnval
	}
	if all := shares(vsantypes.VsanFileShareQuerySpec{Limit: 1}); all.TotalShareCount != 2 || len(all.FileShares) != 1 || all.NextOffset != "1" {
		t.Errorf("shares %+v", all)
	}
	if one := shares(vsantypes.VsanFileShareQuerySpec{Uuids: []string{d.BackingFileId}}); len(one.FileShares) != 1 || one.FileShares[0].Config.Quota != "6000M" ||
		len(one.FileShares[0].Runtime.AccessPoints) != 2 || len(one.FileShares[0].Config.Permission) != 1 {
		t.Errorf("share %+v", one.FileShares)
	}

	// The share may outlive its volume, and become one again.
	r.fault("")(r.cns.DeleteVolume(r.ctx, []cnstypes.CnsVolumeId{{Id: id}}, false))
	again := fileVolume("pvc-again", 0)
	again.BackingObjectDetails.(*cnstypes.CnsVsanFileShareBackingDetails).BackingFileId = d.BackingFileId
	if got := r.made(again); got != id {
		t.Errorf("the share became %s", got)
	}
	if _, fault := r.try(again); !strings.Contains(fault, "CnsAlreadyRegisteredFault") {
		t.Errorf("registered twice: %q", fault)
	}
	for _, id := range []string{id, chosen} {
		if err := r.delete(r.ctx, id); err != nil {
			t.Error(err)
		}
	}
	if vs := r.v.Volumes(); len(vs) != 0 {
		t.Errorf("left over: %+v", vs)
	}
}

func extendSpec(id string, mb int64) []cnstypes.CnsVolumeExtendSpec {
	return []cnstypes.CnsVolumeExtendSpec{{VolumeId: cnstypes.CnsVolumeId{Id: id}, CapacityInMb: mb}}
}

// permissions of a share, read from the wire: govmomi has no field for them.
func (r *rig) permissions(id string) (out []string) {
	r.t.Helper()
	body := `<Envelope xmlns="http://schemas.xmlsoap.org/soap/envelope/"><Body><CnsQueryVolume xmlns="urn:vsan"><_this type="CnsVolumeManager">cns-volume-manager</_this><filter xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="CnsQueryFilter"><volumeIds><id>` + id + `</id></volumeIds></filter></CnsQueryVolume></Body></Envelope>`
	u := r.v.URL()
	u.User, u.Path = nil, cns.Path
	req, err := http.NewRequestWithContext(r.ctx, http.MethodPost, u.String(), strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, c := range r.Client.Jar.Cookies(r.v.URL()) {
		req.AddCookie(c)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	var e struct {
		Permission []struct {
			IPs       string `xml:"ips"`
			Access    string `xml:"permissions"`
			AllowRoot string `xml:"allowRoot"`
		} `xml:"Body>CnsQueryVolumeResponse>returnval>volumes>backingObjectDetails>permission"`
	}
	if err := xml.Unmarshal(raw, &e); err != nil {
		r.t.Fatalf("%v: %s", err, raw)
	}
	for _, p := range e.Permission {
		out = append(out, p.IPs+" "+p.Access+" "+p.AllowRoot)
	}
	return out
}

// TestFileVolumeRefusals: what needs a disk is refused for a file volume, what
// needs a share for a block volume, and a file volume without file service.
func TestFileVolumeRefusals(t *testing.T) {
	r := vsanRig(t)
	id := r.made(fileVolume("pvc-file", 10))
	block, err := r.create(r.ctx, "pvc-block")
	if err != nil {
		t.Fatal(err)
	}
	vm := r.node("node-1").Reference()
	cid := cnstypes.CnsVolumeId{Id: id}
	if _, err := r.attach(r.ctx, id, vm); err == nil || !strings.Contains(err.Error(), "NotSupported") {
		t.Errorf("attach: %v", err)
	}
	if err := r.detach(r.ctx, id, vm); err == nil || !strings.Contains(err.Error(), "NotSupported") {
		t.Errorf("detach: %v", err)
	}
	r.fault("NotSupported")(r.cns.CreateSnapshots(r.ctx, []cnstypes.CnsSnapshotCreateSpec{{VolumeId: cid, Description: "s"}}))
	r.fault("NotSupported")(r.cns.RelocateVolume(r.ctx, cnstypes.NewCnsBlockVolumeRelocateSpec(id, r.store("vmfs").Reference())))
	r.fault("NotSupported")(r.cns.QueryVolumeInfo(r.ctx, []cnstypes.CnsVolumeId{cid}))
	r.fault("NotSupported")(r.cns.ConfigureVolumeACLs(r.ctx, cnstypes.CnsVolumeACLConfigureSpec{VolumeId: cnstypes.CnsVolumeId{Id: block},
		AccessControlSpecList: []cnstypes.CnsNFSAccessControlSpec{{Permission: []vsanfs.VsanFileShareNetPermission{{Ips: "*", Permissions: "READ_ONLY"}}}}}))

	if _, fault := r.try(fileVolume("on-vmfs", 10, r.store("vmfs").Reference())); !strings.Contains(fault, "NotSupported") {
		t.Errorf("on VMFS: %q", fault)
	}
	if err := r.v.FileService("vsan", false); err != nil {
		t.Fatal(err)
	}
	if _, fault := r.try(fileVolume("off", 10, r.store("vsan").Reference())); !strings.Contains(fault, "NotSupported") {
		t.Errorf("without file service: %q", fault)
	}
	if err := r.v.FileService("vmfs", true); err == nil {
		t.Error("a file service on VMFS")
	}
	if err := r.delete(r.ctx, id); err != nil {
		t.Errorf("the old ones stay, and can be deleted: %v", err)
	}
}

// Test2aVsanClusterGetConfig: Enabled is set for every cluster, and the file
// service is configured where there is a vSAN datastore: the upstream driver
// dereferences the one and looks for the other before it makes file volumes.
func Test2aVsanClusterGetConfig(t *testing.T) {
	r := newRig(t, vcenter.Config{Nodes: []vcenter.Node{{Name: "node-1", Zone: "a"}, {Name: "node-2", Zone: "b"}, {Name: "node-3", Zone: "c"}},
		Datastores: []vcenter.Datastore{{Name: "vmfs"}, {Name: "vsan-a", Type: "vsan", Zones: []string{"a"}}, {Name: "vsan-c", Type: "vsan", Zones: []string{"c"}, NoFileService: true}}})
	c, err := vsan.NewClient(r.ctx, r.Client.Client)
	if err != nil {
		t.Fatal(err)
	}
	clusters, err := find.NewFinder(r.Client.Client).ClusterComputeResourceList(r.ctx, "/*/host/*")
	if err != nil || len(clusters) != 3 {
		t.Fatalf("%v, %v", clusters, err)
	}
	check := func(i int, vsanOn, fs bool) {
		t.Helper()
		cfg, err := c.VsanClusterGetConfig(r.ctx, clusters[i].Reference())
		if err != nil || cfg.Enabled == nil || *cfg.Enabled != vsanOn || (cfg.FileServiceConfig != nil && cfg.FileServiceConfig.Enabled) != fs {
			t.Errorf("cluster %d: %+v, %v", i, cfg, err)
			return
		}
		if fs && (len(cfg.FileServiceConfig.Domains) != 1 || len(cfg.FileServiceConfig.Domains[0].FileServerIpConfig) != 2) {
			t.Errorf("cluster %d: domains %+v", i, cfg.FileServiceConfig.Domains)
		}
	}
	check(0, true, true)
	check(1, false, false)
	check(2, true, false)
	on := vsantypes.VimVsanReconfigSpec{FileServiceConfig: &vsantypes.VsanFileServiceConfig{Enabled: true}}
	task, err := c.VsanClusterReconfig(r.ctx, clusters[2].Reference(), on)
	if err == nil {
		err = task.Wait(r.ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	check(2, true, true)
	if _, err := c.VsanClusterReconfig(r.ctx, clusters[1].Reference(), on); err == nil {
		t.Error("a file service without vSAN")
	}
	if _, err := c.VsanClusterGetConfig(r.ctx, types.ManagedObjectReference{Type: "ClusterComputeResource", Value: "domain-c99999"}); err == nil {
		t.Error("the configuration of no cluster")
	}
}

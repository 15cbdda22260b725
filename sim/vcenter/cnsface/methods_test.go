package cnsface_test

import (
	"fmt"
	"strings"
	"testing"

	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/vim25/mo"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/vcenter/cns"
	"github.com/csilab/csilab/sim/vcenter/cnsface"
)

const (
	notRegistered = "types.CnsNotRegisteredFault"
	invalidState  = "types.InvalidState"
	alreadyExists = "types.AlreadyExists"
)

func at(version string) func(*cnsface.Config) {
	return func(c *cnsface.Config) { c.Version = version }
}

func (l *lab) relocate(volume string, ds mo.Reference, profile ...vim.BaseVirtualMachineProfileSpec) outcome {
	l.t.Helper()
	return l.wait(l.cns.RelocateVolume(l.ctx, cnstypes.NewCnsBlockVolumeRelocateSpec(volume, ds.Reference(), profile...)))
}

func (l *lab) unregister(volume, target string) outcome {
	l.t.Helper()
	return l.wait(l.cns.UnregisterVolume(l.ctx, []cnstypes.CnsUnregisterVolumeSpec{{VolumeId: cnstypes.CnsVolumeId{Id: volume}, TargetVolumeType: target}}))
}

func (l *lab) query(f cnstypes.CnsQueryFilter) []cnstypes.CnsVolume {
	l.t.Helper()
	r, err := l.cns.QueryVolume(l.ctx, &f)
	if err != nil {
		l.t.Fatal(err)
	}
	return r.Volumes
}

func byID(id string) cnstypes.CnsQueryFilter {
	return cnstypes.CnsQueryFilter{VolumeIds: []cnstypes.CnsVolumeId{{Id: id}}}
}

func profile(id string) vim.BaseVirtualMachineProfileSpec {
	return &vim.VirtualMachineDefinedProfileSpec{ProfileId: id}
}

// TestRelocate: a volume moves with its bytes, its snapshots and its VM.
func TestRelocate(t *testing.T) {
	t.Parallel()
	store := disk.NewMemory()
	defer store.Close()
	l := newLab(t, func(c *cnsface.Config) {
		c.Disks = store
		c.Policies = func(id string) bool { return id == "gold" }
	})
	id := l.create("a", 1)
	img, err := store.Open(id)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	if _, err := img.WriteAt([]byte("here"), 0); err != nil {
		t.Fatal(err)
	}
	l.ok(l.snapshot(id, "s"))
	l.ok(l.attach(id, l.vms[0]))
	l.refused(alreadyExists, l.relocate(id, l.ds[0]))
	l.refused(objectGone, l.relocate(id, ref("Datastore", "datastore-999")))
	l.refused(notFound, l.relocate("nope", l.ds[1]))
	l.refused(invalidArg, l.relocate(id, l.ds[1], profile("lead")))
	l.refused(taskInvalid, l.wait(l.cns.RelocateVolume(l.ctx)))
	l.refused(notSupported, l.wait(l.cns.RelocateVolume(l.ctx, cnstypes.CnsBlockVolumeRelocateSpec{CnsVolumeRelocateSpec: cnstypes.CnsVolumeRelocateSpec{
		VolumeId: cnstypes.CnsVolumeId{Id: id}, Datastore: l.ds[1].Reference(),
		ServiceLocator: &vim.ServiceLocator{Url: "https://elsewhere/sdk", Credential: &vim.ServiceLocatorNamePassword{Username: "u"}},
	}})))

	l.ok(l.relocate(id, l.ds[1], profile("gold")))
	var ds mo.Datastore
	if err := l.vc.RetrieveOne(l.ctx, l.ds[1].Reference(), []string{"summary"}, &ds); err != nil {
		t.Fatal(err)
	}
	vs := l.query(byID(id))
	if len(vs) != 1 || vs[0].DatastoreUrl != ds.Summary.Url || vs[0].StoragePolicyId != "gold" {
		t.Errorf("moved to %+v, want %s", vs, ds.Summary.Url)
	}
	if p := vs[0].BackingObjectDetails.(*cnstypes.CnsBlockBackingDetails); !strings.HasPrefix(p.BackingDiskPath, "["+ds.Summary.Name+"] ") || !strings.HasPrefix(p.BackingDiskUrlPath, ds.Summary.Url) {
		t.Errorf("backing %+v", p)
	}
	b := l.disksOf(l.vms[0])[id].Backing.(*vim.VirtualDiskFlatVer2BackingInfo)
	// An attached disk goes into the folder of its VM, beside the VM's own.
	vm, err := l.vms[0].ObjectName(l.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("[%s] %s/%s_1.vmdk", ds.Summary.Name, vm, vm); *b.Datastore != l.ds[1].Reference() || b.FileName != want || vs[0].BackingObjectDetails.(*cnstypes.CnsBlockBackingDetails).BackingDiskPath != want {
		t.Errorf("the VM has it at %+v, want %s", b, want)
	}
	buf := make([]byte, 4)
	if _, err := img.ReadAt(buf, 0); err != nil || string(buf) != "here" {
		t.Errorf("content %q, %v", buf, err)
	}
	l.ok(l.detach(id, l.vms[0]))
	// A free one goes among the first class disks.
	l.ok(l.relocate(id, l.ds[0]))
	if p := l.query(byID(id))[0].BackingObjectDetails.(*cnstypes.CnsBlockBackingDetails).BackingDiskPath; p != "[LocalDS_0] fcd/"+cns.BackingName(id)+".vmdk" {
		t.Errorf("then at %s", p)
	}
}

// TestUnregister: CNS forgets the volume, the disk stays; every operation
// says so until it is registered again.
func TestUnregister(t *testing.T) {
	t.Parallel()
	l := newLab(t, at("9.1.0"))
	id := l.create("a", 10)
	l.refused(invalidArg, l.unregister(id, "TAPE"))
	l.refused(notFound, l.unregister("nope", "FCD"))
	l.ok(l.attach(id, l.vms[0]))
	l.refused(invalidState, l.unregister(id, "FCD"))
	l.ok(l.detach(id, l.vms[0]))
	snap := l.ok(l.snapshot(id, "s")).(*cnstypes.CnsSnapshotCreateResult).Snapshot.SnapshotId
	l.refused(cnsFault, l.unregister(id, "LEGACY_DISK"))
	l.ok(l.unregister(id, "FCD"))
	if len(l.query(byID(id))) != 0 || len(l.disks.sizes()) != 1 {
		t.Error("the volume is to go, its disk to stay")
	}
	for name, o := range map[string]outcome{
		"unregister": l.unregister(id, "FCD"), "attach": l.attach(id, l.vms[0]), "detach": l.detach(id, l.vms[0]),
		"delete": l.delete(id), "extend": l.extend(id, 20), "snapshot": l.snapshot(id, "x"),
		"delete snapshot": l.deleteSnapshot(id, snap.Id), "relocate": l.relocate(id, l.ds[1]),
	} {
		if k, text := o.fault(); k != notRegistered {
			t.Errorf("%s: %s %s, want %s", name, k, text, notRegistered)
		}
	}
	s := l.spec("again", 10)
	s.BackingObjectDetails.(*cnstypes.CnsBlockBackingDetails).BackingDiskId = id
	for range 2 { // the second time it is a volume already
		if got := l.createSpec(s); got != id {
			t.Errorf("registered as %s", got)
		}
	}
	l.ok(l.deleteSnapshot(id, snap.Id))
	l.ok(l.unregister(id, "LEGACY_DISK"))
	l.refused(notFound, l.attach(id, l.vms[0])) // no first class disk any more
}

// TestAttachAgain: from 9.1 on, the VM that has the volume gets the same reply
// again; another one doesn't.
func TestAttachAgain(t *testing.T) {
	t.Parallel()
	l := newLab(t, at("9.1.0"))
	id := l.create("a", 10)
	first := l.ok(l.attach(id, l.vms[0])).(*cnstypes.CnsVolumeAttachResult).DiskUUID
	if again := l.ok(l.attach(id, l.vms[0])).(*cnstypes.CnsVolumeAttachResult).DiskUUID; again != first || len(l.nodes.list()) != 1 {
		t.Errorf("disk %s, then %s; plugged %v", first, again, l.nodes.list())
	}
	l.refused(inUse, l.attach(id, l.vms[1]))
}

func TestReconfigPolicy(t *testing.T) {
	t.Parallel()
	l := newLab(t, func(c *cnsface.Config) {
		c.Policies = func(id string) bool { return id == "gold" || id == "vsan" }
		c.Compatible = func(policy, _ string) string {
			if policy == "vsan" {
				return "no vSAN"
			}
			return ""
		}
	})
	id := l.create("a", 10)
	reconfig := func(volume string, p ...vim.BaseVirtualMachineProfileSpec) outcome {
		t.Helper()
		return l.wait(l.cns.ReconfigVolumePolicy(l.ctx, []cnstypes.CnsVolumePolicyReconfigSpec{{VolumeId: cnstypes.CnsVolumeId{Id: volume}, Profile: p}}))
	}
	l.refused(notFound, reconfig("nope", profile("gold")))
	l.refused(invalidArg, reconfig(id, profile("lead")))
	l.refused(invalidArg, reconfig(id))
	l.refused(cnsFault, reconfig(id, profile("vsan")))
	l.refused(taskInvalid, l.wait(l.cns.ReconfigVolumePolicy(l.ctx, nil)))
	l.ok(reconfig(id, profile("gold")))
	if vs := l.query(cnstypes.CnsQueryFilter{StoragePolicyId: "gold"}); len(vs) != 1 || vs[0].StoragePolicyId != "gold" {
		t.Errorf("%+v", vs)
	}
}

func TestCrypto(t *testing.T) {
	t.Parallel()
	l := newLab(t, func(c *cnsface.Config) { c.Policies = func(id string) bool { return id == "gold" } })
	crypt := func(volume string, s vim.BaseCryptoSpec, p ...vim.BaseVirtualMachineProfileSpec) outcome {
		t.Helper()
		u := cnstypes.CnsVolumeCryptoUpdateSpec{VolumeId: cnstypes.CnsVolumeId{Id: volume}, Profile: p}
		if s != nil {
			u.DisksCrypto = &vim.DiskCryptoSpec{Crypto: s}
		}
		return l.wait(l.cns.UpdateVolumeCrypto(l.ctx, []cnstypes.CnsVolumeCryptoUpdateSpec{u}))
	}
	key := func(id string) vim.CryptoKeyId {
		return vim.CryptoKeyId{KeyId: id, ProviderId: &vim.KeyProviderId{Id: "kms"}}
	}
	keyOf := func(id string) string {
		t.Helper()
		task, err := l.cns.QueryVolumeInfo(l.ctx, []cnstypes.CnsVolumeId{{Id: id}})
		r := l.ok(l.wait(task, err)).(*cnstypes.CnsQueryVolumeInfoResult)
		b := r.VolumeInfo.(*cnstypes.CnsBlockVolumeInfo).VStorageObject.Config.Backing.(*vim.BaseConfigInfoDiskFileBackingInfo)
		if b.KeyId == nil {
			return ""
		}
		return b.KeyId.KeyId
	}
	id := l.create("a", 10)
	l.refused(invalidArg, crypt(id, nil))
	l.refused(invalidArg, crypt(id, &vim.CryptoSpecEncrypt{}))
	l.refused(invalidArg, crypt(id, &vim.CryptoSpecRegister{CryptoKeyId: key("k")}))
	l.refused(notFound, crypt("nope", &vim.CryptoSpecEncrypt{CryptoKeyId: key("k")}))
	l.refused(invalidState, crypt(id, &vim.CryptoSpecDecrypt{}))
	l.refused(invalidState, crypt(id, &vim.CryptoSpecShallowRecrypt{NewKeyId: key("k")}))
	l.ok(crypt(id, &vim.CryptoSpecEncrypt{CryptoKeyId: key("k1")}, profile("gold")))
	if k := keyOf(id); k != "k1" || l.query(byID(id))[0].StoragePolicyId != "gold" {
		t.Errorf("key %q", k)
	}
	l.refused(invalidState, crypt(id, &vim.CryptoSpecEncrypt{CryptoKeyId: key("k2")}))
	l.ok(l.snapshot(id, "s"))
	l.refused(invalidState, crypt(id, &vim.CryptoSpecDeepRecrypt{NewKeyId: key("k2")}))
	l.ok(crypt(id, &vim.CryptoSpecShallowRecrypt{NewKeyId: key("k2")}))
	if k := keyOf(id); k != "k2" {
		t.Errorf("key %q", k)
	}

	s := l.spec("b", 10)
	s.CreateSpec = &cnstypes.CnsBlockCreateSpec{CryptoSpec: &vim.CryptoSpecEncrypt{CryptoKeyId: key("k3")}}
	if k := keyOf(l.createSpec(s)); k != "k3" {
		t.Errorf("made with key %q", k)
	}
	s.CreateSpec = &cnstypes.CnsBlockCreateSpec{CryptoSpec: &vim.CryptoSpecDecrypt{}}
	l.refused(invalidArg, l.tryCreate(s))
	s.CreateSpec = &cnstypes.CnsVSANFileCreateSpec{}
	l.refused(invalidArg, l.tryCreate(s))
}

// TestChangedBlocks: snapshots that are taken while blocks are tracked have a
// change id, which grows.
func TestChangedBlocks(t *testing.T) {
	t.Parallel()
	l := newLab(t, at("9.2.0"))
	id := l.create("a", 10)
	flags := func(volume string, names ...string) []cnstypes.CnsVolumeControlFlagsSpec {
		return []cnstypes.CnsVolumeControlFlagsSpec{{VolumeId: cnstypes.CnsVolumeId{Id: volume}, ControlFlags: names}}
	}
	change := func() string {
		t.Helper()
		return l.ok(l.snapshot(id, "s")).(*cnstypes.CnsSnapshotCreateResult).Snapshot.ChangedBlockTrackingId
	}
	status := func() cnstypes.CnsVolumeCBTStatus {
		t.Helper()
		return l.query(byID(id))[0].ChangedBlockTracking
	}
	if c := change(); c != "" || status() != cnstypes.CnsVolumeCBTStatusDisabled {
		t.Errorf("untracked: %q %q", c, status())
	}
	for _, bad := range [][]cnstypes.CnsVolumeControlFlagsSpec{nil, flags("nope", "keepAfterDeleteVm"), append(flags(id, "enableChangedBlockTracking"), flags(id, "immortal")...)} {
		if soapFaultOf(l.cns.SetVolumeControlFlags(l.ctx, bad)) == nil || soapFaultOf(l.cns.ClearVolumeControlFlags(l.ctx, bad)) == nil {
			t.Errorf("%+v passed", bad)
		}
	}
	if s := status(); s != cnstypes.CnsVolumeCBTStatusDisabled {
		t.Errorf("what is refused changed the state to %q", s)
	}
	if err := l.cns.SetVolumeControlFlags(l.ctx, flags(id, "enableChangedBlockTracking")); err != nil {
		t.Fatal(err)
	}
	a, b := change(), change()
	if disk, n, _ := strings.Cut(a, "/"); n != "2" || b != disk+"/3" || status() != cnstypes.CnsVolumeCBTStatusEnabled {
		t.Errorf("change ids %q, %q, %q", a, b, status())
	}
	f := cnstypes.CnsQueryFilter{ChangedBlockTracking: cnstypes.CnsVolumeCBTStatusEnabled}
	if n := len(l.query(f)); n != 1 {
		t.Errorf("%d volumes are tracked", n)
	}
	f.ChangedBlockTracking = "ON"
	if _, err := l.cns.QueryVolume(l.ctx, &f); soapFaultOf(err) == nil {
		t.Errorf("filter ON: %v", err)
	}
	if err := l.cns.ClearVolumeControlFlags(l.ctx, flags(id, "enableChangedBlockTracking")); err != nil {
		t.Fatal(err)
	}
	if c := change(); c != "" {
		t.Errorf("untracked again: %q", c)
	}
	// A disk that is told to stay does.
	if err := l.cns.SetVolumeControlFlags(l.ctx, flags(id, "disableRelocation")); err != nil {
		t.Fatal(err)
	}
	l.refused(invalidState, l.relocate(id, l.ds[1]))
}

// TestLinkedClone: a clone has the bytes of its snapshot, which stays while it
// lives.
func TestLinkedClone(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	id := l.create("a", 10)
	snap := l.ok(l.snapshot(id, "s")).(*cnstypes.CnsSnapshotCreateResult).Snapshot.SnapshotId
	s := l.spec("clone", 10)
	s.VolumeSource = &cnstypes.CnsSnapshotVolumeSource{VolumeId: cnstypes.CnsVolumeId{Id: id}, SnapshotId: snap, LinkedClone: true}
	clone := l.createSpec(s)
	l.refused(inUse, l.deleteSnapshot(id, snap.Id))
	l.refused(inUse, l.delete(id))
	l.refused(inUse, l.relocate(id, l.ds[1]))
	l.refused(notSupported, l.relocate(clone, l.ds[1]))
	l.ok(l.delete(clone))
	l.ok(l.deleteSnapshot(id, snap.Id))
	l.ok(l.delete(id))
}

func TestSync(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	id := l.create("a", 10)
	sync := func(specs ...cnstypes.CnsSyncVolumeSpec) outcome {
		t.Helper()
		return l.wait(l.cns.SyncVolume(l.ctx, specs))
	}
	volume := cnstypes.CnsVolumeId{Id: id}
	home, other := l.ds[0].Reference(), l.ds[1].Reference()
	l.ok(sync(cnstypes.CnsSyncVolumeSpec{VolumeId: volume, Datastore: &home, SyncMode: []string{"SPACE_USAGE"}}))
	l.ok(sync(cnstypes.CnsSyncVolumeSpec{VolumeId: volume}))
	l.refused(invalidArg, sync(cnstypes.CnsSyncVolumeSpec{VolumeId: volume, Datastore: &other}))
	l.refused(invalidArg, sync(cnstypes.CnsSyncVolumeSpec{VolumeId: volume, SyncMode: []string{"ALL"}}))
	l.refused(notFound, sync(cnstypes.CnsSyncVolumeSpec{VolumeId: cnstypes.CnsVolumeId{Id: "nope"}}))
	l.refused(taskInvalid, sync())

	datastore := func(url string) error {
		t.Helper()
		task, err := l.cns.SyncDatastore(l.ctx, url, true)
		if err != nil {
			t.Fatal(err)
		}
		return task.Wait(l.ctx)
	}
	var ds mo.Datastore
	if err := l.vc.RetrieveOne(l.ctx, home, []string{"summary"}, &ds); err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{ds.Summary.Url, ""} {
		if err := datastore(url); err != nil {
			t.Errorf("sync %q: %v", url, err)
		}
	}
	if err := datastore("ds:///vmfs/volumes/none/"); err == nil {
		t.Error("an unknown datastore was synced")
	}
}

// TestRegisterAgain: before 9.1 a disk that is a volume already is refused
// with the id of that (kubernetes-sigs/vsphere-csi-driver#450).
func TestRegisterAgain(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{"8.0.3": "types.CnsAlreadyRegisteredFault", "9.1.0": ""} {
		l := newLab(t, at(version))
		id := l.create("a", 10)
		s := l.spec("b", 10)
		s.Metadata.ContainerCluster.ClusterId = "k2"
		s.BackingObjectDetails.(*cnstypes.CnsBlockBackingDetails).BackingDiskId = id
		o := l.tryCreate(s)
		if k, text := o.fault(); k != want {
			t.Errorf("%s: %q %s, want %q", version, k, text, want)
		}
		v := l.query(byID(id))[0]
		if clusters := len(v.Metadata.ContainerClusterArray); v.Name != "a" || (want == "") != (clusters == 1) {
			t.Errorf("%s: %+v", version, v)
		}
	}
}

// TestOffers: what a method needs of the release, and that what is no method
// of CNS is none of ours.
func TestOffers(t *testing.T) {
	for version, lacks := range map[string][]string{
		"6.7.3": {"CnsRelocateVolume", "CnsQueryAsync", "CnsCreateSnapshots"},
		"7.0.3": {"CnsUnregisterVolume", "CnsSetVolumeControlFlags"},
		"9.1.0": {"CnsSetVolumeControlFlags"},
		"9.2":   nil,
	} {
		f, err := cnsface.New(cnsface.Config{Version: version})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range []string{"CnsRelocateVolume", "CnsQueryAsync", "CnsCreateSnapshots", "CnsUnregisterVolume", "CnsSetVolumeControlFlags", "CnsCreateVolume"} {
			lack := false
			for _, x := range lacks {
				lack = lack || x == m
			}
			if version != "6.7.3" && f.Offers(m) == lack || version == "6.7.3" && lack && f.Offers(m) {
				t.Errorf("%s offers %s: %v", version, m, f.Offers(m))
			}
		}
	}
	for _, bad := range []string{"8", "8.x", "1.2.3.4.5", "-1.0"} {
		if _, err := cnsface.New(cnsface.Config{Version: bad}); err == nil {
			t.Errorf("version %q passed", bad)
		}
	}
}

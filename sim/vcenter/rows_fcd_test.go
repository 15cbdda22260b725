package vcenter_test

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/fault"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25/types"
	"github.com/vmware/govmomi/vslm"
	vslmmethods "github.com/vmware/govmomi/vslm/methods"
	vslmtypes "github.com/vmware/govmomi/vslm/types"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/vcenter"
)

// faultOf is the fault on the result of a volume.
func (f *fcds) faultOf(task *object.Task, err error) types.BaseMethodFault {
	f.t.Helper()
	r, _, rerr := f.result(f.ctx, task, err)
	if r == nil || r.Fault == nil {
		f.t.Fatalf("result %+v, %v", r, rerr)
	}
	return r.Fault.Fault
}

func (f *fcds) notFound(what string, task *object.Task, err error) {
	f.t.Helper()
	if _, ok := f.faultOf(task, err).(*types.NotFound); !ok {
		f.t.Errorf("%s: not NotFound", what)
	}
}

func (f *fcds) queried(id string) []cnstypes.CnsVolume {
	f.t.Helper()
	r, err := f.cns.QueryVolume(f.ctx, &cnstypes.CnsQueryFilter{VolumeIds: []cnstypes.CnsVolumeId{{Id: id}}})
	if err != nil {
		f.t.Fatal(err)
	}
	return r.Volumes
}

// TestRow22DeleteOfALostVolume: the disk of a volume is deleted below CNS. It
// keeps the record, red, and finds nothing to delete, until it syncs.
func TestRow22DeleteOfALostVolume(t *testing.T) {
	t.Parallel()
	f := newFCDs(t, vcenter.Config{})
	id := f.volume("pvc")
	f.must(f.ended(f.global.Delete(f.ctx, types.ID{Id: id})))
	vs := f.queried(id)
	if len(vs) != 1 || vs[0].HealthStatus != "red" {
		t.Errorf("on record: %+v", vs)
	}
	task, err := f.cns.DeleteVolume(f.ctx, []cnstypes.CnsVolumeId{{Id: id}}, true)
	f.notFound("delete", task, err)
	task, err = f.cns.ExtendVolume(f.ctx, []cnstypes.CnsVolumeExtendSpec{{VolumeId: cnstypes.CnsVolumeId{Id: id}, CapacityInMb: 200}})
	f.notFound("extend", task, err)
	task, err = f.cns.CreateSnapshots(f.ctx, []cnstypes.CnsSnapshotCreateSpec{{VolumeId: cnstypes.CnsVolumeId{Id: id}}})
	f.notFound("snapshot", task, err)
	if got := f.queried(id); len(got) != 1 {
		t.Errorf("the record is gone before a sync: %+v", got)
	}
	task, err = f.cns.SyncVolume(f.ctx, []cnstypes.CnsSyncVolumeSpec{{VolumeId: cnstypes.CnsVolumeId{Id: id}}})
	if _, _, err := f.result(f.ctx, task, err); err != nil {
		t.Error(err)
	}
	if got := f.queried(id); len(got) != 0 {
		t.Errorf("after the sync: %+v", got)
	}
}

// TestRow32AttachOfALostVolume: NotFound on the result. The files may have
// gone by other means than the catalogue.
func TestRow32AttachOfALostVolume(t *testing.T) {
	t.Parallel()
	f := newFCDs(t, vcenter.Config{})
	id := f.volume("pvc")
	path := f.retrieve(id).Backing.(*types.BaseConfigInfoDiskFileBackingInfo).FilePath
	snap := f.must(f.ended(f.global.CreateSnapshot(f.ctx, types.ID{Id: id}, "s")))
	f.must(f.done(f.vdisks.DeleteVirtualDisk(f.ctx, path, f.dc)))
	if n := len(f.store.List()); n != 0 {
		t.Errorf("%d images are left, of %v", n, snap)
	}
	spec := []cnstypes.CnsVolumeAttachDetachSpec{{VolumeId: cnstypes.CnsVolumeId{Id: id}, Vm: f.node("node-1").Reference()}}
	task, err := f.cns.AttachVolume(f.ctx, spec)
	f.notFound("attach", task, err)
	task, err = f.cns.DetachVolume(f.ctx, spec)
	f.notFound("detach", task, err)
	_, err = f.global.Retrieve(f.ctx, types.ID{Id: id})
	f.refused(&types.NotFound{}, nil, err)
	f.refused(&types.NotFound{}, nil, f.node("node-1").AttachDisk(f.ctx, id, f.ds[0], 0, nil))
}

// Test2aVSLM: what stock vcsim lacks of VSLM is there: changed areas, control
// flags, clone, extend, relocate (see TestFCDOverVSLM), and a disk that is
// attached shows in the hardware with its id (TestFCDAttach).
func Test2aVSLM(t *testing.T) {
	t.Parallel()
	f := newFCDs(t, vcenter.Config{})
	id := types.ID{Id: f.fcd("one")}
	if err := f.global.SetControlFlags(f.ctx, id, []string{string(types.VslmVStorageObjectControlFlagEnableChangedBlockTracking)}); err != nil {
		t.Fatal(err)
	}
	snap := f.must(f.ended(f.global.CreateSnapshot(f.ctx, id, "s"))).(types.ID)
	if _, err := f.global.QueryChangedDiskAreas(f.ctx, id, snap, 0, "*"); err != nil {
		t.Error(err)
	}
}

// TestTable1Row14Migration: the driver that takes over in-tree volumes
// registers their virtual disks by URL, once, and reads them back.
func TestTable1Row14Migration(t *testing.T) {
	t.Parallel()
	f := newFCDs(t, vcenter.Config{})
	path := f.ds[0].Path("kubevols/pvc.vmdk")
	f.must(f.done(f.vdisks.CreateVirtualDisk(f.ctx, path, f.dc, &types.FileBackedVirtualDiskSpec{
		VirtualDiskSpec: types.VirtualDiskSpec{DiskType: "thin", AdapterType: "lsiLogic"}, CapacityKb: 1 << 20})))
	at := "https://" + f.v.URL().Host + "/folder/kubevols/pvc.vmdk?dcPath=" + f.dc.Name() + "&dsName=" + f.ds[0].Name()
	o, err := f.global.RegisterDisk(f.ctx, at, "")
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.global.RegisterDisk(f.ctx, at, "")
	f.refused(&types.AlreadyExists{}, nil, err)
	if c := f.retrieve(o.Config.Id.Id); c.Backing.(*types.BaseConfigInfoDiskFileBackingInfo).FilePath != path || c.CapacityInMB != 1024 {
		t.Errorf("%+v", c)
	}
}

// TestTable1Row15KeepAfterDeleteVM: a disk with the flag outlives the VM that
// holds it, one without goes with it; CNS sets the flag.
func TestTable1Row15KeepAfterDeleteVM(t *testing.T) {
	t.Parallel()
	f := newFCDs(t, vcenter.Config{})
	kept, lost, volume := f.fcd("kept"), f.fcd("lost"), f.volume("volume")
	if err := f.global.SetControlFlags(f.ctx, types.ID{Id: kept}, []string{string(types.VslmVStorageObjectControlFlagKeepAfterDeleteVm)}); err != nil {
		t.Fatal(err)
	}
	vm := f.node("node-1")
	for _, id := range []string{kept, lost, volume} {
		f.must(f.ended(f.global.AttachDisk(f.ctx, types.ID{Id: id}, vm, 0, nil)))
	}
	f.must(f.done(vm.PowerOff(f.ctx)))
	f.must(f.done(vm.Destroy(f.ctx)))
	for _, id := range []string{kept, volume} {
		if c := f.retrieve(id); len(c.ConsumerId) != 0 || !*c.KeepAfterDeleteVm {
			t.Errorf("%+v", c)
		}
	}
	_, err := f.global.Retrieve(f.ctx, types.ID{Id: lost})
	f.refused(&types.NotFound{}, nil, err)
	if n := len(f.store.List()); n != 2 {
		t.Errorf("%d images are left", n)
	}
}

// TestFCDTags: tags of the tagging service, found from both sides.
func TestFCDTags(t *testing.T) {
	t.Parallel()
	f := newFCDs(t, vcenter.Config{Nodes: []vcenter.Node{{Name: "node-1", Zone: "east", Region: "eu"}}})
	id := f.fcd("one")
	tag := types.VslmTagEntry{ParentCategoryName: "k8s-zone", TagName: "east"}
	if err := f.vim.AttachTag(f.ctx, id, tag); err != nil {
		t.Fatal(err)
	}
	if err := f.global.AttachTag(f.ctx, types.ID{Id: id}, "k8s-region", "eu"); err != nil {
		t.Fatal(err)
	}
	f.refused(&types.NotFound{}, nil, f.global.AttachTag(f.ctx, types.ID{Id: id}, "k8s-zone", "west"))
	f.refused(&types.NotFound{}, nil, f.global.AttachTag(f.ctx, types.ID{Id: "nope"}, "k8s-zone", "east"))
	if tags, err := f.global.ListAttachedTags(f.ctx, types.ID{Id: id}); err != nil || len(tags) != 2 || tags[0] != tag {
		t.Errorf("%v, %v", tags, err)
	}
	if tags, err := f.vim.ListAttachedTags(f.ctx, id); err != nil || len(tags) != 2 {
		t.Errorf("%v, %v", tags, err)
	}
	if ids, err := f.global.ListAttachedObjects(f.ctx, "k8s-zone", "east"); err != nil || len(ids) != 1 || ids[0].Id != id {
		t.Errorf("%v, %v", ids, err)
	}
	if err := f.vim.DetachTag(f.ctx, id, tag); err != nil {
		t.Error(err)
	}
	f.refused(&types.NotFound{}, nil, f.global.DetachTag(f.ctx, types.ID{Id: id}, "k8s-zone", "east"))
	if ids, err := f.vim.ListAttachedObjects(f.ctx, "k8s-zone", "east"); err != nil || len(ids) != 0 {
		t.Errorf("%v, %v", ids, err)
	}
}

// TestFCDChangedBlocks: an incremental backup reads what was written since the
// one before, whose snapshot is gone.
func TestFCDChangedBlocks(t *testing.T) {
	t.Parallel()
	f := newFCDs(t, vcenter.Config{})
	id := types.ID{Id: f.fcd("one")}
	take := func() (snap types.ID, change string) {
		t.Helper()
		snap = f.must(f.ended(f.global.CreateSnapshot(f.ctx, id, "backup"))).(types.ID)
		d, err := f.global.RetrieveSnapshotDetails(f.ctx, id, snap)
		if err != nil {
			t.Fatal(err)
		}
		return snap, d.ChangedBlockTrackingId
	}
	areas := func(snap types.ID, start int64, change string) *types.DiskChangeInfo {
		t.Helper()
		i, err := f.global.QueryChangedDiskAreas(f.ctx, id, snap, start, change)
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	untracked, none := take()
	if none != "" {
		t.Errorf("change id %q without tracking", none)
	}
	_, err := f.global.QueryChangedDiskAreas(f.ctx, id, untracked, 0, "*")
	f.refused(&types.InvalidState{}, nil, err)
	if err := f.global.SetControlFlags(f.ctx, id, []string{"enableChangedBlockTracking"}); err != nil {
		t.Fatal(err)
	}
	const unit, mb = 64 << 10, 1 << 20
	f.write(id.Id, 0, "a")
	f.write(id.Id, 8*mb, "b")
	full, first := take()
	if i := areas(full, 0, "*"); i.Length != 16*mb || len(i.ChangedArea) != 2 || i.ChangedArea[1] != (types.DiskChangeExtent{Start: 8 * mb, Length: unit}) {
		t.Errorf("full: %+v", i)
	}
	if i := areas(full, 8*mb+100, "*"); i.StartOffset != 8*mb+100 || i.Length != 8*mb-100 || len(i.ChangedArea) != 1 || i.ChangedArea[0].Start != 8*mb+100 {
		t.Errorf("from within: %+v", i)
	}
	f.must(f.ended(f.global.DeleteSnapshot(f.ctx, id, full)))
	f.write(id.Id, 4*mb, "c")
	inc, second := take()
	if i := areas(inc, 0, first); len(i.ChangedArea) != 1 || i.ChangedArea[0] != (types.DiskChangeExtent{Start: 4 * mb, Length: unit}) {
		t.Errorf("incremental: %+v", i)
	}
	if i := areas(inc, 0, second); len(i.ChangedArea) != 0 {
		t.Errorf("since itself: %+v", i)
	}
	other := types.ID{Id: f.fcd("two")}
	for _, bad := range []string{"", "x", "x/1", first + "0", second + "/"} {
		_, err := f.global.QueryChangedDiskAreas(f.ctx, id, inc, 0, bad)
		f.refused(&types.InvalidArgument{}, nil, err)
	}
	_, err = f.global.QueryChangedDiskAreas(f.ctx, id, inc, 17*mb, "*")
	f.refused(&types.InvalidArgument{}, nil, err)
	_, err = f.global.QueryChangedDiskAreas(f.ctx, other, inc, 0, "*")
	f.refused(&types.NotFound{}, nil, err)
}

// TestTrackingOfVMAndDisk: a backup tool turns tracking on for a node; the
// volumes that it holds have it from then on, and no node without takes them.
func TestTrackingOfVMAndDisk(t *testing.T) {
	t.Parallel()
	f := newFCDs(t, vcenter.Config{})
	id := f.volume("pvc")
	one, two := f.node("node-1"), f.node("node-2")
	if _, err := f.attach(f.ctx, id, one.Reference()); err != nil {
		t.Fatal(err)
	}
	f.must(f.done(one.Reconfigure(f.ctx, types.VirtualMachineConfigSpec{ChangeTrackingEnabled: types.NewBool(true)})))
	if c := f.retrieve(id); !*c.ChangedBlockTrackingEnabled {
		t.Error("the disk is not tracked")
	}
	if err := f.detach(f.ctx, id, one.Reference()); err != nil {
		t.Fatal(err)
	}
	task, err := f.cns.AttachVolume(f.ctx, []cnstypes.CnsVolumeAttachDetachSpec{{VolumeId: cnstypes.CnsVolumeId{Id: id}, Vm: two.Reference()}})
	if x, ok := f.faultOf(task, err).(*cnstypes.CnsFault); !ok || x.Reason != "CNS: Failed to attach disk when calling AttachDisk:Fault cause: vim.fault.InvalidState" {
		t.Errorf("attach to a VM without tracking: %+v", x)
	}
	f.refused(&types.InvalidState{}, nil, two.AttachDisk(f.ctx, id, f.ds[0], 0, nil))
	if _, err := f.attach(f.ctx, id, one.Reference()); err != nil {
		t.Error(err)
	}
	if err := f.detach(f.ctx, id, one.Reference()); err != nil {
		t.Error(err)
	}
	// The way out.
	if err := f.global.ClearControlFlags(f.ctx, types.ID{Id: id}); err != nil {
		t.Error(err)
	}
	if _, err := f.attach(f.ctx, id, two.Reference()); err != nil {
		t.Error(err)
	}
}

// TestFCDsAfterRestart: disks, their settings, snapshots and holders, and
// virtual disks are there again.
func TestFCDsAfterRestart(t *testing.T) {
	t.Parallel()
	cfg := vcenter.Config{Seed: 5, StateDir: t.TempDir()}
	f := newFCDs(t, cfg)
	cfg.Disks = f.store
	id, gone := f.fcd("one"), f.volume("gone")
	f.must(f.ended(f.global.UpdateMetadata(f.ctx, types.ID{Id: id}, []types.KeyValue{{Key: "k", Value: "v"}}, nil)))
	snap := f.must(f.ended(f.global.CreateSnapshot(f.ctx, types.ID{Id: id}, "s"))).(types.ID)
	f.must(f.done(f.node("node-1").Reconfigure(f.ctx, types.VirtualMachineConfigSpec{ChangeTrackingEnabled: types.NewBool(true)})))
	f.must(nil, f.node("node-1").AttachDisk(f.ctx, id, f.ds[0], 0, nil))
	if err := f.global.SetControlFlags(f.ctx, types.ID{Id: id}, []string{"keepAfterDeleteVm", "enableChangedBlockTracking"}); err != nil {
		t.Fatal(err)
	}
	f.must(f.ended(f.global.Delete(f.ctx, types.ID{Id: gone})))
	f.must(f.done(f.vdisks.CreateVirtualDisk(f.ctx, f.ds[0].Path("plain.vmdk"), f.dc, &types.FileBackedVirtualDiskSpec{CapacityKb: 1024})))
	before := f.retrieve(id)
	f.v.Close()

	g := newFCDs(t, cfg)
	g.store = f.store
	after := g.retrieve(id)
	if !after.CreateTime.Equal(before.CreateTime) || after.Name != "one" || !*after.KeepAfterDeleteVm || !*after.ChangedBlockTrackingEnabled || len(after.Metadata) != 1 ||
		len(after.ConsumerId) != 1 || after.ConsumerId[0] != before.ConsumerId[0] {
		t.Errorf("after: %+v\nbefore: %+v", after, before)
	}
	if s, err := g.global.RetrieveSnapshotInfo(g.ctx, types.ID{Id: id}); err != nil || len(s) != 1 || *s[0].Id != snap {
		t.Errorf("snapshots %+v, %v", s, err)
	}
	g.must(nil, g.node("node-1").DetachDisk(g.ctx, id))
	if vs := g.queried(gone); len(vs) != 1 || vs[0].HealthStatus != "red" {
		t.Errorf("the lost volume: %+v", vs)
	}
	_, err := g.global.Retrieve(g.ctx, types.ID{Id: gone})
	g.refused(&types.NotFound{}, nil, err)
	g.must(g.done(g.vdisks.DeleteVirtualDisk(g.ctx, g.ds[0].Path("plain.vmdk"), g.dc)))
}

// TestVSLMTaskIsPurged: a task of VSLM goes with that of vim25.
func TestVSLMTaskIsPurged(t *testing.T) {
	t.Parallel()
	f := newFCDs(t, vcenter.Config{KeepTasks: 1})
	task, err := f.global.CreateDisk(f.ctx, f.spec("one", 1, 0))
	if err != nil {
		t.Fatal(err)
	}
	f.must(task.Wait(f.ctx, time.Minute))
	f.fcd("two")
	f.fcd("three")
	_, err = task.QueryInfo(f.ctx)
	f.refused(&types.ManagedObjectNotFound{}, nil, err)
}

// TestVSLMLifecycle: the rest of the endpoint: sessions by token, datastores
// by their URLs.
func TestVSLMLifecycle(t *testing.T) {
	t.Parallel()
	f := newFCDs(t, vcenter.Config{})
	about := f.vslm.ServiceContent
	if about.AboutInfo.InstanceUuid == "" || about.StorageLifecycleManager.Type != "VslmStorageLifecycleManager" {
		t.Errorf("content %+v", about)
	}
	if _, err := vslmmethods.VslmLoginByToken(f.ctx, f.vslm, &vslmtypes.VslmLoginByToken{This: about.SessionManager, DelegatedTokenXml: "<token/>"}); err != nil {
		t.Error(err)
	}
	_, err := vslmmethods.VslmLoginByToken(f.ctx, f.vslm, &vslmtypes.VslmLoginByToken{This: about.SessionManager})
	f.refused(&types.InvalidLogin{}, nil, err)
	url := f.v.DatastoreURL("datastore-1")
	info, err := vslmmethods.VslmQueryDatastoreInfo(f.ctx, f.vslm, &vslmtypes.VslmQueryDatastoreInfo{This: about.StorageLifecycleManager, DatastoreUrl: url})
	if err != nil || len(info.Returnval) != 1 || info.Returnval[0].Datacenter != f.dc.Reference() || info.Returnval[0].Datastore != f.ds[0].Reference() {
		t.Errorf("%+v, %v", info, err)
	}
	_, err = vslmmethods.VslmQueryDatastoreInfo(f.ctx, f.vslm, &vslmtypes.VslmQueryDatastoreInfo{This: about.StorageLifecycleManager, DatastoreUrl: "ds:///x/"})
	f.refused(&types.NotFound{}, nil, err)
	if _, err := vslmmethods.VslmSyncDatastore(f.ctx, f.vslm, &vslmtypes.VslmSyncDatastore{This: about.StorageLifecycleManager, DatastoreUrl: url, FullSync: true}); err != nil {
		t.Error(err)
	}
	if _, err := vslmmethods.VslmLogout(f.ctx, f.vslm, &vslmtypes.VslmLogout{This: about.SessionManager}); err != nil {
		t.Error(err)
	}
	if _, err := f.global.ListObjectsForSpec(f.ctx, nil, 1); err != nil {
		t.Error(err)
	}
}

// TestFCDsSideBySide: clients of CNS and of both managers at the same disks.
// Each is refused or served; what is left in the end agrees with the content.
func TestFCDsSideBySide(t *testing.T) {
	t.Parallel()
	hw := &plugs{}
	f := newFCDs(t, vcenter.Config{Hardware: hw, KeepTasks: 6, Version: "9.2.0"})
	ids := []string{f.fcd("a"), f.volume("b"), f.fcd("c")}
	vms := []*object.VirtualMachine{f.node("node-1"), f.node("node-2")}
	// A clone whose task was purged before its maker looked stays: nobody knows
	// its id.
	var strays atomic.Int32
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(7, uint64(w)))
			for range 25 {
				id, vm := types.ID{Id: ids[rng.IntN(len(ids))]}, vms[rng.IntN(len(vms))]
				wait := func(task *vslm.Task, err error) {
					if err == nil {
						_, _ = task.Wait(f.ctx, time.Minute)
					}
				}
				switch rng.IntN(10) {
				case 0:
					wait(f.global.AttachDisk(f.ctx, id, vm, 0, nil))
				case 1:
					_ = vm.DetachDisk(f.ctx, id.Id)
				case 2:
					_, _ = f.attach(f.ctx, id.Id, vm.Reference())
				case 3:
					_ = f.detach(f.ctx, id.Id, vm.Reference())
				case 4:
					wait(f.global.CreateSnapshot(f.ctx, id, "s"))
				case 5:
					if s, err := f.global.RetrieveSnapshotInfo(f.ctx, id); err == nil && len(s) > 0 {
						wait(f.global.Revert(f.ctx, id, *s[0].Id))
						wait(f.global.DeleteSnapshot(f.ctx, id, *s[0].Id))
					}
				case 6:
					wait(f.global.ExtendDisk(f.ctx, id, int64(100+rng.IntN(50))))
				case 7:
					wait(f.global.Relocate(f.ctx, id, types.VslmRelocateSpec{VslmMigrateSpec: types.VslmMigrateSpec{BackingSpec: f.spec("", 0, rng.IntN(2)).BackingSpec}}))
				case 8:
					if r, err := f.ended(f.global.Clone(f.ctx, id, types.VslmCloneSpec{Name: "x", VslmMigrateSpec: types.VslmMigrateSpec{BackingSpec: f.spec("", 0, 1).BackingSpec}})); err == nil {
						wait(f.global.Delete(f.ctx, r.(types.VStorageObject).Config.Id))
					} else if fault.Is(err, &types.ManagedObjectNotFound{}) {
						strays.Add(1)
					}
				case 9:
					_ = f.global.SetControlFlags(f.ctx, id, []string{"enableChangedBlockTracking"})
					_, _ = f.global.List(f.ctx)
				}
			}
		})
	}
	wg.Wait()
	all, err := f.global.List(f.ctx)
	if err != nil {
		t.Fatal(err)
	}
	all.Id = slices.DeleteFunc(all.Id, func(id types.ID) bool {
		stray := !slices.Contains(ids, id.Id) && strays.Add(-1) >= 0
		if stray {
			f.must(f.ended(f.global.Delete(f.ctx, id)))
		}
		return stray
	})
	images := f.store.List()
	if len(all.Id) != len(ids) || len(images) != len(ids) {
		t.Fatalf("%d disks, %d images, want %d", len(all.Id), len(images), len(ids))
	}
	held := 0
	for _, id := range all.Id {
		c := f.retrieve(id.Id)
		s, err := f.global.RetrieveSnapshotInfo(f.ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(images, func(i disk.Info) bool { return i.ID == id.Id })
		if i < 0 || images[i].Size != c.CapacityInMB<<20 || len(images[i].Snapshots) != len(s) {
			t.Errorf("%+v with %d snapshots has the image %+v", c, len(s), images)
		}
		held += len(c.ConsumerId)
	}
	if got := hw.list(); len(got) != held {
		t.Errorf("nodes have %v, %d are held", got, held)
	}
}

package vcenter_test

import (
	"strings"
	"testing"

	"github.com/vmware/govmomi/find"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/types"
	"github.com/vmware/govmomi/vslm"

	"github.com/csilab/csilab/sim/vcenter"
)

// at waits for a task of a method of vim25 that govmomi wraps nowhere.
func (f *fcds) at(task types.ManagedObjectReference, err error) (types.AnyType, error) {
	if err != nil {
		return nil, err
	}
	return f.done(object.NewTask(f.Client.Client, task), nil)
}

// TestFCDMethodsOfVim: the methods that govmomi's ObjectManager does not wrap.
func TestFCDMethodsOfVim(t *testing.T) {
	t.Parallel()
	f := newFCDs(t, vcenter.Config{Version: "9.1.0"})
	c, this, ds := f.Client.Client, *f.Client.ServiceContent.VStorageObjectManager, f.ds[0].Reference()
	id := types.ID{Id: f.fcd("one")}

	if _, err := methods.SetVStorageObjectControlFlags(f.ctx, c, &types.SetVStorageObjectControlFlags{This: this, Id: id, Datastore: ds, ControlFlags: []string{"enableChangedBlockTracking", "disableRelocation"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := methods.ClearVStorageObjectControlFlags(f.ctx, c, &types.ClearVStorageObjectControlFlags{This: this, Id: id, Datastore: ds, ControlFlags: []string{"disableRelocation"}}); err != nil {
		t.Fatal(err)
	}
	if x := f.retrieve(id.Id); !*x.ChangedBlockTrackingEnabled || *x.RelocationDisabled {
		t.Errorf("flags %+v", x)
	}
	_, err := methods.SetVStorageObjectControlFlags(f.ctx, c, &types.SetVStorageObjectControlFlags{This: this, Id: id, Datastore: f.ds[1].Reference()})
	f.refused(&types.NotFound{}, nil, err)

	meta, err := methods.VCenterUpdateVStorageObjectMetadataEx_Task(f.ctx, c, &types.VCenterUpdateVStorageObjectMetadataEx_Task{This: this, Id: id, Datastore: ds, Metadata: []types.KeyValue{{Key: "k", Value: "v"}}})
	if err != nil {
		t.Fatal(err)
	}
	f.must(f.at(meta.Returnval, nil))
	if kv := f.retrieve(id.Id).Metadata; len(kv) != 1 || kv[0].Value != "v" {
		t.Errorf("metadata %v", kv)
	}

	f.write(id.Id, 0, "one")
	shot, err := methods.VStorageObjectCreateSnapshotEx_Task(f.ctx, c, &types.VStorageObjectCreateSnapshotEx_Task{This: this, Id: id, Datastore: ds, Description: "d"})
	if err != nil {
		t.Fatal(err)
	}
	snap := f.must(f.at(shot.Returnval, nil)).(types.VStorageObjectSnapshot)
	if snap.Vclock.VClockTime == 0 {
		t.Error("no logical time")
	}
	f.write(id.Id, 0, "two")
	areas, err := methods.VstorageObjectVCenterQueryChangedDiskAreas(f.ctx, c, &types.VstorageObjectVCenterQueryChangedDiskAreas{This: this, Id: id, Datastore: ds, SnapshotId: snap.Id, ChangeId: "*"})
	if err != nil || len(areas.Returnval.ChangedArea) != 1 {
		t.Errorf("areas %+v, %v", areas, err)
	}
	if d, err := methods.RetrieveSnapshotDetails(f.ctx, c, &types.RetrieveSnapshotDetails{This: this, Id: id, Datastore: ds, SnapshotId: snap.Id}); err != nil || d.Returnval.ChangedBlockTrackingId == "" {
		t.Errorf("details %+v, %v", d, err)
	}
	linked := func() (types.AnyType, error) {
		r, err := methods.CreateDiskFromSnapshot_Task(f.ctx, c, &types.CreateDiskFromSnapshot_Task{This: this, Id: id, Datastore: ds, SnapshotId: snap.Id, Name: "linked", IsLinkedClone: types.NewBool(true)})
		if err != nil {
			return nil, err
		}
		return f.at(r.Returnval, nil)
	}
	clone := f.must(linked()).(types.VStorageObject)
	if clone.Config.LinkedCloneParentId == nil || *clone.Config.LinkedCloneParentId != id || f.read(clone.Config.Id.Id, 0, 3) != "one" {
		t.Errorf("linked clone %+v", clone)
	}
	drop := func() (types.AnyType, error) {
		r, err := methods.VStorageObjectDeleteSnapshotEx_Task(f.ctx, c, &types.VStorageObjectDeleteSnapshotEx_Task{This: this, Id: id, Datastore: ds, SnapshotId: snap.Id})
		if err != nil {
			return nil, err
		}
		return f.at(r.Returnval, nil)
	}
	_, err = drop()
	f.refused(&types.ResourceInUse{}, nil, err)
	gone, err := methods.DeleteVStorageObjectEx_Task(f.ctx, c, &types.DeleteVStorageObjectEx_Task{This: this, Id: clone.Config.Id, Datastore: ds})
	if err != nil {
		t.Fatal(err)
	}
	f.must(f.at(gone.Returnval, nil))
	back, err := methods.RevertVStorageObjectEx_Task(f.ctx, c, &types.RevertVStorageObjectEx_Task{This: this, Id: id, Datastore: ds, SnapshotId: snap.Id})
	if err != nil {
		t.Fatal(err)
	}
	f.must(f.at(back.Returnval, nil))
	if got := f.read(id.Id, 0, 3); got != "one" {
		t.Errorf("reverted to %q", got)
	}
	f.must(drop())

	if r, err := methods.RenameVStorageObjectEx(f.ctx, c, &types.RenameVStorageObjectEx{This: this, Id: id, Datastore: ds, Name: "uno"}); err != nil || r.Returnval.VClockTime == 0 {
		t.Errorf("rename %+v, %v", r, err)
	}
	more, err := methods.VStorageObjectExtendDiskEx_Task(f.ctx, c, &types.VStorageObjectExtendDiskEx_Task{This: this, Id: id, Datastore: ds, NewCapacityInMB: 64})
	if err != nil {
		t.Fatal(err)
	}
	f.must(f.at(more.Returnval, nil))
	if s, err := methods.RetrieveVStorageObjectState(f.ctx, c, &types.RetrieveVStorageObjectState{This: this, Id: id, Datastore: ds}); err != nil || *s.Returnval.Tentative {
		t.Errorf("state %+v, %v", s, err)
	}
	moved, err := methods.RelocateVStorageObject_Task(f.ctx, c, &types.RelocateVStorageObject_Task{This: this, Id: id, Datastore: ds,
		Spec: types.VslmRelocateSpec{VslmMigrateSpec: types.VslmMigrateSpec{BackingSpec: f.spec("", 0, 1).BackingSpec}}})
	if err != nil {
		t.Fatal(err)
	}
	f.must(f.at(moved.Returnval, nil))
	if x := f.retrieve(id.Id); x.Name != "uno" || x.CapacityInMB != 64 || x.Backing.GetBaseConfigInfoBackingInfo().Datastore != f.ds[1].Reference() || f.read(id.Id, 0, 3) != "one" {
		t.Errorf("in the end %+v", x)
	}
}

// TestFCDMethodsOfOlderReleases: what a release does not have is not found.
func TestFCDMethodsOfOlderReleases(t *testing.T) {
	t.Parallel()
	f := newFCDs(t, vcenter.Config{Version: "8.0.1"})
	c, this, ds := f.Client.Client, *f.Client.ServiceContent.VStorageObjectManager, f.ds[0].Reference()
	id := types.ID{Id: f.fcd("one")}
	snap := f.must(f.ended(f.global.CreateSnapshot(f.ctx, id, "s"))).(types.ID)
	_, err := methods.RenameVStorageObjectEx(f.ctx, c, &types.RenameVStorageObjectEx{This: this, Id: id, Datastore: ds, Name: "uno"})
	f.refused(&types.MethodNotFound{}, nil, err)
	_, err = methods.VStorageObjectDeleteSnapshotEx2_Task(f.ctx, c, &types.VStorageObjectDeleteSnapshotEx2_Task{This: this, Id: id, Datastore: ds})
	f.refused(&types.MethodNotFound{}, nil, err)
	r, err := methods.CreateDiskFromSnapshot_Task(f.ctx, c, &types.CreateDiskFromSnapshot_Task{This: this, Id: id, Datastore: ds, SnapshotId: snap, Name: "linked", IsLinkedClone: types.NewBool(true)})
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.at(r.Returnval, nil)
	f.refused(&types.NotSupported{}, nil, err)
}

// TestFCDPolicyAndCrypto: a policy that exists and that the datastore
// satisfies; a key, which copies take along.
func TestFCDPolicyAndCrypto(t *testing.T) {
	t.Parallel()
	f := newFCDs(t, vcenter.Config{})
	c, this, ds := f.Client.Client, *f.Client.ServiceContent.VStorageObjectManager, f.ds[0].Reference()
	s := f.spec("secret", 16, 0)
	s.Profile = []types.BaseVirtualMachineProfileSpec{&types.VirtualMachineDefinedProfileSpec{ProfileId: "nope"}}
	_, err := f.done(f.vim.CreateDisk(f.ctx, s))
	f.refused(&types.InvalidArgument{}, nil, err)
	s.Profile = nil
	s.Crypto = &types.CryptoSpecEncrypt{CryptoKeyId: types.CryptoKeyId{KeyId: "k1", ProviderId: &types.KeyProviderId{Id: "kms"}}}
	id := f.must(f.done(f.vim.CreateDisk(f.ctx, s))).(types.VStorageObject).Config.Id
	key := func(id types.ID) string {
		t.Helper()
		if k := f.retrieve(id.Id).Backing.(*types.BaseConfigInfoDiskFileBackingInfo).KeyId; k != nil {
			return k.KeyId + "@" + k.ProviderId.Id
		}
		return ""
	}
	if key(id) != "k1@kms" {
		t.Errorf("key %q", key(id))
	}
	copied := f.must(f.ended(f.global.Clone(f.ctx, id, types.VslmCloneSpec{Name: "copy", VslmMigrateSpec: types.VslmMigrateSpec{BackingSpec: f.spec("", 0, 1).BackingSpec}}))).(types.VStorageObject).Config.Id
	if key(copied) != "k1@kms" {
		t.Errorf("key of the copy %q", key(copied))
	}
	crypt := func(x types.BaseCryptoSpec) error {
		r, err := methods.UpdateVStorageObjectCrypto_Task(f.ctx, c, &types.UpdateVStorageObjectCrypto_Task{This: this, Id: id, Datastore: ds, DisksCrypto: &types.DiskCryptoSpec{Crypto: x}})
		if err != nil {
			return err
		}
		_, err = f.at(r.Returnval, nil)
		return err
	}
	f.must(nil, crypt(&types.CryptoSpecDeepRecrypt{NewKeyId: types.CryptoKeyId{KeyId: "k2", ProviderId: &types.KeyProviderId{Id: "kms"}}}))
	if key(id) != "k2@kms" {
		t.Errorf("key %q", key(id))
	}
	f.refused(&types.InvalidState{}, nil, crypt(&types.CryptoSpecEncrypt{CryptoKeyId: types.CryptoKeyId{KeyId: "k3"}}))
	f.must(nil, crypt(&types.CryptoSpecDecrypt{}))
	if key(id) != "" {
		t.Errorf("key %q after it was decrypted", key(id))
	}
}

// TestFCDPrivileges: what changes a disk takes Datastore.FileManagement, on
// the datastore that it lies on.
func TestFCDPrivileges(t *testing.T) {
	t.Parallel()
	r := asOther(t, "ReadOnly")
	c := r.Client.Client
	vc, err := vslm.NewClient(r.ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	finder := find.NewFinder(c)
	ds, err := finder.DatastoreOrDefault(r.ctx, "datastore-1")
	if err != nil {
		t.Fatal(err)
	}
	dc, err := finder.DefaultDatacenter(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	spec := types.VslmCreateSpec{Name: "x", CapacityInMB: 1, BackingSpec: &types.VslmCreateSpecDiskFileBackingSpec{VslmCreateSpecBackingSpec: types.VslmCreateSpecBackingSpec{Datastore: ds.Reference()}}}
	m := vslm.NewGlobalObjectManager(vc)
	url := "https://vc/folder/x.vmdk?dcPath=" + dc.Name() + "&dsName=" + ds.Name()
	for name, do := range map[string]func() error{
		"create":          func() error { _, err := m.CreateDisk(r.ctx, spec); return err },
		"create over vim": func() error { _, err := vslm.NewObjectManager(c).CreateDisk(r.ctx, spec); return err },
		"register":        func() error { _, err := m.RegisterDisk(r.ctx, url, ""); return err },
		"virtual disk": func() error {
			_, err := object.NewVirtualDiskManager(c).CreateVirtualDisk(r.ctx, ds.Path("x.vmdk"), dc, &types.FileBackedVirtualDiskSpec{CapacityKb: 1024})
			return err
		},
		"reconcile": func() error { _, err := m.ReconcileDatastoreInventory(r.ctx, ds); return err },
	} {
		if got := lacks(do()); !strings.HasPrefix(got, "Datastore.FileManagement on ") {
			t.Errorf("%s: %s", name, got)
		}
	}
	if _, err := m.ListObjectsForSpec(r.ctx, nil, 10); err != nil {
		t.Error(err)
	}
}

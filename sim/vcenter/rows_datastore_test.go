package vcenter_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/pbm"
	pbmtypes "github.com/vmware/govmomi/pbm/types"
	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/vcenter"
	"github.com/csilab/csilab/sim/vcenter/cnsface"
)

// blockVolume of some MB, on one of some datastores.
func blockVolume(name string, mb int64, ds ...types.ManagedObjectReference) cnstypes.CnsVolumeCreateSpec {
	s := volumeSpec(name)
	s.Datastores = ds
	s.BackingObjectDetails.GetCnsBackingObjectDetails().CapacityInMb = mb
	return s
}

// summary reads a datastore.
func (r *rig) summary(ds *object.Datastore) mo.Datastore {
	r.t.Helper()
	var d mo.Datastore
	if err := ds.Properties(r.ctx, ds.Reference(), []string{"name", "summary", "info", "host", "customValue"}, &d); err != nil {
		r.t.Fatal(err)
	}
	return d
}

// TestRow07DatastoreType: NFS 4.1 takes no first class disk.
func TestRow07DatastoreType(t *testing.T) {
	r := newRig(t, vcenter.Config{Datastores: []vcenter.Datastore{{Name: "vmfs"}, {Name: "nfs41", Type: "NFS41"}, {Name: "nfs", Type: "NFS"}, {Name: "vvol", Type: "VVOL"}}})
	if c, fault := r.try(blockVolume("a", 10, r.store("nfs41").Reference())); !strings.Contains(fault, "NotSupported") || len(c.PlacementResults) != 1 {
		t.Errorf("%q, %+v", fault, c)
	}
	for _, name := range []string{"nfs", "vvol"} {
		r.made(blockVolume(name, 10, r.store("nfs41").Reference(), r.store(name).Reference()))
	}
}

// TestRow09NoSpace: a full datastore is a CnsFault around NoDiskSpace, in the
// result and for the placement.
func TestRow09NoSpace(t *testing.T) {
	r := newRig(t, vcenter.Config{})
	a, b := r.store("datastore-1").Reference(), r.store("datastore-2").Reference()
	if err := r.v.FillDatastore("datastore-1", 5<<20); err != nil {
		t.Fatal(err)
	}
	c, fault := r.try(blockVolume("a", 10, a))
	cause, ok := c.Fault.Fault.(*cnstypes.CnsFault)
	if !ok || !strings.Contains(fault, "NoDiskSpace") || cause.FaultCause == nil {
		t.Fatalf("%q, %#v", fault, c.Fault)
	}
	if p := c.PlacementResults; len(p) != 1 || len(p[0].PlacementFaults) != 1 || !strings.Contains(p[0].PlacementFaults[0].LocalizedMessage, "Insufficient disk space on datastore 'datastore-1'") {
		t.Errorf("placement %+v", p)
	}
	id := r.made(blockVolume("a", 10, a, b))
	if u := r.query(id).DatastoreUrl; u != r.v.DatastoreURL("datastore-2") {
		t.Errorf("the other one was not taken: %s", u)
	}
	small := r.made(blockVolume("small", 5, a))
	r.fault("NoDiskSpace")(r.cns.ExtendVolume(r.ctx, extendSpec(small, 11)))
	if err := r.v.FillDatastore("datastore-1", 1<<40); err != nil {
		t.Fatal(err)
	}
	r.fault("")(r.cns.ExtendVolume(r.ctx, extendSpec(small, 11)))
	if r.v.FillDatastore("floppy", 0) == nil || r.v.FillDatastore("datastore-1", -1) == nil {
		t.Error("filled what isn't, or below zero")
	}
}

// TestRow10DeadDatastore: a reference to no datastore fails the call, even
// with good ones beside it.
func TestRow10DeadDatastore(t *testing.T) {
	r := newRig(t, vcenter.Config{})
	dead := types.ManagedObjectReference{Type: "Datastore", Value: "datastore-99999"}
	_, err := r.cns.CreateVolume(r.ctx, []cnstypes.CnsVolumeCreateSpec{blockVolume("a", 10, r.store("datastore-1").Reference(), dead)})
	if f, ok := soapFaultOf(err).(types.ManagedObjectNotFound); !ok || f.Obj != dead {
		t.Errorf("%v", err)
	}
	if vs := r.v.Volumes(); len(vs) != 0 {
		t.Errorf("made %+v", vs)
	}
}

// faultName is the type of the fault of a task or a call.
func faultName(err error) string {
	var f interface{ Fault() types.BaseMethodFault }
	if errors.As(err, &f) {
		return fmt.Sprintf("%T", f.Fault())
	}
	return fmt.Sprintf("%T", soapFaultOf(err))
}

func soapFaultOf(err error) any {
	if soap.IsSoapFault(err) {
		return soap.ToSoapFault(err).VimFault()
	}
	return nil
}

// TestRow17NoCompatibleDatastore: no datastore meets a policy, or those that do
// are in maintenance: PBM says so, and CNS refuses who didn't ask.
func TestRow17NoCompatibleDatastore(t *testing.T) {
	r := newRig(t, vcenter.Config{Datastores: []vcenter.Datastore{{Name: "vmfs"}, {Name: "gold"}},
		Policies: []vcenter.Policy{{Name: "gold", ID: "11111111-0000-4000-8000-000000000000", Datastores: []string{"gold"}}}})
	p, err := pbm.NewClient(r.ctx, r.Client.Client)
	if err != nil {
		t.Fatal(err)
	}
	compatible := func() (out []string) {
		t.Helper()
		var hubs []pbmtypes.PbmPlacementHub
		for _, d := range []string{"vmfs", "gold"} {
			hubs = append(hubs, pbmtypes.PbmPlacementHub{HubType: "Datastore", HubId: r.store(d).Reference().Value})
		}
		res, err := p.CheckRequirements(r.ctx, hubs, nil, []pbmtypes.BasePbmPlacementRequirement{&pbmtypes.PbmPlacementCapabilityProfileRequirement{ProfileId: pbmtypes.PbmProfileId{UniqueId: "11111111-0000-4000-8000-000000000000"}}})
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range res.CompatibleDatastores() {
			out = append(out, h.HubId)
		}
		return out
	}
	spec := func(name string, ds ...types.ManagedObjectReference) cnstypes.CnsVolumeCreateSpec {
		s := blockVolume(name, 10, ds...)
		s.Profile = []types.BaseVirtualMachineProfileSpec{&types.VirtualMachineDefinedProfileSpec{ProfileId: "11111111-0000-4000-8000-000000000000"}}
		return s
	}
	vmfs, gold := r.store("vmfs").Reference(), r.store("gold").Reference()
	if got := compatible(); !slices.Equal(got, []string{gold.Value}) {
		t.Errorf("compatible %q", got)
	}
	if c, fault := r.try(spec("a", vmfs)); !strings.Contains(fault, "CnsFault") || len(c.PlacementResults) != 1 {
		t.Errorf("%q, %+v", fault, c)
	}
	for name, ds := range map[string][]types.ManagedObjectReference{"named": {vmfs, gold}, "chosen": nil} {
		if u := r.query(r.made(spec(name, ds...))).DatastoreUrl; u != r.v.DatastoreURL("gold") {
			t.Errorf("%s: on %s", name, u)
		}
	}
	if err := r.v.DatastoreMaintenance("gold", true); err != nil {
		t.Fatal(err)
	}
	if got := compatible(); len(got) != 0 {
		t.Errorf("compatible in maintenance: %q", got)
	}
	if _, fault := r.try(spec("b", gold)); !strings.Contains(fault, "InvalidDatastoreState") {
		t.Errorf("in maintenance: %q", fault)
	}
}

// TestRow19NotAccessibleToAllNodes: a host that lost its path shows so in the
// datastore's mounts; its VMs can't take volumes from there, others can.
func TestRow19NotAccessibleToAllNodes(t *testing.T) {
	r := newRig(t, vcenter.Config{})
	ds := r.store("datastore-2")
	id := r.made(blockVolume("a", 10, ds.Reference()))
	vm := r.node("node-1")
	host, err := vm.HostSystem(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	name, err := host.ObjectName(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.v.DatastoreAccessible("datastore-2", name, false); err != nil {
		t.Fatal(err)
	}
	d := r.summary(ds)
	if !d.Summary.Accessible || len(d.Host) != 2 {
		t.Errorf("%+v", d.Summary)
	}
	for _, m := range d.Host {
		if ok := m.MountInfo.Accessible; ok == nil || *ok != (m.Key != host.Reference()) || *ok != (m.MountInfo.InaccessibleReason == "") {
			t.Errorf("mount %+v", m)
		}
	}
	if _, err := r.attach(r.ctx, id, vm.Reference()); err == nil || !strings.Contains(err.Error(), "InaccessibleDatastore") {
		t.Errorf("attach where the host lost its path: %v", err)
	}
	if _, err := r.attach(r.ctx, id, r.node("node-2").Reference()); err != nil {
		t.Error(err)
	}
	b := r.made(blockVolume("b", 10, ds.Reference()))

	// Without any host it is gone for all.
	if err := r.v.DatastoreAccessible("datastore-2", "", false); err != nil {
		t.Fatal(err)
	}
	if d := r.summary(ds); d.Summary.Accessible {
		t.Error("accessible without a host")
	}
	if _, fault := r.try(blockVolume("c", 10, ds.Reference())); !strings.Contains(fault, "InaccessibleDatastore") {
		t.Errorf("create: %q", fault)
	}
	r.fault("InaccessibleDatastore")(r.cns.ExtendVolume(r.ctx, extendSpec(id, 20)))
	r.fault("InaccessibleDatastore")(r.cns.CreateSnapshots(r.ctx, []cnstypes.CnsSnapshotCreateSpec{{VolumeId: cnstypes.CnsVolumeId{Id: id}, Description: "s"}}))
	r.fault("InaccessibleDatastore")(r.cns.DeleteVolume(r.ctx, []cnstypes.CnsVolumeId{{Id: b}}, true))
	if v := r.query(id); v.HealthStatus == "green" || v.DatastoreAccessibilityStatus == "accessible" {
		t.Errorf("health %s, %s", v.HealthStatus, v.DatastoreAccessibilityStatus)
	}
	if err := refresh(r, ds); err == nil || !strings.Contains(faultName(err), "HostConfigFault") {
		t.Errorf("refresh: %v", err)
	}
	if err := r.v.DatastoreAccessible("datastore-2", "", true); err != nil {
		t.Fatal(err)
	}
	if v := r.query(id); v.HealthStatus != "green" {
		t.Errorf("health %s", v.HealthStatus)
	}
	if r.v.DatastoreAccessible("datastore-2", "floppy", true) == nil || r.v.DatastoreAccessible("floppy", "", true) == nil {
		t.Error("no such host, no such datastore")
	}
}

func refresh(r *rig, ds *object.Datastore) error {
	_, err := methods.RefreshDatastore(r.ctx, r.Client.Client, &types.RefreshDatastore{This: ds.Reference()})
	return err
}

// Test2bCapacity: a volume has to fit; thin disks take what is written, once
// somebody looks, and leave uncommitted what they were promised; thick ones
// take their size.
func Test2bCapacity(t *testing.T) {
	store := disk.NewMemory()
	t.Cleanup(func() { store.Close() })
	r := newRig(t, vcenter.Config{Disks: store, Datastores: []vcenter.Datastore{{Name: "thin", CapacityBytes: 1 << 30}, {Name: "thick", CapacityBytes: 1 << 30, Thick: true}}})
	thin, thick := r.store("thin"), r.store("thick")
	space := func(ds *object.Datastore, free, uncommitted int64) {
		t.Helper()
		d := r.summary(ds)
		if s := d.Summary; s.FreeSpace != free<<20 || s.Uncommitted != uncommitted<<20 || d.Info.GetDatastoreInfo().FreeSpace != s.FreeSpace || s.Capacity != 1<<30 {
			t.Errorf("%s: %d MB free, %d MB uncommitted, info %d; want %d and %d", s.Name, s.FreeSpace>>20, s.Uncommitted>>20, d.Info.GetDatastoreInfo().FreeSpace>>20, free, uncommitted)
		}
	}
	if _, fault := r.try(blockVolume("exbibyte", 1<<40, thin.Reference())); !strings.Contains(fault, "InvalidArgument") {
		t.Errorf("an exbibyte: %q", fault)
	}
	if _, fault := r.try(blockVolume("large", 1025, thin.Reference())); !strings.Contains(fault, "NoDiskSpace") {
		t.Errorf("too large: %q", fault)
	}
	id := r.made(blockVolume("a", 800, thin.Reference()))
	r.made(blockVolume("b", 800, thin.Reference()))
	space(thin, 1024, 1600)
	im, err := store.Open(id)
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	if _, err := im.WriteAt([]byte(strings.Repeat("x", 3<<20)), 0); err != nil {
		t.Fatal(err)
	}
	space(thin, 1024, 1600)
	if err := refresh(r, thin); err != nil {
		t.Fatal(err)
	}
	space(thin, 1021, 1597)
	r.fault("")(r.cns.CreateSnapshots(r.ctx, []cnstypes.CnsSnapshotCreateSpec{{VolumeId: cnstypes.CnsVolumeId{Id: id}, Description: "s"}}))
	if _, err := im.WriteAt([]byte(strings.Repeat("y", 1<<20)), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := methods.RefreshDatastoreStorageInfo(r.ctx, r.Client.Client, &types.RefreshDatastoreStorageInfo{This: thin.Reference()}); err != nil {
		t.Fatal(err)
	}
	space(thin, 1020, 1596)
	if _, err := im.WriteAt([]byte(strings.Repeat("z", 2<<20)), 100<<20); err != nil {
		t.Fatal(err)
	}
	r.fault("")(r.cns.SyncVolume(r.ctx, []cnstypes.CnsSyncVolumeSpec{{VolumeId: cnstypes.CnsVolumeId{Id: id}, SyncMode: []string{string(cnstypes.CnsSyncVolumeModeSPACE_USAGE)}}}))
	space(thin, 1018, 1594)

	v := r.made(blockVolume("c", 800, thick.Reference()))
	space(thick, 224, 0)
	if _, fault := r.try(blockVolume("d", 225, thick.Reference())); !strings.Contains(fault, "NoDiskSpace") {
		t.Errorf("too large: %q", fault)
	}
	r.fault("")(r.cns.ExtendVolume(r.ctx, extendSpec(v, 1024)))
	space(thick, 0, 0)
	if err := r.delete(r.ctx, v); err != nil {
		t.Fatal(err)
	}
	space(thick, 1024, 0)
}

// Test2bDatastoresList: of those named the emptiest is taken, and each has a
// placement result that says why not.
func Test2bDatastoresList(t *testing.T) {
	r := newRig(t, vcenter.Config{Datastores: []vcenter.Datastore{{Name: "small", CapacityBytes: 1 << 30}, {Name: "large"}, {Name: "maint"}, {Name: "dead"}, {Name: "held"}}})
	for _, err := range []error{r.v.DatastoreMaintenance("maint", true), r.v.DatastoreAccessible("dead", "", false), r.v.SuspendDatastore("held", true)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	names := []string{"dead", "small", "maint", "large", "held"}
	var refs []types.ManagedObjectReference
	for _, n := range names {
		refs = append(refs, r.store(n).Reference())
	}
	c, fault := r.try(blockVolume("a", 10, refs...))
	if fault != "" || len(c.PlacementResults) != len(names) {
		t.Fatalf("%q, %+v", fault, c.PlacementResults)
	}
	for i, want := range []string{"CnsInCompatibleFault error: Datastore 'dead' is not accessible", "CnsRankedLowerFault", "CnsInCompatibleFault", "", "CnsInCompatibleFault"} {
		p := c.PlacementResults[i]
		if p.Datastore != refs[i] || (want == "") != (len(p.PlacementFaults) == 0) || want != "" && !strings.Contains(p.PlacementFaults[0].LocalizedMessage, want) {
			t.Errorf("%s: %+v, want %q", names[i], p.PlacementFaults, want)
		}
	}
	if u := r.query(c.VolumeId.Id).DatastoreUrl; u != r.v.DatastoreURL("large") {
		t.Errorf("on %s", u)
	}
}

// Test2bCreateEmptyList: without datastores CNS chooses.
func Test2bCreateEmptyList(t *testing.T) {
	r := newRig(t, vcenter.Config{Datastores: []vcenter.Datastore{{Name: "small", CapacityBytes: 1 << 30}, {Name: "large"}}})
	c, fault := r.try(blockVolume("a", 10))
	if fault != "" || len(c.PlacementResults) != 1 || c.PlacementResults[0].Datastore != r.store("large").Reference() {
		t.Errorf("%q, %+v", fault, c)
	}
}

// Test2bDatastore: types, and URLs that outlive a restart and a new name.
func Test2bDatastore(t *testing.T) {
	cfg := vcenter.Config{Seed: 5}
	for _, k := range []string{"VMFS", "NFS", "NFS41", "vsan", "VVOL"} {
		cfg.Datastores = append(cfg.Datastores, vcenter.Datastore{Name: "ds " + k, Type: k})
	}
	urls := map[string]string{}
	for range 2 {
		r := newRig(t, cfg)
		for _, k := range []string{"VMFS", "NFS", "NFS41", "vsan", "VVOL"} {
			d := r.summary(r.store("ds " + k))
			u := d.Summary.Url
			if d.Summary.Type != k || u != d.Info.GetDatastoreInfo().Url || u != r.v.DatastoreURL("ds "+k) || !strings.HasPrefix(u, "ds:///vmfs/volumes/") || !strings.HasSuffix(u, "/") || urls[k] != "" && urls[k] != u {
				t.Errorf("%s: %+v, before %s", k, d.Summary, urls[k])
			}
			urls[k] = u
			kind := map[string]bool{"VMFS": is[types.VmfsDatastoreInfo](d.Info), "NFS": is[types.NasDatastoreInfo](d.Info), "NFS41": is[types.NasDatastoreInfo](d.Info), "vsan": is[types.VsanDatastoreInfo](d.Info), "VVOL": is[types.VvolDatastoreInfo](d.Info)}
			if !kind[k] {
				t.Errorf("%s: info %T", k, d.Info)
			}
		}
	}
	r := newRig(t, cfg)
	ds := r.store("ds VMFS")
	id := r.made(blockVolume("a", 10, ds.Reference()))
	if _, err := r.attach(r.ctx, id, r.node("node-1").Reference()); err != nil {
		t.Fatal(err)
	}
	rename := func(to string) error {
		res, err := methods.Rename_Task(r.ctx, r.Client.Client, &types.Rename_Task{This: ds.Reference(), NewName: to})
		if err != nil {
			return err
		}
		return object.NewTask(r.Client.Client, res.Returnval).Wait(r.ctx)
	}
	if err := rename("other"); err != nil {
		t.Fatal(err)
	}
	if d := r.summary(ds); d.Name != "other" || d.Summary.Name != "other" || d.Summary.Url != urls["VMFS"] {
		t.Errorf("renamed: %+v", d.Summary)
	}
	v := r.query(id)
	if p := v.BackingObjectDetails.(*cnstypes.CnsBlockBackingDetails).BackingDiskPath; v.DatastoreUrl != urls["VMFS"] || !strings.HasPrefix(p, "[other] ") {
		t.Errorf("the volume lies at %s, %s", v.DatastoreUrl, p)
	}
	devices, err := r.node("node-1").Device(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devices.SelectByType((*types.VirtualDisk)(nil)) {
		if b := d.GetVirtualDevice().Backing.(*types.VirtualDiskFlatVer2BackingInfo); !strings.HasPrefix(b.FileName, "[other] ") {
			t.Errorf("a disk of the VM lies at %s", b.FileName)
		}
	}
	for to, want := range map[string]string{"": "InvalidName", "a/b": "InvalidName", "ds NFS": "DuplicateName"} {
		if err := rename(to); err == nil || !strings.Contains(faultName(err), want) {
			t.Errorf("rename to %q: %v", to, err)
		}
	}
	if err := r.detach(r.ctx, id, r.node("node-1").Reference()); err != nil {
		t.Error(err)
	}
	if err := r.delete(r.ctx, id); err != nil {
		t.Error(err)
	}
}

func is[T any](x any) bool { _, ok := x.(*T); return ok }

// TestDatastoreMaintenance: a datastore enters maintenance when its last VM
// has left, takes nothing new meanwhile, and comes back.
func TestDatastoreMaintenance(t *testing.T) {
	r := newRig(t, vcenter.Config{})
	full, empty := r.store("datastore-1"), r.store("datastore-2")
	enter := func(ds *object.Datastore) (*object.Task, error) {
		res, err := methods.DatastoreEnterMaintenanceMode(r.ctx, r.Client.Client, &types.DatastoreEnterMaintenanceMode{This: ds.Reference()})
		if err != nil {
			return nil, err
		}
		return object.NewTask(r.Client.Client, *res.Returnval.Task), nil
	}
	leave := func(ds *object.Datastore) error {
		res, err := methods.DatastoreExitMaintenanceMode_Task(r.ctx, r.Client.Client, &types.DatastoreExitMaintenanceMode_Task{This: ds.Reference()})
		if err != nil {
			return err
		}
		return object.NewTask(r.Client.Client, res.Returnval).Wait(r.ctx)
	}
	mode := func(ds *object.Datastore, want string) {
		t.Helper()
		if m := r.summary(ds).Summary.MaintenanceMode; m != want {
			t.Errorf("%s: %s, want %s", ds.Name(), m, want)
		}
	}
	if err := r.done(enter(empty)); err != nil {
		t.Fatal(err)
	}
	mode(empty, "inMaintenance")
	if _, fault := r.try(blockVolume("a", 10, empty.Reference())); !strings.Contains(fault, "InvalidDatastoreState") {
		t.Errorf("create in maintenance: %q", fault)
	}
	if _, err := enter(empty); err == nil {
		t.Error("entered twice")
	}
	if err := leave(empty); err != nil {
		t.Fatal(err)
	}
	mode(empty, "normal")
	if err := leave(empty); err == nil {
		t.Error("left twice")
	}
	r.made(blockVolume("b", 10, empty.Reference()))

	task, err := enter(full) // the nodes' VMs are on it
	if err != nil {
		t.Fatal(err)
	}
	mode(full, "enteringMaintenance")
	if err := leave(full); err != nil {
		t.Fatal(err)
	}
	if err := task.Wait(r.ctx); err == nil || !strings.Contains(faultName(err), "RequestCanceled") {
		t.Errorf("left meanwhile: %v", err)
	}
	if task, err = enter(full); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"node-1", "node-2"} {
		if err := r.v.DeleteVM(n); err != nil {
			t.Fatal(err)
		}
	}
	if err := task.Wait(r.ctx); err != nil {
		t.Fatal(err)
	}
	mode(full, "inMaintenance")
}

// TestDatastoreSuspended: a custom attribute with CNS's value, set by any
// client, lets the datastore take no new volumes; those that it has live on.
func TestDatastoreSuspended(t *testing.T) {
	r := newRig(t, vcenter.Config{})
	ds := r.store("datastore-1")
	id := r.made(blockVolume("before", 10, ds.Reference()))
	m, err := object.GetCustomFieldsManager(r.Client.Client)
	if err != nil {
		t.Fatal(err)
	}
	def, err := m.Add(r.ctx, "note", "Datastore", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Add(r.ctx, "note", "", nil, nil); err == nil {
		t.Error("a field twice")
	}
	seen := make(chan error, 1)
	ready := make(chan struct{})
	go func() {
		first := true
		seen <- property.Wait(r.ctx, property.DefaultCollector(r.Client.Client), ds.Reference(), []string{"customValue"}, func(cs []types.PropertyChange) bool {
			if first {
				first = false
				close(ready)
			}
			for _, c := range cs {
				if a, ok := c.Val.(types.ArrayOfCustomFieldValue); ok && len(a.CustomFieldValue) == 1 {
					return true
				}
			}
			return false
		})
	}()
	<-ready
	if err := m.Set(r.ctx, ds.Reference(), def.Key, cnsface.SuspendedAttribute); err != nil {
		t.Fatal(err)
	}
	if err := <-seen; err != nil {
		t.Errorf("who watches the datastore: %v", err)
	}
	if _, fault := r.try(blockVolume("a", 10, ds.Reference())); !strings.Contains(fault, "InvalidDatastoreState") {
		t.Errorf("suspended: %q", fault)
	}
	if u := r.query(r.made(blockVolume("b", 10))).DatastoreUrl; u != r.v.DatastoreURL("datastore-2") {
		t.Errorf("CNS chose %s", u)
	}
	if _, err := r.attach(r.ctx, id, r.node("node-1").Reference()); err != nil {
		t.Error(err)
	}
	// The value may be taken away by name, and the field with its values.
	if err := ds.SetCustomValue(r.ctx, "note", ""); err != nil {
		t.Fatal(err)
	}
	r.made(blockVolume("c", 10, ds.Reference()))
	if err := m.Set(r.ctx, ds.Reference(), def.Key, cnsface.SuspendedAttribute); err != nil {
		t.Fatal(err)
	}
	if err := m.Rename(r.ctx, def.Key, "other"); err != nil {
		t.Fatal(err)
	}
	if err := m.Remove(r.ctx, def.Key); err != nil {
		t.Fatal(err)
	}
	if d := r.summary(ds); len(d.CustomValue) != 0 {
		t.Errorf("values without a field: %+v", d.CustomValue)
	}
	for _, on := range []bool{true, true, false, false} {
		if err := r.v.SuspendDatastore("datastore-1", on); err != nil {
			t.Fatal(err)
		}
		if d := r.summary(ds); len(d.CustomValue) == 1 != on {
			t.Errorf("suspended %v: %+v", on, d.CustomValue)
		}
	}
	if err := r.v.SuspendDatastore("floppy", true); err == nil {
		t.Error("suspended what isn't")
	}
}

// TestDatastoresWhileTheyChange: whatever happens to datastores at once, calls
// come back, and in the end the space is what is there.
func TestDatastoresWhileTheyChange(t *testing.T) {
	r := newRig(t, vcenter.Config{Datastores: []vcenter.Datastore{{Name: "a", Thick: true}, {Name: "b", Thick: true}, {Name: "v", Type: "vsan", Thick: true}}})
	m, err := object.GetCustomFieldsManager(r.Client.Client)
	if err != nil {
		t.Fatal(err)
	}
	def, err := m.Add(r.ctx, "note", "", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	stores := map[string]*object.Datastore{}
	for _, n := range r.v.DatastoreNames() {
		stores[n] = r.store(n)
	}
	names := r.v.DatastoreNames()
	var wg sync.WaitGroup
	each := func(n int, f func(i int, ds string)) {
		wg.Go(func() {
			for i := range n {
				f(i, names[i%len(names)])
			}
		})
	}
	for w := range 2 {
		each(12, func(i int, _ string) { // refusals are fine, hanging is not
			s := blockVolume(fmt.Sprint("pvc-", w, "-", i), 10)
			if i%3 == 0 {
				s = fileVolume(s.Name, 10)
			}
			task, err := r.cns.CreateVolume(r.ctx, []cnstypes.CnsVolumeCreateSpec{s})
			if res, _, err := r.client.result(r.ctx, task, err); err == nil && i%2 == 0 {
				// Its datastore may have gone out of reach meanwhile; then it stays.
				if err := r.delete(r.ctx, res.VolumeId.Id); err != nil && !strings.Contains(err.Error(), "InaccessibleDatastore") {
					t.Error(err)
				}
			}
		})
	}
	each(12, func(i int, ds string) {
		res, err := methods.Rename_Task(r.ctx, r.Client.Client, &types.Rename_Task{This: stores[ds].Reference(), NewName: fmt.Sprint("x", i%4)})
		if err == nil {
			_ = object.NewTask(r.Client.Client, res.Returnval).Wait(r.ctx)
		}
	})
	each(12, func(i int, ds string) { _ = r.v.DatastoreAccessible(ds, "", i%2 == 0) })
	each(12, func(i int, ds string) { _ = r.v.DatastoreMaintenance(ds, i%2 == 0) })
	each(12, func(i int, ds string) { _ = r.v.SuspendDatastore(ds, i%2 == 0) })
	each(12, func(i int, ds string) { _ = r.v.FillDatastore(ds, int64(i)<<30) })
	each(12, func(i int, ds string) { _ = r.v.FileService("v", i%2 == 0) })
	each(12, func(i int, ds string) { _ = refresh(r, stores[ds]) })
	each(12, func(i int, ds string) { _ = m.Set(r.ctx, stores[ds].Reference(), def.Key, fmt.Sprint(i)) })
	each(6, func(i int, _ string) {
		if d, err := m.Add(r.ctx, fmt.Sprint("field ", i), "Datastore", nil, nil); err == nil {
			_ = m.Remove(r.ctx, d.Key)
		}
	})
	wg.Wait()
	used := map[string]int64{}
	for _, v := range r.v.Volumes() {
		used[v.Datastore] += v.CapacityMB
	}
	for name, ds := range stores {
		for _, err := range []error{r.v.DatastoreAccessible(name, "", true), r.v.FillDatastore(name, 1<<40), refresh(r, ds)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if s := r.summary(ds).Summary; s.FreeSpace != s.Capacity-used[ds.Reference().Value]<<20 {
			t.Errorf("%s: %d of %d free, volumes take %d MB", name, s.FreeSpace, s.Capacity, used[ds.Reference().Value])
		}
	}
}

package cnsface_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
	"github.com/csilab/csilab/sim/vcenter/cnsface"
)

const (
	inUse        = "types.ResourceInUse"
	notFound     = "types.NotFound"
	invalidArg   = "types.InvalidArgument"
	cnsFault     = "types.CnsFault"
	objectGone   = "types.ManagedObjectNotFound"
	taskInvalid  = "task *types.InvalidArgument"
	taskState    = "task *types.InvalidState"
	notSupported = "types.NotSupported"
)

func ref(kind, value string) vim.ManagedObjectReference {
	return vim.ManagedObjectReference{Type: kind, Value: value}
}

func TestCreateFaults(t *testing.T) {
	t.Parallel()
	l := newLab(t, func(c *cnsface.Config) { c.Policies = func(id string) bool { return id == "gold" } })
	with := func(change func(*cnstypes.CnsVolumeCreateSpec)) cnstypes.CnsVolumeCreateSpec {
		s := l.spec("pvc-x", 10)
		change(&s)
		return s
	}
	first := l.create("twice", 10)
	if second := l.create("twice", 10); second == first {
		t.Error("names are not unique: two creates are two volumes")
	}

	// On the call.
	err := l.tryCreate(with(func(s *cnstypes.CnsVolumeCreateSpec) {
		s.Datastores = []vim.ManagedObjectReference{l.ds[0].Reference(), ref("Datastore", "datastore-999")}
	})).err
	if f := soapFaultOf(err); f == nil {
		t.Errorf("a datastore that doesn't exist: %v", err)
	} else if g, ok := f.(vim.ManagedObjectNotFound); !ok || g.Obj.Value != "datastore-999" {
		t.Errorf("a datastore that doesn't exist: %#v", f)
	}

	// On the task.
	for _, n := range []int{0, 2} {
		l.refused(taskInvalid, l.tryCreate([]cnstypes.CnsVolumeCreateSpec{l.spec("a", 1), l.spec("b", 1)}[:n]...))
	}

	// On the result.
	refuse := func(want string, change func(*cnstypes.CnsVolumeCreateSpec)) (cnstypes.BaseCnsVolumeOperationResult, string) {
		t.Helper()
		o := l.tryCreate(with(change))
		text := l.refused(want, o)
		if o.r.GetCnsVolumeOperationResult().VolumeId.Id != "" {
			t.Error("a failed create has a volume id")
		}
		return o.r, text
	}
	refuse(invalidArg, func(s *cnstypes.CnsVolumeCreateSpec) { s.Name = "" })
	refuse(invalidArg, func(s *cnstypes.CnsVolumeCreateSpec) { s.VolumeType = "TAPE" })
	refuse(invalidArg, func(s *cnstypes.CnsVolumeCreateSpec) { s.VolumeType = "FILE" })
	refuse(notSupported, func(s *cnstypes.CnsVolumeCreateSpec) {
		s.VolumeType, s.BackingObjectDetails = "FILE", &cnstypes.CnsVsanFileShareBackingDetails{}
		s.BackingObjectDetails.GetCnsBackingObjectDetails().CapacityInMb = 10
	})
	refuse(invalidArg, func(s *cnstypes.CnsVolumeCreateSpec) {
		s.BackingObjectDetails = &cnstypes.CnsVsanFileShareBackingDetails{}
	})
	refuse(invalidArg, func(s *cnstypes.CnsVolumeCreateSpec) {
		s.BackingObjectDetails.GetCnsBackingObjectDetails().CapacityInMb = 1 << 40
	})
	refuse(invalidArg, func(s *cnstypes.CnsVolumeCreateSpec) { s.Metadata.ContainerCluster.ClusterId = "" })
	refuse(invalidArg, func(s *cnstypes.CnsVolumeCreateSpec) {
		s.Profile = []vim.BaseVirtualMachineProfileSpec{&vim.VirtualMachineDefinedProfileSpec{ProfileId: "lead"}}
	})
	refuse(invalidArg, func(s *cnstypes.CnsVolumeCreateSpec) { s.VolumeId = &cnstypes.CnsVolumeId{Id: "no uuid"} })
	refuse(notFound, func(s *cnstypes.CnsVolumeCreateSpec) {
		s.VolumeSource = &cnstypes.CnsSnapshotVolumeSource{VolumeId: cnstypes.CnsVolumeId{Id: "x"}, SnapshotId: cnstypes.CnsSnapshotId{Id: "y"}}
	})
	r, _ := refuse("types.CnsSnapshotNotFoundFault", func(s *cnstypes.CnsVolumeCreateSpec) {
		s.VolumeSource = &cnstypes.CnsSnapshotVolumeSource{VolumeId: cnstypes.CnsVolumeId{Id: first}, SnapshotId: cnstypes.CnsSnapshotId{Id: "y"}}
	})
	if f := r.GetCnsVolumeOperationResult().Fault.Fault.(*cnstypes.CnsSnapshotNotFoundFault); f.VolumeId.Id != first || f.SnapshotId.Id != "y" {
		t.Errorf("fault %+v", f)
	}
	r, _ = refuse("types.CnsAlreadyRegisteredFault", func(s *cnstypes.CnsVolumeCreateSpec) {
		s.BackingObjectDetails.(*cnstypes.CnsBlockBackingDetails).BackingDiskId = first
	})
	if f := r.GetCnsVolumeOperationResult().Fault.Fault.(*cnstypes.CnsAlreadyRegisteredFault); f.VolumeId.Id != first {
		t.Errorf("fault %+v", f)
	}
	r, _ = refuse("types.CnsVolumeAlreadyExistsFault", func(s *cnstypes.CnsVolumeCreateSpec) { s.VolumeId = &cnstypes.CnsVolumeId{Id: first} })
	if f := r.GetCnsVolumeOperationResult().Fault.Fault.(*cnstypes.CnsVolumeAlreadyExistsFault); f.VolumeId.Id != first {
		t.Errorf("fault %+v", f)
	}

	// A datastore that is full, in maintenance or away: the fault is CNS's,
	// with the cause in it and in the placement results.
	space := func(s *cnstypes.CnsVolumeCreateSpec) {
		s.BackingObjectDetails.GetCnsBackingObjectDetails().CapacityInMb = 60 << 20
		for _, ds := range l.ds[1:] {
			s.Datastores = append(s.Datastores, ds.Reference())
		}
	}
	r, text := refuse(cnsFault, space)
	if !strings.Contains(text, "Failed to create disk:Fault cause: vim.fault.NoDiskSpace") {
		t.Errorf("no space: %q", text)
	}
	f := r.GetCnsVolumeOperationResult().Fault.Fault.(*cnstypes.CnsFault)
	if f.FaultCause == nil || f.FaultCause.Fault == nil {
		t.Errorf("no cause: %#v", f)
	}
	if pr := r.(*cnstypes.CnsVolumeCreateResult).PlacementResults; len(pr) != len(l.ds) || len(pr[1].PlacementFaults) != 1 || pr[1].Datastore != l.ds[1].Reference() {
		t.Errorf("placement results %+v", pr)
	}
	l.datastore(0, func(ds *mo.Datastore) {
		ds.Summary.MaintenanceMode = string(vim.DatastoreSummaryMaintenanceModeStateInMaintenance)
	})
	if _, text := refuse(cnsFault, func(*cnstypes.CnsVolumeCreateSpec) {}); !strings.Contains(text, "InvalidDatastoreState") {
		t.Errorf("maintenance: %q", text)
	}
	// The next in the list takes it.
	r = l.ok(l.tryCreate(with(func(s *cnstypes.CnsVolumeCreateSpec) { s.Datastores = append(s.Datastores, l.ds[1].Reference()) })))
	if pr := r.(*cnstypes.CnsVolumeCreateResult).PlacementResults; len(pr) != 2 || len(pr[0].PlacementFaults) != 1 || len(pr[1].PlacementFaults) != 0 {
		t.Errorf("placement results %+v", pr)
	}
	l.datastore(0, func(ds *mo.Datastore) { ds.Summary.MaintenanceMode, ds.Summary.Accessible = "normal", false })
	if _, text := refuse(cnsFault, func(*cnstypes.CnsVolumeCreateSpec) {}); !strings.Contains(text, "InaccessibleDatastore") {
		t.Errorf("inaccessible: %q", text)
	}
	l.datastore(0, func(ds *mo.Datastore) { ds.Summary.Accessible = true })

	// An image that can't be made leaves no volume, a volume that is refused
	// no image.
	n := len(l.face.Volumes())
	l.disks.mu.Lock()
	l.disks.err = errors.New("no more inodes")
	l.disks.mu.Unlock()
	if _, text := refuse(cnsFault, func(*cnstypes.CnsVolumeCreateSpec) {}); !strings.Contains(text, "Failed to create disk") {
		t.Errorf("disk failure: %q", text)
	}
	if got := len(l.face.Volumes()); got != n || len(l.disks.sizes()) != n {
		t.Errorf("%d volumes, %d images, want %d", got, len(l.disks.sizes()), n)
	}

	// The caller's id, a policy that exists, no datastore at all.
	id := "0b5dd4f4-7a9e-4b3c-9d2e-000000000001"
	if got := l.createSpec(with(func(s *cnstypes.CnsVolumeCreateSpec) {
		s.VolumeId, s.Datastores = &cnstypes.CnsVolumeId{Id: id}, nil
		s.Profile = []vim.BaseVirtualMachineProfileSpec{&vim.VirtualMachineDefinedProfileSpec{ProfileId: "gold"}}
	})); got != id {
		t.Errorf("created %s, asked for %s", got, id)
	}
}

// datastore changes a datastore of the inventory.
func (l *lab) datastore(i int, change func(*mo.Datastore)) {
	c := *l.model.Service.Context
	ds := c.Map.Get(l.ds[i].Reference()).(*simulator.Datastore)
	c.WithLock(ds, func() {
		change(&ds.Datastore)
		c.Update(ds, []vim.PropertyChange{{Name: "summary", Val: ds.Summary}})
	})
}

func soapFaultOf(err error) any {
	if err == nil || !soap.IsSoapFault(err) {
		return nil
	}
	return soap.ToSoapFault(err).VimFault()
}

func TestAttachFaults(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	id := l.create("a", 10)
	if text := l.refused(notFound, l.attach("nope", l.vms[0])); !strings.Contains(text, "could not be found") {
		t.Errorf("unknown volume: %q", text)
	}
	l.refused(objectGone, l.attach(id, ref("VirtualMachine", "vm-999")))
	l.refused(objectGone, l.attach(id, ref("Datastore", l.ds[0].Reference().Value)))
	l.refused(taskInvalid, l.wait(l.cns.AttachVolume(l.ctx, nil)))

	r := l.ok(l.attach(id, l.vms[0])).(*cnstypes.CnsVolumeAttachResult)
	uuid := r.DiskUUID
	for _, vm := range l.vms[:2] { // the holder, and another one
		if text := l.refused(inUse, l.attach(id, vm)); text != "The resource 'volume' is in use." {
			t.Errorf("attach twice: %q", text)
		}
	}
	if text := l.refused(inUse, l.delete(id)); text != "The resource 'volume' is in use." {
		t.Errorf("delete attached: %q", text)
	}
	l.refused(invalidArg, l.detach(id, l.vms[1]))
	l.refused(notFound, l.detach("nope", l.vms[0]))
	l.refused(objectGone, l.detach(id, ref("VirtualMachine", "vm-999")))
	l.ok(l.detach(id, l.vms[0]))
	l.ok(l.detach(id, l.vms[0])) // nobody holds it: passes

	// The disk keeps its id on another VM.
	if r := l.ok(l.attach(id, l.vms[1])).(*cnstypes.CnsVolumeAttachResult); r.DiskUUID != uuid {
		t.Errorf("disk id %s, then %s", uuid, r.DiskUUID)
	}
	l.ok(l.detach(id, l.vms[1]))

	// Failures of the node.
	l.nodes.mu.Lock()
	l.nodes.err = errors.New("no such host adapter")
	l.nodes.mu.Unlock()
	if text := l.refused(cnsFault, l.attach(id, l.vms[0])); !strings.Contains(text, "Failed to attach disk") {
		t.Errorf("node failure: %q", text)
	}
	if len(l.disksOf(l.vms[0])) != 0 || len(l.face.Attachments()) != 0 {
		t.Error("a failed attach left a disk")
	}
	l.ok(l.attach(id, l.vms[0]))
	l.nodes.mu.Lock()
	l.nodes.err = errors.New("device is busy")
	l.nodes.mu.Unlock()
	l.refused(cnsFault, l.detach(id, l.vms[0]))
	if len(l.disksOf(l.vms[0])) != 1 || len(l.face.Attachments()) != 1 {
		t.Error("a failed detach took the disk")
	}
	l.ok(l.detach(id, l.vms[0]))

	// What the VM can't do fails the task.
	task, err := l.vms[0].Suspend(l.ctx)
	if err == nil {
		err = task.Wait(l.ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	if text := l.refused(taskState, l.attach(id, l.vms[0])); !strings.Contains(text, "not allowed in the current state") {
		t.Errorf("suspended: %q", text)
	}
	// A datastore that the VM's host doesn't mount.
	l.datastore(0, func(ds *mo.Datastore) { ds.Host = []vim.DatastoreHostMount{{Key: ref("HostSystem", "host-999")}} })
	l.refused(cnsFault, l.attach(id, l.vms[1]))
}

func TestSlots(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	const volumes = 61
	run := func(start func(i int) (*object.Task, error)) (out []outcome) {
		t.Helper()
		var tasks []*object.Task
		for i := range volumes {
			task, err := start(i)
			if err != nil {
				t.Fatal(err)
			}
			tasks = append(tasks, task)
		}
		for _, task := range tasks {
			out = append(out, l.wait(task, nil))
		}
		return out
	}
	var all, ids []string
	for _, o := range run(func(i int) (*object.Task, error) {
		return l.cns.CreateVolume(l.ctx, []cnstypes.CnsVolumeCreateSpec{l.spec(fmt.Sprint("pvc-", i), 1)})
	}) {
		all = append(all, l.ok(o).GetCnsVolumeOperationResult().VolumeId.Id)
	}
	for i, o := range run(func(i int) (*object.Task, error) {
		return l.cns.AttachVolume(l.ctx, attachSpec(all[i], l.vms[0].Reference()))
	}) {
		if k, text := o.fault(); k == "" {
			ids = append(ids, all[i])
		} else if k != cnsFault || !strings.Contains(text, "because missing SCSI controller") {
			t.Errorf("%s %s", k, text)
		}
	}
	type slot struct{ controller, unit int32 }
	seen := map[slot]string{}
	for id, d := range l.disksOf(l.vms[0]) {
		s := slot{d.ControllerKey, *d.UnitNumber}
		if seen[s] != "" || s.unit == 7 {
			t.Errorf("%s and %s in slot %v", id, seen[s], s)
		}
		seen[s] = id
	}
	if len(seen) != 59 {
		t.Errorf("%d disks", len(seen))
	}
	// A slot that is freed can be had again.
	l.ok(l.detach(ids[17], l.vms[0]))
	l.ok(l.attach(l.create("pvc", 1), l.vms[0]))
}

func TestSnapshots(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	id := l.create("a", 10)
	l.refused(notFound, l.snapshot("nope", "x"))
	var ids []string
	for i := range 32 {
		r := l.ok(l.snapshot(id, "same text")).(*cnstypes.CnsSnapshotCreateResult)
		if r.Snapshot.SnapshotId.Id == "" || r.Snapshot.VolumeId.Id != id || r.Snapshot.CreateTime.IsZero() ||
			r.Snapshot.ChangedBlockTrackingId != "" || r.AggregatedSnapshotCapacityInMb != int64(i+1)*10 {
			t.Fatalf("result %+v", r)
		}
		ids = append(ids, r.Snapshot.SnapshotId.Id)
	}
	l.refused(cnsFault, l.snapshot(id, "one too many"))
	if got := len(l.disks.snaps[id]); got != 32 {
		t.Errorf("%d snapshots of the image", got)
	}
	l.refused(inUse, l.delete(id))
	l.refused(cnsFault, l.extend(id, 20))

	query := func(f cnstypes.CnsSnapshotQueryFilter) cnstypes.CnsSnapshotQueryResult {
		t.Helper()
		task, err := l.cns.QuerySnapshots(l.ctx, f)
		if err != nil {
			t.Fatal(err)
		}
		info, err := task.WaitForResult(l.ctx)
		if err != nil {
			t.Fatal(err)
		}
		return info.Result.(cnstypes.CnsSnapshotQueryResult)
	}
	of := func(volume, snap string) []cnstypes.CnsSnapshotQuerySpec {
		s := cnstypes.CnsSnapshotQuerySpec{VolumeId: cnstypes.CnsVolumeId{Id: volume}}
		if snap != "" {
			s.SnapshotId = &cnstypes.CnsSnapshotId{Id: snap}
		}
		return []cnstypes.CnsSnapshotQuerySpec{s}
	}
	var got []string
	cur := &cnstypes.CnsCursor{Limit: 10}
	for page := 0; ; page++ {
		r := query(cnstypes.CnsSnapshotQueryFilter{SnapshotQuerySpecs: of(id, ""), Cursor: cur})
		for _, e := range r.Entries {
			got = append(got, e.Snapshot.SnapshotId.Id)
		}
		if r.Cursor.Offset == r.Cursor.TotalRecords {
			if page != 3 || r.Cursor.TotalRecords != 32 {
				t.Errorf("page %d, cursor %+v", page, r.Cursor)
			}
			break
		}
		cur = &r.Cursor
	}
	if strings.Join(got, " ") != strings.Join(ids, " ") {
		t.Errorf("pages give %v, want %v", got, ids)
	}
	if r := query(cnstypes.CnsSnapshotQueryFilter{}); len(r.Entries) != 32 {
		t.Errorf("all: %d", len(r.Entries))
	}
	if r := query(cnstypes.CnsSnapshotQueryFilter{SnapshotQuerySpecs: of(id, ids[3])}); len(r.Entries) != 1 || r.Entries[0].Snapshot.SnapshotId.Id != ids[3] {
		t.Errorf("one: %+v", r)
	}
	entry := func(specs []cnstypes.CnsSnapshotQuerySpec) vim.BaseMethodFault {
		t.Helper()
		r := query(cnstypes.CnsSnapshotQueryFilter{SnapshotQuerySpecs: specs})
		if len(r.Entries) != 1 || r.Entries[0].Error == nil {
			t.Fatalf("no error: %+v", r)
		}
		return r.Entries[0].Error.Fault
	}
	if f, ok := entry(of("nope", "")).(*cnstypes.CnsVolumeNotFoundFault); !ok || f.VolumeId.Id != "nope" {
		t.Errorf("unknown volume: %#v", f)
	}
	if f, ok := entry(of(id, "nope")).(*cnstypes.CnsSnapshotNotFoundFault); !ok || f.SnapshotId.Id != "nope" {
		t.Errorf("unknown snapshot: %#v", f)
	}

	// Restore: same size, same datastore.
	source := func(s *cnstypes.CnsVolumeCreateSpec) {
		s.VolumeSource = &cnstypes.CnsSnapshotVolumeSource{VolumeId: cnstypes.CnsVolumeId{Id: id}, SnapshotId: cnstypes.CnsSnapshotId{Id: ids[0]}}
	}
	s := l.spec("restored", 10)
	source(&s)
	restored := l.createSpec(s)
	if got := l.disks.sizes()[restored]; got != 10<<20 {
		t.Errorf("restored image has %d bytes", got)
	}
	s = l.spec("restored", 11)
	source(&s)
	l.refused(invalidArg, l.tryCreate(s))

	for _, snap := range ids {
		r := l.ok(l.deleteSnapshot(id, snap)).(*cnstypes.CnsSnapshotDeleteResult)
		if r.SnapshotId.Id != snap || r.VolumeId.Id != id {
			t.Fatalf("result %+v", r)
		}
	}
	l.refused(notFound, l.deleteSnapshot(id, ids[0]))
	l.refused(notFound, l.deleteSnapshot("nope", ids[0]))
	l.ok(l.extend(id, 20))
	l.refused(invalidArg, l.extend(id, 10))
	l.refused(notFound, l.extend("nope", 10))
	l.ok(l.delete(id))
	l.refused(notFound, l.delete(id))
}

func TestKeepDisk(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	id := l.create("a", 10)
	l.ok(l.wait(l.cns.DeleteVolume(l.ctx, []cnstypes.CnsVolumeId{{Id: id}}, false)))
	if len(l.face.Volumes()) != 0 || len(l.disks.sizes()) != 1 {
		t.Fatal("the volume is to go, its image to stay")
	}
	s := l.spec("static", 0)
	s.BackingObjectDetails.(*cnstypes.CnsBlockBackingDetails).BackingDiskUrlPath = "https://vc/folder/fcd/" + cns.BackingName(id) + ".vmdk?dcPath=DC0&dsName=LocalDS_0"
	if got := l.createSpec(s); got != id {
		t.Errorf("registered %s as %s", id, got)
	}
	if v := l.face.Volumes(); len(v) != 1 || v[0].CapacityMB != 10 || v[0].Name != "static" {
		t.Errorf("volumes %+v", v)
	}
}

package cns

import "testing"

// TestRelocate: a disk takes its space and snapshots along, and keeps its id,
// its holder and, unless told otherwise, its policy.
func TestRelocate(t *testing.T) {
	c := world()
	s := spec("a", 10, "ds-1")
	s.PolicyID = "gold"
	must[Plan](t)(c.Create(epoch, s))
	must[Snapshot](t)(c.CreateSnapshot(epoch, "a", "s1", ""))
	must[Attachment](t)(c.Attach(AttachSpec{Volume: "a", VM: vm("vm-1")}))
	must[Disk](t)(c.Relocate(RelocateSpec{Disk: "a", Datastore: "ds-2", Hosts: []string{"host-1"}}))
	v := must[Volume](t)(c.Volume("a"))
	if v.Datastore != "ds-2" || v.DiskPath != "[two] fcd/a.vmdk" || v.PolicyID != "gold" || len(v.Snapshots) != 1 {
		t.Errorf("moved: %+v", v)
	}
	if a, ok := c.Attachment("a"); !ok || a.VM != "vm-1" {
		t.Errorf("held by %+v", a)
	}
	for ds, want := range map[string]int64{"ds-1": 900, "ds-2": 990} {
		if _, free, _ := c.Datastore(ds); free != want {
			t.Errorf("%s has %d MB free, want %d", ds, free, want)
		}
	}
	if p, err := c.Query(Filter{Datastores: []string{"ds-2"}}, Cursor{}); err != nil || p.Total != 1 {
		t.Errorf("found on the new datastore: %+v, %v", p, err)
	}
	must[File](t)(c.CreateFile(epoch, File{ID: "f", Path: "[one] vm/vm_2.vmdk", Datastore: "ds-1", CapacityMB: 1}))
	must[Disk](t)(c.Relocate(RelocateSpec{Disk: "a", Datastore: "ds-1", PolicyID: "lead", Folder: "vm", Taken: []string{"vm/vm.vmdk", "vm/vm_1.vmdk"}}))
	if v := must[Volume](t)(c.Volume("a")); v.DiskPath != "[one] vm/vm_3.vmdk" {
		t.Errorf("in the VM's folder at %s", v.DiskPath)
	}
	if d, ok := c.DiskAt("[one] vm/vm_3.vmdk"); !ok || d.ID != "a" {
		t.Errorf("found there: %+v", d)
	}
	if v := must[Volume](t)(c.Volume("a")); v.PolicyID != "lead" {
		t.Errorf("policy %q", v.PolicyID)
	}
}

// TestUnregister: the disk stays with what it has, and comes back as it was.
func TestUnregister(t *testing.T) {
	c := world()
	must[Plan](t)(c.Create(epoch, spec("a", 10, "ds-1")))
	must[Snapshot](t)(c.CreateSnapshot(epoch, "a", "s1", ""))
	must[Disk](t)(c.SetFlags("a", []string{"enableChangedBlockTracking"}, true))
	must[Disk](t)(c.Unregister("a", false))
	if d, registered, err := c.Disk("a"); err != nil || registered || len(d.Snapshots) != 1 || !d.Flags.ChangedBlockTracking {
		t.Errorf("left: %+v %v %v", d, registered, err)
	}
	s := spec("", 0)
	s.Name, s.DiskID = "again", "a"
	must[Plan](t)(c.Create(epoch, s))
	if v := must[Volume](t)(c.Volume("a")); v.Name != "again" || len(v.Snapshots) != 1 || !v.Flags.KeepAfterDeleteVM {
		t.Errorf("registered: %+v", v)
	}
	// Once more, as vCenter 9.1 lets pass: only metadata is merged.
	s.Name, s.Again, s.Metadata.Cluster.ID = "other", true, "k2"
	must[Plan](t)(c.Create(epoch, s))
	if v := must[Volume](t)(c.Volume("a")); v.Name != "again" || len(v.Metadata.clusterIDs()) != 2 {
		t.Errorf("registered twice: %+v", v)
	}
}

package cns

import (
	"errors"
	"reflect"
	"slices"
	"testing"
)

func diskSpec(id, ds string, mb int64) DiskSpec {
	return DiskSpec{ID: id, Name: "disk " + id, Datastore: ds, CapacityMB: mb}
}

// disks is a world with disks of all sorts.
func disks(t *testing.T) *Core {
	t.Helper()
	c := world()
	for _, id := range []string{"free", "held", "snapped", "fixed"} {
		must[Disk](t)(c.CreateDisk(epoch, diskSpec(id, "ds-1", 10)))
	}
	must[Attachment](t)(c.Attach(AttachSpec{Volume: "held", VM: vm("vm-1"), Disk: true}))
	must[Snapshot](t)(c.SnapshotDisk(epoch, "held", "s1", ""))
	must[Snapshot](t)(c.SnapshotDisk(epoch, "snapped", "s1", ""))
	must[Snapshot](t)(c.SnapshotDisk(epoch, "snapped", "s2", ""))
	linked := diskSpec("clone", "", 0)
	linked.From, linked.Linked = &Source{"snapped", "s2"}, true
	must[Disk](t)(c.CreateDisk(epoch, linked))
	must[Plan](t)(c.Create(epoch, spec("volume", 10, "ds-1")))
	must[Plan](t)(c.Create(epoch, spec("lost", 10, "ds-1")))
	must[Disk](t)(c.DeleteDisk("lost"))
	must[File](t)(c.CreateFile(epoch, File{ID: "f1", Path: "[one] x/a.vmdk", Datastore: "ds-1", CapacityMB: 10}))
	return c
}

func TestRefusalsOfDisks(t *testing.T) {
	create := func(change func(*DiskSpec)) func(*Core) error {
		return func(c *Core) error {
			s := diskSpec("new", "ds-1", 10)
			change(&s)
			_, err := c.CreateDisk(epoch, s)
			return err
		}
	}
	file := func(f File) func(*Core) error {
		return func(c *Core) error { _, err := c.CreateFile(epoch, f); return err }
	}
	good := File{ID: "f2", Path: "[one] x/b.vmdk", Datastore: "ds-1", CapacityMB: 1}
	with := func(change func(*File)) File { f := good; change(&f); return f }
	for name, x := range map[string]struct {
		do     func(*Core) error
		kind   Kind
		field  string
		holder string
	}{
		"no name":                {create(func(s *DiskSpec) { s.Name = "" }), InvalidArgument, "name", ""},
		"id of a volume":         {create(func(s *DiskSpec) { s.ID = "volume" }), InvalidArgument, "id", ""},
		"id of a file":           {create(func(s *DiskSpec) { s.ID = "f1" }), InvalidArgument, "id", ""},
		"id of a lost volume":    {create(func(s *DiskSpec) { s.ID = "lost" }), InvalidArgument, "id", ""},
		"no size":                {create(func(s *DiskSpec) { s.CapacityMB = 0 }), InvalidArgument, "capacityInMB", ""},
		"unknown provisioning":   {create(func(s *DiskSpec) { s.Provisioning = "fat" }), InvalidArgument, "provisioningType", ""},
		"no such datastore":      {create(func(s *DiskSpec) { s.Datastore = "ds-x" }), NotFoundObject, "datastore", ""},
		"dead datastore":         {create(func(s *DiskSpec) { s.Datastore = "ds-dead" }), Inaccessible, "datastores", "dead"},
		"in maintenance":         {create(func(s *DiskSpec) { s.Datastore = "ds-maint" }), Maintenance, "datastores", "maint"},
		"too large for it":       {create(func(s *DiskSpec) { s.CapacityMB = 5000 }), NoSpace, "datastores", "one"},
		"path of a file":         {create(func(s *DiskSpec) { s.Path = "x/a.vmdk" }), FileExists, "path", "f1"},
		"path of a disk":         {create(func(s *DiskSpec) { s.Path = "fcd/free.vmdk" }), FileExists, "path", "free"},
		"path out of it":         {create(func(s *DiskSpec) { s.Path = "../a.vmdk" }), InvalidPath, "path", ""},
		"path of no vmdk":        {create(func(s *DiskSpec) { s.Path = "a.iso" }), InvalidPath, "path", ""},
		"key twice":              {create(func(s *DiskSpec) { s.Values = []Label{{"k", "1"}, {"k", "2"}} }), InvalidArgument, "metadata", ""},
		"copy of nothing":        {create(func(s *DiskSpec) { s.From = &Source{Volume: "x"} }), NotFound, "id", ""},
		"copy of what is lost":   {create(func(s *DiskSpec) { s.From = &Source{Volume: "lost"} }), NotFound, "id", ""},
		"copy of what is held":   {create(func(s *DiskSpec) { s.From = &Source{Volume: "held"} }), Attached, "id", "vm-1"},
		"copy of no snapshot":    {create(func(s *DiskSpec) { s.From = &Source{"held", "x"} }), SnapshotNotFound, "snapshotId", "held"},
		"linked to no snapshot":  {create(func(s *DiskSpec) { s.From, s.Linked = &Source{Volume: "free"}, true }), NotSupported, "linkedClone", ""},
		"linked from elsewhere":  {create(func(s *DiskSpec) { s.From, s.Linked, s.Datastore = &Source{"snapped", "s1"}, true, "ds-2" }), NotSupported, "linkedClone", ""},
		"delete nothing":         {func(c *Core) error { _, err := c.DeleteDisk("x"); return err }, NotFound, "id", ""},
		"delete what is lost":    {func(c *Core) error { _, err := c.DeleteDisk("lost"); return err }, NotFound, "id", ""},
		"delete what is held":    {func(c *Core) error { _, err := c.DeleteDisk("held"); return err }, Attached, "id", "vm-1"},
		"delete with snapshots":  {func(c *Core) error { _, err := c.DeleteDisk("snapped"); return err }, HasSnapshots, "id", "s2"},
		"extend nothing":         {func(c *Core) error { _, err := c.ExtendDisk("x", 20); return err }, NotFound, "id", ""},
		"shrink":                 {func(c *Core) error { _, err := c.ExtendDisk("free", 5); return err }, InvalidArgument, "capacityInMb", ""},
		"extend with snapshots":  {func(c *Core) error { _, err := c.ExtendDisk("snapped", 20); return err }, HasSnapshots, "volumeId", "s2"},
		"inflate what is held":   {func(c *Core) error { _, err := c.Inflate("held"); return err }, Attached, "id", "vm-1"},
		"inflate with snapshots": {func(c *Core) error { _, err := c.Inflate("snapped"); return err }, HasSnapshots, "id", "s2"},
		"inflate a linked clone": {func(c *Core) error { _, err := c.Inflate("clone"); return err }, NotSupported, "id", "snapped"},
		"rename nothing":         {func(c *Core) error { _, err := c.RenameDisk("x", "n"); return err }, NotFound, "id", ""},
		"rename to nothing":      {func(c *Core) error { _, err := c.RenameDisk("free", ""); return err }, InvalidArgument, "name", ""},
		"snapshot nothing":       {func(c *Core) error { _, err := c.SnapshotDisk(epoch, "lost", "s", ""); return err }, NotFound, "id", ""},
		"delete no snapshot":     {func(c *Core) error { _, err := c.DeleteDiskSnapshot("free", "s1"); return err }, SnapshotNotFound, "snapshotId", "free"},
		"delete a clone's":       {func(c *Core) error { _, err := c.DeleteDiskSnapshot("snapped", "s2"); return err }, InUse, "snapshotId", "clone"},
		"revert to nothing":      {func(c *Core) error { _, err := c.Revert("free", "s1"); return err }, SnapshotNotFound, "snapshotId", "free"},
		"revert what is held":    {func(c *Core) error { _, err := c.Revert("held", "s1"); return err }, Attached, "id", "vm-1"},
		"revert below a clone":   {func(c *Core) error { _, err := c.Revert("snapped", "s1"); return err }, InUse, "snapshotId", "clone"},
		"values of nothing":      {func(c *Core) error { _, err := c.UpdateValues("x", nil, nil); return err }, NotFound, "id", ""},
		"value without key":      {func(c *Core) error { _, err := c.UpdateValues("free", []Label{{"", "v"}}, nil); return err }, InvalidArgument, "metadata", ""},
		"set and delete":         {func(c *Core) error { _, err := c.UpdateValues("free", []Label{{"k", "v"}}, []string{"k"}); return err }, InvalidArgument, "deleteKeys", ""},
		"tag of nothing":         {func(c *Core) error { return c.AttachTag("x", Tag{"c", "t"}) }, NotFound, "id", ""},
		"empty tag":              {func(c *Core) error { return c.AttachTag("free", Tag{"c", ""}) }, InvalidArgument, "tag", ""},
		"tag that is not on it":  {func(c *Core) error { return c.DetachTag("free", Tag{"c", "t"}) }, NotFound, "tag", ""},
		"attach nothing": {func(c *Core) error {
			_, err := c.Attach(AttachSpec{Volume: "lost", VM: vm("vm-1"), Disk: true})
			return err
		}, NotFound, "volumeId", ""},
		"attach what is held": {func(c *Core) error {
			_, err := c.Attach(AttachSpec{Volume: "held", VM: vm("vm-2"), Disk: true})
			return err
		}, InUse, "volumeId", "vm-1"},
		"detach what is free":   {func(c *Core) error { _, err := c.DetachDisk("free", vm("vm-1")); return err }, InvalidArgument, "diskId", ""},
		"detach from another":   {func(c *Core) error { _, err := c.DetachDisk("held", vm("vm-2")); return err }, InvalidArgument, "vm", "vm-1"},
		"demote a volume":       {func(c *Core) error { _, err := c.Demote("volume"); return err }, InUse, "id", "volume"},
		"demote a linked clone": {func(c *Core) error { _, err := c.Demote("clone"); return err }, NotSupported, "id", "snapped"},
		"register nothing":      {func(c *Core) error { _, err := c.RegisterDisk("[one] no.vmdk", ""); return err }, FileNotFound, "path", ""},
		"register twice":        {func(c *Core) error { _, err := c.RegisterDisk("[one] fcd/free.vmdk", ""); return err }, AlreadyRegistered, "path", "free"},
		"register what is lost": {func(c *Core) error { s := spec("", 0); s.DiskID = "lost"; _, err := c.Create(epoch, s); return err }, NotFound, "backingDiskId", ""},
		"file with a taken id":  {file(with(func(f *File) { f.ID = "free" })), InvalidArgument, "id", ""},
		"file without size":     {file(with(func(f *File) { f.CapacityMB = 0 })), InvalidArgument, "capacityKb", ""},
		"file nowhere":          {file(with(func(f *File) { f.Datastore = "ds-x" })), NotFoundObject, "datastore", ""},
		"file elsewhere":        {file(with(func(f *File) { f.Path = "[two] x/b.vmdk" })), InvalidPath, "path", ""},
		"delete no file":        {func(c *Core) error { _, err := c.DeleteFile("[one] no.vmdk"); return err }, FileNotFound, "path", ""},
		"delete a disk's file":  {func(c *Core) error { _, err := c.DeleteFile("[one] fcd/free.vmdk"); return err }, FileNotFound, "path", ""},
		"move over a disk":      {func(c *Core) error { _, err := c.MoveFile("[one] x/a.vmdk", "ds-1", "[one] fcd/free.vmdk"); return err }, FileExists, "path", "free"},
		"shrink a file":         {func(c *Core) error { _, err := c.ExtendFile("[one] x/a.vmdk", 5); return err }, InvalidArgument, "newCapacityKb", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := disks(t)
			before := c.dump()
			err := x.do(c)
			var e *Error
			if !errors.As(err, &e) || e.Kind != x.kind || e.Field != x.field || e.Holder != x.holder || e.Error() == "" {
				t.Errorf("got %#v, want %s of %s (%s)", err, x.kind, x.field, x.holder)
			}
			if !reflect.DeepEqual(before, c.dump()) {
				t.Error("refused, but changed")
			}
		})
	}
}

// TestLostVolume: CNS keeps the record of a volume whose disk is deleted until
// it is told to forget it; space, tags and paths are free at once.
func TestLostVolume(t *testing.T) {
	c := world()
	must[Plan](t)(c.Create(epoch, spec("a", 10, "ds-1")))
	if err := c.AttachTag("a", Tag{"c", "t"}); err != nil {
		t.Fatal(err)
	}
	must[Disk](t)(c.DeleteDisk("a"))
	if v := must[Volume](t)(c.Volume("a")); !v.Lost || c.Health(v) != Red {
		t.Errorf("on record: %+v", v)
	}
	if _, _, err := c.Disk("a"); err == nil {
		t.Error("the disk is there")
	}
	if len(c.Tagged(Tag{"c", "t"}))+len(c.DisksOn("ds-1")) != 0 || !slices.Equal(c.LostOn("ds-1"), []string{"a"}) {
		t.Error("indexes have it")
	}
	if _, err := c.Delete("a", false); err == nil {
		t.Error("deleted")
	}
	if _, ok := c.Forget("a"); !ok {
		t.Error("not forgotten")
	}
	if _, ok := c.Forget("a"); ok || len(c.Volumes()) != 0 {
		t.Error("forgotten twice")
	}
}

// TestLostWithClones: what shares blocks with a disk goes with it.
func TestLostWithClones(t *testing.T) {
	c := disks(t)
	if lost := c.LoseDisk("snapped"); len(lost) != 2 || lost[0].ID != "clone" {
		t.Fatal("not there")
	}
	if _, _, err := c.Disk("clone"); err == nil {
		t.Error("a linked clone outlives its source")
	}
}

// TestChangesOutliveSnapshots: a change id can be told from after its snapshot
// is gone, for the last MaxPast of them.
func TestChangesOutliveSnapshots(t *testing.T) {
	c := world()
	must[Disk](t)(c.CreateDisk(epoch, diskSpec("a", "ds-1", 10)))
	must[Snapshot](t)(c.SnapshotDisk(epoch, "a", "untracked", ""))
	must[Disk](t)(c.SetFlags("a", []string{"enableChangedBlockTracking"}, true))
	for i := range MaxPast + 5 {
		s := must[Snapshot](t)(c.SnapshotDisk(epoch, "a", string(rune('A'+i)), ""))
		if s.Change != int64(i+2) {
			t.Fatalf("change %d of snapshot %d", s.Change, i)
		}
		must[Snapshot](t)(c.DeleteDiskSnapshot("a", s.ID))
	}
	d, _, _ := c.Disk("a")
	if id, ok := d.SnapshotOfChange(MaxPast + 6); !ok || id != string(rune('A'+MaxPast+4)) {
		t.Errorf("the last one is %q, %v", id, ok)
	}
	for _, n := range []int64{0, 1, 2, 6} {
		if id, ok := d.SnapshotOfChange(n); ok {
			t.Errorf("change %d is %q", n, id)
		}
	}
	if len(d.Past) != MaxPast {
		t.Errorf("%d are remembered", len(d.Past))
	}
}

// TestDemoteAndRegister: a disk leaves the catalogue and comes back with its
// content, known by its id.
func TestDemoteAndRegister(t *testing.T) {
	c := world()
	must[Disk](t)(c.CreateDisk(epoch, diskSpec("a", "ds-1", 10)))
	f := must[File](t)(c.Demote("a"))
	if f.Path != "[one] fcd/a.vmdk" || len(c.AllDisks()) != 0 || !c.Taken("a") {
		t.Errorf("%+v", f)
	}
	d := must[Disk](t)(c.RegisterDisk(f.Path, ""))
	if d.ID != "a" || d.Name != "a" || d.CapacityMB != 10 || len(c.Files()) != 0 {
		t.Errorf("%+v", d)
	}
}

// TestSuspendedDatastore: CNS's own hold on a datastore is no matter to disks
// beside it.
func TestSuspendedDatastore(t *testing.T) {
	c := world()
	if _, err := c.Create(epoch, spec("a", 10, "ds-held")); err == nil {
		t.Error("a volume was made")
	}
	must[Disk](t)(c.CreateDisk(epoch, diskSpec("b", "ds-held", 10)))
	must[File](t)(c.CreateFile(epoch, File{ID: "f", Path: "[held] x.vmdk", Datastore: "ds-held", CapacityMB: 10}))
}

// TestDisksOutOfReach: no host reaches the datastore, so nothing there changes.
func TestDisksOutOfReach(t *testing.T) {
	c := disks(t)
	ds, _, _ := c.Datastore("ds-1")
	ds.Inaccessible = true
	c.PutDatastore(ds)
	copied := diskSpec("new", "ds-2", 0)
	copied.From = &Source{Volume: "free"}
	for name, do := range map[string]func() error{
		"delete":          func() error { _, err := c.DeleteDisk("free"); return err },
		"extend":          func() error { _, err := c.ExtendDisk("free", 20); return err },
		"inflate":         func() error { _, err := c.Inflate("free"); return err },
		"snapshot":        func() error { _, err := c.SnapshotDisk(epoch, "free", "s", ""); return err },
		"delete snapshot": func() error { _, err := c.DeleteDiskSnapshot("snapped", "s1"); return err },
		"revert":          func() error { _, err := c.Revert("snapped", "s2"); return err },
		"copy":            func() error { _, err := c.CreateDisk(epoch, copied); return err },
		"delete file":     func() error { _, err := c.DeleteFile("[one] x/a.vmdk"); return err },
		"move file":       func() error { _, err := c.MoveFile("[one] x/a.vmdk", "ds-2", "[two] x/a.vmdk"); return err },
		"extend file":     func() error { _, err := c.ExtendFile("[one] x/a.vmdk", 20); return err },
		"register":        func() error { _, err := c.RegisterDisk("[one] x/a.vmdk", ""); return err },
		"to a plain disk": func() error { _, err := c.Unregister("volume", true); return err },
	} {
		before := c.dump()
		var e *Error
		if err := do(); !errors.As(err, &e) || e.Kind != Inaccessible {
			t.Errorf("%s: %v", name, err)
		}
		if !reflect.DeepEqual(before, c.dump()) {
			t.Errorf("%s: refused, but changed", name)
		}
	}
}

// TestTakenPath: where a foreign disk lies at the place that a new one would
// have, the new one lies beside it, and both are found.
func TestTakenPath(t *testing.T) {
	c := world()
	for _, id := range []string{"v", "d", "m"} {
		must[File](t)(c.CreateFile(epoch, File{ID: "of-" + id, Path: "[two] fcd/" + id + ".vmdk", Datastore: "ds-2", CapacityMB: 1}))
	}
	must[Disk](t)(c.RegisterDisk("[two] fcd/v.vmdk", ""))
	v := must[Plan](t)(c.Create(epoch, spec("v", 10, "ds-2"))).Volume.Disk
	d := must[Disk](t)(c.CreateDisk(epoch, diskSpec("d", "ds-2", 10)))
	must[Disk](t)(c.CreateDisk(epoch, diskSpec("m", "ds-1", 10)))
	m := must[Disk](t)(c.Relocate(RelocateSpec{Disk: "m", Datastore: "ds-2"}))
	for _, got := range []Disk{v, d, m} {
		if want := "[two] fcd/" + got.ID + "_1.vmdk"; got.DiskPath != want {
			t.Errorf("%s lies at %s, want %s", got.ID, got.DiskPath, want)
		}
		if at, ok := c.DiskAt(got.DiskPath); !ok || at.ID != got.ID {
			t.Errorf("at %s: %+v, %v", got.DiskPath, at, ok)
		}
	}
}

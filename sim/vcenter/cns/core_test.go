package cns

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// world has two datastores of 1000 MB whose disks are thick, ds-1 with 100
// reserved, and a third in another state for each reason to refuse.
func world() *Core {
	c := New(0)
	c.PutDatastore(Datastore{ID: "ds-1", Name: "one", URL: "ds:///1/", CapacityMB: 1000, ReservedMB: 100, Thick: true})
	c.PutDatastore(Datastore{ID: "ds-2", Name: "two", URL: "ds:///2/", CapacityMB: 1000, Thick: true})
	c.PutDatastore(Datastore{ID: "ds-local", Name: "local", CapacityMB: 500, Hosts: []string{"host-9"}})
	c.PutDatastore(Datastore{ID: "ds-dead", Name: "dead", CapacityMB: 9000, Inaccessible: true})
	c.PutDatastore(Datastore{ID: "ds-maint", Name: "maint", CapacityMB: 9000, Maintenance: true})
	c.PutDatastore(Datastore{ID: "ds-held", Name: "held", CapacityMB: 9000, Suspended: true})
	c.PutDatastore(Datastore{ID: "ds-vsan", Name: "vsan", CapacityMB: 800, FileServers: []string{"192.0.2.1", "192.0.2.2"}})
	c.PutDatastore(Datastore{ID: "ds-41", Name: "nfs41", CapacityMB: 9000, NoDisks: true})
	return c
}

func spec(id string, mb int64, ds ...string) CreateSpec {
	return CreateSpec{ID: id, Name: "name-" + id, CapacityMB: mb, Datastores: ds,
		Metadata: Metadata{Cluster: Cluster{Type: "KUBERNETES", ID: "k1"}}}
}

func vm(id string) VM {
	return VM{ID: id, Name: "vm " + id, Host: "host-1", State: PoweredOn,
		Controllers: []Controller{{Key: 1000, Used: []int32{0}}}}
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// TestRefusals: each precondition refuses with its kind, and changes nothing.
func TestRefusals(t *testing.T) {
	full := vm("vm-full")
	full.Controllers = nil
	for bus := range int32(MaxControllers) {
		c := Controller{Key: 1000 + bus, Bus: bus}
		for u := range int32(16) {
			if u != reservedUnit {
				c.Used = append(c.Used, u)
			}
		}
		full.Controllers = append(full.Controllers, c)
	}
	suspended, lsi := vm("vm-2"), vm("vm-lsi")
	suspended.State = Suspended
	lsi.Controllers = nil
	for bus := range int32(MaxControllers) {
		lsi.Controllers = append(lsi.Controllers, Controller{Key: 1000 + bus, Bus: bus, Kind: OtherSCSI})
	}
	holder := vm("vm-1")
	holder.State = Suspended

	create := func(change func(*CreateSpec)) func(*Core) error {
		return func(c *Core) error {
			s := spec("new", 10, "ds-1")
			change(&s)
			_, err := c.Create(epoch, s)
			return err
		}
	}
	attach := func(volume string, v VM, slot *Slot) func(*Core) error {
		return func(c *Core) error {
			_, err := c.Attach(AttachSpec{Volume: volume, VM: v, DiskUUID: "u", Slot: slot})
			return err
		}
	}
	detach := func(volume string, v VM) func(*Core) error {
		return func(c *Core) error { _, _, err := c.Detach(volume, v); return err }
	}
	metadata := func(volume string, u MetadataUpdate) func(*Core) error {
		return func(c *Core) error { _, err := c.UpdateMetadata(volume, u); return err }
	}
	relocate := func(s RelocateSpec) func(*Core) error {
		return func(c *Core) error { _, err := c.Relocate(s); return err }
	}
	flag := func(disk, f string) func(*Core) error {
		return func(c *Core) error { _, err := c.SetFlags(disk, []string{f}, true); return err }
	}
	pv := Entity{EntityKey: EntityKey{Type: "PERSISTENT_VOLUME", Name: "pv", Cluster: "k1"}}

	for name, x := range map[string]struct {
		do     func(*Core) error
		kind   Kind
		field  string
		holder string
	}{
		"create without name":            {create(func(s *CreateSpec) { s.Name = "" }), InvalidArgument, "name", ""},
		"create with a long name":        {create(func(s *CreateSpec) { s.Name = strings.Repeat("x", 81) }), InvalidArgument, "name", ""},
		"create with no size":            {create(func(s *CreateSpec) { s.CapacityMB = 0 }), InvalidArgument, "capacityInMb", ""},
		"create with an exbibyte":        {create(func(s *CreateSpec) { s.CapacityMB = 1 << 40 }), InvalidArgument, "capacityInMb", ""},
		"create without cluster":         {create(func(s *CreateSpec) { s.Metadata.Cluster.ID = "" }), InvalidArgument, "containerCluster.clusterId", ""},
		"create with a foreign cluster":  {create(func(s *CreateSpec) { s.Metadata.Cluster.Type = "SWARM" }), InvalidArgument, "containerCluster.clusterType", ""},
		"create with an entity twice":    {create(func(s *CreateSpec) { s.Metadata.Entities = []Entity{pv, pv} }), InvalidArgument, "entityMetadata", ""},
		"create with a taken id":         {create(func(s *CreateSpec) { s.ID = "plain" }), AlreadyExists, "volumeId", "plain"},
		"create with the id of a disk":   {create(func(s *CreateSpec) { s.ID = "fcd" }), AlreadyExists, "volumeId", "fcd"},
		"create on an unknown datastore": {create(func(s *CreateSpec) { s.Datastores = []string{"ds-1", "ds-x"} }), NotFoundObject, "datastores", ""},
		"create on a full datastore":     {create(func(s *CreateSpec) { s.CapacityMB = 901 }), NoSpace, "datastores", "one"},
		"create on a dead datastore":     {create(func(s *CreateSpec) { s.Datastores = []string{"ds-dead"} }), Inaccessible, "datastores", "dead"},
		"create in maintenance":          {create(func(s *CreateSpec) { s.Datastores = []string{"ds-maint"} }), Maintenance, "datastores", "maint"},
		"create anywhere, too large":     {create(func(s *CreateSpec) { s.Datastores, s.CapacityMB = nil, 1001 }), NoSpace, "datastores", "two"},
		"register what is a volume":      {create(func(s *CreateSpec) { s.DiskID = "plain" }), AlreadyRegistered, "backingDiskId", "plain"},
		"register an unknown disk":       {create(func(s *CreateSpec) { s.DiskID = "x" }), NotFound, "backingDiskId", ""},
		"restore of an unknown volume":   {create(func(s *CreateSpec) { s.Source = &Source{"x", "s"} }), NotFound, "volumeId", ""},
		"restore of an unknown snapshot": {create(func(s *CreateSpec) { s.Source = &Source{"snapped", "x"} }), SnapshotNotFound, "snapshotId", "snapped"},
		"restore with another size":      {create(func(s *CreateSpec) { s.Source = &Source{"snapped", "s1"}; s.CapacityMB = 11 }), InvalidArgument, "capacityInMb", ""},
		"restore on another datastore":   {create(func(s *CreateSpec) { s.Source = &Source{"snapped", "s1"}; s.Datastores = []string{"ds-2"} }), InvalidArgument, "datastores", ""},

		"delete unknown":       {func(c *Core) error { _, err := c.Delete("x", false); return err }, NotFound, "volumeId", ""},
		"delete attached":      {func(c *Core) error { _, err := c.Delete("held", false); return err }, InUse, "volumeId", "vm-1"},
		"delete with snapshot": {func(c *Core) error { _, err := c.Delete("snapped", false); return err }, InUse, "volumeId", "s1"},

		"attach unknown":                      {attach("x", vm("vm-1"), nil), NotFound, "volumeId", ""},
		"attach again":                        {attach("held", vm("vm-1"), nil), InUse, "volumeId", "vm-1"},
		"attach elsewhere":                    {attach("held", vm("vm-2"), nil), InUse, "volumeId", "vm-1"},
		"attach encrypted to a plain VM":      {attach("secret", vm("vm-1"), nil), Incompatible, "vm", "vm vm-1"},
		"attach what is no volume":            {attach("fcd", vm("vm-1"), nil), NotRegistered, "volumeId", "fcd"},
		"attach to what sleeps":               {attach("plain", suspended, nil), InvalidState, "vm", "vm vm-2"},
		"attach out of reach":                 {attach("local", vm("vm-1"), nil), Inaccessible, "vm", "local"},
		"attach a 61st disk":                  {attach("plain", full, nil), NoSlot, "vm", "vm vm-full"},
		"attach to a taken unit":              {attach("plain", vm("vm-1"), &Slot{Controller: 1000, Unit: 0}), InvalidArgument, "unitNumber", ""},
		"attach to the controller's own unit": {attach("plain", vm("vm-1"), &Slot{Controller: 1000, Unit: 7}), InvalidArgument, "unitNumber", ""},
		"attach beyond a controller":          {attach("plain", vm("vm-1"), &Slot{Controller: 1000, Unit: 65}), InvalidArgument, "unitNumber", ""},
		"attach beyond an LSI controller":     {attach("plain", lsi, &Slot{Controller: 1000, Unit: 16}), InvalidArgument, "unitNumber", ""},
		"attach to LSI controllers":           {attach("plain", lsi, nil), NoSlot, "vm", "vm vm-lsi"},
		"attach to no controller":             {attach("plain", vm("vm-1"), &Slot{Controller: 1004}), NoController, "controllerKey", "vm vm-1"},
		"attach to a unit of no controller":   {attach("plain", vm("vm-1"), &Slot{Unit: 3}), InvalidArgument, "controllerKey", ""},
		"attach in a strange mode": {func(c *Core) error {
			_, err := c.Attach(AttachSpec{Volume: "plain", VM: vm("vm-1"), Mode: "x"})
			return err
		}, InvalidArgument, "diskMode", ""},
		"attach with strange sharing": {func(c *Core) error {
			_, err := c.Attach(AttachSpec{Volume: "plain", VM: vm("vm-1"), Sharing: "x"})
			return err
		}, InvalidArgument, "sharing", ""},
		"attach shared what isn't": {func(c *Core) error {
			_, err := c.Attach(AttachSpec{Volume: "held", VM: vm("vm-2"), Sharing: SharingMultiWriter})
			return err
		}, InUse, "volumeId", "vm-1"},
		"detach unknown":          {detach("x", vm("vm-1")), NotFound, "volumeId", ""},
		"detach from another":     {detach("held", vm("vm-2")), InvalidArgument, "vm", "vm-1"},
		"detach from what sleeps": {detach("held", holder), InvalidState, "vm", "vm vm-1"},

		"extend unknown":       {func(c *Core) error { _, err := c.Extend("x", 20); return err }, NotFound, "volumeId", ""},
		"shrink":               {func(c *Core) error { _, err := c.Extend("plain", 9); return err }, InvalidArgument, "capacityInMb", ""},
		"extend with snapshot": {func(c *Core) error { _, err := c.Extend("snapped", 20); return err }, HasSnapshots, "volumeId", "s1"},
		"extend beyond":        {func(c *Core) error { _, err := c.Extend("plain", 2000); return err }, NoSpace, "capacityInMb", "one"},

		"snapshot unknown":        {func(c *Core) error { _, err := c.CreateSnapshot(epoch, "x", "s", ""); return err }, NotFound, "volumeId", ""},
		"snapshot id twice":       {func(c *Core) error { _, err := c.CreateSnapshot(epoch, "snapped", "s1", ""); return err }, InvalidArgument, "snapshotId", ""},
		"33rd snapshot":           {func(c *Core) error { _, err := c.CreateSnapshot(epoch, "chain", "s", ""); return err }, Limit, "volumeId", ""},
		"delete unknown snapshot": {func(c *Core) error { _, err := c.DeleteSnapshot("plain", "s1"); return err }, SnapshotNotFound, "snapshotId", "plain"},
		"delete snapshot of none": {func(c *Core) error { _, err := c.DeleteSnapshot("x", "s1"); return err }, NotFound, "volumeId", ""},

		"metadata of unknown":      {metadata("x", MetadataUpdate{Cluster: Cluster{ID: "k1"}}), NotFound, "volumeId", ""},
		"metadata without cluster": {metadata("plain", MetadataUpdate{}), InvalidArgument, "containerCluster.clusterId", ""},
		"metadata entity twice":    {metadata("plain", MetadataUpdate{Cluster: Cluster{ID: "k1"}, Entities: []EntityUpdate{{Entity: pv}, {Entity: pv}}}), InvalidArgument, "entityMetadata", ""},
		"metadata without name":    {metadata("plain", MetadataUpdate{Cluster: Cluster{ID: "k1"}, Entities: []EntityUpdate{{}}}), InvalidArgument, "entityMetadata.entityName", ""},

		"relocate unknown":           {relocate(RelocateSpec{Disk: "x", Datastore: "ds-2"}), NotFound, "volumeId", ""},
		"relocate to nowhere":        {relocate(RelocateSpec{Disk: "plain", Datastore: "ds-x"}), NotFoundObject, "datastore", ""},
		"relocate to where it is":    {relocate(RelocateSpec{Disk: "plain", Datastore: "ds-1"}), SameDatastore, "datastore", "one"},
		"relocate to what is dead":   {relocate(RelocateSpec{Disk: "plain", Datastore: "ds-dead"}), Inaccessible, "datastore", "dead"},
		"relocate into maintenance":  {relocate(RelocateSpec{Disk: "plain", Datastore: "ds-maint"}), Maintenance, "datastore", "maint"},
		"relocate out of reach":      {relocate(RelocateSpec{Disk: "held", Datastore: "ds-local", Hosts: []string{"host-1"}}), Inaccessible, "datastore", "local"},
		"relocate what is too large": {relocate(RelocateSpec{Disk: "large", Datastore: "ds-local"}), NoSpace, "datastore", "local"},
		"relocate what is fixed":     {relocate(RelocateSpec{Disk: "fixed", Datastore: "ds-2"}), InvalidState, "volumeId", ""},
		"relocate a linked clone":    {relocate(RelocateSpec{Disk: "clone", Datastore: "ds-2"}), NotSupported, "volumeId", "snapped"},
		"relocate what has clones":   {relocate(RelocateSpec{Disk: "snapped", Datastore: "ds-2"}), InUse, "volumeId", "clone"},
		"delete snapshot of a clone": {func(c *Core) error { _, err := c.DeleteSnapshot("snapped", "s1"); return err }, InUse, "snapshotId", "clone"},

		"unregister unknown":          {func(c *Core) error { _, err := c.Unregister("x", false); return err }, NotFound, "volumeId", ""},
		"unregister what is no more":  {func(c *Core) error { _, err := c.Unregister("fcd", false); return err }, NotRegistered, "volumeId", "fcd"},
		"unregister attached":         {func(c *Core) error { _, err := c.Unregister("held", false); return err }, InvalidState, "volumeId", "vm-1"},
		"unregister to a plain disk":  {func(c *Core) error { _, err := c.Unregister("snapped", true); return err }, HasSnapshots, "volumeId", "s1"},
		"unregister a plain clone":    {func(c *Core) error { _, err := c.Unregister("clone", true); return err }, NotSupported, "volumeId", "snapped"},
		"delete what is no volume":    {func(c *Core) error { _, err := c.Delete("fcd", true); return err }, NotRegistered, "volumeId", "fcd"},
		"extend what is no volume":    {func(c *Core) error { _, err := c.Extend("fcd", 20); return err }, NotRegistered, "volumeId", "fcd"},
		"set the flag of none":        {flag("x", FlagNames[0]), NotFound, "volumeId", ""},
		"set an unknown flag":         {flag("plain", "immortal"), InvalidArgument, "controlFlags", ""},
		"set the policy of none":      {func(c *Core) error { _, err := c.SetPolicy("x", "gold"); return err }, NotFound, "volumeId", ""},
		"query by an unknown tracker": {func(c *Core) error { _, err := c.Query(Filter{CBT: "ON"}, Cursor{}); return err }, InvalidArgument, "filter.changedBlockTracking", ""},

		"query of 1001 ids":      {func(c *Core) error { _, err := c.Query(Filter{IDs: make([]string, 1001)}, Cursor{}); return err }, InvalidArgument, "filter.volumeIds", ""},
		"query before the start": {func(c *Core) error { _, err := c.Query(Filter{}, Cursor{Offset: -1}); return err }, InvalidArgument, "filter.cursor", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := world()
			for _, id := range []string{"plain", "held", "snapped", "chain", "fcd"} {
				must[Plan](t)(c.Create(epoch, spec(id, 10, "ds-1")))
			}
			must[Plan](t)(c.Create(epoch, spec("local", 10, "ds-local")))
			must[Attachment](t)(c.Attach(AttachSpec{Volume: "held", VM: vm("vm-1"), DiskUUID: "u"}))
			must[Snapshot](t)(c.CreateSnapshot(epoch, "snapped", "s1", ""))
			for i := range DefaultSnapshotLimit {
				must[Snapshot](t)(c.CreateSnapshot(epoch, "chain", fmt.Sprint(i), ""))
			}
			must[Volume](t)(c.Delete("fcd", true))
			must[Plan](t)(c.Create(epoch, spec("fixed", 10, "ds-1")))
			must[Disk](t)(c.SetFlags("fixed", []string{"disableRelocation"}, true))
			must[Plan](t)(c.Create(epoch, spec("large", 600, "ds-1")))
			must[Plan](t)(c.Create(epoch, spec("secret", 10, "ds-1")))
			must[Disk](t)(c.Crypt("secret", Encrypt, Key{ID: "k"}))
			clone := spec("clone", 0)
			clone.Source, clone.Linked = &Source{"snapped", "s1"}, true
			must[Plan](t)(c.Create(epoch, clone))

			before := c.dump()
			err := x.do(c)
			var e *Error
			if !errors.As(err, &e) || e.Kind != x.kind || e.Field != x.field || e.Holder != x.holder {
				t.Errorf("got %v (%+v), want %s of %s held by %q", err, e, x.kind, x.field, x.holder)
			}
			if after := c.dump(); !reflect.DeepEqual(before, after) {
				t.Errorf("a refused command changed the state:\n%+v\n%+v", before, after)
			}
		})
	}
}

// dump is everything that a command may change.
func (c *Core) dump() any {
	free := map[string]int64{}
	for id, s := range c.datastores {
		free[id] = s.freeMB()
	}
	return []any{*c.State(), free, len(c.order), c.dead}
}

func TestPlacement(t *testing.T) {
	c := world()
	p := must[Plan](t)(c.Create(epoch, spec("a", 10, "ds-dead", "ds-maint", "ds-2")))
	if p.Volume.Datastore != "ds-2" || len(p.Placements) != 3 || p.Placements[0].Err.Kind != Inaccessible ||
		p.Placements[1].Err.Kind != Maintenance || p.Placements[2].Err != nil {
		t.Errorf("tried in order: %+v", p)
	}
	// Now ds-2 has 990 free, ds-1 900.
	if p := must[Plan](t)(c.Create(epoch, spec("b", 10))); p.Volume.Datastore != "ds-2" {
		t.Errorf("CNS chose %s", p.Volume.Datastore)
	}
	_, err := c.Create(epoch, spec("c", 5000, "ds-1", "ds-2"))
	var e *Error
	if !errors.As(err, &e) || len(e.Placement) != 2 || e.Placement[1].Err.Kind != NoSpace {
		t.Errorf("all refuse: %+v", e)
	}
}

func TestSlots(t *testing.T) {
	for _, dense := range []bool{false, true} {
		t.Run(fmt.Sprint("dense ", dense), func(t *testing.T) { slots(t, dense) })
	}
}

func slots(t *testing.T, dense bool) {
	c := world()
	v := vm("vm-1")
	v.Dense = dense
	want := 59 // 4 controllers x 15, less the boot disk
	if dense {
		want = 255
	}
	seen := map[Slot]bool{}
	added := 0
	for n := 0; ; n++ {
		id := fmt.Sprint("v", n)
		must[Plan](t)(c.Create(epoch, spec(id, 1, "ds-1")))
		s := AttachSpec{Volume: id, VM: v, DiskUUID: id}
		_, add, err := c.PlanAttach(s)
		a, err2 := c.Attach(s)
		if !errors.Is(err, err2) && fmt.Sprint(err) != fmt.Sprint(err2) {
			t.Fatalf("plan says %v, attach %v", err, err2)
		}
		if err != nil {
			if n != want || added != 3 {
				t.Fatalf("full after %d volumes and %d new controllers: %v", n, added, err)
			}
			return
		}
		if seen[a.Slot] || a.Unit == reservedUnit || a.Slot == (Slot{Controller: 1000}) {
			t.Fatalf("slot %+v given twice, or not free", a.Slot)
		}
		seen[a.Slot] = true
		if add {
			added++
			v.Controllers = append(v.Controllers, Controller{Key: a.Controller, Bus: a.Bus})
		}
		for i := range v.Controllers {
			if v.Controllers[i].Key == a.Controller {
				v.Controllers[i].Used = append(v.Controllers[i].Used, a.Unit)
			}
		}
	}
}

// TestSharedDisk: several VMs hold a volume that all of them share.
func TestSharedDisk(t *testing.T) {
	c := world()
	must[Plan](t)(c.Create(epoch, spec("a", 10, "ds-1")))
	share := func(id string) error {
		_, err := c.Attach(AttachSpec{Volume: "a", VM: vm(id), DiskUUID: "u", Mode: IndependentPersistent, Sharing: SharingMultiWriter})
		return err
	}
	if err := errors.Join(share("vm-2"), share("vm-1")); err != nil {
		t.Fatal(err)
	}
	var e *Error
	if err := share("vm-1"); !errors.As(err, &e) || e.Kind != InUse {
		t.Errorf("shared twice with one VM: %v", err)
	}
	if _, err := c.Attach(AttachSpec{Volume: "a", VM: vm("vm-3")}); !errors.As(err, &e) || e.Kind != InUse {
		t.Errorf("a third VM, without sharing: %v", err)
	}
	restored := world()
	if err := restored.Restore(c.State()); err != nil || !reflect.DeepEqual(restored.Attachments(), c.Attachments()) {
		t.Errorf("restored %+v: %v", restored.Attachments(), err)
	}
	if _, _, err := c.Detach("a", vm("vm-3")); !errors.As(err, &e) || e.Kind != InvalidArgument {
		t.Errorf("detach from one that has it not: %v", err)
	}
	if _, held, err := c.Detach("a", vm("vm-1")); !held || err != nil {
		t.Error(err)
	}
	if _, err := c.Delete("a", false); !errors.As(err, &e) || e.Kind != InUse || e.Holder != "vm-2" {
		t.Errorf("delete with one holder left: %v", err)
	}
	if got := c.AttachmentsOf("a"); len(got) != 1 || got[0].VM != "vm-2" || len(c.AttachedTo("vm-1")) != 0 {
		t.Errorf("left %+v", got)
	}
}

func TestDetach(t *testing.T) {
	c := world()
	must[Plan](t)(c.Create(epoch, spec("a", 10, "ds-1")))
	if _, held, err := c.Detach("a", vm("vm-1")); held || err != nil {
		t.Errorf("detach of what nobody holds: %v %v", held, err)
	}
	must[Attachment](t)(c.Attach(AttachSpec{Volume: "a", VM: vm("vm-1"), DiskUUID: "u"}))
	off := vm("vm-1")
	off.State = PoweredOff
	if a, held, err := c.Detach("a", off); !held || err != nil || a.DiskUUID != "u" {
		t.Errorf("detach from a VM that is off: %+v %v %v", a, held, err)
	}
}

func TestSync(t *testing.T) {
	c := world()
	for _, id := range []string{"a", "b", "c"} {
		must[Plan](t)(c.Create(epoch, spec(id, 10, "ds-1")))
	}
	must[Attachment](t)(c.Attach(AttachSpec{Volume: "a", VM: vm("vm-1"), DiskUUID: "ua"}))
	must[Attachment](t)(c.Attach(AttachSpec{Volume: "b", VM: vm("vm-2"), DiskUUID: "ub"}))
	// vm-1 lost a, got c, and claims b (which vm-2 has) and a stranger.
	lost, taken := c.Sync("vm-1", []Attachment{{Volume: "c", DiskUUID: "uc"}, {Volume: "b"}, {Volume: "stranger"}})
	if len(lost) != 1 || lost[0].Volume != "a" || len(taken) != 1 || taken[0].Volume != "c" {
		t.Errorf("lost %+v, taken %+v", lost, taken)
	}
	want := []Attachment{{Volume: "b", VM: "vm-2", DiskUUID: "ub", Slot: Slot{Controller: 1000, Unit: 1}}, {Volume: "c", VM: "vm-1", DiskUUID: "uc"}}
	if got := c.Attachments(); !reflect.DeepEqual(got, want) {
		t.Errorf("attachments %+v, want %+v", got, want)
	}
	// The VM is deleted: its volumes stay and are free.
	c.Sync("vm-1", nil)
	if _, err := c.Delete("c", false); err != nil {
		t.Error(err)
	}
}

func TestMetadata(t *testing.T) {
	c := world()
	must[Plan](t)(c.Create(epoch, spec("a", 10, "ds-1")))
	ent := func(kind, name string) Entity {
		return Entity{EntityKey: EntityKey{Type: kind, Name: name, Namespace: "ns", Cluster: "k1"}, Labels: []Label{{"app", name}}}
	}
	k1 := Cluster{Type: "KUBERNETES", ID: "k1"}
	update := func(u MetadataUpdate) Volume { t.Helper(); return must[Volume](t)(c.UpdateMetadata("a", u)) }
	names := func(v Volume) (s string) {
		for _, e := range v.Metadata.Entities {
			s += e.Name + "@" + e.Cluster + " "
		}
		return s
	}

	update(MetadataUpdate{Cluster: k1, Entities: []EntityUpdate{{Entity: ent("PERSISTENT_VOLUME", "pv")}}})
	x := ent("PERSISTENT_VOLUME_CLAIM", "pvc")
	x.Cluster = "" // the cluster of the update is meant
	if v := update(MetadataUpdate{Cluster: k1, Entities: []EntityUpdate{{Entity: x}}}); names(v) != "pv@k1 pvc@k1 " {
		t.Errorf("a claim's update dropped what was there: %s", names(v))
	}
	y := ent("PERSISTENT_VOLUME", "pv")
	y.Labels = []Label{{"app", "new"}}
	if v := update(MetadataUpdate{Cluster: k1, Entities: []EntityUpdate{{Entity: y}}}); len(v.Metadata.Entities) != 2 || v.Metadata.Entities[0].Labels[0].Value != "new" {
		t.Errorf("not replaced: %+v", v.Metadata.Entities)
	}
	if v := update(MetadataUpdate{Cluster: k1, Entities: []EntityUpdate{{Entity: x, Delete: true}}}); names(v) != "pv@k1 " {
		t.Errorf("not deleted: %s", names(v))
	}
	// A second cluster uses the volume, and goes again.
	z := ent("PERSISTENT_VOLUME", "pv2")
	z.Cluster = "k2"
	if v := update(MetadataUpdate{Cluster: Cluster{ID: "k2"}, Entities: []EntityUpdate{{Entity: z}}}); v.Metadata.Cluster.ID != "k1" || len(v.Metadata.Clusters) != 1 {
		t.Errorf("clusters %+v", v.Metadata)
	}
	for _, k := range []string{"k1", "k2"} {
		if p, _ := c.Query(Filter{Clusters: []string{k}}, Cursor{}); p.Total != 1 {
			t.Errorf("not found by cluster %s", k)
		}
	}
	v := update(MetadataUpdate{Cluster: k1, Clusters: []ClusterUpdate{{Cluster: Cluster{ID: "k2"}, Delete: true}}})
	if names(v) != "pv@k1 " || len(v.Metadata.Clusters) != 0 {
		t.Errorf("cluster not gone: %+v", v.Metadata)
	}
	if p, _ := c.Query(Filter{Clusters: []string{"k2"}}, Cursor{}); p.Total != 0 {
		t.Error("still found by a cluster that is gone")
	}
	// What comes in and goes out is not shared.
	v.Metadata.Entities[0].Labels[0].Value = "scribble"
	y.Labels[0].Value = "scribble"
	if v, _ := c.Volume("a"); v.Metadata.Entities[0].Labels[0].Value != "new" {
		t.Error("the state can be written to from outside")
	}
}

func TestQuery(t *testing.T) {
	c := world()
	for i := range 10 {
		s := spec(fmt.Sprint("v", i), 10, []string{"ds-1", "ds-2"}[i%2])
		s.Name = fmt.Sprint("n", i/2)
		s.PolicyID = fmt.Sprint("p", i%3)
		s.Metadata.Cluster.ID = fmt.Sprint("k", i%5)
		s.Metadata.Entities = []Entity{
			{EntityKey: EntityKey{Type: "PERSISTENT_VOLUME", Name: fmt.Sprint("pv", i)}, Labels: []Label{{"i", fmt.Sprint(i)}}},
			{EntityKey: EntityKey{Type: "PERSISTENT_VOLUME_CLAIM", Name: "pvc", Namespace: fmt.Sprint("ns", i%2)}},
		}
		must[Plan](t)(c.Create(epoch, s))
	}
	c.PutDatastore(Datastore{ID: "ds-2", Name: "two", CapacityMB: 1000, Inaccessible: true})
	for name, x := range map[string]struct {
		f    Filter
		cur  Cursor
		want string // ids
		next int64
		of   int64
	}{
		"all":            {Filter{}, Cursor{}, "v0 v1 v2 v3 v4 v5 v6 v7 v8 v9", 10, 10},
		"first page":     {Filter{}, Cursor{Limit: 4}, "v0 v1 v2 v3", 4, 10},
		"last page":      {Filter{}, Cursor{Offset: 8, Limit: 4}, "v8 v9", 10, 10},
		"beyond":         {Filter{}, Cursor{Offset: 20, Limit: 4}, "", 10, 10},
		"ids":            {Filter{IDs: []string{"v7", "x", "v2", "v2"}}, Cursor{}, "v2 v7", 2, 2},
		"ids and name":   {Filter{IDs: []string{"v7", "v2"}, Names: []string{"n1"}}, Cursor{}, "v2", 1, 1},
		"name twice":     {Filter{Names: []string{"n3"}}, Cursor{}, "v6 v7", 2, 2},
		"cluster":        {Filter{Clusters: []string{"k1", "k2"}}, Cursor{Limit: 3}, "v1 v2 v6", 3, 4},
		"datastore":      {Filter{Datastores: []string{"ds-1"}}, Cursor{}, "v0 v2 v4 v6 v8", 5, 5},
		"policy":         {Filter{PolicyID: "p1"}, Cursor{}, "v1 v4 v7", 3, 3},
		"label":          {Filter{Labels: []Label{{"i", "3"}, {"i", "4"}}}, Cursor{}, "v3 v4", 2, 2},
		"health":         {Filter{Health: "red"}, Cursor{}, "v1 v3 v5 v7 v9", 5, 5},
		"accessibility":  {Filter{Accessibility: "accessible", Names: []string{"n0"}}, Cursor{}, "v0", 1, 1},
		"compliance":     {Filter{Compliance: "nonCompliant", Compliances: map[Home]string{{"p1", "ds-1"}: "nonCompliant", {"p1", "ds-2"}: "compliant"}}, Cursor{}, "v4", 1, 1},
		"no compliance":  {Filter{Compliance: "notApplicable"}, Cursor{}, "", 0, 0},
		"namespace":      {Filter{Namespaces: []string{"ns1"}}, Cursor{Limit: 2}, "v1 v3", 2, 5},
		"claim":          {Filter{PVCs: []string{"pvc"}, Namespaces: []string{"ns0"}, Names: []string{"n0", "n1"}}, Cursor{}, "v0 v2", 2, 2},
		"pv":             {Filter{PVs: []string{"pv5"}}, Cursor{}, "v5", 1, 1},
		"pod of none":    {Filter{Pods: []string{"pvc"}}, Cursor{}, "", 0, 0},
		"nothing at all": {Filter{Names: []string{"x"}}, Cursor{}, "", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := c.Query(x.f, x.cur)
			if err != nil {
				t.Fatal(err)
			}
			var ids []string
			for _, v := range p.Volumes {
				ids = append(ids, v.ID)
			}
			if got := strings.Join(ids, " "); got != x.want || p.Next != x.next || p.Total != x.of {
				t.Errorf("got %q next %d of %d, want %q next %d of %d", got, p.Next, p.Total, x.want, x.next, x.of)
			}
		})
	}
}

func TestSnapshotsRestoreAndState(t *testing.T) {
	c := world()
	must[Plan](t)(c.Create(epoch, spec("a", 10, "ds-1")))
	for i := range 3 {
		must[Snapshot](t)(c.CreateSnapshot(epoch, "a", fmt.Sprint("s", i), "same text"))
	}
	must[Snapshot](t)(c.DeleteSnapshot("a", "s1"))
	v := must[Volume](t)(c.Volume("a"))
	if len(v.Snapshots) != 2 || v.Snapshots[1].ID != "s2" || v.Snapshots[1].Parent != "s0" || v.SnapshotMB() != 20 {
		t.Errorf("chain %+v", v.Snapshots)
	}
	s := spec("b", 0, "ds-2", "ds-1")
	s.Source = &Source{"a", "s0"}
	if p := must[Plan](t)(c.Create(epoch, s)); p.Volume.Datastore != "ds-1" || p.Volume.CapacityMB != 10 {
		t.Errorf("restored %+v", p.Volume)
	}
	must[Attachment](t)(c.Attach(AttachSpec{Volume: "b", VM: vm("vm-1"), DiskUUID: "u"}))
	must[Plan](t)(c.Create(epoch, spec("d", 7, "ds-2")))
	must[Volume](t)(c.Delete("d", true))

	d := world()
	if err := d.Restore(c.State()); err != nil {
		t.Fatal(err)
	}
	d.dead, d.order = c.dead, append(d.order, nil)
	if !reflect.DeepEqual(c.dump(), d.dump()) {
		t.Errorf("restored state differs:\n%+v\n%+v", c.dump(), d.dump())
	}
	// The disk can be registered again, and its space is its own all along.
	_, free, _ := d.Datastore("ds-2")
	r := spec("", 0)
	r.DiskID = "d"
	if p := must[Plan](t)(d.Create(epoch, r)); p.Volume.ID != "d" || p.Volume.CapacityMB != 7 || p.Volume.Datastore != "ds-2" {
		t.Errorf("registered %+v", p.Volume)
	}
	if _, now, _ := d.Datastore("ds-2"); now != free || free != 993 {
		t.Errorf("free %d, then %d", free, now)
	}

	for name, s := range map[string]*State{
		"id twice":            {Volumes: []Volume{{Disk: Disk{ID: "a", Datastore: "ds-1", CapacityMB: 1}}}, Disks: []Disk{{ID: "a", Datastore: "ds-1", CapacityMB: 1}}},
		"no datastore":        {Volumes: []Volume{{Disk: Disk{ID: "a", Datastore: "x", CapacityMB: 1}}}},
		"no size":             {Disks: []Disk{{ID: "a", Datastore: "ds-1"}}},
		"attached to nothing": {Attachments: []Attachment{{Volume: "a", VM: "vm-1"}}},
	} {
		c := world()
		before := c.dump()
		if err := c.Restore(s); err == nil || !reflect.DeepEqual(before, c.dump()) {
			t.Errorf("%s: %v, or half applied", name, err)
		}
	}
	if err := d.Restore(&State{}); err == nil {
		t.Error("restored over what is there")
	}
}

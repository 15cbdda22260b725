package cns

import (
	"fmt"
	"slices"
	"time"
)

// DiskSpec says what first class disk to make.
type DiskSpec struct {
	ID         string
	Name       string
	CapacityMB int64 // ignored with From
	Datastore  string
	// Path on the datastore, e.g. "dir/a.vmdk"; empty means fcd/<BackingName>.vmdk.
	Path         string
	PolicyID     string
	Provisioning Provisioning
	Keep         bool // KeepAfterDeleteVM
	Key          Key
	Values       []Label
	// From makes the disk a copy of another one, or of a snapshot of it; the
	// datastore may be left out then.
	From *Source
	// Linked makes it share the blocks of the snapshot.
	Linked bool
}

// PlanCreateDisk checks whether CreateDisk would succeed and says what it
// would make.
func (c *Core) PlanCreateDisk(s DiskSpec) (Disk, error) {
	if err := checkName(s.Name); err != nil {
		return Disk{}, err
	}
	if s.ID == "" || c.Taken(s.ID) {
		return Disk{}, &Error{Kind: InvalidArgument, Field: "id", Value: s.ID, Reason: "empty, or a disk has this id"}
	}
	values, err := mergeValues(nil, s.Values, nil)
	if err != nil {
		return Disk{}, err
	}
	d := Disk{ID: s.ID, Name: s.Name, CapacityMB: s.CapacityMB, Datastore: s.Datastore, PolicyID: s.PolicyID,
		Provisioning: s.Provisioning, Flags: Flags{KeepAfterDeleteVM: s.Keep}, Key: s.Key, Values: values}
	if s.From != nil {
		src, ok := c.disk(s.From.Volume)
		if !ok {
			return Disk{}, noDisk(s.From.Volume)
		}
		if err := c.reachable(src); err != nil {
			return Disk{}, err
		}
		d.CapacityMB = src.CapacityMB
		if s.From.Snapshot == "" {
			// Unverified: a running VM has the disk's file locked; whether one that
			// is off stands against a clone as well.
			if err := c.detached(src); err != nil {
				return Disk{}, err
			}
		} else {
			i := src.find(s.From.Snapshot)
			if i < 0 {
				return Disk{}, noSnapshot(src.ID, s.From.Snapshot)
			}
			d.CapacityMB = src.Snapshots[i].CapacityMB
		}
		if s.Linked {
			if s.From.Snapshot == "" || d.Datastore != "" && d.Datastore != src.Datastore {
				return Disk{}, &Error{Kind: NotSupported, Field: "linkedClone", Value: "true", Reason: "a linked clone is of a snapshot, on its datastore"}
			}
			from := *s.From
			d.LinkedTo = &from
		} else {
			d.WrittenMB = src.WrittenMB
		}
		if d.Datastore == "" {
			d.Datastore = src.Datastore
		}
		if d.Provisioning == "" {
			d.Provisioning = src.Provisioning
		}
		if d.PolicyID == "" {
			d.PolicyID = src.PolicyID
		}
		if d.Key == (Key{}) {
			d.Key = src.Key // a copy of what is encrypted is encrypted
		}
	}
	if err := checkProvisioning(d.Provisioning); err != nil {
		return Disk{}, err
	}
	if d.CapacityMB <= 0 || d.CapacityMB > MaxCapacityMB {
		return Disk{}, &Error{Kind: InvalidArgument, Field: "capacityInMB", Value: fmt.Sprint(d.CapacityMB),
			Reason: fmt.Sprintf("allowed are 1 to %d", int64(MaxCapacityMB))}
	}
	ds, ok := c.datastores[d.Datastore]
	if !ok {
		return Disk{}, &Error{Kind: NotFoundObject, Field: "datastore", Value: d.Datastore, Reason: "no such datastore"}
	}
	if err := ds.roomFor(d.CapacityMB, true); err != nil {
		return Disk{}, err
	}
	d.DiskPath = c.freePath(d.Datastore, d.ID)
	if s.Path != "" {
		d.DiskPath = fmt.Sprintf("[%s] %s", ds.Name, s.Path)
	}
	if err := c.checkPath(ds, d.DiskPath); err != nil {
		return Disk{}, err
	}
	return d, nil
}

// CreateDisk makes a first class disk that is no volume. Errors:
// InvalidArgument, InvalidPath, FileExists, NotFoundObject, NoSpace,
// Inaccessible, Maintenance, NotFound, SnapshotNotFound, Attached (of From).
func (c *Core) CreateDisk(now time.Time, s DiskSpec) (Disk, error) {
	d, err := c.PlanCreateDisk(s)
	if err != nil {
		return Disk{}, err
	}
	d.Created = now
	v := &volume{Volume: Volume{Disk: d.clone()}}
	c.appear(v)
	c.putDisk(v)
	return d, nil
}

func checkName(name string) error {
	switch {
	case name == "":
		return &Error{Kind: InvalidArgument, Field: "name", Reason: "empty"}
	case len(name) > MaxName:
		return &Error{Kind: InvalidArgument, Field: "name", Value: name, Reason: fmt.Sprintf("allowed are %d bytes", MaxName)}
	}
	return nil
}

func checkProvisioning(p Provisioning) error {
	switch p {
	case "", Thin, EagerZeroedThick, LazyZeroedThick:
		return nil
	}
	return &Error{Kind: InvalidArgument, Field: "provisioningType", Value: string(p),
		Reason: fmt.Sprintf("allowed are %s, %s and %s", Thin, EagerZeroedThick, LazyZeroedThick)}
}

// detached refuses a disk that a VM holds, or a snapshot of one.
func (c *Core) detached(v *volume) error {
	if holders := c.attachments[v.ID]; len(holders) > 0 {
		return &Error{Kind: Attached, Field: "id", Value: v.ID, Holder: holders[0].VM, Reason: "a VM holds the disk"}
	}
	return c.unpinned(v.ID)
}

// PlanDeleteDisk checks whether DeleteDisk would succeed.
func (c *Core) PlanDeleteDisk(id string) (Disk, error) {
	v, ok := c.disk(id)
	if !ok {
		return Disk{}, noDisk(id)
	}
	if err := c.detached(v); err != nil {
		return Disk{}, err
	}
	// A detached disk can't be deleted before its snapshots (VMware Aria
	// Automation API guide, Creating and Using a First Class Disk).
	if n := len(v.Snapshots); n > 0 {
		return Disk{}, &Error{Kind: HasSnapshots, Field: "id", Value: id, Holder: v.Snapshots[n-1].ID,
			Reason: fmt.Sprintf("the disk has %d snapshots", n)}
	}
	if err := c.reachable(v); err != nil {
		return Disk{}, err
	}
	return v.Disk.clone(), nil
}

// DeleteDisk deletes a first class disk. CNS is not asked: a volume stays on
// record without its disk. Errors: NotFound, Attached, HasSnapshots.
func (c *Core) DeleteDisk(id string) (old Disk, err error) {
	old, err = c.PlanDeleteDisk(id)
	if err != nil {
		return Disk{}, err
	}
	v, _ := c.disk(id)
	c.lose(v)
	return old, nil
}

// lose deletes the disk of a volume, or a disk that is none.
func (c *Core) lose(v *volume) {
	for _, a := range slices.Clone(c.attachments[v.ID]) {
		c.release(v.ID, a.VM)
	}
	c.unpin(v.ID)
	c.vanish(v)
	if _, registered := c.volumes[v.ID]; !registered {
		c.dropDisk(v)
		return
	}
	v.Lost = true
	v.Snapshots, v.Past, v.Tags, v.Values, v.LinkedTo = nil, nil, nil, nil, nil
}

// LoseDisk deletes a first class disk whatever stands against it, with its
// snapshots and the linked clones of those: what happens to one without KeepAfterDeleteVM when the VM that
// holds it is deleted, or to one whose files are deleted. It returns what is
// lost, the disk last; nothing where there is none.
func (c *Core) LoseDisk(id string) (lost []Disk) {
	v, ok := c.disk(id)
	if !ok {
		return nil
	}
	for _, clone := range sortedSet(c.clones[id]) {
		lost = append(lost, c.LoseDisk(clone)...)
	}
	lost = append(lost, v.Disk.clone())
	c.lose(v)
	return lost
}

// Forget drops the record of a volume that lost its disk, as a sync does. It
// says whether the volume was one.
func (c *Core) Forget(id string) (Volume, bool) {
	v, ok := c.volumes[id]
	if !ok || !v.Lost {
		return Volume{}, false
	}
	c.remove(v)
	return v.clone(), true
}

// LostOn returns the ids of the volumes of a datastore that lost their disks,
// sorted.
func (c *Core) LostOn(datastore string) []string {
	return slices.DeleteFunc(sortedSet(c.byDatastore[datastore]), func(id string) bool { return !c.volumes[id].Lost })
}

// PlanExtendDisk checks whether ExtendDisk would succeed.
func (c *Core) PlanExtendDisk(id string, capacityMB int64) (Disk, error) {
	v, ok := c.disk(id)
	if !ok {
		return Disk{}, noDisk(id)
	}
	if err := c.canExtend(v, capacityMB); err != nil {
		return Disk{}, err
	}
	return v.Disk.clone(), nil
}

// ExtendDisk is Extend for any first class disk. Errors: NotFound,
// InvalidArgument (smaller), HasSnapshots, NoSpace.
func (c *Core) ExtendDisk(id string, capacityMB int64) (Disk, error) {
	if _, err := c.PlanExtendDisk(id, capacityMB); err != nil {
		return Disk{}, err
	}
	v, _ := c.disk(id)
	c.resize(v, capacityMB)
	return v.Disk.clone(), nil
}

// UndoExtendDisk takes back the last ExtendDisk; old is as it was before.
func (c *Core) UndoExtendDisk(old Disk) {
	v, ok := c.disk(old.ID)
	if !ok || v.CapacityMB <= old.CapacityMB {
		return
	}
	c.resize(v, old.CapacityMB)
}

// Inflate gives a thin disk all of its space. Errors: NotFound, Attached,
// Pinned, HasSnapshots (the backing is part of a chain then; Unverified), NotSupported
// (linked clone), NoSpace.
func (c *Core) Inflate(id string) (Disk, error) {
	v, ok := c.disk(id)
	if !ok {
		return Disk{}, noDisk(id)
	}
	if err := c.detached(v); err != nil {
		return Disk{}, err
	}
	if err := c.unpinned(id); err != nil {
		return Disk{}, err
	}
	if err := c.reachable(v); err != nil {
		return Disk{}, err
	}
	if n := len(v.Snapshots); n > 0 {
		return Disk{}, &Error{Kind: HasSnapshots, Field: "id", Value: id, Holder: v.Snapshots[n-1].ID,
			Reason: fmt.Sprintf("the disk has %d snapshots", n)}
	}
	if v.LinkedTo != nil {
		return Disk{}, &Error{Kind: NotSupported, Field: "id", Value: id, Holder: v.LinkedTo.Volume, Reason: "a linked clone has no backing of its own"}
	}
	if v.Provisioning == "" || v.Provisioning == Thin {
		s := c.datastores[v.Datastore]
		if more := v.CapacityMB - s.takesMB(v.Disk); more > s.freeMB() {
			return Disk{}, &Error{Kind: NoSpace, Field: "id", Value: id, Holder: s.Name,
				Reason: fmt.Sprintf("%d MB are free, %d more are needed", s.freeMB(), more)}
		}
		c.discharge(v.Disk)
		v.Provisioning = EagerZeroedThick
		c.charge(v.Disk)
	}
	return v.Disk.clone(), nil
}

// RenameDisk renames a first class disk, and with it the volume. Errors:
// NotFound, InvalidArgument.
func (c *Core) RenameDisk(id, name string) (Disk, error) {
	v, ok := c.disk(id)
	if !ok {
		return Disk{}, noDisk(id)
	}
	if err := checkName(name); err != nil {
		return Disk{}, err
	}
	if _, registered := c.volumes[id]; registered {
		drop(c.byName, v.Name, v)
		add(c.byName, name, v)
	}
	v.Name = name
	return v.Disk.clone(), nil
}

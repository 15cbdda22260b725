package cns

import (
	"slices"
	"time"
)

// Disk is a first class disk (FCD): a virtual disk with an identity of its
// own. CNS makes a volume of it by registering it; without that it is a disk
// beside CNS, as clients of the VStorageObjectManager make them or as a delete
// leaves behind that is told to keep the disk.
type Disk struct {
	ID         string `json:"id"`   // uuid
	Name       string `json:"name"` // not unique
	Datastore  string `json:"datastore"`
	CapacityMB int64  `json:"capacityMB"`
	PolicyID   string `json:"policyID,omitempty"`
	// DiskPath is where the backing disk lies, e.g. "[ds] fcd/<BackingName>.vmdk".
	DiskPath string    `json:"diskPath"`
	Created  time.Time `json:"created"`
	// WrittenMB is how much content it has, its snapshots' included, as far as
	// was looked (Core.Written).
	WrittenMB int64 `json:"writtenMB,omitempty"`
	// Provisioning is how the backing takes space; "" means thin.
	Provisioning Provisioning `json:"provisioning,omitempty"`
	Flags        Flags        `json:"flags,omitzero"`
	// Key encrypts the disk; the zero key means it is not encrypted.
	Key Key `json:"cryptoKey,omitzero"`
	// Values are the key/value pairs of the disk (its own metadata, not that
	// of CNS), by key.
	Values []Label `json:"values,omitempty"`
	Tags   []Tag   `json:"tags,omitempty"`
	// LinkedTo is the snapshot that a linked clone shares its blocks with.
	LinkedTo *Source `json:"linkedTo,omitempty"`
	// Taken counts the snapshots that were ever taken, for change ids.
	Taken int64 `json:"taken,omitempty"`
	// Past are the tracked snapshots that are gone, oldest first, the last
	// MaxPast: a change id outlives its snapshot.
	Past []PastSnapshot `json:"past,omitempty"`
	// Snapshots of the disk, oldest first.
	Snapshots []Snapshot `json:"snapshots,omitempty"`
}

// Provisioning is spelled as vim25's BaseConfigInfoDiskFileBackingInfoProvisioningType.
type Provisioning string

// The kinds of provisioning.
const (
	Thin             Provisioning = "thin"
	EagerZeroedThick Provisioning = "eagerZeroedThick"
	LazyZeroedThick  Provisioning = "lazyZeroedThick"
)

// Key names a key of a key provider.
type Key struct {
	ID       string `json:"id,omitempty"`
	Provider string `json:"provider,omitempty"`
}

// Tag is a tag of the tagging service, by name.
type Tag struct {
	Category string `json:"category"`
	Name     string `json:"name"`
}

// MaxPast is how many snapshots that are gone a disk remembers.
const MaxPast = 32

// PastSnapshot is a tracked snapshot that is gone.
type PastSnapshot struct {
	ID     string `json:"id"`
	Change int64  `json:"change"`
}

func (d Disk) clone() Disk {
	d.Past = slices.Clone(d.Past)
	d.Values = slices.Clone(d.Values)
	d.Tags = slices.Clone(d.Tags)
	d.Snapshots = slices.Clone(d.Snapshots)
	for i := range d.Snapshots {
		d.Snapshots[i].Values = slices.Clone(d.Snapshots[i].Values)
	}
	if d.LinkedTo != nil {
		src := *d.LinkedTo
		d.LinkedTo = &src
	}
	return d
}

// Tracked says whether the snapshot has a change id: blocks were tracked when
// it was taken.
func (s Snapshot) Tracked() bool { return s.Change > 0 }

// disk finds a first class disk, whether it is a volume or not. A volume that
// lost its disk has none.
func (c *Core) disk(id string) (*volume, bool) {
	if v, ok := c.volumes[id]; ok {
		return v, !v.Lost && v.Share == nil
	}
	v, ok := c.disks[id]
	return v, ok
}

// live finds a block volume that has its disk. What CNS is asked to do to one whose
// disk is gone fails in the layer below with NotFound
// (kubernetes-sigs/vsphere-csi-driver#1274).
func (c *Core) live(id string) (*volume, bool) {
	v, ok := c.volumes[id]
	return v, ok && !v.Lost && v.Share == nil
}

// Disk returns a copy of a first class disk, and whether it is a volume.
// Errors: NotFound.
func (c *Core) Disk(id string) (d Disk, registered bool, err error) {
	v, ok := c.disk(id)
	if !ok {
		return Disk{}, false, noDisk(id)
	}
	_, registered = c.volumes[id]
	return v.Disk.clone(), registered, nil
}

// Disks returns the first class disks that are no volumes, by id.
func (c *Core) Disks() []Disk { return sortedDisks(len(c.disks), c.disks) }

// AllDisks returns all first class disks, volumes or not, by id.
func (c *Core) AllDisks() []Disk {
	return sortedDisks(len(c.disks)+len(c.volumes), c.disks, c.volumes)
}

// DisksOn returns the ids of the first class disks on a datastore, sorted.
func (c *Core) DisksOn(datastore string) []string {
	ids := slices.DeleteFunc(sortedSet(c.byDatastore[datastore]), func(id string) bool { return c.volumes[id].Lost || c.volumes[id].Share != nil })
	ids = append(ids, sortedSet(c.disksOn[datastore])...)
	slices.Sort(ids)
	return ids
}

func sortedSet(s set) []string {
	ids := make([]string, 0, len(s))
	for v := range s {
		ids = append(ids, v.ID)
	}
	slices.Sort(ids)
	return ids
}

func sortedDisks(n int, from ...map[string]*volume) []Disk {
	vs := make([]*volume, 0, n)
	for _, m := range from {
		for _, v := range m {
			if !v.Lost && v.Share == nil {
				vs = append(vs, v)
			}
		}
	}
	slices.SortFunc(vs, func(a, b *volume) int { return compare(a.ID, b.ID) })
	out := make([]Disk, len(vs))
	for i, v := range vs {
		out[i] = v.Disk.clone()
	}
	return out
}

func noDisk(id string) *Error {
	return &Error{Kind: NotFound, Field: "id", Value: id, Reason: "no such first class disk"}
}

// FindDisks returns the first disks by id that match, at most limit, and
// whether there are more. match must not keep or change what it gets.
func (c *Core) FindDisks(limit int, match func(Disk) bool) (found []Disk, more bool) {
	var ids []string
	for _, m := range []map[string]*volume{c.disks, c.volumes} {
		for id, v := range m {
			if !v.Lost && v.Share == nil && match(v.Disk) {
				ids = append(ids, id)
			}
		}
	}
	slices.Sort(ids)
	for _, id := range ids[:min(limit, len(ids))] {
		v, _ := c.disk(id)
		found = append(found, v.Disk.clone())
	}
	return found, len(ids) > limit
}

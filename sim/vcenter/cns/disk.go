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
	// DiskPath is where the backing disk lies, e.g. "[ds] fcd/<id>.vmdk".
	DiskPath string    `json:"diskPath"`
	Created  time.Time `json:"created"`
	Flags    Flags     `json:"flags,omitzero"`
	// LinkedTo is the snapshot that a linked clone shares its blocks with.
	LinkedTo *Source `json:"linkedTo,omitempty"`
	// Taken counts the snapshots that were ever taken, for change ids.
	Taken int64 `json:"taken,omitempty"`
	// Snapshots of the disk, oldest first.
	Snapshots []Snapshot `json:"snapshots,omitempty"`
}

func (d Disk) clone() Disk {
	d.Snapshots = slices.Clone(d.Snapshots)
	if d.LinkedTo != nil {
		src := *d.LinkedTo
		d.LinkedTo = &src
	}
	return d
}

// disk finds a first class disk, whether it is a volume or not.
func (c *Core) disk(id string) (*volume, bool) {
	if v, ok := c.volumes[id]; ok {
		return v, true
	}
	v, ok := c.disks[id]
	return v, ok
}

// Disk returns a copy of a first class disk, and whether it is a volume.
// Errors: NotFound.
func (c *Core) Disk(id string) (d Disk, registered bool, err error) {
	v, ok := c.disk(id)
	if !ok {
		return Disk{}, false, notFound(id)
	}
	_, registered = c.volumes[id]
	return v.Disk.clone(), registered, nil
}

package cns

import (
	"fmt"
	"slices"
)

// RelocateSpec says where a disk shall go.
type RelocateSpec struct {
	Disk      string // id, of a volume or another first class disk
	Datastore string
	PolicyID  string // empty: the disk keeps the one that it has
	// Hosts that must reach the new datastore: those of the VMs which hold the
	// disk.
	Hosts []string
	// Folder that the disk goes into; empty means fcd. Taken are paths below the
	// datastore at which its file can't lie.
	Folder string
	Taken  []string
}

// PlanRelocate checks whether Relocate would succeed, and says what the disk
// would be then. Sources: the faults of CnsRelocateVolume as govmomi#2146
// lists them.
func (c *Core) PlanRelocate(s RelocateSpec) (Disk, error) {
	v, ok := c.disk(s.Disk)
	if !ok {
		return Disk{}, c.unknown(s.Disk)
	}
	to, ok := c.datastores[s.Datastore]
	switch {
	case !ok:
		return Disk{}, &Error{Kind: NotFoundObject, Field: "datastore", Value: s.Datastore, Reason: "no such datastore"}
	case v.Datastore == s.Datastore:
		return Disk{}, &Error{Kind: SameDatastore, Field: "datastore", Value: s.Datastore, Holder: to.Name, Reason: "the disk lies there already"}
	case v.Flags.DisableRelocation:
		// Unverified: the fault.
		return Disk{}, &Error{Kind: InvalidState, Field: "volumeId", Value: s.Disk, Reason: "the disk has the control flag disableRelocation"}
	case v.LinkedTo != nil:
		return Disk{}, &Error{Kind: NotSupported, Field: "volumeId", Value: s.Disk, Holder: v.LinkedTo.Volume, Reason: "a linked clone stays with its snapshot"}
	case len(c.clones[s.Disk]) > 0:
		return Disk{}, &Error{Kind: InUse, Field: "volumeId", Value: s.Disk, Holder: c.oneClone(s.Disk), Reason: "linked clones share blocks with the disk"}
	case slices.ContainsFunc(s.Hosts, func(h string) bool { return !to.Mounts(h) }):
		return Disk{}, &Error{Kind: Inaccessible, Field: "datastore", Value: s.Datastore, Holder: to.Name, Reason: "the host of the VM that holds the disk doesn't reach it"}
	}
	if err := c.unpinned(s.Disk); err != nil {
		return Disk{}, err
	}
	if from := c.datastores[v.Datastore]; from.Inaccessible {
		return Disk{}, &Error{Kind: Inaccessible, Field: "volumeId", Value: s.Disk, Holder: from.Name, Reason: "the datastore of the disk is not accessible"}
	}
	if err := to.takes(need{capacityMB: v.CapacityMB}); err != nil {
		err.Field = "datastore"
		return Disk{}, err
	}
	d := v.Disk.clone()
	d.Datastore, d.DiskPath = s.Datastore, c.freePath(s.Datastore, d.ID)
	if s.Folder != "" {
		d.DiskPath = c.pathIn(s)
	}
	if s.PolicyID != "" {
		d.PolicyID = s.PolicyID
	}
	return d, nil
}

// pathIn is where a disk lies in the folder that it goes to, e.g.
// "[ds] node-1/node-1_2.vmdk" (kubernetes-sigs/vsphere-csi-driver#565).
func (c *Core) pathIn(s RelocateSpec) string {
	for i := 1; ; i++ {
		rel := fmt.Sprintf("%s/%s_%d.vmdk", s.Folder, s.Folder, i)
		if p := "[" + c.datastores[s.Datastore].Name + "] " + rel; !slices.Contains(s.Taken, rel) && !c.occupied(p) {
			return p
		}
	}
}

// Relocate moves a disk with its snapshots to another datastore. It keeps its
// id and whoever holds it. Errors: NotFound, NotFoundObject, SameDatastore,
// InvalidState (flag), NotSupported (linked clone), InUse (has linked clones),
// Inaccessible, Maintenance, NoSpace.
func (c *Core) Relocate(s RelocateSpec) (Disk, error) {
	d, err := c.PlanRelocate(s)
	if err != nil {
		return Disk{}, err
	}
	v, _ := c.disk(s.Disk)
	index := c.disksOn
	if _, registered := c.volumes[v.ID]; registered {
		index = c.byDatastore
	}
	c.vanish(v)
	drop(index, v.Datastore, v)
	v.Datastore, v.DiskPath, v.PolicyID = d.Datastore, d.DiskPath, d.PolicyID
	add(index, v.Datastore, v)
	c.appear(v)
	return v.Disk.clone(), nil
}

// SetPolicy gives a disk another storage policy. Whether its datastore
// satisfies that is the caller's to check. Errors: NotFound.
func (c *Core) SetPolicy(id, policy string) (Disk, error) {
	v, ok := c.disk(id)
	if !ok {
		v, ok = c.share(id)
	}
	if !ok {
		return Disk{}, notFound(id)
	}
	v.PolicyID = policy
	return v.Disk.clone(), nil
}

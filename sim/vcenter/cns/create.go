package cns

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Limits of a volume.
const (
	// MaxName is how many bytes a name has at most; longer ones are refused
	// (the upstream driver's documented limit).
	MaxName = 80
	// MaxCapacityMB is the largest virtual disk that a datastore takes, 62 TB
	// (vSphere configuration maximums).
	MaxCapacityMB = 62 << 20
)

// CreateSpec says what volume to make.
type CreateSpec struct {
	ID         string // of the new volume, unless DiskID is set
	CallerID   bool   // the client chose ID: it may be taken
	Name       string
	CapacityMB int64    // ignored with DiskID; 0 with Source means its size
	Datastores []string // to choose among; empty: among all
	PolicyID   string
	Key        Key // encrypts it; ignored with DiskID
	// Incompatible says by datastore why the storage policy can't be met there.
	Incompatible map[string]string
	// Defaults has the storage policy of a new volume without one, by datastore.
	Defaults map[string]string
	Metadata Metadata
	// Source makes the volume from a snapshot, Linked one that shares its
	// blocks.
	Source *Source
	Linked bool
	// DiskID registers a disk that is there already. Again lets pass one that
	// is a volume: the metadata is merged, the rest stays.
	DiskID string
	Again  bool
	// DiskPath registers the disk at a path, e.g. "[ds] dir/a.vmdk": a first
	// class disk, or a virtual disk that becomes one, with ID where CallerID
	// is set.
	DiskPath string
	// Share makes a file volume.
	Share *ShareSpec
}

// Source is the snapshot that a volume is made from.
type Source struct {
	Volume   string `json:"volume"`
	Snapshot string `json:"snapshot"`
}

// Plan is what a command would do.
type Plan struct {
	Volume     Volume
	Placements []Placement
}

// PlanCreate checks whether Create would succeed and says what it would make.
func (c *Core) PlanCreate(s CreateSpec) (Plan, error) {
	switch {
	case s.Name == "":
		return Plan{}, &Error{Kind: InvalidArgument, Field: "name", Reason: "a volume needs a name"}
	case len(s.Name) > MaxName:
		return Plan{}, &Error{Kind: InvalidArgument, Field: "name", Value: s.Name, Reason: fmt.Sprintf("allowed are %d bytes", MaxName)}
	}
	if err := checkMetadata(s.Metadata); err != nil {
		return Plan{}, err
	}
	v := Volume{Disk: Disk{ID: s.ID, Name: s.Name, CapacityMB: s.CapacityMB, PolicyID: s.PolicyID, Key: s.Key}, Metadata: s.Metadata.clone()}
	for i := range v.Metadata.Entities {
		if v.Metadata.Entities[i].Cluster == "" {
			v.Metadata.Entities[i].Cluster = v.Metadata.Cluster.ID
		}
	}
	if s.Share != nil {
		return c.planShare(v, s)
	}
	v.Flags.KeepAfterDeleteVM = true
	if s.DiskPath != "" {
		return c.planRegisterPath(v, s)
	}
	if s.DiskID != "" {
		return c.planRegister(v, s)
	}

	n := need{policy: s.Incompatible}
	if s.Source != nil {
		// A restored volume has the size of its snapshot and lies on the
		// datastore of its source (what the upstream driver demands, see its
		// ControllerCreateVolume for snapshots). Unverified: that CNS itself
		// refuses other sizes.
		src, err := c.snapshot(s.Source.Volume, s.Source.Snapshot)
		if err != nil {
			return Plan{}, err
		}
		if v.CapacityMB == 0 {
			v.CapacityMB = src.CapacityMB
		}
		if v.CapacityMB != src.CapacityMB {
			return Plan{}, &Error{Kind: InvalidArgument, Field: "capacityInMb", Value: fmt.Sprint(v.CapacityMB),
				Reason: fmt.Sprintf("the snapshot has %d MB", src.CapacityMB)}
		}
		// Unverified: what is made of an encrypted disk is encrypted likewise.
		if v.Key == (Key{}) {
			v.Key = c.volumes[s.Source.Volume].Key
		}
		home := c.volumes[s.Source.Volume].Datastore
		if len(s.Datastores) > 0 && !slices.Contains(s.Datastores, home) {
			return Plan{}, &Error{Kind: InvalidArgument, Field: "datastores", Value: strings.Join(s.Datastores, ","),
				Reason: "the snapshot lies on " + home}
		}
		n.only = home
		if s.Linked {
			v.LinkedTo = &Source{s.Source.Volume, s.Source.Snapshot}
		} else {
			v.WrittenMB = c.volumes[s.Source.Volume].WrittenMB
		}
	}
	if v.CapacityMB <= 0 || v.CapacityMB > MaxCapacityMB {
		return Plan{}, &Error{Kind: InvalidArgument, Field: "capacityInMb", Value: fmt.Sprint(v.CapacityMB),
			Reason: fmt.Sprintf("allowed are 1 to %d", int64(MaxCapacityMB))}
	}
	if _, taken := c.volumes[v.ID]; taken || v.ID == "" {
		// CNS uses the id that a client of vCenter 9.1 and later gives
		// (CnsVolumeAlreadyExistsFault; kubernetes-sigs/vsphere-csi-driver#4222).
		if !taken {
			return Plan{}, &Error{Kind: InvalidArgument, Field: "volumeId", Reason: "empty"}
		}
		return Plan{}, &Error{Kind: AlreadyExists, Field: "volumeId", Value: v.ID, Holder: v.ID, Reason: "a volume has this id"}
	}
	if c.Taken(v.ID) {
		return Plan{}, &Error{Kind: AlreadyExists, Field: "volumeId", Value: v.ID, Holder: v.ID, Reason: "a disk has this id"}
	}

	n.capacityMB = v.CapacityMB
	ds, placements, err := c.place(s.Datastores, n)
	if err != nil {
		return Plan{}, err
	}
	v.Datastore = ds.ID
	v.DiskPath = c.freePath(ds.ID, v.ID)
	if v.PolicyID == "" {
		v.PolicyID = s.Defaults[ds.ID]
	}
	return Plan{Volume: v, Placements: placements}, nil
}

// planRegister makes a volume of a disk that is there. A disk that is a
// volume already is refused with its id (CnsAlreadyRegisteredFault), which
// clients take for success, unless that is allowed.
func (c *Core) planRegister(v Volume, s CreateSpec) (Plan, error) {
	disk := s.DiskID
	if old, ok := c.live(disk); ok {
		if s.Again {
			return Plan{Volume: old.clone()}, nil
		}
		return Plan{}, &Error{Kind: AlreadyRegistered, Field: "backingDiskId", Value: disk, Holder: old.ID,
			Reason: "the disk is a volume already"}
	}
	d, ok := c.disks[disk]
	if !ok {
		return Plan{}, &Error{Kind: NotFound, Field: "backingDiskId", Value: disk, Reason: "no such disk"}
	}
	name := v.Name
	v.Disk = d.Disk.clone()
	v.Name, v.Flags.KeepAfterDeleteVM = name, true
	return Plan{Volume: v}, nil // nothing was placed
}

// Create makes a volume. Errors: InvalidArgument, AlreadyExists,
// AlreadyRegistered, NotFound, SnapshotNotFound, NotFoundObject, NoSpace,
// Inaccessible, Maintenance, FileNotFound.
func (c *Core) Create(now time.Time, s CreateSpec) (Plan, error) {
	p, err := c.PlanCreate(s)
	if err != nil {
		return Plan{}, err
	}
	if _, again := c.volumes[s.DiskID]; again && s.DiskID != "" {
		u := MetadataUpdate{Cluster: s.Metadata.Cluster}
		for _, x := range s.Metadata.Clusters {
			u.Clusters = append(u.Clusters, ClusterUpdate{Cluster: x})
		}
		for _, e := range s.Metadata.Entities {
			u.Entities = append(u.Entities, EntityUpdate{Entity: e})
		}
		p.Volume, err = c.UpdateMetadata(s.DiskID, u)
		return p, err
	}
	if s.Share != nil {
		if s.Share.Existing == "" {
			p.Volume.Created = now
		}
		c.createShare(p, s.Share.Existing)
		return p, nil
	}
	if s.DiskPath != "" {
		s.DiskID = p.Volume.ID
		if f, plain := c.files[s.DiskPath]; plain {
			c.dropFile(f)
			v := &volume{Volume: p.Volume.clone()}
			c.appear(v)
			c.insert(v)
			return p, nil
		}
	}
	if s.DiskID == "" {
		p.Volume.Created = now
	}
	v := &volume{}
	if s.DiskID != "" {
		v = c.disks[s.DiskID] // its space is accounted for, and a VM may hold it
		c.dropDisk(v)
		v.Volume = p.Volume.clone() // what the backing is indexed by stays
	} else {
		v.Volume = p.Volume.clone()
		c.appear(v)
	}
	c.insert(v)
	return p, nil
}

// PlanDelete checks whether Delete would succeed.
func (c *Core) PlanDelete(id string, keepDisk bool) (Volume, error) {
	v, ok := c.managed(id)
	if !ok {
		return Volume{}, c.unknown(id)
	}
	// Both are "The resource 'volume' is in use."
	// (kubernetes-sigs/vsphere-csi-driver#1335, #1754, #2286).
	if a, ok := c.Attachment(id); ok {
		return Volume{}, &Error{Kind: InUse, Field: "volumeId", Value: id, Holder: a.VM, Reason: "a VM holds the volume"}
	}
	if vms := c.pins[id]; len(vms) > 0 {
		return Volume{}, &Error{Kind: InUse, Field: "volumeId", Value: id, Holder: vms[0], Reason: "a snapshot of a VM holds the volume"}
	}
	if n := len(v.Snapshots); n > 0 {
		return Volume{}, &Error{Kind: InUse, Field: "volumeId", Value: id, Holder: v.Snapshots[n-1].ID,
			Reason: fmt.Sprintf("the volume has %d snapshots", n)}
	}
	if !keepDisk {
		if err := c.reachable(v); err != nil {
			return Volume{}, err
		}
	}
	return v.clone(), nil
}

// Delete removes a volume; keepDisk leaves its disk, which Create can register
// again. Errors: NotFound, InUse (attached, or has snapshots), Inaccessible.
func (c *Core) Delete(id string, keepDisk bool) (Volume, error) {
	old, err := c.PlanDelete(id, keepDisk)
	if err != nil {
		return Volume{}, err
	}
	v := c.volumes[id]
	c.remove(v)
	if v.Share != nil {
		c.dropShare(v, keepDisk)
		return old, nil
	}
	if keepDisk {
		v.Metadata = Metadata{}
		c.putDisk(v)
	} else {
		c.vanish(v)
	}
	return old, nil
}

// PlanExtend checks whether Extend would succeed.
func (c *Core) PlanExtend(id string, capacityMB int64) (Volume, error) {
	v, ok := c.managed(id)
	if !ok {
		return Volume{}, c.unknown(id)
	}
	if err := c.canExtend(v, capacityMB); err != nil {
		return Volume{}, err
	}
	return v.clone(), nil
}

func (c *Core) canExtend(v *volume, capacityMB int64) error {
	switch {
	case capacityMB < v.CapacityMB || capacityMB > MaxCapacityMB:
		return &Error{Kind: InvalidArgument, Field: "capacityInMb", Value: fmt.Sprint(capacityMB),
			Reason: fmt.Sprintf("allowed are %d to %d", v.CapacityMB, int64(MaxCapacityMB))}
	case len(c.pins[v.ID]) > 0:
		return c.unpinned(v.ID)
	case len(v.Snapshots) > 0:
		// A disk with snapshots can't grow
		// (kubernetes-sigs/vsphere-csi-driver#2311, #2623).
		return &Error{Kind: HasSnapshots, Field: "volumeId", Value: v.ID, Holder: v.Snapshots[len(v.Snapshots)-1].ID,
			Reason: fmt.Sprintf("the volume has %d snapshots", len(v.Snapshots))}
	}
	if err := c.reachable(v); err != nil {
		return err
	}
	// Unverified: that a thin disk can't be promised more than is free.
	s := c.datastores[v.Datastore]
	if more := capacityMB - v.CapacityMB; more > s.freeMB() {
		return &Error{Kind: NoSpace, Field: "capacityInMb", Value: fmt.Sprint(capacityMB), Holder: s.Name,
			Reason: fmt.Sprintf("%d MB are free, %d more are needed", s.freeMB(), more)}
	}
	return nil
}

// Extend enlarges a volume, attached or not (online since vSphere 7.0 U2);
// the size that it has is allowed. Errors: NotFound, InvalidArgument (smaller),
// HasSnapshots, NoSpace, Inaccessible.
func (c *Core) Extend(id string, capacityMB int64) (Volume, error) {
	if _, err := c.PlanExtend(id, capacityMB); err != nil {
		return Volume{}, err
	}
	v := c.volumes[id]
	c.resize(v, capacityMB)
	return v.clone(), nil
}

// UndoExtend takes back the last Extend of a volume; old is as it was before.
func (c *Core) UndoExtend(old Volume) {
	v, ok := c.volumes[old.ID]
	if !ok || v.CapacityMB <= old.CapacityMB {
		return
	}
	c.resize(v, old.CapacityMB)
}

// Taken says whether a volume, a disk, a file or a share has an id.
func (c *Core) Taken(id string) bool {
	_, v := c.volumes[id]
	_, d := c.disks[id]
	_, f := c.fileIDs[id]
	_, s := c.shares[id]
	return v || d || f || s
}

package cns

import (
	"slices"
	"time"
)

// Volume is a volume that CNS manages: a first class disk that is registered
// with CNS, or a file share. What the core hands out is a copy; changing it
// changes nothing.
type Volume struct {
	Disk
	Metadata Metadata `json:"metadata"`
	// Share makes it a file volume: then there is no disk, only name, id, size,
	// policy and place of Disk count.
	Share *Share `json:"share,omitempty"`
	// Lost: the disk was deleted behind CNS's back. CNS keeps the record until
	// a sync finds that out (see Core.Forget).
	Lost bool `json:"lost,omitempty"`
}

func (v Volume) clone() Volume {
	v.Disk = v.Disk.clone()
	v.Metadata = v.Metadata.clone()
	v.Share = v.Share.clone()
	return v
}

// Snapshot is a point in time of a volume.
type Snapshot struct {
	ID          string    `json:"id"`
	Volume      string    `json:"volume"`
	Description string    `json:"description,omitempty"`
	Created     time.Time `json:"created"`
	// CapacityMB is the size of the volume when it was taken.
	CapacityMB int64 `json:"capacityMB"`
	// Change is the snapshot's number among all of its disk, from 1, where
	// changed blocks were tracked when it was taken; else 0.
	Change int64 `json:"change,omitempty"`
	// Parent is the snapshot before it, or "".
	Parent string `json:"parent,omitempty"`
	// Values are the key/value pairs that the disk had.
	Values []Label `json:"values,omitempty"`
}

// Attachment says that a VM holds a volume as a disk. A volume has one at
// most, or several that all share it.
type Attachment struct {
	Volume   string `json:"volume"`
	VM       string `json:"vm"`       // managed object id, e.g. "vm-42"
	DiskUUID string `json:"diskUUID"` // dashed, lower case
	Slot
	Mode    DiskMode `json:"mode,omitempty"`
	Sharing Sharing  `json:"sharing,omitempty"`
	// SharedBus: the disk is on a SCSI controller whose bus VMs share.
	SharedBus bool `json:"sharedBus,omitempty"`
}

// share says how other VMs may hold the volume too: all in the same way. ""
// means they may not.
func (a Attachment) share() string {
	switch {
	case a.Sharing == SharingMultiWriter:
		return "disk"
	case a.SharedBus:
		return "bus"
	}
	return ""
}

// Datastore is where volumes lie.
type Datastore struct {
	ID         string // managed object id, e.g. "datastore-1"
	Name       string
	URL        string
	Type       string // as vim25 spells it, e.g. "VMFS", "vsan"
	CapacityMB int64
	// ReservedMB is what others than CNS take of the capacity.
	ReservedMB int64
	// Thick: a disk takes its whole size when it is made.
	Thick        bool
	Inaccessible bool
	// Maintenance: the datastore takes no new volumes.
	Maintenance bool
	// Suspended: an administrator let CNS make no more volumes there.
	Suspended bool
	// NoDisks: its type takes no first class disks.
	NoDisks bool
	// FileServers export shares of it, the primary one first; without any it
	// holds no file volumes.
	FileServers []string
	// Hosts that reach it; empty means all.
	Hosts []string
}

// Mounts says whether a host reaches the datastore.
func (d Datastore) Mounts(host string) bool {
	return len(d.Hosts) == 0 || slices.Contains(d.Hosts, host)
}

// Cluster is a container cluster that uses a volume.
type Cluster struct {
	Type         string `json:"type"` // KUBERNETES
	ID           string `json:"id"`
	User         string `json:"user,omitempty"`
	Flavor       string `json:"flavor,omitempty"`
	Distribution string `json:"distribution,omitempty"`
}

// Label is a key and a value.
type Label struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// EntityKey names an object of a container cluster.
type EntityKey struct {
	Type      string `json:"type"` // PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"`
	Cluster   string `json:"cluster,omitempty"`
}

// Entity is what CNS knows about an object of a container cluster.
type Entity struct {
	EntityKey
	Labels []Label     `json:"labels,omitempty"`
	Refs   []EntityKey `json:"refs,omitempty"`
}

// Metadata of a volume.
type Metadata struct {
	Cluster  Cluster   `json:"cluster"`
	Clusters []Cluster `json:"clusters,omitempty"`
	Entities []Entity  `json:"entities,omitempty"`
}

func (m Metadata) clone() Metadata {
	m.Clusters = slices.Clone(m.Clusters)
	m.Entities = slices.Clone(m.Entities)
	for i := range m.Entities {
		m.Entities[i].Labels = slices.Clone(m.Entities[i].Labels)
		m.Entities[i].Refs = slices.Clone(m.Entities[i].Refs)
	}
	return m
}

// clusterIDs are the container clusters that the metadata names, each once.
func (m Metadata) clusterIDs() []string {
	ids := []string{m.Cluster.ID}
	for _, c := range m.Clusters {
		if !slices.Contains(ids, c.ID) {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// Package invariant holds the properties that a whole lab must keep, one file
// each. They are pure functions over a World: plain data that a lab fills in,
// so that a test can break one by editing a field, and that a file can hold, so
// that a verdict can be checked again later.
package invariant

import (
	"slices"
	"time"
)

// World is what a lab looks like from all sides at one moment.
type World struct {
	// Quiet says that no fault is armed and nothing is on its way: the moment
	// for the invariants that hold only then.
	Quiet bool

	// The backend.
	Volumes   []Volume   `json:",omitempty"`
	Snapshots []Snapshot `json:",omitempty"`
	Exports   []Export   `json:",omitempty"`
	// Unit is what the backend rounds sizes up to, in bytes; 0 is not at all.
	Unit int64 `json:",omitempty"`

	// The nodes.
	Nodes []Node `json:",omitempty"`

	// The API objects.
	PVs         []PV              `json:",omitempty"`
	Claims      []Claim           `json:",omitempty"`
	Contents    []SnapshotContent `json:",omitempty"`
	Attachments []Attachment      `json:",omitempty"`
	Pods        []Pod             `json:",omitempty"`

	// What was seen on the way.
	Formats  []Format  `json:",omitempty"`
	Promises []Promise `json:",omitempty"`
	Detaches []Detach  `json:",omitempty"`
	Reads    []Read    `json:",omitempty"`
	Leaks    []string  `json:",omitempty"` // sessions, loop devices, goroutines: whatever the lab counts itself
	// Healing is since the faults stopped; nil: none did.
	Healing *Healing `json:",omitempty"`
}

// Volume is a volume of the backend.
type Volume struct {
	ID, Name string
	// Unmanaged volumes were put there by hand; Retained ones outlived their
	// PV by policy; Deleting ones are going.
	Unmanaged, Retained, Deleting bool
	Bytes                         int64 `json:",omitempty"` // 0: not known
}

// Snapshot is a snapshot of the backend.
type Snapshot struct {
	ID, VolumeID                  string
	Unmanaged, Retained, Deleting bool
}

// Export is a volume that a node has access to: a VM disk, a VLUN.
type Export struct {
	VolumeID, Node, Serial string
}

// Node is a node's operating system.
type Node struct {
	Name   string
	Fenced bool     // force-detached or powered off: its access counts as gone
	Disks  []string `json:",omitempty"`
	Mounts []Mount  `json:",omitempty"`
	// PodDirs are the pod uids that still have a volume directory.
	PodDirs []string `json:",omitempty"`
	// Sizes are what the disks' devices show, in bytes, by serial.
	Sizes map[string]int64 `json:",omitempty"`
	// CantGrow says of a filesystem why this node can't grow it while it is mounted.
	CantGrow map[string]string `json:",omitempty"`
}

// Mount is a mount of a volume's device.
type Mount struct {
	Path     string
	Serial   string // of the disk below
	VolumeID string // that the path stands for, "" where it can't be told
	ReadOnly bool   `json:",omitempty"`
	Staging  bool   `json:",omitempty"`
	// Cut: the volume was detached from the node by force, so that the mount
	// leads nowhere.
	Cut     bool   `json:",omitempty"`
	FSType  string `json:",omitempty"`
	FSBytes int64  `json:",omitempty"` // size of the filesystem; 0: not known
}

// PV is a PersistentVolume.
type PV struct {
	Name, VolumeID string
	MultiWriter    bool  `json:",omitempty"`
	Bytes          int64 `json:",omitempty"` // its capacity; 0: not known
	Static         bool  `json:",omitempty"` // an administrator made it, and wrote the capacity down
}

// Claim is a PersistentVolumeClaim that is bound.
type Claim struct {
	Key, PV string
	Bytes   int64  // of status.capacity
	Asked   int64  // of spec.resources.requests
	Growing string `json:",omitempty"` // why the status may lag behind: the condition's name
}

// SnapshotContent is a VolumeSnapshotContent.
type SnapshotContent struct{ Name, SnapshotID string }

// Attachment is a VolumeAttachment.
type Attachment struct {
	Name, VolumeID, Node string
	Attached, Deleting   bool
	Serial               string // of the publish context
}

// Pod is a pod that is bound to a node.
type Pod struct {
	Key, UID, Node string
	VolumeIDs      []string
	Ended          bool
}

// Format is an mkfs that was let run.
type Format struct {
	Node, Serial, Tool string
	HadData            bool
}

// Promise is a call whose success says that something is gone, and what was
// still there when the success was given ("" if nothing).
type Promise struct {
	Call, Subject, StillThere string
}

// Read is what reading back a volume gave against what was written and synced.
type Read struct {
	VolumeID, Where, What string
	Want, Got             string // digests or short content
	Err                   string `json:",omitempty"`
}

// Detach is a detach that the backend carried out.
type Detach struct {
	VolumeID, Node string
	Seq            uint64   // of the call, in the ledger
	Mounted        []string `json:",omitempty"` // where the node had the volume mounted when the call began
	Fenced         bool     `json:",omitempty"` // the node was off, or gone
	// Forced is the call by which the control plane, or a user, detached by force;
	// 0: nobody did.
	Forced uint64 `json:",omitempty"`
	// Reaches is what of the node's I/O to the volume still worked when the caller
	// was told of the success.
	Reaches string `json:",omitempty"`
}

// Healing is what happened since all faults were taken away.
type Healing struct {
	Seq    uint64        // of the last call before
	Took   time.Duration // until now
	Bound  time.Duration // that it may take
	Left   string        `json:",omitempty"` // what is not as it should be
	ByHand []string      `json:",omitempty"` // components that somebody restarted
	// Calls that one component may make of one kind about one thing: so many, and
	// so many more each minute.
	Calls, PerMinute int
}

func (w *World) multiWriter(volume string) bool {
	return slices.ContainsFunc(w.PVs, func(p PV) bool { return p.VolumeID == volume && p.MultiWriter })
}

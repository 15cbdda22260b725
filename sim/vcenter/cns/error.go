package cns

import "fmt"

// Kind is why a command is refused. The face maps it to a fault of the wire.
type Kind string

// The kinds.
const (
	// NotFound: no such volume, snapshot or disk.
	NotFound Kind = "NotFound"
	// SnapshotNotFound: the volume is there, the snapshot isn't.
	SnapshotNotFound Kind = "SnapshotNotFound"
	// NotFoundObject: no such managed object (datastore, VM).
	NotFoundObject Kind = "ManagedObjectNotFound"
	// InUse: a VM holds the volume, or it has snapshots.
	InUse Kind = "ResourceInUse"
	// InvalidArgument: Field says which.
	InvalidArgument Kind = "InvalidArgument"
	// NoSpace: the datastore is full.
	NoSpace Kind = "NoSpace"
	// AlreadyExists: a volume with the id that the caller chose exists.
	AlreadyExists Kind = "AlreadyExists"
	// NotRegistered: the disk is there, but no volume of CNS.
	NotRegistered Kind = "NotRegistered"
	// SameDatastore: the disk lies where it shall go.
	SameDatastore Kind = "SameDatastore"
	// AlreadyRegistered: the backing disk is a CNS volume (Holder) already.
	AlreadyRegistered Kind = "AlreadyRegistered"
	// Pinned: a snapshot of a VM (Holder) holds the disk.
	Pinned Kind = "Pinned"
	// Busy: the VM does something else (task Holder).
	Busy Kind = "Busy"
	// HostDown: the host of the VM isn't connected.
	HostDown Kind = "HostDown"
	// InvalidState: the VM can't do it as it is.
	InvalidState Kind = "InvalidState"
	// NoSlot: no free slot on any SCSI controller of the VM that CNS uses.
	NoSlot Kind = "NoSlot"
	// NoController: the VM does not have the controller that was asked for, or
	// it is full.
	NoController Kind = "NoController"
	// Limit: the volume has as many snapshots as it may.
	Limit Kind = "Limit"
	// HasSnapshots: a volume with snapshots can't be extended.
	HasSnapshots Kind = "HasSnapshots"
	// Inaccessible: the datastore can't be reached (from the VM's host).
	Inaccessible Kind = "Inaccessible"
	// Maintenance: the datastore takes nothing new.
	Maintenance Kind = "Maintenance"
	// Untracked: the VM has no change tracking, which the disk has.
	Untracked Kind = "Untracked"
	// Attached: a VM holds the disk, which is the disk's state, not CNS's.
	Attached Kind = "Attached"
	// FileNotFound: no virtual disk at that path.
	FileNotFound Kind = "FileNotFound"
	// FileExists: something (Holder) is at that path.
	FileExists Kind = "FileExists"
	// InvalidPath: no path of a virtual disk on a datastore.
	InvalidPath Kind = "InvalidPath"
	// OnHold: provisioning on the datastore is suspended.
	OnHold Kind = "OnHold"
	// Incompatible: the datastore can't meet the storage policy.
	Incompatible Kind = "Incompatible"
	// RankedLower: the datastore could have taken the volume, another was
	// selected (a placement only).
	RankedLower Kind = "RankedLower"
	// NotSupported: CNS doesn't do this.
	NotSupported Kind = "NotSupported"
)

// Error is a refused command. The state is as it was.
type Error struct {
	Kind   Kind
	Field  string // the argument that is wrong, as the API spells it
	Value  string // its value
	Reason string // what was allowed, or what stands against it
	Holder string // who stands against it: a VM, a snapshot, a volume
	// Placement is what each datastore that was tried said (Create).
	Placement []Placement
}

func (e *Error) Error() string {
	s := "cns: " + string(e.Kind)
	if e.Field != "" {
		s += fmt.Sprintf(": %s %q", e.Field, e.Value)
	}
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	if e.Holder != "" {
		s += fmt.Sprintf(" (%s)", e.Holder)
	}
	return s
}

// unknown is the refusal of a volume that CNS doesn't have: its disk may be
// there.
func (c *Core) unknown(id string) *Error {
	if _, ok := c.share(id); ok {
		// Unverified: the fault for what only a disk can do.
		return &Error{Kind: NotSupported, Field: "volumeId", Value: id, Reason: "not with a file volume"}
	}
	if _, ok := c.disks[id]; ok {
		return &Error{Kind: NotRegistered, Field: "volumeId", Value: id, Holder: id, Reason: "the disk is not registered as a volume"}
	}
	return notFound(id)
}

func notFound(volume string) *Error {
	return &Error{Kind: NotFound, Field: "volumeId", Value: volume, Reason: "no such volume"}
}

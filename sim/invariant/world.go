// Package invariant holds the properties that a whole lab must keep, one file
// each. They are pure functions over a World: plain data that a lab fills in,
// so that a test can break one by editing a field.
package invariant

import (
	"fmt"
	"slices"
)

// World is what a lab looks like from all sides at one moment.
type World struct {
	// Quiet says that no fault is armed and nothing is on its way: the moment
	// for the invariants that hold only then.
	Quiet bool

	// The backend.
	Volumes   []Volume
	Snapshots []Snapshot
	Exports   []Export

	// The nodes.
	Nodes []Node

	// The API objects.
	PVs         []PV
	Contents    []SnapshotContent
	Attachments []Attachment
	Pods        []Pod

	// What was seen on the way.
	Formats  []Format
	Promises []Promise
	Reads    []Read
	Leaks    []string // sessions, loop devices, goroutines: whatever the lab counts itself
}

// Volume is a volume of the backend.
type Volume struct {
	ID, Name string
	// Unmanaged volumes were put there by hand; Retained ones outlived their
	// PV by policy; Deleting ones are going.
	Unmanaged, Retained, Deleting bool
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
	Fenced bool // force-detached or powered off: its access counts as gone
	Disks  []string
	Mounts []Mount
	// PodDirs are the pod uids that still have a volume directory.
	PodDirs []string
}

// Mount is a mount of a volume's device.
type Mount struct {
	Path     string
	Serial   string // of the disk below
	VolumeID string // that the path stands for, "" where it can't be told
	ReadOnly bool
	Staging  bool
}

// PV is a PersistentVolume.
type PV struct {
	Name, VolumeID string
	MultiWriter    bool
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
	Err                   error
}

// Violation is a broken invariant.
type Violation struct {
	ID, Sentence, Detail string
}

func (v Violation) String() string {
	return fmt.Sprintf("%s broken: %s (%s)", v.ID, v.Detail, v.Sentence)
}

// Invariant is a property of a World.
type Invariant struct {
	ID string // I1 …
	// Sentence is what reports print.
	Sentence string
	// WhenQuiet invariants hold only once the lab is quiet.
	WhenQuiet bool
	// Check returns a detail for each violation.
	Check func(*World) []string
}

var all []Invariant

func register(i Invariant) {
	all = append(all, i)
	slices.SortFunc(all, func(a, b Invariant) int {
		if len(a.ID) != len(b.ID) {
			return len(a.ID) - len(b.ID)
		}
		return slices.Compare([]byte(a.ID), []byte(b.ID))
	})
}

// All lists the invariants by id.
func All() []Invariant { return slices.Clone(all) }

// Check returns what is broken in w.
func Check(w *World) []Violation {
	var out []Violation
	for _, i := range all {
		if i.WhenQuiet && !w.Quiet {
			continue
		}
		for _, d := range i.Check(w) {
			out = append(out, Violation{i.ID, i.Sentence, d})
		}
	}
	return out
}

func (w *World) multiWriter(volume string) bool {
	return slices.ContainsFunc(w.PVs, func(p PV) bool { return p.VolumeID == volume && p.MultiWriter })
}

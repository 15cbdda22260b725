package controller

import (
	"context"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// Backend is the storage system behind the controller service. All methods
// are safe for concurrent use. Every method but the listing ones is
// idempotent: called again after any failure, lost reply or crash it finds
// what was done and goes on from there. Errors are *Error or those of the
// context; anything else counts as Internal.
type Backend interface {
	// CreateVolume makes a volume, or returns the one that has the name when
	// it fits the request. AlreadyExists when it doesn't fit, NotFound for a
	// missing source, Exhausted when no storage qualifies.
	CreateVolume(ctx context.Context, r CreateVolume) (Volume, error)
	// DeleteVolume removes a volume and its content. A missing volume is no
	// error; InUse when it is attached or has snapshots.
	DeleteVolume(ctx context.Context, id string) error
	// Volume returns one volume, without its nodes, or NotFound.
	Volume(ctx context.Context, id string) (Volume, error)
	// Nodes returns the ids of the nodes that hold a volume.
	Nodes(ctx context.Context, volume string) ([]string, error)
	// Volumes returns one page of all volumes of this cluster with the nodes
	// that hold them. A bad token is Aborted.
	Volumes(ctx context.Context, p Page) (vs []Volume, next string, err error)

	// Attach gives a node the volume and returns the publish context.
	// NotFound for a missing volume or node, InUse naming the holder when
	// another node has it, Exhausted when the node can take no more.
	Attach(ctx context.Context, volume, node string) (map[string]string, error)
	// Detach takes the volume from a node, from all when node is empty. A
	// volume that isn't there is no error.
	Detach(ctx context.Context, volume, node string) error

	// Expand grows a volume to at least size bytes and returns its size.
	Expand(ctx context.Context, volume string, size int64) (int64, error)

	// CreateSnapshot cuts a snapshot, or returns the one that has the name.
	// AlreadyExists when the name is another volume's.
	CreateSnapshot(ctx context.Context, name, volume string) (Snapshot, error)
	// DeleteSnapshot removes a snapshot. A missing one is no error.
	DeleteSnapshot(ctx context.Context, id string) error
	// Snapshots returns one page of the snapshots that match; none is no
	// error. A bad token is Aborted.
	Snapshots(ctx context.Context, f SnapshotFilter, p Page) (ss []Snapshot, next string, err error)

	// Capacity returns the space for volumes with these parameters in this
	// topology segment (nil: anywhere).
	Capacity(ctx context.Context, parameters, segment map[string]string) (Capacity, error)
}

// CreateVolume asks for a volume.
type CreateVolume struct {
	Name string
	// Bytes is the size, a multiple of the granularity. 0 together with a
	// source means the source's size.
	Bytes int64
	// MinBytes and LimitBytes are what the caller accepts of a volume that
	// exists. LimitBytes 0 is no limit.
	MinBytes, LimitBytes int64
	Parameters           map[string]string
	// Snapshot is the source snapshot's id, or empty.
	Snapshot string
	// Requisite and Preferred are topology segments; both empty means any.
	Requisite, Preferred []map[string]string
}

// Volume describes a volume.
type Volume struct {
	ID      string
	Bytes   int64
	Context map[string]string
	// Snapshot is the source snapshot's id, where known.
	Snapshot string
	// Segments are the topology segments it can be reached from; nil means
	// from every node.
	Segments []map[string]string
	// Nodes are the ids of the nodes that hold it.
	Nodes []string
}

// Snapshot describes a snapshot.
type Snapshot struct {
	ID, Volume string
	Bytes      int64
	Created    time.Time
	Ready      bool
}

// SnapshotFilter selects snapshots; empty fields match all.
type SnapshotFilter struct{ ID, Volume string }

// Page asks for a part of a list. Max 0 is no limit.
type Page struct {
	Max   int
	Token string
}

// Capacity is space in bytes.
type Capacity struct {
	Available int64
	// MaxVolume is the largest volume that fits; 0 is unknown.
	MaxVolume int64
}

var _ csi.ControllerServer = (*server)(nil)

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
//
// The secrets of a request are in its context: SecretsOf.
type Backend interface {
	// Abilities says what the backend can beyond what all must. It doesn't
	// change.
	Abilities() Abilities
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
	// another node has it, Exhausted when the node can take no more,
	// AlreadyExists when the node has it in another way.
	Attach(ctx context.Context, r Attach) (map[string]string, error)
	// Detach takes the volume from a node, from all when node is empty. A
	// volume that isn't there is no error.
	Detach(ctx context.Context, volume, node string) error

	// Expand grows a volume to at least size bytes and returns its size.
	Expand(ctx context.Context, volume string, size int64) (int64, error)

	// CreateSnapshot cuts a snapshot, or returns the one that has the name.
	// AlreadyExists when the name is another volume's.
	CreateSnapshot(ctx context.Context, r CreateSnapshot) (Snapshot, error)
	// DeleteSnapshot removes a snapshot. A missing one is no error.
	DeleteSnapshot(ctx context.Context, id string) error
	// Snapshots returns one page of the snapshots that match; none is no
	// error. A bad token is Aborted.
	Snapshots(ctx context.Context, f SnapshotFilter, p Page) (ss []Snapshot, next string, err error)

	// Capacity returns the space for volumes with these parameters in this
	// topology segment (nil: anywhere).
	Capacity(ctx context.Context, parameters, segment map[string]string) (Capacity, error)
}

// Modifier is a Backend that can change volumes: Abilities.Modify.
type Modifier interface {
	// ModifyVolume changes parameters of a volume: Invalid for one that can't
	// be changed or for a value that isn't allowed, NotFound.
	ModifyVolume(ctx context.Context, volume string, parameters map[string]string) error
}

// Abilities are what one backend can and another can't.
type Abilities struct {
	// Clones: a volume can be made from another (CLONE_VOLUME).
	Clones bool
	// ReadOnly: a volume can be given to a node for reading only
	// (PUBLISH_READONLY).
	ReadOnly bool
	// SharedBlock: a raw block volume may be for several nodes at once.
	SharedBlock bool
	// SharedFiles: a volume may be a share of files, which several nodes mount at
	// once. Which volumes are is the backend's to say: it refuses Access.SharedMount
	// for others, with Invalid.
	SharedFiles bool
	// Nodes: the nodes that hold a volume are known (GET_VOLUME,
	// LIST_VOLUMES_PUBLISHED_NODES).
	Nodes bool
	// Capacity: free space is known (GET_CAPACITY).
	Capacity bool
	// SnapshotParameters: a snapshot takes parameters.
	SnapshotParameters bool
	// Modify: the backend is a Modifier (MODIFY_VOLUME), and CreateVolume takes
	// mutable parameters.
	Modify bool
}

// Access is how a volume is to be used: what the capabilities of a request say
// together.
type Access struct {
	// Block and Mount are the access types that are asked for, one or both.
	Block, Mount bool
	// FSType is the file system of a mount, in lower case; "" lets the backend
	// choose.
	FSType string
	// Shared: for several nodes at once.
	Shared bool
	// SharedMount: mounted on several nodes at once.
	SharedMount bool
	// ReadOnly: every mode only reads.
	ReadOnly bool
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
	// Mutable are parameters that ModifyVolume may change later; nil unless
	// Abilities.Modify.
	Mutable map[string]string
	// Access is what the volume is for.
	Access Access
	// Snapshot is the source snapshot's id, Source the source volume's; at most
	// one is set.
	Snapshot, Source string
	// Requisite and Preferred are topology segments; both empty means any.
	Requisite, Preferred []map[string]string
}

// Volume describes a volume.
type Volume struct {
	ID      string
	Bytes   int64
	Context map[string]string
	// Snapshot is the source snapshot's id, Source the source volume's, where
	// known.
	Snapshot, Source string
	// Segments are the topology segments it can be reached from; nil means
	// from every node.
	Segments []map[string]string
	// Nodes are the ids of the nodes that hold it.
	Nodes []string
	// Files: it is a share of files, that several nodes may mount, and no block
	// device.
	Files bool
}

// Check says why a volume can't be used in a way, or nil. What is the same for
// all volumes of a backend is not looked at.
func (v Volume) Check(a Access) error {
	switch {
	case v.Files && a.Block:
		return Errorf(Invalid, "access_type block: the volume is a share of files, mount is allowed")
	case !v.Files && a.SharedMount:
		return Errorf(Invalid, "access_mode MULTI_NODE_*: not supported for a volume with a file system, which is for one node at a time: SINGLE_NODE_* is allowed, and any mode for a block volume or a share of files")
	}
	return nil
}

// Attach asks for a volume at a node.
type Attach struct {
	Volume, Node string
	Access       Access
	// ReadOnly asks for a publication that can't be written to; false unless
	// Abilities.ReadOnly.
	ReadOnly bool
	// Context is the volume's, as CreateVolume returned it.
	Context map[string]string
}

// CreateSnapshot asks for a snapshot.
type CreateSnapshot struct {
	Name, Volume string
	// Parameters are those of the class, without the names of objects; empty
	// unless Abilities.SnapshotParameters.
	Parameters map[string]string
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

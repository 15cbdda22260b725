package node

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
)

// Errors of a Backend, mapped to codes of the wire here.
var (
	// ErrNoDevice: the volume's device is not on this node (yet): Unavailable.
	ErrNoDevice = errors.New("node: device not present")
	// ErrContext: the contexts or secrets of the call lack what names the device,
	// or don't make sense: InvalidArgument.
	ErrContext = errors.New("node: unusable context")
	// ErrLogin: the storage refuses this node's credentials: Unauthenticated.
	ErrLogin = errors.New("node: login refused")
	// ErrInUse: something on the node still uses the device: FailedPrecondition.
	ErrInUse = errors.New("node: device in use")
)

// Volume is what a call says of a volume. It is logged and printed as its id:
// contexts and secrets are not for logs.
type Volume struct {
	ID             string
	PublishContext map[string]string
	Context        map[string]string // volume_context
	Secrets        map[string]string
}

// String is the id.
func (v Volume) String() string { return v.ID }

// GoString is the id.
func (v Volume) GoString() string { return v.ID }

// LogValue is the id.
func (v Volume) LogValue() slog.Value { return slog.StringValue(v.ID) }

// Backend is what differs between storage systems on a node.
type Backend interface {
	// NodeID is the id by which the controller knows this node.
	NodeID(ctx context.Context) (string, error)
	// Traits are what volumes of this storage can do.
	Traits() Traits
	// Filesystem is how the filesystem of a volume is to be made and kept.
	// Errors: ErrContext.
	Filesystem(v Volume) (Filesystem, error)
	// Device resolves the device node (e.g. /dev/sdb) of a volume, and has checked
	// that it is that volume's. With wait, it asks the bus for new devices, waits a
	// bounded time for it, and holds the volume from then on. A backend with
	// nothing to let go of at the end holds none.
	// Errors: ErrNoDevice, ErrContext, ErrLogin, ctx.
	Device(ctx context.Context, v Volume, wait bool) (string, error)
	// Devices lists the device nodes that may belong to volumes.
	Devices() ([]string, error)
	// Rescan makes a device node show the present size of its volume.
	Rescan(ctx context.Context, device string) error
	// Verify cuts a device node off from all that isn't its volume any more, so that
	// what the node has yet to write to it reaches nobody else. It is asked before
	// the last unmount. What can't be asked is not an error.
	Verify(ctx context.Context, device string) error
	// Held says whether a volume is held, over restarts too, and what its device
	// node is ("" when it isn't there).
	Held(volume string) (device string, held bool, err error)
	// Release takes the device of a volume off the node, which nothing uses any
	// more. device is what was mounted, for a volume that isn't held; it may be
	// empty. A volume that is gone is no error.
	// Errors: ErrInUse, ctx.
	Release(ctx context.Context, volume, device string) error
}

// Traits of a backend's volumes.
type Traits struct {
	// SharedBlock: a raw block volume may be used on several nodes at a time. A
	// filesystem never may: none here is a cluster's.
	SharedBlock bool
	// Shares: a volume may be a share of a file server (Filesystem.Share), which
	// several nodes mount at a time.
	Shares bool
}

// Filesystem is how a volume's filesystem is made and kept.
type Filesystem struct {
	Type     string       // where the capability names none: ext3, ext4 or xfs
	Create   []string     // further arguments of mkfs
	Owner    *Owner       // of the root directory; nil leaves it
	Mode     *fs.FileMode // of the root directory; nil leaves it
	Repair   bool         // of what only a repair that may lose data can mend
	ReadOnly bool         // the volume was published to this node for reading
	// Share is server:/path of a volume that is a share of a file server; "": it
	// has a device. Of a share only ReadOnly counts besides.
	Share string
}

// Owner of a file.
type Owner struct{ UID, GID int }

// Unheld is a part of backends whose devices are taken away by the controller
// alone.
type Unheld struct{}

// Verify implements Backend.
func (Unheld) Verify(context.Context, string) error { return nil }

// Held implements Backend.
func (Unheld) Held(string) (string, bool, error) { return "", false, nil }

// Release implements Backend.
func (Unheld) Release(context.Context, string, string) error { return nil }

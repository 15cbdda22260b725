// Package disk holds images: the content of volumes and snapshots. An image
// is what a SCSI disk of a node or a virtual disk of an array reads and writes.
package disk

import (
	"errors"
	"io"
)

// Errors of a Store, wrapped with the id.
var (
	ErrNotFound = errors.New("disk: no such image")
	ErrExists   = errors.New("disk: image exists")
	ErrInUse    = errors.New("disk: image has snapshots")
	ErrSize     = errors.New("disk: size not allowed")
	ErrID       = errors.New("disk: id not allowed")
	ErrFenced   = errors.New("disk: the image was fenced from this handle")
	ErrClosed   = errors.New("disk: closed")
	ErrChanging = errors.New("disk: the image was written to while it was copied")
)

// Image is an open image. Offsets and sizes are in bytes. Reads and writes
// past the size fail as a disk's do (io.EOF / an error), and never grow it. One
// WriteAt call is atomic towards Snapshot, Clone and Restore on a memory store.
type Image interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Sync() error
	Size() int64
	// Path is the file that holds the content, or "" for an image in memory.
	Path() string
}

// Info describes an image.
type Info struct {
	ID        string
	Size      int64
	Snapshots []string
}

// Extent is a part of an image, in bytes.
type Extent struct{ Start, Length int64 }

// ChangeUnit is what changes are told in, in bytes.
const ChangeUnit = 64 << 10

// Store keeps images by id. It is safe for concurrent use. A call either has
// its whole effect or none.
type Store interface {
	// Create makes an image of zeros. Errors: ErrExists, ErrSize (not positive).
	Create(id string, size int64) error
	// Open opens an image, as often as wanted. Errors: ErrNotFound.
	Open(id string) (Image, error)
	// Stat describes an image. Errors: ErrNotFound.
	Stat(id string) (Info, error)
	// Allocated is how many bytes the content of an image takes: what was never
	// written takes none. A memory store adds what its snapshots don't share with
	// it, a store of files takes the larger of image and snapshots for both.
	// Errors: ErrNotFound.
	Allocated(id string) (int64, error)
	// Grow enlarges an image; what is new reads as zeros. Errors: ErrNotFound, ErrSize (smaller).
	Grow(id string, size int64) error
	// Snapshot keeps the content as of now under snap. Errors: ErrNotFound, ErrExists.
	Snapshot(id, snap string) error
	// DeleteSnapshot drops a snapshot. Errors: ErrNotFound.
	DeleteSnapshot(id, snap string) error
	// Restore makes image newID from a snapshot, enlarged to size where that is
	// larger. Errors: ErrNotFound, ErrExists, ErrSize (smaller than the snapshot).
	Restore(id, snap, newID string, size int64) error
	// Revert gives an image the content of one of its snapshots again, and its
	// size. Whoever has it open is cut off, as by Fence. Errors: ErrNotFound.
	Revert(id, snap string) error
	// Changed lists what of a snapshot may differ from an earlier one of the
	// same image, which may have been deleted since, in order and in units of
	// ChangeUnit: never less than what does, and all of it where nothing is
	// known about the earlier one any more. With since "" it lists what is not
	// a hole. Errors: ErrNotFound (snap).
	Changed(id, since, snap string) ([]Extent, error)
	// Clone makes image newID with id's content as of now. Errors: as Restore.
	Clone(id, newID string, size int64) error
	// Delete drops an image. Errors: ErrNotFound, ErrInUse (has snapshots).
	Delete(id string) error
	// Fence cuts off everyone who has the image open: their later writes have no
	// effect on what is opened from now on, and fail where the store can make
	// them. It is the disk's side of a forced detach. Errors: ErrNotFound.
	Fence(id string) error
	// List describes all images, by id.
	List() []Info
	// Close ends the store. Images in memory are dropped; files stay where they
	// are, and a store that is opened on the same directory has them again.
	Close() error
}

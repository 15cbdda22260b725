// Package host is a node's operating system as those who run on it see it:
// files, devices, mounts, commands. There are two implementations behind one
// interface: real (root on Linux: a process with a mount namespace of its own,
// loop devices, mkfs, mount) and memory (no privileges, any OS).
package host

import (
	"context"
	"io/fs"

	"k8s.io/mount-utils"
	"k8s.io/utils/exec"

	"github.com/csilab/csilab/sim/disk"
)

// Usage is the space and the inodes of a filesystem (statfs). It is an alias
// of an unnamed type, so that consumers can ask for it without this package.
type Usage = struct {
	TotalBytes, FreeBytes, AvailableBytes int64
	TotalInodes, FreeInodes               int64
}

// Files are the file operations of a node. Paths are absolute, in the node's
// namespace. Errors are *fs.PathError with a syscall.Errno, as package os
// gives them.
type Files interface {
	Stat(path string) (fs.FileInfo, error)
	Lstat(path string) (fs.FileInfo, error)
	ReadDir(path string) ([]fs.DirEntry, error)
	ReadFile(path string) ([]byte, error)
	WriteFile(path string, data []byte, perm fs.FileMode) error
	MkdirAll(path string, perm fs.FileMode) error
	// Remove removes a file or an empty directory. There is no RemoveAll: it
	// deletes users' data when an unmount was missed.
	Remove(path string) error
	Rename(from, to string) error
	Symlink(target, path string) error
	Readlink(path string) (string, error)
	EvalSymlinks(path string) (string, error)
	Chmod(path string, mode fs.FileMode) error
	Lchown(path string, uid, gid int) error
	// Owner gives the uid and gid of a file.
	Owner(path string) (uid, gid int, err error)
	Statfs(path string) (Usage, error)
	// DeviceSize is the size in bytes of a block device.
	DeviceSize(path string) (int64, error)
}

// IO is what a program in a pod does with a file or a block device.
type IO interface {
	// ReadAt reads n bytes of a file or device at an offset. Fewer come with io.EOF.
	ReadAt(path string, offset int64, n int) ([]byte, error)
	// WriteAt writes to a file (made when missing) or device. Without sync the
	// data is in the node's page cache only and a power loss drops it.
	WriteAt(path string, offset int64, data []byte, sync bool) error
	// Hold opens a file or directory and keeps it open, which makes an unmount
	// fail with EBUSY. release may be called more than once.
	Hold(path string) (release func(), err error)
}

// Host is a node. What it offers to a driver is a superset of what package
// driver/node asks for. It is safe for concurrent use.
type Host interface {
	Files
	IO
	// Mounter mounts within the node's namespace.
	Mounter() mount.Interface
	// Exec runs commands of the node (blkid, mkfs, fsck, resize2fs, xfs_growfs, …).
	Exec() exec.Interface
	// Name is the node's name.
	Name() string
	// Kind is "real" or "memory".
	Kind() string
	// Supports says whether the node can do a thing, e.g. "ext4", "xfs",
	// "grow-online:ext4", and why not.
	Supports(feature string) error

	// AttachDisk plugs a SCSI disk in: it shows up as /dev/disk/by-id/wwn-0x<wwn>
	// (a link to the device node). wwn is 32 lower case hex digits. The caller
	// closes the image, after the detach.
	AttachDisk(ctx context.Context, wwn string, img disk.Image) error
	// DetachDisk pulls a disk, mounted or not. I/O on what is still mounted
	// fails with EIO from then on, and what was not synced is lost; its name
	// (/dev/sdX) is given to another disk once it is unmounted.
	DetachDisk(ctx context.Context, wwn string) error
	// ResizeDisk makes the device show the image's present size, as a SCSI
	// bus rescan does.
	ResizeDisk(ctx context.Context, wwn string) error
	// Disks lists the wwns that are plugged in.
	Disks() []string

	// PowerOff loses what is not synced, all mounts and everything that runs;
	// PowerOn boots: an empty /var/lib/kubelet mount table, files on the node's
	// own disk kept.
	PowerOff() error
	PowerOn() error

	// Close removes every trace of the node. It may be called more than once.
	Close() error
}

package node

import (
	"io/fs"

	"k8s.io/mount-utils"
	"k8s.io/utils/exec"
)

// Usage is the space and the inodes of a filesystem (statfs). It is an alias
// of an unnamed type, so that a host satisfies [Host] without this package.
type Usage = struct {
	TotalBytes, FreeBytes, AvailableBytes int64
	TotalInodes, FreeInodes               int64
}

// Host is what the node service asks of the operating system. Paths are
// absolute and use slashes. Errors of file operations wrap a syscall.Errno, as
// those of package os do.
type Host interface {
	Stat(path string) (fs.FileInfo, error)
	ReadDir(path string) ([]fs.DirEntry, error)
	ReadFile(path string) ([]byte, error)
	WriteFile(path string, data []byte, perm fs.FileMode) error
	MkdirAll(path string, perm fs.FileMode) error
	// Remove removes a file or an empty directory. Nothing here removes a tree:
	// that deletes a user's data when an unmount was missed.
	Remove(path string) error
	EvalSymlinks(path string) (string, error)
	Chmod(path string, mode fs.FileMode) error
	Lchown(path string, uid, gid int) error
	Statfs(path string) (Usage, error)
	// DeviceSize is the size in bytes of a block device.
	DeviceSize(path string) (int64, error)
	// ReadAt reads n bytes of a device at an offset.
	ReadAt(path string, offset int64, n int) ([]byte, error)
	Mounter() mount.Interface
	Exec() exec.Interface
}

package node

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/mount-utils"
	"k8s.io/utils/exec"
)

// OS is the operating system that this process runs on.
func OS() (Host, error) {
	// Without systemd: the driver runs in a container.
	return osHost{mounter: mount.NewWithoutSystemd(""), exec: exec.New()}, nil
}

type osHost struct {
	mounter mount.Interface
	exec    exec.Interface
}

func (h osHost) Stat(path string) (fs.FileInfo, error)        { return os.Stat(path) }
func (h osHost) ReadDir(path string) ([]fs.DirEntry, error)   { return os.ReadDir(path) }
func (h osHost) ReadFile(path string) ([]byte, error)         { return os.ReadFile(path) }
func (h osHost) MkdirAll(path string, perm fs.FileMode) error { return os.MkdirAll(path, perm) }
func (h osHost) Remove(path string) error                     { return os.Remove(path) }
func (h osHost) EvalSymlinks(path string) (string, error)     { return filepath.EvalSymlinks(path) }
func (h osHost) Chmod(path string, mode fs.FileMode) error    { return os.Chmod(path, mode) }
func (h osHost) Lchown(path string, uid, gid int) error       { return os.Lchown(path, uid, gid) }
func (h osHost) Mounter() mount.Interface                     { return h.mounter }
func (h osHost) Exec() exec.Interface                         { return h.exec }

func (h osHost) WriteFile(path string, data []byte, perm fs.FileMode) error {
	return os.WriteFile(path, data, perm)
}

func (h osHost) Statfs(path string) (Usage, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return Usage{}, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	bs := int64(st.Bsize)
	return Usage{
		TotalBytes: int64(st.Blocks) * bs, FreeBytes: int64(st.Bfree) * bs, AvailableBytes: int64(st.Bavail) * bs,
		TotalInodes: int64(st.Files), FreeInodes: int64(st.Ffree),
	}, nil
}

func (h osHost) DeviceSize(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if !isBlock(fi) {
		return 0, &fs.PathError{Op: "device size", Path: path, Err: unix.ENOTBLK}
	}
	return f.Seek(0, io.SeekEnd)
}

func (h osHost) ReadAt(path string, offset int64, n int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, n)
	got, err := f.ReadAt(b, offset)
	if err != nil {
		return nil, fmt.Errorf("read %d bytes at %d, got %d: %w", n, offset, got, err)
	}
	return b, nil
}

package host

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// own leads the files that /proc has for a process to those of the node: in
// this process /proc/self is the process, not the thread.
func own(p string) string {
	if p == "/proc/mounts" {
		return "/proc/thread-self/mounts"
	}
	if rest, ok := strings.CutPrefix(p, "/proc/self/"); ok {
		return "/proc/thread-self/" + rest
	}
	return p
}

// result runs f in the node's namespace and gives what it returned.
func result[T any](h *Real, op, p string, f func() (T, error)) (T, error) {
	var v T
	err := h.do(func() (err error) {
		v, err = f()
		return err
	})
	if err == ErrOff {
		err = pathError(op, p, err)
	}
	return v, err
}

func (h *Real) change(op, p string, f func() error) error {
	_, err := result(h, op, p, func() (struct{}, error) { return struct{}{}, f() })
	return err
}

// Stat implements Files.
func (h *Real) Stat(p string) (fs.FileInfo, error) {
	return result(h, "stat", p, func() (fs.FileInfo, error) { return os.Stat(own(p)) })
}

// Lstat implements Files.
func (h *Real) Lstat(p string) (fs.FileInfo, error) {
	return result(h, "lstat", p, func() (fs.FileInfo, error) { return os.Lstat(own(p)) })
}

// ReadDir implements Files. The entries know their types and infos.
func (h *Real) ReadDir(p string) ([]fs.DirEntry, error) {
	return result(h, "open", p, func() ([]fs.DirEntry, error) {
		es, err := os.ReadDir(own(p))
		// An entry asks for its info when it is needed, which is outside the namespace.
		for i, e := range es {
			if fi, err := e.Info(); err == nil {
				es[i] = fs.FileInfoToDirEntry(fi)
			}
		}
		return es, err
	})
}

// ReadFile implements Files.
func (h *Real) ReadFile(p string) ([]byte, error) {
	return result(h, "open", p, func() ([]byte, error) { return os.ReadFile(own(p)) })
}

// WriteFile implements Files. A write to /sys/block/<dev>/device/rescan does
// what it does on a machine.
func (h *Real) WriteFile(p string, data []byte, perm fs.FileMode) error {
	return h.change("open", p, func() error {
		if err := os.WriteFile(p, data, perm); err != nil {
			return err
		}
		if h.san != nil {
			return nil // its /sys does so itself
		}
		if rest, ok := strings.CutPrefix(p, "/sys/block/"); ok {
			if name, ok := strings.CutSuffix(rest, "/device/rescan"); ok {
				return pathError("write", p, h.rescan(name))
			}
		}
		return nil
	})
}

// MkdirAll implements Files.
func (h *Real) MkdirAll(p string, perm fs.FileMode) error {
	return h.change("mkdir", p, func() error { return os.MkdirAll(p, perm) })
}

// Remove implements Files.
func (h *Real) Remove(p string) error {
	return h.change("remove", p, func() error { return os.Remove(p) })
}

// Rename implements Files.
func (h *Real) Rename(from, to string) error {
	return h.change("rename", from, func() error { return os.Rename(from, to) })
}

// Symlink implements Files.
func (h *Real) Symlink(target, p string) error {
	return h.change("symlink", p, func() error { return os.Symlink(target, p) })
}

// Readlink implements Files.
func (h *Real) Readlink(p string) (string, error) {
	return result(h, "readlink", p, func() (string, error) { return os.Readlink(own(p)) })
}

// EvalSymlinks implements Files.
func (h *Real) EvalSymlinks(p string) (string, error) {
	return result(h, "lstat", p, func() (string, error) { return filepath.EvalSymlinks(p) })
}

// Chmod implements Files.
func (h *Real) Chmod(p string, mode fs.FileMode) error {
	return h.change("chmod", p, func() error { return os.Chmod(p, mode) })
}

// Lchown implements Files.
func (h *Real) Lchown(p string, uid, gid int) error {
	return h.change("lchown", p, func() error { return os.Lchown(p, uid, gid) })
}

// Owner implements Files.
func (h *Real) Owner(p string) (uid, gid int, err error) {
	fi, err := h.Lstat(p)
	if err != nil {
		return 0, 0, err
	}
	st := fi.Sys().(*syscall.Stat_t)
	return int(st.Uid), int(st.Gid), nil
}

// Statfs implements Files.
func (h *Real) Statfs(p string) (Usage, error) {
	return result(h, "statfs", p, func() (Usage, error) {
		var st syscall.Statfs_t
		if err := syscall.Statfs(p, &st); err != nil {
			return Usage{}, pathError("statfs", p, err)
		}
		// The unit of the counts is the fragment size, which Bsize may exceed.
		unit := st.Frsize
		if unit == 0 {
			unit = st.Bsize
		}
		return Usage{int64(st.Blocks) * unit, int64(st.Bfree) * unit, int64(st.Bavail) * unit, int64(st.Files), int64(st.Ffree)}, nil
	})
}

// DeviceSize implements Files.
func (h *Real) DeviceSize(p string) (int64, error) {
	return result(h, "open", p, func() (int64, error) {
		f, err := os.Open(p)
		if err != nil {
			return 0, err
		}
		defer f.Close()
		fi, err := f.Stat()
		if err != nil {
			return 0, err
		}
		if fi.Mode()&fs.ModeDevice == 0 {
			return 0, pathError("open", p, syscall.ENOTBLK)
		}
		return f.Seek(0, io.SeekEnd)
	})
}

// ReadAt implements IO.
func (h *Real) ReadAt(p string, off int64, n int) ([]byte, error) {
	return result(h, "open", p, func() ([]byte, error) {
		if n < 0 || off < 0 {
			return nil, pathError("read", p, syscall.EINVAL)
		}
		f, err := os.Open(own(p))
		if err != nil {
			return nil, err
		}
		defer f.Close()
		b := make([]byte, n)
		got, err := f.ReadAt(b, off)
		return b[:got], err
	})
}

// WriteAt implements IO.
func (h *Real) WriteAt(p string, off int64, data []byte, sync bool) error {
	return h.change("open", p, func() error {
		if off < 0 {
			return pathError("write", p, syscall.EINVAL)
		}
		f, err := os.OpenFile(p, os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := f.WriteAt(data, off); err != nil {
			return err
		}
		if sync {
			return f.Sync()
		}
		return nil
	})
}

// Hold implements IO.
func (h *Real) Hold(p string) (func(), error) {
	f, err := result(h, "open", p, func() (*os.File, error) { return os.Open(p) })
	if err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() { f.Close() }), nil
}

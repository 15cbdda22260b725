package host

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/mount-utils"

	"github.com/csilab/csilab/sim/host/shim"
)

const waitDelay = 2 * time.Second

// lockFile in a lab's directory is locked as long as the lab lives.
const lockFile = "lock"

// LockLab makes a lab's directory and holds its lock until release, or until
// this process ends. Errors: the directory belongs to a lab that lives.
func LockLab(dir string) (release func(), err error) {
	for {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("host: %w", err)
		}
		f, held, err := tryLock(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if held {
			return func() { f.Close() }, nil
		}
		if err == nil {
			return nil, fmt.Errorf("host: %s belongs to a lab that lives", dir)
		}
	}
}

// tryLock locks a lab's directory. Errors: fs.ErrNotExist, when it was swept
// meanwhile.
func tryLock(dir string) (f *os.File, held bool, err error) {
	path := filepath.Join(dir, lockFile)
	f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, false, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, false, nil
		}
		return nil, false, fmt.Errorf("host: lock %s: %w", path, err)
	}
	// Is it still the one that has the name?
	mine, err1 := f.Stat()
	named, err2 := os.Stat(path)
	if err1 != nil || err2 != nil || !os.SameFile(mine, named) {
		f.Close()
		return nil, false, fs.ErrNotExist
	}
	return f, true, nil
}

// Sweep removes what labs left that have died: their processes, mounts, loop
// devices and directories. stateRoot holds a directory for each lab, with a
// lock (LockLab); labs that live are left alone. It returns the directories
// that it removed. A missing stateRoot holds no labs.
func Sweep(stateRoot string) (removed []string, err error) {
	stateRoot, err = filepath.Abs(stateRoot)
	if err != nil {
		return nil, err
	}
	labs, err := os.ReadDir(stateRoot)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("host: %w", err)
	}
	var errs []error
	for _, e := range labs {
		if !e.IsDir() {
			continue
		}
		dir := filepath.Join(stateRoot, e.Name())
		if _, err := os.Lstat(filepath.Join(dir, lockFile)); err != nil {
			continue // no lab's
		}
		f, held, err := tryLock(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		if !held {
			continue
		}
		if err := clean(dir); err != nil {
			errs = append(errs, err)
		} else {
			removed = append(removed, dir)
		}
		f.Close()
	}
	return removed, errors.Join(errs...)
}

// clean removes everything of one lab.
func clean(dir string) error {
	killMarked(dir)
	if os.Geteuid() == 0 {
		if err := unmountBelow(dir); err != nil {
			return err
		}
		if err := freeLoops(dir); err != nil {
			return err
		}
	}
	if err := removeTree(dir); err != nil {
		return fmt.Errorf("host: %w", err)
	}
	return nil
}

// killMarked kills the processes that belong to a node whose state directory
// is dir or below it: what a child of ours started and left behind, which no
// parent-death signal reaches. They carry the node's name in their environment.
func killMarked(dir string) {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	for _, e := range procs {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		// Held before its environment is read: the signal can't reach another
		// process that has got the same id meanwhile.
		p, err := os.FindProcess(pid)
		if err != nil {
			continue
		}
		env, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err == nil && slices.ContainsFunc(bytes.Split(env, []byte{0}), func(v []byte) bool {
			node, ok := strings.CutPrefix(string(v), shim.EnvNode+"=")
			return ok && mount.PathWithinBase(node, dir)
		}) {
			_ = p.Kill()
		}
		_ = p.Release()
	}
}

// unmountBelow takes away mounts below dir in this process's namespace.
func unmountBelow(dir string) error {
	mounts, err := mount.ListProcMounts("/proc/self/mounts")
	if err != nil {
		return fmt.Errorf("host: %w", err)
	}
	for _, m := range slices.Backward(mounts) {
		if mount.PathWithinBase(m.Path, dir) {
			if err := unix.Unmount(m.Path, unix.MNT_DETACH); err != nil {
				return fmt.Errorf("host: unmount %s: %w", m.Path, err)
			}
		}
	}
	return nil
}

// freeLoops detaches the loop devices of files below dir.
func freeLoops(dir string) error {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return err
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // gone meanwhile
		}
		back := strings.TrimSuffix(strings.TrimSpace(string(b)), " (deleted)")
		if !mount.PathWithinBase(back, dir) {
			continue
		}
		name := strings.TrimPrefix(filepath.Dir(filepath.Dir(f)), "/sys/block/")
		dev, err := os.Open("/dev/" + name)
		if err != nil {
			continue
		}
		// While it is in use the kernel frees it at the last close.
		_, err = unix.IoctlRetInt(int(dev.Fd()), unix.LOOP_CLR_FD)
		dev.Close()
		if err != nil && !errors.Is(err, unix.ENXIO) && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("host: LOOP_CLR_FD %s: %w", name, err)
		}
	}
	return nil
}

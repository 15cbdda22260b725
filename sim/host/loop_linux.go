package host

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// loopMajor is the major number of loop devices.
const loopMajor = 7

// loop is a loop device that this process keeps open. It has autoclear: the
// kernel frees it when its last user (this process, a mount) is gone.
type loop struct {
	f     *os.File
	minor uint32
}

// loopAttempts is how often another process may take the free device first.
const loopAttempts = 64

// attachLoop makes a loop device for a file. dir is for a device node where
// /dev lacks one.
func attachLoop(path, dir string) (*loop, error) {
	back, err := os.OpenFile(path, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("host: %w", err)
	}
	defer back.Close()
	return configureLoop(back, path, dir)
}

// configureLoop makes a loop device for an open file, whose path it shows.
func configureLoop(back *os.File, path, dir string) (*loop, error) {
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("host: %w", err)
	}
	defer ctl.Close()
	for range loopAttempts {
		n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("host: LOOP_CTL_GET_FREE: %w", err)
		}
		f, err := openLoop(n, dir, 0)
		if err != nil {
			return nil, err
		}
		cfg := unix.LoopConfig{Fd: uint32(back.Fd())}
		cfg.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
		copy(cfg.Info.File_name[:len(cfg.Info.File_name)-1], path)
		err = unix.IoctlLoopConfigure(int(f.Fd()), &cfg)
		if err == nil {
			l := &loop{f, uint32(n)}
			// The kernel keeps BLKROSET on the device beyond the file that it was
			// for, and who set it may have been killed.
			if err := l.readOnly(false); err != nil {
				l.f.Close()
				return nil, err
			}
			return l, nil
		}
		f.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("host: LOOP_CONFIGURE %s: %w", path, err)
		}
	}
	return nil, fmt.Errorf("host: no free loop device for %s: others took %d", path, loopAttempts)
}

// openLoop opens the nth loop device for reading and writing; flags are further
// ones.
func openLoop(n int, dir string, flags int) (*os.File, error) {
	name := fmt.Sprintf("/dev/loop%d", n)
	f, err := os.OpenFile(name, os.O_RDWR|flags, 0)
	if !errors.Is(err, os.ErrNotExist) {
		return f, err
	}
	// A container's /dev is made once and lacks devices that came later.
	name = fmt.Sprintf("%s/.loop%d", dir, n)
	if err := unix.Mknod(name, unix.S_IFBLK|0o600, int(unix.Mkdev(loopMajor, uint32(n)))); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("host: %s: %w", name, err)
	}
	defer os.Remove(name)
	return os.OpenFile(name, os.O_RDWR|flags, 0)
}

// resize takes over the size of the file.
func (l *loop) resize() error {
	if _, err := unix.IoctlRetInt(int(l.f.Fd()), unix.LOOP_SET_CAPACITY); err != nil {
		return fmt.Errorf("host: LOOP_SET_CAPACITY: %w", err)
	}
	return nil
}

// readOnly makes writes fail with EPERM, or not.
func (l *loop) readOnly(on bool) error {
	v := 0
	if on {
		v = 1
	}
	if err := unix.IoctlSetPointerInt(int(l.f.Fd()), unix.BLKROSET, v); err != nil {
		return fmt.Errorf("host: BLKROSET: %w", err)
	}
	return nil
}

// close lets go of the device. Whoever has its number next can write to it; what
// still uses it can't, if the file refuses writes.
func (l *loop) close() error { return errors.Join(l.readOnly(false), l.f.Close()) }

package scsi

import (
	"errors"
	"syscall"

	"github.com/csilab/csilab/sim/disk"
)

// Capacity is the size of a disk or map in bytes, as its node knows it.
func (s *Stack) Capacity(name string) (int64, bool) {
	if d := s.disks[name]; d != nil {
		return d.Bytes, true
	}
	if m := s.Map(name); m != nil {
		return m.Bytes, true
	}
	return 0, false
}

// ReadAt reads from a disk or map. All of b comes, or an error: EIO, ENXIO,
// ErrQueued.
func (s *Stack) ReadAt(name string, b []byte, off int64) error {
	return s.io(name, off, int64(len(b)), false, func(img disk.Image) error {
		n, err := img.ReadAt(b, off)
		if n == len(b) {
			return nil
		}
		return err
	})
}

// WriteAt writes to a disk or map. Errors: EIO, EPERM (read-only), ENXIO,
// ErrQueued.
func (s *Stack) WriteAt(name string, b []byte, off int64) error {
	return s.io(name, off, int64(len(b)), true, func(img disk.Image) error {
		_, err := img.WriteAt(b, off)
		return err
	})
}

// Sync brings what a disk or map has taken to its medium. Errors: EIO, ENXIO,
// ErrQueued.
func (s *Stack) Sync(name string) error {
	return s.io(name, 0, 0, false, disk.Image.Sync)
}

// io does I/O over a disk, or over the first path of a map that can, of the best
// ones. Errors: EIO, EPERM, ENXIO, ErrQueued.
func (s *Stack) io(name string, off, length int64, write bool, do func(disk.Image) error) error {
	if d := s.disks[name]; d != nil {
		if write && d.ReadOnly {
			return syscall.EPERM
		}
		_, err := s.over(d, nil, off, length, write, do)
		return err
	}
	m := s.Map(name)
	switch {
	case m == nil:
		return syscall.ENXIO
	case m.broken:
		return syscall.EIO
	case m.suspended:
		return ErrQueued // a suspended device holds what comes until it is resumed
	case write && m.ReadOnly:
		return syscall.EPERM
	}
	for _, far := range []bool{false, true} { // the better paths first, as they were seen last
		for _, d := range m.Paths() {
			if d.far != far {
				continue
			}
			// The look may find that the path is another unit's by now.
			if path, err := s.over(d, m, off, length, write, do); path {
				m.recovered()
				return err
			}
		}
	}
	if s.holds(m) {
		return ErrQueued
	}
	return syscall.EIO
}

// over does I/O over one path of a map, or over a disk by itself (as nil). path false: it was the path that failed, another
// may do. Standby ports refuse I/O; a unit that is write-protected or smaller
// than thought is so over every path.
func (s *Stack) over(d *Disk, as *Map, off, length int64, write bool, do func(disk.Image) error) (path bool, err error) {
	c, l := s.look(d)
	if c != Ready || as != nil && d.inMap != as {
		return false, syscall.EIO
	}
	if write && l.ReadOnly || off < 0 || off+length > l.Bytes {
		return true, syscall.EIO
	}
	for again := false; ; again = true {
		if d.handle == nil || d.image != l.Image {
			d.close()
			img, err := s.cfg.SAN.Open(l.Image)
			if err != nil {
				return true, syscall.EIO
			}
			d.handle, d.image = img, l.Image
		}
		err := do(d.handle)
		if err == nil {
			return true, nil
		}
		if again || !errors.Is(err, disk.ErrFenced) && !errors.Is(err, disk.ErrClosed) {
			return true, syscall.EIO
		}
		// The content was given back to an earlier state (promote): the unit is
		// still there, with it.
		d.close()
	}
}

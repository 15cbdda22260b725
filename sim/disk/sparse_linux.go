package disk

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// shareBlocks makes dst share the blocks of src (ioctl_ficlone(2)), which the
// kernel does as of one point in time.
func shareBlocks(dst, src *os.File) bool {
	return unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())) == nil
}

// nextData finds the first range of data from off on (lseek(2), SEEK_DATA).
func nextData(f *os.File, off, size int64) (start, end int64, err error) {
	start, err = unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return size, size, nil
	}
	if err != nil {
		return off, size, nil // no such thing on this filesystem: all is data
	}
	end, err = unix.Seek(int(f.Fd()), start, unix.SEEK_HOLE)
	if err != nil {
		return 0, 0, &os.PathError{Op: "lseek", Path: f.Name(), Err: err}
	}
	return start, min(end, size), nil
}

package disk

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Names in the directory of a file store: images, snapshots, and what is not
// finished (removed when the store is opened).
const (
	imageSuffix = ".img"
	snapSuffix  = ".snap"
	tempPrefix  = ".tmp-"
)

// files is the Store of NewFiles.
type files struct {
	dir string

	mu     sync.Mutex
	images map[string]*fileImage
	closed bool
}

// fileImage is the state of one image. Its lock is held while the file is
// copied, so that operations on one image follow each other; images don't wait
// for each other.
type fileImage struct {
	mu    sync.Mutex
	id    string
	path  string
	snaps map[string]string // snapshot -> path
	epoch int
	gone  bool
}

// NewFiles returns a store of sparse files in a directory, which is made where
// it is missing. The files are the state: a store that is opened on the same
// directory later has the same images and snapshots. Only one store may have a
// directory at a time.
//
// Copies share blocks where the filesystem can (FICLONE), otherwise the data
// is copied and the holes stay holes. A copy that is written to meanwhile is
// done again, and refused with ErrChanging if the writes don't stop: a
// snapshot is of one point in time.
//
// Fence gives the image a new inode. An Image that was opened before fails; a
// loop device on the old inode writes into a file that has no name any more:
// its writes are lost, not refused.
func NewFiles(dir string) (Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("disk: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("disk: %w", err)
	}
	s := &files{dir: dir, images: map[string]*fileImage{}}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if strings.HasPrefix(e.Name(), tempPrefix) {
			if err := os.Remove(path); err != nil {
				return nil, fmt.Errorf("disk: %w", err)
			}
		} else if name, ok := strings.CutSuffix(e.Name(), imageSuffix); ok {
			id, err := unescape(name)
			if err != nil {
				return nil, fmt.Errorf("disk: %s: %w", path, err)
			}
			s.images[id] = &fileImage{id: id, path: path, snaps: map[string]string{}}
		}
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), snapSuffix)
		if !ok {
			continue
		}
		path := filepath.Join(dir, e.Name())
		of, snap, _ := strings.Cut(name, "@")
		id, err1 := unescape(of)
		snapID, err2 := unescape(snap)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("disk: %s: %w", path, err)
		}
		im := s.images[id]
		if im == nil {
			return nil, fmt.Errorf("disk: %s: %w: %q", path, ErrNotFound, id)
		}
		im.snaps[snapID] = path
	}
	return s, nil
}

// escape makes a file name of an id: lower case letters, digits, "-" and "_"
// stay, so that no two ids share a name on a filesystem without cases.
func escape(id string) string {
	var b strings.Builder
	for _, c := range []byte(id) {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02x", c)
		}
	}
	return b.String()
}

func unescape(name string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(name); i++ {
		if name[i] != '%' {
			b.WriteByte(name[i])
			continue
		}
		if i+3 > len(name) {
			return "", fmt.Errorf("%w: file name %q", ErrID, name)
		}
		c, err := strconv.ParseUint(name[i+1:i+3], 16, 8)
		if err != nil {
			return "", fmt.Errorf("%w: file name %q", ErrID, name)
		}
		b.WriteByte(byte(c))
		i += 2
	}
	if b.Len() == 0 || escape(b.String()) != name {
		return "", fmt.Errorf("%w: file name %q", ErrID, name)
	}
	return b.String(), nil
}

// maxName leaves room for two escaped ids in a file name (NAME_MAX is 255).
const maxName = 120

// checkID refuses what has no file name.
func checkID(what, id string) error {
	if n := len(escape(id)); n == 0 || n > maxName {
		return fmt.Errorf("%w: %s %q: must have 1 to %d characters, each other than a-z, 0-9, - and _ counting three times", ErrID, what, id, maxName)
	}
	return nil
}

func (s *files) imagePath(id string) string { return filepath.Join(s.dir, escape(id)+imageSuffix) }

func (s *files) get(id string) (*fileImage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	im := s.images[id]
	if im == nil {
		return nil, fmt.Errorf("%w: %q", ErrNotFound, id)
	}
	return im, nil
}

// lock returns an image that has not been deleted, with its lock held.
func (s *files) lock(id string) (*fileImage, error) {
	im, err := s.get(id)
	if err != nil {
		return nil, err
	}
	im.mu.Lock()
	if im.gone {
		im.mu.Unlock()
		return nil, fmt.Errorf("%w: %q", ErrNotFound, id)
	}
	return im, nil
}

// temp makes a file that is removed again unless it gets its name.
func (s *files) temp() (*os.File, error) { return os.CreateTemp(s.dir, tempPrefix+"*") }

// add makes an image of what fill writes, at least size bytes long.
func (s *files) add(id string, size int64, fill func(*os.File) error) error {
	if err := checkID("id", id); err != nil {
		return err
	}
	if _, err := s.get(id); err == nil {
		return fmt.Errorf("%w: %q", ErrExists, id)
	} else if !errors.Is(err, ErrNotFound) {
		return err
	}
	f, err := s.temp()
	if err != nil {
		return fmt.Errorf("disk: %q: %w", id, err)
	}
	defer os.Remove(f.Name())
	err = fill(f)
	if err == nil && size > 0 {
		err = f.Truncate(size)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("disk: %q: %w", id, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if s.images[id] != nil {
		return fmt.Errorf("%w: %q", ErrExists, id)
	}
	if err := os.Rename(f.Name(), s.imagePath(id)); err != nil {
		return fmt.Errorf("disk: %q: %w", id, err)
	}
	s.images[id] = &fileImage{id: id, path: s.imagePath(id), snaps: map[string]string{}}
	return nil
}

func (s *files) Create(id string, size int64) error {
	if size <= 0 {
		return fmt.Errorf("%w: %q: %d bytes, must be positive", ErrSize, id, size)
	}
	return s.add(id, size, func(*os.File) error { return nil })
}

func (s *files) Open(id string) (Image, error) {
	im, err := s.lock(id)
	if err != nil {
		return nil, err
	}
	defer im.mu.Unlock()
	f, err := os.OpenFile(im.path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("disk: %w", err)
	}
	return &fileHandle{f: f, im: im, epoch: im.epoch}, nil
}

// info is called with the lock held.
func (im *fileImage) info() (Info, error) {
	fi, err := os.Stat(im.path)
	if err != nil {
		return Info{}, fmt.Errorf("disk: %w", err)
	}
	return Info{ID: im.id, Size: fi.Size(), Snapshots: slices.Sorted(maps.Keys(im.snaps))}, nil
}

func (s *files) Stat(id string) (Info, error) {
	im, err := s.lock(id)
	if err != nil {
		return Info{}, err
	}
	defer im.mu.Unlock()
	return im.info()
}

func (s *files) Allocated(id string) (int64, error) {
	im, err := s.lock(id)
	if err != nil {
		return 0, err
	}
	defer im.mu.Unlock()
	var most int64
	for _, path := range append(slices.Collect(maps.Values(im.snaps)), im.path) {
		n, err := allocated(path)
		if err != nil {
			return 0, err
		}
		most = max(most, n)
	}
	return most, nil
}

// allocated sums the ranges of data of a file.
func allocated(path string) (n int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("disk: %w", err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return 0, fmt.Errorf("disk: %w", err)
	}
	for off := int64(0); off < fi.Size(); {
		start, end, err := nextData(f, off, fi.Size())
		if err != nil {
			return 0, fmt.Errorf("disk: %w", err)
		}
		n += max(0, end-start)
		off = max(end, off+1)
	}
	return n, nil
}

func (s *files) Grow(id string, size int64) error {
	im, err := s.lock(id)
	if err != nil {
		return err
	}
	defer im.mu.Unlock()
	info, err := im.info()
	if err != nil {
		return err
	}
	if size < info.Size {
		return fmt.Errorf("%w: %q: %d bytes, has %d already", ErrSize, id, size, info.Size)
	}
	if err := os.Truncate(im.path, size); err != nil {
		return fmt.Errorf("disk: %w", err)
	}
	return nil
}

// copyTo puts a copy of from at path, whole or not at all.
func (s *files) copyTo(from, path string) error {
	f, err := s.temp()
	if err != nil {
		return fmt.Errorf("disk: %w", err)
	}
	defer os.Remove(f.Name())
	if err := errors.Join(copyFile(f, from), f.Close()); err != nil {
		return fmt.Errorf("disk: copy of %s: %w", from, err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("disk: %w", err)
	}
	return nil
}

func (s *files) Snapshot(id, snap string) error {
	if err := checkID("snapshot id", snap); err != nil {
		return err
	}
	im, err := s.lock(id)
	if err != nil {
		return err
	}
	defer im.mu.Unlock()
	if im.snaps[snap] != "" {
		return fmt.Errorf("%w: %q of %q", ErrExists, snap, id)
	}
	path := filepath.Join(s.dir, escape(id)+"@"+escape(snap)+snapSuffix)
	if err := s.copyTo(im.path, path); err != nil {
		return err
	}
	im.snaps[snap] = path
	return nil
}

func (s *files) DeleteSnapshot(id, snap string) error {
	im, err := s.lock(id)
	if err != nil {
		return err
	}
	defer im.mu.Unlock()
	if im.snaps[snap] == "" {
		return fmt.Errorf("%w: snapshot %q of %q", ErrNotFound, snap, id)
	}
	if err := os.Remove(im.snaps[snap]); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("disk: %w", err)
	}
	delete(im.snaps, snap)
	return nil
}

func (s *files) Restore(id, snap, newID string, size int64) error {
	im, err := s.lock(id)
	if err != nil {
		return err
	}
	defer im.mu.Unlock()
	from := im.snaps[snap]
	if from == "" {
		return fmt.Errorf("%w: snapshot %q of %q", ErrNotFound, snap, id)
	}
	return s.addCopy(newID, from, size)
}

func (s *files) Revert(id, snap string) error {
	im, err := s.lock(id)
	if err != nil {
		return err
	}
	defer im.mu.Unlock()
	from := im.snaps[snap]
	if from == "" {
		return fmt.Errorf("%w: snapshot %q of %q", ErrNotFound, snap, id)
	}
	if err := s.copyTo(from, im.path); err != nil {
		return err
	}
	im.epoch++
	return nil
}

func (s *files) Changed(id, since, snap string) ([]Extent, error) {
	im, err := s.lock(id)
	if err != nil {
		return nil, err
	}
	defer im.mu.Unlock()
	if im.snaps[snap] == "" {
		return nil, fmt.Errorf("%w: snapshot %q of %q", ErrNotFound, snap, id)
	}
	to, err := os.Open(im.snaps[snap])
	if err != nil {
		return nil, fmt.Errorf("disk: %w", err)
	}
	defer to.Close()
	var from *os.File
	fi, err := to.Stat()
	if err != nil {
		return nil, fmt.Errorf("disk: %w", err)
	}
	if path := im.snaps[since]; since != "" {
		if path == "" {
			return whole(fi.Size()), nil
		}
		if from, err = os.Open(path); err != nil {
			return nil, fmt.Errorf("disk: %w", err)
		}
		defer from.Close()
	}
	units, err := unitsOfData(to, fi.Size())
	if err == nil && from != nil {
		var more []int64
		more, err = unitsOfData(from, fi.Size())
		units = append(units, more...)
		slices.Sort(units)
		units = slices.Compact(units)
		if err == nil {
			units, err = differing(from, to, units)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("disk: changes of %q: %w", id, err)
	}
	return extents(units, fi.Size()), nil
}

// unitsOfData lists the units of the first size bytes of a file that are not
// holes.
func unitsOfData(f *os.File, size int64) ([]int64, error) {
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	size = min(size, fi.Size())
	var units []int64
	for off := int64(0); off < size; {
		start, end, err := nextData(f, off, size)
		if err != nil {
			return nil, err
		}
		for u := start / ChangeUnit; u*ChangeUnit < end; u++ {
			units = append(units, u)
		}
		off = max(end, off+1)
	}
	return units, nil
}

// differing keeps the units in which two files differ; past its end a file is
// zeros.
func differing(a, b *os.File, units []int64) ([]int64, error) {
	x, y := make([]byte, ChangeUnit), make([]byte, ChangeUnit)
	read := func(f *os.File, buf []byte, u int64) error {
		n, err := f.ReadAt(buf, u*ChangeUnit)
		clear(buf[n:])
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}
	var out []int64
	for _, u := range units {
		if err := errors.Join(read(a, x, u), read(b, y, u)); err != nil {
			return nil, err
		}
		if !bytes.Equal(x, y) {
			out = append(out, u)
		}
	}
	return out, nil
}

func (s *files) Clone(id, newID string, size int64) error {
	im, err := s.lock(id)
	if err != nil {
		return err
	}
	defer im.mu.Unlock()
	return s.addCopy(newID, im.path, size)
}

func (s *files) addCopy(newID, from string, size int64) error {
	fi, err := os.Stat(from)
	if err != nil {
		return fmt.Errorf("disk: %w", err)
	}
	if size != 0 && size < fi.Size() {
		return fmt.Errorf("%w: %q: %d bytes, the source has %d", ErrSize, newID, size, fi.Size())
	}
	return s.add(newID, size, func(f *os.File) error { return copyFile(f, from) })
}

func (s *files) Delete(id string) error {
	im, err := s.lock(id)
	if err != nil {
		return err
	}
	defer im.mu.Unlock()
	if len(im.snaps) > 0 {
		return fmt.Errorf("%w: %q has %d", ErrInUse, id, len(im.snaps))
	}
	if err := os.Remove(im.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("disk: %w", err)
	}
	im.gone = true
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.images, id)
	return nil
}

func (s *files) Fence(id string) error {
	im, err := s.lock(id)
	if err != nil {
		return err
	}
	defer im.mu.Unlock()
	if err := s.copyTo(im.path, im.path); err != nil {
		return err
	}
	im.epoch++
	return nil
}

func (s *files) List() []Info {
	s.mu.Lock()
	all := maps.Clone(s.images)
	s.mu.Unlock()
	out := make([]Info, 0, len(all))
	for _, id := range slices.Sorted(maps.Keys(all)) {
		if info, err := s.Stat(id); err == nil {
			out = append(out, info)
		}
	}
	return out
}

func (s *files) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.images, s.closed = nil, true
	return nil
}

// copyAttempts is how often a copy starts anew because the source was written.
const copyAttempts = 8

// copyFile fills dst with the content of a file as of one point in time.
func copyFile(dst *os.File, from string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	if shareBlocks(dst, src) {
		return nil
	}
	for range copyAttempts {
		before, err := src.Stat()
		if err != nil {
			return err
		}
		if err := dst.Truncate(0); err != nil {
			return err
		}
		if err := copySparse(dst, src, before.Size()); err != nil {
			return err
		}
		after, err := src.Stat()
		if err != nil {
			return err
		}
		if after.ModTime().Equal(before.ModTime()) && after.Size() == before.Size() {
			return nil
		}
	}
	return ErrChanging
}

// copySparse copies size bytes and leaves out what is zero.
func copySparse(dst, src *os.File, size int64) error {
	if err := dst.Truncate(size); err != nil {
		return err
	}
	buf := make([]byte, 1<<20)
	for off := int64(0); off < size; {
		start, end, err := nextData(src, off, size)
		if err != nil {
			return err
		}
		for off = start; off < end; {
			n, err := src.ReadAt(buf[:min(int64(len(buf)), end-off)], off)
			if err != nil && !(errors.Is(err, io.EOF) && n > 0) {
				return err
			}
			for b := buf[:n]; len(b) > 0; {
				l := min(len(b), pageSize)
				if !allZero(b[:l]) {
					if _, err := dst.WriteAt(b[:l], off); err != nil {
						return err
					}
				}
				b, off = b[l:], off+int64(l)
			}
		}
	}
	return nil
}

// fileHandle is an open image.
type fileHandle struct {
	f     *os.File
	im    *fileImage
	epoch int
}

// usable fails after a fence. The lock is not held over the I/O: a write that
// races with a fence goes to the old inode, where it has no effect.
func (h *fileHandle) usable() error {
	h.im.mu.Lock()
	defer h.im.mu.Unlock()
	if h.epoch != h.im.epoch {
		return fmt.Errorf("%w: %q", ErrFenced, h.im.id)
	}
	if h.im.gone {
		return fmt.Errorf("%w: %q was deleted", ErrNotFound, h.im.id)
	}
	return nil
}

func (h *fileHandle) ReadAt(b []byte, off int64) (int, error) {
	if err := h.usable(); err != nil {
		return 0, err
	}
	return h.f.ReadAt(b, off)
}

func (h *fileHandle) WriteAt(b []byte, off int64) (int, error) {
	if err := h.usable(); err != nil {
		return 0, err
	}
	if err := within(h.im.id, off, len(b), h.Size()); err != nil {
		return 0, err
	}
	return h.f.WriteAt(b, off)
}

func (h *fileHandle) Sync() error {
	if err := h.usable(); err != nil {
		return err
	}
	return h.f.Sync()
}

func (h *fileHandle) Size() int64 {
	fi, err := h.f.Stat()
	if err != nil {
		return 0
	}
	return fi.Size()
}

func (h *fileHandle) Path() string { return h.im.path }

func (h *fileHandle) Close() error { return h.f.Close() }

package disk

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
)

// pageSize is the unit of sharing between an image, its snapshots and clones.
const pageSize = 4096

// page is content that is changed in place only by the map that owns it.
type page struct {
	owner *pages
	gen   int64 // of the map when it was last written
	data  [pageSize]byte
}

// pages is the content of one image or snapshot: absent pages are zeros.
type pages struct {
	size int64
	at   map[int64]*page
	// gen counts the snapshots before it: what was written after one has a
	// higher number than what is in it.
	gen int64
}

// copyOf returns a copy that shares all pages. Both sides must copy a page
// before they write to it, so src gives up its ownership too.
func copyOf(src *pages) (kept, fresh *pages) {
	return &pages{src.size, src.at, src.gen}, &pages{src.size, maps.Clone(src.at), src.gen + 1}
}

func (p *pages) read(b []byte, off int64) {
	for len(b) > 0 {
		in := off % pageSize
		n := min(int64(len(b)), pageSize-in)
		if pg := p.at[off/pageSize]; pg != nil {
			copy(b[:n], pg.data[in:])
		} else {
			clear(b[:n])
		}
		b, off = b[n:], off+n
	}
}

func (p *pages) write(b []byte, off int64) {
	for len(b) > 0 {
		in := off % pageSize
		n := min(int64(len(b)), pageSize-in)
		pg := p.at[off/pageSize]
		switch {
		case pg == nil && allZero(b[:n]):
			// stays sparse
			b, off = b[n:], off+n
			continue
		case pg == nil:
			pg = &page{owner: p}
			p.at[off/pageSize] = pg
		case pg.owner != p:
			pg = &page{owner: p, data: pg.data}
			p.at[off/pageSize] = pg
		}
		pg.gen = p.gen
		copy(pg.data[in:], b[:n])
		b, off = b[n:], off+n
	}
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

type memImage struct {
	mu    sync.RWMutex
	data  *pages
	snaps map[string]*pages
	gens  map[string]int64 // of snapshots, deleted ones too (the last maxGens)
	epoch int              // counts fences
	gone  bool             // deleted: handles keep the content, as an open file does
}

// memory is the Store of NewMemory.
type memory struct {
	mu     sync.Mutex
	images map[string]*memImage
	closed bool
}

// NewMemory returns a store in memory. Images are sparse: they take space for
// the 4 KiB pages that were written, and a snapshot or clone shares them.
func NewMemory() Store { return &memory{images: map[string]*memImage{}} }

func (s *memory) get(id string) (*memImage, error) {
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
func (s *memory) lock(id string) (*memImage, error) {
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

func (s *memory) add(id string, im *memImage) error {
	if id == "" {
		return fmt.Errorf("%w: empty", ErrID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if s.images[id] != nil {
		return fmt.Errorf("%w: %q", ErrExists, id)
	}
	s.images[id] = im
	return nil
}

// maxGens is of how many snapshots an image knows what was written since.
const maxGens = 256

func newImage(p *pages) *memImage {
	return &memImage{data: p, snaps: map[string]*pages{}, gens: map[string]int64{}}
}

func (s *memory) Create(id string, size int64) error {
	if size <= 0 {
		return fmt.Errorf("%w: %q: %d bytes, must be positive", ErrSize, id, size)
	}
	return s.add(id, newImage(&pages{size: size, at: map[int64]*page{}}))
}

func (s *memory) Open(id string) (Image, error) {
	im, err := s.get(id)
	if err != nil {
		return nil, err
	}
	im.mu.RLock()
	defer im.mu.RUnlock()
	return &memHandle{im: im, id: id, epoch: im.epoch}, nil
}

func (im *memImage) info(id string) Info {
	im.mu.RLock()
	defer im.mu.RUnlock()
	return Info{ID: id, Size: im.data.size, Snapshots: slices.Sorted(maps.Keys(im.snaps))}
}

func (s *memory) Stat(id string) (Info, error) {
	im, err := s.get(id)
	if err != nil {
		return Info{}, err
	}
	return im.info(id), nil
}

func (s *memory) Allocated(id string) (int64, error) {
	im, err := s.get(id)
	if err != nil {
		return 0, err
	}
	im.mu.RLock()
	defer im.mu.RUnlock()
	n := int64(len(im.data.at))
	for _, snap := range im.snaps {
		for at, pg := range snap.at {
			if im.data.at[at] != pg {
				n++ // twice, where two snapshots share what the image changed
			}
		}
	}
	return n * pageSize, nil
}

func (s *memory) Grow(id string, size int64) error {
	im, err := s.lock(id)
	if err != nil {
		return err
	}
	defer im.mu.Unlock()
	if size < im.data.size {
		return fmt.Errorf("%w: %q: %d bytes, has %d already", ErrSize, id, size, im.data.size)
	}
	im.data.size = size
	return nil
}

func (s *memory) Snapshot(id, snap string) error {
	if snap == "" {
		return fmt.Errorf("%w: empty snapshot id of %q", ErrID, id)
	}
	im, err := s.lock(id)
	if err != nil {
		return err
	}
	defer im.mu.Unlock()
	if im.snaps[snap] != nil {
		return fmt.Errorf("%w: %q of %q", ErrExists, snap, id)
	}
	im.snaps[snap], im.data = copyOf(im.data)
	im.gens[snap] = im.snaps[snap].gen
	for old, gen := range im.gens {
		if len(im.gens) > maxGens && im.snaps[old] == nil && gen <= im.data.gen-maxGens {
			delete(im.gens, old)
		}
	}
	return nil
}

func (s *memory) Revert(id, snap string) error {
	im, err := s.lock(id)
	if err != nil {
		return err
	}
	defer im.mu.Unlock()
	src := im.snaps[snap]
	if src == nil {
		return fmt.Errorf("%w: snapshot %q of %q", ErrNotFound, snap, id)
	}
	gen := im.data.gen + 1
	im.snaps[snap], im.data = copyOf(src)
	im.data.gen = gen
	im.epoch++
	// What was written between the snapshot and later ones is undone without
	// being written.
	for other, g := range im.gens {
		if g > src.gen {
			delete(im.gens, other)
		}
	}
	return nil
}

func (s *memory) Changed(id, since, snap string) ([]Extent, error) {
	im, err := s.get(id)
	if err != nil {
		return nil, err
	}
	im.mu.RLock()
	defer im.mu.RUnlock()
	to := im.snaps[snap]
	if to == nil {
		return nil, fmt.Errorf("%w: snapshot %q of %q", ErrNotFound, snap, id)
	}
	gen, known := im.gens[since]
	if since == "" {
		gen, known = -1, true
	}
	if !known || gen > to.gen {
		return whole(to.size), nil
	}
	var units []int64
	for n, pg := range to.at {
		if pg.gen > gen {
			units = append(units, n*pageSize/ChangeUnit)
		}
	}
	return extents(units, to.size), nil
}

func whole(size int64) []Extent { return []Extent{{0, size}} }

// extents joins units, in any order and given any number of times.
func extents(units []int64, size int64) []Extent {
	slices.Sort(units)
	var out []Extent
	for _, u := range slices.Compact(units) {
		start := u * ChangeUnit
		length := min(ChangeUnit, size-start)
		if length <= 0 {
			continue
		}
		if n := len(out); n > 0 && out[n-1].Start+out[n-1].Length == start {
			out[n-1].Length += length
			continue
		}
		out = append(out, Extent{start, length})
	}
	return out
}

func (s *memory) DeleteSnapshot(id, snap string) error {
	im, err := s.lock(id)
	if err != nil {
		return err
	}
	defer im.mu.Unlock()
	if im.snaps[snap] == nil {
		return fmt.Errorf("%w: snapshot %q of %q", ErrNotFound, snap, id)
	}
	delete(im.snaps, snap)
	return nil
}

func (s *memory) Restore(id, snap, newID string, size int64) error {
	im, err := s.lock(id)
	if err != nil {
		return err
	}
	src := im.snaps[snap]
	if src == nil {
		im.mu.Unlock()
		return fmt.Errorf("%w: snapshot %q of %q", ErrNotFound, snap, id)
	}
	var fresh *pages
	im.snaps[snap], fresh = copyOf(src)
	im.mu.Unlock()
	return s.addCopy(newID, fresh, size)
}

func (s *memory) Clone(id, newID string, size int64) error {
	im, err := s.lock(id)
	if err != nil {
		return err
	}
	var fresh *pages
	im.data, fresh = copyOf(im.data)
	im.mu.Unlock()
	return s.addCopy(newID, fresh, size)
}

// addCopy adds an image of the given size, or of the source's when size is 0.
func (s *memory) addCopy(id string, p *pages, size int64) error {
	if size == 0 {
		size = p.size
	}
	if size < p.size {
		return fmt.Errorf("%w: %q: %d bytes, the source has %d", ErrSize, id, size, p.size)
	}
	p.size = size
	return s.add(id, newImage(p))
}

func (s *memory) Delete(id string) error {
	im, err := s.lock(id)
	if err != nil {
		return err
	}
	defer im.mu.Unlock()
	if len(im.snaps) > 0 {
		return fmt.Errorf("%w: %q has %d", ErrInUse, id, len(im.snaps))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.images, id)
	im.gone = true
	return nil
}

func (s *memory) Fence(id string) error {
	im, err := s.lock(id)
	if err != nil {
		return err
	}
	defer im.mu.Unlock()
	im.epoch++
	return nil
}

func (s *memory) List() []Info {
	s.mu.Lock()
	all := maps.Clone(s.images)
	s.mu.Unlock()
	out := make([]Info, 0, len(all))
	for _, id := range slices.Sorted(maps.Keys(all)) {
		out = append(out, all[id].info(id))
	}
	return out
}

func (s *memory) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.images, s.closed = nil, true
	return nil
}

// memHandle is an open image. After a fence its reads and writes fail.
type memHandle struct {
	im    *memImage
	id    string
	epoch int

	mu     sync.Mutex
	closed bool
}

// usable is called with im.mu held.
func (h *memHandle) usable() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return fmt.Errorf("%w: handle of %q", ErrClosed, h.id)
	case h.epoch != h.im.epoch:
		return fmt.Errorf("%w: %q", ErrFenced, h.id)
	case h.im.gone:
		return fmt.Errorf("%w: %q was deleted", ErrNotFound, h.id)
	}
	return nil
}

func (h *memHandle) ReadAt(b []byte, off int64) (int, error) {
	h.im.mu.RLock()
	defer h.im.mu.RUnlock()
	if err := h.usable(); err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, fmt.Errorf("disk: %q: negative offset %d", h.id, off)
	}
	if off >= h.im.data.size {
		return 0, io.EOF
	}
	n := min(int64(len(b)), h.im.data.size-off)
	h.im.data.read(b[:n], off)
	if n < int64(len(b)) {
		return int(n), io.EOF
	}
	return int(n), nil
}

func (h *memHandle) WriteAt(b []byte, off int64) (int, error) {
	h.im.mu.Lock()
	defer h.im.mu.Unlock()
	if err := h.usable(); err != nil {
		return 0, err
	}
	if err := within(h.id, off, len(b), h.im.data.size); err != nil {
		return 0, err
	}
	h.im.data.write(b, off)
	return len(b), nil
}

// within refuses a write that is not wholly inside the image.
func within(id string, off int64, n int, size int64) error {
	if off < 0 || off > size || int64(n) > size-off {
		return fmt.Errorf("%w: write of %d bytes at %d of %q, which has %d", ErrSize, n, off, id, size)
	}
	return nil
}

func (h *memHandle) Sync() error {
	h.im.mu.RLock()
	defer h.im.mu.RUnlock()
	return h.usable()
}

func (h *memHandle) Size() int64 {
	h.im.mu.RLock()
	defer h.im.mu.RUnlock()
	return h.im.data.size
}

func (h *memHandle) Path() string { return "" }

func (h *memHandle) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	return nil
}

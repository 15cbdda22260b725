package san

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/disk"
)

// contents is what the volumes of all arrays hold. It implements
// wsapi.Contents.
type contents struct {
	store disk.Store
	// book asks for the space that a write needs; nil: nobody counts it.
	book func(c *content, off int64, length int) error
	// later: what is dropped is deleted once that is written down, as a process
	// that is killed before still needs it.
	later bool

	mu     sync.Mutex
	images map[string]*content // by the array's name for it
	dead   []string            // ids in the store that nobody needs any more
	closed bool
	arrays []*Array // fixed after the start
}

// content is that of one volume.
type content struct {
	name string
	of   *Array // whose volume it was made for

	space   sync.Mutex // guards these two; never held over I/O
	written units      // written to
	fresh   units      // of them, since the last copy that was made of it

	// still is held for reading by I/O, and for writing while the content must
	// not change or is exchanged.
	still   sync.RWMutex
	id      string // in the store
	version int    // of the id
	size    int64  // bytes; the store may have more, never less
	gone    bool
	file    disk.Image // nil while nobody has it open
	users   int        // handles
}

func newContents(store disk.Store, later bool) *contents {
	return &contents{store: store, later: later, images: map[string]*content{}}
}

// ErrNoContent is wrapped where an image does not exist, or does not any more.
var ErrNoContent = errors.New("san: no such content")

// Apply implements wsapi.Contents.
func (s *contents) Apply(_ context.Context, ops []array.ContentOp) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return disk.ErrClosed
	}
	defer s.freeze(ops)()
	var undo []func()
	var dead []string
	defer func() {
		if err != nil {
			for _, u := range slices.Backward(undo) {
				u()
			}
			return
		}
		s.bury(dead)
	}()
	for _, o := range ops {
		back, old, err := s.one(o)
		if err != nil {
			return fmt.Errorf("san: %s %s: %w", o.Do, o.Image, err)
		}
		if back != nil {
			undo = append(undo, back)
		}
		if old != "" {
			dead = append(dead, old)
		}
	}
	return nil
}

// freeze stops I/O to all content that operations copy from or change, until
// the returned function is called.
func (s *contents) freeze(ops []array.ContentOp) func() {
	names := map[string]bool{}
	for _, o := range ops {
		switch o.Do {
		case array.CopyImage, array.OverwriteImage, array.GrowImage, array.DropImage:
			names[o.Image], names[o.From] = true, true
		}
	}
	var still []*content
	for _, n := range slices.Sorted(maps.Keys(names)) {
		if c := s.images[n]; c != nil {
			c.still.Lock()
			still = append(still, c)
		}
	}
	return func() {
		for _, c := range still {
			c.still.Unlock()
		}
	}
}

func (s *contents) of(name string) (*content, error) {
	if c := s.images[name]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("%w: %q", ErrNoContent, name)
}

// one does an operation: how it is undone, and what of the store nobody needs
// once it holds.
func (s *contents) one(o array.ContentOp) (undo func(), dead string, err error) {
	size := o.SizeMiB << 20
	switch o.Do {
	case array.MakeImage, array.CopyImage:
		if s.images[o.Image] != nil {
			return nil, "", disk.ErrExists
		}
		if o.Do == array.MakeImage {
			err = s.store.Create(o.Image, size)
		} else {
			err = s.clone(o.From, o.Image, size)
		}
		if err != nil {
			return nil, "", err
		}
		c := &content{name: o.Image, of: s.owner(o.Image), id: o.Image, size: size}
		forget := func() {}
		if o.Do == array.CopyImage {
			c.written, forget = s.images[o.From].copied()
		}
		s.images[o.Image] = c
		return func() { forget(); delete(s.images, o.Image); _ = s.store.Delete(o.Image) }, "", nil
	case array.OverwriteImage:
		c, err := s.of(o.Image)
		if err != nil {
			return nil, "", err
		}
		was, wasVersion, wasSize := c.id, c.version, c.size
		id := versioned(c.name, c.version+1)
		if err := s.clone(o.From, id, size); err != nil {
			return nil, "", err
		}
		if err := s.exchange(c, id); err != nil {
			_ = s.store.Delete(id)
			return nil, "", err
		}
		c.version, c.size = c.version+1, size
		n, forget := s.images[o.From].copied()
		c.space.Lock()
		hadWritten, hadFresh := c.written, c.fresh
		c.written, c.fresh = n, nil
		c.space.Unlock()
		return func() {
			c.space.Lock()
			c.written, c.fresh = hadWritten, hadFresh
			c.space.Unlock()
			forget()
			_ = s.exchange(c, was) // what was open a moment ago
			c.version, c.size = wasVersion, wasSize
			_ = s.store.Delete(id)
		}, was, nil
	case array.GrowImage:
		c, err := s.of(o.Image)
		if err != nil {
			return nil, "", err
		}
		if size < c.size {
			return nil, "", fmt.Errorf("%w: %d bytes, it has %d", disk.ErrSize, size, c.size)
		}
		info, err := s.store.Stat(c.id)
		if err == nil && info.Size < size { // an undone one left it larger
			err = s.store.Grow(c.id, size)
		}
		if err != nil {
			return nil, "", err
		}
		was := c.size
		c.size = size
		return func() { c.size = was }, "", nil
	case array.DropImage:
		c, err := s.of(o.Image)
		if err != nil {
			return nil, "", err
		}
		delete(s.images, o.Image)
		c.gone = true
		return func() { s.images[o.Image], c.gone = c, false }, c.id, nil
	case array.ShareImage, array.SplitImage: // the core says which image a volume has
		if s.images[o.Image] == nil {
			return nil, "", fmt.Errorf("%w: %q", ErrNoContent, o.Image)
		}
		return nil, "", nil
	}
	return nil, "", fmt.Errorf("san: no such action %q", o.Do)
}

// copied is what is written to of content that is copied. From now on it
// differs from the copy where it is written to, unless forget is called.
func (c *content) copied() (written units, forget func()) {
	c.space.Lock()
	defer c.space.Unlock()
	had := c.fresh
	c.fresh = nil
	return slices.Clone(c.written), func() {
		c.space.Lock()
		defer c.space.Unlock()
		c.fresh = had
	}
}

// owner is the array whose volume content is made for: its serial number begins
// the name.
func (s *contents) owner(image string) *Array {
	for _, a := range s.arrays {
		if strings.HasPrefix(image, a.prefix()) {
			return a
		}
	}
	return nil
}

// clone copies content to a new id of the store, which may become larger there
// after a growth that was undone.
func (s *contents) clone(from, id string, size int64) error {
	c, err := s.of(from)
	if err != nil {
		return err
	}
	if size < c.size {
		return fmt.Errorf("%w: %d bytes, the source has %d", disk.ErrSize, size, c.size)
	}
	info, err := s.store.Stat(c.id)
	if err != nil {
		return err
	}
	return s.store.Clone(c.id, id, max(size, info.Size))
}

// versioned is the id in the store of content that was exchanged n times.
func versioned(name string, n int) string {
	if n == 0 {
		return name
	}
	return fmt.Sprintf("%s_%d", name, n)
}

// exchange lets content be that of another id. I/O is stopped.
func (s *contents) exchange(c *content, id string) error {
	if c.file != nil {
		f, err := s.store.Open(id)
		if err != nil {
			return err
		}
		c.file.Close()
		c.file = f
	}
	c.id = id
	return nil
}

// bury deletes what nobody needs any more, or notes that it has to be.
func (s *contents) bury(ids []string) {
	if s.later {
		s.dead = append(s.dead, ids...)
		return
	}
	for _, id := range ids {
		_ = s.store.Delete(id) // fails where the store is ending
	}
}

// kept is what of the content has to be written down, and what can be deleted
// once it is.
func (s *contents) kept() (out map[string]storedContent, dead []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out = make(map[string]storedContent, len(s.images))
	for name, c := range s.images {
		c.space.Lock()
		out[name] = storedContent{c.version, c.size, slices.Clone(c.written), slices.Clone(c.fresh)}
		c.space.Unlock()
	}
	return out, slices.Clone(s.dead)
}

// sweep deletes ids that were dead when the state was written.
func (s *contents) sweep(ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		_ = s.store.Delete(id)
	}
	s.dead = slices.DeleteFunc(s.dead, func(id string) bool { return slices.Contains(ids, id) })
}

// storedContent is where content is in the store.
type storedContent struct {
	Version int   `json:"version,omitempty"`
	Size    int64 `json:"size"`
	Written units `json:"written,omitempty"`
	Fresh   units `json:"fresh,omitempty"`
}

// restore finds content again, and deletes what a process that was killed left
// in the store under the names of the arrays.
func (s *contents) restore(from map[string]storedContent) error {
	needed := map[string]bool{}
	for name, k := range from {
		id := versioned(name, k.Version)
		info, err := s.store.Stat(id)
		if err != nil {
			return err
		}
		if info.Size < k.Size {
			return fmt.Errorf("%w: %q has %d bytes, %d in the state", disk.ErrSize, id, info.Size, k.Size)
		}
		s.images[name] = &content{name: name, of: s.owner(name), id: id, version: k.Version, size: k.Size, written: k.Written, fresh: k.Fresh}
		needed[id] = true
	}
	for _, i := range s.store.List() {
		if s.owner(i.ID) != nil && !needed[i.ID] {
			if err := s.store.Delete(i.ID); err != nil {
				return err
			}
		}
	}
	return nil
}

// close ends all I/O.
func (s *contents) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, c := range s.images {
		c.still.Lock()
		c.gone = true
		if c.file != nil {
			c.file.Close()
			c.file = nil
		}
		c.still.Unlock()
	}
	clear(s.images)
}

// open opens content by name.
func (s *contents) open(name string) (disk.Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.of(name)
	if err != nil {
		return nil, err
	}
	c.still.Lock()
	defer c.still.Unlock()
	if c.file == nil {
		if c.file, err = s.store.Open(c.id); err != nil {
			return nil, fmt.Errorf("san: %w", err)
		}
	}
	c.users++
	return &handle{s: s, c: c}, nil
}

// handle is open content.
type handle struct {
	s    *contents
	c    *content
	once sync.Once
	over bool // under c.still
}

// usable returns what to do I/O on. c.still is held.
func (h *handle) usable() (disk.Image, error) {
	switch {
	case h.over:
		return nil, fmt.Errorf("%w: handle of %q", disk.ErrClosed, h.c.name)
	case h.c.gone:
		return nil, fmt.Errorf("%w: %q", ErrNoContent, h.c.name)
	}
	return h.c.file, nil
}

func (h *handle) ReadAt(b []byte, off int64) (int, error) {
	h.c.still.RLock()
	defer h.c.still.RUnlock()
	f, err := h.usable()
	if err != nil {
		return 0, err
	}
	if off >= h.c.size {
		return 0, io.EOF
	}
	if n := h.c.size - off; int64(len(b)) > n {
		m, err := f.ReadAt(b[:n], off)
		if err == nil {
			err = io.EOF
		}
		return m, err
	}
	return f.ReadAt(b, off)
}

// WriteAt is refused with syscall.ENOSPC where the array has no space for it.
func (h *handle) WriteAt(b []byte, off int64) (int, error) {
	if h.s.book != nil && off+int64(len(b)) <= h.Size() {
		if err := h.s.book(h.c, off, len(b)); err != nil {
			return 0, err
		}
	}
	h.c.still.RLock()
	defer h.c.still.RUnlock()
	f, err := h.usable()
	if err != nil {
		return 0, err
	}
	if off < 0 || off+int64(len(b)) > h.c.size {
		return 0, fmt.Errorf("%w: %q: a write of %d bytes at %d, the content has %d", disk.ErrSize, h.c.name, len(b), off, h.c.size)
	}
	return f.WriteAt(b, off)
}

func (h *handle) Sync() error {
	h.c.still.RLock()
	defer h.c.still.RUnlock()
	f, err := h.usable()
	if err != nil {
		return err
	}
	return f.Sync()
}

func (h *handle) Size() int64 {
	h.c.still.RLock()
	defer h.c.still.RUnlock()
	return h.c.size
}

// Path is where the content is now; replaced content is in another file.
func (h *handle) Path() string {
	h.c.still.RLock()
	defer h.c.still.RUnlock()
	if h.c.file == nil {
		return ""
	}
	return h.c.file.Path()
}

func (h *handle) Close() error {
	h.once.Do(func() {
		h.c.still.Lock()
		defer h.c.still.Unlock()
		h.over = true
		if h.c.users--; h.c.users == 0 && h.c.file != nil {
			h.c.file.Close()
			h.c.file = nil
		}
	})
	return nil
}

package disk

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
)

// ErrMedium is what I/O on a damaged range gets: a medium error.
var ErrMedium = errors.New("disk: medium error")

// Direction of I/O that fails.
type Direction int

// The directions.
const (
	ReadsAndWrites Direction = iota
	Reads
	Writes
)

// Damage spoils the content of images, by id, for whoever opens them through
// Wrap. The images themselves stay whole. It is safe for concurrent use; the
// zero value is whole.
type Damage struct {
	any atomic.Bool // there is damage: what is whole costs no lock
	mu  sync.Mutex
	by  map[string]*spoiled
	cut bool
}

// spoiled is the damage of one image.
type spoiled struct {
	bad   []badExtent
	flip  map[int64]byte
	blank bool // reads return zeros
	short bool // reads return nothing
}

type badExtent struct {
	Extent
	dir Direction
}

func (x badExtent) touches(off int64, n int, d Direction) bool {
	return (x.dir == ReadsAndWrites || x.dir == d) && off < x.Start+x.Length && off+int64(n) > x.Start
}

func (d *Damage) of(id string) *spoiled {
	if d.by == nil {
		d.by = map[string]*spoiled{}
	}
	if d.by[id] == nil {
		d.by[id] = &spoiled{}
	}
	d.any.Store(true)
	return d.by[id]
}

// FailRange makes I/O of a direction that touches a part of an image fail.
func (d *Damage) FailRange(id string, e Extent, dir Direction) {
	d.mu.Lock()
	defer d.mu.Unlock()
	x := d.of(id)
	x.bad = append(x.bad, badExtent{e, dir})
}

// Flip makes the byte at off read as changed by mask, until it is written.
func (d *Damage) Flip(id string, off int64, mask byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	x := d.of(id)
	if x.flip == nil {
		x.flip = map[int64]byte{}
	}
	x.flip[off] ^= mask
}

// Blank makes all of an image read as zeros, as a device does whose mapping is
// not there yet; writes go through.
func (d *Damage) Blank(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.of(id).blank = true
}

// Silence makes reads of an image return nothing: it is a device that says it
// has no size, as one does that was found while its paths were down. A node
// that knows its size already gets errors.
func (d *Damage) Silence(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.of(id).short = true
}

// Heal takes all damage of an image back.
func (d *Damage) Heal(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.by, id)
	d.any.Store(d.cut || len(d.by) > 0)
}

// Cut makes all I/O through the damage fail, or ends that: the path to the
// storage is lost.
func (d *Damage) Cut(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cut = on
	d.any.Store(d.cut || len(d.by) > 0)
}

// Wrap is an image as seen through the damage.
func (d *Damage) Wrap(id string, img Image) Image { return damaged{img, d, id} }

type damaged struct {
	Image
	d  *Damage
	id string
}

// fails says whether I/O fails. The lock is held.
func (i damaged) fails(off int64, n int, dir Direction) bool {
	if i.d.cut {
		return true
	}
	if x := i.d.by[i.id]; x != nil {
		for _, b := range x.bad {
			if b.touches(off, n, dir) {
				return true
			}
		}
	}
	return false
}

func (i damaged) ReadAt(b []byte, off int64) (int, error) {
	if !i.d.any.Load() {
		return i.Image.ReadAt(b, off)
	}
	i.d.mu.Lock()
	defer i.d.mu.Unlock()
	if i.fails(off, len(b), Reads) {
		return 0, ErrMedium
	}
	x := i.d.by[i.id]
	if x == nil {
		return i.Image.ReadAt(b, off)
	}
	if x.short {
		return 0, io.EOF
	}
	n, err := i.Image.ReadAt(b, off)
	if x.blank {
		clear(b[:n])
	}
	for at, mask := range x.flip {
		if at >= off && at < off+int64(n) {
			b[at-off] ^= mask
		}
	}
	return n, err
}

func (i damaged) WriteAt(b []byte, off int64) (int, error) {
	if !i.d.any.Load() {
		return i.Image.WriteAt(b, off)
	}
	i.d.mu.Lock()
	defer i.d.mu.Unlock()
	if i.fails(off, len(b), Writes) {
		return 0, ErrMedium
	}
	x := i.d.by[i.id]
	if x == nil {
		return i.Image.WriteAt(b, off)
	}
	n, err := i.Image.WriteAt(b, off)
	for at := range x.flip {
		if at >= off && at < off+int64(n) {
			delete(x.flip, at)
		}
	}
	return n, err
}

// Size is 0 while the image returns nothing.
func (i damaged) Size() int64 {
	i.d.mu.Lock()
	x := i.d.by[i.id]
	silent := x != nil && x.short
	i.d.mu.Unlock()
	if silent {
		return 0
	}
	return i.Image.Size()
}

// Sync fails where the path is lost.
func (i damaged) Sync() error {
	i.d.mu.Lock()
	cut := i.d.cut
	i.d.mu.Unlock()
	if cut {
		return ErrMedium
	}
	return i.Image.Sync()
}

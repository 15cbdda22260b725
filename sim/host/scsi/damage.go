package scsi

import (
	"cmp"
	"slices"
	"sync"
	"syscall"

	"github.com/csilab/csilab/sim/disk"
)

// Damage stands between nodes and a storage network and spoils the content of
// logical units, named by their image, for whoever reads them through it. The
// image itself stays whole. It is safe for concurrent use.
type Damage struct {
	SAN

	mu   sync.Mutex
	bad  map[string][]extent
	flip map[string]map[int64]byte
}

type extent struct{ off, end int64 }

// NewDamage returns a network that is whole so far.
func NewDamage(san SAN) *Damage {
	return &Damage{SAN: san, bad: map[string][]extent{}, flip: map[string]map[int64]byte{}}
}

// FailRange makes I/O that touches a part of an image fail: a medium error, which
// is the same over every path. length is in bytes.
func (d *Damage) FailRange(image string, off, length int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bad[image] = append(d.bad[image], extent{off, off + length})
}

// Flip makes the byte at off read as changed by mask, until it is written.
func (d *Damage) Flip(image string, off int64, mask byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.flip[image] == nil {
		d.flip[image] = map[int64]byte{}
	}
	d.flip[image][off] ^= mask
}

// Heal takes all damage of an image back.
func (d *Damage) Heal(image string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.bad, image)
	delete(d.flip, image)
}

// LUN is what a stack asks per I/O; see SAN.
func (d *Damage) LUN(initiator string, t Target, number int) (LUN, error) {
	if one, ok := d.SAN.(oneLUN); ok {
		return one.LUN(initiator, t, number)
	}
	luns, err := d.LUNs(initiator, t)
	if err != nil {
		return LUN{}, err
	}
	return pick(luns, number)
}

// pick finds a unit in a list that is in order. Errors: ErrNoLUN.
func pick(luns []LUN, number int) (LUN, error) {
	i, ok := slices.BinarySearchFunc(luns, number, func(l LUN, n int) int { return cmp.Compare(l.Number, n) })
	if !ok {
		return LUN{}, ErrNoLUN
	}
	return luns[i], nil
}

// Open implements SAN.
func (d *Damage) Open(image string) (disk.Image, error) {
	img, err := d.SAN.Open(image)
	if err != nil {
		return nil, err
	}
	return damagedImage{img, d, image}, nil
}

// damagedImage is an image as seen through damage.
type damagedImage struct {
	disk.Image
	d  *Damage
	id string
}

func (i damagedImage) broken(off int64, n int) bool {
	for _, x := range i.d.bad[i.id] {
		if off < x.end && off+int64(n) > x.off {
			return true
		}
	}
	return false
}

func (i damagedImage) ReadAt(b []byte, off int64) (int, error) {
	i.d.mu.Lock()
	defer i.d.mu.Unlock()
	if i.broken(off, len(b)) {
		return 0, syscall.EIO
	}
	n, err := i.Image.ReadAt(b, off)
	for at, mask := range i.d.flip[i.id] {
		if at >= off && at < off+int64(n) {
			b[at-off] ^= mask
		}
	}
	return n, err
}

func (i damagedImage) WriteAt(b []byte, off int64) (int, error) {
	i.d.mu.Lock()
	defer i.d.mu.Unlock()
	if i.broken(off, len(b)) {
		return 0, syscall.EIO
	}
	n, err := i.Image.WriteAt(b, off)
	for at := range i.d.flip[i.id] {
		if at >= off && at < off+int64(n) {
			delete(i.d.flip[i.id], at)
		}
	}
	return n, err
}

package scsi

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/csilab/csilab/sim/disk"
)

// Damage stands between nodes and a storage network and spoils the content of
// logical units, named by their image, for whoever reads them through it. The
// image itself stays whole. It is safe for concurrent use.
type Damage struct {
	SAN
	*disk.Damage

	mu    sync.Mutex
	late  time.Duration
	first map[string]time.Time // when a unit was to be seen first, by WWN
}

// NewDamage returns a network that is whole so far.
func NewDamage(san SAN) *Damage { return DamageBy(san, &disk.Damage{}) }

// DamageBy returns a network whose units are spoiled as d says.
func DamageBy(san SAN, d *disk.Damage) *Damage {
	return &Damage{SAN: san, Damage: d, first: map[string]time.Time{}}
}

// FailRange makes I/O that touches a part of an image fail: a medium error, which
// is the same over every path. length is in bytes.
func (d *Damage) FailRange(image string, off, length int64) {
	d.Damage.FailRange(image, disk.Extent{Start: off, Length: length}, disk.ReadsAndWrites)
}

// Late makes units show up only so long after somebody looked for them first,
// as an array's or a switch's tables may be behind; 0 ends that. Units that were
// seen before stay.
func (d *Damage) Late(by time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.late = by
}

// hidden says whether a unit is not to be seen yet.
func (d *Damage) hidden(l LUN) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	at, ok := d.first[l.WWN]
	if !ok {
		// One that is known to be late counts from its first look.
		at = now.Add(d.late)
		d.first[l.WWN] = at
	}
	return d.late > 0 && now.Before(at)
}

// LUNs implements SAN.
func (d *Damage) LUNs(initiator string, t Target) ([]LUN, error) {
	luns, err := d.SAN.LUNs(initiator, t)
	return slices.DeleteFunc(luns, d.hidden), err
}

// LUN is what a stack asks per I/O; see SAN.
func (d *Damage) LUN(initiator string, t Target, number int) (LUN, error) {
	if one, ok := d.SAN.(oneLUN); ok {
		l, err := one.LUN(initiator, t, number)
		if err == nil && d.hidden(l) {
			return LUN{}, ErrNoLUN
		}
		return l, err
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
	return d.Wrap(image, img), nil
}

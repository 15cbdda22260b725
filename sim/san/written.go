package san

import (
	"fmt"
	"syscall"

	"github.com/csilab/csilab/sim/array"
)

// unitBytes is what space is booked in.
const unitBytes = array.UnitMiB << 20

// units are the units of content that something is true of, as bits. The bytes
// are as many as they need to be.
type units []byte

func (u units) has(i int64) bool { return i/8 < int64(len(u)) && u[i/8]>>(i%8)&1 == 1 }

func (u *units) add(i int64) {
	for int64(len(*u)) <= i/8 {
		*u = append(*u, 0)
	}
	(*u)[i/8] |= 1 << (i % 8)
}

// booked says whether the array knows already that a range is written to.
func (c *content) booked(off int64, length int) bool {
	c.space.Lock()
	defer c.space.Unlock()
	for i := off / unitBytes; i*unitBytes < off+int64(length); i++ {
		if !c.fresh.has(i) {
			return false
		}
	}
	return true
}

// book asks the arrays for the space that a write needs. The volume is full
// where there is none; what hosts make of that is EIO or ENOSPC. Unverified:
// when the array of the secondary volume has none, the write is let pass; the
// real group stops.
func (s *SAN) book(c *content, off int64, length int) error {
	if off < 0 || length == 0 || c.booked(off, length) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c.space.Lock()
	defer c.space.Unlock()
	var first, again []int64
	for i := off / unitBytes; i*unitBytes < off+int64(length); i++ {
		switch {
		case c.fresh.has(i):
		case c.written.has(i):
			again = append(again, i)
		default:
			first = append(first, i)
		}
	}
	wrote := func(a *Array) error {
		return a.core.Wrote(s.now(), c.name, int64(len(first))*array.UnitMiB, int64(len(again))*array.UnitMiB)
	}
	if err := wrote(c.of); err != nil {
		return fmt.Errorf("san: a write to %q: %w: %w", c.name, syscall.ENOSPC, err)
	}
	for _, a := range s.arrays {
		if a != c.of {
			_ = wrote(a)
		}
	}
	for _, i := range append(first, again...) {
		c.written.add(i)
		c.fresh.add(i)
	}
	return nil
}

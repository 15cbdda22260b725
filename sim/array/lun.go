package array

import "math/bits"

// MaxLUN is the largest number of a LUN.
const MaxLUN = 16383

// lunTable says which volume is at which LUN. A volume may be there for
// several reasons, always at the same LUN.
type lunTable struct {
	at   map[int]*volume
	of   map[*volume]lunUse
	used []uint64 // bits, as far as they are needed
}

type lunUse struct{ lun, count int }

// take puts a volume at a LUN, where it is already or which is free.
func (t *lunTable) take(v *volume, lun int) {
	if t.at == nil {
		t.at, t.of = map[int]*volume{}, map[*volume]lunUse{}
	}
	t.at[lun] = v
	t.of[v] = lunUse{lun, t.of[v].count + 1}
	for len(t.used) <= lun/64 {
		t.used = append(t.used, 0)
	}
	t.used[lun/64] |= 1 << (lun % 64)
}

// release takes one reason away for which a volume is there.
func (t *lunTable) release(v *volume) {
	u := t.of[v]
	if u.count > 1 {
		t.of[v] = lunUse{u.lun, u.count - 1}
		return
	}
	delete(t.of, v)
	delete(t.at, u.lun)
	t.used[u.lun/64] &^= 1 << (u.lun % 64)
}

func (t *lunTable) word(i int) uint64 {
	if i < len(t.used) {
		return t.used[i]
	}
	return 0
}

// lowest finds the lowest LUN from some on, to some, that is free in all
// tables and is not refused.
func lowest(tables []*lunTable, from, to int, refused func(int) bool) (int, bool) {
	for i := from / 64; i <= to/64; i++ {
		var used uint64
		for _, t := range tables {
			used |= t.word(i)
		}
		if i == from/64 {
			used |= 1<<(from%64) - 1
		}
		for used != ^uint64(0) {
			lun := i*64 + bits.TrailingZeros64(^used)
			if lun > to {
				return 0, false
			}
			if !refused(lun) {
				return lun, true
			}
			used |= 1 << (lun % 64)
		}
	}
	return 0, false
}

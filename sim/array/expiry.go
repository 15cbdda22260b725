package array

import (
	"container/heap"
	"time"
)

// expiry has the times at which volumes expire, the next one first. An entry
// of a volume that is gone or expires at another time by now counts for
// nothing.
type expiry struct{ queue dues }

type due struct {
	at time.Time
	v  *volume
}

type dues []due

func (d dues) Len() int { return len(d) }
func (d dues) Less(i, j int) bool {
	if c := d[i].at.Compare(d[j].at); c != 0 {
		return c < 0
	}
	return d[i].v.Seq < d[j].v.Seq
}
func (d dues) Swap(i, j int) { d[i], d[j] = d[j], d[i] }
func (d *dues) Push(x any)   { *d = append(*d, x.(due)) }
func (d *dues) Pop() any {
	old := *d
	last := old[len(old)-1]
	old[len(old)-1] = due{}
	*d = old[:len(old)-1]
	return last
}

// expires notes when a volume expires, if it does.
func (a *Array) expires(v *volume) {
	if v.Expires.IsZero() {
		return
	}
	if n := len(a.expiring.queue); n > 64 && n > 2*a.volumes.len() { // mostly what counts for nothing
		live := a.expiring.queue[:0]
		for _, d := range a.expiring.queue {
			if a.counts(d) {
				live = append(live, d)
			}
		}
		clear(a.expiring.queue[len(live):])
		a.expiring.queue = live
		heap.Init(&a.expiring.queue)
	}
	heap.Push(&a.expiring.queue, due{v.Expires, v})
}

func (a *Array) counts(d due) bool {
	return a.byID[d.v.ID] == d.v && d.v.Expires.Equal(d.at)
}

// expire removes volumes whose time has come, unless something stands on
// them: then they stay until it is gone. Unverified: the real array leaves
// expired volumes to a nightly task.
func (a *Array) expire(now time.Time) (gone []ContentOp) {
	var blocked []due
	for len(a.expiring.queue) > 0 && !a.expiring.queue[0].at.After(now) {
		d := heap.Pop(&a.expiring.queue).(due)
		if a.counts(d) {
			blocked = append(blocked, d)
		}
	}
	for again := true; again; { // a copy that went may free its parent
		again = false
		left := blocked[:0]
		for _, d := range blocked {
			if a.removable(now, d.v) != nil {
				left = append(left, d)
				continue
			}
			gone = append(gone, ContentOp{Do: DropImage, Image: d.v.Image})
			a.vanish(now, d.v)
			a.log(now, Expired, "volume", d.v.Name)
			again = true
		}
		blocked = left
	}
	for _, d := range blocked {
		heap.Push(&a.expiring.queue, d)
	}
	return gone
}

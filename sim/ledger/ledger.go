// Package ledger is the ordered record of every call on every hop of a lab.
//
// Tests assert on it, reports draw it, and the sweep derives its cells from it.
// An entry is written when a call starts and closed when it ends, so that a
// call that never returns is seen too. Entries never hold secrets: the faces
// hand over digests and subject ids, not requests.
package ledger

import (
	"slices"
	"sync"
	"time"
)

// Ledger is safe for concurrent use. The zero value is ready and keeps all
// entries; Limit bounds it. Work per call does not grow with what it holds.
type Ledger struct {
	mu     sync.Mutex
	chunks [][]Entry // of one size, the last one may have room
	size   int       // of a chunk; 0: none was made yet
	first  uint64    // sequence number of the first entry in chunks, less one
	last   uint64    // that was given
	open   []uint64  // of calls that have not ended, in order

	limit   int // of entries that are kept; 0: none
	spill   func(Entry) error
	late    map[uint64]*Entry // older than first and not closed yet
	dropped uint64

	sinks []func(Entry)
}

// chunkSize is how many entries are allocated at once.
const chunkSize = 512

// Limit keeps at most n entries (1 and more) besides those of calls that have
// not ended. The oldest go first, when their call has ended: to spill, or where
// that is nil or fails away, and Dropped counts them. They come by and large
// in order of sequence; a call that took long comes late. spill must be quick
// and must not call back. Call Limit before the first entry; it panics after.
func (l *Ledger) Limit(n int, spill func(Entry) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n < 1 || l.last > 0 {
		panic("ledger: a limit is 1 or more, and set before the first entry")
	}
	l.limit, l.spill, l.late = n, spill, map[uint64]*Entry{}
	l.size = min(chunkSize, max(1, n/4))
}

// Begin writes a pending entry and returns its sequence number (1 is the first).
func (l *Ledger) Begin(e Entry) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	e.Seq = l.last
	e.Start = time.Now()
	e.Outcome = Pending
	n := len(l.chunks)
	if n == 0 || len(l.chunks[n-1]) == l.size {
		if l.size == 0 {
			l.size = chunkSize
		}
		if l.limit > 0 && (n+1)*l.size > l.limit && n > 0 {
			l.evict()
		}
		l.chunks = append(l.chunks, make([]Entry, 0, l.size))
		n = len(l.chunks)
	}
	l.chunks[n-1] = append(l.chunks[n-1], e)
	l.open = append(l.open, e.Seq)
	return e.Seq
}

// evict lets go of the oldest chunk.
func (l *Ledger) evict() {
	for _, e := range l.chunks[0] {
		if e.Outcome == Pending {
			l.late[e.Seq] = &e
			continue
		}
		l.leave(e)
	}
	l.first += uint64(len(l.chunks[0]))
	l.chunks[0] = nil
	l.chunks = l.chunks[1:]
}

func (l *Ledger) leave(e Entry) {
	if l.spill == nil || l.spill(e) != nil {
		l.dropped++
	}
}

// at is the entry with a sequence number, or nil when there is none or it has
// left.
func (l *Ledger) at(seq uint64) *Entry {
	if seq == 0 || seq > l.last {
		return nil
	}
	if seq <= l.first {
		return l.late[seq]
	}
	i := int(seq - l.first - 1)
	return &l.chunks[i/l.size][i%l.size]
}

// End closes entry seq; f sets outcome, code, error and fault. An entry that
// is already closed stays as it is.
func (l *Ledger) End(seq uint64, f func(*Entry)) {
	l.mu.Lock()
	e := l.at(seq)
	if e == nil || e.Outcome != Pending {
		l.mu.Unlock()
		return
	}
	f(e)
	e.Duration = time.Since(e.Start)
	if i, ok := slices.BinarySearch(l.open, seq); ok {
		l.open = slices.Delete(l.open, i, i+1)
	}
	sinks := l.sinks
	var done Entry
	if len(sinks) > 0 {
		done = *e
	}
	if seq <= l.first {
		delete(l.late, seq)
		l.leave(*e)
	}
	l.mu.Unlock()
	for _, s := range sinks {
		s(done)
	}
}

// Subscribe calls f with every entry that closes from now on.
func (l *Ledger) Subscribe(f func(Entry)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sinks = append(slices.Clone(l.sinks), f)
}

// Len is the number of calls that began, which is the last sequence number. A
// limit does not change it.
func (l *Ledger) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int(l.last)
}

// Dropped is how many entries the limit let go of that nobody has.
func (l *Ledger) Dropped() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dropped
}

// Get returns the entry with a sequence number; false when there is none, or
// it has left.
func (l *Ledger) Get(seq uint64) (Entry, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.at(seq); e != nil {
		return *e, true
	}
	return Entry{}, false
}

// each calls f with every entry that is kept, in order, until f is false. The
// lock is held.
func (l *Ledger) each(f func(*Entry) bool) {
	late := make([]uint64, 0, len(l.late))
	for seq := range l.late {
		late = append(late, seq)
	}
	slices.Sort(late)
	for _, seq := range late {
		if !f(l.late[seq]) {
			return
		}
	}
	for _, c := range l.chunks {
		for i := range c {
			if !f(&c[i]) {
				return
			}
		}
	}
}

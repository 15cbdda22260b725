package ledger

import (
	"crypto/sha256"
	"fmt"
	"hash"
	"sync"
	"time"
)

// Sequence is a line for each call, in their order: when it began, counted from
// the first one, and how long it took, who asked whom for what and for which
// call, and what came of it. Ids are as they are. Where a seed decides all, as in
// a bubble, two runs with one seed have the same lines.
func Sequence(es []Entry) []string {
	out := make([]string, len(es))
	var first time.Time
	for i, e := range es {
		if i == 0 {
			first = e.Start
		}
		out[i] = e.line(first)
	}
	return out
}

func (e Entry) line(from time.Time) string {
	return fmt.Sprintf("%d +%v %v %s %s %s%s, %s, for %d", e.Seq, e.Start.Sub(from), e.Duration, e.Hop, e.Op, subjects(e), tail(e, identity), e.Request, e.Cause)
}

// Digest sums up what Sequence tells, in the order in which calls end, and keeps
// none of it: Add is for Ledger.Subscribe. It is safe for concurrent use.
type Digest struct {
	mu    sync.Mutex
	sum   hash.Hash
	first time.Time
}

// Add takes in a call that has ended.
func (d *Digest) Add(e Entry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sum == nil {
		d.sum, d.first = sha256.New(), e.Start
	}
	fmt.Fprintln(d.sum, e.line(d.first))
}

// String is the sum so far, 16 hex digits; "" where no call has ended.
func (d *Digest) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sum == nil {
		return ""
	}
	return fmt.Sprintf("%x", d.sum.Sum(nil)[:8])
}

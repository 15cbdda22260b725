package fault

import (
	"cmp"
	"context"
	"hash/fnv"
	"strings"
	"sync"
)

// Turns lets the calls of a lab in one at a time, in an order that is a
// function of a seed and of the calls that stand there, not of how goroutines
// are scheduled. It is for bubbles, where it can be told that nothing else moves.
type Turns struct {
	seed  uint64
	quiet func() // returns when everybody else waits
	kick  chan struct{}

	mu      sync.Mutex
	waiting []*turn
	taken   map[string]uint64 // by kind
	over    bool
}

type turn struct {
	key   string
	kind  string // the part of it that does not grow with the number of volumes
	draw  uint64
	ahead string // breaks a tie, and if that is one too
	call  uint64 // the number of the call that it is of, or made for
	come  chan struct{}
}

// NewTurns returns turns that quiet, e.g. synctest.Wait, tells when to give the
// next one. Run gives them.
func NewTurns(seed uint64, quiet func()) *Turns {
	return &Turns{seed: seed, quiet: quiet, kick: make(chan struct{}, 1), taken: map[string]uint64{}}
}

type aboutKey struct{}

// About tells apart calls that look alike at a hop, e.g. those of two workers of
// one controller, or of one client to two servers: the subject is part of what
// orders them.
func About(ctx context.Context, subject string) context.Context {
	return context.WithValue(ctx, aboutKey{}, subject)
}

// Take waits for the turn of a call, also when ctx has ended: what one moment ends
// all goes on in the seed's order. It must not be called with a lock held that
// others wait for, for it would never come.
func (t *Turns) Take(ctx context.Context, c Call) {
	kind := string(c.Hop) + "|" + c.Op + "|" + c.Component
	about, _ := ctx.Value(aboutKey{}).(string)
	w := &turn{kind: kind, key: strings.Join([]string{kind, c.Node, c.Volume, c.Snapshot, about}, "|"), ahead: c.Request, call: CauseOf(ctx), come: make(chan struct{})}
	if w.call == 0 {
		w.call = c.Cause
	}
	t.mu.Lock()
	if t.over {
		t.mu.Unlock()
		return
	}
	t.waiting = append(t.waiting, w)
	t.mu.Unlock()
	select {
	case t.kick <- struct{}{}:
	default:
	}
	<-w.come
}

// Run gives turns until ctx ends; from then on nobody waits for one.
func (t *Turns) Run(ctx context.Context) {
	defer t.end()
	for {
		select {
		case <-t.kick:
		case <-ctx.Done():
			return
		}
		for ctx.Err() == nil {
			t.quiet()
			if !t.next() {
				break
			}
		}
	}
}

// next gives a turn to the first of those that wait, and says whether there was one.
func (t *Turns) next() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting) == 0 {
		return false
	}
	first := 0
	for i, w := range t.waiting {
		if w.draw == 0 {
			w.draw = t.number(w)
		}
		f := t.waiting[first]
		if cmp.Or(cmp.Compare(w.draw, f.draw), cmp.Compare(w.key, f.key), cmp.Compare(w.ahead, f.ahead), cmp.Compare(w.call, f.call)) < 0 {
			first = i
		}
	}
	w := t.waiting[first]
	t.waiting = append(t.waiting[:first], t.waiting[first+1:]...)
	t.taken[w.kind]++
	close(w.come)
	return true
}

// number is the place of a call among others: a function of the seed, the call
// and how many of its kind there were.
func (t *Turns) number(w *turn) uint64 {
	h := fnv.New64a()
	var b [16]byte
	for i := range 8 {
		b[i], b[8+i] = byte(t.seed>>(8*i)), byte(t.taken[w.kind]>>(8*i))
	}
	h.Write(b[:])
	h.Write([]byte(w.key))
	return h.Sum64() | 1
}

func (t *Turns) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	for _, w := range t.waiting {
		close(w.come)
	}
	t.waiting = nil
}

// Package turn lets one at a time work on what a key names: requests of a
// session of an array, calls about a volume of a storage provider.
package turn

import (
	"context"
	"sync"
)

// Turns are those of all keys. The zero value is ready. It is safe for
// concurrent use.
type Turns struct {
	mu sync.Mutex
	in map[string]*turn
}

type turn struct {
	token chan struct{} // has one
	n     int           // who has it or waits
}

// Enter waits for the turn of a key; leave must be called. The error is why ctx
// ended.
func (t *Turns) Enter(ctx context.Context, key string) (leave func(), err error) {
	t.mu.Lock()
	if t.in == nil {
		t.in = map[string]*turn{}
	}
	x := t.in[key]
	if x == nil {
		x = &turn{token: make(chan struct{}, 1)}
		x.token <- struct{}{}
		t.in[key] = x
	}
	x.n++
	t.mu.Unlock()
	done := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if x.n--; x.n == 0 {
			delete(t.in, key)
		}
	}
	select {
	case <-x.token:
		return func() { x.token <- struct{}{}; done() }, nil
	case <-ctx.Done():
		done()
		return nil, context.Cause(ctx)
	}
}

// Len is how many keys somebody works on or waits for.
func (t *Turns) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.in)
}

package csp

import (
	"context"
	"sync"
)

// locks lets one at a time work on what a key names. The zero value is ready.
type locks struct {
	mu sync.Mutex
	in map[string]*lock
}

type lock struct {
	turn chan struct{} // has one token
	n    int           // who has it or waits
}

// enter waits for the turn; leave must be called.
func (l *locks) enter(ctx context.Context, key string) (leave func(), err error) {
	l.mu.Lock()
	if l.in == nil {
		l.in = map[string]*lock{}
	}
	x := l.in[key]
	if x == nil {
		x = &lock{turn: make(chan struct{}, 1)}
		x.turn <- struct{}{}
		l.in[key] = x
	}
	x.n++
	l.mu.Unlock()
	done := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if x.n--; x.n == 0 {
			delete(l.in, key)
		}
	}
	select {
	case <-x.turn:
		return func() { x.turn <- struct{}{}; done() }, nil
	case <-ctx.Done():
		done()
		return nil, context.Cause(ctx)
	}
}

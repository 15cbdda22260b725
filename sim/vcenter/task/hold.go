package task

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Hold stops tasks before they do their work, until a test lets them go on.
// Meanwhile they are running, as clients see them.
type Hold struct {
	m   *Manager
	ops []string

	mu     sync.Mutex
	all    []*Held       // that wait, in the order of their start
	next   []*Held       // not yet returned by Wait
	more   chan struct{} // closed and replaced when next grows
	ended  bool
	ending chan struct{}
}

// Held is a task that waits to be released.
type Held struct {
	Call
	t        *object
	once     sync.Once
	released chan struct{}
}

// Release lets the task do its work.
func (h *Held) Release() { h.once.Do(func() { close(h.released) }) }

// Progress makes the task say how far it is, in percent (0 to 100).
func (h *Held) Progress(percent int) { h.t.progress(percent) }

// Hold stops the tasks of some methods that start from now on; without
// methods, of all. Call Release when done.
func (m *Manager) Hold(ops ...string) *Hold {
	h := &Hold{m: m, ops: ops, more: make(chan struct{}), ending: make(chan struct{})}
	m.mu.Lock()
	m.holds = append(m.holds, h)
	m.mu.Unlock()
	return h
}

// Wait returns the next task that is held, in the order in which they came,
// each once. It fails when ctx ends or the hold was released.
func (h *Hold) Wait(ctx context.Context) (*Held, error) {
	for {
		h.mu.Lock()
		if len(h.next) > 0 {
			t := h.next[0]
			h.next = h.next[1:]
			h.mu.Unlock()
			return t, nil
		}
		more := h.more
		h.mu.Unlock()
		select {
		case <-more:
		case <-h.ending:
			return nil, context.Canceled
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Held lists the tasks that wait now, oldest first.
func (h *Hold) Held() []*Held {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.all)
}

// Release lets all tasks go on and holds no more.
func (h *Hold) Release() {
	h.m.mu.Lock()
	h.m.holds = slices.DeleteFunc(h.m.holds, func(o *Hold) bool { return o == h })
	h.m.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ended {
		h.ended = true
		close(h.ending)
	}
}

// stop waits at the holds that want the task.
func (m *Manager) stop(ctx context.Context, t *object) error {
	m.mu.Lock()
	holds := slices.Clone(m.holds)
	m.mu.Unlock()
	for _, h := range holds {
		if len(h.ops) > 0 && !slices.Contains(h.ops, t.job.Op) {
			continue
		}
		if err := h.wait(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

func (h *Hold) wait(ctx context.Context, t *object) error {
	held := &Held{Call: t.job.Call, t: t, released: make(chan struct{})}
	h.mu.Lock()
	h.all, h.next = append(h.all, held), append(h.next, held)
	close(h.more)
	h.more = make(chan struct{})
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		is := func(o *Held) bool { return o == held }
		h.all, h.next = slices.DeleteFunc(h.all, is), slices.DeleteFunc(h.next, is)
	}()
	select {
	case <-held.released:
		return nil
	case <-h.ending:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// SetLatency makes the tasks of a method that start from now on take so long
// (0: no time); "" is for all methods that have no latency of their own.
func (m *Manager) SetLatency(op string, d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.latency[op] = max(0, d)
}

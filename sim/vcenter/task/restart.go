package task

import (
	"context"
	"errors"
	"maps"
	"slices"
)

// errRestarted is why the work of a task was not begun.
var errRestarted = errors.New("the service was restarted")

// Restart takes all tasks out of the inventory and the history, as the restart
// of the service that keeps them does. With stop, those whose work has not
// begun never do it; work that has begun is with the host and goes on, and
// nobody sees its end. It returns how many tasks had not ended.
func (m *Manager) Restart(stop bool) (running int) {
	m.mu.Lock()
	ids := slices.Collect(maps.Keys(m.live))
	for _, t := range m.live {
		if !t.finished {
			running++
		}
	}
	end := m.endLife
	if stop {
		m.life, m.endLife = context.WithCancelCause(m.ctx)
	}
	m.mu.Unlock()
	if stop {
		end(errRestarted)
	}
	if len(ids) > 0 { // none would mean all that have finished
		m.Purge(ids...)
	}
	m.mu.Lock()
	m.history = nil
	m.mu.Unlock()
	return running
}

// begin gives the context for what comes before a task's work: it ends with
// ctx, and soon after the service's life does. release must be called.
func (t *object) begin(ctx context.Context) (waiting context.Context, release func()) {
	waiting, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(t.life, func() { cancel(context.Cause(t.life)) })
	return waiting, func() { stop(); cancel(nil) }
}

// carry gives the context for a task's work: it has the values of waiting and
// ends with ctx only.
func carry(ctx, waiting context.Context) (working context.Context, release func()) {
	working, cancel := context.WithCancelCause(context.WithoutCancel(waiting))
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	return working, func() { stop(); cancel(nil) }
}

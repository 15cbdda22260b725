package fault

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Change is an action that changes the lab beside the call. The call itself goes
// on: the rules behind this one may act on it too, as a partition does that the
// change has just made. What it does lasts until it heals, where it can.
type Change struct {
	wounds
	text string
	do   func(ctx context.Context, in *Interceptor, c Call) (heal func(), err error)
}

// NewChange makes one. do changes the lab and returns what undoes that; nil where
// nothing does. last is after how long it heals by itself, 0: when it is told to.
func NewChange(text string, last time.Duration, do func(ctx context.Context, in *Interceptor, c Call) (heal func(), err error)) *Change {
	return &Change{wounds: wounds{last: last}, text: text, do: do}
}

// Act implements Action. The error is a *MissedError: nothing was changed.
func (a *Change) Act(ctx context.Context, in *Interceptor, c Call) error {
	// Who gives its call up does not stop what has begun.
	heal, err := a.do(context.WithoutCancel(ctx), in, c)
	if err != nil {
		return &MissedError{a.text, err}
	}
	a.lasts(in, a.text, heal)
	return nil
}

func (a *Change) String() string { return a.text }

// MissedError says why a rule that was to act on a call could not: the rule does
// not count as fired.
type MissedError struct {
	Action string
	Err    error
}

func (e *MissedError) Error() string { return e.Action + ": " + e.Err.Error() }
func (e *MissedError) Unwrap() error { return e.Err }

func isMissed(err error) bool {
	_, is := err.(*MissedError)
	return is
}

// lasting is an action whose effect stays until it heals.
type lasting interface{ Heal() }

// wounds are what an action has done and nothing has healed yet.
type wounds struct {
	last time.Duration // after which each heals by itself; 0: not

	mu   sync.Mutex
	next int
	open map[int]func()
}

// lasts notes what an action of that name has done; heal may be nil.
func (w *wounds) lasts(in *Interceptor, name string, heal func()) {
	if heal == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open == nil {
		w.open = map[int]func(){}
	}
	w.next++
	n := w.next
	w.open[n] = heal
	if w.last > 0 {
		go func() {
			if in.wait(context.Background(), w.last, Call{Op: "heal", Component: name, Request: fmt.Sprint(n)}) != nil {
				return // the lab is closed
			}
			w.heal(n)
		}()
	}
}

func (w *wounds) heal(n int) {
	w.mu.Lock()
	heal := w.open[n]
	delete(w.open, n)
	w.mu.Unlock()
	if heal != nil {
		heal()
	}
}

// Heal undoes what was done and has not been undone, the last first.
func (w *wounds) Heal() {
	w.mu.Lock()
	n := w.next
	w.mu.Unlock()
	for ; n > 0; n-- {
		w.heal(n)
	}
}

// Heal undoes what the rule has done and what can be undone; the rule stays armed.
func (a *Armed) Heal() {
	if x, ok := a.Do.(lasting); ok {
		x.Heal()
	}
}

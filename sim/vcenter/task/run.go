package task

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/vmware/govmomi/vim25/mo"
	vim "github.com/vmware/govmomi/vim25/types"
)

// ErrLost, returned by a hook, leaves the task running for ever: its end is
// never reported.
var ErrLost = errors.New("task: the end of the task is lost")

// Fault, returned by a hook, ends the task with a fault.
type Fault struct {
	Fault   vim.BaseMethodFault
	Message string // LocalizedMessage
	// Result makes the task succeed with the fault in its result (Job.Failed),
	// where its job has one. Otherwise the task itself fails.
	Result bool
}

func (f *Fault) Error() string { return fmt.Sprintf("%T: %s", f.Fault, f.Message) }

// Error is an error of Work that fails the task with a fault.
type Error struct{ Fault *vim.LocalizedMethodFault }

func (e *Error) Error() string {
	return fmt.Sprintf("%T: %s", e.Fault.Fault, e.Fault.LocalizedMessage)
}

// Refused is an error of Work that the result tells: the task succeeds.
type Refused struct{ Err error }

func (r *Refused) Error() string { return r.Err.Error() }

// Unwrap returns the reason.
func (r *Refused) Unwrap() error { return r.Err }

// errCanceled is the cause of the end of a context that a client asked for.
var errCanceled = errors.New("canceled by a user")

type taskKey struct{}

// Progress reports how far the task is that ctx belongs to, in percent (0 to
// 100). Watchers are told.
func Progress(ctx context.Context, percent int) {
	if t, ok := ctx.Value(taskKey{}).(*object); ok {
		t.progress(percent)
	}
}

// run does a task's work, holding no lock.
func (m *Manager) run(t *object) {
	if t.job.After != nil {
		defer t.job.After()
	}
	ctx, cancel := context.WithCancelCause(context.WithValue(m.ctx, taskKey{}, t))
	defer cancel(nil)
	if t.job.Cancelable {
		done := make(chan struct{})
		defer close(done)
		go func() {
			select {
			case <-t.canceled:
				cancel(errCanceled)
			case <-done:
			}
		}()
	}
	result, err := m.outcome(ctx, t)
	if t.job.Release != nil {
		t.job.Release()
	}
	if m.ctx.Err() != nil || errors.Is(err, ErrLost) {
		t.mu.Lock()
		t.lost = true
		t.mu.Unlock()
		return // nobody will ever know
	}
	t.mu.Lock()
	t.end(result, faultOf(ctx, err))
	t.mu.Unlock()
	m.retire(t)
	m.changed(t)
}

// faultOf is the fault that an error fails a task with.
func faultOf(ctx context.Context, err error) *vim.LocalizedMethodFault {
	var te *Error
	var tf *Fault
	switch {
	case err == nil:
		return nil
	case errors.As(err, &te):
		return te.Fault
	case errors.As(err, &tf):
		return &vim.LocalizedMethodFault{Fault: tf.Fault, LocalizedMessage: tf.Message}
	case errors.Is(context.Cause(ctx), errCanceled):
		return &vim.LocalizedMethodFault{Fault: &vim.RequestCanceled{}, LocalizedMessage: textCanceled}
	}
	return &vim.LocalizedMethodFault{Fault: &vim.SystemError{Reason: err.Error()}, LocalizedMessage: err.Error()}
}

// outcome runs the work with what surrounds it: holds, latency, the hook, and a
// net under panics, since requests come from outside.
func (m *Manager) outcome(ctx context.Context, t *object) (result vim.AnyType, err error) {
	defer func() {
		if p := recover(); p != nil {
			m.log.Error("panic in a task", "op", t.job.Op, "task", t.job.Task, "panic", p, "stack", string(debug.Stack()))
			result, err = nil, &Error{&vim.LocalizedMethodFault{Fault: &vim.SystemError{Reason: fmt.Sprint(p)}, LocalizedMessage: textSystemError + fmt.Sprint(p)}}
		}
	}()
	waiting, release := t.begin(ctx)
	defer release()
	if t.job.Before != nil {
		if err := t.job.Before(waiting); err != nil {
			return nil, err
		}
	}
	if err := m.stop(waiting, t); err != nil {
		return nil, err
	}
	if err := m.delay(waiting, t); err != nil {
		return nil, err
	}
	work := func(waiting context.Context) (vim.AnyType, error) {
		// The first is over when Restart returns, the second a moment later.
		for _, c := range []context.Context{t.life, waiting} {
			if c.Err() != nil {
				return nil, context.Cause(c)
			}
		}
		working, release := carry(ctx, waiting)
		defer release()
		return t.job.Work(working, m.context(m.ctx))
	}
	if m.cfg.OnTask == nil {
		result, err := work(waiting)
		return result, fatal(err)
	}
	var refused error
	done := false
	err = m.cfg.OnTask(waiting, t.job.Call, func(ctx context.Context) error {
		result, refused = work(ctx)
		done = true
		var r *Refused
		if errors.As(refused, &r) {
			return r.Err
		}
		return refused
	})
	var tf *Fault
	switch {
	case done && (err == nil || refused != nil && errors.Is(refused, err)):
		return result, fatal(refused)
	case errors.As(err, &tf) && tf.Result && t.job.Failed != nil:
		return t.job.Failed(&vim.LocalizedMethodFault{Fault: tf.Fault, LocalizedMessage: tf.Message}), nil
	case err == nil:
		return nil, errors.New("the hook of the task did not commit it")
	}
	return nil, err
}

// fatal lets pass what makes the task itself fail.
func fatal(err error) error {
	var r *Refused
	if errors.As(err, &r) {
		return nil
	}
	return err
}

// delay waits as long as the method is set to take, and reports progress at
// each quarter of a time that is long enough to look at.
func (m *Manager) delay(ctx context.Context, t *object) error {
	m.mu.Lock()
	d, ok := m.latency[t.job.Op]
	if !ok {
		d = m.latency[""]
	}
	m.mu.Unlock()
	if d <= 0 {
		return nil
	}
	steps := 1
	if d >= 100*time.Millisecond {
		steps = 4
	}
	timer := time.NewTimer(d / time.Duration(steps))
	defer timer.Stop()
	for i := 1; ; i++ {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if i == steps {
			return nil
		}
		t.progress(100 * i / steps)
		// The sum of the steps is d, whatever remains of the division.
		timer.Reset(d*time.Duration(i+1)/time.Duration(steps) - d*time.Duration(i)/time.Duration(steps))
	}
}

var _ mo.Reference = (*object)(nil)

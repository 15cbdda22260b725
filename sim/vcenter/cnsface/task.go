package cnsface

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	vim "github.com/vmware/govmomi/vim25/types"
)

// firstTaskNumber keeps the numbers of CNS tasks apart from those that vcsim
// gives its own, which count every object of the inventory from 1.
const firstTaskNumber = 1_000_000

// task is a task of CNS in the vim25 inventory. vcsim's own would hold the
// lock of its entity while it runs and poll for its end.
type task struct {
	mo.Task
}

// CancelTask is refused: CNS's tasks can't be cancelled.
func (t *task) CancelTask(*vim.CancelTask) soap.HasFault {
	return &methods.CancelTaskBody{Fault_: simulator.Fault(textNotSupported, &vim.NotSupported{})}
}

// tasks numbers tasks and knows which have finished.
type tasks struct {
	mu       sync.Mutex
	last     int64
	finished []vim.ManagedObjectReference
}

func (t *tasks) next() vim.ManagedObjectReference {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	return vim.ManagedObjectReference{Type: "Task", Value: "task-" + strconv.FormatInt(t.last, 10)}
}

func (t *tasks) issued() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last - firstTaskNumber
}

// retire notes the end of a task and returns one that clients need not see
// any longer.
func (t *tasks) retire(ref vim.ManagedObjectReference, keep int) (old vim.ManagedObjectReference, any bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.finished = append(t.finished, ref)
	if len(t.finished) <= keep {
		return old, false
	}
	old = t.finished[0]
	t.finished = t.finished[1:]
	return old, true
}

// work is what a task does: the result of the task, and the error that the
// core or a disk refused the volume with (result then tells it).
type work func(ctx context.Context, c *simulator.Context) (result vim.AnyType, refused error)

// job is a task to start.
type job struct {
	TaskCall
	entity vim.ManagedObjectReference
	do     work
	// failed makes the result of a volume that a fault was found for.
	failed func(*vim.LocalizedMethodFault) vim.AnyType
	// after, where set, is called when the task is over, whatever came of it.
	after func()
}

// taskError makes the task itself fail, instead of reporting per volume.
type taskError struct{ fault *vim.LocalizedMethodFault }

func (e *taskError) Error() string {
	return faultName(e.fault.Fault) + ": " + e.fault.LocalizedMessage
}

// start puts a task into the inventory and runs it.
func (f *Face) start(rc *simulator.Context, j job) vim.ManagedObjectReference {
	t := &task{}
	t.Self = f.tasks.next()
	j.Task = t.Self.Value
	now := time.Now()
	t.Info = vim.TaskInfo{
		Key:        t.Self.Value,
		Task:       t.Self,
		Name:       j.Op,
		Entity:     &j.entity,
		EntityName: j.entity.Value,
		// Unverified: the exact description ids.
		DescriptionId: "com.vmware.cns.tasks." + strings.ToLower(strings.TrimPrefix(j.Op, "Cns")),
		State:         vim.TaskInfoStateRunning,
		QueueTime:     now,
		StartTime:     &now,
		ActivationId:  rc.Header.ID,
	}
	user := ""
	if rc.Session != nil {
		user = rc.Session.UserName
	}
	t.Info.Reason = &vim.TaskReasonUser{UserName: user}
	f.inv.vim.Put(t)
	f.recent(t.Self)
	f.spawn(func() { f.run(t, j) })
	return t.Self
}

// recentMax is how many tasks TaskManager.recentTask holds.
const recentMax = 200

// recent adds a task to TaskManager.recentTask, where clients look for tasks
// whose names they lost. vcsim lists only its own kind of task there.
func (f *Face) recent(task vim.ManagedObjectReference) {
	c := f.inv.context()
	tm, ok := c.Map.Get(vim.ManagedObjectReference{Type: "TaskManager", Value: "TaskManager"}).(*simulator.TaskManager)
	if !ok {
		return
	}
	c.WithLock(tm, func() {
		all := append(slices.Clone(tm.RecentTask), task)
		if n := len(all) - recentMax; n > 0 {
			all = all[n:]
		}
		c.Update(tm, []vim.PropertyChange{{Name: "recentTask", Val: all}})
	})
}

// run does a task's work, in a goroutine of its own, holding no lock.
func (f *Face) run(t *task, j job) {
	if j.after != nil {
		defer j.after()
	}
	c := f.inv.context()
	result, err := f.outcome(c, j)
	switch {
	case f.ctx.Err() != nil, errors.Is(err, ErrLost):
		return // nobody will ever know
	}
	now := time.Now()
	changes := []vim.PropertyChange{{Name: "info.completeTime", Val: now}}
	if err != nil {
		var te *taskError
		var tf *TaskFault
		var fault vim.LocalizedMethodFault
		switch {
		case errors.As(err, &te):
			fault = *te.fault
		case errors.As(err, &tf):
			fault = *local(tf.Fault, tf.Message)
		default:
			fault = *local(&vim.SystemError{Reason: err.Error()}, err.Error())
		}
		changes = append(changes,
			vim.PropertyChange{Name: "info.error", Val: fault},
			vim.PropertyChange{Name: "info.state", Val: vim.TaskInfoStateError})
	} else {
		changes = append(changes,
			vim.PropertyChange{Name: "info.result", Val: result},
			vim.PropertyChange{Name: "info.state", Val: vim.TaskInfoStateSuccess})
	}
	c.WithLock(t, func() { c.Update(t, changes) })
	if old, ok := f.tasks.retire(t.Self, f.cfg.KeepTasks); ok {
		f.inv.vim.Remove(c, old)
	}
}

// outcome runs the work with what surrounds it: latency, the hook, and a net
// under panics, since requests come from outside.
func (f *Face) outcome(c *simulator.Context, j job) (result vim.AnyType, err error) {
	defer func() {
		if p := recover(); p != nil {
			f.log.Error("panic in a task", "op", j.Op, "task", j.Task, "panic", p, "stack", string(debug.Stack()))
			result, err = nil, &taskError{local(&vim.SystemError{Reason: fmt.Sprint(p)}, "A general system error occurred")}
		}
	}()
	if d := f.cfg.Latency[j.Op]; d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-f.ctx.Done():
			return nil, f.ctx.Err()
		}
	}
	if f.cfg.OnTask == nil {
		result, err := j.do(f.ctx, c)
		return result, fatal(err)
	}
	var refused error
	done := false
	err = f.cfg.OnTask(f.ctx, j.TaskCall, func(ctx context.Context) error {
		result, refused = j.do(ctx, c)
		done = true
		return refused
	})
	var tf *TaskFault
	switch {
	case done && (err == nil || errors.Is(err, refused)):
		return result, fatal(refused)
	case errors.As(err, &tf) && tf.Result && j.failed != nil:
		return j.failed(local(tf.Fault, tf.Message)), nil
	case err == nil:
		return nil, errors.New("the hook of the task did not commit it")
	}
	return nil, err
}

// fatal lets pass what makes the task itself fail.
func fatal(err error) error {
	var te *taskError
	if errors.As(err, &te) {
		return te
	}
	return nil
}

// spawn runs fn in a goroutine that Close waits for; after Close nothing runs.
func (f *Face) spawn(fn func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx.Err() != nil {
		return
	}
	f.wg.Go(fn)
}

// batch is the result of a task with one volume.
func batch(r cnstypes.BaseCnsVolumeOperationResult) *cnstypes.CnsVolumeOperationBatchResult {
	return &cnstypes.CnsVolumeOperationBatchResult{VolumeResults: []cnstypes.BaseCnsVolumeOperationResult{r}}
}

func itoa(n int32) string { return strconv.Itoa(int(n)) }

func undash(s string) string { return strings.ReplaceAll(s, "-", "") }

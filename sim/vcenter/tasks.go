package vcenter

import (
	"context"
	"errors"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/vcenter/task"
)

// startTask runs an operation on an object as a task: with the object locked by
// c, which the operation must use for all that it locks and changes. What takes
// time must come before or use task.Manager.Start itself.
func (v *VCenter) startTask(rc *simulator.Context, o mo.Reference, j task.Job, run func(ctx context.Context, c *simulator.Context) (types.AnyType, types.BaseMethodFault)) ref {
	j.Work = func(ctx context.Context, c *simulator.Context) (types.AnyType, error) {
		unlock := v.vim.AcquireLock(c, o)
		defer unlock()
		if r := o.Reference(); v.vim.Get(r) == nil { // removed since the call
			f := &types.ManagedObjectNotFound{Obj: r}
			return nil, &task.Error{Fault: &types.LocalizedMethodFault{Fault: f, LocalizedMessage: textOf(f)}}
		}
		result, f := run(ctx, c)
		if f != nil {
			return nil, &task.Error{Fault: &types.LocalizedMethodFault{Fault: f, LocalizedMessage: textOf(f)}}
		}
		return result, nil
	}
	return v.tasks.Start(rc, j)
}

// HoldTasks stops the tasks of some methods of the API (e.g. "CnsCreateVolume",
// "PowerOffVM_Task") that start from now on, before they do their work; without
// methods, all tasks. Wait on the hold returns each task that is stopped,
// Release lets them go.
func (v *VCenter) HoldTasks(methods ...string) *task.Hold { return v.tasks.Hold(methods...) }

// SetTaskLatency makes the tasks of a method take so long from now on; "" is
// for all methods that have no latency of their own.
func (v *VCenter) SetTaskLatency(method string, d time.Duration) { v.tasks.SetLatency(method, d) }

// PurgeTasks takes tasks out of the inventory and its history, so that clients
// that ask for them get ManagedObjectNotFound: as after a vCenter was restored
// or has cleaned its database. Without ids it takes all that have finished. It
// returns how many there were.
func (v *VCenter) PurgeTasks(ids ...string) int { return v.tasks.Purge(ids...) }

// Tasks lists the tasks that clients can see, oldest first.
func (v *VCenter) Tasks() []task.Status { return v.tasks.List() }

// onTask passes the work of a task through the interceptor as operation
// task:<method>: phase before stands before the commit, after behind it. An
// error fails the task (with Fault.Result: the volume's result in a task that
// succeeds, as in phase result). A dropped one never ends: before it was done or
// after; a purged one is gone besides. The crash
// of a component does not stop a task.
func (v *VCenter) onTask(ctx context.Context, c task.Call, commit func(context.Context) error) error {
	if v.in == nil {
		return commit(ctx)
	}
	call := fault.Call{Hop: ledger.VCenter, Op: "task:" + c.Op, Component: "vcenter", Volume: c.Volume, Snapshot: c.Snapshot, Request: c.Task, Cause: c.Cause}
	if c.VM != "" {
		call.Node = v.nodeName(ref{Type: "VirtualMachine", Value: c.VM})
	}
	var done bool
	var cerr error
	err := v.in.Do(fault.About(ctx, v.url.Host), call, func(ctx context.Context) error {
		done = true
		cerr = commit(ctx)
		return cerr
	})
	var f *Fault
	var inResult *fault.InResult
	switch {
	case errors.Is(err, fault.ErrPurged):
		v.tasks.Purge(c.Task)
		return task.ErrLost
	case errors.Is(err, fault.ErrCrashed):
		if !done {
			return commit(ctx)
		}
		return cerr
	case errors.Is(err, fault.ErrDrop):
		return task.ErrLost
	case errors.As(err, &f):
		msg := f.Message
		if msg == "" && f.Fault != nil {
			msg = textOf(f.Fault)
		}
		return &task.Fault{Fault: f.Fault, Message: msg, Result: f.Result || errors.As(err, &inResult)}
	}
	return err
}

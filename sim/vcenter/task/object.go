package task

import (
	"context"
	"sync"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	vim "github.com/vmware/govmomi/vim25/types"
)

// object is a task in the vim25 inventory. Its Lock is what the dispatcher and
// the property collector take, so methods of the API are called with it held.
type object struct {
	mo.Task

	m   *Manager
	job Job
	// own is set for a task that a client made and reports on itself.
	own bool

	mu sync.Mutex // guards Info and what follows

	canceled chan struct{} // closed by the first CancelTask
	ended    time.Time
	lost     bool // its end will never be reported

	finished bool            // guarded by Manager.mu
	life     context.Context // the service's when the task was entered
}

// Reference implements mo.Reference. The promoted one copies the whole object,
// which may be changing.
func (t *object) Reference() vim.ManagedObjectReference { return t.Self }

// Lock and Unlock take the object out of vcsim's lock per object.
func (t *object) Lock()   { t.mu.Lock() }
func (t *object) Unlock() { t.mu.Unlock() }

// info is a copy; nothing in it is ever changed in place.
func (t *object) info() vim.TaskInfo {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.Info
}

func over(s vim.TaskInfoState) bool {
	return s == vim.TaskInfoStateSuccess || s == vim.TaskInfoStateError
}

// set changes properties and tells watchers; t.mu is held.
func (t *object) set(changes ...vim.PropertyChange) {
	t.m.context(t.m.ctx).Update(t, changes)
}

// progress says how far the task is, in percent.
func (t *object) progress(percent int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.Info.State == vim.TaskInfoStateRunning {
		t.set(vim.PropertyChange{Name: "info.progress", Val: int32(max(0, min(100, percent)))})
	}
}

const (
	textNotSupported = "The operation is not supported on the object."
	textCanceled     = "The task was canceled by a user."
	textSystemError  = "A general system error occurred: "
)

func refuse(text string, f vim.BaseMethodFault) *soap.Fault { return simulator.Fault(text, f) }

// CancelTask asks a task to end. It may return before the task has.
func (t *object) CancelTask(*simulator.Context, *vim.CancelTask) soap.HasFault {
	body := &methods.CancelTaskBody{}
	switch {
	case !t.Info.Cancelable:
		body.Fault_ = refuse(textNotSupported, &vim.NotSupported{})
		return body
	case over(t.Info.State) || t.Info.Cancelled:
		body.Fault_ = refuse("", &vim.InvalidState{})
		return body
	}
	t.set(vim.PropertyChange{Name: "info.cancelled", Val: true})
	close(t.canceled)
	if t.own {
		t.end(nil, &vim.LocalizedMethodFault{Fault: &vim.RequestCanceled{}, LocalizedMessage: textCanceled})
		t.m.retire(t)
	}
	body.Res = &vim.CancelTaskResponse{}
	return body
}

// reported says whether a client may report on the task: only on one that it
// made.
func (t *object) reported() *soap.Fault {
	switch {
	case over(t.Info.State):
		return refuse("", &vim.InvalidState{})
	case !t.own: // Unverified: what a vCenter says to who meddles with its own
		return refuse(textNotSupported, &vim.NotSupported{})
	}
	return nil
}

// SetTaskState implements the method of the API.
func (t *object) SetTaskState(_ *simulator.Context, req *vim.SetTaskState) soap.HasFault {
	body := &methods.SetTaskStateBody{}
	if body.Fault_ = t.reported(); body.Fault_ != nil {
		return body
	}
	switch req.State {
	case vim.TaskInfoStateRunning:
		t.set(vim.PropertyChange{Name: "info.startTime", Val: time.Now()}, vim.PropertyChange{Name: "info.state", Val: req.State})
	case vim.TaskInfoStateQueued:
		t.set(vim.PropertyChange{Name: "info.state", Val: req.State})
	case vim.TaskInfoStateError:
		f := req.Fault
		if f == nil {
			f = &vim.LocalizedMethodFault{Fault: &vim.SystemError{}, LocalizedMessage: textSystemError}
		}
		t.end(nil, f)
	case vim.TaskInfoStateSuccess:
		t.end(req.Result, nil)
	default:
		body.Fault_ = refuse("", &vim.InvalidArgument{InvalidProperty: "state"})
		return body
	}
	if over(req.State) {
		t.m.retire(t)
	}
	t.m.changed(t)
	body.Res = &vim.SetTaskStateResponse{}
	return body
}

// SetTaskDescription implements the method of the API.
func (t *object) SetTaskDescription(_ *simulator.Context, req *vim.SetTaskDescription) soap.HasFault {
	body := &methods.SetTaskDescriptionBody{}
	if body.Fault_ = t.reported(); body.Fault_ != nil {
		return body
	}
	t.set(vim.PropertyChange{Name: "info.description", Val: req.Description})
	body.Res = &vim.SetTaskDescriptionResponse{}
	return body
}

// UpdateProgress implements the method of the API.
func (t *object) UpdateProgress(_ *simulator.Context, req *vim.UpdateProgress) soap.HasFault {
	body := &methods.UpdateProgressBody{}
	if body.Fault_ = t.reported(); body.Fault_ == nil && t.Info.State != vim.TaskInfoStateRunning {
		body.Fault_ = refuse("", &vim.InvalidState{})
	}
	if body.Fault_ != nil {
		return body
	}
	t.set(vim.PropertyChange{Name: "info.progress", Val: max(0, min(100, req.PercentDone))})
	body.Res = &vim.UpdateProgressResponse{}
	return body
}

// end makes the task a finished one; t.mu is held.
func (t *object) end(result vim.AnyType, f *vim.LocalizedMethodFault) {
	t.ended = time.Now()
	changes := []vim.PropertyChange{
		{Name: "info.completeTime", Val: t.ended},
		// A property of running tasks only.
		{Name: "info.progress", Val: int32(0)},
	}
	if f != nil {
		changes = append(changes,
			vim.PropertyChange{Name: "info.error", Val: *f},
			vim.PropertyChange{Name: "info.state", Val: vim.TaskInfoStateError})
	} else {
		changes = append(changes,
			vim.PropertyChange{Name: "info.result", Val: result},
			vim.PropertyChange{Name: "info.state", Val: vim.TaskInfoStateSuccess})
	}
	t.set(changes...)
}

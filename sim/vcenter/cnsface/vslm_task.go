package cnsface

import (
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	vim "github.com/vmware/govmomi/vim25/types"
	"github.com/vmware/govmomi/vslm/methods"
	vslm "github.com/vmware/govmomi/vslm/types"
)

// vslmTask is a task as the VSLM endpoint shows it: there is no property
// collector, clients ask until it has ended. The task itself is vim25's, of
// the same number.
type vslmTask struct {
	vim.ManagedObjectReference
	f *Face
}

func (*vslmTask) Lock()   {}
func (*vslmTask) Unlock() {}

// vslmTaskRef is the reference of a task at the VSLM endpoint.
func vslmTaskRef(task vim.ManagedObjectReference) vim.ManagedObjectReference {
	return vim.ManagedObjectReference{Type: "VslmTask", Value: task.Value}
}

// putVslmTask shows a task at the VSLM endpoint for as long as it is in the
// inventory (see inventory.RemoveObject).
func (f *Face) putVslmTask(reg *simulator.Registry, task vim.ManagedObjectReference) vim.ManagedObjectReference {
	t := &vslmTask{vslmTaskRef(task), f}
	reg.Put(t)
	if f.inv.vim.Get(task) == nil { // it has been purged meanwhile
		reg.Remove(f.inv.context(), t.ManagedObjectReference)
	}
	return t.ManagedObjectReference
}

// info reads the task. Errors: ManagedObjectNotFound.
func (t *vslmTask) info() (vim.TaskInfo, error) {
	info, ok := t.f.tasks.Info(t.Value)
	if !ok {
		return info, &wireError{gone(t.ManagedObjectReference)}
	}
	return info, nil
}

// VslmQueryInfo implements the method of the API.
func (t *vslmTask) VslmQueryInfo(*simulator.Context, *vslm.VslmQueryInfo) soap.HasFault {
	body := &methods.VslmQueryInfoBody{}
	i, err := t.info()
	if err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	user := ""
	if r, ok := i.Reason.(*vim.TaskReasonUser); ok {
		user = r.UserName
	}
	body.Res = &vslm.VslmQueryInfoResponse{Returnval: vslm.VslmTaskInfo{
		Key: i.Key, Task: t.ManagedObjectReference, Name: i.Name, DescriptionId: i.DescriptionId, Entity: i.Entity, EntityName: i.EntityName,
		State: vslm.VslmTaskInfoState(i.State), Cancelled: i.Cancelled, Cancelable: i.Cancelable, Error: i.Error, Result: i.Result,
		Progress: i.Progress, Reason: &vslm.VslmTaskReasonUser{UserName: user},
		QueueTime: i.QueueTime, StartTime: i.StartTime, CompleteTime: i.CompleteTime, ActivationId: i.ActivationId,
	}}
	return body
}

// VslmQueryTaskResult implements the method of the API: nothing while the task
// has no result. Unverified: a fault for a task that failed.
func (t *vslmTask) VslmQueryTaskResult(*simulator.Context, *vslm.VslmQueryTaskResult) soap.HasFault {
	body := &methods.VslmQueryTaskResultBody{}
	i, err := t.info()
	if err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	if i.Error != nil {
		body.Fault_ = simulator.Fault(i.Error.LocalizedMessage, i.Error.Fault)
		return body
	}
	body.Res = &vslm.VslmQueryTaskResultResponse{Returnval: i.Result}
	return body
}

// VslmCancelTask is refused: these tasks can't be cancelled.
func (t *vslmTask) VslmCancelTask(*simulator.Context, *vslm.VslmCancelTask) soap.HasFault {
	body := &methods.VslmCancelTaskBody{}
	if _, err := t.info(); err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Fault_ = simulator.Fault(textNotSupported, &vim.NotSupported{})
	return body
}

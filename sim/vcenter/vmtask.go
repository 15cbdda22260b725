package vcenter

import (
	"context"
	"strings"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/task"
)

// vmWork is what a task on a VM does. No lock is held; c is an identity to
// lock objects with, task is the task itself. It must return when ctx ends.
type vmWork func(ctx context.Context, c *simulator.Context, task ref) (types.AnyType, types.BaseMethodFault)

// start starts a task on the VM.
func (m *machine) start(rc *simulator.Context, op string, work vmWork) ref {
	return m.v.startTaskAt(rc, op, m.Self, m.Name, false, work)
}

// startTaskAt starts a task on an object.
func (v *VCenter) startTaskAt(rc *simulator.Context, op string, entity ref, name string, cancelable bool, work vmWork) ref {
	id := strings.TrimSuffix(strings.TrimSuffix(op, "_Task"), "VM")
	j := task.Job{
		Call: task.Call{Op: op}, Entity: entity, EntityName: name, Name: op,
		DescriptionID: entity.Type + "." + lower(id), Cancelable: cancelable,
	}
	if entity.Type == "VirtualMachine" {
		j.VM = entity.Value
	}
	self := make(chan ref, 1)
	j.Work = func(ctx context.Context, c *simulator.Context) (types.AnyType, error) {
		t := <-self
		self <- t // for a work that is run twice
		result, f := work(ctx, c, t)
		if f != nil {
			return nil, &task.Error{Fault: &types.LocalizedMethodFault{Fault: f, LocalizedMessage: textOf(f)}}
		}
		return result, nil
	}
	t := v.tasks.Start(rc, j)
	self <- t
	return t
}

// ownMethods are those of vcsim's objects that are answered here instead, by
// type: what acts on VMs and hosts. vcsim's write files, and the goroutine of a
// vcsim task has nothing under it that would catch a panic, so no other method
// ending in _Task is ever called by a request.
var ownMethods = map[string]map[string]bool{
	"VirtualMachine": {
		"PowerOnVM_Task": true, "PowerOffVM_Task": true, "SuspendVM_Task": true, "ResetVM_Task": true, "Destroy_Task": true, "UnregisterVM": true,
		"ReconfigVM_Task": true, "AttachDisk_Task": true, "DetachDisk_Task": true,
	},
	"Folder": {"CreateVM_Task": true, "RegisterVM_Task": true},
}

// ownReceiver is what answers a method of ownMethods.
func (v *VCenter) ownReceiver(this ref, method string) mo.Reference {
	if !ownMethods[this.Type][method] {
		return nil
	}
	switch o := v.vim.Get(this).(type) {
	case *simulator.VirtualMachine:
		return &machine{VirtualMachine: o, v: v}
	case *simulator.Folder:
		return &vmFolder{Folder: o, v: v}
	}
	return nil
}

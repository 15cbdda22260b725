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

// occupied starts a task that has the VM for itself while it runs: CNS and
// other tasks get TaskInProgress meanwhile, however long it takes.
func (m *machine) occupied(rc *simulator.Context, op string, cancelable bool, work vmWork) ref {
	j, self := m.v.job(op, m.Self, m.Name, cancelable, work)
	release := func() {}
	j.Before = func(ctx context.Context) error {
		t := <-self
		self <- t
		r, fault := m.v.face.Occupy(ctx, m.Self, t)
		if fault != nil {
			return taskFault(fault)
		}
		release = r
		return nil
	}
	j.Release = func() { release() }
	t := m.v.tasks.Start(rc, j)
	self <- t
	return t
}

// startTaskAt starts a task on an object.
func (v *VCenter) startTaskAt(rc *simulator.Context, op string, entity ref, name string, cancelable bool, work vmWork) ref {
	j, self := v.job(op, entity, name, cancelable, work)
	t := v.tasks.Start(rc, j)
	self <- t
	return t
}

// job is a task that learns its own reference from a channel.
func (v *VCenter) job(op string, entity ref, name string, cancelable bool, work vmWork) (j task.Job, self chan ref) {
	id := strings.TrimSuffix(strings.TrimSuffix(op, "_Task"), "VM")
	j = task.Job{
		Call: task.Call{Op: op}, Entity: entity, EntityName: name, Name: op,
		DescriptionID: entity.Type + "." + lower(id), Cancelable: cancelable,
	}
	if entity.Type == "VirtualMachine" {
		j.VM = entity.Value
	}
	self = make(chan ref, 1)
	j.Work = func(ctx context.Context, c *simulator.Context) (types.AnyType, error) {
		t := <-self
		self <- t
		result, f := work(ctx, c, t)
		if f != nil {
			return nil, taskFault(f)
		}
		return result, nil
	}
	return j, self
}

func taskFault(f types.BaseMethodFault) error {
	return &task.Error{Fault: &types.LocalizedMethodFault{Fault: f, LocalizedMessage: textOf(f)}}
}

// ownMethods are those of vcsim's objects that are answered here instead, by
// type: what acts on VMs and hosts. vcsim's write files, and the goroutine of a
// vcsim task has nothing under it that would catch a panic, so no other method
// ending in _Task is ever called by a request.
var ownMethods = map[string]map[string]bool{
	"VirtualMachine": set("PowerOnVM_Task", "PowerOffVM_Task", "SuspendVM_Task", "ResetVM_Task", "ShutdownGuest", "RebootGuest", "StandbyGuest",
		"Destroy_Task", "UnregisterVM", "Rename_Task", "ReconfigVM_Task", "MigrateVM_Task", "RelocateVM_Task", "CloneVM_Task", "AttachDisk_Task", "DetachDisk_Task",
		"CreateSnapshot_Task", "CreateSnapshotEx_Task", "RevertToCurrentSnapshot_Task", "RemoveAllSnapshots_Task"),
	"VirtualMachineSnapshot": set("RemoveSnapshot_Task", "RevertToSnapshot_Task", "RenameSnapshot"),
	"Folder":                 set("CreateVM_Task", "RegisterVM_Task"),
	"Datastore":              set("RefreshDatastore", "RefreshDatastoreStorageInfo", "Rename_Task", "DatastoreEnterMaintenanceMode", "DatastoreExitMaintenanceMode_Task"),
	"CustomFieldsManager":    set("AddCustomFieldDef", "RemoveCustomFieldDef", "RenameCustomFieldDef", "SetField"),
	"HostSystem":             set("EnterMaintenanceMode_Task", "ExitMaintenanceMode_Task", "DisconnectHost_Task", "ReconnectHost_Task"),
}

func set(names ...string) map[string]bool {
	m := make(map[string]bool, len(names))
	for _, n := range names {
		m[n] = true
	}
	return m
}

// ownReceiver is what answers a method of ownMethods.
func (v *VCenter) ownReceiver(this ref, method string) mo.Reference {
	if !ownMethods[this.Type][method] {
		return nil
	}
	switch o := v.vim.Get(this).(type) {
	case *simulator.VirtualMachine:
		return &machine{VirtualMachine: o, v: v}
	case *vmSnapshot:
		return o
	case *simulator.HostSystem:
		return &host{HostSystem: o, v: v}
	case *simulator.Datastore:
		return &store{Datastore: o, v: v}
	case *simulator.CustomFieldsManager:
		return &attributes{o, v}
	case *simulator.Folder:
		return &vmFolder{Folder: o, v: v}
	}
	return nil
}

package task

import (
	"slices"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	vim "github.com/vmware/govmomi/vim25/types"
)

// maxCollectors is the default of a vCenter's limit of history collectors per
// client (setting task.maxCollectors).
const maxCollectors = 32

// taskManager is the TaskManager object.
type taskManager struct {
	mo.TaskManager
	m *Manager
}

// Reference implements mo.Reference. The promoted one copies the whole object,
// which may be changing.
func (tm *taskManager) Reference() vim.ManagedObjectReference { return tm.Self }

// Lock and Unlock take the object out of vcsim's lock per object.
func (*taskManager) Lock()   {}
func (*taskManager) Unlock() {}

// install takes the place of vcsim's TaskManager, and its list of methods.
func (m *Manager) install() {
	self := vim.ManagedObjectReference{Type: "TaskManager", Value: "TaskManager"}
	m.api = &taskManager{m: m}
	m.api.Self = self
	m.api.MaxCollector = maxCollectors
	if old, ok := m.vim.Get(self).(*simulator.TaskManager); ok {
		m.vim.RemoveHandler(old)
		m.api.Description = old.Description
	}
	m.vim.Put(m.api)
}

// Get implements the interface by which vcsim's property collector asks for an
// object whose properties are made on demand.
func (tm *taskManager) Get() mo.Reference {
	return &mo.TaskManager{Self: tm.Self, RecentTask: tm.m.recent(), Description: tm.Description, MaxCollector: tm.MaxCollector}
}

// changed tells watchers that recentTask is another.
func (tm *taskManager) changed() {
	n := &listNotice{}
	n.Self = tm.Self
	tm.m.context(tm.m.ctx).Update(n, []vim.PropertyChange{{Name: "recentTask", Val: []vim.ManagedObjectReference(nil)}})
}

// listNotice stands for the TaskManager in what handlers of the registry are
// told: nothing in the object itself changes.
type listNotice struct{ mo.TaskManager }

// CreateTask makes a task of an extension's, which the client reports on itself.
func (tm *taskManager) CreateTask(ctx *simulator.Context, req *vim.CreateTask) soap.HasFault {
	body := &methods.CreateTaskBody{}
	known := slices.ContainsFunc(tm.m.vim.ExtensionManager().ExtensionList, func(x vim.Extension) bool {
		return slices.ContainsFunc(x.TaskList, func(t vim.ExtensionTaskTypeInfo) bool { return t.TaskID == req.TaskTypeId })
	})
	if !known {
		body.Fault_ = refuse("", &vim.InvalidArgument{InvalidProperty: "taskType"})
		return body
	}
	j := Job{Entity: req.Obj, DescriptionID: req.TaskTypeId, Cancelable: req.Cancelable}
	t := tm.m.enter(ctx, j, true)
	info := t.info()
	body.Res = &vim.CreateTaskResponse{Returnval: info}
	return body
}

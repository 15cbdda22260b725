package vcenter

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/task"
)

// machine answers the methods of a VM that change its power or remove it.
// vcsim's write log files and delete directories.
type machine struct {
	*simulator.VirtualMachine
	v *VCenter
}

// Reference implements mo.Reference.
func (m *machine) Reference() ref { return m.Self }

// task runs an operation on the VM as a task of a method of the API.
func (m *machine) task(ctx *simulator.Context, op string, run func(*simulator.Context) types.BaseMethodFault) ref {
	id := strings.TrimSuffix(strings.TrimSuffix(op, "_Task"), "VM")
	return m.v.startTask(ctx, m.VirtualMachine, task.Job{
		Call: task.Call{Op: op, VM: m.Self.Value}, Entity: m.Self, EntityName: m.Name,
		Name: op, DescriptionID: "VirtualMachine." + lower(id),
	}, func(_ context.Context, c *simulator.Context) (types.AnyType, types.BaseMethodFault) {
		if t, busy := m.v.face.Occupied(m.Self); busy {
			return nil, &types.TaskInProgress{Task: t}
		}
		return nil, run(c)
	})
}

// PowerOnVMTask implements PowerOnVM_Task.
func (m *machine) PowerOnVMTask(ctx *simulator.Context, _ *types.PowerOnVM_Task) soap.HasFault {
	return &methods.PowerOnVM_TaskBody{Res: &types.PowerOnVM_TaskResponse{Returnval: m.start(ctx, "PowerOnVM_Task", func(ctx context.Context, c *simulator.Context, _ ref) (types.AnyType, types.BaseMethodFault) {
		if t, busy := m.v.face.Occupied(m.Self); busy {
			return nil, &types.TaskInProgress{Task: t}
		}
		return nil, m.powerOn(ctx, c)
	})}}
}

// powerOn starts the VM; no lock of it is held. Whose disks another VM has
// can't start: they are locked.
func (m *machine) powerOn(ctx context.Context, c *simulator.Context) (fault types.BaseMethodFault) {
	if fault := m.v.face.Claim(ctx, c, m.Self); fault != nil {
		return fault
	}
	c.WithLock(m.VirtualMachine, func() {
		if m.v.vim.Get(m.Self) == nil {
			fault = &types.ManagedObjectNotFound{Obj: m.Self}
			return
		}
		fault = m.power(c, types.VirtualMachinePowerStatePoweredOn)
	})
	return fault
}

// PowerOffVMTask implements PowerOffVM_Task.
func (m *machine) PowerOffVMTask(ctx *simulator.Context, _ *types.PowerOffVM_Task) soap.HasFault {
	return &methods.PowerOffVM_TaskBody{Res: &types.PowerOffVM_TaskResponse{Returnval: m.task(ctx, "PowerOffVM_Task", func(c *simulator.Context) types.BaseMethodFault {
		return m.power(c, types.VirtualMachinePowerStatePoweredOff)
	})}}
}

// SuspendVMTask implements SuspendVM_Task.
func (m *machine) SuspendVMTask(ctx *simulator.Context, _ *types.SuspendVM_Task) soap.HasFault {
	return &methods.SuspendVM_TaskBody{Res: &types.SuspendVM_TaskResponse{Returnval: m.task(ctx, "SuspendVM_Task", func(c *simulator.Context) types.BaseMethodFault {
		return m.power(c, types.VirtualMachinePowerStateSuspended)
	})}}
}

// ResetVMTask implements ResetVM_Task.
func (m *machine) ResetVMTask(ctx *simulator.Context, _ *types.ResetVM_Task) soap.HasFault {
	return &methods.ResetVM_TaskBody{Res: &types.ResetVM_TaskResponse{Returnval: m.task(ctx, "ResetVM_Task", func(c *simulator.Context) types.BaseMethodFault {
		if s := m.Runtime.PowerState; s != types.VirtualMachinePowerStatePoweredOn {
			return &types.InvalidPowerState{RequestedState: types.VirtualMachinePowerStatePoweredOn, ExistingState: s}
		}
		now := time.Now()
		c.Update(m.VirtualMachine, []types.PropertyChange{{Name: "runtime.bootTime", Val: now}, {Name: "summary.runtime.bootTime", Val: now}})
		return nil
	})}}
}

// power changes the power state; the VM is locked by ctx.
func (m *machine) power(ctx *simulator.Context, to types.VirtualMachinePowerState) types.BaseMethodFault {
	is := m.Runtime.PowerState
	if is == to || to == types.VirtualMachinePowerStateSuspended && is != types.VirtualMachinePowerStatePoweredOn {
		want := to
		if to == types.VirtualMachinePowerStateSuspended {
			want = types.VirtualMachinePowerStatePoweredOn
		}
		return &types.InvalidPowerState{RequestedState: want, ExistingState: is}
	}
	if fault := m.connected(); fault != nil {
		return fault
	}
	if to == types.VirtualMachinePowerStatePoweredOn {
		if h, ok := m.v.vim.Get(*m.Runtime.Host).(*simulator.HostSystem); ok {
			if fault := m.v.takesVM(ctx, h, ""); fault != nil {
				return fault
			}
		}
	}
	m.powered(ctx, to)
	return nil
}

// connected says whether vCenter can reach the VM's host; the VM is locked.
func (m *machine) connected() types.BaseMethodFault {
	if s := m.Runtime.ConnectionState; s != "" && s != types.VirtualMachineConnectionStateConnected {
		return &types.HostNotConnected{}
	}
	return nil
}

// powered notes a power state; the VM is locked by ctx.
func (m *machine) powered(ctx *simulator.Context, to types.VirtualMachinePowerState) {
	changes := []types.PropertyChange{{Name: "runtime.powerState", Val: to}, {Name: "summary.runtime.powerState", Val: to}}
	state := "notRunning"
	if to == types.VirtualMachinePowerStatePoweredOn {
		now := time.Now()
		state = "running"
		changes = append(changes, types.PropertyChange{Name: "runtime.bootTime", Val: now}, types.PropertyChange{Name: "summary.runtime.bootTime", Val: now})
	}
	changes = append(changes, types.PropertyChange{Name: "guest.guestState", Val: state})
	ctx.Update(m.VirtualMachine, changes)
	m.v.stir.beat()
}

// remove takes the VM out of the inventory; the VM is locked by ctx. It says
// which node the VM was.
func (m *machine) remove(ctx *simulator.Context) (node string, fault types.BaseMethodFault) {
	if s := m.Runtime.PowerState; s != types.VirtualMachinePowerStatePoweredOff {
		return "", &types.InvalidPowerState{RequestedState: types.VirtualMachinePowerStatePoweredOff, ExistingState: s}
	}
	v, self := m.v, m.Self
	// In the inventory first: who still finds the reference gets
	// ManagedObjectNotFound.
	v.vim.Remove(ctx, self)
	v.unlink(ctx, self, m.VirtualMachine)
	v.dropChild(ctx, *m.Parent, self)
	for _, s := range snapshotsOf(m.Snapshot) {
		v.vim.Remove(ctx, s)
	}
	v.stir.beat()
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.unindex(m.VirtualMachine, m.Config.Uuid), nil
}

// AttachedDisk is a disk of CNS in the hardware of a VM.
type AttachedDisk struct {
	VolumeID      string
	DiskUUID      string // 32 lower case hex digits, as the node sees it
	ControllerKey int32
	Unit          int32
}

func (v *VCenter) machineOf(node string) (*machine, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	vm := v.inv.vms[node]
	if vm == nil {
		return nil, fmt.Errorf("vcenter: no VM for node %q", node)
	}
	return &machine{vm, v}, nil
}

func (v *VCenter) power(node string, to types.VirtualMachinePowerState) error {
	m, err := v.machineOf(node)
	if err != nil {
		return err
	}
	ctx := v.internal()
	var f types.BaseMethodFault
	if to == types.VirtualMachinePowerStatePoweredOn {
		f = m.powerOn(v.ctx, ctx)
	} else {
		ctx.WithLock(m.VirtualMachine, func() { f = m.power(ctx, to) })
	}
	if f != nil {
		return fmt.Errorf("vcenter: node %q: %w", node, &Fault{Fault: f})
	}
	return nil
}

// PowerOff cuts the power of a node's VM, PowerOn and Suspend likewise. They
// act on the inventory only: the node's host is the lab's to stop.
func (v *VCenter) PowerOff(node string) error {
	return v.power(node, types.VirtualMachinePowerStatePoweredOff)
}

// PowerOn starts a node's VM.
func (v *VCenter) PowerOn(node string) error {
	return v.power(node, types.VirtualMachinePowerStatePoweredOn)
}

// Suspend suspends a node's VM.
func (v *VCenter) Suspend(node string) error {
	return v.power(node, types.VirtualMachinePowerStateSuspended)
}

// DeleteVM powers a node's VM off where needed and deletes it.
func (v *VCenter) DeleteVM(node string) error {
	m, err := v.machineOf(node)
	if err != nil {
		return err
	}
	ctx := v.internal()
	var f types.BaseMethodFault
	ctx.WithLock(m.VirtualMachine, func() {
		if m.Runtime.PowerState != types.VirtualMachinePowerStatePoweredOff {
			f = m.power(ctx, types.VirtualMachinePowerStatePoweredOff)
		}
	})
	if f == nil {
		f = m.destroy(v.ctx, ctx)
	}
	if f != nil {
		return fmt.Errorf("vcenter: node %q: %w", node, &Fault{Fault: f})
	}
	return nil
}

// AddVM adds a VM for a node. Its zone must be one that the vCenter was
// started with.
func (v *VCenter) AddVM(n Node) error {
	if err := n.validate(); err != nil {
		return err
	}
	v.adding.Lock()
	defer v.adding.Unlock()
	return v.addVM(n)
}

// VMUUID is the BIOS uuid of a node's VM, lower case; "" when there is none.
func (v *VCenter) VMUUID(node string) string {
	v.mu.Lock()
	vm := v.inv.vms[node]
	v.mu.Unlock()
	if vm == nil {
		return ""
	}
	uuid := ""
	v.internal().WithLock(vm, func() { uuid = strings.ToLower(vm.Config.Uuid) })
	return uuid
}

// nodeName is the node that a VM is; for others the VM's name, or its
// reference when it is gone.
func (v *VCenter) nodeName(vm ref) string {
	v.mu.Lock()
	node, ok := v.inv.nodeOf[vm]
	v.mu.Unlock()
	if ok {
		return node
	}
	name := vm.Value
	if m, ok := v.vim.Get(vm).(*simulator.VirtualMachine); ok {
		v.internal().WithLock(m, func() { name = m.Name })
	}
	return name
}

func (v *VCenter) nodeByUUID(uuid string) string {
	if vms := v.byUUID(uuid); len(vms) > 0 {
		return v.nodeName(vms[0].Self)
	}
	return uuid
}

var _ mo.Reference = (*machine)(nil)

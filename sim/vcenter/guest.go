package vcenter

import (
	"context"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// What a guest is asked to do it does at once: vCenter doesn't wait for it
// either, the calls are no tasks. They act on the inventory only, as the other
// changes of power do.

// guest asks the tools of a VM that runs; the VM is locked by ctx.
func (m *machine) guest(do func()) types.BaseMethodFault {
	if s := m.Runtime.PowerState; s != types.VirtualMachinePowerStatePoweredOn {
		return &types.InvalidPowerState{RequestedState: types.VirtualMachinePowerStatePoweredOn, ExistingState: s}
	}
	if fault := m.connected(); fault != nil {
		return fault
	}
	if m.Guest == nil || m.Guest.ToolsRunningStatus != string(types.VirtualMachineToolsRunningStatusGuestToolsRunning) {
		return &types.ToolsUnavailable{}
	}
	do()
	return nil
}

// ShutdownGuest implements the method of the API.
func (m *machine) ShutdownGuest(ctx *simulator.Context, _ *types.ShutdownGuest) soap.HasFault {
	if f := m.guest(func() { m.powered(ctx, types.VirtualMachinePowerStatePoweredOff) }); f != nil {
		return &methods.ShutdownGuestBody{Fault_: simulator.Fault("", f)}
	}
	return &methods.ShutdownGuestBody{Res: &types.ShutdownGuestResponse{}}
}

// StandbyGuest implements the method of the API.
func (m *machine) StandbyGuest(ctx *simulator.Context, _ *types.StandbyGuest) soap.HasFault {
	if f := m.guest(func() { m.powered(ctx, types.VirtualMachinePowerStateSuspended) }); f != nil {
		return &methods.StandbyGuestBody{Fault_: simulator.Fault("", f)}
	}
	return &methods.StandbyGuestBody{Res: &types.StandbyGuestResponse{}}
}

// RebootGuest implements the method of the API.
func (m *machine) RebootGuest(ctx *simulator.Context, _ *types.RebootGuest) soap.HasFault {
	if f := m.guest(func() { m.rebooted(ctx) }); f != nil {
		return &methods.RebootGuestBody{Fault_: simulator.Fault("", f)}
	}
	return &methods.RebootGuestBody{Res: &types.RebootGuestResponse{}}
}

// rebooted notes a new start; the VM is locked by ctx.
func (m *machine) rebooted(ctx *simulator.Context) {
	now := time.Now()
	ctx.Update(m.VirtualMachine, []types.PropertyChange{{Name: "runtime.bootTime", Val: now}, {Name: "summary.runtime.bootTime", Val: now}})
}

// RenameTask implements Rename_Task: the name in the inventory changes, the
// files keep theirs.
func (m *machine) RenameTask(ctx *simulator.Context, req *types.Rename_Task) soap.HasFault {
	name := req.NewName
	return &methods.Rename_TaskBody{Res: &types.Rename_TaskResponse{Returnval: m.start(ctx, "Rename_Task", func(ctx context.Context, c *simulator.Context, task ref) (types.AnyType, types.BaseMethodFault) {
		if f := vmName(name); f != nil {
			return nil, f
		}
		return nil, m.reconfigure(ctx, c, task, &types.VirtualMachineConfigSpec{Name: name})
	})}}
}

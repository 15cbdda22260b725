package vcenter

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// host answers the methods of a host that change its state. There is no DRS:
// nothing moves the VMs of a host but who asks for it.
type host struct {
	*simulator.HostSystem
	v *VCenter
}

// Reference implements mo.Reference.
func (h *host) Reference() ref { return h.Self }

func (h *host) start(rc *simulator.Context, op string, cancelable bool, work vmWork) ref {
	return h.v.startTaskAt(rc, op, h.Self, h.Name, cancelable, work)
}

// EnterMaintenanceModeTask implements EnterMaintenanceMode_Task. Without DRS it
// goes on until somebody has moved, powered off or suspended the last VM that
// runs on the host, or until its timeout (seconds, 0: none); VMs that are off
// stay.
func (h *host) EnterMaintenanceModeTask(ctx *simulator.Context, req *types.EnterMaintenanceMode_Task) soap.HasFault {
	timeout := time.Duration(max(req.Timeout, 0)) * time.Second
	return &methods.EnterMaintenanceMode_TaskBody{Res: &types.EnterMaintenanceMode_TaskResponse{Returnval: h.start(ctx, "EnterMaintenanceMode_Task", true, func(ctx context.Context, c *simulator.Context, _ ref) (types.AnyType, types.BaseMethodFault) {
		return nil, h.enterMaintenance(ctx, c, timeout)
	})}}
}

func (h *host) enterMaintenance(ctx context.Context, c *simulator.Context, timeout time.Duration) (fault types.BaseMethodFault) {
	c.WithLock(h.HostSystem, func() {
		switch {
		case h.Runtime.ConnectionState != types.HostSystemConnectionStateConnected:
			fault = &types.HostNotConnected{}
		case h.Runtime.InMaintenanceMode:
			fault = &types.InvalidState{}
		}
	})
	if fault != nil {
		return fault
	}
	var late <-chan time.Time
	if timeout > 0 {
		t := time.NewTimer(timeout)
		defer t.Stop()
		late = t.C
	}
	for {
		next := h.v.stir.next()
		if !h.running(c) {
			break
		}
		select {
		case <-next:
		case <-late:
			return &types.Timedout{}
		case <-ctx.Done():
			return &types.RequestCanceled{}
		}
	}
	h.set(c, types.PropertyChange{Name: "runtime.inMaintenanceMode", Val: true})
	return nil
}

// running says whether a VM runs on the host.
func (h *host) running(c *simulator.Context) bool {
	return slices.ContainsFunc(h.vms(c), func(vm *simulator.VirtualMachine) bool {
		on := false
		c.WithLock(vm, func() { on = vm.Runtime.PowerState == types.VirtualMachinePowerStatePoweredOn })
		return on
	})
}

func (h *host) vms(c *simulator.Context) (out []*simulator.VirtualMachine) {
	var refs []ref
	c.WithLock(h.HostSystem, func() { refs = slices.Clone(h.Vm) })
	for _, r := range refs {
		if vm, ok := h.v.vim.Get(r).(*simulator.VirtualMachine); ok {
			out = append(out, vm)
		}
	}
	return out
}

// set changes a property of the host's runtime, in its summary too.
func (h *host) set(c *simulator.Context, p types.PropertyChange) {
	c.WithLock(h.HostSystem, func() {
		s := p
		s.Name = "summary." + p.Name
		changes := []types.PropertyChange{p}
		if h.Summary.Runtime != nil {
			changes = append(changes, s)
		}
		c.Update(h.HostSystem, changes)
	})
	h.v.stir.beat()
}

// ExitMaintenanceModeTask implements ExitMaintenanceMode_Task.
func (h *host) ExitMaintenanceModeTask(ctx *simulator.Context, _ *types.ExitMaintenanceMode_Task) soap.HasFault {
	return &methods.ExitMaintenanceMode_TaskBody{Res: &types.ExitMaintenanceMode_TaskResponse{Returnval: h.start(ctx, "ExitMaintenanceMode_Task", false, func(_ context.Context, c *simulator.Context, _ ref) (types.AnyType, types.BaseMethodFault) {
		return nil, h.exitMaintenance(c)
	})}}
}

func (h *host) exitMaintenance(c *simulator.Context) (fault types.BaseMethodFault) {
	c.WithLock(h.HostSystem, func() {
		if !h.Runtime.InMaintenanceMode {
			fault = &types.InvalidState{}
		}
	})
	if fault == nil {
		h.set(c, types.PropertyChange{Name: "runtime.inMaintenanceMode", Val: false})
	}
	return fault
}

// DisconnectHostTask implements DisconnectHost_Task. The VMs of the host run
// on, but vCenter can do nothing to them.
func (h *host) DisconnectHostTask(ctx *simulator.Context, _ *types.DisconnectHost_Task) soap.HasFault {
	return &methods.DisconnectHost_TaskBody{Res: &types.DisconnectHost_TaskResponse{Returnval: h.start(ctx, "DisconnectHost_Task", false, func(_ context.Context, c *simulator.Context, _ ref) (types.AnyType, types.BaseMethodFault) {
		return nil, h.connect(c, types.HostSystemConnectionStateDisconnected)
	})}}
}

// ReconnectHostTask implements ReconnectHost_Task.
func (h *host) ReconnectHostTask(ctx *simulator.Context, _ *types.ReconnectHost_Task) soap.HasFault {
	return &methods.ReconnectHost_TaskBody{Res: &types.ReconnectHost_TaskResponse{Returnval: h.start(ctx, "ReconnectHost_Task", false, func(_ context.Context, c *simulator.Context, _ ref) (types.AnyType, types.BaseMethodFault) {
		return nil, h.connect(c, types.HostSystemConnectionStateConnected)
	})}}
}

// connect changes whether vCenter is connected to the host, and with it what it
// knows about the host's VMs and datastores.
func (h *host) connect(c *simulator.Context, to types.HostSystemConnectionState) (fault types.BaseMethodFault) {
	c.WithLock(h.HostSystem, func() {
		if h.Runtime.ConnectionState == to {
			fault = &types.InvalidState{}
		}
	})
	if fault != nil {
		return fault
	}
	h.set(c, types.PropertyChange{Name: "runtime.connectionState", Val: to})
	state := types.VirtualMachineConnectionStateDisconnected
	if to == types.HostSystemConnectionStateConnected {
		state = types.VirtualMachineConnectionStateConnected
	}
	for _, vm := range h.vms(c) {
		c.WithLock(vm, func() {
			c.Update(vm, []types.PropertyChange{{Name: "runtime.connectionState", Val: state}, {Name: "summary.runtime.connectionState", Val: state}})
		})
	}
	h.v.accessible(c)
	return nil
}

// accessible makes each datastore agree with the hosts that mount it: one that
// no connected host reaches is not accessible.
func (v *VCenter) accessible(c *simulator.Context) {
	for _, d := range v.inv.datastores {
		var mounts []types.DatastoreHostMount
		c.WithLock(d, func() { mounts = slices.Clone(d.Host) })
		reached := slices.ContainsFunc(mounts, func(m types.DatastoreHostMount) bool {
			if a := m.MountInfo.Accessible; a != nil && !*a {
				return false
			}
			h, ok := v.vim.Get(m.Key).(*simulator.HostSystem)
			connected := false
			if ok {
				c.WithLock(h, func() { connected = h.Runtime.ConnectionState == types.HostSystemConnectionStateConnected })
			}
			return connected
		})
		c.WithLock(d, func() {
			if d.Summary.Accessible != reached {
				c.Update(d, []types.PropertyChange{{Name: "summary.accessible", Val: reached}})
			}
		})
	}
}

// Hosts are the names of all hosts, by cluster.
func (v *VCenter) Hosts() (names []string) {
	for _, z := range v.inv.zones {
		for _, h := range z.hosts {
			names = append(names, h.Name)
		}
	}
	return names
}

// HostOf is the name of the host that a node's VM is on; "" when there is no
// such VM.
func (v *VCenter) HostOf(node string) string {
	m, err := v.machineOf(node)
	if err != nil {
		return ""
	}
	var at ref
	c := v.internal()
	c.WithLock(m.VirtualMachine, func() { at = *m.Runtime.Host })
	if h, ok := v.vim.Get(at).(*simulator.HostSystem); ok {
		return h.Name
	}
	return ""
}

func (v *VCenter) hostNamed(name string) (*host, error) {
	for _, z := range v.inv.zones {
		for _, h := range z.hosts {
			if h.Name == name {
				return &host{h, v}, nil
			}
		}
	}
	return nil, fmt.Errorf("vcenter: no host %q; there are %q", name, v.Hosts())
}

func (v *VCenter) onHost(name string, do func(*host, *simulator.Context) types.BaseMethodFault) error {
	h, err := v.hostNamed(name)
	if err != nil {
		return err
	}
	if f := do(h, v.internal()); f != nil {
		return fmt.Errorf("vcenter: host %q: %w", name, &Fault{Fault: f})
	}
	return nil
}

// HostDisconnect takes vCenter's connection to a host: its VMs run on, but
// can't be changed. HostReconnect gives it back.
func (v *VCenter) HostDisconnect(name string) error {
	return v.onHost(name, func(h *host, c *simulator.Context) types.BaseMethodFault {
		return h.connect(c, types.HostSystemConnectionStateDisconnected)
	})
}

// HostReconnect ends HostDisconnect and HostFail.
func (v *VCenter) HostReconnect(name string) error {
	return v.onHost(name, func(h *host, c *simulator.Context) types.BaseMethodFault {
		return h.connect(c, types.HostSystemConnectionStateConnected)
	})
}

// HostFail lets a host stop to respond, as one does that lost its power. What
// runs in its VMs is the lab's to stop; vCenter goes on to show the power state
// that it saw last. There is no HA that would start the VMs elsewhere.
func (v *VCenter) HostFail(name string) error {
	return v.onHost(name, func(h *host, c *simulator.Context) types.BaseMethodFault {
		return h.connect(c, types.HostSystemConnectionStateNotResponding)
	})
}

// HostMaintenance puts a host into maintenance mode or out of it. VMs that run
// on it stand against that.
func (v *VCenter) HostMaintenance(name string, on bool) error {
	return v.onHost(name, func(h *host, c *simulator.Context) types.BaseMethodFault {
		if !on {
			return h.exitMaintenance(c)
		}
		if h.running(c) {
			return &types.InvalidState{}
		}
		return h.enterMaintenance(v.ctx, c, 0)
	})
}

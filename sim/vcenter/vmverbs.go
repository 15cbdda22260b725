package vcenter

import (
	"context"
	"fmt"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/types"
)

// What an administrator does to the VM of a node. The verbs return when it is
// done; clients see the results, but no task. An error is a *Fault inside.

// labTask stands for the lab where a task has a VM.
var labTask = ref{Type: "Task", Value: "csilab"}

// administer runs do with a node's VM for itself.
func (v *VCenter) administer(node string, do func(context.Context, *machine, *simulator.Context) types.BaseMethodFault) error {
	m, err := v.machineOf(node)
	if err != nil {
		return err
	}
	release, f := v.face.Occupy(v.ctx, m.Self, labTask)
	if f == nil {
		defer release()
		f = do(v.ctx, m, v.internal())
	}
	if f != nil {
		return fmt.Errorf("vcenter: node %q: %w", node, &Fault{Fault: f})
	}
	return nil
}

// MoveVM migrates a node's VM to a host.
func (v *VCenter) MoveVM(node, to string) error {
	h, err := v.hostNamed(to)
	if err != nil {
		return err
	}
	return v.administer(node, func(ctx context.Context, m *machine, c *simulator.Context) types.BaseMethodFault {
		return m.move(ctx, c, labTask, move{host: &h.Self})
	})
}

// CloneVM copies a node's VM. The copy is no node and shares no volume.
func (v *VCenter) CloneVM(node, name string) error {
	return v.administer(node, func(ctx context.Context, m *machine, c *simulator.Context) types.BaseMethodFault {
		_, f := m.clone(ctx, c, types.CloneVM_Task{Folder: *m.Parent, Name: name})
		return f
	})
}

// SnapshotVM takes a snapshot of a node's VM, which pins its volumes.
func (v *VCenter) SnapshotVM(node, name string) error {
	return v.administer(node, func(ctx context.Context, m *machine, c *simulator.Context) types.BaseMethodFault {
		_, f := m.snapshot(ctx, c, name, "", false, false)
		return f
	})
}

// RevertVM takes a node's VM back to its current snapshot.
func (v *VCenter) RevertVM(node string) error {
	return v.administer(node, func(ctx context.Context, m *machine, c *simulator.Context) types.BaseMethodFault {
		var to *ref
		c.WithLock(m.VirtualMachine, func() {
			if m.Snapshot != nil {
				to = m.Snapshot.CurrentSnapshot
			}
		})
		if to == nil {
			return &types.NotFound{}
		}
		return m.revert(ctx, c, labTask, *to, nil)
	})
}

// RemoveVMSnapshots removes all snapshots of a node's VM.
func (v *VCenter) RemoveVMSnapshots(node string) error {
	return v.administer(node, func(_ context.Context, m *machine, c *simulator.Context) types.BaseMethodFault {
		return m.dropSnapshots(c, func(snapshotTree) (drop, children bool) { return true, true })
	})
}

// UnregisterVM powers a node's VM off where needed and takes it out of the
// inventory; its files stay. RegisterVM brings it back.
func (v *VCenter) UnregisterVM(node string) error {
	return v.administer(node, func(_ context.Context, m *machine, c *simulator.Context) (f types.BaseMethodFault) {
		c.WithLock(m.VirtualMachine, func() {
			if m.Runtime.PowerState != types.VirtualMachinePowerStatePoweredOff {
				f = m.power(c, types.VirtualMachinePowerStatePoweredOff)
			}
			if f == nil {
				f = m.unregister(c)
			}
		})
		return f
	})
}

// RegisterVM brings the VM of a node back that was unregistered, powered off
// and under another reference.
func (v *VCenter) RegisterVM(node string) error {
	var path string
	v.mu.Lock()
	for p, s := range v.inv.shelf {
		if s.node == node {
			path = p
		}
	}
	s := v.inv.shelf[path]
	v.mu.Unlock()
	if path == "" {
		return fmt.Errorf("vcenter: no unregistered VM of node %q", node)
	}
	_, f := v.register(v.ctx, v.internal(), types.RegisterVM_Task{This: s.at.folder, Path: path, Pool: &s.at.pool, Host: &s.at.host.Self})
	if f != nil {
		return fmt.Errorf("vcenter: node %q: %w", node, &Fault{Fault: f})
	}
	return nil
}

package vcenter

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cnsface"
)

// snapshotLevels is how many snapshots may stand on each other (vSphere
// configuration maximums).
const snapshotLevels = 32

// vmSnapshot is a point in the life of a VM: its configuration then. It pins
// the VM's dependent disks, volumes too.
type vmSnapshot struct {
	mo.VirtualMachineSnapshot
	v *VCenter
	// kept is the name of its content in the store of images, where that is not
	// its own: it was another object before the VM was registered again.
	kept string
}

// Reference implements mo.Reference.
func (s *vmSnapshot) Reference() ref { return s.Self }

func (v *VCenter) newSnapshot() *vmSnapshot {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.inv.points++
	s := &vmSnapshot{v: v}
	s.Self = ref{Type: "VirtualMachineSnapshot", Value: fmt.Sprintf("snapshot-%d", v.inv.points)}
	return s
}

type snapshotTree = types.VirtualMachineSnapshotTree

// Snapshots are changed as a whole: who reads the old list goes on undisturbed.

// walkTree calls f for each snapshot, parents first. level counts from 1.
func walkTree(list []snapshotTree, level int, f func(s snapshotTree, level int)) {
	for _, s := range list {
		f(s, level)
		walkTree(s.ChildSnapshotList, level+1, f)
	}
}

// snapshotsOf lists all snapshots of a VM.
func snapshotsOf(info *types.VirtualMachineSnapshotInfo) (out []ref) {
	if info != nil {
		walkTree(info.RootSnapshotList, 1, func(s snapshotTree, _ int) { out = append(out, s.Snapshot) })
	}
	return out
}

// rewrite copies a tree with what f makes of each node; f may return several
// nodes, or none.
func rewrite(list []snapshotTree, f func(snapshotTree) []snapshotTree) (out []snapshotTree) {
	for _, s := range list {
		s.ChildSnapshotList = rewrite(s.ChildSnapshotList, f)
		out = append(out, f(s)...)
	}
	return out
}

// parentIn finds the snapshot that another one stands on.
func parentIn(list []snapshotTree, child ref) *ref {
	for _, s := range list {
		for _, c := range s.ChildSnapshotList {
			if c.Snapshot == child {
				r := s.Snapshot
				return &r
			}
		}
		if r := parentIn(s.ChildSnapshotList, child); r != nil {
			return r
		}
	}
	return nil
}

// CreateSnapshotTask implements CreateSnapshot_Task.
func (m *machine) CreateSnapshotTask(ctx *simulator.Context, req *types.CreateSnapshot_Task) soap.HasFault {
	r := *req
	return &methods.CreateSnapshot_TaskBody{Res: &types.CreateSnapshot_TaskResponse{Returnval: m.occupied(ctx, "CreateSnapshot_Task", false, func(ctx context.Context, c *simulator.Context, _ ref) (types.AnyType, types.BaseMethodFault) {
		return answer(m.snapshot(ctx, c, r.Name, r.Description, r.Memory, r.Quiesce))
	})}}
}

// CreateSnapshotExTask implements CreateSnapshotEx_Task.
func (m *machine) CreateSnapshotExTask(ctx *simulator.Context, req *types.CreateSnapshotEx_Task) soap.HasFault {
	r := *req
	return &methods.CreateSnapshotEx_TaskBody{Res: &types.CreateSnapshotEx_TaskResponse{Returnval: m.occupied(ctx, "CreateSnapshotEx_Task", false, func(ctx context.Context, c *simulator.Context, _ ref) (types.AnyType, types.BaseMethodFault) {
		quiesce := r.QuiesceSpec != nil
		return answer(m.snapshot(ctx, c, r.Name, r.Description, r.Memory, quiesce))
	})}}
}

func (m *machine) snapshot(ctx context.Context, c *simulator.Context, name, description string, memory, quiesce bool) (self ref, fault types.BaseMethodFault) {
	if name == "" || len(name) > 80 {
		return ref{}, &types.InvalidName{Name: name}
	}
	s := m.v.newSnapshot()
	on := false
	level, id := 0, int32(0)
	c.WithLock(m.VirtualMachine, func() {
		if m.v.vim.Get(m.Self) == nil {
			fault = &types.ManagedObjectNotFound{Obj: m.Self}
			return
		}
		on = m.Runtime.PowerState == types.VirtualMachinePowerStatePoweredOn
		if fault = m.connected(); fault == nil {
			fault = snapshotable(m.Config.Hardware.Device, on, memory)
		}
		if info := m.Snapshot; info != nil {
			walkTree(info.RootSnapshotList, 1, func(x snapshotTree, l int) {
				id = max(id, x.Id)
				if info.CurrentSnapshot != nil && x.Snapshot == *info.CurrentSnapshot {
					level = l
				}
			})
		}
		s.Vm = m.Self
		s.Config = *m.Config
		s.Config.Hardware.Device = slices.Clone(m.Config.Hardware.Device)
	})
	if fault == nil && level >= snapshotLevels {
		fault = &types.TooManySnapshotLevels{}
	}
	if fault != nil {
		return ref{}, fault
	}
	// The VM is this task's: its disks stay as they are until the end.
	if fault := m.v.face.Keep(ctx, s.content(), dependents(&s.Config)); fault != nil {
		return ref{}, fault
	}
	unlock := m.v.vim.AcquireLock(c, m.VirtualMachine)
	defer unlock()
	if m.v.vim.Get(m.Self) == nil {
		m.v.face.Unkeep(s.content(), dependents(&s.Config))
		return ref{}, &types.ManagedObjectNotFound{Obj: m.Self}
	}
	var old types.VirtualMachineSnapshotInfo
	if m.Snapshot != nil {
		old = *m.Snapshot
	}
	self = m.v.vim.Put(s).Reference()
	node := snapshotTree{
		Snapshot: self, Vm: m.Self, Name: name, Description: description, Id: id + 1, CreateTime: time.Now(),
		State: types.VirtualMachinePowerStatePoweredOff, Quiesced: quiesce, ReplaySupported: types.NewBool(false),
	}
	if memory && on || m.Runtime.PowerState == types.VirtualMachinePowerStateSuspended {
		node.State = m.Runtime.PowerState
	}
	roots := append(slices.Clone(old.RootSnapshotList), node)
	if level > 0 {
		roots = rewrite(old.RootSnapshotList, func(x snapshotTree) []snapshotTree {
			if x.Snapshot == *old.CurrentSnapshot {
				x.ChildSnapshotList = append(slices.Clone(x.ChildSnapshotList), node)
			}
			return []snapshotTree{x}
		})
	}
	m.setSnapshots(c, &self, roots)
	m.v.face.Pin(m.Self, m.v.pinsOf(m.Snapshot))
	return self, nil
}

// content is what the store of images calls the snapshot.
func (s *vmSnapshot) content() string {
	if s.kept != "" {
		return s.kept
	}
	return "vm-" + s.Self.Value
}

// dependents lists the volumes that a snapshot of a VM of this configuration
// takes in.
func dependents(config *types.VirtualMachineConfigInfo) (out []string) {
	for _, d := range config.Hardware.Device {
		x, ok := d.(*types.VirtualDisk)
		if !ok || x.VDiskId == nil {
			continue
		}
		if b, ok := x.Backing.(*types.VirtualDiskFlatVer2BackingInfo); ok && !independent(b) {
			out = append(out, x.VDiskId.Id)
		}
	}
	return out
}

// snapshotable says what stands against a snapshot of a VM. Independent disks
// are left out, but then the memory can't be part of it. Devices that other
// VMs use too stand against one of a VM that runs.
func snapshotable(devices []types.BaseVirtualDevice, on, memory bool) types.BaseMethodFault {
	refuse := func(d *types.VirtualDevice, why types.BaseMethodFault) types.BaseMethodFault {
		return &types.SnapshotIncompatibleDeviceInVm{Fault: types.LocalizedMethodFault{Fault: why, LocalizedMessage: textOf(why)}}
	}
	for _, dev := range devices {
		d := dev.GetVirtualDevice()
		switch x := dev.(type) {
		case *types.VirtualDisk:
			b, ok := x.Backing.(*types.VirtualDiskFlatVer2BackingInfo)
			if !ok {
				continue
			}
			if independent(b) {
				if memory && on {
					return &types.MemorySnapshotOnIndependentDisk{}
				}
				continue
			}
			if b.Sharing == string(types.VirtualDiskSharingSharingMultiWriter) {
				return refuse(d, &types.MultiWriterNotSupported{})
			}
		case types.BaseVirtualSCSIController:
			if bus := x.GetVirtualSCSIController().SharedBus; on && bus != "" && bus != types.VirtualSCSISharingNoSharing {
				return refuse(d, &types.SharedBusControllerNotSupported{})
			}
		}
	}
	return nil
}

func independent(b *types.VirtualDiskFlatVer2BackingInfo) bool {
	return b.DiskMode == string(types.VirtualDiskModeIndependent_persistent) || b.DiskMode == string(types.VirtualDiskModeIndependent_nonpersistent)
}

// setSnapshots changes the snapshots of the VM, which is locked by c.
func (m *machine) setSnapshots(c *simulator.Context, current *ref, roots []snapshotTree) {
	var refs []ref
	for _, s := range roots {
		refs = append(refs, s.Snapshot)
	}
	changes := []types.PropertyChange{{Name: "snapshot"}, {Name: "rootSnapshot", Val: refs}}
	if len(roots) > 0 {
		changes[0].Val = types.VirtualMachineSnapshotInfo{CurrentSnapshot: current, RootSnapshotList: roots}
	} else {
		changes[1].Val = nil
	}
	c.Update(m.VirtualMachine, changes)
}

// pinsOf lists the volumes that snapshots of a VM hold.
func (v *VCenter) pinsOf(info *types.VirtualMachineSnapshotInfo) (out []string) {
	for _, r := range snapshotsOf(info) {
		if s, ok := v.vim.Get(r).(*vmSnapshot); ok {
			out = append(out, dependents(&s.Config)...)
		}
	}
	return out
}

// pinned says whether a snapshot of the VM holds a disk. The VM is locked.
func (m *machine) pinned(d *types.VirtualDisk) bool {
	return d.VDiskId != nil && slices.Contains(m.v.pinsOf(m.Snapshot), d.VDiskId.Id)
}

// RemoveAllSnapshotsTask implements RemoveAllSnapshots_Task.
func (m *machine) RemoveAllSnapshotsTask(ctx *simulator.Context, _ *types.RemoveAllSnapshots_Task) soap.HasFault {
	return &methods.RemoveAllSnapshots_TaskBody{Res: &types.RemoveAllSnapshots_TaskResponse{Returnval: m.occupied(ctx, "RemoveAllSnapshots_Task", false, func(_ context.Context, c *simulator.Context, _ ref) (types.AnyType, types.BaseMethodFault) {
		return nil, m.dropSnapshots(c, func(snapshotTree) (drop, children bool) { return true, true })
	})}}
}

// RemoveSnapshotTask implements RemoveSnapshot_Task: the disks that it pinned
// are free, unless another one pins them.
func (s *vmSnapshot) RemoveSnapshotTask(ctx *simulator.Context, req *types.RemoveSnapshot_Task) soap.HasFault {
	r := *req
	m := &machine{VirtualMachine: s.machine(), v: s.v}
	if m.VirtualMachine == nil {
		return &methods.RemoveSnapshot_TaskBody{Fault_: simulator.Fault("", &types.ManagedObjectNotFound{Obj: s.Self})}
	}
	return &methods.RemoveSnapshot_TaskBody{Res: &types.RemoveSnapshot_TaskResponse{Returnval: m.occupied(ctx, "RemoveSnapshot_Task", false, func(_ context.Context, c *simulator.Context, _ ref) (types.AnyType, types.BaseMethodFault) {
		if s.v.vim.Get(r.This) == nil { // another task was faster
			return nil, &types.ManagedObjectNotFound{Obj: r.This}
		}
		return nil, m.dropSnapshots(c, func(x snapshotTree) (drop, children bool) { return x.Snapshot == r.This, r.RemoveChildren })
	})}}
}

func (s *vmSnapshot) machine() *simulator.VirtualMachine {
	vm, _ := s.v.vim.Get(s.Vm).(*simulator.VirtualMachine)
	return vm
}

// dropSnapshots removes those that which picks, with their children or
// handing these to the parent.
func (m *machine) dropSnapshots(c *simulator.Context, which func(snapshotTree) (drop, children bool)) types.BaseMethodFault {
	gone, fault := m.drop(c, which)
	for _, s := range gone {
		m.v.face.Unkeep(s.content(), dependents(&s.Config))
	}
	return fault
}

func (m *machine) drop(c *simulator.Context, which func(snapshotTree) (drop, children bool)) (out []*vmSnapshot, fault types.BaseMethodFault) {
	unlock := m.v.vim.AcquireLock(c, m.VirtualMachine)
	defer unlock()
	if fault := m.connected(); fault != nil {
		return nil, fault
	}
	if m.Snapshot == nil {
		return nil, nil
	}
	var gone []ref
	current := m.Snapshot.CurrentSnapshot
	old := m.Snapshot.RootSnapshotList
	left := rewrite(old, func(x snapshotTree) []snapshotTree {
		drop, children := which(x)
		if !drop {
			return []snapshotTree{x}
		}
		gone = append(gone, x.Snapshot)
		if !children {
			return x.ChildSnapshotList
		}
		walkTree(x.ChildSnapshotList, 1, func(y snapshotTree, _ int) { gone = append(gone, y.Snapshot) })
		return nil
	})
	for current != nil && slices.Contains(gone, *current) {
		current = parentIn(old, *current)
	}
	m.setSnapshots(c, current, left)
	m.v.face.Pin(m.Self, m.v.pinsOf(m.Snapshot))
	for _, r := range gone {
		if s, ok := m.v.vim.Get(r).(*vmSnapshot); ok {
			out = append(out, s)
		}
		m.v.vim.Remove(c, r)
	}
	return out, nil
}

// RenameSnapshot implements the method of the API.
func (s *vmSnapshot) RenameSnapshot(ctx *simulator.Context, req *types.RenameSnapshot) soap.HasFault {
	vm := s.machine()
	if vm == nil {
		return &methods.RenameSnapshotBody{Fault_: simulator.Fault("", &types.ManagedObjectNotFound{Obj: s.Self})}
	}
	if len(req.Name) > 80 {
		return &methods.RenameSnapshotBody{Fault_: simulator.Fault("", &types.InvalidName{Name: req.Name})}
	}
	m := &machine{VirtualMachine: vm, v: s.v}
	c := s.v.internal() // the dispatcher holds the snapshot's lock, no VM's
	c.WithLock(vm, func() {
		if vm.Snapshot == nil {
			return
		}
		m.setSnapshots(c, vm.Snapshot.CurrentSnapshot, rewrite(vm.Snapshot.RootSnapshotList, func(x snapshotTree) []snapshotTree {
			if x.Snapshot == req.This {
				if req.Name != "" {
					x.Name = req.Name
				}
				if req.Description != "" {
					x.Description = req.Description
				}
			}
			return []snapshotTree{x}
		}))
	})
	return &methods.RenameSnapshotBody{Res: &types.RenameSnapshotResponse{}}
}

// RevertToSnapshotTask implements RevertToSnapshot_Task.
func (s *vmSnapshot) RevertToSnapshotTask(ctx *simulator.Context, req *types.RevertToSnapshot_Task) soap.HasFault {
	r := *req
	m := &machine{VirtualMachine: s.machine(), v: s.v}
	if m.VirtualMachine == nil {
		return &methods.RevertToSnapshot_TaskBody{Fault_: simulator.Fault("", &types.ManagedObjectNotFound{Obj: s.Self})}
	}
	return &methods.RevertToSnapshot_TaskBody{Res: &types.RevertToSnapshot_TaskResponse{Returnval: m.occupied(ctx, "RevertToSnapshot_Task", false, func(ctx context.Context, c *simulator.Context, task ref) (types.AnyType, types.BaseMethodFault) {
		return nil, m.revert(ctx, c, task, r.This, r.SuppressPowerOn)
	})}}
}

// RevertToCurrentSnapshotTask implements RevertToCurrentSnapshot_Task.
func (m *machine) RevertToCurrentSnapshotTask(ctx *simulator.Context, req *types.RevertToCurrentSnapshot_Task) soap.HasFault {
	suppress := req.SuppressPowerOn
	return &methods.RevertToCurrentSnapshot_TaskBody{Res: &types.RevertToCurrentSnapshot_TaskResponse{Returnval: m.occupied(ctx, "RevertToCurrentSnapshot_Task", false, func(ctx context.Context, c *simulator.Context, task ref) (types.AnyType, types.BaseMethodFault) {
		var to *ref
		c.WithLock(m.VirtualMachine, func() {
			if m.Snapshot != nil {
				to = m.Snapshot.CurrentSnapshot
			}
		})
		if to == nil {
			return nil, &types.NotFound{}
		}
		return nil, m.revert(ctx, c, task, *to, suppress)
	})}}
}

// revert gives the VM the hardware that it had at a snapshot: disks that came
// later leave it, those that left come back, unless another VM has them
// (kubernetes archives, vsphere-storage-for-docker#1649).
func (m *machine) revert(ctx context.Context, c *simulator.Context, task, to ref, suppress *bool) types.BaseMethodFault {
	s, ok := m.v.vim.Get(to).(*vmSnapshot)
	if !ok {
		return &types.ManagedObjectNotFound{Obj: to}
	}
	var node snapshotTree
	fault := m.v.face.Reshape(ctx, c, m.Self, task, func(vm *mo.VirtualMachine) (cnsface.Shape, types.BaseMethodFault) {
		if fault := m.connected(); fault != nil {
			return cnsface.Shape{}, fault
		}
		found := false
		if vm.Snapshot != nil {
			walkTree(vm.Snapshot.RootSnapshotList, 1, func(x snapshotTree, _ int) {
				if x.Snapshot == to {
					node, found = x, true
				}
			})
		}
		if !found {
			return cnsface.Shape{}, &types.ManagedObjectNotFound{Obj: to}
		}
		return cnsface.Shape{Devices: slices.Clone(s.Config.Hardware.Device)}, nil
	})
	if fault != nil {
		return fault
	}
	if fault := m.v.face.Rewind(ctx, m.Self, s.content(), dependents(&s.Config)); fault != nil {
		return fault
	}
	c.WithLock(m.VirtualMachine, func() {
		if m.Snapshot != nil {
			m.setSnapshots(c, &to, m.Snapshot.RootSnapshotList)
		}
		state := node.State
		if state == types.VirtualMachinePowerStatePoweredOn && suppress != nil && *suppress {
			state = types.VirtualMachinePowerStatePoweredOff
		}
		if m.Runtime.PowerState != state {
			m.powered(c, state)
		}
	})
	m.v.relist(c, m.VirtualMachine)
	return nil
}

// restoreSnapshots gives a VM that is registered again the snapshots that its
// files tell of.
func (v *VCenter) restoreSnapshots(c *simulator.Context, vm *simulator.VirtualMachine, s shelved) {
	if s.snapshots == nil {
		return
	}
	now := map[ref]ref{}
	for old, p := range s.points {
		q := v.newSnapshot()
		q.Config, q.Vm, q.kept = p.Config, vm.Self, p.content()
		now[old] = v.vim.Put(q).Reference()
	}
	roots := rewrite(s.snapshots.RootSnapshotList, func(x snapshotTree) []snapshotTree {
		x.Snapshot, x.Vm = now[x.Snapshot], vm.Self
		return []snapshotTree{x}
	})
	var current *ref
	if s.snapshots.CurrentSnapshot != nil {
		r := now[*s.snapshots.CurrentSnapshot]
		current = &r
	}
	m := &machine{VirtualMachine: vm, v: v}
	c.WithLock(vm, func() {
		m.setSnapshots(c, current, roots)
		v.face.Pin(vm.Self, v.pinsOf(vm.Snapshot))
	})
}

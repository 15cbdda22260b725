package cnsface

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// Others than CNS change the hardware of VMs too: who reconfigures, reverts,
// clones or registers them. They do it through here, so that nodes get and lose
// the disks of volumes in the same order as with CNS, and never while a task of
// CNS is at the same volume or VM.

// Shape is what a VM shall be: its devices, and other properties that change
// with them.
type Shape struct {
	Devices []vim.BaseVirtualDevice
	Changes []vim.PropertyChange
}

// Occupy gives a VM to a task, e.g. its migration: until release, CNS refuses
// to change the VM's disks. It waits for what CNS is doing to the VM. Another
// task that has the VM is a TaskInProgress.
func (f *Face) Occupy(ctx context.Context, vm, task vim.ManagedObjectReference) (release func(), fault vim.BaseMethodFault) {
	unlock, err := f.vms.lock(ctx, vm.Value)
	if err != nil {
		return nil, &vim.RequestCanceled{}
	}
	defer unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if other, ok := f.occupied[vm.Value]; ok {
		return nil, &vim.TaskInProgress{Task: other}
	}
	if f.occupied == nil {
		f.occupied = map[string]vim.ManagedObjectReference{}
	}
	f.occupied[vm.Value] = task
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.occupied, vm.Value)
	}, nil
}

// occupant is the task that has a VM, or "".
func (f *Face) occupant(vm string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.occupied[vm].Value
}

// Reshape changes a VM. plan says how, from the VM as it is; it is called with
// the VM locked, maybe more than once, and must only read. task is the one that
// has the VM (see Occupy); another one that has it is a TaskInProgress. On a
// fault the VM is as it was.
func (f *Face) Reshape(ctx context.Context, c *simulator.Context, vm, task vim.ManagedObjectReference, plan func(*mo.VirtualMachine) (Shape, vim.BaseMethodFault)) vim.BaseMethodFault {
	obj, ok := f.inv.vm(vm)
	if !ok {
		return &vim.ManagedObjectNotFound{Obj: vm}
	}
	for {
		r, fault := f.draft(c, obj, plan)
		if fault != nil {
			return fault
		}
		ids := append(volumesIn(r.come), volumesIn(r.left)...)
		done, fault := f.reshape(ctx, c, obj, task, ids, plan)
		if done || fault != nil {
			return fault
		}
		// Meanwhile the VM got or lost a disk that plan has to do with: again.
	}
}

// change is what a plan comes down to.
type change struct {
	Shape
	machine
	come, left []cns.Attachment // disks of first class that come and go
}

func (f *Face) draft(c *simulator.Context, obj *simulator.VirtualMachine, plan func(*mo.VirtualMachine) (Shape, vim.BaseMethodFault)) (x change, fault vim.BaseMethodFault) {
	unlock := c.Map.AcquireLock(c, obj)
	defer unlock()
	if obj.Config == nil {
		return change{}, &vim.ManagedObjectNotFound{Obj: obj.Self}
	}
	x.Shape, fault = plan(&obj.VirtualMachine)
	if fault != nil {
		return change{}, fault
	}
	x.ref, x.obj, x.uuid = obj.Self, obj, strings.ToLower(obj.Config.Uuid)
	x.ID = obj.Self.Value
	if obj.Runtime.Host != nil {
		x.Host = obj.Runtime.Host.Value
	}
	old, next := hardware(&obj.VirtualMachine), disksOf(obj.Self.Value, x.Devices)
	x.come = without(next, old)
	x.left = without(old, next)
	return x, nil
}

// reshape does it with volumes and the VM locked; done is false when the
// volumes are not those that it takes.
func (f *Face) reshape(ctx context.Context, c *simulator.Context, obj *simulator.VirtualMachine, task vim.ManagedObjectReference, volumes []string, plan func(*mo.VirtualMachine) (Shape, vim.BaseMethodFault)) (done bool, fault vim.BaseMethodFault) {
	unlockVolumes, err := f.volumes.lockAll(ctx, slices.Clone(volumes)...)
	if err != nil {
		return false, &vim.RequestCanceled{}
	}
	defer unlockVolumes()
	unlockVM, err := f.vms.lock(ctx, obj.Self.Value)
	if err != nil {
		return false, &vim.RequestCanceled{}
	}
	defer unlockVM()
	if other := f.occupant(obj.Self.Value); other != "" && other != task.Value {
		return false, &vim.TaskInProgress{Task: vim.ManagedObjectReference{Type: "Task", Value: other}}
	}
	x, fault := f.draft(c, obj, plan)
	if fault != nil {
		return false, fault
	}
	for _, id := range append(volumesIn(x.come), volumesIn(x.left)...) {
		if !slices.Contains(volumes, id) {
			return false, nil
		}
	}
	f.inv.refresh(c)
	if fault := f.welcome(x.machine, x.come); fault != nil {
		return false, fault
	}
	if fault := f.give(ctx, x.uuid, x.come); fault != nil {
		return false, fault
	}
	for _, a := range x.left {
		defer f.inv.pulling(a.Volume, x.ID)()
	}
	for _, a := range x.come {
		defer f.inv.giving(a.Volume, x.uuid)()
	}
	func() {
		unlock := c.Map.AcquireLock(c, obj)
		defer unlock()
		f.inv.setDevices(c, obj, x.Devices)
		if len(x.Changes) > 0 {
			c.Update(obj, x.Changes)
		}
	}()
	f.take(ctx, x.uuid, x.left)
	return true, nil
}

// welcome checks that a VM may have disks.
func (f *Face) welcome(m machine, disks []cns.Attachment) vim.BaseMethodFault {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range disks {
		if err := f.core.PlanHold(a, m.Host); err != nil {
			return holdFault(err)
		}
	}
	return nil
}

// holdFault is what a VM is refused a first class disk with.
func holdFault(err error) vim.BaseMethodFault {
	var e *cns.Error
	if !errors.As(err, &e) {
		return &vim.SystemError{Reason: err.Error()}
	}
	switch e.Kind {
	case cns.NotFound:
		return &vim.FileNotFound{FileFault: vim.FileFault{File: e.Value}}
	case cns.InUse, cns.Pinned:
		// The file is open in another VM. Unverified: some versions say so in a
		// GenericVmConfigFault.
		return &vim.FileLocked{FileFault: vim.FileFault{File: e.Value}}
	}
	if l := cause(e); l != nil {
		return l.Fault
	}
	return &vim.SystemError{Reason: e.Error()}
}

// give plugs disks into a node, all of them or none.
func (f *Face) give(ctx context.Context, uuid string, disks []cns.Attachment) vim.BaseMethodFault {
	if f.cfg.Hardware == nil {
		return nil
	}
	for i, a := range disks {
		if err := f.cfg.Hardware.Attach(ctx, uuid, undash(a.DiskUUID), a.Volume); err != nil {
			f.take(ctx, uuid, disks[:i])
			return &vim.SystemError{Reason: err.Error()}
		}
	}
	return nil
}

func (f *Face) take(ctx context.Context, uuid string, disks []cns.Attachment) {
	if f.cfg.Hardware == nil {
		return
	}
	for _, a := range disks {
		if err := f.cfg.Hardware.Detach(ctx, uuid, undash(a.DiskUUID)); err != nil {
			f.log.Debug("pull a disk that left its VM", "uuid", uuid, "volume", a.Volume, "err", err)
		}
	}
}

// Adopt puts a VM into the inventory that has disks of volumes already, e.g.
// one that is registered again. Those that another VM holds by now stay out of
// its reach: CNS does not count them as attached to it.
func (f *Face) Adopt(ctx context.Context, vm *simulator.VirtualMachine, put func()) vim.BaseMethodFault {
	disks := disksOf("", vm.Config.Hardware.Device)
	unlock, err := f.volumes.lockAll(ctx, volumesIn(disks)...)
	if err != nil {
		return &vim.RequestCanceled{}
	}
	defer unlock()
	f.mu.Lock()
	disks = slices.DeleteFunc(disks, func(a cns.Attachment) bool { return f.core.PlanClaim(a) != nil })
	f.mu.Unlock()
	if fault := f.give(ctx, strings.ToLower(vm.Config.Uuid), disks); fault != nil {
		return fault
	}
	for _, a := range disks {
		defer f.inv.giving(a.Volume, vm.Config.Uuid)()
	}
	put()
	return nil
}

// Pin tells which volumes the snapshots of a VM hold.
func (f *Face) Pin(vm vim.ManagedObjectReference, volumes []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.core.Pin(vm.Value, volumes)
}

// Bury deletes what went with a VM that was deleted: of the disks that it had,
// those without the flag keepAfterDeleteVm. CNS is not asked, and keeps the
// records of volumes.
func (f *Face) Bury(ctx context.Context, c *simulator.Context, devices []vim.BaseVirtualDevice) {
	for _, a := range disksOf("", devices) {
		unlock, err := f.volumes.lock(ctx, a.Volume)
		if err != nil {
			return
		}
		f.bury(c, a.Volume)
		unlock()
	}
}

func (f *Face) bury(c *simulator.Context, id string) {
	f.mu.Lock()
	d, _, err := f.core.Disk(id)
	var lost []cns.Disk
	if err == nil && !d.Flags.KeepAfterDeleteVM && len(f.core.AttachmentsOf(id)) == 0 {
		lost = f.core.LoseDisk(id)
	}
	f.mu.Unlock()
	f.lost(c, lost)
}

func volumesIn(disks []cns.Attachment) (out []string) {
	for _, a := range disks {
		out = append(out, a.Volume)
	}
	return out
}

// without lists the attachments whose volumes are not among others.
func without(all, others []cns.Attachment) (out []cns.Attachment) {
	for _, a := range all {
		if !slices.ContainsFunc(others, func(b cns.Attachment) bool { return b.Volume == a.Volume }) {
			out = append(out, a)
		}
	}
	return out
}

// FindDisk finds a first class disk by its id, its path, or both.
func (f *Face) FindDisk(id, path string) (cns.Disk, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if id == "" {
		return f.core.DiskAt(path)
	}
	d, _, err := f.core.Disk(id)
	return d, err == nil && (path == "" || path == d.DiskPath)
}

// DiskUUID is the page 83 id of a first class disk, dashed.
func (f *Face) DiskUUID(id string) string { return f.ids.disk(id) }

// Lose deletes a first class disk behind CNS's back, with all that stands on
// it. The caller has taken it out of its VM.
func (f *Face) Lose(ctx context.Context, c *simulator.Context, id string) {
	unlock, err := f.volumes.lock(ctx, id)
	if err != nil {
		return
	}
	defer unlock()
	f.loseDisk(c, id)
}

// lost deletes the content of disks that are gone. Nobody can reach it any
// more: at worst it takes space.
func (f *Face) lost(c *simulator.Context, disks []cns.Disk) {
	for _, d := range disks {
		if f.cfg.Disks != nil {
			var err error
			for _, s := range d.Snapshots {
				err = errors.Join(err, f.cfg.Disks.DeleteSnapshot(d.ID, s.ID))
			}
			if err = errors.Join(err, f.cfg.Disks.Delete(d.ID)); err != nil {
				f.log.Warn("the content of a disk that is gone stays", "disk", d.ID, "err", err)
			}
		}
		f.ids.forget(d.ID)
		f.inv.account(c, d.Datastore)
	}
}

// Grow enlarges a first class disk, volume or not, as who edits its VM does.
func (f *Face) Grow(ctx context.Context, c *simulator.Context, id string, capacityMB int64) vim.BaseMethodFault {
	unlock, err := f.volumes.lock(ctx, id)
	if err != nil {
		return &vim.RequestCanceled{}
	}
	defer unlock()
	f.mu.Lock()
	old, _, err := f.core.Disk(id)
	if err == nil {
		_, err = f.core.ExtendDisk(id, capacityMB)
	}
	holders := f.core.AttachmentsOf(id)
	f.mu.Unlock()
	if err != nil {
		var e *cns.Error
		if errors.As(err, &e) && (e.Kind == cns.HasSnapshots || e.Kind == cns.InvalidArgument || e.Kind == cns.Pinned) {
			return &vim.InvalidDeviceSpec{InvalidVmConfig: vim.InvalidVmConfig{Property: "capacityInKB"}}
		}
		return holdFault(err)
	}
	if f.cfg.Disks != nil {
		if err := f.cfg.Disks.Grow(id, capacityMB<<20); err != nil {
			f.mu.Lock()
			f.core.UndoExtendDisk(old)
			f.mu.Unlock()
			return &vim.SystemError{Reason: err.Error()}
		}
	}
	f.inv.account(c, old.Datastore)
	f.grown(ctx, c, id, capacityMB, holders)
	return nil
}

// Claim is called before a VM starts: it takes the disks that its hardware
// lists and that it doesn't hold, as happens when another VM had them while
// this one was not registered. One that another VM still has is locked.
func (f *Face) Claim(ctx context.Context, c *simulator.Context, vm vim.ManagedObjectReference) vim.BaseMethodFault {
	m, err := f.inv.look(c, vm)
	if err != nil {
		return &vim.ManagedObjectNotFound{Obj: vm}
	}
	var want []string
	f.mu.Lock()
	for _, id := range m.lists {
		if _, held := f.core.AttachmentAt(id, vm.Value); !held {
			want = append(want, id)
		}
	}
	f.mu.Unlock()
	if len(want) == 0 {
		return nil
	}
	unlockVolumes, err := f.volumes.lockAll(ctx, slices.Clone(want)...)
	if err != nil {
		return &vim.RequestCanceled{}
	}
	defer unlockVolumes()
	unlockVM, err := f.vms.lock(ctx, vm.Value)
	if err != nil {
		return &vim.RequestCanceled{}
	}
	defer unlockVM()
	f.inv.refresh(c)
	var disks []cns.Attachment
	c.WithLock(m.obj, func() {
		if m.obj.Config != nil {
			disks = hardware(&m.obj.VirtualMachine)
		}
	})
	disks = slices.DeleteFunc(disks, func(a cns.Attachment) bool { return !slices.Contains(want, a.Volume) })
	if fault := f.welcome(m, disks); fault != nil {
		return fault
	}
	if fault := f.give(ctx, m.uuid, disks); fault != nil {
		return fault
	}
	for _, a := range disks {
		defer f.inv.giving(a.Volume, m.uuid)()
	}
	c.WithLock(m.obj, func() {
		if m.obj.Config != nil {
			f.inv.sync(&m.obj.VirtualMachine)
		}
	})
	return nil
}

// Occupied says which task has a VM, if any.
func (f *Face) Occupied(vm vim.ManagedObjectReference) (task vim.ManagedObjectReference, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	task, ok = f.occupied[vm.Value]
	return task, ok
}

// Quiet waits until no disk is being pulled out of a node behind the scenes.
func (f *Face) Quiet() { f.wg.Wait() }

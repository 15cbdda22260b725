package cnsface

import (
	"context"

	govcns "github.com/vmware/govmomi/cns"
	"github.com/vmware/govmomi/cns/methods"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// job1 is a job about one volume, whose result is a plain one.
func job1(op, volume string, do work) job {
	j := job{TaskCall: TaskCall{Op: op, Volume: volume}, entity: govcns.CnsVolumeManagerInstance, do: do}
	j.failed = func(f *vim.LocalizedMethodFault) vim.AnyType {
		return batch(&cnstypes.CnsVolumeOperationResult{VolumeId: volumeID(volume), Fault: f})
	}
	return j
}

// CnsDeleteVolume deletes a volume, or with deleteDisk false lets go of its disk.
func (m *manager) CnsDeleteVolume(ctx *simulator.Context, req *cnstypes.CnsDeleteVolume) soap.HasFault {
	id := ""
	if len(req.VolumeIds) == 1 {
		id = req.VolumeIds[0].Id
	}
	// Whether another delete was running counts from when this one came.
	d := m.f.deletes.enter(id)
	j := job1("CnsDeleteVolume", id, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		if err := oneSpec(len(req.VolumeIds)); err != nil {
			return nil, err
		}
		return m.f.delete(ctx, c, id, !req.DeleteDisk, d)
	})
	j.after = func() { m.f.deletes.leave(id, d) }
	return &methods.CnsDeleteVolumeBody{Res: &cnstypes.CnsDeleteVolumeResponse{Returnval: m.f.start(ctx, j)}}
}

func (f *Face) delete(ctx context.Context, c *simulator.Context, id string, keepDisk bool, d *deletion) (vim.AnyType, error) {
	r := &cnstypes.CnsVolumeOperationResult{VolumeId: volumeID(id)}
	refuse := func(err error) (vim.AnyType, error) {
		r.Fault = wire("CnsDeleteVolume", err)
		return batch(r), err
	}
	unlock, err := f.volumes.lock(ctx, id)
	if err != nil {
		return nil, &taskError{local(&vim.RequestCanceled{}, err.Error())}
	}
	defer unlock()
	f.mu.Lock()
	plan, err := f.core.PlanDelete(id, keepDisk)
	gone := !f.core.Taken(id)
	f.mu.Unlock()
	if gone && d.done { // done is written and read under the volume's lock only
		return batch(r), nil
	}
	if err != nil {
		return refuse(err)
	}
	if f.cfg.Disks != nil && !keepDisk && plan.Share == nil {
		if err := f.cfg.Disks.Delete(id); err != nil {
			return refuse(err)
		}
	}
	f.mu.Lock()
	old, err := f.core.Delete(id, keepDisk)
	f.mu.Unlock()
	if err != nil { // can't be: the volume is locked since it was looked at
		return refuse(err)
	}
	d.done = true
	f.ids.forget(id)
	f.inv.account(c, old.Datastore)
	return batch(r), nil
}

// CnsExtendVolume enlarges a volume, attached or not.
func (m *manager) CnsExtendVolume(ctx *simulator.Context, req *cnstypes.CnsExtendVolume) soap.HasFault {
	id := ""
	if len(req.ExtendSpecs) == 1 {
		id = req.ExtendSpecs[0].VolumeId.Id
	}
	j := job1("CnsExtendVolume", id, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		if err := oneSpec(len(req.ExtendSpecs)); err != nil {
			return nil, err
		}
		return m.f.extend(ctx, c, id, req.ExtendSpecs[0].CapacityInMb)
	})
	return &methods.CnsExtendVolumeBody{Res: &cnstypes.CnsExtendVolumeResponse{Returnval: m.f.start(ctx, j)}}
}

func (f *Face) extend(ctx context.Context, c *simulator.Context, id string, capacityMB int64) (vim.AnyType, error) {
	r := &cnstypes.CnsVolumeOperationResult{VolumeId: volumeID(id)}
	refuse := func(err error) (vim.AnyType, error) {
		r.Fault = wire("CnsExtendVolume", err)
		return batch(r), err
	}
	unlock, err := f.volumes.lock(ctx, id)
	if err != nil {
		return nil, &taskError{local(&vim.RequestCanceled{}, err.Error())}
	}
	defer unlock()
	f.mu.Lock()
	old, err := f.core.PlanExtend(id, capacityMB)
	f.mu.Unlock()
	if err != nil {
		return refuse(err)
	}
	if old.CapacityMB == capacityMB {
		return batch(r), nil
	}
	// The core first: it holds the space, and an image can't shrink again.
	f.mu.Lock()
	v, err := f.core.Extend(id, capacityMB)
	holders := f.core.AttachmentsOf(id)
	f.mu.Unlock()
	if err != nil {
		return refuse(err)
	}
	if f.cfg.Disks != nil && v.Share == nil {
		if err := f.cfg.Disks.Grow(id, capacityMB<<20); err != nil {
			f.mu.Lock()
			f.core.UndoExtend(old)
			f.mu.Unlock()
			return refuse(err)
		}
	}
	f.inv.account(c, v.Datastore)
	f.grown(ctx, c, id, capacityMB, holders)
	return batch(r), nil
}

// grown shows the new size of a disk in the VMs that hold it, and to their nodes.
func (f *Face) grown(ctx context.Context, c *simulator.Context, id string, capacityMB int64, holders []cns.Attachment) {
	for _, a := range holders {
		m, err := f.inv.look(c, vim.ManagedObjectReference{Type: "VirtualMachine", Value: a.VM})
		if err != nil {
			continue // the VM is going away
		}
		f.inv.resize(c, m, id, capacityMB)
		if f.cfg.Hardware != nil {
			// A node that doesn't see the new size yet sees it at its next rescan.
			if err := f.cfg.Hardware.Resize(ctx, m.uuid, undash(a.DiskUUID)); err != nil {
				f.log.Warn("the node was not told of a disk's new size", "volume", id, "vm", a.VM, "err", err)
			}
		}
	}
}

package cnsface

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/vmware/govmomi/cns/methods"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// CnsAttachVolume plugs a volume into a VM.
func (m *manager) CnsAttachVolume(ctx *simulator.Context, req *cnstypes.CnsAttachVolume) soap.HasFault {
	var s cnstypes.CnsVolumeAttachDetachSpec
	if len(req.AttachSpecs) == 1 {
		s = req.AttachSpecs[0]
	}
	j := job1("CnsAttachVolume", s.VolumeId.Id, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		if err := oneSpec(len(req.AttachSpecs)); err != nil {
			return nil, err
		}
		return m.f.attach(ctx, c, s)
	})
	j.VM = s.Vm.Value
	if s.Vm.Value != "" {
		j.entity = s.Vm
	}
	j.failed = func(f *vim.LocalizedMethodFault) vim.AnyType {
		r := &cnstypes.CnsVolumeAttachResult{}
		r.VolumeId, r.Fault = s.VolumeId, f
		return batch(r)
	}
	return &methods.CnsAttachVolumeBody{Res: &cnstypes.CnsAttachVolumeResponse{Returnval: m.f.start(ctx, j)}}
}

func (f *Face) attach(ctx context.Context, c *simulator.Context, s cnstypes.CnsVolumeAttachDetachSpec) (vim.AnyType, error) {
	const op = "CnsAttachVolume"
	r := &cnstypes.CnsVolumeAttachResult{}
	r.VolumeId = s.VolumeId
	refuse := func(err error) (vim.AnyType, error) {
		// What the VM can't do fails the task, not the result
		// (kubernetes-sigs/vsphere-csi-driver#1590).
		var e *cns.Error
		var te *taskError
		switch {
		case errors.As(err, &te):
			return nil, err
		case errors.As(err, &e) && e.Kind == cns.InvalidState:
			return nil, &taskError{wire(op, err)}
		}
		r.Fault = wire(op, err)
		return batch(r), err
	}
	spec := cns.AttachSpec{Volume: s.VolumeId.Id, Mode: cns.DiskMode(s.DiskMode), Sharing: cns.Sharing(s.Sharing)}
	if s.ControllerKey != nil || s.UnitNumber != nil {
		spec.Slot = &cns.Slot{Unit: cns.AnyUnit}
		if s.ControllerKey != nil {
			spec.Slot.Controller = *s.ControllerKey
		}
		if s.UnitNumber != nil {
			if *s.UnitNumber < 0 { // AnyUnit is ours, not the API's
				return refuse(&cns.Error{Kind: cns.InvalidArgument, Field: "unitNumber", Value: fmt.Sprint(*s.UnitNumber), Reason: "allowed are 0 and more"})
			}
			spec.Slot.Unit = *s.UnitNumber
		}
	}
	a, err := f.plugIn(ctx, c, s.Vm, spec)
	if err != nil {
		return refuse(err)
	}
	r.DiskUUID = a.DiskUUID
	return batch(r), nil
}

// plugIn gives a disk to a VM: the core, the hardware of the VM and the node
// agree when it returns. Errors: those of cns.Core.Attach, ManagedObjectNotFound
// (the VM), and what the hardware says.
func (f *Face) plugIn(ctx context.Context, c *simulator.Context, vm vim.ManagedObjectReference, spec cns.AttachSpec) (cns.Attachment, error) {
	id, none := spec.Volume, cns.Attachment{}
	unlock, err := f.lockBoth(ctx, id, vm.Value)
	if err != nil {
		return none, err
	}
	defer unlock()
	m, err := f.inv.look(c, vm)
	if err != nil {
		return none, err
	}
	f.inv.refresh(c)
	spec.VM, spec.DiskUUID = m.VM, f.ids.disk(id)
	f.mu.Lock()
	d, _, _ := f.core.Disk(id)
	a, addController, err := f.core.PlanAttach(spec)
	before, attached := f.core.AttachmentAt(id, vm.Value)
	f.mu.Unlock()
	if attached && !spec.Disk && f.release.atLeast(release91) {
		return before, nil // the reply to the first call may have been lost
	}
	if err == nil && slices.Contains(m.lists, id) { // and will claim it when it starts
		err = &cns.Error{Kind: cns.InUse, Field: "volumeId", Value: id, Holder: vm.Value, Reason: "the VM lists the disk"}
	}
	if err != nil {
		return none, err
	}

	// The node gets the disk first, then the VM's hardware shows it, and with
	// that the core: a disk that clients see is there.
	pull := func() {}
	if f.cfg.Hardware != nil {
		if err := f.cfg.Hardware.Attach(ctx, m.uuid, undash(a.DiskUUID), id); err != nil {
			return none, err
		}
		pull = func() {
			if err := f.cfg.Hardware.Detach(ctx, m.uuid, undash(a.DiskUUID)); err != nil {
				f.log.Debug("undo a disk of a node", "volume", id, "vm", m.Name, "err", err)
			}
		}
	}
	f.inv.plug(c, m, d, a, addController)
	f.mu.Lock()
	_, held := f.core.AttachmentAt(id, a.VM)
	f.mu.Unlock()
	if _, there := f.inv.vm(m.ref); !there || !held {
		// The VM was deleted, or another one got the disk by other means.
		f.inv.unplug(c, m, id)
		pull()
		if !there {
			return none, &wireError{gone(vm)}
		}
		return none, &cns.Error{Kind: cns.InUse, Field: "volumeId", Value: id}
	}
	return a, nil
}

// lockBoth locks a volume and a VM, always in this order.
func (f *Face) lockBoth(ctx context.Context, volume, vm string) (unlock func(), err error) {
	canceled := func(err error) error { return &taskError{local(&vim.RequestCanceled{}, err.Error())} }
	u1, err := f.volumes.lock(ctx, volume)
	if err != nil {
		return nil, canceled(err)
	}
	u2, err := f.vms.lock(ctx, vm)
	if err != nil {
		u1()
		return nil, canceled(err)
	}
	return func() { u2(); u1() }, nil
}

// CnsDetachVolume pulls a volume out of a VM.
func (m *manager) CnsDetachVolume(ctx *simulator.Context, req *cnstypes.CnsDetachVolume) soap.HasFault {
	var s cnstypes.CnsVolumeAttachDetachSpec
	if len(req.DetachSpecs) == 1 {
		s = req.DetachSpecs[0]
	}
	j := job1("CnsDetachVolume", s.VolumeId.Id, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		if err := oneSpec(len(req.DetachSpecs)); err != nil {
			return nil, err
		}
		return m.f.detach(ctx, c, s)
	})
	j.VM = s.Vm.Value
	if s.Vm.Value != "" {
		j.entity = s.Vm
	}
	return &methods.CnsDetachVolumeBody{Res: &cnstypes.CnsDetachVolumeResponse{Returnval: m.f.start(ctx, j)}}
}

func (f *Face) detach(ctx context.Context, c *simulator.Context, s cnstypes.CnsVolumeAttachDetachSpec) (vim.AnyType, error) {
	const op = "CnsDetachVolume"
	r := &cnstypes.CnsVolumeOperationResult{VolumeId: s.VolumeId}
	refuse := func(err error) (vim.AnyType, error) {
		var e *cns.Error
		var te *taskError
		switch {
		case errors.As(err, &te):
			return nil, err
		case errors.As(err, &e) && e.Kind == cns.InvalidState:
			return nil, &taskError{wire(op, err)}
		}
		r.Fault = wire(op, err)
		return batch(r), err
	}
	if err := f.pullOut(ctx, c, s.VolumeId.Id, s.Vm, f.core.PlanDetach); err != nil {
		return refuse(err)
	}
	return batch(r), nil
}

// pullOut takes a disk from a VM, where plan says that the VM holds it.
// Errors: those of plan, ManagedObjectNotFound (the VM), and what the hardware
// says.
func (f *Face) pullOut(ctx context.Context, c *simulator.Context, id string, vm vim.ManagedObjectReference, plan func(string, cns.VM) (cns.Attachment, bool, error)) error {
	unlock, err := f.lockBoth(ctx, id, vm.Value)
	if err != nil {
		return err
	}
	defer unlock()
	m, err := f.inv.look(c, vm)
	if err != nil {
		return err
	}
	f.mu.Lock()
	a, held, err := plan(id, m.VM)
	f.mu.Unlock()
	if err == nil && !held && slices.Contains(m.lists, id) {
		f.inv.unplug(c, m, id) // it never came to hold the disk
	}
	if err != nil || !held {
		return err
	}
	if f.cfg.Hardware != nil {
		if err := f.cfg.Hardware.Detach(ctx, m.uuid, undash(a.DiskUUID)); err != nil {
			return err
		}
	}
	f.inv.unplug(c, m, id) // and with that the core has let go
	return nil
}

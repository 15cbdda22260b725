package cnsface

import (
	"context"
	"errors"
	"fmt"

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
		if errors.As(err, &e) && e.Kind == cns.InvalidState {
			return nil, &taskError{wire(op, err)}
		}
		r.Fault = wire(op, err)
		return batch(r), err
	}
	id := s.VolumeId.Id
	unlock, err := f.lockBoth(ctx, id, s.Vm.Value)
	if err != nil {
		return nil, err
	}
	defer unlock()
	m, err := f.inv.look(c, s.Vm)
	if err != nil {
		return refuse(err)
	}
	f.inv.refresh(c)
	spec := cns.AttachSpec{Volume: id, VM: m.VM, DiskUUID: f.ids.disk(id), Mode: cns.DiskMode(s.DiskMode), Sharing: cns.Sharing(s.Sharing)}
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
	f.mu.Lock()
	v, _ := f.core.Volume(id)
	a, addController, err := f.core.PlanAttach(spec)
	before, attached := f.core.AttachmentAt(id, s.Vm.Value)
	f.mu.Unlock()
	if attached && f.release.atLeast(release91) {
		r.DiskUUID = before.DiskUUID // the reply to the first call may have been lost
		return batch(r), nil
	}
	if err != nil {
		return refuse(err)
	}

	// The node gets the disk first, then the VM's hardware shows it, and with
	// that the core: a disk that clients see is there.
	pull := func() {}
	if f.cfg.Hardware != nil {
		if err := f.cfg.Hardware.Attach(ctx, m.uuid, undash(a.DiskUUID), id); err != nil {
			return refuse(err)
		}
		pull = func() {
			if err := f.cfg.Hardware.Detach(ctx, m.uuid, undash(a.DiskUUID)); err != nil {
				f.log.Debug("undo a disk of a node", "volume", id, "vm", m.Name, "err", err)
			}
		}
	}
	f.inv.plug(c, m, v, a, addController)
	f.mu.Lock()
	_, held := f.core.AttachmentAt(id, a.VM)
	f.mu.Unlock()
	if _, there := f.inv.vm(m.ref); !there || !held {
		// The VM was deleted, or another one got the disk by other means.
		f.inv.unplug(c, m, id)
		pull()
		if !there {
			return refuse(&wireError{gone(s.Vm)})
		}
		return refuse(&cns.Error{Kind: cns.InUse, Field: "volumeId", Value: id})
	}
	r.DiskUUID = a.DiskUUID
	return batch(r), nil
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
		if errors.As(err, &e) && e.Kind == cns.InvalidState {
			return nil, &taskError{wire(op, err)}
		}
		r.Fault = wire(op, err)
		return batch(r), err
	}
	id := s.VolumeId.Id
	unlock, err := f.lockBoth(ctx, id, s.Vm.Value)
	if err != nil {
		return nil, err
	}
	defer unlock()
	m, err := f.inv.look(c, s.Vm)
	if err != nil {
		return refuse(err)
	}
	f.mu.Lock()
	a, held, err := f.core.PlanDetach(id, m.VM)
	f.mu.Unlock()
	if err != nil {
		return refuse(err)
	}
	if !held {
		return batch(r), nil
	}
	if f.cfg.Hardware != nil {
		if err := f.cfg.Hardware.Detach(ctx, m.uuid, undash(a.DiskUUID)); err != nil {
			return refuse(err)
		}
	}
	f.inv.unplug(c, m, id) // and with that the core has let go
	return batch(r), nil
}

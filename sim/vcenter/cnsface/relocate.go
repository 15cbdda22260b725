package cnsface

import (
	"context"

	"github.com/vmware/govmomi/cns/methods"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// CnsRelocateVolume moves a volume to another datastore. A VM that holds it
// goes on with it.
func (m *manager) CnsRelocateVolume(ctx *simulator.Context, req *cnstypes.CnsRelocateVolume) soap.HasFault {
	var s cnstypes.CnsVolumeRelocateSpec
	if len(req.RelocateSpecs) == 1 {
		switch x := req.RelocateSpecs[0].(type) {
		case *cnstypes.CnsBlockVolumeRelocateSpec:
			s = x.CnsVolumeRelocateSpec
		case *cnstypes.CnsVolumeRelocateSpec:
			s = *x
		case cnstypes.CnsBlockVolumeRelocateSpec:
			s = x.CnsVolumeRelocateSpec
		case cnstypes.CnsVolumeRelocateSpec:
			s = x
		}
	}
	mv := m.f.moves.enter(s.VolumeId.Id)
	var j job
	j = job1("CnsRelocateVolume", s.VolumeId.Id, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		if err := oneSpec(len(req.RelocateSpecs)); err != nil {
			return nil, err
		}
		if mv == nil { // another one came first
			err := m.f.moves.check(s.VolumeId.Id)
			if err == nil {
				err = &cns.Error{Kind: cns.Busy, Field: "volumeId", Value: s.VolumeId.Id, Reason: "the volume was being relocated"}
			}
			return j.failed(wire("CnsRelocateVolume", err)), err
		}
		return m.f.relocate(ctx, c, s)
	})
	if mv != nil {
		j.after = func() { m.f.moves.leave(s.VolumeId.Id, mv) }
	}
	task := m.f.start(ctx, j)
	if mv != nil {
		m.f.moves.name(mv, task.Value)
	}
	return &methods.CnsRelocateVolumeBody{Res: &cnstypes.CnsRelocateVolumeResponse{Returnval: task}}
}

func (f *Face) relocate(ctx context.Context, c *simulator.Context, s cnstypes.CnsVolumeRelocateSpec) (vim.AnyType, error) {
	r := &cnstypes.CnsVolumeOperationResult{VolumeId: s.VolumeId}
	refuse := func(err error) (vim.AnyType, error) {
		r.Fault = wire("CnsRelocateVolume", err)
		return batch(r), err
	}
	if s.ServiceLocator != nil {
		return refuse(&cns.Error{Kind: cns.NotSupported, Field: "serviceLocator", Value: s.ServiceLocator.Url, Reason: "volumes don't move between vCenters"})
	}
	policy, err := f.policyOf(s.Profile)
	if err != nil {
		return refuse(err)
	}
	id := s.VolumeId.Id
	unlock, err := f.volumes.lock(ctx, id)
	if err != nil {
		return nil, &taskError{local(&vim.RequestCanceled{}, err.Error())}
	}
	defer unlock()
	f.inv.refresh(c)
	f.mu.Lock()
	old, err := f.core.Volume(id)
	holders := f.core.AttachmentsOf(id)
	f.mu.Unlock()
	if err != nil {
		return refuse(err)
	}
	spec := cns.RelocateSpec{Disk: id, Datastore: s.Datastore.Value, PolicyID: policy}
	var keys []string
	for _, a := range holders {
		keys = append(keys, a.VM)
	}
	unlockVMs, err := f.vms.lockAll(ctx, keys...)
	if err != nil {
		return nil, &taskError{local(&vim.RequestCanceled{}, err.Error())}
	}
	defer unlockVMs()
	var vms []machine
	for _, a := range holders {
		vm, err := f.inv.look(c, vim.ManagedObjectReference{Type: "VirtualMachine", Value: a.VM})
		if err != nil {
			continue // it is going away, and with it its hold
		}
		vms = append(vms, vm)
		spec.Hosts = append(spec.Hosts, vm.Host)
		// "Placed in a folder on the target datastore named like the vm it is
		// attached to", which is "the default behavior in vSphere"
		// (vmware-samples/cloud-native-storage-self-service-manager#19).
		spec.Folder = vm.Name
		spec.Taken = append(spec.Taken, f.inv.filesOf(c, vm)...)
	}
	// Images go by the id of their disk, not by where it lies: their bytes
	// stay where they are.
	f.mu.Lock()
	d, err := f.core.Relocate(spec)
	f.mu.Unlock()
	if err != nil {
		return refuse(err)
	}
	f.inv.account(c, old.Datastore)
	f.inv.account(c, d.Datastore)
	for _, vm := range vms {
		f.inv.move(c, vm, d)
	}
	return batch(r), nil
}

// policyOf is the storage policy that a profile names, "" for none. Errors:
// InvalidArgument (no such policy).
func (f *Face) policyOf(profile []vim.BaseVirtualMachineProfileSpec) (id string, err error) {
	for _, p := range profile {
		if d, ok := p.(*vim.VirtualMachineDefinedProfileSpec); ok && d != nil {
			id = d.ProfileId
		}
	}
	if id != "" && f.cfg.Policies != nil && !f.cfg.Policies(id) {
		return "", &cns.Error{Kind: cns.InvalidArgument, Field: "profile", Value: id, Reason: "no such storage policy"}
	}
	return id, nil
}

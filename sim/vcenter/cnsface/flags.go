package cnsface

import (
	"github.com/vmware/govmomi/cns/methods"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
)

// CnsSetVolumeControlFlags sets control flags of the disks of volumes, at
// once: it is no task.
func (m *manager) CnsSetVolumeControlFlags(_ *simulator.Context, req *cnstypes.CnsSetVolumeControlFlags) soap.HasFault {
	if err := m.f.controlFlags(req.ControlFlagsSpecs, true); err != nil {
		return &methods.CnsSetVolumeControlFlagsBody{Fault_: soapFault(err)}
	}
	return &methods.CnsSetVolumeControlFlagsBody{Res: &cnstypes.CnsSetVolumeControlFlagsResponse{}}
}

// CnsClearVolumeControlFlags clears control flags.
func (m *manager) CnsClearVolumeControlFlags(_ *simulator.Context, req *cnstypes.CnsClearVolumeControlFlags) soap.HasFault {
	if err := m.f.controlFlags(req.ControlFlagsSpecs, false); err != nil {
		return &methods.CnsClearVolumeControlFlagsBody{Fault_: soapFault(err)}
	}
	return &methods.CnsClearVolumeControlFlagsBody{Res: &cnstypes.CnsClearVolumeControlFlagsResponse{}}
}

// controlFlags changes all volumes or, when one is refused, none.
// Unverified: whether CNS does those before it.
func (f *Face) controlFlags(specs []cnstypes.CnsVolumeControlFlagsSpec, on bool) error {
	if len(specs) == 0 {
		return &wireError{invalid("controlFlagsSpecs")}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range specs {
		if _, err := f.core.Volume(s.VolumeId.Id); err != nil {
			return err
		}
		if err := f.core.PlanFlags(s.VolumeId.Id, s.ControlFlags); err != nil {
			return err
		}
	}
	for _, s := range specs {
		if _, err := f.core.SetFlags(s.VolumeId.Id, s.ControlFlags, on); err != nil {
			return err
		}
	}
	return nil
}

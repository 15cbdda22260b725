package cnsface

import (
	"fmt"

	"github.com/vmware/govmomi/cns/methods"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// CnsUnregisterVolume makes CNS forget a volume; its disk stays.
func (m *manager) CnsUnregisterVolume(ctx *simulator.Context, req *cnstypes.CnsUnregisterVolume) soap.HasFault {
	task := plain(m.f, ctx, "CnsUnregisterVolume", req.UnregisterSpec,
		func(s cnstypes.CnsUnregisterVolumeSpec) string { return s.VolumeId.Id }, m.f.unregister)
	return &methods.CnsUnregisterVolumeBody{Res: &cnstypes.CnsUnregisterVolumeResponse{Returnval: task}}
}

func (f *Face) unregister(s cnstypes.CnsUnregisterVolumeSpec) error {
	legacy := s.TargetVolumeType == string(cnstypes.CnsUnregisterTargetVolumeTypeLEGACY_DISK)
	if !legacy && s.TargetVolumeType != string(cnstypes.CnsUnregisterTargetVolumeTypeFCD) {
		return &cns.Error{Kind: cns.InvalidArgument, Field: "targetVolumeType", Value: s.TargetVolumeType,
			Reason: fmt.Sprintf("allowed are %s and %s", cnstypes.CnsUnregisterTargetVolumeTypeFCD, cnstypes.CnsUnregisterTargetVolumeTypeLEGACY_DISK)}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.core.Unregister(s.VolumeId.Id, legacy)
	return err
}

package cnsface

import (
	"context"
	"fmt"

	"github.com/vmware/govmomi/cns/methods"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// CnsUnregisterVolume makes CNS forget a volume; its disk stays.
func (m *manager) CnsUnregisterVolume(ctx *simulator.Context, req *cnstypes.CnsUnregisterVolume) soap.HasFault {
	var s cnstypes.CnsUnregisterVolumeSpec
	if len(req.UnregisterSpec) == 1 {
		s = req.UnregisterSpec[0]
	}
	j := job1("CnsUnregisterVolume", s.VolumeId.Id, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		if err := oneSpec(len(req.UnregisterSpec)); err != nil {
			return nil, err
		}
		return m.f.unregister(ctx, s)
	})
	return &methods.CnsUnregisterVolumeBody{Res: &cnstypes.CnsUnregisterVolumeResponse{Returnval: m.f.start(ctx, j)}}
}

func (f *Face) unregister(ctx context.Context, s cnstypes.CnsUnregisterVolumeSpec) (vim.AnyType, error) {
	r := &cnstypes.CnsVolumeOperationResult{VolumeId: s.VolumeId}
	refuse := func(err error) (vim.AnyType, error) {
		r.Fault = wire("CnsUnregisterVolume", err)
		return batch(r), err
	}
	legacy := s.TargetVolumeType == string(cnstypes.CnsUnregisterTargetVolumeTypeLEGACY_DISK)
	if !legacy && s.TargetVolumeType != string(cnstypes.CnsUnregisterTargetVolumeTypeFCD) {
		return refuse(&cns.Error{Kind: cns.InvalidArgument, Field: "targetVolumeType", Value: s.TargetVolumeType,
			Reason: fmt.Sprintf("allowed are %s and %s", cnstypes.CnsUnregisterTargetVolumeTypeFCD, cnstypes.CnsUnregisterTargetVolumeTypeLEGACY_DISK)})
	}
	id := s.VolumeId.Id
	unlock, err := f.volumes.lock(ctx, id)
	if err != nil {
		return nil, &taskError{local(&vim.RequestCanceled{}, err.Error())}
	}
	defer unlock()
	f.mu.Lock()
	_, err = f.core.Unregister(id, legacy)
	f.mu.Unlock()
	if err != nil {
		return refuse(err)
	}
	return batch(r), nil
}

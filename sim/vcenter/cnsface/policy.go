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

// CnsReconfigVolumePolicy gives a volume another storage policy. Its datastore
// must satisfy that one: CNS moves nothing for it.
func (m *manager) CnsReconfigVolumePolicy(ctx *simulator.Context, req *cnstypes.CnsReconfigVolumePolicy) soap.HasFault {
	var s cnstypes.CnsVolumePolicyReconfigSpec
	if len(req.VolumePolicyReconfigSpecs) == 1 {
		s = req.VolumePolicyReconfigSpecs[0]
	}
	j := job1("CnsReconfigVolumePolicy", s.VolumeId.Id, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		if err := oneSpec(len(req.VolumePolicyReconfigSpecs)); err != nil {
			return nil, err
		}
		return m.f.reconfigPolicy(ctx, s)
	})
	return &methods.CnsReconfigVolumePolicyBody{Res: &cnstypes.CnsReconfigVolumePolicyResponse{Returnval: m.f.start(ctx, j)}}
}

func (f *Face) reconfigPolicy(ctx context.Context, s cnstypes.CnsVolumePolicyReconfigSpec) (vim.AnyType, error) {
	r := &cnstypes.CnsVolumeOperationResult{VolumeId: s.VolumeId}
	refuse := func(err error) (vim.AnyType, error) {
		r.Fault = wire("CnsReconfigVolumePolicy", err)
		return batch(r), err
	}
	id := s.VolumeId.Id
	policy, err := f.policyOf(s.Profile)
	if err == nil && policy == "" {
		// Unverified: what a reconfiguration without a profile does.
		err = &cns.Error{Kind: cns.InvalidArgument, Field: "profile", Reason: "names no storage policy"}
	}
	if err != nil {
		return refuse(err)
	}
	unlock, err := f.volumes.lock(ctx, id)
	if err != nil {
		return nil, &taskError{local(&vim.RequestCanceled{}, err.Error())}
	}
	defer unlock()
	f.mu.Lock()
	v, err := f.core.Volume(id)
	f.mu.Unlock()
	if err != nil {
		return refuse(err)
	}
	if err := f.satisfies(policy, v.Datastore); err != nil {
		return refuse(err)
	}
	f.mu.Lock()
	_, err = f.core.SetPolicy(id, policy)
	f.mu.Unlock()
	if err != nil {
		return refuse(err)
	}
	return batch(r), nil
}

// satisfies asks whether a datastore is compatible with a storage policy.
// Errors: Incompatible.
func (f *Face) satisfies(policy, datastore string) error {
	if f.cfg.Compatible == nil || policy == "" {
		return nil
	}
	if why := f.cfg.Compatible(policy, datastore); why != "" {
		return &cns.Error{Kind: cns.Incompatible, Field: "profile", Value: policy, Holder: datastore, Reason: why}
	}
	return nil
}

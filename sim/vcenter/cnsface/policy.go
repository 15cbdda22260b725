package cnsface

import (
	"github.com/vmware/govmomi/cns/methods"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// CnsReconfigVolumePolicy gives a volume another storage policy. Its datastore
// must satisfy that one: CNS moves nothing for it.
func (m *manager) CnsReconfigVolumePolicy(ctx *simulator.Context, req *cnstypes.CnsReconfigVolumePolicy) soap.HasFault {
	task := plain(m.f, ctx, "CnsReconfigVolumePolicy", req.VolumePolicyReconfigSpecs,
		func(s cnstypes.CnsVolumePolicyReconfigSpec) string { return s.VolumeId.Id }, m.f.reconfigPolicy)
	return &methods.CnsReconfigVolumePolicyBody{Res: &cnstypes.CnsReconfigVolumePolicyResponse{Returnval: task}}
}

func (f *Face) reconfigPolicy(s cnstypes.CnsVolumePolicyReconfigSpec) error {
	policy, err := f.policyOf(s.Profile)
	if err != nil {
		return err
	}
	if policy == "" {
		// Unverified: what a reconfiguration without a profile does.
		return &cns.Error{Kind: cns.InvalidArgument, Field: "profile", Reason: "names no storage policy"}
	}
	return f.change(s.VolumeId.Id, policy, func() error {
		_, err := f.core.SetPolicy(s.VolumeId.Id, policy)
		return err
	})
}

// change changes a volume in the core, if its datastore satisfies the policy
// that it is to have.
func (f *Face) change(volume, policy string, do func() error) error {
	f.mu.Lock()
	v, err := f.core.Volume(volume)
	f.mu.Unlock()
	if err != nil {
		return err
	}
	if err := f.satisfies(policy, v.Datastore); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return do()
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

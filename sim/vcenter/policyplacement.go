package vcenter

import (
	"github.com/vmware/govmomi/pbm/methods"
	pbmtypes "github.com/vmware/govmomi/pbm/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// placementSolver finds datastores for policies.
type placementSolver struct {
	types.ManagedObjectReference
	p *policies
}

func (m *placementSolver) PbmCheckCompatibility(req *pbmtypes.PbmCheckCompatibility) soap.HasFault {
	x, ok := m.p.find(req.Profile.UniqueId)
	if !ok {
		return &methods.PbmCheckCompatibilityBody{Fault_: invalid("profile")}
	}
	return &methods.PbmCheckCompatibilityBody{Res: &pbmtypes.PbmCheckCompatibilityResponse{Returnval: m.p.results(req.HubsToSearch, &x)}}
}

func (m *placementSolver) PbmCheckCompatibilityWithSpec(req *pbmtypes.PbmCheckCompatibilityWithSpec) soap.HasFault {
	x, f := fromSpec(req.ProfileSpec)
	if f != nil {
		return &methods.PbmCheckCompatibilityWithSpecBody{Fault_: simulator.Fault("", f)}
	}
	return &methods.PbmCheckCompatibilityWithSpecBody{Res: &pbmtypes.PbmCheckCompatibilityWithSpecResponse{Returnval: m.p.results(req.HubsToSearch, x)}}
}

// PbmCheckRequirements wants all requirements met. Those that are neither a
// policy nor rules are met by all.
func (m *placementSolver) PbmCheckRequirements(req *pbmtypes.PbmCheckRequirements) soap.HasFault {
	bad := &methods.PbmCheckRequirementsBody{Fault_: invalid("placementSubjectRequirement")}
	var all []*storageProfile
	for _, r := range req.PlacementSubjectRequirement {
		switch r := r.(type) {
		case *pbmtypes.PbmPlacementCapabilityProfileRequirement:
			x, ok := m.p.find(r.ProfileId.UniqueId)
			if !ok {
				return bad
			}
			all = append(all, &x)
		case *pbmtypes.PbmPlacementCapabilityConstraintsRequirement:
			rules, f := checkRules(r.Constraints)
			if f != nil {
				return bad
			}
			all = append(all, &storageProfile{Policy: Policy{Name: "of the request"}, rules: rules})
		}
	}
	return &methods.PbmCheckRequirementsBody{Res: &pbmtypes.PbmCheckRequirementsResponse{Returnval: m.p.results(req.HubsToSearch, all...)}}
}

func (m *placementSolver) PbmQueryMatchingHub(req *pbmtypes.PbmQueryMatchingHub) soap.HasFault {
	x, ok := m.p.find(req.Profile.UniqueId)
	if !ok {
		return &methods.PbmQueryMatchingHubBody{Fault_: invalid("profile")}
	}
	return &methods.PbmQueryMatchingHubBody{Res: &pbmtypes.PbmQueryMatchingHubResponse{Returnval: m.p.matching(req.HubsToSearch, &x)}}
}

func (m *placementSolver) PbmQueryMatchingHubWithSpec(req *pbmtypes.PbmQueryMatchingHubWithSpec) soap.HasFault {
	x, f := fromSpec(req.CreateSpec)
	if f != nil {
		return &methods.PbmQueryMatchingHubWithSpecBody{Fault_: simulator.Fault("", f)}
	}
	return &methods.PbmQueryMatchingHubWithSpecBody{Res: &pbmtypes.PbmQueryMatchingHubWithSpecResponse{Returnval: m.p.matching(req.HubsToSearch, x)}}
}

// fromSpec is a policy that nobody keeps.
func fromSpec(s pbmtypes.PbmCapabilityProfileCreateSpec) (*storageProfile, types.BaseMethodFault) {
	rules, f := checkRules(s.Constraints)
	if f != nil {
		return nil, f
	}
	return &storageProfile{Policy: Policy{Name: s.Name}, rules: rules}, nil
}

func (p *policies) matching(hubs []pbmtypes.PbmPlacementHub, x *storageProfile) (out []pbmtypes.PbmPlacementHub) {
	for _, r := range p.results(hubs, x) {
		if len(r.Error) == 0 {
			out = append(out, r.Hub)
		}
	}
	return out
}

// results checks policies against hubs, or all datastores. A hub that is no
// datastore is not compatible.
func (p *policies) results(hubs []pbmtypes.PbmPlacementHub, all ...*storageProfile) []pbmtypes.PbmPlacementCompatibilityResult {
	if len(hubs) == 0 {
		for _, d := range p.v.inv.datastores {
			hubs = append(hubs, pbmtypes.PbmPlacementHub{HubType: "Datastore", HubId: d.Self.Value})
		}
	}
	if len(all) == 0 {
		all = []*storageProfile{nil}
	}
	out := make([]pbmtypes.PbmPlacementCompatibilityResult, 0, len(hubs))
	for _, h := range hubs {
		r := pbmtypes.PbmPlacementCompatibilityResult{Hub: h}
		for _, x := range all {
			if why := p.incompatible(x, h); why != "" {
				r.Error = append(r.Error, types.LocalizedMethodFault{Fault: &pbmtypes.PbmCompatibilityCheckFault{Hub: h}, LocalizedMessage: why})
			}
		}
		out = append(out, r)
	}
	return out
}

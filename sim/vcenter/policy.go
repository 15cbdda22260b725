package vcenter

import (
	"slices"
	"sync"
	"time"

	"github.com/vmware/govmomi/pbm"
	"github.com/vmware/govmomi/pbm/methods"
	pbmtypes "github.com/vmware/govmomi/pbm/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// Policy is a storage policy.
type Policy struct {
	Name string
	// ID; empty means one derived from the seed.
	ID          string
	Description string
	// Types of datastores that satisfy it; empty means all.
	Types []string
	// Datastores by name that satisfy it; empty means all.
	Datastores []string
}

// DefaultPolicies are the vSAN default policy, which every vCenter has and
// only vSAN datastores satisfy, and one that all datastores satisfy.
func DefaultPolicies() []Policy {
	return []Policy{
		{Name: "vSAN Default Storage Policy", ID: "aa6d5a82-1c88-45da-85d3-3d74b91a5bad", Types: []string{"vsan"},
			Description: "Storage policy used as default for vSAN datastores"},
		{Name: "Lab Storage Policy", Description: "Any datastore"},
	}
}

// policies is the PBM endpoint. vcsim's shares its profiles between instances
// and calls every datastore compatible with every policy.
type policies struct {
	v       *VCenter
	created time.Time

	mu   sync.Mutex
	list []Policy
}

var pbmContent = pbmtypes.PbmServiceInstanceContent{
	AboutInfo:                 pbmtypes.PbmAboutInfo{Name: "PBM", Version: "2.0"},
	SessionManager:            ref{Type: "PbmSessionManager", Value: "SessionManager"},
	CapabilityMetadataManager: ref{Type: "PbmCapabilityMetadataManager", Value: "CapabilityMetadataManager"},
	ProfileManager:            ref{Type: "PbmProfileProfileManager", Value: "ProfileManager"},
	ComplianceManager:         ref{Type: "PbmComplianceManager", Value: "complianceManager"},
	PlacementSolver:           ref{Type: "PbmPlacementSolver", Value: "placementSolver"},
}

func newPolicies(v *VCenter) *policies {
	p := &policies{v: v, created: time.Now(), list: slices.Clone(v.cfg.Policies)}
	for i := range p.list {
		if p.list[i].ID == "" {
			p.list[i].ID = uuidOf(v.cfg.Seed, "policy", p.list[i].Name)
		}
	}
	return p
}

func (p *policies) registry() *simulator.Registry {
	r := simulator.NewRegistry()
	r.Namespace, r.Path, r.Cookie = pbm.Namespace, pbm.Path, simulator.SOAPCookie
	c := pbmContent
	c.AboutInfo.InstanceUuid = uuidOf(p.v.cfg.Seed, "pbm", "instance")
	r.Put(&pbmInstance{ManagedObjectReference: pbm.ServiceInstance, content: c})
	r.Put(&profileManager{ManagedObjectReference: c.ProfileManager, p: p})
	r.Put(&placementSolver{ManagedObjectReference: c.PlacementSolver, p: p})
	return r
}

func (p *policies) exists(id string) bool {
	_, ok := p.find(id)
	return ok
}

func (p *policies) find(id string) (Policy, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.list, func(x Policy) bool { return x.ID == id })
	if i < 0 {
		return Policy{}, false
	}
	return p.list[i], true
}

type pbmInstance struct {
	types.ManagedObjectReference
	content pbmtypes.PbmServiceInstanceContent
}

func (s *pbmInstance) PbmRetrieveServiceContent(*pbmtypes.PbmRetrieveServiceContent) soap.HasFault {
	return &methods.PbmRetrieveServiceContentBody{Res: &pbmtypes.PbmRetrieveServiceContentResponse{Returnval: s.content}}
}

type profileManager struct {
	types.ManagedObjectReference
	p *policies
}

// storage is the resource type of policies for disks.
const storage = "STORAGE"

func (m *profileManager) PbmQueryProfile(req *pbmtypes.PbmQueryProfile) soap.HasFault {
	res := &pbmtypes.PbmQueryProfileResponse{}
	if req.ResourceType.ResourceType != storage {
		return &methods.PbmQueryProfileBody{Res: res}
	}
	if c := req.ProfileCategory; c != "" && c != string(pbmtypes.PbmProfileCategoryEnumREQUIREMENT) {
		return &methods.PbmQueryProfileBody{Res: res}
	}
	m.p.mu.Lock()
	defer m.p.mu.Unlock()
	for _, x := range m.p.list {
		res.Returnval = append(res.Returnval, pbmtypes.PbmProfileId{UniqueId: x.ID})
	}
	return &methods.PbmQueryProfileBody{Res: res}
}

func (m *profileManager) PbmRetrieveContent(req *pbmtypes.PbmRetrieveContent) soap.HasFault {
	bad := func() soap.HasFault {
		return &methods.PbmRetrieveContentBody{Fault_: simulator.Fault("", &types.InvalidArgument{InvalidProperty: "profileIds"})}
	}
	if len(req.ProfileIds) == 0 {
		return bad()
	}
	res := &pbmtypes.PbmRetrieveContentResponse{}
	for _, id := range req.ProfileIds {
		x, ok := m.p.find(id.UniqueId)
		if !ok {
			return bad()
		}
		res.Returnval = append(res.Returnval, m.p.profile(x))
	}
	return &methods.PbmRetrieveContentBody{Res: res}
}

func (p *policies) profile(x Policy) *pbmtypes.PbmCapabilityProfile {
	sub := pbmtypes.PbmCapabilitySubProfile{Name: "rules"}
	ns, id, val := "http://www.vmware.com/storage/tag", "com.vmware.storage.tag.csilab.property", types.AnyType("csilab")
	if slices.Equal(x.Types, []string{"vsan"}) {
		ns, id, val = "VSAN", "hostFailuresToTolerate", int32(1)
	}
	sub.Capability = []pbmtypes.PbmCapabilityInstance{{
		Id:         pbmtypes.PbmCapabilityMetadataUniqueId{Namespace: ns, Id: id},
		Constraint: []pbmtypes.PbmCapabilityConstraintInstance{{PropertyInstance: []pbmtypes.PbmCapabilityPropertyInstance{{Id: id, Value: val}}}},
	}}
	return &pbmtypes.PbmCapabilityProfile{
		PbmProfile: pbmtypes.PbmProfile{
			ProfileId: pbmtypes.PbmProfileId{UniqueId: x.ID}, Name: x.Name, Description: x.Description,
			CreationTime: p.created, CreatedBy: "Temporary user handle", LastUpdatedTime: p.created, LastUpdatedBy: "Temporary user handle",
		},
		ProfileCategory: string(pbmtypes.PbmProfileCategoryEnumREQUIREMENT),
		ResourceType:    pbmtypes.PbmProfileResourceType{ResourceType: storage},
		Constraints:     &pbmtypes.PbmCapabilitySubProfileConstraints{SubProfiles: []pbmtypes.PbmCapabilitySubProfile{sub}},
	}
}

type placementSolver struct {
	types.ManagedObjectReference
	p *policies
}

func (m *placementSolver) PbmCheckCompatibility(req *pbmtypes.PbmCheckCompatibility) soap.HasFault {
	x, ok := m.p.find(req.Profile.UniqueId)
	if !ok {
		return &methods.PbmCheckCompatibilityBody{Fault_: simulator.Fault("", &types.InvalidArgument{InvalidProperty: "profile"})}
	}
	return &methods.PbmCheckCompatibilityBody{Res: &pbmtypes.PbmCheckCompatibilityResponse{Returnval: m.p.results(&x, req.HubsToSearch)}}
}

func (m *placementSolver) PbmCheckRequirements(req *pbmtypes.PbmCheckRequirements) soap.HasFault {
	// Requirements that name a profile are checked, others are met by all.
	var x *Policy
	for _, r := range req.PlacementSubjectRequirement {
		if c, ok := r.(*pbmtypes.PbmPlacementCapabilityProfileRequirement); ok {
			p, ok := m.p.find(c.ProfileId.UniqueId)
			if !ok {
				return &methods.PbmCheckRequirementsBody{Fault_: simulator.Fault("", &types.InvalidArgument{InvalidProperty: "placementSubjectRequirement"})}
			}
			x = &p
		}
	}
	return &methods.PbmCheckRequirementsBody{Res: &pbmtypes.PbmCheckRequirementsResponse{Returnval: m.p.results(x, req.HubsToSearch)}}
}

func (m *placementSolver) PbmQueryMatchingHub(req *pbmtypes.PbmQueryMatchingHub) soap.HasFault {
	x, ok := m.p.find(req.Profile.UniqueId)
	if !ok {
		return &methods.PbmQueryMatchingHubBody{Fault_: simulator.Fault("", &types.InvalidArgument{InvalidProperty: "profile"})}
	}
	res := &pbmtypes.PbmQueryMatchingHubResponse{}
	for _, r := range m.p.results(&x, req.HubsToSearch) {
		if len(r.Error) == 0 {
			res.Returnval = append(res.Returnval, r.Hub)
		}
	}
	return &methods.PbmQueryMatchingHubBody{Res: res}
}

// results checks a policy (nil: none) against hubs, or all datastores. A hub
// that is no datastore is not compatible.
func (p *policies) results(x *Policy, hubs []pbmtypes.PbmPlacementHub) []pbmtypes.PbmPlacementCompatibilityResult {
	if len(hubs) == 0 {
		for _, d := range p.v.inv.datastores {
			hubs = append(hubs, pbmtypes.PbmPlacementHub{HubType: "Datastore", HubId: d.Self.Value})
		}
	}
	out := make([]pbmtypes.PbmPlacementCompatibilityResult, 0, len(hubs))
	for _, h := range hubs {
		r := pbmtypes.PbmPlacementCompatibilityResult{Hub: h}
		if why := p.incompatible(x, h); why != "" {
			r.Error = []types.LocalizedMethodFault{{Fault: &pbmtypes.PbmCompatibilityCheckFault{Hub: h}, LocalizedMessage: why}}
		}
		out = append(out, r)
	}
	return out
}

func (p *policies) incompatible(x *Policy, h pbmtypes.PbmPlacementHub) string {
	i := slices.IndexFunc(p.v.inv.datastores, func(d *simulator.Datastore) bool { return d.Self.Value == h.HubId })
	if h.HubType != "Datastore" || i < 0 {
		return "The hub " + h.HubType + ":" + h.HubId + " does not exist."
	}
	d := p.v.inv.datastores[i]
	var s types.DatastoreSummary
	ctx := p.v.internal()
	ctx.WithLock(d, func() { s = d.Summary })
	switch {
	case s.MaintenanceMode != "" && s.MaintenanceMode != string(types.DatastoreSummaryMaintenanceModeStateNormal):
		return "The datastore " + s.Name + " is in maintenance mode."
	case !s.Accessible:
		return "The datastore " + s.Name + " is not accessible."
	case x == nil:
		return ""
	case len(x.Types) > 0 && !slices.Contains(x.Types, s.Type), len(x.Datastores) > 0 && !slices.Contains(x.Datastores, s.Name) && !slices.Contains(x.Datastores, p.v.inv.labels[d.Self]):
		return "The datastore " + s.Name + " does not satisfy the storage policy " + x.Name + "."
	}
	return ""
}

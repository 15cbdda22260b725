package vcenter

import (
	"slices"
	"strings"
	"time"

	"github.com/vmware/govmomi/pbm/methods"
	pbmtypes "github.com/vmware/govmomi/pbm/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// profileManager makes, shows and deletes policies.
type profileManager struct {
	types.ManagedObjectReference
	p *policies
}

// maxPolicyName is how long the name of a policy may be, in bytes.
const maxPolicyName = 80

func (m *profileManager) PbmFetchResourceType(*pbmtypes.PbmFetchResourceType) soap.HasFault {
	return &methods.PbmFetchResourceTypeBody{Res: &pbmtypes.PbmFetchResourceTypeResponse{Returnval: []pbmtypes.PbmProfileResourceType{{ResourceType: storage}}}}
}

func (m *profileManager) PbmQueryProfile(req *pbmtypes.PbmQueryProfile) soap.HasFault {
	res := &pbmtypes.PbmQueryProfileResponse{}
	for _, x := range m.p.all() {
		if req.ResourceType.ResourceType == storage && (req.ProfileCategory == "" || req.ProfileCategory == x.category) {
			res.Returnval = append(res.Returnval, pbmtypes.PbmProfileId{UniqueId: x.ID})
		}
	}
	return &methods.PbmQueryProfileBody{Res: res}
}

func (m *profileManager) PbmQueryProfileDetails(req *pbmtypes.PbmQueryProfileDetails) soap.HasFault {
	res := &pbmtypes.PbmQueryProfileDetailsResponse{}
	for _, x := range m.p.all() {
		if req.ProfileCategory != "" && req.ProfileCategory != x.category {
			continue
		}
		d := pbmtypes.PbmProfileDetails{Profile: m.p.wire(x)}
		if req.FetchAllFields {
			d.IofInfos = filters(x)
		}
		res.Returnval = append(res.Returnval, d)
	}
	return &methods.PbmQueryProfileDetailsBody{Res: res}
}

func (m *profileManager) PbmRetrieveContent(req *pbmtypes.PbmRetrieveContent) soap.HasFault {
	bad := &methods.PbmRetrieveContentBody{Fault_: invalid("profileIds")}
	if len(req.ProfileIds) == 0 {
		return bad
	}
	res := &pbmtypes.PbmRetrieveContentResponse{}
	for _, id := range req.ProfileIds {
		x, ok := m.p.find(id.UniqueId)
		if !ok {
			return bad
		}
		res.Returnval = append(res.Returnval, m.p.wire(x))
	}
	return &methods.PbmRetrieveContentBody{Res: res}
}

// taken says whether another policy has a name. p.mu is held.
func (p *policies) taken(name, except string) bool {
	return slices.ContainsFunc(p.list, func(x *storageProfile) bool { return x.Name == name && x.ID != except })
}

func (m *profileManager) PbmCreate(ctx *simulator.Context, req *pbmtypes.PbmCreate) soap.HasFault {
	refuse := func(f types.BaseMethodFault) soap.HasFault {
		return &methods.PbmCreateBody{Fault_: simulator.Fault("", f)}
	}
	s := req.CreateSpec
	category := s.Category
	if category == "" {
		category = string(pbmtypes.PbmProfileCategoryEnumREQUIREMENT)
	}
	switch {
	case strings.TrimSpace(s.Name) == "", len(s.Name) > maxPolicyName:
		return refuse(&types.InvalidArgument{InvalidProperty: "createSpec.name"})
	case category != string(pbmtypes.PbmProfileCategoryEnumREQUIREMENT) && category != string(pbmtypes.PbmProfileCategoryEnumDATA_SERVICE_POLICY):
		// RESOURCE profiles are the system's.
		return refuse(&types.InvalidArgument{InvalidProperty: "createSpec.category"})
	case s.ResourceType.ResourceType != storage:
		return refuse(&types.InvalidArgument{InvalidProperty: "createSpec.resourceType"})
	}
	rules, f := checkRules(s.Constraints)
	if f != nil {
		return refuse(f)
	}
	p := m.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken(s.Name, "") {
		return refuse(&pbmtypes.PbmDuplicateName{Name: s.Name})
	}
	p.nth++
	now := time.Now()
	x := &storageProfile{
		Policy:   Policy{Name: s.Name, Description: s.Description, ID: uuidOf(p.v.cfg.Seed, "made policy", s.Name+"|"+itoa(p.v.epoch)+"|"+itoa(int64(p.nth)))},
		category: category, rules: rules, created: now, updated: now, by: ctx.Session.UserName, updatedBy: ctx.Session.UserName,
		k8s: s.K8sCompliantName,
	}
	if x.k8s == "" {
		x.k8s = k8sName(s.Name)
	}
	p.list = append(p.list, x)
	return &methods.PbmCreateBody{Res: &pbmtypes.PbmCreateResponse{Returnval: pbmtypes.PbmProfileId{UniqueId: x.ID}}}
}

func (m *profileManager) PbmUpdate(ctx *simulator.Context, req *pbmtypes.PbmUpdate) soap.HasFault {
	refuse := func(f types.BaseMethodFault) soap.HasFault {
		return &methods.PbmUpdateBody{Fault_: simulator.Fault("", f)}
	}
	s := req.UpdateSpec
	if len(s.Name) > maxPolicyName {
		return refuse(&types.InvalidArgument{InvalidProperty: "updateSpec.name"})
	}
	var rules []pbmtypes.PbmCapabilitySubProfile
	if s.Constraints != nil {
		var f types.BaseMethodFault
		if rules, f = checkRules(s.Constraints); f != nil {
			return refuse(f)
		}
	}
	p := m.p
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.byID(req.ProfileId.UniqueId)
	switch {
	case x == nil:
		return refuse(&types.InvalidArgument{InvalidProperty: "profileId"})
	case s.Name != "" && p.taken(s.Name, x.ID):
		return refuse(&pbmtypes.PbmDuplicateName{Name: s.Name})
	}
	if s.Name != "" {
		x.Name = s.Name
	}
	if s.Description != "" {
		x.Description = s.Description
	}
	if rules != nil {
		x.rules = rules
		x.generation++
	}
	x.updated, x.updatedBy = time.Now(), ctx.Session.UserName
	return &methods.PbmUpdateBody{Res: &pbmtypes.PbmUpdateResponse{}}
}

// PbmDelete deletes policies that nothing uses, and says of each other why not.
func (m *profileManager) PbmDelete(req *pbmtypes.PbmDelete) soap.HasFault {
	res := &pbmtypes.PbmDeleteResponse{}
	for _, id := range req.ProfileId {
		o := pbmtypes.PbmProfileOperationOutcome{ProfileId: id}
		used := len(m.p.v.face.UsersOf(id.UniqueId)) > 0
		p := m.p
		p.mu.Lock()
		x := p.byID(id.UniqueId)
		for _, d := range p.defaults {
			used = used || d == id.UniqueId
		}
		switch {
		case x == nil:
			o.Fault = &types.LocalizedMethodFault{Fault: &types.InvalidArgument{InvalidProperty: "profileId"}, LocalizedMessage: textOf(&types.InvalidArgument{InvalidProperty: "profileId"})}
		case used, x.ID == vsanDefault: // Unverified: how the default policy is refused
			o.Fault = inUse(x.Name)
		default:
			p.list = slices.DeleteFunc(p.list, func(y *storageProfile) bool { return y == x })
		}
		p.mu.Unlock()
		res.Returnval = append(res.Returnval, o)
	}
	return &methods.PbmDeleteBody{Res: res}
}

// filters are the I/O filters that a policy asks for: of those, encryption.
func filters(x storageProfile) (out []pbmtypes.PbmIofilterInfo) {
	for _, set := range x.rules {
		for _, c := range set.Capability {
			if isEncryption(c.Id.Namespace) {
				return []pbmtypes.PbmIofilterInfo{{VibId: "vmwarevmcrypt", FilterType: string(pbmtypes.PbmIofilterInfoFilterTypeENCRYPTION)}}
			}
		}
	}
	return out
}

func (m *profileManager) PbmQueryIOFiltersFromProfileId(req *pbmtypes.PbmQueryIOFiltersFromProfileId) soap.HasFault {
	res := &pbmtypes.PbmQueryIOFiltersFromProfileIdResponse{}
	for _, id := range req.ProfileIds {
		x, ok := m.p.find(id.UniqueId)
		if !ok {
			return &methods.PbmQueryIOFiltersFromProfileIdBody{Fault_: simulator.Fault("Invalid profile ID", &types.RuntimeFault{})}
		}
		res.Returnval = append(res.Returnval, pbmtypes.PbmProfileToIofilterMap{Key: id, Iofilters: filters(x)})
	}
	return &methods.PbmQueryIOFiltersFromProfileIdBody{Res: res}
}

// PbmResolveK8sCompliantNames gives every policy a name for late binding.
func (m *profileManager) PbmResolveK8sCompliantNames(*pbmtypes.PbmResolveK8sCompliantNames) soap.HasFault {
	m.p.mu.Lock()
	defer m.p.mu.Unlock()
	for _, x := range m.p.list {
		if name := x.k8s + "-latebinding"; !slices.Contains(x.otherK8s, name) {
			x.otherK8s = append(slices.Clone(x.otherK8s), name)
		}
	}
	return &methods.PbmResolveK8sCompliantNamesBody{Res: &pbmtypes.PbmResolveK8sCompliantNamesResponse{}}
}

func (m *profileManager) PbmUpdateK8sCompliantNames(req *pbmtypes.PbmUpdateK8sCompliantNames) soap.HasFault {
	refuse := func(text string) soap.HasFault {
		return &methods.PbmUpdateK8sCompliantNamesBody{Fault_: simulator.Fault(text, &types.RuntimeFault{})}
	}
	s := req.K8sCompliantNameSpec
	m.p.mu.Lock()
	defer m.p.mu.Unlock()
	x := m.p.byID(s.ProfileId)
	switch {
	case x == nil:
		return refuse("Invalid profile ID")
	case x.k8s != "" && x.k8s != s.K8sCompliantName:
		return refuse("Invalid Argument")
	case slices.Contains(s.OtherK8sCompliantNames, x.k8s):
		return refuse("Duplicate Name")
	}
	x.k8s, x.otherK8s = s.K8sCompliantName, slices.Clone(s.OtherK8sCompliantNames)
	return &methods.PbmUpdateK8sCompliantNamesBody{Res: &pbmtypes.PbmUpdateK8sCompliantNamesResponse{}}
}

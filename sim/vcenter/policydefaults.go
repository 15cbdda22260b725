package vcenter

import (
	"slices"

	"github.com/vmware/govmomi/pbm/methods"
	pbmtypes "github.com/vmware/govmomi/pbm/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// Datastores of vSAN and Virtual Volumes have a default policy, for disks that
// are made without one; others, which PBM calls legacy hubs, have none.

// defaultOf is the default policy of a datastore, "" where it has none.
func (p *policies) defaultOf(s hubStore) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	id, assigned := p.defaults[s.self.Value]
	if !assigned && s.summary.Type == "vsan" {
		id = vsanDefault
	}
	if p.byID(id) == nil {
		return ""
	}
	return id
}

// defaultFor is the default policy of a datastore by managed object id, "" where
// it has none.
func (p *policies) defaultFor(datastore string) string {
	s, ok := p.store(pbmtypes.PbmPlacementHub{HubType: "Datastore", HubId: datastore})
	if !ok {
		return ""
	}
	return p.defaultOf(s)
}

// stores finds the datastores of hubs.
func (p *policies) stores(hubs []pbmtypes.PbmPlacementHub) ([]hubStore, types.BaseMethodFault) {
	var out []hubStore
	var gone []pbmtypes.PbmPlacementHub
	for _, h := range hubs {
		if s, ok := p.store(h); ok {
			out = append(out, s)
		} else {
			gone = append(gone, h)
		}
	}
	if len(gone) > 0 {
		return nil, &pbmtypes.PbmNonExistentHubs{Hubs: gone}
	}
	return out, nil
}

func (m *profileManager) PbmQueryDefaultRequirementProfile(req *pbmtypes.PbmQueryDefaultRequirementProfile) soap.HasFault {
	ss, f := m.p.stores([]pbmtypes.PbmPlacementHub{req.Hub})
	if f != nil {
		return &methods.PbmQueryDefaultRequirementProfileBody{Fault_: simulator.Fault("", f)}
	}
	res := &pbmtypes.PbmQueryDefaultRequirementProfileResponse{}
	if id := m.p.defaultOf(ss[0]); id != "" {
		res.Returnval = &pbmtypes.PbmProfileId{UniqueId: id}
	}
	return &methods.PbmQueryDefaultRequirementProfileBody{Res: res}
}

func (m *profileManager) PbmQueryDefaultRequirementProfiles(req *pbmtypes.PbmQueryDefaultRequirementProfiles) soap.HasFault {
	ss, f := m.p.stores(req.Datastores)
	if f != nil {
		return &methods.PbmQueryDefaultRequirementProfilesBody{Fault_: simulator.Fault("", f)}
	}
	res := &pbmtypes.PbmQueryDefaultRequirementProfilesResponse{}
	for i, s := range ss {
		info := pbmtypes.PbmDefaultProfileInfo{Datastores: req.Datastores[i : i+1]}
		if x, ok := m.p.find(m.p.defaultOf(s)); ok {
			info.DefaultProfile = m.p.wire(x)
		}
		res.Returnval = append(res.Returnval, info)
	}
	return &methods.PbmQueryDefaultRequirementProfilesBody{Res: res}
}

func (m *profileManager) PbmAssignDefaultRequirementProfile(req *pbmtypes.PbmAssignDefaultRequirementProfile) soap.HasFault {
	refuse := func(f types.BaseMethodFault) soap.HasFault {
		return &methods.PbmAssignDefaultRequirementProfileBody{Fault_: simulator.Fault("", f)}
	}
	x, ok := m.p.find(req.Profile.UniqueId)
	if !ok {
		return refuse(&types.InvalidArgument{InvalidProperty: "profile"})
	}
	ss, f := m.p.stores(req.Datastores)
	if f != nil {
		return refuse(f)
	}
	var legacy []pbmtypes.PbmPlacementHub
	for i, s := range ss {
		switch {
		case s.summary.Type != "vsan" && s.summary.Type != "VVOL":
			legacy = append(legacy, req.Datastores[i])
		case m.p.incompatible(&x, req.Datastores[i]) != "":
			return refuse(&types.InvalidArgument{InvalidProperty: "datastores"})
		}
	}
	if len(legacy) > 0 {
		return refuse(&pbmtypes.PbmLegacyHubsNotSupported{Hubs: legacy})
	}
	m.p.mu.Lock()
	defer m.p.mu.Unlock()
	if m.p.byID(x.ID) == nil { // deleted meanwhile
		return refuse(&types.InvalidArgument{InvalidProperty: "profile"})
	}
	for _, s := range ss {
		m.p.defaults[s.self.Value] = x.ID
	}
	return &methods.PbmAssignDefaultRequirementProfileBody{Res: &pbmtypes.PbmAssignDefaultRequirementProfileResponse{}}
}

// PbmResetDefaultRequirementProfile makes a policy no datastore's default;
// without one, all defaults are the system's again.
func (m *profileManager) PbmResetDefaultRequirementProfile(req *pbmtypes.PbmResetDefaultRequirementProfile) soap.HasFault {
	m.p.mu.Lock()
	defer m.p.mu.Unlock()
	if req.Profile != nil && m.p.byID(req.Profile.UniqueId) == nil {
		return &methods.PbmResetDefaultRequirementProfileBody{Fault_: invalid("profile")}
	}
	for d, id := range m.p.defaults {
		if req.Profile == nil || req.Profile.UniqueId == id {
			delete(m.p.defaults, d)
		}
	}
	return &methods.PbmResetDefaultRequirementProfileBody{Res: &pbmtypes.PbmResetDefaultRequirementProfileResponse{}}
}

// PbmResetVSanDefaultProfile undoes what was changed of the vSAN default.
func (m *profileManager) PbmResetVSanDefaultProfile(*pbmtypes.PbmResetVSanDefaultProfile) soap.HasFault {
	m.p.mu.Lock()
	defer m.p.mu.Unlock()
	if x := m.p.byID(vsanDefault); x != nil {
		x.rules = nil
		x.generation++
		if i := slices.IndexFunc(m.p.v.cfg.Policies, func(c Policy) bool { return c.ID == vsanDefault }); i >= 0 {
			x.Policy = m.p.v.cfg.Policies[i]
		}
	}
	return &methods.PbmResetVSanDefaultProfileBody{Res: &pbmtypes.PbmResetVSanDefaultProfileResponse{}}
}

// PbmFindApplicableDefaultProfile finds the default that datastores share.
func (m *profileManager) PbmFindApplicableDefaultProfile(req *pbmtypes.PbmFindApplicableDefaultProfile) soap.HasFault {
	ss, f := m.p.stores(req.Datastores)
	if f != nil {
		return &methods.PbmFindApplicableDefaultProfileBody{Fault_: simulator.Fault("", f)}
	}
	res := &pbmtypes.PbmFindApplicableDefaultProfileResponse{}
	shared := ""
	for i, s := range ss {
		id := m.p.defaultOf(s)
		if i > 0 && id != shared {
			shared = ""
			break
		}
		shared = id
	}
	if x, ok := m.p.find(shared); ok {
		res.Returnval = append(res.Returnval, m.p.wire(x))
	}
	return &methods.PbmFindApplicableDefaultProfileBody{Res: res}
}

// PbmQuerySpaceStatsForStorageContainer tells the space of a datastore as a
// whole, and once more for each policy that is named.
func (m *profileManager) PbmQuerySpaceStatsForStorageContainer(req *pbmtypes.PbmQuerySpaceStatsForStorageContainer) soap.HasFault {
	s, ok := m.p.store(pbmtypes.PbmPlacementHub{HubType: "Datastore", HubId: req.Datastore.Key})
	if !ok {
		return &methods.PbmQuerySpaceStatsForStorageContainerBody{Fault_: invalid("datastore")}
	}
	total, free := s.summary.Capacity>>20, s.summary.FreeSpace>>20
	stats := pbmtypes.PbmDatastoreSpaceStatistics{
		PhysicalTotalInMB: total, PhysicalFreeInMB: free, PhysicalUsedInMB: total - free,
		LogicalLimitInMB: total, LogicalFreeInMB: free, LogicalUsedInMB: total - free,
	}
	res := &pbmtypes.PbmQuerySpaceStatsForStorageContainerResponse{Returnval: []pbmtypes.PbmDatastoreSpaceStatistics{stats}}
	for _, id := range req.CapabilityProfileId {
		if !m.p.exists(id.UniqueId) {
			return &methods.PbmQuerySpaceStatsForStorageContainerBody{Fault_: invalid("capabilityProfileId")}
		}
		of := stats
		of.ProfileId = id.UniqueId
		res.Returnval = append(res.Returnval, of)
	}
	return &methods.PbmQuerySpaceStatsForStorageContainerBody{Res: res}
}

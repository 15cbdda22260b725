package vcenter

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/vmware/govmomi/pbm/methods"
	pbmtypes "github.com/vmware/govmomi/pbm/types"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// complianceManager says whether what lies on a datastore still meets its
// policy. It looks when it is asked: results are never old.
type complianceManager struct {
	types.ManagedObjectReference
	p *policies
}

// compliance checks an object against its policy, or against another one.
// Errors: the object does not exist.
func (p *policies) compliance(o pbmtypes.PbmServerObjectRef, against *pbmtypes.PbmProfileId) (pbmtypes.PbmComplianceResult, bool) {
	r := pbmtypes.PbmComplianceResult{CheckTime: time.Now(), Entity: o, Profile: against, ComplianceStatus: string(pbmtypes.PbmComplianceStatusNotApplicable)}
	id := p.volumeOf(o)
	own, ok := p.v.face.PolicyOf(id)
	if !ok {
		return r, false
	}
	if against == nil && own != "" {
		r.Profile = &pbmtypes.PbmProfileId{UniqueId: own}
	}
	if r.Profile == nil {
		return r, true
	}
	r.Mismatch = against != nil && against.UniqueId != own
	x, ok := p.find(r.Profile.UniqueId)
	if !ok {
		r.ComplianceStatus = string(pbmtypes.PbmComplianceStatusUnknown)
		return r, true
	}
	why := p.incompatible(&x, pbmtypes.PbmPlacementHub{HubType: "Datastore", HubId: p.v.face.DatastoreOf(id)})
	r.ComplianceStatus = string(pbmtypes.PbmComplianceStatusCompliant)
	if why != "" {
		r.ComplianceStatus = string(pbmtypes.PbmComplianceStatusNonCompliant)
		for _, set := range p.subProfiles(x) {
			for _, c := range set.Capability {
				r.ViolatedPolicies = append(r.ViolatedPolicies, pbmtypes.PbmCompliancePolicyStatus{ExpectedValue: c})
			}
		}
	}
	return r, true
}

func (p *policies) complianceOf(entities []pbmtypes.PbmServerObjectRef, against *pbmtypes.PbmProfileId) ([]pbmtypes.PbmComplianceResult, *soap.Fault) {
	if against != nil && !p.exists(against.UniqueId) {
		return nil, invalid("profile")
	}
	var out []pbmtypes.PbmComplianceResult
	for _, o := range entities {
		r, ok := p.compliance(o, against)
		if !ok {
			return nil, invalid("entities")
		}
		out = append(out, r)
	}
	return out, nil
}

func (m *complianceManager) PbmCheckCompliance(req *pbmtypes.PbmCheckCompliance) soap.HasFault {
	rs, f := m.p.complianceOf(req.Entities, req.Profile)
	if f != nil {
		return &methods.PbmCheckComplianceBody{Fault_: f}
	}
	return &methods.PbmCheckComplianceBody{Res: &pbmtypes.PbmCheckComplianceResponse{Returnval: rs}}
}

func (m *complianceManager) PbmFetchComplianceResult(req *pbmtypes.PbmFetchComplianceResult) soap.HasFault {
	rs, f := m.p.complianceOf(req.Entities, req.Profile)
	if f != nil {
		return &methods.PbmFetchComplianceResultBody{Fault_: f}
	}
	return &methods.PbmFetchComplianceResultBody{Res: &pbmtypes.PbmFetchComplianceResultResponse{Returnval: rs}}
}

// worst orders states for a roll-up.
var worst = []string{
	string(pbmtypes.PbmComplianceStatusNonCompliant), string(pbmtypes.PbmComplianceStatusUnknown),
	string(pbmtypes.PbmComplianceStatusOutOfDate), string(pbmtypes.PbmComplianceStatusCompliant),
}

// rollup sums up the volumes in a VM.
func (p *policies) rollup(o pbmtypes.PbmServerObjectRef) (pbmtypes.PbmRollupComplianceResult, bool) {
	r := pbmtypes.PbmRollupComplianceResult{OldestCheckTime: time.Now(), Entity: o, OverallComplianceStatus: string(pbmtypes.PbmComplianceStatusNotApplicable)}
	if p.v.vim.Get(ref{Type: "VirtualMachine", Value: o.Key}) == nil {
		return r, false
	}
	disks := p.disksOf(o.Key)
	best := len(worst)
	for _, key := range slices.Sorted(maps.Keys(disks)) {
		d := pbmtypes.PbmServerObjectRef{ObjectType: string(pbmtypes.PbmObjectTypeVirtualDiskId), Key: o.Key + ":" + key, ServerUuid: o.ServerUuid}
		c, ok := p.compliance(d, nil)
		if !ok {
			continue
		}
		r.Result = append(r.Result, c)
		if i := slices.Index(worst, c.ComplianceStatus); i >= 0 && i < best {
			best, r.OverallComplianceStatus = i, c.ComplianceStatus
		}
	}
	return r, true
}

func (p *policies) rollups(entities []pbmtypes.PbmServerObjectRef) ([]pbmtypes.PbmRollupComplianceResult, *soap.Fault) {
	var out []pbmtypes.PbmRollupComplianceResult
	for _, o := range entities {
		r, ok := p.rollup(o)
		if !ok {
			return nil, invalid("entity")
		}
		out = append(out, r)
	}
	return out, nil
}

func (m *complianceManager) PbmCheckRollupCompliance(req *pbmtypes.PbmCheckRollupCompliance) soap.HasFault {
	rs, f := m.p.rollups(req.Entity)
	if f != nil {
		return &methods.PbmCheckRollupComplianceBody{Fault_: f}
	}
	return &methods.PbmCheckRollupComplianceBody{Res: &pbmtypes.PbmCheckRollupComplianceResponse{Returnval: rs}}
}

func (m *complianceManager) PbmFetchRollupComplianceResult(req *pbmtypes.PbmFetchRollupComplianceResult) soap.HasFault {
	rs, f := m.p.rollups(req.Entity)
	if f != nil {
		return &methods.PbmFetchRollupComplianceResultBody{Fault_: f}
	}
	return &methods.PbmFetchRollupComplianceResultBody{Res: &pbmtypes.PbmFetchRollupComplianceResultResponse{Returnval: rs}}
}

// PbmQueryByRollupComplianceStatus lists the VMs whose volumes are in a state.
func (m *complianceManager) PbmQueryByRollupComplianceStatus(req *pbmtypes.PbmQueryByRollupComplianceStatus) soap.HasFault {
	res := &pbmtypes.PbmQueryByRollupComplianceStatusResponse{}
	vms := m.p.v.vim.AllReference("VirtualMachine")
	slices.SortFunc(vms, func(a, b mo.Reference) int { return strings.Compare(a.Reference().Value, b.Reference().Value) })
	for _, vm := range vms {
		o := pbmtypes.PbmServerObjectRef{ObjectType: string(pbmtypes.PbmObjectTypeVirtualMachine), Key: vm.Reference().Value, ServerUuid: m.p.v.content.About.InstanceUuid}
		if r, ok := m.p.rollup(o); ok && r.OverallComplianceStatus == req.Status {
			res.Returnval = append(res.Returnval, o)
		}
	}
	return &methods.PbmQueryByRollupComplianceStatusBody{Res: res}
}

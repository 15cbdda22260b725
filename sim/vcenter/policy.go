package vcenter

import (
	"fmt"
	"slices"
	"strings"
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
	// Tags that a datastore must have, of all rules; empty means none.
	Tags []TagRule
}

// TagRule is a rule of a policy about tags of datastores.
type TagRule struct {
	Category string
	// Names of tags of the category, of which a datastore must have one, or
	// with Not none.
	Names []string
	Not   bool
}

// vsanDefault is the id of the policy that every vCenter has for vSAN.
const vsanDefault = "aa6d5a82-1c88-45da-85d3-3d74b91a5bad"

// DefaultPolicies are the vSAN default policy, which every vCenter has and
// only vSAN datastores satisfy, and one that all datastores satisfy.
func DefaultPolicies() []Policy {
	return []Policy{
		{Name: "vSAN Default Storage Policy", ID: vsanDefault, Types: []string{"vsan"},
			Description: "Storage policy used as default for vSAN datastores"},
		{Name: "Lab Storage Policy", Description: "Any datastore"},
	}
}

// storageProfile is a policy as PBM keeps it.
type storageProfile struct {
	Policy
	category string // REQUIREMENT or DATA_SERVICE_POLICY
	// rules that a client made; nil for a policy of the configuration, which
	// goes by its own fields.
	rules            []pbmtypes.PbmCapabilitySubProfile
	created, updated time.Time
	by, updatedBy    string
	generation       int64
	k8s              string // name of the StorageClass that a Supervisor makes of it
	otherK8s         []string
}

// policies is the PBM endpoint. vcsim's shares its profiles between instances
// and calls every datastore compatible with every policy.
type policies struct {
	v *VCenter

	mu       sync.Mutex // a leaf: nothing is called with it held
	list     []*storageProfile
	nth      int
	defaults map[string]string // policy id by datastore, where assigned
}

var pbmContent = pbmtypes.PbmServiceInstanceContent{
	AboutInfo:                 pbmtypes.PbmAboutInfo{Name: "PBM", Version: "2.0"},
	SessionManager:            ref{Type: "PbmSessionManager", Value: "SessionManager"},
	CapabilityMetadataManager: ref{Type: "PbmCapabilityMetadataManager", Value: "CapabilityMetadataManager"},
	ProfileManager:            ref{Type: "PbmProfileProfileManager", Value: "ProfileManager"},
	ComplianceManager:         ref{Type: "PbmComplianceManager", Value: "complianceManager"},
	PlacementSolver:           ref{Type: "PbmPlacementSolver", Value: "placementSolver"},
}

// builtin is who made the policies that a vCenter comes with.
const builtin = "Temporary user handle"

func newPolicies(v *VCenter) *policies {
	p := &policies{v: v, defaults: map[string]string{}}
	now := time.Now()
	for _, x := range v.cfg.Policies {
		if x.ID == "" {
			x.ID = uuidOf(v.cfg.Seed, "policy", x.Name)
		}
		p.list = append(p.list, &storageProfile{
			Policy: x, category: string(pbmtypes.PbmProfileCategoryEnumREQUIREMENT),
			created: now, updated: now, by: builtin, updatedBy: builtin, k8s: k8sName(x.Name),
		})
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
	r.Put(&complianceManager{ManagedObjectReference: c.ComplianceManager, p: p})
	return r
}

func (p *policies) exists(id string) bool {
	_, ok := p.find(id)
	return ok
}

// find returns a copy of a policy.
func (p *policies) find(id string) (storageProfile, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if x := p.byID(id); x != nil {
		return *x, true
	}
	return storageProfile{}, false
}

func (p *policies) byID(id string) *storageProfile {
	if i := slices.IndexFunc(p.list, func(x *storageProfile) bool { return x.ID == id }); i >= 0 {
		return p.list[i]
	}
	return nil
}

// all returns copies of all policies.
func (p *policies) all() []storageProfile {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]storageProfile, 0, len(p.list))
	for _, x := range p.list {
		out = append(out, *x)
	}
	return out
}

type pbmInstance struct {
	types.ManagedObjectReference
	content pbmtypes.PbmServiceInstanceContent
}

func (s *pbmInstance) PbmRetrieveServiceContent(*pbmtypes.PbmRetrieveServiceContent) soap.HasFault {
	return &methods.PbmRetrieveServiceContentBody{Res: &pbmtypes.PbmRetrieveServiceContentResponse{Returnval: s.content}}
}

// storage is the resource type of policies for disks.
const storage = "STORAGE"

// wire is a policy as the API shows it.
func (p *policies) wire(x storageProfile) *pbmtypes.PbmCapabilityProfile {
	out := &pbmtypes.PbmCapabilityProfile{
		PbmProfile: pbmtypes.PbmProfile{
			ProfileId: pbmtypes.PbmProfileId{UniqueId: x.ID}, Name: x.Name, Description: x.Description,
			CreationTime: x.created, CreatedBy: x.by, LastUpdatedTime: x.updated, LastUpdatedBy: x.updatedBy,
		},
		ProfileCategory: x.category, GenerationId: x.generation, IsDefault: x.ID == vsanDefault,
		ResourceType:     pbmtypes.PbmProfileResourceType{ResourceType: storage},
		K8sCompliantName: x.k8s, OtherK8sCompliantNames: x.otherK8s,
	}
	if x.ID == vsanDefault {
		out.SystemCreatedProfileType = string(pbmtypes.PbmSystemCreatedProfileTypeVsanDefaultProfile)
	}
	out.Constraints = &pbmtypes.PbmCapabilitySubProfileConstraints{SubProfiles: p.subProfiles(x)}
	return out
}

// tagNamespace holds the rules about tags.
const tagNamespace = "http://www.vmware.com/storage/tag"

func tagProperty(category string) string { return "com.vmware.storage.tag." + category + ".property" }

// subProfiles are the rules of a policy. One of the configuration has those
// that say the same, where there are some.
func (p *policies) subProfiles(x storageProfile) []pbmtypes.PbmCapabilitySubProfile {
	if x.rules != nil {
		return x.rules
	}
	one := func(namespace, id, property, operator string, value types.AnyType) pbmtypes.PbmCapabilityInstance {
		return pbmtypes.PbmCapabilityInstance{
			Id: pbmtypes.PbmCapabilityMetadataUniqueId{Namespace: namespace, Id: id},
			Constraint: []pbmtypes.PbmCapabilityConstraintInstance{{
				PropertyInstance: []pbmtypes.PbmCapabilityPropertyInstance{{Id: property, Operator: operator, Value: value}}}},
		}
	}
	sub := pbmtypes.PbmCapabilitySubProfile{Name: "Rule-Set 1"}
	for _, r := range x.Tags {
		set := pbmtypes.PbmCapabilityDiscreteSet{}
		for _, n := range r.Names {
			set.Values = append(set.Values, n)
		}
		operator := ""
		if r.Not {
			operator = string(pbmtypes.PbmCapabilityOperatorNOT)
		}
		sub.Capability = append(sub.Capability, one(tagNamespace, r.Category, tagProperty(r.Category), operator, set))
	}
	switch {
	case slices.Equal(x.Types, []string{"vsan"}):
		sub.Name = "VSAN sub-profile"
		for _, c := range []struct {
			id    string
			value types.AnyType
		}{
			{"hostFailuresToTolerate", int32(1)}, {"stripeWidth", int32(1)}, {"forceProvisioning", false},
			{"proportionalCapacity", int32(0)}, {"cacheReservation", int32(0)},
		} {
			sub.Capability = append(sub.Capability, one("VSAN", c.id, c.id, "", c.value))
		}
	case len(sub.Capability) == 0:
		// The schema wants a rule: one that all datastores meet.
		sub.Capability = append(sub.Capability, one("com.vmware.storage.volumeallocation", "VolumeAllocationType", "VolumeAllocationType", "", "Conserve space when possible"))
	}
	return []pbmtypes.PbmCapabilitySubProfile{sub}
}

// k8sName is the name of a StorageClass for a policy: lower case, with other
// characters than letters, digits and dots as dashes, and 0 where it may not
// begin or end so.
func k8sName(name string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(name) {
		switch {
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9', r == '.':
			b.WriteRune(r)
		case !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
	}
	s := b.String()
	if s == "" {
		return "0"
	}
	if strings.IndexByte("-.", s[0]) >= 0 {
		s = "0" + s
	}
	if strings.IndexByte("-.", s[len(s)-1]) >= 0 {
		s += "0"
	}
	return s
}

// invalid is the refusal of a parameter.
func invalid(property string) *soap.Fault {
	return simulator.Fault("", &types.InvalidArgument{InvalidProperty: property})
}

// inUse refuses the deletion of a policy.
func inUse(name string) *types.LocalizedMethodFault {
	return &types.LocalizedMethodFault{
		Fault:            &pbmtypes.PbmResourceInUse{Name: name},
		LocalizedMessage: fmt.Sprintf(textInUse, name),
	}
}

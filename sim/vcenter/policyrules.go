package vcenter

import (
	"fmt"
	"slices"
	"strings"

	pbmtypes "github.com/vmware/govmomi/pbm/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/types"
)

// hubStore is a datastore as rules see it.
type hubStore struct {
	self    ref
	label   string // its name in the configuration
	summary types.DatastoreSummary
}

// store finds a datastore by hub.
func (p *policies) store(h pbmtypes.PbmPlacementHub) (hubStore, bool) {
	i := slices.IndexFunc(p.v.inv.datastores, func(d *simulator.Datastore) bool { return d.Self.Value == h.HubId })
	if h.HubType != "Datastore" || i < 0 {
		return hubStore{}, false
	}
	d := p.v.inv.datastores[i]
	s := hubStore{self: d.Self, label: p.v.inv.labels[d.Self]}
	ctx := p.v.internal()
	ctx.WithLock(d, func() { s.summary = d.Summary })
	return s, true
}

// incompatible says why a datastore can't hold what a policy (nil: none) asks
// for, "" where it can.
func (p *policies) incompatible(x *storageProfile, h pbmtypes.PbmPlacementHub) string {
	s, ok := p.store(h)
	if !ok {
		return "The hub " + h.HubType + ":" + h.HubId + " does not exist."
	}
	name := s.summary.Name
	switch {
	case s.summary.MaintenanceMode != "" && s.summary.MaintenanceMode != string(types.DatastoreSummaryMaintenanceModeStateNormal):
		return "The datastore " + name + " is in maintenance mode."
	case !s.summary.Accessible:
		return "The datastore " + name + " is not accessible."
	case x == nil:
		return ""
	case x.rules != nil:
		if why := p.unmetRules(x.rules, s); why != "" {
			return "The datastore " + name + " does not satisfy the storage policy " + x.Name + ": " + why + "."
		}
		return ""
	case len(x.Types) > 0 && !slices.Contains(x.Types, s.summary.Type),
		len(x.Datastores) > 0 && !slices.Contains(x.Datastores, name) && !slices.Contains(x.Datastores, s.label):
		return "The datastore " + name + " does not satisfy the storage policy " + x.Name + "."
	}
	for _, r := range x.Tags {
		if p.hasOne(s, r.Category, r.Names) == r.Not {
			return "The datastore " + name + " does not satisfy the storage policy " + x.Name + ": tags of the category " + r.Category + "."
		}
	}
	return ""
}

func (p *policies) hasOne(s hubStore, category string, names []string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return p.v.tagging.has(s.self, category, n) })
}

// unmetRules says why a datastore meets none of the rule sets: one is enough,
// and of it all capabilities.
func (p *policies) unmetRules(sets []pbmtypes.PbmCapabilitySubProfile, s hubStore) string {
	why := "it has no rules"
	for _, set := range sets {
		why = ""
		for _, c := range set.Capability {
			if why = p.unmetCapability(c, s); why != "" {
				break
			}
		}
		if why == "" {
			return ""
		}
	}
	return why
}

// everywhere are namespaces of services that hosts give on any datastore: I/O
// control, encryption and other filters.
func everywhere(namespace string) bool {
	return namespace == "spm" || strings.Contains(namespace, "@DATASTOREIOCONTROL") || isEncryption(namespace) ||
		strings.HasPrefix(namespace, "com.vmware.storageprofile.dataservice") || strings.HasPrefix(namespace, "com.vmware.iofilters")
}

func isEncryption(namespace string) bool {
	return strings.HasPrefix(namespace, "vmwarevmcrypt") || strings.HasPrefix(namespace, "vmwarenativecrypt")
}

func (p *policies) unmetCapability(c pbmtypes.PbmCapabilityInstance, s hubStore) string {
	kind := s.summary.Type
	switch ns := c.Id.Namespace; {
	case ns == tagNamespace:
		// Of several constraints one has to be met, of each all properties.
		if len(c.Constraint) == 0 || slices.ContainsFunc(c.Constraint, func(x pbmtypes.PbmCapabilityConstraintInstance) bool {
			return !slices.ContainsFunc(x.PropertyInstance, func(i pbmtypes.PbmCapabilityPropertyInstance) bool {
				not := i.Operator == string(pbmtypes.PbmCapabilityOperatorNOT)
				return p.hasOne(s, categoryOf(c.Id.Id, i.Id), values(i.Value)) == not
			})
		}) {
			return ""
		}
		return "tags of the category " + c.Id.Id
	case everywhere(ns):
		return ""
	case ns == "com.vmware.storage.volumeallocation":
		if kind != "VVOL" {
			return ""
		}
	case strings.EqualFold(ns, "vsan"):
		if kind == "vsan" {
			return ""
		}
	case strings.EqualFold(ns, "vvol"), strings.HasPrefix(ns, "com.vmware.vvol"):
		if kind == "VVOL" {
			return ""
		}
	}
	// Capabilities of a vendor that no storage provider here has.
	return fmt.Sprintf("capability %s of %s", c.Id.Id, c.Id.Namespace)
}

// categoryOf is the category of a tag rule: the capability's id, or what the
// property's id holds of it.
func categoryOf(capability, property string) string {
	if s, ok := strings.CutPrefix(property, "com.vmware.storage.tag."); ok {
		if s, ok = strings.CutSuffix(s, ".property"); ok {
			return s
		}
	}
	return capability
}

// values of a property: a set or one.
func values(v types.AnyType) (out []string) {
	switch x := v.(type) {
	case pbmtypes.PbmCapabilityDiscreteSet:
		for _, y := range x.Values {
			out = append(out, fmt.Sprint(y))
		}
	case *pbmtypes.PbmCapabilityDiscreteSet:
		if x != nil {
			return values(*x)
		}
	case nil:
	default:
		out = append(out, fmt.Sprint(x))
	}
	return out
}

// checkRules refuses rules that PBM does not take.
func checkRules(c pbmtypes.BasePbmCapabilityConstraints) ([]pbmtypes.PbmCapabilitySubProfile, types.BaseMethodFault) {
	var sets []pbmtypes.PbmCapabilitySubProfile
	if x, ok := c.(*pbmtypes.PbmCapabilitySubProfileConstraints); ok && x != nil {
		sets = x.SubProfiles
	}
	if len(sets) == 0 {
		return nil, &types.InvalidArgument{InvalidProperty: "constraints"}
	}
	for _, s := range sets {
		if len(s.Capability) == 0 {
			return nil, &types.InvalidArgument{InvalidProperty: "constraints.subProfiles.capability"}
		}
		vendor := ""
		for _, c := range s.Capability {
			ns := c.Id.Namespace
			if ns == "" || c.Id.Id == "" {
				return nil, &types.InvalidArgument{InvalidProperty: "constraints.subProfiles.capability.id"}
			}
			if ns == tagNamespace || everywhere(ns) {
				continue
			}
			if vendor != "" && vendor != ns {
				return nil, &pbmtypes.PbmIncompatibleVendorSpecificRuleSet{}
			}
			vendor = ns
		}
	}
	return sets, nil
}

package vcenter

import (
	pbmtypes "github.com/vmware/govmomi/pbm/types"

	"github.com/csilab/csilab/sim/vcenter/cnsface"
)

// storage is what the face asks about a datastore that the inventory doesn't
// tell.
func (v *VCenter) storage(id string) cnsface.Storage {
	d, ok := v.datastoreConfig(ref{Type: "Datastore", Value: id})
	if !ok {
		return cnsface.Storage{}
	}
	return cnsface.Storage{Thick: d.Thick}
}

// datastoreConfig finds what a datastore was configured as.
func (v *VCenter) datastoreConfig(ds ref) (Datastore, bool) {
	label, ok := v.inv.labels[ds]
	if !ok {
		return Datastore{}, false
	}
	for _, d := range v.cfg.Datastores {
		if v.cfg.label(d) == label {
			return d, true
		}
	}
	return Datastore{}, false
}

// unmet says why a datastore can't meet a policy, "" when it can.
func (p *policies) unmet(policy, datastore string) string {
	x, ok := p.find(policy)
	if !ok {
		return ""
	}
	return p.incompatible(&x, pbmtypes.PbmPlacementHub{HubType: "Datastore", HubId: datastore})
}

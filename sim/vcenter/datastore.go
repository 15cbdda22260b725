package vcenter

import (
	"fmt"

	pbmtypes "github.com/vmware/govmomi/pbm/types"
	"github.com/vmware/govmomi/simulator"

	"github.com/csilab/csilab/sim/vcenter/cnsface"
)

// storage is what the face asks about a datastore that the inventory doesn't
// tell.
func (v *VCenter) storage(id string) cnsface.Storage {
	ds := ref{Type: "Datastore", Value: id}
	d, ok := v.datastoreConfig(ds)
	if !ok {
		return cnsface.Storage{}
	}
	return cnsface.Storage{Thick: d.Thick, FileServers: v.vsan.addresses(ds)}
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

// datastoreOf finds a datastore by the name that the lab has for it, which is
// the configuration's: it stays when a client renames the datastore.
func (v *VCenter) datastoreOf(name string) (*simulator.Datastore, error) {
	for _, d := range v.inv.datastores {
		if v.inv.labels[d.Self] == name {
			return d, nil
		}
	}
	return nil, fmt.Errorf("vcenter: no datastore %q; there are %q", name, v.DatastoreNames())
}

// unmet says why a datastore can't meet a policy, "" when it can.
func (p *policies) unmet(policy, datastore string) string {
	x, ok := p.find(policy)
	if !ok {
		return ""
	}
	return p.incompatible(&x, pbmtypes.PbmPlacementHub{HubType: "Datastore", HubId: datastore})
}

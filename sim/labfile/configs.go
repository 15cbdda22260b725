package labfile

import (
	"maps"
	"time"

	"github.com/csilab/csilab/driver"
	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/vcenter"
)

// Place is where a vCenter is served; "" leaves it to who serves.
type Place struct{ Listen string }

// Configs are the vCenters of a lab, with their nodes, and where they are
// served, in the order of the file.
func (l *Lab) Configs() (vs []sim.VCenter, places []Place) {
	for i, v := range l.vcenters() {
		c := vcenter.Config{
			Version: v.Version, User: v.User, Password: v.Password, MaxSessions: v.MaxSessions, IdleTimeout: time.Duration(v.IdleTimeout),
			SnapshotLimit: v.SnapshotLimit, DenseSlots: v.DenseSlots, TaskRetention: time.Duration(v.TaskRetention),
		}
		for _, u := range v.Users {
			c.Users = append(c.Users, vcenter.User{Name: u.Name, Password: u.Password, Role: u.Role, Groups: u.Groups})
		}
		if len(v.TaskLatency) > 0 {
			c.TaskLatency = map[string]time.Duration{}
			for op, d := range maps.All(v.TaskLatency) {
				if op == "default" {
					op = ""
				}
				c.TaskLatency[op] = time.Duration(d)
			}
		}
		for _, dc := range v.Datacenters {
			x := vcenter.Datacenter{Name: dc.Name, Zone: dc.Zone, Region: dc.Region}
			for _, cl := range dc.Clusters {
				y := vcenter.Cluster{Name: cl.Name, Zone: cl.Zone, Region: cl.Region}
				for _, h := range cl.Hosts {
					y.Hosts = append(y.Hosts, vcenter.Host{Name: h.Name, Zone: h.Zone, Region: h.Region})
				}
				x.Clusters = append(x.Clusters, y)
			}
			c.Datacenters = append(c.Datacenters, x)
		}
		for _, s := range v.Datastores {
			c.Datastores = append(c.Datastores, vcenter.Datastore{
				Name: s.Name, Datacenter: s.Datacenter, Type: s.Type, CapacityBytes: s.Capacity, Thick: s.Thick,
				NoFileService: s.FileService != nil && !*s.FileService, Zones: s.Zones, Clusters: s.Clusters, Hosts: s.Hosts,
			})
		}
		for _, p := range v.Policies {
			c.Policies = append(c.Policies, vcenter.Policy{Name: p.Name, Description: p.Description, Types: p.Types, Datastores: p.Datastores})
		}
		for _, n := range l.nodes() {
			if l.home(n) != i {
				continue
			}
			for _, name := range n.names() {
				x := vcenter.Node{Name: name, Zone: n.Zone, Region: n.Region, PoweredOff: n.PoweredOff, Datacenter: n.Datacenter, Cluster: n.Cluster}
				if n.FreeSlots != nil {
					x.OtherDisks = max(0, driver.DefaultMaxVolumes-*n.FreeSlots)
				}
				c.Nodes = append(c.Nodes, x)
			}
		}
		vs = append(vs, sim.VCenter{Name: v.Name, Config: c})
		places = append(places, Place{v.Listen})
	}
	return vs, places
}

package vcenter

import (
	"fmt"
	"slices"
	"strings"
)

// Datacenter of the inventory. Names are unique in the vCenter.
type Datacenter struct {
	Name string
	// Zone and Region are tags on the datacenter.
	Zone, Region string
	Clusters     []Cluster
}

// Cluster of hosts. Names are unique in the datacenter.
type Cluster struct {
	Name string
	// Zone and Region are tags on the cluster; they go before the datacenter's.
	Zone, Region string
	// Hosts; none means two, <cluster>_H0 and <cluster>_H1.
	Hosts []Host
}

// Host runs VMs. Names are unique in the vCenter: a host can be added once.
type Host struct {
	Name string
	// Zone and Region are tags on the host; they go before the cluster's.
	Zone, Region string
}

// hostsPerCluster is how many hosts a cluster has that names none: enough that
// a datastore is shared and a VM has somewhere else to go.
const hostsPerCluster = 2

// layout gives the datacenters with everything filled in: those of the
// configuration, or DC0 with a cluster for each zone of the nodes.
func (c Config) layout() ([]Datacenter, error) {
	dcs := slices.Clone(c.Datacenters)
	if len(dcs) == 0 {
		dc := Datacenter{Name: datacenter}
		regions := map[string]string{}
		for _, n := range c.Nodes {
			if n.Region == "" {
				continue
			}
			if r, ok := regions[n.Zone]; ok && r != n.Region {
				return nil, fmt.Errorf("vcenter: zone %q is in region %q and in %q", n.Zone, r, n.Region)
			}
			regions[n.Zone] = n.Region
		}
		for i, z := range zonesOf(c.Nodes) {
			dc.Clusters = append(dc.Clusters, Cluster{Name: fmt.Sprintf("%s_C%d", dc.Name, i), Zone: z, Region: regions[z]})
		}
		dcs = []Datacenter{dc}
	}
	centers, hosts := map[string]bool{}, map[string]bool{}
	for i := range dcs {
		dc := &dcs[i]
		if err := checkName("datacenter", dc.Name, centers); err != nil {
			return nil, err
		}
		dc.Clusters = slices.Clone(dc.Clusters)
		if len(dc.Clusters) == 0 {
			dc.Clusters = []Cluster{{Name: dc.Name + "_C0"}}
		}
		clusters := map[string]bool{}
		for j := range dc.Clusters {
			cl := &dc.Clusters[j]
			if err := checkName("cluster", cl.Name, clusters); err != nil {
				return nil, fmt.Errorf("%w, in datacenter %q", err, dc.Name)
			}
			if len(cl.Hosts) == 0 {
				for k := range hostsPerCluster {
					cl.Hosts = append(cl.Hosts, Host{Name: fmt.Sprintf("%s_H%d", cl.Name, k)})
				}
			}
			for _, h := range cl.Hosts {
				if err := checkName("host", h.Name, hosts); err != nil {
					return nil, fmt.Errorf("%w, in cluster %q", err, cl.Name)
				}
			}
		}
	}
	return dcs, nil
}

// checkName wants a name that an inventory path and a datastore path can hold,
// and that is not among those seen.
func checkName(what, name string, seen map[string]bool) error {
	if name == "" || strings.ContainsAny(name, `/\%[]`) || seen[name] {
		return fmt.Errorf(`vcenter: %s name %q: allowed are unique names without / \ %% [ ]`, what, name)
	}
	seen[name] = true
	return nil
}

// zone of a host: the nearest tag counts.
func zoneIn(dc Datacenter, c Cluster, h Host) string { return firstOf(h.Zone, c.Zone, dc.Zone) }

func firstOf(s ...string) string {
	for _, x := range s {
		if x != "" {
			return x
		}
	}
	return ""
}

// label names a datastore in a vCenter: by its name in the first datacenter,
// and as datacenter/name in the others, where names may repeat.
func (c Config) label(d Datastore) string {
	if d.Datacenter == c.Datacenters[0].Name {
		return d.Name
	}
	return d.Datacenter + "/" + d.Name
}

// checkDatastores fills in and checks what the configuration says about
// datastores; the datacenters are filled in.
func (c *Config) checkDatastores() error {
	if len(c.Datastores) == 0 {
		// One set per datacenter: a datastore lies in one only.
		for _, dc := range c.Datacenters {
			c.Datastores = append(c.Datastores, Datastore{Name: "datastore-1", Datacenter: dc.Name}, Datastore{Name: "datastore-2", Datacenter: dc.Name})
		}
	}
	c.Datastores = slices.Clone(c.Datastores)
	seen := map[string]map[string]bool{}
	for i := range c.Datastores {
		d := &c.Datastores[i]
		if d.Datacenter == "" {
			d.Datacenter = c.Datacenters[0].Name
		}
		n := slices.IndexFunc(c.Datacenters, func(dc Datacenter) bool { return dc.Name == d.Datacenter })
		if n < 0 {
			return fmt.Errorf("vcenter: datastore %q: no datacenter %q; there are %q", d.Name, d.Datacenter, namesOf(c.Datacenters))
		}
		dc := c.Datacenters[n]
		if seen[dc.Name] == nil {
			seen[dc.Name] = map[string]bool{}
		}
		if err := checkName("datastore", d.Name, seen[dc.Name]); err != nil {
			return err
		}
		var zones, clusters, hosts []string
		for _, cl := range dc.Clusters {
			clusters = append(clusters, cl.Name)
			for _, h := range cl.Hosts {
				hosts = append(hosts, h.Name)
				if z := zoneIn(dc, cl, h); !slices.Contains(zones, z) {
					zones = append(zones, z)
				}
			}
		}
		for _, x := range []struct {
			what       string
			want, have []string
		}{{"zone", d.Zones, zones}, {"cluster", d.Clusters, clusters}, {"host", d.Hosts, hosts}} {
			for _, w := range x.want {
				if !slices.Contains(x.have, w) {
					return fmt.Errorf("vcenter: datastore %q: %s %q is not in datacenter %s; there are %q", d.Name, x.what, w, dc.Name, x.have)
				}
			}
		}
	}
	return nil
}

func namesOf(dcs []Datacenter) (names []string) {
	for _, d := range dcs {
		names = append(names, d.Name)
	}
	return names
}

// mountedOn says whether a host of a cluster mounts the datastore: all of its
// datacenter do when it names neither zones nor clusters nor hosts.
func (d Datastore) mountedOn(datacenter, cluster, host, zone string) bool {
	if d.Datacenter != datacenter {
		return false
	}
	return len(d.Zones)+len(d.Clusters)+len(d.Hosts) == 0 ||
		slices.Contains(d.Zones, zone) || slices.Contains(d.Clusters, cluster) || slices.Contains(d.Hosts, host)
}

// HasZones says whether any host of the inventory is in a zone.
func (c Config) HasZones() bool {
	dcs, err := c.layout()
	c.Datacenters = dcs
	return err == nil && slices.Contains(c.categories(), categoryZone)
}

// categories are the tag categories that are in use, in order of name.
func (c Config) categories() (out []string) {
	var zone, region bool
	add := func(z, r string) { zone, region = zone || z != "", region || r != "" }
	for _, dc := range c.Datacenters {
		add(dc.Zone, dc.Region)
		for _, cl := range dc.Clusters {
			add(cl.Zone, cl.Region)
			for _, h := range cl.Hosts {
				add(h.Zone, h.Region)
			}
		}
	}
	if region {
		out = append(out, categoryRegion)
	}
	if zone {
		out = append(out, categoryZone)
	}
	return out
}

// Topology gives zone and region of a node's VM: the nearest of the tags that
// the configuration puts on host, cluster and datacenter. Tags that clients
// attach don't count.
func (v *VCenter) Topology(node string) (zone, region string) {
	m, err := v.machineOf(node)
	if err != nil {
		return "", ""
	}
	var host ref
	v.internal().WithLock(m.VirtualMachine, func() {
		if h := m.Runtime.Host; h != nil {
			host = *h
		}
	})
	for _, z := range v.inv.zones {
		for i, h := range z.hosts {
			if h.Self == host {
				return z.zoneOf(i), firstOf(z.Hosts[i].Region, z.Region, z.center.Region)
			}
		}
	}
	return "", ""
}

package labfile

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/csilab/csilab/sim/vcenter"
)

// defaultVCenter is the name of the vCenter of a file that has none.
const defaultVCenter = "vc-1"

// vcenters are those of the file, or the one that is there without.
func (l *Lab) vcenters() []VCenter {
	if len(l.VCenters) == 0 {
		return []VCenter{{Name: defaultVCenter}}
	}
	return l.VCenters
}

// nodes are those of the file, or the two that are there without.
func (l *Lab) nodes() []Node {
	if l.Nodes == nil {
		return []Node{{Name: "node", Count: 2}}
	}
	return l.Nodes
}

// names are the nodes that an entry stands for.
func (n Node) names() []string {
	if n.Count == 0 {
		return []string{n.Name}
	}
	var out []string
	for i := range n.Count {
		out = append(out, fmt.Sprintf("%s-%d", n.Name, i+1))
	}
	return out
}

// datacenters are those of a vCenter with clusters and hosts filled in; nil
// when the file leaves them to the nodes' zones.
func (v VCenter) datacenters() []Datacenter {
	var out []Datacenter
	for _, dc := range v.Datacenters {
		clusters := slices.Clone(dc.Clusters)
		if len(clusters) == 0 {
			clusters = []Cluster{{Name: dc.Name + "_C0"}}
		}
		for i, c := range clusters {
			if len(c.Hosts) == 0 {
				clusters[i].Hosts = []Host{{Name: c.Name + "_H0"}, {Name: c.Name + "_H1"}}
			}
		}
		dc.Clusters = clusters
		out = append(out, dc)
	}
	return out
}

// zones of a vCenter's hosts.
func (v VCenter) zones() (out []string) {
	for _, dc := range v.datacenters() {
		out = append(out, dc.zones()...)
	}
	return out
}

func (dc Datacenter) zones() (out []string) {
	for _, c := range dc.Clusters {
		for _, h := range c.Hosts {
			for _, z := range []string{h.Zone, c.Zone, dc.Zone} {
				if z != "" {
					out = append(out, z)
					break
				}
			}
		}
	}
	return out
}

// home is the index of the vCenter of a node; below 0 when it is not known.
func (l *Lab) home(n Node) int {
	vs := l.vcenters()
	switch {
	case n.VCenter != "":
		return slices.IndexFunc(vs, func(v VCenter) bool { return v.Name == n.VCenter })
	case len(vs) == 1:
		return 0
	case n.Zone == "":
		return -1
	}
	at := -1
	for i, v := range vs {
		if slices.Contains(v.zones(), n.Zone) {
			if at >= 0 {
				return -1
			}
			at = i
		}
	}
	return at
}

// check is about what more than one field says.
func (d *decoder) check(l *Lab) {
	d.arrays(l)
	names := map[string]string{}
	d.unique(names, "vcenters", len(l.VCenters), func(i int) string { return l.VCenters[i].Name })
	listeners := map[string]string{}
	for i, v := range l.VCenters {
		path := fmt.Sprintf("vcenters[%d]", i)
		d.vcenter(path, v)
		if len(l.VCenters) > 1 && v.Listen != "" {
			host, _, _ := net.SplitHostPort(v.Listen)
			if first, ok := listeners[host]; ok {
				d.wrong(path+".listen", "host %s is that of %s too: the driver tells vCenters apart by host", host, first)
			}
			listeners[host] = path
		}
	}
	seen := map[string]string{}
	total := 0
	for i, n := range l.nodes() {
		path := fmt.Sprintf("nodes[%d]", i)
		for _, name := range n.names() {
			if first, ok := seen[name]; ok {
				d.wrong(path+".name", "node %q is there already, from %s", name, first)
			}
			seen[name] = path
			total++
		}
		d.node(l, path, n)
	}
	if total > 64 {
		d.wrong("nodes", "there are %d, allowed are up to 64", total)
	}
	if len(l.VCenters) > 1 {
		for i, v := range l.VCenters {
			zoned := len(v.zones()) > 0
			for _, n := range l.nodes() {
				zoned = zoned || n.Zone != "" && l.home(n) == i
			}
			if !zoned {
				d.wrong(fmt.Sprintf("vcenters[%d]", i), "has no zone: with several vCenters the driver places volumes by zone; give its datacenters, clusters, hosts or nodes one")
			}
		}
	}
}

// unique wants names that come once; seen has the path of each.
func (d *decoder) unique(seen map[string]string, list string, n int, name func(int) string) {
	for i := range n {
		path := fmt.Sprintf("%s[%d]", list, i)
		if first, ok := seen[name(i)]; ok {
			d.wrong(path+".name", "%q is the name of %s too", name(i), first)
			continue
		}
		seen[name(i)] = path
	}
}

// known wants the items of a list to be among those that there are.
func (d *decoder) known(path, what string, want, have []string) {
	have = slices.Compact(slices.Sorted(slices.Values(have)))
	for i, w := range want {
		if !slices.Contains(have, w) {
			d.wrong(fmt.Sprintf("%s[%d]", path, i), "there is no %s %q; there are %s", what, w, list(have))
		}
	}
}

func list(s []string) string {
	if len(s) == 0 {
		return "none"
	}
	return strings.Join(s, ", ")
}

func (d *decoder) vcenter(path string, v VCenter) {
	admin := v.User
	if admin == "" {
		admin = "administrator@vsphere.local"
	}
	d.unique(map[string]string{strings.ToLower(admin): path + ".user"}, path+".users", len(v.Users), func(i int) string { return strings.ToLower(v.Users[i].Name) })
	d.unique(map[string]string{}, path+".policies", len(v.Policies), func(i int) string { return v.Policies[i].Name })
	d.unique(map[string]string{}, path+".datacenters", len(v.Datacenters), func(i int) string { return v.Datacenters[i].Name })
	if v.DenseSlots && v.Version != "" && !vcenter.TakesDenseSlots(v.Version) {
		d.wrong(path+".denseSlots", "is for vCenters from version 8.0 on, this one is %s", v.Version)
	}
	hosts := map[string]string{}
	for i, dc := range v.Datacenters {
		at := fmt.Sprintf("%s.datacenters[%d]", path, i)
		d.unique(map[string]string{}, at+".clusters", len(dc.Clusters), func(j int) string { return dc.Clusters[j].Name })
		for j, c := range dc.Clusters {
			d.unique(hosts, fmt.Sprintf("%s.clusters[%d].hosts", at, j), len(c.Hosts), func(k int) string { return c.Hosts[k].Name })
		}
	}
	dcs := v.datacenters()
	var labels []string
	stores := map[string]map[string]string{}
	for i, s := range v.Datastores {
		at := fmt.Sprintf("%s.datastores[%d]", path, i)
		in := s.Datacenter
		if in == "" && len(dcs) > 0 {
			in = dcs[0].Name
		}
		if stores[in] == nil {
			stores[in] = map[string]string{}
		}
		if first, ok := stores[in][s.Name]; ok {
			d.wrong(at+".name", "%q is the name of %s in the same datacenter too", s.Name, first)
		}
		stores[in][s.Name] = at
		if len(dcs) == 0 || in == dcs[0].Name {
			labels = append(labels, s.Name)
		} else {
			labels = append(labels, in+"/"+s.Name)
		}
		if s.FileService != nil && s.Type != "vsan" {
			d.wrong(at+".fileService", "is for datastores of type vsan only")
		}
		if len(dcs) == 0 {
			if s.Datacenter != "" && s.Datacenter != "DC0" {
				d.wrong(at+".datacenter", "there is no datacenter %q; there is DC0", s.Datacenter)
			}
			if len(s.Clusters)+len(s.Hosts) > 0 {
				d.wrong(at, "clusters and hosts can be named only where the vCenter has datacenters")
			}
			continue
		}
		n := slices.IndexFunc(dcs, func(dc Datacenter) bool { return dc.Name == in })
		if n < 0 {
			var have []string
			for _, dc := range dcs {
				have = append(have, dc.Name)
			}
			d.wrong(at+".datacenter", "there is no datacenter %q; there are %s", in, list(have))
			continue
		}
		var clusters, hosts []string
		for _, c := range dcs[n].Clusters {
			clusters = append(clusters, c.Name)
			for _, h := range c.Hosts {
				hosts = append(hosts, h.Name)
			}
		}
		d.known(at+".zones", "zone in datacenter "+in, s.Zones, dcs[n].zones())
		d.known(at+".clusters", "cluster in datacenter "+in, s.Clusters, clusters)
		d.known(at+".hosts", "host in datacenter "+in, s.Hosts, hosts)
	}
	if len(v.Datastores) == 0 {
		for i, dc := range dcs {
			for _, n := range []string{"datastore-1", "datastore-2"} {
				if i > 0 {
					n = dc.Name + "/" + n
				}
				labels = append(labels, n)
			}
		}
		if len(dcs) == 0 {
			labels = []string{"datastore-1", "datastore-2"}
		}
	}
	for i, p := range v.Policies {
		have := slices.Clone(labels)
		for _, s := range v.Datastores {
			have = append(have, s.Name)
		}
		d.known(fmt.Sprintf("%s.policies[%d].datastores", path, i), "datastore", p.Datastores, have)
	}
}

func (d *decoder) node(l *Lab, path string, n Node) {
	vs := l.vcenters()
	at := l.home(n)
	if at < 0 {
		var have []string
		for _, v := range vs {
			have = append(have, v.Name)
		}
		switch {
		case n.VCenter != "":
			d.wrong(path+".vcenter", "there is no vCenter %q; there are %s", n.VCenter, list(have))
		case n.Zone != "":
			d.wrong(path+".zone", "which vCenter %q is in is not known, or it is in several: give vcenter, one of %s", n.Zone, list(have))
		default:
			d.wrong(path, "which vCenter it is in is not known: give vcenter, one of %s", list(have))
		}
		return
	}
	dcs := vs[at].datacenters()
	if len(dcs) == 0 {
		if n.Datacenter != "" && n.Datacenter != "DC0" {
			d.wrong(path+".datacenter", "there is no datacenter %q; there is DC0", n.Datacenter)
		}
		if n.Cluster != "" {
			d.wrong(path+".cluster", "a cluster can be named only where the vCenter has datacenters")
		}
		return
	}
	if n.Region != "" {
		d.wrong(path+".region", "is that of its host where the vCenter has datacenters: give it to host, cluster or datacenter")
	}
	var have []string
	for _, dc := range dcs {
		if n.Datacenter != "" && dc.Name != n.Datacenter {
			continue
		}
		for _, c := range dc.Clusters {
			one := dc
			one.Clusters = []Cluster{c}
			zones := one.zones()
			if (n.Cluster == "" || c.Name == n.Cluster) && (n.Zone == "" || slices.Contains(zones, n.Zone)) {
				return
			}
			have = append(have, fmt.Sprintf("%s/%s", dc.Name, c.Name))
			if len(zones) > 0 {
				have[len(have)-1] += " (" + strings.Join(slices.Compact(zones), ", ") + ")"
			}
		}
	}
	d.wrong(path, "there is no host for it with datacenter %q, cluster %q, zone %q; there are %s", n.Datacenter, n.Cluster, n.Zone, list(have))
}

package sim

import (
	"context"
	"fmt"
	"hash/fnv"
	"net"
	"slices"

	"github.com/csilab/csilab/driver"
	"github.com/csilab/csilab/sim/vcenter"
)

// VCenter is one of several vCenters of a lab. The lab fills in what belongs to
// it: Seed, Disks, Hardware, In, Component, Listener, TLS and Log.
type VCenter struct {
	Name string // unique in the lab
	vcenter.Config
}

// vcenters are the configurations of the lab's vCenters: the given ones, or
// one with the nodes and zones of the options.
func (o Options) vcenters() []VCenter {
	if len(o.VCenters) > 0 {
		return o.VCenters
	}
	vc := VCenter{Name: "vc-1"}
	for i := range o.Nodes {
		n := vcenter.Node{Name: fmt.Sprintf("node-%d", i+1)}
		if o.FreeSlots > 0 {
			n.OtherDisks = max(0, driver.DefaultMaxVolumes-o.FreeSlots)
		}
		if z := o.Zones; len(z) > 0 {
			n.Zone = z[i%len(z)]
		}
		vc.Nodes = append(vc.Nodes, n)
	}
	for _, zone := range slices.Compact(slices.Sorted(slices.Values(o.Zones))) {
		vc.Datastores = append(vc.Datastores, vcenter.Datastore{Name: "datastore-" + zone, Zones: []string{zone}})
	}
	return []VCenter{vc}
}

// nodeNames are the names that the nodes of a lab get.
func (o Options) nodeNames() (names []string) {
	if o.Backend == HPE {
		for i := range o.Nodes {
			names = append(names, fmt.Sprintf("%s%d", o.NodePrefix, i+1))
		}
		return names
	}
	for _, v := range o.vcenters() {
		for _, n := range v.Nodes {
			names = append(names, n.Name)
		}
	}
	return names
}

// validateVCenters wants names that are unique, and nodes.
func (o Options) validateVCenters() error {
	names, nodes := map[string]bool{}, map[string]bool{}
	for _, v := range o.VCenters {
		if v.Name == "" || names[v.Name] {
			return fmt.Errorf("Options.VCenters: name %q: allowed are unique names", v.Name)
		}
		names[v.Name] = true
		if len(o.VCenters) > 1 && len(v.Nodes) > 0 && !v.HasZones() {
			return fmt.Errorf("Options.VCenters: %q has no zone: with several vCenters the driver places volumes by zone", v.Name)
		}
		for _, n := range v.Nodes {
			if nodes[n.Name] {
				return fmt.Errorf("Options.VCenters: node name %q is given twice", n.Name)
			}
			nodes[n.Name] = true
		}
	}
	if len(o.VCenters) > 0 && len(nodes) == 0 {
		return fmt.Errorf("Options.VCenters: there is no node; a lab needs 1 and more")
	}
	if len(o.VCenters) > 5 {
		return fmt.Errorf("Options.VCenters has %d, allowed are up to 5, what the driver takes", len(o.VCenters))
	}
	return nil
}

// SeedOf is the seed of one of several vCenters: the lab's for the first, and
// one of its own for each other, so that no two have an identity in common.
func SeedOf(seed uint64, i int, name string) uint64 {
	if i == 0 {
		return seed
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%d/vcenter/%s", seed, name)
	return h.Sum64()
}

// start starts the vCenters, each on a loopback address of its own, for the
// driver tells them apart by host.
func (b *vsphere) start(ctx context.Context) error {
	l := b.l
	b.placed = map[string]*vcenter.VCenter{}
	for i, c := range l.opts.vcenters() {
		cfg := c.Config
		cfg.Seed = SeedOf(l.opts.Seed, i, c.Name)
		cfg.Disks, cfg.Hardware, cfg.In, cfg.Component = l.disks, hardware{l}, l.in, "driver-controller"
		cfg.TLS, cfg.Log = !l.opts.Bubble, l.log
		addr := fmt.Sprintf("127.0.0.%d:0", i+1)
		var err error
		if l.opts.Bubble {
			cfg.Listener, err = l.net.Listen("tcp", addr)
		} else {
			cfg.Listener, err = net.Listen("tcp", addr)
		}
		if err != nil {
			return &EnvironmentError{fmt.Errorf("vCenter %s: %w", c.Name, err)}
		}
		// It lives until Close: ctx bounds the start of the lab only.
		v, err := vcenter.New(context.WithoutCancel(ctx), cfg)
		if err != nil {
			return err
		}
		b.sites = append(b.sites, site{c.Name, v})
		for _, n := range cfg.Nodes {
			b.placed[n.Name] = v
			b.order = append(b.order, n.Name)
		}
	}
	b.supervise()
	return nil
}

// vsphere is the backend of a lab on vSphere, without vCenters in another.
func (l *Lab) vsphere() *vsphere {
	if b, ok := l.backend.(*vsphere); ok {
		return b
	}
	return &vsphere{l: l}
}

// VCenter is the lab's vCenter, the first of several, or nil.
func (l *Lab) VCenter() *vcenter.VCenter {
	if b := l.vsphere(); len(b.sites) > 0 {
		return b.sites[0].VCenter
	}
	return nil
}

// VCenterNames are the names of all vCenters.
func (l *Lab) VCenterNames() (names []string) {
	for _, s := range l.vsphere().sites {
		names = append(names, s.name)
	}
	return names
}

// VCenterNamed is the vCenter of that name, or nil.
func (l *Lab) VCenterNamed(name string) *vcenter.VCenter {
	for _, s := range l.vsphere().sites {
		if s.name == name {
			return s.VCenter
		}
	}
	return nil
}

// VCenterOf names the vCenter that has a claim's volume; "" when none has.
func (l *Lab) VCenterOf(pvc string) string {
	if s := l.vsphere().siteOf(l.VolumeID(pvc)); s != nil {
		return s.name
	}
	return ""
}

// hasZones says whether any node is in a zone.
func (l *Lab) hasZones() bool {
	return slices.ContainsFunc(l.nodes, func(n *Node) bool { return n.Zone != "" })
}

package cnsface

import (
	"slices"

	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/simulator"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// A volume may be placed by who has to reach it instead of by datastore:
// clusters of a zone (activeClusters, vCenter 9.1), or hosts that shall have
// it on a datastore of their own (hosts, vCenter 9.1.2). govmomi's
// cns/client_test.go asks for both, with a storage policy and no datastores,
// and wants the clusters or the host in the placement result.

// release912 brought volumes on the local storage of hosts.
var release912 = release{9, 1, 2}

// reach is what a create asks for in this way; the zero one is nothing.
type reach struct {
	clusters map[string][]string // hosts by cluster, as managed object ids
	order    []string            // of the clusters
	hosts    []string
}

// reachOf reads what a create asks for. Errors: ManagedObjectNotFound,
// NotSupported (by this release).
func (f *Face) reachOf(c *simulator.Context, s cnstypes.CnsVolumeCreateSpec) (r reach, err error) {
	switch {
	case len(s.ActiveClusters) > 0 && !f.release.atLeast(release91):
		return r, &cns.Error{Kind: cns.NotSupported, Field: "activeClusters", Value: s.ActiveClusters[0].Value, Reason: "since vCenter 9.1"}
	case len(s.Hosts) > 0 && !f.release.atLeast(release912):
		return r, &cns.Error{Kind: cns.NotSupported, Field: "hosts", Value: s.Hosts[0].Value, Reason: "since vCenter 9.1.2"}
	}
	for _, ref := range s.ActiveClusters {
		x, ok := f.inv.vim.Get(ref).(*simulator.ClusterComputeResource)
		if !ok {
			return r, &wireError{gone(ref)}
		}
		var hosts []string
		c.WithLock(x, func() {
			for _, h := range x.Host {
				hosts = append(hosts, h.Value)
			}
		})
		if r.clusters == nil {
			r.clusters = map[string][]string{}
		}
		if _, twice := r.clusters[ref.Value]; !twice {
			r.order = append(r.order, ref.Value)
		}
		r.clusters[ref.Value] = hosts
	}
	for _, ref := range s.Hosts {
		if _, ok := f.inv.vim.Get(ref).(*simulator.HostSystem); !ok {
			return r, &wireError{gone(ref)}
		}
		r.hosts = append(r.hosts, ref.Value)
	}
	return r, nil
}

func (r reach) any() bool { return len(r.order)+len(r.hosts) > 0 }

// from are the clusters all of whose hosts reach a datastore, and for a
// datastore that one host only has that host.
func (r reach) from(d cns.Datastore) (clusters []string, host string) {
	for _, id := range r.order {
		hosts := r.clusters[id]
		if len(hosts) > 0 && !slices.ContainsFunc(hosts, func(h string) bool { return !d.Mounts(h) }) {
			clusters = append(clusters, id)
		}
	}
	if len(d.Hosts) == 1 && slices.Contains(r.hosts, d.Hosts[0]) {
		host = d.Hosts[0]
	}
	return clusters, host
}

// takes says whether a datastore may hold the volume. Unverified: that a
// datastore is good enough which one of the clusters reaches.
func (r reach) takes(d cns.Datastore) bool {
	clusters, host := r.from(d)
	return (len(r.order) == 0 || len(clusters) > 0) && (len(r.hosts) == 0 || host != "")
}

// limit narrows what a create chooses among to what is reached. Errors:
// InvalidArgument (nothing is).
func (f *Face) limit(spec *cns.CreateSpec, r reach) error {
	if !r.any() {
		return nil
	}
	named := spec.Datastores
	spec.Datastores = nil
	f.mu.Lock()
	for _, d := range f.core.Datastores() {
		if (len(named) == 0 || slices.Contains(named, d.ID)) && r.takes(d) && (len(named) > 0 || spec.Incompatible[d.ID] == "") {
			spec.Datastores = append(spec.Datastores, d.ID)
		}
	}
	f.mu.Unlock()
	if len(spec.Datastores) > 0 {
		return nil
	}
	field := "activeClusters"
	if len(r.hosts) > 0 {
		field = "hosts"
	}
	// Unverified: the fault.
	return &cns.Error{Kind: cns.InvalidArgument, Field: field, Reason: "no datastore is reached from there that satisfies the storage policy"}
}

// tell adds to the placement results who reaches the datastores. Where the
// client named no datastores only the one that was chosen is told.
func (f *Face) tell(results []cnstypes.CnsPlacementResult, r reach, named bool) []cnstypes.CnsPlacementResult {
	if !r.any() {
		return results
	}
	if !named {
		results = slices.DeleteFunc(results, func(p cnstypes.CnsPlacementResult) bool { return len(p.PlacementFaults) > 0 })
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, p := range results {
		d, _, ok := f.core.Datastore(p.Datastore.Value)
		if !ok {
			continue
		}
		clusters, host := r.from(d)
		for _, id := range clusters {
			results[i].Clusters = append(results[i].Clusters, vim.ManagedObjectReference{Type: "ClusterComputeResource", Value: id})
		}
		if host != "" {
			results[i].Host = &vim.ManagedObjectReference{Type: "HostSystem", Value: host}
		}
	}
	return results
}

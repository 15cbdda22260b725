package vcenter_test

import (
	"testing"

	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/find"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter"
)

// TestPlacementByReach: a client may say from where a volume has to be
// reached instead of on which datastore it shall lie.
func TestPlacementByReach(t *testing.T) {
	t.Parallel()
	cfg := vcenter.Config{
		Version: "9.1.2",
		Nodes:   []vcenter.Node{{Name: "a", Zone: "z1"}, {Name: "b", Zone: "z2"}},
		Datastores: []vcenter.Datastore{
			{Name: "in-z1", Zones: []string{"z1"}}, {Name: "in-z2", Zones: []string{"z2"}}, {Name: "local", Hosts: []string{"DC0_C1_H0"}, CapacityBytes: 1 << 36},
		},
	}
	r := newRig(t, cfg)
	f := find.NewFinder(r.Client.Client, false)
	dc, err := f.Datacenter(r.ctx, r.v.Datacenter())
	r.ok(err)
	f.SetDatacenter(dc)
	cs, err := f.ClusterComputeResourceList(r.ctx, "*")
	r.ok(err)
	hs, err := f.HostSystemList(r.ctx, "*")
	r.ok(err)
	name := func(ds types.ManagedObjectReference) string {
		for _, n := range r.v.DatastoreNames() {
			if d, err := f.Datastore(r.ctx, n); err == nil && d.Reference() == ds {
				return n
			}
		}
		return ds.Value
	}
	var clusters, hosts []types.ManagedObjectReference
	for _, c := range cs {
		clusters = append(clusters, c.Reference())
	}
	for _, h := range hs {
		hosts = append(hosts, h.Reference())
	}
	active := func(refs ...types.ManagedObjectReference) func(*cnstypes.CnsVolumeCreateSpec) {
		return func(s *cnstypes.CnsVolumeCreateSpec) { s.ActiveClusters = refs }
	}
	res, err := r.createAs(active(clusters[1]))
	r.ok(err)
	if p := res.PlacementResults; len(p) != 1 || name(p[0].Datastore) != "in-z2" || len(p[0].Clusters) != 1 || p[0].Clusters[0] != clusters[1] || p[0].Host != nil {
		t.Errorf("by cluster: %+v", p)
	}
	res, err = r.createAs(func(s *cnstypes.CnsVolumeCreateSpec) { s.Hosts = hosts })
	r.ok(err)
	if p := res.PlacementResults; len(p) != 1 || name(p[0].Datastore) != "local" || p[0].Host == nil {
		t.Errorf("by host: %+v", p)
	}
	_, err = r.createAs(active(types.ManagedObjectReference{Type: "ClusterComputeResource", Value: "domain-c999"}))
	r.refused(err, "*types.ManagedObjectNotFound")
	_, err = r.createAs(func(s *cnstypes.CnsVolumeCreateSpec) { s.Hosts = hosts[:1] }) // has no datastore of its own
	r.refused(err, "*types.InvalidArgument", "hosts")

	cfg.Version = "8.0.3"
	r = newRig(t, cfg)
	_, err = r.createAs(active(clusters[1]))
	r.refused(err, "*types.NotSupported")
}

package vcenter_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/find"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/vapi/rest"
	"github.com/vmware/govmomi/vapi/tags"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter"
)

// twoCenters has datacenters with datastores of one name, clusters with hosts
// of different zones, and a datastore that only some hosts mount.
func twoCenters() vcenter.Config {
	return vcenter.Config{
		Seed: 5,
		Datacenters: []vcenter.Datacenter{
			{Name: "east", Region: "r1", Clusters: []vcenter.Cluster{
				{Name: "rack-1", Zone: "a"},
				{Name: "rack-2", Hosts: []vcenter.Host{{Name: "esx-3", Zone: "b"}, {Name: "esx-4", Zone: "c"}}},
			}},
			{Name: "west", Zone: "w", Region: "r2", Clusters: []vcenter.Cluster{{Name: "rack-1", Hosts: []vcenter.Host{{Name: "esx-9"}}}}},
		},
		Datastores: []vcenter.Datastore{
			{Name: "shared"}, {Name: "fast", Clusters: []string{"rack-2"}}, {Name: "one", Hosts: []string{"esx-4"}}, {Name: "zonal", Zones: []string{"a"}},
			{Name: "shared", Datacenter: "west"},
		},
		Nodes: []vcenter.Node{
			{Name: "n1"}, {Name: "n2", Cluster: "rack-2", Zone: "c"}, {Name: "n3", Datacenter: "west"}, {Name: "n4", Zone: "b"}, {Name: "n5", Zone: "w"},
		},
	}
}

func TestDatacenters(t *testing.T) {
	ctx := t.Context()
	v := start(t, twoCenters())
	c := login(t, v)
	f := find.NewFinder(c.Client)
	dcs, err := f.DatacenterList(ctx, "*")
	if err != nil || len(dcs) != 2 {
		t.Fatalf("datacenters: %v, %v", dcs, err)
	}
	for _, p := range []string{"/east/host/rack-1/rack-1_H0", "/east/host/rack-2/esx-4", "/west/host/rack-1/esx-9"} {
		if _, err := f.HostSystem(ctx, p); err != nil {
			t.Errorf("%s: %v", p, err)
		}
	}
	refs := map[string]types.ManagedObjectReference{}
	for _, p := range []string{"/east/datastore/shared", "/west/datastore/shared", "/east/datastore/one"} {
		d, err := f.Datastore(ctx, p)
		if err != nil {
			t.Fatalf("%s: %v", p, err)
		}
		refs[p] = d.Reference()
	}
	if refs["/east/datastore/shared"] == refs["/west/datastore/shared"] || v.DatastoreURL("shared") == v.DatastoreURL("west/shared") || v.DatastoreURL("west/shared") == "" {
		t.Error("datastores of one name in two datacenters are one")
	}
	hosts := func(p string) (names []string) {
		var d mo.Datastore
		if err := property.DefaultCollector(c.Client).RetrieveOne(ctx, refs[p], []string{"host"}, &d); err != nil {
			t.Fatal(err)
		}
		for _, h := range d.Host {
			n, err := object.NewHostSystem(c.Client, h.Key).ObjectName(ctx)
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, n)
		}
		return names
	}
	if got := hosts("/east/datastore/shared"); len(got) != 4 {
		t.Errorf("shared of east is mounted on %q", got)
	}
	if got := hosts("/east/datastore/one"); !slices.Equal(got, []string{"esx-4"}) {
		t.Errorf("one is mounted on %q", got)
	}
	// FindByUuid looks in the datacenter that it is asked to.
	s := object.NewSearchIndex(c.Client)
	at := map[string]string{"n1": "east", "n2": "east", "n3": "west", "n4": "east", "n5": "west"}
	on := map[string]string{"n1": "rack-1_H0", "n2": "esx-4", "n3": "esx-9", "n4": "esx-3", "n5": "esx-9"}
	for n, dc := range at {
		for _, d := range dcs {
			vm, err := s.FindByUuid(ctx, d, v.VMUUID(n), true, nil)
			if err != nil || (vm != nil) != (d.Name() == dc) {
				t.Errorf("%s in %s: %v, %v", n, d.Name(), vm, err)
			}
		}
		vm, err := f.VirtualMachine(ctx, "/"+dc+"/vm/"+n)
		if err != nil {
			t.Error(err)
			continue
		}
		h, err := vm.HostSystem(ctx)
		if err != nil {
			t.Error(err)
			continue
		}
		if name, _ := h.ObjectName(ctx); name != on[n] {
			t.Errorf("%s runs on %s, want %s", n, name, on[n])
		}
	}
	// A volume for a VM of the west lies there, and can't go to the east.
	k, err := cnsClient(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	spec := volumeSpec("vol-west")
	spec.Datastores = []types.ManagedObjectReference{refs["/west/datastore/shared"]}
	task, err := k.cns.CreateVolume(ctx, []cnstypes.CnsVolumeCreateSpec{spec})
	r, _, err := k.result(ctx, task, err)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"n1", "n3"} {
		vm, err := k.vm(ctx, v, n)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := k.attach(ctx, r.VolumeId.Id, vm); (err != nil) != (n == "n1") {
			t.Errorf("attach to %s: %v", n, err)
		}
	}
}

func TestDatacenterTags(t *testing.T) {
	ctx := t.Context()
	v := start(t, twoCenters())
	c := login(t, v)
	rc := rest.NewClient(c.Client)
	if err := rc.Login(ctx, v.URL().User); err != nil {
		t.Fatal(err)
	}
	defer rc.Logout(context.WithoutCancel(ctx))
	m := tags.NewManager(rc)
	f := find.NewFinder(c.Client)
	for path, want := range map[string]string{
		"/east": "r1", "/east/host/rack-1": "a", "/east/host/rack-2/esx-3": "b", "/east/host/rack-2/esx-4": "c", "/west": "r2 w", "/east/host/rack-2": "", "/west/host/rack-1": "",
	} {
		es, err := f.ManagedObjectList(ctx, path)
		if err != nil || len(es) != 1 {
			t.Fatalf("%s: %v %v", path, es, err)
		}
		ts, err := m.GetAttachedTags(ctx, es[0].Object.Reference())
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, x := range ts {
			names = append(names, x.Name)
		}
		slices.Sort(names)
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s has the tags %q, want %q", path, got, want)
		}
	}
	if conf := v.Conf("x"); !strings.Contains(conf, `datacenters = "east, west"`) || !strings.Contains(conf, `topology-categories = "k8s-region, k8s-zone"`) {
		t.Error(conf)
	}
}

func TestDatacentersSayWhatIsWrong(t *testing.T) {
	for want, change := range map[string]func(*vcenter.Config){
		`datacenter name "east"`:                                func(c *vcenter.Config) { c.Datacenters[1].Name = "east" },
		`cluster name "rack-1"`:                                 func(c *vcenter.Config) { c.Datacenters[0].Clusters[1].Name = "rack-1" },
		`host name "esx-3"`:                                     func(c *vcenter.Config) { c.Datacenters[1].Clusters[0].Hosts[0].Name = "esx-3" },
		`datastore "one": host "esx-9"`:                         func(c *vcenter.Config) { c.Datastores[2].Hosts[0] = "esx-9" },
		`datastore "fast": cluster "x"`:                         func(c *vcenter.Config) { c.Datastores[1].Clusters[0] = "x" },
		`datastore "zonal": zone "w"`:                           func(c *vcenter.Config) { c.Datastores[3].Zones[0] = "w" },
		`no datacenter "north"`:                                 func(c *vcenter.Config) { c.Datastores[4].Datacenter = "north" },
		`datastore name "shared"`:                               func(c *vcenter.Config) { c.Datastores[4].Datacenter = "" },
		`node "n2": no host of zone "a"`:                        func(c *vcenter.Config) { c.Nodes[1].Zone = "a" },
		`node "n3": there is no cluster "rack-7"`:               func(c *vcenter.Config) { c.Nodes[2].Cluster = "rack-7" },
		`node "n4": zone "z" is none of those`:                  func(c *vcenter.Config) { c.Nodes[3].Zone = "z" },
		`no datastore is accessible from zone "", host "esx-9"`: func(c *vcenter.Config) { c.Datastores = c.Datastores[:4] },
	} {
		c := twoCenters()
		change(&c)
		v, err := vcenter.New(t.Context(), c)
		if err == nil {
			v.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

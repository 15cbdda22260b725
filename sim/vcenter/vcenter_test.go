package vcenter_test

import (
	"context"
	"testing"
	"time"

	"github.com/vmware/govmomi"
	"github.com/vmware/govmomi/find"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter"
)

func start(t *testing.T, cfg vcenter.Config) *vcenter.VCenter {
	t.Helper()
	if cfg.Nodes == nil {
		cfg.Nodes = []vcenter.Node{{Name: "node-1"}, {Name: "node-2"}}
	}
	v, err := vcenter.New(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Close)
	return v
}

// login returns a client with a session.
func login(t *testing.T, v *vcenter.VCenter) *govmomi.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	c, err := govmomi.NewClient(ctx, v.URL(), true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.CloseIdleConnections() })
	return c
}

func TestDriverFindsItsNode(t *testing.T) {
	v := start(t, vcenter.Config{Seed: 7, TLS: true})
	c := login(t, v)
	ctx := t.Context()
	f := find.NewFinder(c.Client)
	dcs, err := f.DatacenterList(ctx, "*")
	if err != nil || len(dcs) != 1 || dcs[0].InventoryPath != v.Datacenter() {
		t.Fatalf("datacenters %v, %v", dcs, err)
	}
	r, err := object.NewSearchIndex(c.Client).FindByUuid(ctx, dcs[0], v.VMUUID("node-2"), true, nil)
	if err != nil || r == nil {
		t.Fatalf("FindByUuid: %v, %v", r, err)
	}
	var vm mo.VirtualMachine
	if err := property.DefaultCollector(c.Client).RetrieveOne(ctx, r.Reference(), []string{"name", "config.uuid", "config.hardware", "runtime.host", "summary"}, &vm); err != nil {
		t.Fatal(err)
	}
	if vm.Name != "node-2" || vm.Config.Uuid != v.VMUUID("node-2") {
		t.Fatalf("got %s %s", vm.Name, vm.Config.Uuid)
	}
	devices := object.VirtualDeviceList(vm.Config.Hardware.Device)
	if n := len(devices.SelectByType((*types.ParaVirtualSCSIController)(nil))); n != 1 {
		t.Errorf("%d paravirtual controllers, want 1", n)
	}
	if n := len(devices.SelectByType((*types.VirtualDisk)(nil))); n != 1 {
		t.Errorf("%d disks, want the boot disk", n)
	}
	f.SetDatacenter(dcs[0])
	ds, err := f.DatastoreList(ctx, "*")
	if err != nil || len(ds) != 2 {
		t.Fatalf("datastores %v, %v", ds, err)
	}
	var d mo.Datastore
	if err := ds[0].Properties(ctx, ds[0].Reference(), []string{"summary", "info", "host"}, &d); err != nil {
		t.Fatal(err)
	}
	if d.Summary.Url != v.DatastoreURL(d.Summary.Name) || d.Summary.Type != "VMFS" || len(d.Host) != 2 {
		t.Errorf("datastore %+v", d.Summary)
	}
	if _, err := f.ResourcePool(ctx, v.ResourcePool()); err != nil {
		t.Error(err)
	}
	if r, err := object.NewSearchIndex(c.Client).FindByUuid(ctx, dcs[0], "42000000-0000-4000-8000-000000000000", true, nil); err != nil || r != nil {
		t.Errorf("unknown uuid: %v, %v", r, err)
	}
}

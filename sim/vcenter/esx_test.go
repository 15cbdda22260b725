package vcenter

import (
	"reflect"
	"testing"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/simulator/esx"
	"github.com/vmware/govmomi/vim25/types"
)

// TestHostsAreWhole: a host that is added the quick way has the configuration
// that vcsim gives it, and shares nothing that clients write with another.
func TestHostsAreWhole(t *testing.T) {
	v, err := New(t.Context(), Config{Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	ctx := v.internal()
	want := simulator.NewHostSystem(ctx, esx.HostSystem)
	z := v.inv.zones[0]
	before := len(z.cluster.Host)
	hosts, err := v.addHosts(z.cluster, []string{"esx-a.example", "10.0.0.9"})
	if err != nil {
		t.Fatal(err)
	}
	if got := z.cluster.Host; len(got) != before+2 || got[before] != hosts[0].Self {
		t.Errorf("hosts of the cluster: %v", got)
	}
	if len(v.vim.All("HostSystem")) != before+2 {
		t.Errorf("%d hosts in the inventory, want %d", len(v.vim.All("HostSystem")), before+2)
	}
	a, b := hosts[0], hosts[1]
	if ip := b.Config.Network.Vnic[0].Spec.Ip.IpAddress; ip != "10.0.0.9" {
		t.Errorf("address %q", ip)
	}
	got := *a.Config
	got.Host = types.ManagedObjectReference{}
	model := *want.Config
	model.Host = types.ManagedObjectReference{}
	for i := range reflect.TypeFor[types.HostConfigInfo]().NumField() {
		g, w := reflect.ValueOf(got).Field(i), reflect.ValueOf(model).Field(i)
		if !reflect.DeepEqual(g.Interface(), w.Interface()) {
			t.Errorf("%s:\n%+v\nwant\n%+v", reflect.TypeFor[types.HostConfigInfo]().Field(i).Name, g, w)
		}
	}
	a.Config.Certificate[0]++
	a.Config.StorageDevice.HostBusAdapter = nil
	a.Config.Network.Vswitch[0].Name = "changed"
	if b.Config.Certificate[0] == a.Config.Certificate[0] || b.Config.StorageDevice.HostBusAdapter == nil || b.Config.Network.Vswitch[0].Name == "changed" {
		t.Error("two hosts share their configuration")
	}
	if _, err := v.addHosts(z.cluster, nil); err != nil {
		t.Error(err)
	}
}

package vcenter_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/vmware/govmomi"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25/types"
	"pgregory.net/rapid"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/vcenter"
)

// TestVMsAndVolumes lets administrators and a driver do what they like: CNS,
// the hardware of the VMs and the nodes always agree on which VM has which
// volume, in which slot, and nothing is refused with an internal error.
func TestVMsAndVolumes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) { vmsAndVolumes(t) })
}

func vmsAndVolumes(t *rapid.T) {
	p := &plugs{}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	v, err := vcenter.New(ctx, vcenter.Config{Nodes: nodes(3), Hardware: p, Disks: disk.NewMemory()})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	gc, err := govmomi.NewClient(ctx, v.URL(), true)
	if err != nil {
		t.Fatal(err)
	}
	defer gc.CloseIdleConnections()
	c, err := cnsClient(ctx, gc)
	if err != nil {
		t.Fatal(err)
	}
	var volumes []string
	for i := range 3 {
		id, err := c.create(ctx, fmt.Sprint("pvc-", i))
		if err != nil {
			t.Fatal(err)
		}
		volumes = append(volumes, id)
	}
	node := rapid.SampledFrom([]string{"node-1", "node-2", "node-3"})
	volume := rapid.SampledFrom(volumes)
	host := rapid.SampledFrom(v.Hosts())
	refusals := func(err error) {
		if err != nil && (strings.Contains(err.Error(), "SystemError") || strings.Contains(err.Error(), "panic")) {
			t.Fatalf("refused with %v", err)
		}
	}
	verb := func(f func(string) error) func(*rapid.T) {
		return func(t *rapid.T) { refusals(f(node.Draw(t, "node"))) }
	}
	vmOf := func(n string) (types.ManagedObjectReference, bool) {
		r, err := c.vm(ctx, v, n)
		return r, err == nil
	}
	t.Repeat(map[string]func(*rapid.T){
		"attach": func(t *rapid.T) {
			if vm, ok := vmOf(node.Draw(t, "node")); ok {
				_, err := c.attach(ctx, volume.Draw(t, "volume"), vm)
				refusals(err)
			}
		},
		"detach": func(t *rapid.T) {
			if vm, ok := vmOf(node.Draw(t, "node")); ok {
				refusals(c.detach(ctx, volume.Draw(t, "volume"), vm))
			}
		},
		"power off":    verb(v.PowerOff),
		"power on":     verb(v.PowerOn),
		"unregister":   verb(v.UnregisterVM),
		"register":     verb(v.RegisterVM),
		"snapshot":     verb(func(n string) error { return v.SnapshotVM(n, "s") }),
		"revert":       verb(v.RevertVM),
		"remove all":   verb(v.RemoveVMSnapshots),
		"move":         func(t *rapid.T) { refusals(v.MoveVM(node.Draw(t, "node"), host.Draw(t, "host"))) },
		"pull":         func(t *rapid.T) { refusals(v.PullDisk(node.Draw(t, "node"), volume.Draw(t, "volume"))) },
		"host fails":   func(t *rapid.T) { refusals(v.HostFail(host.Draw(t, "host"))) },
		"host is back": func(t *rapid.T) { refusals(v.HostReconnect(host.Draw(t, "host"))) },
		"add by hand": func(t *rapid.T) {
			vm, ok := vmOf(node.Draw(t, "node"))
			if !ok {
				return
			}
			d := &types.VirtualDisk{VDiskId: &types.ID{Id: volume.Draw(t, "volume")}}
			d.Key, d.ControllerKey = -1, 1000
			d.Backing = &types.VirtualDiskFlatVer2BackingInfo{DiskMode: string(types.VirtualDiskModeIndependent_persistent)}
			task, err := object.NewVirtualMachine(c.Client.Client, vm).Reconfigure(ctx, types.VirtualMachineConfigSpec{
				DeviceChange: []types.BaseVirtualDeviceConfigSpec{&types.VirtualDeviceConfigSpec{Operation: types.VirtualDeviceConfigSpecOperationAdd, Device: d}},
			})
			if err == nil {
				err = task.Wait(ctx)
			}
			refusals(err)
		},
		"": func(t *rapid.T) { agree(t, v, p) },
	})
}

// agree compares CNS, the hardware of the VMs, and what is in the nodes.
func agree(t *rapid.T, v *vcenter.VCenter, p *plugs) {
	vms := vcenter.NodeVMs(v)
	undash := func(s string) string { return strings.ReplaceAll(s, "-", "") }
	var held []string
	for _, a := range vcenter.Held(v) {
		i := slices.IndexFunc(vms, func(m vcenter.NodeVM) bool { return m.ID == a.VM })
		if i < 0 {
			t.Fatalf("%s is held by %s, which is no node's VM", a.Volume, a.VM)
		}
		held = append(held, vms[i].UUID+" "+undash(a.DiskUUID)+" "+a.Volume)
	}
	plugged := p.list()
	slices.Sort(held)
	slices.Sort(plugged)
	if !slices.Equal(held, plugged) {
		t.Fatalf("CNS has\n%s\nbut plugged in are\n%s", strings.Join(held, "\n"), strings.Join(plugged, "\n"))
	}
	listed := map[string]bool{}
	for _, m := range vms {
		slots := map[string]bool{}
		for _, d := range m.Devices {
			x, ok := d.(*types.VirtualDisk)
			if !ok {
				continue
			}
			s := fmt.Sprint(x.ControllerKey, ":", *x.UnitNumber)
			if slots[s] || *x.UnitNumber == 7 {
				t.Fatalf("slot %s of %s is taken twice, or the controller's", s, m.Node)
			}
			slots[s] = true
			if x.VDiskId == nil {
				continue
			}
			key := m.UUID + " " + undash(x.Backing.(*types.VirtualDiskFlatVer2BackingInfo).Uuid) + " " + x.VDiskId.Id
			if listed[key] {
				t.Fatalf("%s lists a volume twice", m.Node)
			}
			listed[key] = true
			if !slices.Contains(held, key) && m.On {
				t.Fatalf("%s runs with a volume that it does not hold: %s", m.Node, key)
			}
		}
	}
	for _, k := range held {
		if !listed[k] {
			t.Fatalf("CNS has an attachment that no hardware shows: %s", k)
		}
	}
}

// TestVMContent: what a VM snapshot took in comes back with it.
func TestVMContent(t *testing.T) {
	t.Parallel()
	store := disk.NewMemory()
	r := newRig(t, vcenter.Config{Disks: store})
	vm, id := r.node("node-1"), r.volume("pvc-1")
	r.plugged(id, vm)
	image := func(do func(disk.Image) error) {
		t.Helper()
		im, err := store.Open(id)
		r.ok(err)
		r.ok(errors.Join(do(im), im.Close()))
	}
	write := func(s string) {
		t.Helper()
		image(func(im disk.Image) error { _, err := im.WriteAt([]byte(s), 4096); return err })
	}
	write("before")
	r.snapshotOf(vm, "s")
	write("after!")
	r.ok(r.v.RevertVM("node-1"))
	got := make([]byte, 6)
	image(func(im disk.Image) error { _, err := im.ReadAt(got, 4096); return err })
	if string(got) != "before" {
		t.Errorf("after the revert the volume holds %q", got)
	}
	// A VM that is deleted takes its snapshots with it: the volume is free.
	r.ok(r.v.DeleteVM("node-1"))
	r.ok(r.delete(r.ctx, id))
}

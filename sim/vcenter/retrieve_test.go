package vcenter_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/vmware/govmomi/view"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter"
)

// retrieve asks for properties of an object; no names are all that it has, which
// vcsim answers.
func (r *rig) retrieve(o moref, names ...string) types.ObjectContent {
	r.t.Helper()
	all := names == nil
	res, err := methods.RetrievePropertiesEx(r.ctx, r.Client.Client, &types.RetrievePropertiesEx{This: r.Client.ServiceContent.PropertyCollector,
		SpecSet: []types.PropertyFilterSpec{{ObjectSet: []types.ObjectSpec{{Obj: o}}, PropSet: []types.PropertySpec{{Type: o.Type, All: &all, PathSet: names}}}}})
	if err != nil {
		r.t.Fatalf("%s %v: %v", o, names, err)
	}
	if len(res.Returnval.Objects) != 1 {
		r.t.Fatalf("%s %v: %d objects", o, names, len(res.Returnval.Objects))
	}
	return res.Returnval.Objects[0]
}

// Asked for by name, each property of each object is what it is in a reply that has
// all, which vcsim makes; and so is what there is not.
func TestPropertiesByNameAreThoseOfAll(t *testing.T) {
	r := newRig(t, vcenter.Config{Seed: 3})
	r.plugged(r.volume("a"), r.node("node-1"))
	r.plugged(r.volume("b"), r.node("node-1"))
	m := view.NewManager(r.Client.Client)
	cv, err := m.CreateContainerView(r.ctx, r.Client.ServiceContent.RootFolder, nil, true)
	r.ok(err)
	objects, err := cv.Find(r.ctx, nil, nil)
	r.ok(err)
	sc := r.Client.ServiceContent
	objects = append(objects, sc.RootFolder, sc.PropertyCollector, *sc.SessionManager, *sc.TaskManager, *sc.EventManager, *sc.AuthorizationManager, *sc.ViewManager, cv.Reference())
	kinds := map[string]bool{}
	n := 0
	for _, o := range objects {
		kinds[o.Type] = true
		all := r.retrieve(o)
		var names []string
		for _, p := range all.PropSet {
			if !strings.HasSuffix(p.Name, "Session") && p.Name != "sessionList" { // which count the calls
				names = append(names, p.Name)
			}
		}
		slices.Sort(names)
		names = slices.Compact(names)                    // a Network has two names
		got := r.retrieve(o, append(names, names...)...) // a name twice is one
		for _, p := range got.PropSet {
			i := slices.IndexFunc(all.PropSet, func(x types.DynamicProperty) bool { return x.Name == p.Name })
			if !reflect.DeepEqual(all.PropSet[i], p) {
				t.Errorf("%s %s: %#v, in a reply with all %#v", o, p.Name, p.Val, all.PropSet[i].Val)
			}
			n++
		}
		if len(got.PropSet) != len(names) || len(got.MissingSet) != len(all.MissingSet) {
			t.Errorf("%s: %d properties, %d missing; in a reply with all %d and %d", o, len(got.PropSet), len(got.MissingSet), len(names), len(all.MissingSet))
		}
	}
	for _, k := range []string{"VirtualMachine", "HostSystem", "Datastore", "Datacenter", "ClusterComputeResource", "ResourcePool", "Folder", "SessionManager", "ContainerView"} {
		if !kinds[k] {
			t.Errorf("there is no %s among %v", k, objects)
		}
	}
	if n < 200 {
		t.Errorf("%d properties of %d objects: the test does not see them", n, len(objects))
	}
}

// Paths into properties, what there is not and what has no value come as vcsim has
// them: a path with a key makes it answer the whole request.
func TestPathsOfPropertiesAreVcsims(t *testing.T) {
	r := newRig(t, vcenter.Config{Seed: 3})
	r.plugged(r.volume("a"), r.node("node-1"))
	vm := r.node("node-1").Reference()
	for _, names := range [][]string{
		{"name", "config.uuid", "config.hardware.device"},
		{"summary.config.name", "runtime.host", "runtime.powerState", "config.hardware.numCPU", "datastore", "config.version"},
		{"runtime.cleanPowerOff", "config.managedBy", "config.managedBy.type", "snapshot", "snapshot.currentSnapshot"},
		{"nothing", "config.nothing", "config.hardware.device.key", ""},
		{"config.extraConfig", "guest.net", "layoutEx.file", "config.bootOptions", "parent", "parent.value", "value"},
	} {
		want := r.retrieve(vm, append(slices.Clone(names), `config.hardware.device[-1]`)...)
		got := r.retrieve(vm, names...)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%v:\n  %+v\nvcsim:\n  %+v", names, got, want)
		}
	}
}

// A property that was read is the client's: the object changes, the reply does not.
func TestPropertiesAreCopies(t *testing.T) {
	r := newRig(t, vcenter.Config{Seed: 3})
	vm := r.node("node-1")
	id := r.volume("a")
	before := r.retrieve(vm.Reference(), "config.hardware.device")
	r.plugged(id, vm)
	after := r.retrieve(vm.Reference(), "config.hardware.device")
	b, a := before.PropSet[0].Val.(types.ArrayOfVirtualDevice).VirtualDevice, after.PropSet[0].Val.(types.ArrayOfVirtualDevice).VirtualDevice
	if len(a) != len(b)+1 {
		t.Errorf("%d devices, then %d", len(b), len(a))
	}
}

package vcenter_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sort"
	"testing"
	"time"

	"github.com/vmware/govmomi"
	"github.com/vmware/govmomi/fault"
	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/view"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/types"
	"pgregory.net/rapid"

	"github.com/csilab/csilab/sim/vcenter"
)

type moref = types.ManagedObjectReference

// updates asks for what there is to say, without waiting.
func updates(ctx context.Context, c *vim25.Client, pc moref, version string, limit int32) (*types.UpdateSet, error) {
	zero := int32(0)
	res, err := methods.WaitForUpdatesEx(ctx, c, &types.WaitForUpdatesEx{This: pc, Version: version, Options: &types.WaitOptions{MaxWaitSeconds: &zero, MaxObjectUpdates: limit}})
	if err != nil {
		return nil, err
	}
	return res.Returnval, nil
}

func vmFilter(root moref, traverse *types.TraversalSpec) types.PropertyFilterSpec {
	yes := true
	return types.PropertyFilterSpec{
		PropSet:   []types.PropertySpec{{Type: "VirtualMachine", PathSet: []string{"name", "runtime.powerState"}}},
		ObjectSet: []types.ObjectSpec{{Obj: root, Skip: &yes, SelectSet: []types.BaseSelectionSpec{traverse}}},
	}
}

func TestVersionsOfUpdates(t *testing.T) {
	var nodes []vcenter.Node
	for i := range 5 {
		nodes = append(nodes, vcenter.Node{Name: fmt.Sprintf("node-%d", i)})
	}
	v := start(t, vcenter.Config{Nodes: nodes})
	c := login(t, v)
	ctx := t.Context()
	cv, err := view.NewManager(c.Client).CreateContainerView(ctx, c.ServiceContent.RootFolder, []string{"VirtualMachine"}, true)
	if err != nil {
		t.Fatal(err)
	}
	pc, err := property.DefaultCollector(c.Client).Create(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := methods.CreateFilter(ctx, c.Client, &types.CreateFilter{This: pc.Reference(), Spec: vmFilter(cv.Reference(), cv.TraversalSpec())}); err != nil {
		t.Fatal(err)
	}
	count := func(s *types.UpdateSet) (n int) {
		if s != nil {
			for _, f := range s.FilterSet {
				n += len(f.ObjectSet)
			}
		}
		return n
	}
	first, err := updates(ctx, c.Client, pc.Reference(), "", 2)
	if err != nil || count(first) != 2 || first.Truncated == nil || !*first.Truncated {
		t.Fatalf("first page %+v, %v", first, err)
	}
	second, err := updates(ctx, c.Client, pc.Reference(), first.Version, 2)
	if err != nil || count(second) != 2 {
		t.Fatalf("second page %+v, %v", second, err)
	}
	// The reply was lost: the client asks again with the version that it has.
	again, err := updates(ctx, c.Client, pc.Reference(), first.Version, 2)
	if err != nil || !reflect.DeepEqual(again, second) {
		t.Errorf("again %+v, %v, want %+v", again, err, second)
	}
	third, err := updates(ctx, c.Client, pc.Reference(), second.Version, 2)
	if err != nil || count(third) != 1 || third.Truncated != nil {
		t.Fatalf("third page %+v, %v", third, err)
	}
	if none, err := updates(ctx, c.Client, pc.Reference(), third.Version, 2); err != nil || none != nil {
		t.Errorf("nothing new: %+v, %v", none, err)
	}
	if _, err := updates(ctx, c.Client, pc.Reference(), first.Version, 2); !fault.Is(err, &types.InvalidCollectorVersion{}) {
		t.Errorf("old version: %v", err)
	}
	if all, err := updates(ctx, c.Client, pc.Reference(), "", 0); err != nil || count(all) != 5 {
		t.Errorf("from the start: %d, %v", count(all), err)
	}
	if err := pc.CancelWaitForUpdates(ctx); err != nil {
		t.Error(err)
	}
	// A wait is answered when something happens, and ends when it is told to.
	set := make(chan *types.UpdateSet, 1)
	last, err := updates(ctx, c.Client, pc.Reference(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		res, err := methods.WaitForUpdatesEx(ctx, c.Client, &types.WaitForUpdatesEx{This: pc.Reference(), Version: last.Version})
		if err != nil {
			t.Error(err)
			set <- nil
			return
		}
		set <- res.Returnval
	}()
	if err := v.PowerOff("node-3"); err != nil {
		t.Fatal(err)
	}
	got := <-set
	if count(got) != 1 || got.FilterSet[0].ObjectSet[0].ChangeSet[0].Val != types.VirtualMachinePowerStatePoweredOff {
		t.Errorf("update %+v", got)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := methods.WaitForUpdatesEx(ctx, c.Client, &types.WaitForUpdatesEx{This: pc.Reference(), Version: got.Version})
		ended <- err
	}()
	for done := false; !done; {
		_ = pc.CancelWaitForUpdates(ctx)
		select {
		case err := <-ended:
			if !fault.Is(err, &types.RequestCanceled{}) {
				t.Errorf("canceled: %v", err)
			}
			done = true
		case <-time.After(5 * time.Millisecond):
		}
	}
	if err := pc.Destroy(ctx); err != nil {
		t.Error(err)
	}
	if _, err := updates(ctx, c.Client, pc.Reference(), "", 0); err == nil {
		t.Error("a destroyed collector answers")
	}
}

// TestMissingObjects: a filter on what isn't there is refused, or tells so in
// its updates where it asks for that (PropertyFilterSpec).
func TestMissingObjects(t *testing.T) {
	v := start(t, vcenter.Config{})
	c := login(t, v)
	ctx := t.Context()
	index := func(node string) moref {
		r, err := methods.FindByUuid(ctx, c.Client, &types.FindByUuid{This: *c.ServiceContent.SearchIndex, Uuid: v.VMUUID(node), VmSearch: true})
		if err != nil || r.Returnval == nil {
			t.Fatal(err)
		}
		return *r.Returnval
	}
	here, goes, never := index("node-1"), index("node-2"), moref{Type: "VirtualMachine", Value: "vm-99999"}
	spec := func(report *bool, objects ...moref) types.PropertyFilterSpec {
		s := types.PropertyFilterSpec{PropSet: []types.PropertySpec{{Type: "VirtualMachine", PathSet: []string{"name"}}}, ReportMissingObjectsInResults: report}
		for _, o := range objects {
			s.ObjectSet = append(s.ObjectSet, types.ObjectSpec{Obj: o})
		}
		return s
	}
	pc, err := property.DefaultCollector(c.Client).Create(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, report := range []*bool{nil, types.NewBool(false)} {
		if _, err := methods.CreateFilter(ctx, c.Client, &types.CreateFilter{This: pc.Reference(), Spec: spec(report, here, never)}); !fault.Is(err, &types.ManagedObjectNotFound{}) {
			t.Errorf("a filter on nothing: %v", err)
		}
	}
	if _, err := methods.CreateFilter(ctx, c.Client, &types.CreateFilter{This: pc.Reference(), Spec: spec(types.NewBool(true), here, goes, never)}); err != nil {
		t.Fatal(err)
	}
	version := ""
	// next is what is told: objects and what became of them.
	next := func() (out []string) {
		t.Helper()
		set, err := updates(ctx, c.Client, pc.Reference(), version, 0)
		if err != nil {
			t.Fatal(err)
		}
		if set == nil {
			return nil
		}
		version = set.Version
		for _, f := range set.FilterSet {
			for _, o := range f.ObjectSet {
				out = append(out, fmt.Sprint(o.Obj.Value, " ", o.Kind))
			}
			for _, m := range f.MissingSet {
				if g, ok := m.Fault.Fault.(*types.ManagedObjectNotFound); !ok || g.Obj != m.Obj || m.Fault.LocalizedMessage == "" {
					t.Errorf("missing %+v", m)
				}
				out = append(out, m.Obj.Value+" missing")
			}
		}
		slices.Sort(out)
		return out
	}
	want := func(what string, w ...string) {
		t.Helper()
		slices.Sort(w)
		if got := next(); !slices.Equal(got, w) {
			t.Errorf("%s: %q, want %q", what, got, w)
		}
	}
	want("first", here.Value+" enter", goes.Value+" enter", never.Value+" missing")
	want("nothing new")
	if err := v.DeleteVM("node-2"); err != nil {
		t.Fatal(err)
	}
	want("one is deleted", goes.Value+" leave", goes.Value+" missing")
	want("nothing new")
	version = ""
	want("from the start", here.Value+" enter", goes.Value+" missing", never.Value+" missing")
	// What goes without having been asked about so leaves, and no more.
	pc2, err := property.DefaultCollector(c.Client).Create(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := methods.CreateFilter(ctx, c.Client, &types.CreateFilter{This: pc2.Reference(), Spec: spec(nil, here)}); err != nil {
		t.Fatal(err)
	}
	pc, version = pc2, ""
	want("first", here.Value+" enter")
	if err := v.DeleteVM("node-1"); err != nil {
		t.Fatal(err)
	}
	want("it is deleted", here.Value+" leave")
}

// TestUpdatesAddUp changes an inventory at random and compares what a client
// makes of the updates with what it reads.
func TestUpdatesAddUp(t *testing.T) {
	v := start(t, vcenter.Config{})
	c := login(t, v)
	ctx := t.Context()
	n := 0
	rapid.Check(t, func(rt *rapid.T) { n++; updatesAddUp(ctx, rt, v, c, n) })
}

func updatesAddUp(ctx context.Context, t *rapid.T, v *vcenter.VCenter, c *govmomi.Client, round int) {
	m := view.NewManager(c.Client)
	cv, err := m.CreateContainerView(ctx, c.ServiceContent.RootFolder, []string{"VirtualMachine"}, true)
	if err != nil {
		t.Fatal(err)
	}
	defer cv.Destroy(ctx)
	lv, err := m.CreateListView(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer lv.Destroy(ctx)
	pc, err := property.DefaultCollector(c.Client).Create(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Destroy(ctx)
	specs := map[moref]types.PropertyFilterSpec{}
	for _, spec := range []types.PropertyFilterSpec{vmFilter(cv.Reference(), cv.TraversalSpec()), vmFilter(lv.Reference(), lv.TraversalSpec())} {
		res, err := methods.CreateFilter(ctx, c.Client, &types.CreateFilter{This: pc.Reference(), Spec: spec})
		if err != nil {
			t.Fatal(err)
		}
		specs[res.Returnval] = spec
	}
	model := map[moref]map[moref]map[string]any{} // filter, object, property
	version := ""
	off := map[string]bool{}
	var names []string
	refs := map[string]moref{}
	limit := int32(rapid.IntRange(0, 3).Draw(t, "limit"))
	defer func() {
		for _, n := range names {
			_ = v.DeleteVM(n)
		}
	}()
	sync := func() {
		for {
			set, err := updates(ctx, c.Client, pc.Reference(), version, limit)
			if err != nil {
				t.Fatal(err)
			}
			if set == nil {
				break
			}
			version = set.Version
			for _, f := range set.FilterSet {
				if model[f.Filter] == nil {
					model[f.Filter] = map[moref]map[string]any{}
				}
				for _, o := range f.ObjectSet {
					switch o.Kind {
					case types.ObjectUpdateKindEnter:
						if model[f.Filter][o.Obj] != nil {
							t.Fatalf("%s enters twice", o.Obj)
						}
						model[f.Filter][o.Obj] = map[string]any{}
					case types.ObjectUpdateKindModify:
						if model[f.Filter][o.Obj] == nil {
							t.Fatalf("%s is modified before it enters", o.Obj)
						}
					case types.ObjectUpdateKindLeave:
						if model[f.Filter][o.Obj] == nil {
							t.Fatalf("%s leaves before it enters", o.Obj)
						}
						delete(model[f.Filter], o.Obj)
					}
					for _, p := range o.ChangeSet {
						model[f.Filter][o.Obj][p.Name] = p.Val
					}
				}
			}
		}
		for id, spec := range specs {
			res, err := methods.RetrievePropertiesEx(ctx, c.Client, &types.RetrievePropertiesEx{This: c.ServiceContent.PropertyCollector, SpecSet: []types.PropertyFilterSpec{spec}})
			if err != nil {
				t.Fatal(err)
			}
			want := map[moref]map[string]any{}
			if res.Returnval != nil {
				for _, o := range res.Returnval.Objects {
					want[o.Obj] = map[string]any{}
					for _, p := range o.PropSet {
						want[o.Obj][p.Name] = p.Val
					}
				}
			}
			got := model[id]
			if len(got) != len(want) || len(want) > 0 && !reflect.DeepEqual(got, want) {
				t.Fatalf("the updates add up to\n%v, to be read is\n%v", got, want)
			}
		}
	}
	sync()
	added := 0
	t.Repeat(map[string]func(*rapid.T){
		"add a VM": func(t *rapid.T) {
			if len(names) > 4 {
				t.Skip("enough")
			}
			added++
			name := fmt.Sprintf("extra-%d-%d", round, added)
			if err := v.AddVM(vcenter.Node{Name: name}); err != nil {
				t.Fatal(err)
			}
			r, err := methods.FindByUuid(ctx, c.Client, &types.FindByUuid{This: *c.ServiceContent.SearchIndex, Uuid: v.VMUUID(name), VmSearch: true})
			if err != nil || r.Returnval == nil {
				t.Fatal(err)
			}
			names, refs[name] = append(names, name), *r.Returnval
		},
		"delete a VM": func(t *rapid.T) {
			if len(names) == 0 {
				t.Skip("none")
			}
			name := rapid.SampledFrom(names).Draw(t, "vm")
			if err := v.DeleteVM(name); err != nil {
				t.Fatal(err)
			}
			names = slices.DeleteFunc(names, func(s string) bool { return s == name })
		},
		"switch a VM": func(t *rapid.T) {
			if len(names) == 0 {
				t.Skip("none")
			}
			name := rapid.SampledFrom(names).Draw(t, "vm")
			f := v.PowerOff
			if off[name] {
				f = v.PowerOn
			}
			if err := f(name); err != nil {
				t.Fatal(err)
			}
			off[name] = !off[name]
		},
		"change the list": func(t *rapid.T) {
			var add, remove []moref
			var all []string
			for n := range refs { // also those of VMs that are gone
				all = append(all, n)
			}
			sort.Strings(all)
			for _, n := range all {
				switch rapid.IntRange(0, 3).Draw(t, n) {
				case 0:
					add = append(add, refs[n])
				case 1:
					remove = append(remove, refs[n])
				}
			}
			if _, err := methods.ModifyListView(ctx, c.Client, &types.ModifyListView{This: lv.Reference(), Add: add, Remove: remove}); err != nil {
				t.Fatal(err)
			}
		},
		"": func(t *rapid.T) {
			if rapid.Bool().Draw(t, "look") {
				sync()
			}
		},
	})
	sync()
}

package vcenter

import (
	"slices"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/task"
)

// Filters on tasks, alone or in a list view, are what clients of a vCenter wait
// at most of their time. vcsim copies each object that it reads by encoding it
// to XML and back, and reads all of a view when one object of it changes; here
// a task is read as it is (nothing in it changes in place), and of a view only
// what came, changed or went.

// taskProperties are the properties that are read so. A property without a
// value is nil.
var taskProperties = map[string]func(*types.TaskInfo) any{
	"info":          func(i *types.TaskInfo) any { return *i },
	"info.state":    func(i *types.TaskInfo) any { return i.State },
	"info.progress": func(i *types.TaskInfo) any { return i.Progress },
	"info.result":   func(i *types.TaskInfo) any { return i.Result },
	"info.error": func(i *types.TaskInfo) any {
		if i.Error == nil {
			return nil
		}
		return *i.Error
	},
}

// onTasks says whether a filter is on tasks only, and which of their properties
// it reads.
func onTasks(s *session, spec types.PropertyFilterSpec) (paths []string, ok bool) {
	for _, p := range spec.PropSet {
		if p.Type != "Task" || p.All != nil && *p.All {
			return nil, false
		}
		for _, path := range p.PathSet {
			if taskProperties[path] == nil || slices.Contains(paths, path) {
				return nil, false
			}
			paths = append(paths, path)
		}
	}
	for _, o := range spec.ObjectSet {
		if len(o.SelectSet) == 0 && o.Obj.Type == "Task" {
			continue
		}
		if _, ok := s.Registry.Get(o.Obj).(*listView); !ok || len(o.SelectSet) != 1 {
			return nil, false
		}
		t, ok := o.SelectSet[0].(*types.TraversalSpec)
		if !ok || t.Path != "view" || len(t.SelectSet) > 0 || t.Skip != nil && *t.Skip {
			return nil, false
		}
	}
	return paths, len(paths) > 0
}

// selected lists the objects that the filter selects now, in order.
func (f *filter) selected(ctx *simulator.Context, strict bool) ([]ref, types.BaseMethodFault) {
	v := f.pc.v
	var out []ref
	for _, o := range f.Spec.ObjectSet {
		gone := v.watch.isGoing(o.Obj)
		if len(o.SelectSet) == 0 {
			if gone || v.vim.Get(o.Obj) == nil {
				if strict {
					return nil, &types.ManagedObjectNotFound{Obj: o.Obj}
				}
				continue
			}
			out = append(out, o.Obj)
			continue
		}
		lv, ok := f.pc.s.Registry.Get(o.Obj).(*listView)
		if !ok || gone {
			if strict {
				return nil, &types.ManagedObjectNotFound{Obj: o.Obj}
			}
			continue
		}
		var view []ref // never changed in place
		v.vim.WithLock(ctx, lv, func() { view = lv.View })
		out = append(out, view...)
	}
	return out, nil
}

// read reads tasks; what is none, or is going, is left out.
func (f *filter) read(refs []ref) []types.ObjectContent {
	out := make([]types.ObjectContent, 0, len(refs))
	for _, r := range refs {
		if f.pc.v.watch.isGoing(r) {
			continue
		}
		info, ok := task.InfoOf(f.pc.v.vim.Get(r))
		if !ok {
			continue
		}
		props := make([]types.DynamicProperty, len(f.paths))
		for i, path := range f.paths {
			props[i] = types.DynamicProperty{Name: path, Val: taskProperties[path](&info)}
		}
		out = append(out, types.ObjectContent{Obj: r, PropSet: props})
	}
	return f.pc.visible(out, []types.PropertyFilterSpec{f.Spec})
}

// gather is what compute does for filters on tasks: it reads what came or
// changed, and says what else is still selected.
func (f *filter) gather(ctx *simulator.Context, strict, all bool, dirty map[ref]struct{}) (objects []types.ObjectContent, still map[ref]struct{}, fault types.BaseMethodFault) {
	pc := f.pc
	still = map[ref]struct{}{}
	if !all {
		refs := make([]ref, 0, len(dirty))
		for r := range dirty {
			refs = append(refs, r)
		}
		return f.read(refs), still, nil
	}
	refs, fault := f.selected(ctx, strict)
	if fault != nil {
		return nil, nil, fault
	}
	var fresh, need []ref
	pc.mu.Lock()
	for _, r := range refs {
		if r.Type != "Task" || pc.v.watch.isGoing(r) {
			continue
		}
		known, ok := f.known[r]
		switch _, changed := dirty[r]; {
		case !ok:
			fresh = append(fresh, r)
			f.known[r] = nil
			need = append(need, r)
		case changed, known == nil:
			need = append(need, r)
		default:
			still[r] = struct{}{}
		}
	}
	pc.mu.Unlock()
	// An object that comes into view may change before it is tracked: it is read
	// after that.
	pc.v.watch.track(f, fresh...)
	return f.read(need), still, nil
}

package vcenter

import (
	"slices"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// viewManager answers CreateListView; all else of the ViewManager is vcsim's.
type viewManager struct {
	mo.ViewManager
	optOut

	s *session
	w *watch
}

// listView is a ListView that, unlike vcsim's, holds only objects that exist:
// a reference that could not be resolved is reported and forgotten.
type listView struct {
	mo.ListView

	s *session
	w *watch
}

// Reference implements mo.Reference. The one that mo.ListView has copies the
// whole view, which others may be changing; so with all objects that change
// while the registry holds them.
func (v *listView) Reference() ref { return v.Self }

func (m *viewManager) CreateListView(ctx *simulator.Context, req *types.CreateListView) soap.HasFault {
	view, unresolved := m.w.resolved(ctx, nil, req.Obj)
	if len(unresolved) > 0 {
		return &methods.CreateListViewBody{Fault_: simulator.Fault("", &types.ManagedObjectNotFound{Obj: unresolved[0]})}
	}
	v := &listView{s: m.s, w: m.w}
	v.Self = m.s.next("ListView")
	v.View = view
	m.s.Registry.Put(v)
	return &methods.CreateListViewBody{Res: &types.CreateListViewResponse{Returnval: v.Self}}
}

// resolved adds those of refs that exist to a copy of view, each once.
func (w *watch) resolved(ctx *simulator.Context, view, refs []ref) (out, unresolved []ref) {
	out = make([]ref, len(view), len(view)+len(refs))
	copy(out, view)
	var has map[ref]bool
	if len(refs) > 8 { // or else looking is cheaper than the table
		has = make(map[ref]bool, len(out))
		for _, r := range out {
			has[r] = true
		}
	}
	for _, r := range refs {
		there := has[r] || has == nil && slices.Contains(out, r)
		switch {
		case ctx.Session.Get(r) == nil, w.isGoing(r):
			unresolved = append(unresolved, r)
		case !there:
			if has != nil {
				has[r] = true
			}
			out = append(out, r)
		}
	}
	return out, unresolved
}

func (v *listView) set(ctx *simulator.Context, view []ref) {
	ctx.Update(v, []types.PropertyChange{{Name: "view", Val: view}})
}

func (v *listView) ModifyListView(ctx *simulator.Context, req *types.ModifyListView) soap.HasFault {
	view, unresolved := v.w.resolved(ctx, v.View, req.Add)
	if len(req.Remove) > 0 {
		gone := make(map[ref]bool, len(req.Remove))
		for _, r := range req.Remove {
			gone[r] = true
		}
		view = slices.DeleteFunc(view, func(r ref) bool { return gone[r] })
	}
	v.set(ctx, view)
	return &methods.ModifyListViewBody{Res: &types.ModifyListViewResponse{Returnval: unresolved}}
}

func (v *listView) ResetListView(ctx *simulator.Context, req *types.ResetListView) soap.HasFault {
	view, unresolved := v.w.resolved(ctx, nil, req.Obj)
	v.set(ctx, view)
	return &methods.ResetListViewBody{Res: &types.ResetListViewResponse{Returnval: unresolved}}
}

func (v *listView) DestroyView(ctx *simulator.Context, _ *types.DestroyView) soap.HasFault {
	v.s.Registry.Remove(ctx, v.Self)
	return &methods.DestroyViewBody{Res: &types.DestroyViewResponse{}}
}

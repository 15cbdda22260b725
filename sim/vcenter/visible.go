package vcenter

import (
	"reflect"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// What a user may not see is left out of what others find: a traversal passes
// over it, a search does not find it, and where it is asked for by reference
// its properties are missing for NoPermission. (The upstream driver meets the
// last one at the result of its tasks, vsphere-csi-driver#101.)

// restricted gives the caller of a session whose rights are limited.
func (v *VCenter) restricted(s *session) (principal, bool) {
	if s == nil || s == v.self {
		return principal{}, false
	}
	p := v.sessions.principal(s)
	return p, !v.access.everything(p)
}

// hides says whether an object is one that can be hidden.
func (v *VCenter) hides(r ref) bool {
	if r.Type == "Task" {
		return true
	}
	_, ok := v.vim.Get(r).(mo.Entity)
	return ok
}

// visible leaves out of objects what the caller may not see. asked are those
// that the request names itself.
func (pc *collector) visible(objects []types.ObjectContent, specs []types.PropertyFilterSpec) []types.ObjectContent {
	p, ok := pc.v.restricted(pc.s)
	if !ok {
		return objects
	}
	asked := map[ref]bool{}
	for _, spec := range specs {
		for _, o := range spec.ObjectSet {
			asked[o.Obj] = true
		}
	}
	out := make([]types.ObjectContent, 0, len(objects))
	for _, o := range objects {
		if !pc.v.hides(o.Obj) {
			out = append(out, o)
			continue
		}
		roles := pc.v.access.roles(p, o.Obj)
		switch {
		case pc.v.access.has(roles, "System.Read"):
		case pc.v.access.has(roles, "System.View"), pc.v.access.leadsTo(p, o.Obj):
			o = withhold(o, func(name string) bool { return name != "name" && name != "parent" })
		case asked[o.Obj]:
			o = withhold(o, func(string) bool { return true })
		default:
			continue
		}
		out = append(out, o)
	}
	return out
}

// withhold moves properties to those that are missing.
func withhold(o types.ObjectContent, hidden func(name string) bool) types.ObjectContent {
	var props []types.DynamicProperty
	missing := o.MissingSet
	for _, p := range o.PropSet {
		if !hidden(p.Name) {
			props = append(props, p)
			continue
		}
		f := noPermission(need{o.Obj, "System.Read"})
		missing = append(missing, types.MissingProperty{Path: p.Name, Fault: types.LocalizedMethodFault{Fault: f, LocalizedMessage: textNoPermission}})
	}
	o.PropSet, o.MissingSet = props, missing
	return o
}

// RetrievePropertiesEx implements the method of the API.
func (pc *collector) RetrievePropertiesEx(ctx *simulator.Context, req *types.RetrievePropertiesEx) soap.HasFault {
	if ctx.Session != nil && req.Options.MaxObjects <= 0 && plain(req.SpecSet) {
		objects, fault := retrieve(ctx, req.SpecSet)
		if fault != nil {
			return &methods.RetrievePropertiesExBody{Fault_: simulator.Fault("The object has already been deleted or has not been completely created", fault)}
		}
		return &methods.RetrievePropertiesExBody{Res: &types.RetrievePropertiesExResponse{
			Returnval: &types.RetrieveResult{Objects: pc.visible(objects, req.SpecSet)}}}
	}
	res := pc.PropertyCollector.RetrievePropertiesEx(ctx, req)
	if b, ok := res.(*methods.RetrievePropertiesExBody); ok && b.Res != nil && b.Res.Returnval != nil && ctx.Session != nil {
		b.Res.Returnval.Objects = pc.visible(b.Res.Returnval.Objects, req.SpecSet)
	}
	return res
}

// ContinueRetrievePropertiesEx implements the method of the API.
func (pc *collector) ContinueRetrievePropertiesEx(ctx *simulator.Context, req *types.ContinueRetrievePropertiesEx) soap.HasFault {
	res := pc.PropertyCollector.ContinueRetrievePropertiesEx(ctx, req)
	if b, ok := res.(*methods.ContinueRetrievePropertiesExBody); ok && b.Res != nil && ctx.Session != nil {
		b.Res.Returnval.Objects = pc.visible(b.Res.Returnval.Objects, nil)
	}
	return res
}

// RetrieveProperties implements the method of the API.
func (pc *collector) RetrieveProperties(ctx *simulator.Context, req *types.RetrieveProperties) soap.HasFault {
	res := pc.RetrievePropertiesEx(ctx, &types.RetrievePropertiesEx{This: req.This, SpecSet: req.SpecSet}).(*methods.RetrievePropertiesExBody)
	if res.Fault_ != nil {
		return &methods.RetrievePropertiesBody{Fault_: res.Fault_}
	}
	return &methods.RetrievePropertiesBody{Res: &types.RetrievePropertiesResponse{Returnval: res.Res.Returnval.Objects}}
}

// found leaves out of the reply of a search what the caller may not see.
func (v *VCenter) found(p principal, res soap.HasFault) {
	body := reflect.Indirect(reflect.ValueOf(res)).FieldByName("Res")
	if !body.IsValid() || body.Kind() != reflect.Pointer || body.IsNil() {
		return
	}
	x := body.Elem().FieldByName("Returnval")
	if !x.IsValid() {
		return
	}
	hidden := func(r ref) bool {
		return v.hides(r) && !v.access.allowed(p, r, "System.View") && !v.access.leadsTo(p, r)
	}
	switch t := x.Interface().(type) {
	case *ref:
		if t != nil && hidden(*t) {
			x.SetZero()
		}
	case []ref:
		var seen []ref
		for _, r := range t {
			if !hidden(r) {
				seen = append(seen, r)
			}
		}
		x.Set(reflect.ValueOf(seen))
	}
}

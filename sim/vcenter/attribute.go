package vcenter

import (
	"slices"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cnsface"
)

// attributes answers the methods of the CustomFieldsManager that change
// something. vcsim's change lists in place that others read, and tell nobody
// who watches.
type attributes struct {
	*simulator.CustomFieldsManager
	v *VCenter
}

// Reference implements mo.Reference.
func (a *attributes) Reference() ref { return a.Self }

func (a *attributes) update(ctx *simulator.Context, fields []types.CustomFieldDef) {
	ctx.Update(a.CustomFieldsManager, []types.PropertyChange{{Name: "field", Val: fields}})
}

// applies says whether objects of a type have a field.
func applies(f types.CustomFieldDef, kind string) bool {
	return f.ManagedObjectType == "" || f.ManagedObjectType == kind
}

func (a *attributes) find(key int32) int {
	return slices.IndexFunc(a.Field, func(f types.CustomFieldDef) bool { return f.Key == key })
}

// AddCustomFieldDef implements the method of the API.
func (a *attributes) AddCustomFieldDef(ctx *simulator.Context, req *types.AddCustomFieldDef) soap.HasFault {
	def, f := a.add(ctx, req.Name, req.MoType, req.FieldDefPolicy, req.FieldPolicy)
	if f != nil {
		return &methods.AddCustomFieldDefBody{Fault_: simulator.Fault("", f)}
	}
	return &methods.AddCustomFieldDefBody{Res: &types.AddCustomFieldDefResponse{Returnval: def}}
}

func (a *attributes) add(ctx *simulator.Context, name, kind string, defPolicy, policy *types.PrivilegePolicyDef) (types.CustomFieldDef, types.BaseMethodFault) {
	if name == "" {
		return types.CustomFieldDef{}, &types.InvalidArgument{InvalidProperty: "name"}
	}
	key := int32(1)
	for _, f := range a.Field {
		if f.Name == name && (applies(f, kind) || kind == "") {
			return types.CustomFieldDef{}, &types.DuplicateName{Name: name, Object: a.Self}
		}
		key = max(key, f.Key+1)
	}
	def := types.CustomFieldDef{Key: key, Name: name, Type: "string", ManagedObjectType: kind, FieldDefPrivileges: defPolicy, FieldInstancePrivileges: policy}
	a.update(ctx, append(slices.Clone(a.Field), def))
	a.each(ctx, def, func(o mo.Entity, e *mo.ManagedEntity) {
		ctx.Update(o, []types.PropertyChange{{Name: "availableField", Val: append(slices.Clone(e.AvailableField), def)}})
	})
	return def, nil
}

// each visits the objects that have a field, each under its lock.
func (a *attributes) each(ctx *simulator.Context, f types.CustomFieldDef, visit func(mo.Entity, *mo.ManagedEntity)) {
	for _, r := range a.v.vim.AllReference(f.ManagedObjectType) {
		o, ok := r.(mo.Entity)
		if !ok {
			continue
		}
		ctx.WithLock(o, func() { visit(o, o.Entity()) })
	}
}

// RemoveCustomFieldDef implements the method of the API.
func (a *attributes) RemoveCustomFieldDef(ctx *simulator.Context, req *types.RemoveCustomFieldDef) soap.HasFault {
	i := a.find(req.Key)
	if i < 0 {
		return &methods.RemoveCustomFieldDefBody{Fault_: simulator.Fault("", &types.NotFound{})}
	}
	def := a.Field[i]
	a.update(ctx, slices.Delete(slices.Clone(a.Field), i, i+1))
	a.each(ctx, def, func(o mo.Entity, e *mo.ManagedEntity) {
		without := func(vs []types.BaseCustomFieldValue) []types.BaseCustomFieldValue {
			return slices.DeleteFunc(slices.Clone(vs), func(x types.BaseCustomFieldValue) bool { return x.GetCustomFieldValue().Key == def.Key })
		}
		ctx.Update(o, []types.PropertyChange{
			{Name: "availableField", Val: slices.DeleteFunc(slices.Clone(e.AvailableField), func(f types.CustomFieldDef) bool { return f.Key == def.Key })},
			{Name: "customValue", Val: without(e.CustomValue)},
			{Name: "value", Val: without(e.Value)},
		})
	})
	return &methods.RemoveCustomFieldDefBody{Res: &types.RemoveCustomFieldDefResponse{}}
}

// RenameCustomFieldDef implements the method of the API.
func (a *attributes) RenameCustomFieldDef(ctx *simulator.Context, req *types.RenameCustomFieldDef) soap.HasFault {
	refuse := func(f types.BaseMethodFault) soap.HasFault {
		return &methods.RenameCustomFieldDefBody{Fault_: simulator.Fault("", f)}
	}
	i := a.find(req.Key)
	switch {
	case i < 0:
		return refuse(&types.NotFound{})
	case req.Name == "":
		return refuse(&types.InvalidArgument{InvalidProperty: "name"})
	case slices.ContainsFunc(a.Field, func(f types.CustomFieldDef) bool {
		return f.Key != req.Key && f.Name == req.Name && applies(f, a.Field[i].ManagedObjectType)
	}):
		return refuse(&types.DuplicateName{Name: req.Name, Object: a.Self})
	}
	fields := slices.Clone(a.Field)
	fields[i].Name = req.Name
	a.update(ctx, fields)
	a.each(ctx, fields[i], func(o mo.Entity, e *mo.ManagedEntity) {
		own := slices.Clone(e.AvailableField)
		for j := range own {
			if own[j].Key == req.Key {
				own[j].Name = req.Name
			}
		}
		ctx.Update(o, []types.PropertyChange{{Name: "availableField", Val: own}})
	})
	return &methods.RenameCustomFieldDefBody{Res: &types.RenameCustomFieldDefResponse{}}
}

// SetField implements the method of the API. An empty value takes it away.
func (a *attributes) SetField(ctx *simulator.Context, req *types.SetField) soap.HasFault {
	if f := a.set(ctx, req.Entity, req.Key, req.Value); f != nil {
		return &methods.SetFieldBody{Fault_: simulator.Fault("", f)}
	}
	return &methods.SetFieldBody{Res: &types.SetFieldResponse{}}
}

func (a *attributes) set(ctx *simulator.Context, entity ref, key int32, value string) types.BaseMethodFault {
	i := a.find(key)
	if i < 0 || !applies(a.Field[i], entity.Type) {
		return &types.InvalidArgument{InvalidProperty: "key"}
	}
	o, ok := a.v.vim.Get(entity).(mo.Entity)
	if !ok {
		return &types.InvalidArgument{InvalidProperty: "entity"}
	}
	ctx.WithLock(o, func() {
		e := o.Entity()
		put := func(vs []types.BaseCustomFieldValue) []types.BaseCustomFieldValue {
			vs = slices.DeleteFunc(slices.Clone(vs), func(x types.BaseCustomFieldValue) bool { return x.GetCustomFieldValue().Key == key })
			if value == "" {
				return vs
			}
			return append(vs, &types.CustomFieldStringValue{CustomFieldValue: types.CustomFieldValue{Key: key}, Value: value})
		}
		ctx.Update(o, []types.PropertyChange{{Name: "customValue", Val: put(e.CustomValue)}, {Name: "value", Val: put(e.Value)}})
	})
	return nil
}

// attributed answers SetCustomValue for whatever has custom attributes: it
// takes the manager's lock before the object's, as attributes does.
type attributed struct {
	optOut
	ref
	v *VCenter
}

// SetCustomValue implements the method of the API.
func (o *attributed) SetCustomValue(ctx *simulator.Context, req *types.SetCustomValue) soap.HasFault {
	var f types.BaseMethodFault = &types.InvalidArgument{InvalidProperty: "key"}
	o.v.attributes(ctx, func(a *attributes) {
		for _, x := range a.Field {
			if x.Name == req.Key && applies(x, o.Type) {
				f = a.set(ctx, o.ref, x.Key, req.Value)
				return
			}
		}
	})
	if f != nil {
		return &methods.SetCustomValueBody{Fault_: simulator.Fault("", f)}
	}
	return &methods.SetCustomValueBody{Res: &types.SetCustomValueResponse{}}
}

// attributes runs fn with the manager of custom attributes, locked.
func (v *VCenter) attributes(ctx *simulator.Context, fn func(*attributes)) {
	m := v.vim.CustomFieldsManager()
	if m == nil {
		return
	}
	ctx.WithLock(m, func() { fn(&attributes{m, v}) })
}

// SuspendDatastore lets CNS make no new volumes on a datastore, or lets it
// again, by the custom attribute that CNS's tools set.
func (v *VCenter) SuspendDatastore(name string, on bool) error {
	d, err := v.datastoreOf(name)
	if err != nil {
		return err
	}
	value := ""
	if on {
		value = cnsface.SuspendedAttribute
	}
	ctx := v.internal()
	v.attributes(ctx, func(a *attributes) {
		// Unverified: the name of the field; the driver looks at values only.
		i := slices.IndexFunc(a.Field, func(f types.CustomFieldDef) bool {
			return f.Name == cnsface.SuspendedAttribute && applies(f, d.Self.Type)
		})
		var key int32
		if i >= 0 {
			key = a.Field[i].Key
		} else {
			def, f := a.add(ctx, cnsface.SuspendedAttribute, d.Self.Type, nil, nil)
			if f != nil {
				err = &Fault{Fault: f}
				return
			}
			key = def.Key
		}
		if f := a.set(ctx, d.Self, key, value); f != nil {
			err = &Fault{Fault: f}
		}
	})
	return err
}

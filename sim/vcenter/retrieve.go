package vcenter

import (
	"path"
	"reflect"
	"strings"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/copied"
)

// What clients ask of the property collector most is named properties of named
// objects, or of those of a view. vcsim v0.56.0 copies each object that it reads by
// encoding it to XML and decoding that (simulator/object.go:66, deepCopy), which
// costs more than the rest of the call. Such requests are answered here with copies
// of the values; all others are vcsim's, and so are the rules: what is selected and
// in which order, which property is missing, that one without a value is left out
// (simulator/property_collector.go, collect and fieldValue).

// plain says whether a request is of that kind.
func plain(specs []types.PropertyFilterSpec) bool {
	for _, spec := range specs {
		for _, p := range spec.PropSet {
			if p.All != nil && *p.All {
				return false
			}
			for _, name := range p.PathSet {
				if strings.Contains(name, "[") { // an element of an array by its key
					return false
				}
			}
		}
		for _, o := range spec.ObjectSet {
			if len(o.SelectSet) > 1 {
				return false
			}
			for _, s := range o.SelectSet {
				if t, ok := s.(*types.TraversalSpec); !ok || len(t.SelectSet) > 0 {
					return false
				}
			}
		}
	}
	return true
}

// retrieval answers one plain request.
type retrieval struct {
	ctx     *simulator.Context
	specs   []types.PropertyFilterSpec
	read    map[ref]bool
	objects []types.ObjectContent
}

func retrieve(ctx *simulator.Context, specs []types.PropertyFilterSpec) ([]types.ObjectContent, types.BaseMethodFault) {
	r := &retrieval{ctx: ctx, specs: specs, read: map[ref]bool{}}
	var more []ref
	for _, spec := range specs {
		for _, o := range spec.ObjectSet {
			found := false
			ctx.Map.WithLock(ctx, o.Obj, func() {
				var x reflect.Value
				if x, found = r.find(o.Obj); !found {
					return
				}
				if o.SelectSet == nil || o.Skip == nil || !*o.Skip {
					r.add(o.Obj)
				}
				for _, s := range o.SelectSet {
					t := s.(*types.TraversalSpec)
					if t.Skip == nil || !*t.Skip {
						more = append(more, refsAt(x, t.Path)...)
					}
				}
			})
			if !found && !reportsMissing(spec) {
				return nil, &types.ManagedObjectNotFound{Obj: o.Obj}
			}
		}
	}
	for _, o := range more {
		ctx.WithLock(o, func() { r.add(o) })
	}
	return r.objects, nil
}

// find gives the part of an object that is the API's.
func (r *retrieval) find(o ref) (reflect.Value, bool) {
	obj := r.ctx.Session.Get(o)
	if obj == nil {
		return reflect.Value{}, false
	}
	if w, ok := obj.(interface{ Get() mo.Reference }); ok {
		obj = w.Get()
	}
	x := reflect.ValueOf(obj).Elem()
	for path.Base(x.Type().PkgPath()) != "mo" {
		if x = x.Field(0); x.Kind() == reflect.Pointer {
			x = x.Elem()
		}
	}
	return x, true
}

// add reads an object, once. Its lock is held.
func (r *retrieval) add(o ref) {
	if r.read[o] {
		return
	}
	x, ok := r.find(o)
	if !ok {
		return
	}
	r.read[o] = true
	content := types.ObjectContent{Obj: o}
	seen := map[string]bool{}
	selected := false
	for _, spec := range r.specs {
		for _, p := range spec.PropSet {
			if p.Type != o.Type && p.Type != x.Type().Name() {
				if f, ok := x.Type().FieldByName(p.Type); !ok || !f.Anonymous { // e.g. ManagedEntity
					continue
				}
			}
			selected = true
			for _, name := range p.PathSet {
				if seen[name] {
					continue
				}
				seen[name] = true
				v, ok := valueAt(x, name)
				switch {
				case !ok:
					content.MissingSet = append(content.MissingSet, types.MissingProperty{Path: name, Fault: types.LocalizedMethodFault{Fault: &types.InvalidProperty{Name: name}}})
				case v.IsValid():
					content.PropSet = append(content.PropSet, types.DynamicProperty{Name: name, Val: copied.Of(asArray(v))})
				}
			}
		}
	}
	if selected {
		r.objects = append(r.objects, content)
	}
}

// valueAt follows a path of properties. The value is not valid where there is none;
// ok is false where there is no such property.
func valueAt(x reflect.Value, name string) (v reflect.Value, ok bool) {
	for more := true; more; {
		var field string
		field, name, more = strings.Cut(name, ".")
		for x.Kind() == reflect.Interface || x.Kind() == reflect.Pointer {
			x = x.Elem()
		}
		if x.Kind() != reflect.Struct { // a field of an array can't be named
			return reflect.Value{}, false
		}
		if field == "" {
			return reflect.Value{}, false
		}
		if x = x.FieldByName(strings.ToUpper(field[:1]) + field[1:]); !x.IsValid() {
			return reflect.Value{}, false
		}
		switch x.Kind() {
		case reflect.Pointer, reflect.Interface:
			if x.IsNil() {
				return reflect.Value{}, true
			}
		case reflect.String:
			if x.Len() == 0 {
				return reflect.Value{}, true
			}
		}
	}
	for x.Kind() == reflect.Interface || x.Kind() == reflect.Pointer {
		x = x.Elem()
	}
	return x, true
}

// refsAt are the objects that a property refers to.
func refsAt(x reflect.Value, name string) []ref {
	v, ok := valueAt(x, name)
	if !ok || !v.IsValid() {
		return nil
	}
	switch v := v.Interface().(type) {
	case ref:
		return []ref{v}
	case []ref:
		return v
	}
	return nil
}

// asArray wraps a slice in the type that it has as the value of a property, e.g.
// ArrayOfVirtualDevice.
func asArray(v reflect.Value) reflect.Value {
	if v.Kind() != reflect.Slice {
		return v
	}
	elem := v.Type().Elem()
	name := strings.TrimPrefix(elem.Name(), "Base")
	if elem.PkgPath() == "" { // of Go
		name = map[reflect.Kind]string{reflect.String: "String", reflect.Uint8: "Byte", reflect.Int16: "Short", reflect.Int32: "Int", reflect.Int64: "Long"}[elem.Kind()]
	}
	t, ok := vimType("ArrayOf" + name)
	if !ok {
		return v
	}
	a := reflect.New(t).Elem()
	f := a.FieldByName(name)
	f.Set(v.Convert(f.Type()))
	return a
}

// Package copied copies values of the API with all that they point to.
package copied

import (
	"reflect"
	"sync"
	"time"
)

// Of returns a copy of a value that shares nothing with it that can be changed.
// Structs of the API are trees: pointers, slices and interfaces of structs with
// exported fields.
func Of(v reflect.Value) any {
	out := reflect.New(v.Type()).Elem()
	into(out, v)
	return out.Interface()
}

// into sets dst, which is zero, to a copy of src.
func into(dst, src reflect.Value) {
	if isPlain(src.Type()) {
		dst.Set(src)
		return
	}
	switch src.Kind() {
	case reflect.Pointer:
		if !src.IsNil() {
			p := reflect.New(src.Type().Elem())
			into(p.Elem(), src.Elem())
			dst.Set(p)
		}
	case reflect.Interface:
		if !src.IsNil() {
			x := reflect.New(src.Elem().Type()).Elem()
			into(x, src.Elem())
			dst.Set(x)
		}
	case reflect.Slice:
		if src.IsNil() {
			return
		}
		s := reflect.MakeSlice(src.Type(), src.Len(), src.Len())
		if isPlain(src.Type().Elem()) {
			reflect.Copy(s, src)
		} else {
			for i := range src.Len() {
				into(s.Index(i), src.Index(i))
			}
		}
		dst.Set(s)
	case reflect.Struct:
		for i := range src.NumField() {
			into(dst.Field(i), src.Field(i))
		}
	default:
		panic("copied: a " + src.Type().String() + " is no value of the API")
	}
}

var plain sync.Map // of reflect.Type: whether an assignment copies it

func isPlain(t reflect.Type) bool {
	if p, ok := plain.Load(t); ok {
		return p.(bool)
	}
	p := true
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Slice, reflect.Map, reflect.Array, reflect.Chan, reflect.Func, reflect.UnsafePointer:
		p = false
	case reflect.Struct:
		if t == reflect.TypeFor[time.Time]() {
			break // never changed in place
		}
		for i := range t.NumField() {
			p = p && isPlain(t.Field(i).Type)
		}
	}
	plain.Store(t, p)
	return p
}

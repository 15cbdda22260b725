package store

import (
	"crypto/sha256"
	"fmt"
	"iter"
	"maps"
	"reflect"

	"k8s.io/apimachinery/pkg/api/equality"
)

// shareStatus gives dst src's Status, for kinds that have one. Both are stored or
// about to be: what they share nobody changes.
func shareStatus(dst, src Object) {
	d, s := reflect.ValueOf(dst).Elem().FieldByName("Status"), reflect.ValueOf(src).Elem().FieldByName("Status")
	if d.IsValid() && s.IsValid() {
		d.Set(s)
	}
}

// shallow is another object that shares what o refers to: fields of it may be set,
// but what they refer to must not be changed.
func shallow(o Object) Object {
	v := reflect.New(reflect.TypeOf(o).Elem())
	v.Elem().Set(reflect.ValueOf(o).Elem())
	return v.Interface().(Object)
}

func specEqual(a, b Object) bool {
	x, y := reflect.ValueOf(a).Elem().FieldByName("Spec"), reflect.ValueOf(b).Elem().FieldByName("Spec")
	return !x.IsValid() || equality.Semantic.DeepEqual(x.Interface(), y.Interface())
}

// assign overwrites *dst with a copy of *src.
func assign(dst, src Object) {
	reflect.ValueOf(dst).Elem().Set(reflect.ValueOf(src.DeepCopyObject()).Elem())
}

func mapKeys[V any](m map[string]V) iter.Seq[string] { return maps.Keys(m) }

// deterministicUUID is a version 4 shaped UUID that depends on its arguments only.
func deterministicUUID(seed uint64, kind, key string, n int) string {
	h := sha256.Sum256(fmt.Appendf(nil, "%d|%s|%s|%d", seed, kind, key, n))
	h[6] = h[6]&0x0f | 0x40
	h[8] = h[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16])
}

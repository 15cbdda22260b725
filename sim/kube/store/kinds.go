package store

import (
	"reflect"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// NewObject returns an empty object of a kind that the store knows, with its
// apiVersion and kind set, or nil. E.g. NewObject("v1", "Pod").
func NewObject(apiVersion, kind string) Object {
	for t, k := range kinds {
		if k.gvk.GroupVersion().String() == apiVersion && k.kind == kind {
			o := reflect.New(t).Interface().(Object)
			o.GetObjectKind().SetGroupVersionKind(k.gvk)
			return o
		}
	}
	return nil
}

// Kinds are the kinds that the store knows, as "<apiVersion> <kind>", sorted.
func Kinds() []string {
	var out []string
	for _, k := range kinds {
		out = append(out, k.gvk.GroupVersion().String()+" "+k.kind)
	}
	slices.Sort(out)
	return out
}

// GroupKind is the group and kind of an object.
func GroupKind(o Object) schema.GroupKind { return infoFor(o).gvk.GroupKind() }

// Namespaced says whether objects of o's kind live in a namespace.
func Namespaced(o Object) bool { return infoFor(o).namespaced }

// GetLike is Get for an object whose kind is known at run time only: it
// returns a copy of the stored object of o's kind, namespace and name.
func (c *Client) GetLike(o Object) (Object, error) {
	k := infoFor(o)
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	st, ok := c.s.objectsOf(c.actor)[k.kind][Key(o)]
	if !ok {
		return nil, apierrors.NewNotFound(k.resource, o.GetName())
	}
	return st.DeepCopyObject().(Object), nil
}

// WithoutStatus is a copy of an object with an empty status.
func WithoutStatus(o Object) Object {
	o = o.DeepCopyObject().(Object)
	if s := reflect.ValueOf(o).Elem().FieldByName("Status"); s.IsValid() {
		s.SetZero()
	}
	return o
}

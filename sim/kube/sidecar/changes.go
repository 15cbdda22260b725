package sidecar

import "github.com/csilab/csilab/sim/kube/store"

// Changes remembers objects between events, as an informer does, and keys a
// change by the object only where relevant says so. The first sight of an
// object is always relevant. Use the result as controller.Config.Keys of one
// controller that watches this kind; it is not safe for concurrent use.
func Changes[P store.Object](relevant func(old, new P) bool) func(store.Event) []string {
	last := map[string]P{}
	return func(e store.Event) []string {
		o, ok := e.Object.(P)
		if !ok {
			return nil
		}
		k := store.Key(o)
		if e.Type == store.Deleted {
			delete(last, k)
			return nil
		}
		old, seen := last[k]
		last[k] = o
		if seen && old.GetUID() == o.GetUID() && !relevant(old, o) {
			return nil
		}
		return []string{k}
	}
}

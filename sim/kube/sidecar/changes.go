package sidecar

import (
	"context"
	"sync"
	"time"

	"github.com/csilab/csilab/sim/kube/store"
)

// Filtered makes Keys and Reconcile of a controller that works on a changed
// object only where relevant says so. It remembers objects between events, as
// an informer does; the first sight of an object is always relevant. An object
// that is there still is looked at again at the resync interval (0 is never),
// whatever changed in it. Use the pair for one controller of one kind.
func Filtered[P store.Object](relevant func(old, new P) bool, resync time.Duration, rec func(context.Context, string) (time.Duration, error)) (
	keys func(store.Event) []string, reconcile func(context.Context, string) (time.Duration, error)) {
	var mu sync.Mutex
	last := map[string]P{}
	keys = func(e store.Event) []string {
		o, ok := e.Object.(P)
		if !ok {
			return nil
		}
		k := store.Key(o)
		mu.Lock()
		defer mu.Unlock()
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
	reconcile = func(ctx context.Context, key string) (time.Duration, error) {
		after, err := rec(ctx, key)
		if err != nil || after > 0 {
			return after, err
		}
		mu.Lock()
		defer mu.Unlock()
		if _, ok := last[key]; ok {
			return resync, nil
		}
		return 0, nil
	}
	return keys, reconcile
}

package store

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
)

// view is what a client reads: the store itself, or what an actor that is cut
// off knew when that happened. The objects in it are never changed in place.
type view map[string]map[string]Object

// cut is an actor that the API server is out of reach for.
type cut struct {
	known  view
	healed chan struct{}
}

// Partition cuts an actor (as Store.Client names it) off from the API server:
// it reads what it knew at that moment, as from the caches of its informers,
// and its watches stand still. Its writes are not stopped here: they pass the
// hop kube, where a rule can hold them. heal lets the watches tell what
// happened meanwhile; it may be called more than once. A second partition of
// the same actor goes on with what it knew at the first.
func (s *Store) Partition(actor string) (heal func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.cuts[actor]
	if c == nil {
		known := view{}
		for kind, objects := range s.objects {
			known[kind] = maps.Clone(objects)
		}
		c = &cut{known, make(chan struct{})}
		s.cuts[actor] = c
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.cuts[actor] == c {
			delete(s.cuts, actor)
			close(c.healed)
			for w := range s.watches { // who waits for something looks again
				select {
				case w.sig <- struct{}{}:
				default:
				}
			}
		}
	}
}

// objectsOf is what an actor reads. The lock is held.
func (s *Store) objectsOf(actor string) view {
	if c := s.cuts[actor]; c != nil {
		return c.known
	}
	return s.objects
}

// reach returns a channel that closes when an actor that is cut off is not any
// more; nil when it is not.
func (s *Store) reach(actor string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.cuts[actor]; c != nil {
		return c.healed
	}
	return nil
}

// listBy is ListBy for an actor that is cut off, whose caches have no index
// here. The lock is held.
func (v view) listBy(ix Index, value string) (out []Object) {
	x := indexers[ix]
	for _, o := range v[x.kind] {
		if slices.Contains(x.values(o), value) {
			out = append(out, o)
		}
	}
	return out
}

// kindOfIndex panics when an index is of another kind than T.
func kindOfIndex[T any](ix Index) kindInfo {
	k := infoOf(reflect.TypeFor[T]())
	if indexers[ix].kind != k.kind {
		panic(fmt.Sprintf("store: index %q is of kind %q, not %q", ix, indexers[ix].kind, k.kind))
	}
	return k
}

package store

import (
	"slices"
)

// Backup is what a store held at one moment, as a snapshot of etcd does.
type Backup struct{ objects map[string]map[string]Object }

// Save takes a backup.
func (s *Store) Save() Backup {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := Backup{map[string]map[string]Object{}}
	for kind, objects := range s.objects {
		b.objects[kind] = map[string]Object{}
		for k, o := range objects {
			b.objects[kind][k] = o.DeepCopyObject().(Object)
		}
	}
	return b
}

// Restore gives the store what a backup holds, uids and all, whatever has
// happened since; Events stay. Those who watch see the difference as changes.
// Resource versions go on, as with `etcdutl snapshot restore --bump-revision`
// (etcd-io/etcd#16029):
// were they to go back, no watch would see anything before who watches starts
// anew.
func (s *Store) Restore(b Backup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for kind, objects := range s.objects {
		if kind == "Event" {
			continue
		}
		for _, k := range sortedNames(objects) {
			if b.objects[kind][k] == nil {
				o := objects[k].DeepCopyObject().(Object)
				s.put(Deleted, infoFor(o), o)
			}
		}
	}
	for kind, objects := range b.objects {
		if kind == "Event" {
			continue
		}
		for _, k := range sortedNames(objects) {
			o := objects[k].DeepCopyObject().(Object)
			have, t := s.objects[kind][k], Added
			if have != nil {
				if have.GetResourceVersion() == o.GetResourceVersion() {
					continue
				}
				t = Modified
			}
			s.put(t, infoFor(o), o)
		}
	}
}

func sortedNames(m map[string]Object) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

package array

import "iter"

// table keeps things by key, in the order in which they came. What is dropped
// leaves a nil in the order until half of it is nil, so that a drop costs no
// copy.
type table[K comparable, T any] struct {
	rows  map[K]*row[K, T]
	order []*row[K, T]
	dead  int
}

type row[K comparable, T any] struct {
	key K
	val *T
	pos int
}

func newTable[K comparable, T any]() table[K, T] {
	return table[K, T]{rows: map[K]*row[K, T]{}}
}

func (t *table[K, T]) get(key K) (*T, bool) {
	if r, ok := t.rows[key]; ok {
		return r.val, true
	}
	return nil, false
}

func (t *table[K, T]) has(key K) bool { _, ok := t.rows[key]; return ok }

func (t *table[K, T]) len() int { return len(t.rows) }

func (t *table[K, T]) put(key K, v *T) {
	r := &row[K, T]{key, v, len(t.order)}
	t.rows[key] = r
	t.order = append(t.order, r)
}

func (t *table[K, T]) rename(old, key K) {
	r := t.rows[old]
	delete(t.rows, old)
	r.key = key
	t.rows[key] = r
}

func (t *table[K, T]) drop(key K) {
	r, ok := t.rows[key]
	if !ok {
		return
	}
	delete(t.rows, key)
	t.order[r.pos] = nil
	t.dead++
	if t.dead > 64 && t.dead > len(t.order)/2 {
		live := make([]*row[K, T], 0, len(t.rows))
		for _, r := range t.order {
			if r != nil {
				r.pos = len(live)
				live = append(live, r)
			}
		}
		t.order, t.dead = live, 0
	}
}

// all yields everything, oldest first. The table may not change meanwhile.
func (t *table[K, T]) all() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for _, r := range t.order {
			if r != nil && !yield(r.val) {
				return
			}
		}
	}
}

// many is an index that finds several things by one key.
type many[K, V comparable] map[K]map[V]struct{}

func (m many[K, V]) add(key K, v V) {
	s, ok := m[key]
	if !ok {
		s = map[V]struct{}{}
		m[key] = s
	}
	s[v] = struct{}{}
}

func (m many[K, V]) drop(key K, v V) {
	s := m[key]
	delete(s, v)
	if len(s) == 0 {
		delete(m, key)
	}
}

// least picks the one of a set whose text comes first: what is told must not
// depend on the order of a map.
func least[V comparable](s map[V]struct{}, text func(V) string) (v V, ok bool) {
	for w := range s {
		if !ok || text(w) < text(v) {
			v, ok = w, true
		}
	}
	return v, ok
}

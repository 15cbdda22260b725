package store

// Has says whether an object of o's kind, namespace and name is there; with a
// uid in o, whether it is that very one.
func (s *Store) Has(o Object) bool {
	k := infoFor(o)
	s.mu.Lock()
	defer s.mu.Unlock()
	have, ok := s.objects[k.kind][Key(o)]
	return ok && (o.GetUID() == "" || o.GetUID() == have.GetUID())
}

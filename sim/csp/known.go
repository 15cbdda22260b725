package csp

// What is a volume of the array to the provider?

// IDOf is the id of the volume or snapshot that a virtual volume is, by its
// name and comment; false where the provider did not make it.
func IDOf(name, comment string) (id string, ok bool) {
	r, ok := decodeRecord(comment)
	if !ok {
		return "", false
	}
	if r.ID == "" {
		return name, true
	}
	return r.ID, true
}

// IsSnapshot says whether a virtual volume with this comment is a snapshot of
// the provider's.
func IsSnapshot(comment string) bool {
	r, ok := decodeRecord(comment)
	return ok && r.Kind == kindSnapshot
}

// ForgetTokens makes all tokens that were given unknown, as a restart of the
// provider does.
func (s *Server) ForgetTokens() {
	s.tokens.mu.Lock()
	defer s.tokens.mu.Unlock()
	clear(s.tokens.byKey)
}

// Tokens are the session tokens that were given and not dropped, in no order.
func (s *Server) Tokens() (out []string) {
	s.tokens.mu.Lock()
	defer s.tokens.mu.Unlock()
	for key := range s.tokens.byKey {
		out = append(out, key)
	}
	return out
}

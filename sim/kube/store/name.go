package store

import (
	"crypto/sha256"
	"fmt"
)

// How a name is made of a prefix (k8s v1.37.2 apiserver pkg/storage/names/generate.go,
// with the alphabet of apimachinery pkg/util/rand/rand.go).
const (
	suffixLength    = 5
	maxPrefixLength = 63 - suffixLength
	suffixAlphabet  = "bcdfghjklmnpqrstvwxz2456789"
	// apiserver pkg/registry/generic/registry/store.go, maxNameGenerationCreateAttempts
	nameAttempts = 8
)

// SetName gives an object without a name one from its metadata.generateName, as
// an API server does before it validates: the prefix, cut to 58 characters, and 5
// that depend on seed, kind, namespace, prefix and occurrence only. A name that is
// given stays; where neither is, there is none afterwards.
func (c *Client) SetName(o Object) {
	if o.GetName() != "" || o.GetGenerateName() == "" {
		return
	}
	s, k := c.s, infoFor(o)
	s.mu.Lock()
	defer s.mu.Unlock()
	for range nameAttempts {
		name := s.generate(k.kind, o.GetNamespace(), o.GetGenerateName())
		o.SetName(name)
		if _, taken := s.objects[k.kind][Key(o)]; !taken {
			return
		}
	}
}

func (s *Store) generate(kind, ns, prefix string) string {
	id := "name of " + kind + "|" + key(ns, prefix)
	s.uids[id]++
	h := sha256.Sum256(fmt.Appendf(nil, "%d|%s|%d", s.seed, id, s.uids[id]))
	suffix := make([]byte, suffixLength)
	for i := range suffix {
		suffix[i] = suffixAlphabet[int(h[i])%len(suffixAlphabet)]
	}
	return prefix[:min(len(prefix), maxPrefixLength)] + string(suffix)
}

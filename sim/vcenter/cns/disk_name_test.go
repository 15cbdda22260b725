package cns

import (
	"regexp"
	"testing"

	"pgregory.net/rapid"
)

// A file has a name of its own, which leads back to its disk; what is no id of
// a vCenter's names its file itself.
func TestBackingName(t *testing.T) {
	id := rapid.StringMatching(`[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}`)
	uuid4 := regexp.MustCompile(`^[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}$`)
	names := map[string]string{}
	rapid.Check(t, func(t *rapid.T) {
		id := id.Draw(t, "id")
		name := BackingName(id)
		if !uuid4.MatchString(name) || dashed(name) == id || diskOfName(name) != id {
			t.Fatalf("%s lies at %s, which is of %s", id, name, diskOfName(name))
		}
		if other, ok := names[name]; ok && other != id {
			t.Fatalf("%s and %s lie at %s", id, other, name)
		}
		names[name] = id
	})
	for _, id := range []string{"a", "", "901E87EB-C2BD-41E9-806F-005056A0C9A0", "901e87eb-c2bd-41e9-806f005056a0c9a0", "901e87eb-c2bd-41e9-806f-005056a0c9ag"} {
		if name := BackingName(id); name != id || diskOfName(name) != id {
			t.Errorf("%q lies at %q", id, name)
		}
	}
}

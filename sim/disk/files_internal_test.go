package disk

import "testing"

// FuzzUnescape: names in a directory are foreign input.
func FuzzUnescape(f *testing.F) {
	for _, s := range []string{"", "a", "%41", "%4", "%zz", "A", "a@b", "%61"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		id, err := unescape(name)
		if err == nil && escape(id) != name {
			t.Fatalf("%q became %q became %q", name, id, escape(id))
		}
		if back, err := unescape(escape(name)); name != "" && (err != nil || back != name) {
			t.Fatalf("%q: %q %v", name, back, err)
		}
	})
}

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// endless is a device that never ends, as /dev/zero.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestReadInput(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a.yaml")
	if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, want string }{{name, "x"}, {"-", "in"}} {
		if b, err := readInput(strings.NewReader("in"), c.name); err != nil || string(b) != c.want {
			t.Errorf("%s: %q, %v", c.name, b, err)
		}
	}
	if _, err := readInput(endless{}, "-"); err == nil || err.Error() != "is larger than 16 MiB" {
		t.Errorf("without end: %v", err)
	}
	if _, err := readInput(nil, name+"x"); err == nil {
		t.Error("a file that isn't there was read")
	}
}

package host

import (
	"slices"
	"testing"
)

// TestLeavingDisk: a disk that is being pulled is on the list until its I/O
// fails; who waits for it to be gone may then rely on that.
func TestLeavingDisk(t *testing.T) {
	h := &Real{disks: []*realDisk{{wwn: "a"}, {wwn: "b"}}}
	if _, err := h.take("a", true); err != nil {
		t.Fatal(err)
	}
	if got := h.Disks(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("while a is pulled: %q", got)
	}
	if _, err := h.take("a", true); err == nil {
		t.Error("pulled twice")
	}
}

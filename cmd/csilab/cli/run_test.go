package cli

import "testing"

// One backend has all cells of its sweeps; a first look at several doesn't need
// all of each.
func TestCellsOfSweeps(t *testing.T) {
	for _, c := range []struct {
		every, backend, want int
	}{
		{0, 0, 0}, {0, 1, sampled}, {0, 2, sampled},
		{1, 0, 1}, {1, 1, 1}, {7, 0, 7}, {7, 1, 7},
	} {
		if got := (runFlags{every: c.every}).cells(c.backend); got != c.want {
			t.Errorf("--every %d, backend %d: every %d. cell, want %d", c.every, c.backend, got, c.want)
		}
	}
}

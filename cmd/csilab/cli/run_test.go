package cli

import "testing"

// One backend has all cells of its sweeps; a first look at several doesn't need
// all of each.
func TestCellsOfSweeps(t *testing.T) {
	for _, c := range []struct {
		every, backends, want int
	}{
		{0, 1, 0}, {0, 2, sampled}, {0, 3, sampled},
		{1, 1, 1}, {1, 2, 1}, {7, 1, 7}, {7, 2, 7},
	} {
		if got := (runFlags{every: c.every}).cells(c.backends); got != c.want {
			t.Errorf("--every %d, %d backends: every %d. cell, want %d", c.every, c.backends, got, c.want)
		}
	}
}

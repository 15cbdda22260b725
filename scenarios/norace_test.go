//go:build !race

package scenarios_test

// sweepEvery 1 sweeps all cells.
const sweepEvery = 1

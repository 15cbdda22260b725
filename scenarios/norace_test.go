//go:build !race

package scenarios_test

// sweepEvery 1 sweeps all cells.
const sweepEvery = 1

// slow is by what limits are stretched.
const slow = 1

// limit of a scenario: the default.
const limit = 0

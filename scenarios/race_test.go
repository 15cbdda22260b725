//go:build race

package scenarios_test

// sweepEvery limits sweeps under the race detector, which makes a cell several
// times as dear: `go test` and `csilab run` sweep all cells.
const sweepEvery = 6

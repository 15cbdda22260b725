//go:build race

package scenarios_test

import "time"

// sweepEvery limits sweeps under the race detector, which makes a cell several
// times as dear: `go test` sweeps all cells on vSphere, `csilab run --every 1` on
// each backend.
const sweepEvery = 24

// slow is by what the race detector stretches limits.
const slow = 4

// limit of a scenario.
const limit = 9 * time.Minute

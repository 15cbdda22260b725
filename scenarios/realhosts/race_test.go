//go:build race

package realhosts_test

import "time"

// slow is by what the race detector stretches limits.
const slow = 4

// limit of a scenario.
const limit = 9 * time.Minute

//go:build !race

package realhosts_test

// slow is by what limits are stretched.
const slow = 1

// limit of a scenario: the default.
const limit = 0

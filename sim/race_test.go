//go:build race

package sim_test

// raced says that the race detector makes everything several times as dear.
const raced = true

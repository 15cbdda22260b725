//go:build race

package sweep_test

const raced = true

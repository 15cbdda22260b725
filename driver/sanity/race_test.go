//go:build race

package sanity_test

const raced = true

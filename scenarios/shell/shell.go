// Package shell writes command lines that a POSIX shell reads as they were meant.
package shell

import (
	"regexp"
	"strings"
)

// plain are words that a shell takes as they are.
var plain = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// Word is s as one word: in single quotes where it needs any.
func Word(s string) string {
	if plain.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

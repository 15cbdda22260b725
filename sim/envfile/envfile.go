// Package envfile writes the environment of a client as NAME=value lines, which
// a shell and simple readers understand.
package envfile

import (
	"fmt"
	"strings"

	"github.com/csilab/csilab/sim/wholefile"
)

// Write writes variables (names and values) to a file that only its owner reads:
// they may hold passwords. It appears by rename, complete, so that a script can
// wait for it.
func Write(path string, vars [][2]string) error {
	return wholefile.Write(path, Lines(vars), 0o600)
}

// Lines are variables (names and values) as Write writes them.
func Lines(vars [][2]string) []byte {
	var b strings.Builder
	for _, kv := range vars {
		fmt.Fprintf(&b, "%s=%s\n", kv[0], quote(kv[1]))
	}
	return []byte(b.String())
}

// quote quotes a value only where a shell needs it, so that simple readers of
// NAME=value lines get along too.
func quote(s string) string {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@%+,=") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

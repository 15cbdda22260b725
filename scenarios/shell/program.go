package shell

import (
	"os"
	"path/filepath"
	"strings"
)

// Program is how csilab is called again: as it was called, or by go run where it
// was, and in tests, whose binary is another.
func Program() string { return program(os.Args[0]) }

func program(called string) string {
	name := strings.TrimSuffix(filepath.Base(called), ".exe")
	if name != "csilab" || strings.Contains(filepath.ToSlash(called), "/go-build") {
		return "go run ./cmd/csilab"
	}
	return Word(called)
}

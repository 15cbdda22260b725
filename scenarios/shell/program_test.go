package shell

import "testing"

func TestProgram(t *testing.T) {
	for called, want := range map[string]string{
		"csilab":                                 "csilab",
		"bin/csilab":                             "bin/csilab",
		"/home/me/my bin/csilab":                 "'/home/me/my bin/csilab'",
		"/tmp/go-build123/b001/exe/csilab":       "go run ./cmd/csilab",
		"/tmp/go-build123/b001/scenarios.test":   "go run ./cmd/csilab",
		"/root/.cache/go-build/ab/abcd-d/csilab": "go run ./cmd/csilab", // what go run keeps from Go 1.24 on
	} {
		if got := program(called); got != want {
			t.Errorf("called as %s: %s, want %s", called, got, want)
		}
	}
}

package host_test

import (
	"context"
	"os"
	"testing"

	"github.com/csilab/csilab/sim/host"
)

func realSupported() error { return host.RealSupported() }

func newReal(t testing.TB, name, dir string) host.Host {
	t.Helper()
	h, err := host.NewReal(context.Background(), host.RealConfig{Name: name, Seed: 1, Dir: dir})
	must(t, err)
	return h
}

func shortTempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cl")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	return dir
}

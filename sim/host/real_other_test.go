//go:build !linux

package host_test

import (
	"testing"

	"github.com/csilab/csilab/sim/host"
)

func realSupported() error { return host.RealSupported() }

func newReal(testing.TB, string, string) host.Host { return nil }

func newQueueing(testing.TB, host.RealConfig) host.Host { return nil }

func shortTempDir(t testing.TB) string { return t.TempDir() }

// Package simtest gives Go tests a lab.
//
//	func TestMain(m *testing.M) { simtest.Main(m) }
//
//	func TestMove(t *testing.T) {
//		lab := simtest.New(t, simtest.Nodes(3))
//		…
//		lab.Check(t.Context())
//	}
package simtest

import (
	"context"
	"flag"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/csilab/csilab/sim"
)

// Option changes the options of a lab.
type Option func(*sim.Options)

// Nodes sets how many nodes there are.
func Nodes(n int) Option { return func(o *sim.Options) { o.Nodes = n } }

// Zones gives the nodes zones, in turn.
func Zones(z ...string) Option { return func(o *sim.Options) { o.Zones = z } }

// OnArray takes an HPE array in place of a vCenter; protocol is iscsi or fc.
func OnArray(protocol string) Option {
	return func(o *sim.Options) { o.Backend, o.Protocol = sim.HPE, protocol }
}

// Seed sets the seed.
func Seed(s uint64) Option { return func(o *sim.Options) { o.Seed = s } }

// MemoryHosts takes nodes in memory, whatever this machine can.
func MemoryHosts() Option { return func(o *sim.Options) { o.Host = "memory" } }

// RealHosts takes nodes with real mounts; the test is skipped where this
// machine can't.
func RealHosts() Option { return func(o *sim.Options) { o.Host = "real" } }

// RealTimers takes the timers of real kubelets and controllers.
func RealTimers() Option { return func(o *sim.Options) { o.Timers = "real" } }

// Bubble says that the test runs in a testing/synctest bubble.
func Bubble() Option { return func(o *sim.Options) { o.Bubble = true } }

// With changes any option.
func With(f func(*sim.Options)) Option { return f }

// Main is TestMain for packages that start labs: real hosts are child
// processes of the test binary.
func Main(m *testing.M) {
	sim.Main()
	os.Exit(m.Run())
}

// New starts a lab whose nodes are ready and whose storage classes are those
// of fixtures/manifests/classes.yaml. It is closed at the end of the test.
// When the test fails, seed and ledger are kept and named.
func New(t testing.TB, opts ...Option) *sim.Lab {
	t.Helper()
	o := sim.Options{}
	if testing.Verbose() {
		o.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
	}
	for _, f := range opts {
		f(&o)
	}
	o = o.WithDefaults()
	if !o.Bubble {
		if err := sim.Preflight(o); err != nil {
			t.Skip(err)
		}
	}
	// Not the test's context: in a bubble nothing from outside may come in.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	l, err := sim.Start(ctx, o)
	if err != nil {
		t.Fatalf("start of the lab: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			if f, err := l.WriteLedger(t.ArtifactDir(), "lab"); err == nil {
				if a := flag.Lookup("test.artifacts"); a == nil || a.Value.String() != "true" {
					f = "with `go test -artifacts`"
				}
				t.Logf("seed %d, %s hosts, %s timers; ledger: %s", o.Seed, o.Host, o.Timers, f)
			}
		}
		if err := l.Close(); err != nil {
			t.Errorf("close of the lab: %v", err)
		}
	})
	if err := l.NodesReady(ctx); err != nil {
		t.Fatal(err)
	}
	if err := l.Apply(ctx, l.Classes()); err != nil {
		t.Fatal(err)
	}
	return l
}

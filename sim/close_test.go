package sim_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/host"
)

// stateRoot is a directory of the test's own for labs, with a path that is
// short enough for sockets.
func stateRoot(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "csl")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func mustBeEmpty(t testing.TB, dir string) {
	t.Helper()
	es, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		t.Fatal(err)
	}
	for _, e := range es {
		t.Errorf("left behind: %s", filepath.Join(dir, e.Name()))
	}
}

// A lab that is closed in the middle of its work leaves no goroutine and no
// file.
func TestCloseLeavesNothing(t *testing.T) {
	for _, kind := range []string{"memory", "real"} {
		t.Run(kind, func(t *testing.T) {
			if err := host.RealSupported(); err != nil && kind == "real" {
				t.Skip(err)
			}
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			root := stateRoot(t)
			ctx := bounded(t)
			lab, err := sim.Start(ctx, sim.Options{Host: kind, StateRoot: root})
			must(t, err)
			defer lab.Close()
			must(t, lab.NodesReady(ctx))
			must(t, lab.Apply(ctx, lab.Classes()))
			start(ctx, t, lab, "app", "node-1", "data")
			must(t, lab.Write(ctx, "app", "/data/a", "unfinished"))
			must(t, lab.Create(ctx, claim("other"), pod("other", "node-2", "other")))
			must(t, lab.Close())
			must(t, lab.Close())
			mustBeEmpty(t, root)
			if _, err := lab.Running(ctx, "other"); err == nil {
				t.Error("a pod runs in a closed lab")
			}
		})
	}
}

// A lab that can't start leaves nothing either.
func TestFailedStartLeavesNothing(t *testing.T) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for _, tc := range []struct {
		name  string
		ctx   context.Context
		opts  func(root string) sim.Options
		says  string
		wants func() error // what this machine needs for it
	}{
		{"no nodes", context.Background(), func(root string) sim.Options {
			return sim.Options{Nodes: -1, Host: "memory", StateRoot: root}
		}, "Options.Nodes is -1", nil},
		{"unknown host", context.Background(), func(root string) sim.Options {
			return sim.Options{Host: "vmware", StateRoot: root}
		}, `Options.Host is "vmware"`, nil},
		{"a name that no node can have", context.Background(), func(root string) sim.Options {
			return sim.Options{Backend: sim.HPE, NodePrefix: "Node_", Host: "memory", StateRoot: root}
		}, `Options.NodePrefix is "Node_"`, nil},
		{"hosts of no array", context.Background(), func(root string) sim.Options {
			return sim.Options{KeepHosts: true, Host: "memory", StateRoot: root}
		}, "Options.KeepHosts is true", nil},
		{"a file in place of the state directory", context.Background(), func(root string) sim.Options {
			file := filepath.Join(root, "occupied")
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				panic(err)
			}
			return sim.Options{Host: "memory", StateRoot: filepath.Join(file, "labs")}
		}, "state directory", nil},
		{"a context that has ended, memory", ended, func(root string) sim.Options {
			return sim.Options{Host: "memory", StateRoot: root}
		}, "context canceled", nil},
		{"a context that has ended, real", ended, func(root string) sim.Options {
			return sim.Options{Host: "real", StateRoot: root}
		}, "context canceled", host.RealSupported},
		{"a directory that real nodes hide", context.Background(), func(root string) sim.Options {
			return sim.Options{Host: "real", StateRoot: "/run/" + filepath.Base(root)}
		}, "must not be below /run", host.RealSupported},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.wants != nil && tc.wants() != nil {
				t.Skip(tc.wants())
			}
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			root := stateRoot(t)
			opts := tc.opts(root)
			lab, err := sim.Start(tc.ctx, opts)
			if err == nil {
				must(t, lab.Close())
				t.Fatal("started")
			}
			if !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, want %q", err, tc.says)
			}
			t.Log(err)
			os.Remove(filepath.Join(root, "occupied"))
			mustBeEmpty(t, opts.StateRoot)
			os.Remove(opts.StateRoot)
			mustBeEmpty(t, root)
		})
	}
}

// victim is a lab with a pod that writes for ever.
func victim(root string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	check := func(err error) {
		if err != nil {
			println(err.Error())
			os.Exit(1)
		}
	}
	lab, err := sim.Start(ctx, sim.Options{Host: "real", StateRoot: root})
	check(err)
	check(lab.NodesReady(ctx))
	check(lab.Apply(ctx, lab.Classes()))
	check(lab.Create(ctx, claim("data"), pod("app", "node-1", "data")))
	_, err = lab.Running(ctx, "app")
	check(err)
	println("running")
	for ctx.Err() == nil {
		check(lab.Write(ctx, "app", "/data/a", "still here"))
	}
	os.Exit(1)
}

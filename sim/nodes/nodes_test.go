package nodes_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/csilab/csilab/sim/control"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/nodes"
)

func TestMain(m *testing.M) {
	host.Main()
	goleak.VerifyTestMain(m)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestNodes(t *testing.T) {
	if err := host.RealSupported(); err != nil {
		t.Skip(err)
	}
	root, err := os.MkdirTemp("", "cn")
	must(t, err)
	defer os.RemoveAll(root)
	n, err := nodes.New(root, 1, slog.New(slog.DiscardHandler))
	must(t, err)
	defer n.Close()
	store, err := n.Store("vc")
	must(t, err)
	defer store.Close()
	ctx := t.Context()
	const bios = "4237d5c8-1a2b-3c4d-5e6f-708192a3b4c5"
	const wwn, later = "6000c29000000000000000000000000a", "6000c29000000000000000000000000b"
	must(t, store.Create("one", 16<<20))
	must(t, store.Create("two", 16<<20))
	hw := n.Hardware(store)
	must(t, hw.Attach(ctx, bios, wwn, "one")) // before its node is there
	must(t, hw.Attach(ctx, "another", wwn, "one"))
	must(t, n.Add(ctx, nodes.Machine{Name: "node-1", BIOSUUID: bios}))
	must(t, hw.Attach(ctx, bios, later, "two"))
	if err := n.Add(ctx, nodes.Machine{Name: "node-1"}); err == nil {
		t.Error("two nodes of one name")
	}
	if l := n.List(); len(l) != 1 || len(l[0].Disks) != 2 {
		t.Errorf("nodes %+v", l)
	}

	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "plugin"), []byte("#!/bin/sh\necho $A $0\ncat\nls /dev/disk/by-id\nmkfs.ext4 -q $1 && mkdir -p /var/lib/kubelet/m && mount $1 /var/lib/kubelet/m && echo mounted\nexit 9\n"), 0o700))
	exec := func(ctx context.Context, in string, signals chan syscall.Signal, argv ...string) (string, int) {
		var out strings.Builder
		status, err := n.Exec(ctx, "node-1", control.Command{Argv: argv, Env: append(os.Environ(), "A=b"), Dir: dir}, strings.NewReader(in), &out, &out, signals)
		must(t, err)
		return out.String(), status
	}
	out, status := exec(ctx, "from outside\n", nil, "./plugin", "/dev/disk/by-id/wwn-0x"+wwn)
	for _, want := range []string{"b ", "from outside\n", "wwn-0x" + later, "mounted\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %q", want, out)
		}
	}
	if status != 9 {
		t.Errorf("exit status %d", status)
	}
	if _, status := exec(ctx, "", nil, "./nonesuch"); status != 127 {
		t.Errorf("what is not there: %d", status)
	}
	signals := make(chan syscall.Signal, 1)
	signals <- syscall.SIGALRM // one that other systems have too, and that whoever started the tests doesn't have ignored as SIGHUP and SIGINT may be
	if _, status := exec(ctx, "", signals, "sleep", "1000"); status != 128+int(syscall.SIGALRM) {
		t.Errorf("a signal: %d", status)
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, status := exec(gone, "", nil, "sleep", "1000"); status != 128+int(syscall.SIGTERM) {
		t.Errorf("nobody waits any more: %d", status)
	}
	// What the program has started ends with it.
	gone, cancel = context.WithCancel(ctx)
	pid := filepath.Join(dir, "pid")
	poll := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("not in time: " + what)
			}
		}
	}
	go func() {
		defer cancel()
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if b, _ := os.ReadFile(pid); strings.HasSuffix(string(b), "\n") {
				return
			}
		}
	}()
	if _, status := exec(gone, "", nil, "sh", "-c", "sleep 1000 & echo $! > pid; wait"); status == 0 {
		t.Error("it ended by itself")
	}
	child, err := os.ReadFile(pid)
	must(t, err)
	poll("the program's child ends", func() bool {
		_, err := os.Stat(filepath.Join("/proc", strings.TrimSpace(string(child))))
		return err != nil
	})
	if out, _ := exec(ctx, "", nil, "uname", "-n"); out != "node-1\n" {
		t.Errorf("the host name is %q", out)
	}
	must(t, hw.Detach(ctx, bios, later))
	must(t, hw.Detach(ctx, bios, later))
	if out, _ := exec(ctx, "", nil, "ls", "/dev/disk/by-id"); strings.Contains(out, later) {
		t.Errorf("it is left: %s", out)
	}
	must(t, n.Close())
	must(t, n.Close())
	if left, _ := os.ReadDir(root); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

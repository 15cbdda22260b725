package kubeletsim_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"

	"github.com/csilab/csilab/kubeletsim"
	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shortDir is a directory whose path leaves room for a socket's (about 100 bytes).
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "k")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// The same on the wall: unix sockets in a real plugins_registry, found by
// fsnotify, and fast timers.
func TestOnTheWall(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("unix sockets show up as plain files on Windows")
	}
	wall := transport.Wall{From: kubeletDir, To: shortDir(t)}
	r := makeRig(t, wall, kubeletsim.PluginWatcher{Wall: wall}, host.NewMemory(host.MemoryConfig{Name: nodeName}), disk.NewMemory())
	wallFlow(t, r)
}

// wallFlow is a pod's life with a restart of kubelet and one of the driver.
func wallFlow(t *testing.T, r *rig) {
	r.timers = kubeletsim.FastTimers()
	start := time.Now()
	r.up()
	r.volume("v1")
	r.volume("v2", asBlock)
	gid := int64(1234)
	p1 := pod("p1", "v1", false)
	p1.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &gid}
	r.create(p1, pod("p2", "v2", true))
	r.running("p1")
	r.running("p2")
	t.Logf("running after %v", time.Since(start))
	for pod, file := range map[string]string{"p1": "/data/f", "p2": "/dev/xvda"} {
		if err := r.kubelet.WriteFile(r.ctx, "default", pod, "main", file, 0, []byte("x"), true); err != nil {
			t.Fatal(err)
		}
	}
	if _, g, err := r.host.Owner(must(r.kubelet.HostPath("default", "p1", "main", "/data"))); err != nil || int64(g) != gid {
		t.Errorf("group %d, %v", g, err)
	}
	r.stopKubelet()
	r.driver.forget()
	r.startKubelet()
	r.until("published again", func() bool { return len(r.driver.made("NodePublishVolume")) == 2 })
	r.driver.stop()
	r.startDriver()
	for pod, file := range map[string]string{"p1": "/data/f", "p2": "/dev/xvda"} {
		if b, err := r.kubelet.ReadFile(r.ctx, "default", pod, "main", file, 0, 1); err != nil || string(b) != "x" {
			t.Errorf("%s reads %q, %v", pod, b, err)
		}
		r.deletePod(pod)
	}
	r.clean()
	t.Logf("clean after %v", time.Since(start))
}

func TestPluginWatcher(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("unix sockets show up as plain files on Windows")
	}
	dir := shortDir(t)
	wall := transport.Wall{From: "/registry", To: filepath.Join(dir, "r")}
	listen := func(name string) net.Listener {
		t.Helper()
		l, err := wall.Listen("unix", "/registry/"+name)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	early := listen("early.sock")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	events, err := kubeletsim.PluginWatcher{Wall: wall}.Watch(ctx, "/registry")
	if err != nil {
		t.Fatal(err)
	}
	var last transport.Event // may come again with the next ones
	expect := func(want ...transport.Event) {
		t.Helper()
		var got []transport.Event
		for len(got) < len(want) {
			select {
			case e := <-events:
				if e != last && !slices.Contains(got, e) { // what is made during the start is seen twice
					got = append(got, e)
				}
			case <-time.After(10 * time.Second):
				t.Fatalf("got %v, want %v", got, want)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		last = got[len(got)-1]
	}
	expect(transport.Event{Op: transport.Created, Path: "/registry/early.sock"})
	if err := os.WriteFile(filepath.Join(dir, "r", "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	hidden := listen(".hidden.sock")
	defer hidden.Close()
	late := listen("sub/late.sock")
	defer late.Close()
	expect(transport.Event{Op: transport.Created, Path: "/registry/sub/late.sock"})
	early.Close()
	expect(transport.Event{Op: transport.Removed, Path: "/registry/early.sock"})
	again := listen("early.sock")
	defer again.Close()
	expect(transport.Event{Op: transport.Created, Path: "/registry/early.sock"})
	cancel()
	for range events {
	}
}

func TestNewRefuses(t *testing.T) {
	ok := func() kubeletsim.Config {
		m := transport.NewMemory()
		return kubeletsim.Config{NodeName: "n", Network: m, Watcher: m}
	}
	for name, c := range map[string]kubeletsim.Config{
		"kubeletsim: Config.NodeName is required": {},
		"kubeletsim: Config.Client is required":   ok(),
	} {
		if _, err := kubeletsim.New(c); err == nil || err.Error() != name {
			t.Errorf("%v, want %s", err, name)
		}
	}
}

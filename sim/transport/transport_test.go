package transport_test

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/csilab/csilab/sim/transport"
)

func echo(t *testing.T, n transport.Network, network, addr string) net.Listener {
	t.Helper()
	l, err := n.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); c.Close() }()
		}
	}()
	return l
}

func say(c net.Conn, s string) (string, error) {
	go func() { _, _ = c.Write([]byte(s)) }()
	b := make([]byte, len(s))
	_, err := io.ReadFull(c, b)
	return string(b), err
}

// Both networks carry bytes, refuse where nobody listens and can be fenced.
func TestNetworks(t *testing.T) {
	dir := t.TempDir()
	for name, n := range map[string]transport.Network{
		"wall":   transport.Wall{From: "/var/lib/kubelet", To: dir},
		"memory": transport.NewMemory(),
	} {
		t.Run(name, func(t *testing.T) {
			const addr = "/var/lib/kubelet/p/csi.sock"
			if _, err := n.DialContext(t.Context(), "unix", addr); err == nil {
				t.Fatal("dialled a socket that nobody serves")
			}
			f := transport.NewFenced(n)
			l := echo(t, f, "unix", addr)
			defer l.Close()
			c, err := n.DialContext(t.Context(), "unix", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if s, err := say(c, "hello"); s != "hello" || err != nil {
				t.Fatalf("%q, %v", s, err)
			}
			f.Fence()
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Error("a fenced component still answers")
			}
			if _, err := f.DialContext(t.Context(), "unix", addr); err == nil {
				t.Error("a fenced component dials")
			}
			if l, err := f.Listen("unix", addr); err == nil {
				l.Close()
				t.Error("a fenced component listens")
			}
			l2 := echo(t, n, "unix", addr) // the next incarnation takes the address over
			l2.Close()
		})
	}
}

func TestWallMap(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("paths of nodes are unix paths")
	}
	w := transport.Wall{From: "/var/lib/kubelet", To: "/tmp/n1"}
	for in, want := range map[string]string{
		"/var/lib/kubelet/a/b": "/tmp/n1/a/b",
		"/var/lib/kubelet":     "/tmp/n1",
		"/var/lib/kubelet2/a":  "/var/lib/kubelet2/a",
		"/run/x.sock":          "/run/x.sock",
	} {
		if got := w.Map(in); got != filepath.FromSlash(want) {
			t.Errorf("Map(%s) = %s, want %s", in, got, want)
		}
	}
}

func TestMemoryWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := transport.NewMemory()
		early, _ := m.Listen("unix", "/reg/early.sock")
		m.Leave("/reg/stale.sock")
		ctx, cancel := context.WithCancel(context.Background())
		ch, err := m.Watch(ctx, "/reg/")
		if err != nil {
			t.Fatal(err)
		}
		got := map[transport.Event]bool{}
		for range 2 {
			got[<-ch] = true
		}
		late, _ := m.Listen("unix", "/reg/late.sock")
		elsewhere, _ := m.Listen("unix", "/other/x.sock")
		early.Close()
		for range 2 {
			got[<-ch] = true
		}
		for _, want := range []transport.Event{{Op: transport.Created, Path: "/reg/early.sock"}, {Op: transport.Created, Path: "/reg/stale.sock"},
			{Op: transport.Created, Path: "/reg/late.sock"}, {Op: transport.Removed, Path: "/reg/early.sock"}} {
			if !got[want] {
				t.Errorf("no event %v in %v", want, got)
			}
		}
		late.Close()
		elsewhere.Close()
		cancel()
		for range ch {
		}
	})
}

func TestMemoryAddressInUse(t *testing.T) {
	m := transport.NewMemory()
	l, err := m.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Listen("tcp", l.Addr().String()); err == nil {
		t.Error("listened twice on one address")
	}
	l.Close()
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept after close: %v", err)
	}
}

// A socket that a dead process left is taken over, that of one that lives is not.
func TestWallLiveSocket(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("sockets are no files of that kind there")
	}
	path := filepath.Join(t.TempDir(), "s.sock")
	l := echo(t, transport.Wall{}, "unix", path)
	second, err := transport.Wall{}.Listen("unix", path)
	var inUse *transport.InUseError
	if !errors.As(err, &inUse) || inUse.Path != path || !errors.Is(err, syscall.EADDRINUSE) {
		if err == nil {
			second.Close()
		}
		t.Errorf("%v", err)
	}
	c, err := transport.Wall{}.DialContext(t.Context(), "unix", path)
	if err != nil {
		t.Fatalf("the first is gone: %v", err)
	}
	if s, err := say(c, "still here"); s != "still here" || err != nil {
		t.Errorf("%q, %v", s, err)
	}
	c.Close()
	l.(*net.UnixListener).SetUnlinkOnClose(false) // as a process that is killed
	l.Close()
	next := echo(t, transport.Wall{}, "unix", path)
	next.Close()
}

package host_test

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host"
)

// shares are the exports of one server, 198.18.2.1, each for some nodes.
type shares struct {
	store disk.Store
	mu    sync.Mutex
	at    map[string]host.Export // by path
	nodes map[string][]string    // by path
	down  bool
}

func (x *shares) Export(c host.Client, server, path string) (host.Export, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e, ok := x.at[path]
	switch {
	case x.down || server != "198.18.2.1":
		return e, host.ErrServerUnreachable
	case !ok:
		return e, host.ErrNoExport
	case !slices.Contains(x.nodes[path], c.Node):
		return e, host.ErrExportAccess
	}
	return e, nil
}

func (x *shares) Open(image string) (disk.Image, error) { return x.store.Open(image) }

func (x *shares) set(f func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	f()
}

// volume makes an export.
func (x *shares) volume(t testing.TB, path, image string, bytes int64, nodes ...string) {
	t.Helper()
	must(t, x.store.Create(image, bytes))
	x.set(func() { x.at[path], x.nodes[path] = host.Export{Image: image, Bytes: bytes}, nodes })
}

const shareAt = "/var/lib/kubelet/share"

type sharing struct {
	*shares
	servers *host.FileServers
	a, b    *host.Memory
}

func newSharing(t testing.TB) sharing {
	t.Helper()
	store := disk.NewMemory()
	t.Cleanup(func() { store.Close() })
	x := &shares{store: store, at: map[string]host.Export{}, nodes: map[string][]string{}}
	s := sharing{shares: x, servers: host.NewFileServers(x)}
	node := func(name string) *host.Memory {
		h := host.NewMemory(host.MemoryConfig{Name: name, Seed: 1, Files: s.servers})
		must(t, h.MkdirAll(shareAt, 0o750))
		return h
	}
	s.a, s.b = node("a"), node("b")
	t.Cleanup(func() {
		must(t, s.a.Close())
		must(t, s.b.Close())
		must(t, s.servers.Close())
	})
	x.volume(t, "/v", "image-v", 64<<20, "a", "b")
	return s
}

const source = "198.18.2.1:/v"

func mountShare(h host.Host, options ...string) error {
	return h.Mounter().Mount(source, shareAt, "nfs4", options)
}

func read(t testing.TB, h host.Host, file, want string) {
	t.Helper()
	if got, err := h.ReadFile(shareAt + file); err != nil || string(got) != want {
		t.Errorf("%s reads %q from %s, %v, expected %q", h.Name(), got, file, err, want)
	}
}

// What one node writes the other reads; it is there for a node that comes later,
// after all unmounted, after a client lost its power and after the server began
// anew.
func TestShareIsOneContent(t *testing.T) {
	s := newSharing(t)
	must(t, mountShare(s.a))
	must(t, mountShare(s.b))
	must(t, s.a.MkdirAll(shareAt+"/d", 0o755))
	must(t, s.a.WriteFile(shareAt+"/d/x", []byte("of a"), 0o644))
	must(t, s.b.WriteAt(shareAt+"/y", 0, []byte("of b, unsynced"), false))
	read(t, s.b, "/d/x", "of a")
	read(t, s.a, "/y", "of b, unsynced")
	must(t, s.b.Rename(shareAt+"/y", shareAt+"/d/z"))
	must(t, s.a.Lchown(shareAt+"/d", -1, 77))
	if _, gid, err := s.b.Owner(shareAt + "/d"); err != nil || gid != 77 {
		t.Errorf("group %d, %v", gid, err)
	}
	must(t, s.b.PowerOff())
	must(t, s.a.Mounter().Unmount(shareAt))
	must(t, s.servers.Close())
	must(t, mountShare(s.a))
	read(t, s.a, "/d/z", "of b, unsynced")
	must(t, s.b.PowerOn())
	must(t, mountShare(s.b, "ro"))
	read(t, s.b, "/d/x", "of a")
	if err := s.b.WriteFile(shareAt+"/n", nil, 0o644); !errors.Is(err, syscall.EROFS) {
		t.Errorf("write to a mount that is read-only: %v", err)
	}
	must(t, s.a.WriteFile(shareAt+"/n", nil, 0o644))
	s.set(func() { e := s.at["/v"]; e.ReadOnly = true; s.at["/v"] = e })
	if err := s.a.WriteFile(shareAt+"/m", nil, 0o644); !errors.Is(err, syscall.EROFS) {
		t.Errorf("write to an export that is read-only: %v", err)
	}
	read(t, s.a, "/d/x", "of a")
}

// The mount table shows source, type and address, of a bind mount too, and one
// share is another's neighbour only.
func TestShareInMountTable(t *testing.T) {
	s := newSharing(t)
	s.volume(t, "/w", "image-w", 64<<20, "a")
	must(t, mountShare(s.a, "noatime"))
	must(t, s.a.MkdirAll("/mnt/bound", 0o755))
	must(t, s.a.MkdirAll("/mnt/w", 0o755))
	must(t, s.a.Mounter().Mount(shareAt, "/mnt/bound", "", []string{"bind", "ro"}))
	must(t, s.a.Mounter().Mount("198.18.2.1:/w", "/mnt/w", "", nil))
	must(t, s.a.WriteFile("/mnt/w/x", []byte("of w"), 0o644))
	var got []string
	for _, m := range must1(s.a.Mounter().List())(t) {
		if m.Type == "nfs4" {
			got = append(got, m.Device+" "+m.Path+" "+strings.Join(m.Opts, ","))
		}
	}
	want := []string{
		source + " " + shareAt + " rw,noatime,vers=4.2,hard,addr=198.18.2.1",
		source + " /mnt/bound ro,noatime,vers=4.2,hard,addr=198.18.2.1,relatime",
		"198.18.2.1:/w /mnt/w rw,vers=4.2,hard,addr=198.18.2.1,relatime",
	}
	want[1] = strings.TrimSuffix(want[1], ",relatime")
	if !slices.Equal(got, want) {
		t.Errorf("mounts:\n%s\nexpected\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if refs := must1(s.a.Mounter().GetMountRefs(shareAt))(t); !slices.Equal(refs, []string{"/mnt/bound"}) {
		t.Errorf("references %q", refs)
	}
	if _, err := s.a.Stat(shareAt + "/x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file of another share: %v", err)
	}
	if err := mountShare(s.a); err == nil || !strings.Contains(err.Error(), "busy") {
		t.Errorf("mounted twice at one place: %v", err)
	}
	release := must1(s.a.Hold(shareAt))(t)
	if err := s.a.Mounter().Unmount(shareAt); err == nil || !strings.Contains(err.Error(), "busy") {
		t.Errorf("unmount while a file is open: %v", err)
	}
	release()
	for _, p := range []string{shareAt, "/mnt/bound", "/mnt/w"} {
		must(t, s.a.Mounter().Unmount(p))
	}
}

// A share has the space of its content, and grows with it under its clients.
func TestShareSpace(t *testing.T) {
	s := newSharing(t)
	must(t, mountShare(s.a))
	must(t, mountShare(s.b))
	before := must1(s.b.Statfs(shareAt))(t)
	if before.TotalBytes > 64<<20 || before.TotalBytes < 56<<20 {
		t.Errorf("%d bytes", before.TotalBytes)
	}
	must(t, s.a.WriteFile(shareAt+"/x", make([]byte, 40<<20), 0o644))
	if u := must1(s.b.Statfs(shareAt))(t); before.FreeBytes-u.FreeBytes < 40<<20 {
		t.Errorf("%d bytes free after 40 MiB, before %d", u.FreeBytes, before.FreeBytes)
	}
	if err := s.b.WriteFile(shareAt+"/y", make([]byte, 40<<20), 0o644); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("more than fits: %v", err)
	}
	img := must1(s.store.Open("image-v"))(t)
	must(t, s.store.Grow("image-v", 128<<20))
	must(t, img.Close())
	s.set(func() { e := s.at["/v"]; e.Bytes = 128 << 20; s.at["/v"] = e })
	if u := must1(s.b.Statfs(shareAt))(t); u.TotalBytes < 112<<20 {
		t.Errorf("%d bytes after it grew", u.TotalBytes)
	}
	must(t, s.b.WriteFile(shareAt+"/y", make([]byte, 40<<20), 0o644))
}

func TestShareRefusals(t *testing.T) {
	s := newSharing(t)
	s.volume(t, "/w", "image-w", 64<<20, "b")
	for src, want := range map[string]string{
		"198.18.2.1:/w":    "access denied by server while mounting 198.18.2.1:/w",
		"198.18.2.1:/none": "No such file or directory",
		"nowhere:/v":       "Failed to resolve server",
		"/v":               "Failed to resolve server",
	} {
		if err := s.a.Mounter().Mount(src, shareAt, "nfs4", nil); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "exit status 32") {
			t.Errorf("%s: %v, expected %q", src, err, want)
		}
	}
	if err := s.a.Supports("nfs"); err != nil {
		t.Error(err)
	}
	if err := host.NewMemory(host.MemoryConfig{Name: "c"}).Supports("nfs"); err == nil {
		t.Error("a node without servers supports nfs")
	}
}

// A share that is gone, or is not for the client any more, is a stale handle for
// every operation on it, and can be unmounted; another client goes on. One that
// comes back under the same path is another.
func TestShareStale(t *testing.T) {
	ops := func(h host.Host) map[string]func() error {
		return map[string]func() error{
			"stat":   func() error { _, err := h.Stat(shareAt); return err },
			"read":   func() error { _, err := h.ReadFile(shareAt + "/x"); return err },
			"list":   func() error { _, err := h.ReadDir(shareAt); return err },
			"write":  func() error { return h.WriteAt(shareAt+"/x", 0, []byte("y"), true) },
			"create": func() error { return h.WriteFile(shareAt+"/new", nil, 0o644) },
			"mkdir":  func() error { return h.MkdirAll(shareAt+"/d", 0o755) },
			"remove": func() error { return h.Remove(shareAt + "/x") },
			"rename": func() error { return h.Rename(shareAt+"/x", shareAt+"/z") },
			"link":   func() error { return h.Symlink("x", shareAt+"/l") },
			"chmod":  func() error { return h.Chmod(shareAt+"/x", 0o600) },
			"owner":  func() error { _, _, err := h.Owner(shareAt); return err },
			"statfs": func() error { _, err := h.Statfs(shareAt); return err },
			"mount?": func() error { _, err := h.Mounter().IsMountPoint(shareAt); return err },
		}
	}
	for name, how := range map[string]func(s sharing){
		"rules":   func(s sharing) { s.nodes["/v"] = []string{"b"} },
		"deleted": func(s sharing) { delete(s.at, "/v") },
		"another": func(s sharing) { s.at["/v"] = s.at["/w"] },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSharing(t)
			s.volume(t, "/w", "image-w", 64<<20, "a")
			must(t, mountShare(s.a))
			must(t, mountShare(s.b))
			must(t, s.a.WriteFile(shareAt+"/x", []byte("kept"), 0o644))
			s.set(func() { how(s) })
			for op, f := range ops(s.a) {
				if err := f(); !errors.Is(err, syscall.ESTALE) {
					t.Errorf("%s: %v", op, err)
				}
			}
			if name == "rules" {
				read(t, s.b, "/x", "kept")
			}
			if refs, err := s.a.Mounter().GetMountRefs(shareAt); err != nil || len(refs) != 0 {
				t.Errorf("references %q, %v", refs, err)
			}
			must(t, s.a.Mounter().Unmount(shareAt))
			must(t, s.a.WriteFile(shareAt+"/own", nil, 0o644)) // of the node's own disk
		})
	}
}

// A mount is hard: who wants something of a server that doesn't answer waits for
// it. A mount of such a server gives up after two minutes; an unmount works, a lazy
// one also under somebody who waits.
func TestShareHard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSharing(t)
		must(t, mountShare(s.a))
		must(t, s.a.WriteFile(shareAt+"/x", []byte("before"), 0o644))
		s.set(func() { s.down = true })
		statted := begin(func() error { _, err := s.a.Stat(shareAt); return err })
		wrote := begin(func() error { return s.a.WriteAt(shareAt+"/x", 0, []byte("during"), false) })
		start := time.Now()
		mounted := begin(func() error { return mountShare(s.b) })
		time.Sleep(time.Minute)
		synctest.Wait()
		for what, done := range map[string]<-chan error{"stat": statted, "write": wrote, "mount": mounted} {
			waits(t, what, done)
		}
		if err := <-mounted; err == nil || !strings.Contains(err.Error(), "timed out") || time.Since(start) < 2*time.Minute || time.Since(start) > 2*time.Minute+10*time.Second {
			t.Errorf("mount: %v after %v", err, time.Since(start))
		}
		s.set(func() { s.down = false })
		must(t, <-statted)
		must(t, <-wrote)
		read(t, s.a, "/x", "during")
		must(t, mountShare(s.b))

		s.set(func() { s.down = true })
		wrote = begin(func() error { return s.b.WriteAt(shareAt+"/x", 0, []byte("late"), false) })
		synctest.Wait()
		must(t, s.a.Mounter().Unmount(shareAt))
		if err := s.b.Mounter().Unmount(shareAt); err == nil || !strings.Contains(err.Error(), "busy") {
			t.Errorf("unmount under who waits: %v", err)
		}
		if out, err := s.b.Exec().Command("umount", "-l", shareAt).CombinedOutput(); err != nil {
			t.Errorf("lazy unmount: %s, %v", out, err)
		}
		if err := <-wrote; !errors.Is(err, syscall.EIO) {
			t.Errorf("a write in a mount that was taken away: %v", err)
		}
		if _, err := s.b.Stat(shareAt + "/x"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("it went to what was below the mount: %v", err)
		}
		// What waits on a node ends with its power.
		s.set(func() { s.down = false })
		must(t, mountShare(s.b))
		s.set(func() { s.down = true })
		stuck := begin(func() error { _, err := s.b.ReadFile(shareAt + "/x"); return err })
		synctest.Wait()
		waits(t, "read", stuck)
		must(t, s.b.PowerOff())
		if err := <-stuck; !errors.Is(err, host.ErrOff) {
			t.Errorf("read on a node that went off: %v", err)
		}
	})
}

// Whatever two clients do in turn with the files of a share, both see what one
// tree would have, and it outlives them.
func TestShareProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newSharing(t)
		model := map[string]string{}
		nodes := []*host.Memory{s.a, s.b}
		for _, h := range nodes {
			must(t, mountShare(h))
		}
		agree := func() {
			for _, h := range nodes {
				es := must1(h.ReadDir(shareAt))(t)
				if len(es) != len(model) {
					rt.Fatalf("%s sees %d files, expected %v", h.Name(), len(es), model)
				}
				for f, want := range model {
					if got, err := h.ReadFile(shareAt + "/" + f); err != nil || string(got) != want {
						rt.Fatalf("%s reads %q from %s, %v, expected %q", h.Name(), got, f, err, want)
					}
				}
			}
		}
		for i := range rapid.IntRange(1, 20).Draw(rt, "steps") {
			h := rapid.SampledFrom(nodes).Draw(rt, "node")
			f := rapid.SampledFrom([]string{"x", "y", "z"}).Draw(rt, "file")
			switch rapid.IntRange(0, 4).Draw(rt, "what") {
			case 0, 1:
				model[f] = fmt.Sprint("text ", i)
				must(t, h.WriteFile(shareAt+"/"+f, []byte(model[f]), 0o644))
			case 2:
				if _, ok := model[f]; ok {
					must(t, h.Remove(shareAt+"/"+f))
					delete(model, f)
				}
			case 3:
				must(t, h.PowerOff())
				must(t, h.PowerOn())
				must(t, mountShare(h))
			case 4:
				must(t, s.servers.Close())
				for _, h := range nodes {
					must(t, h.Mounter().Unmount(shareAt))
					must(t, mountShare(h))
				}
			}
			agree()
		}
	})
}

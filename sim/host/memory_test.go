package host_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/mount-utils"
	"pgregory.net/rapid"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host"
)

func memoryWorld(t testing.TB) *world {
	s := disk.NewMemory()
	t.Cleanup(func() { s.Close() })
	return &world{kind: "memory", store: s}
}

// bad is an image that fails when told to.
type bad struct {
	disk.Image
	reads, writes atomic.Bool
}

func (b *bad) ReadAt(p []byte, off int64) (int, error) {
	if b.reads.Load() {
		return 0, errors.New("medium error")
	}
	return b.Image.ReadAt(p, off)
}

func (b *bad) WriteAt(p []byte, off int64) (int, error) {
	if b.writes.Load() {
		return 0, errors.New("medium error")
	}
	return b.Image.WriteAt(p, off)
}

func TestUnreadableDeviceIsNotEmpty(t *testing.T) {
	for _, hides := range []bool{false, true} {
		w := memoryWorld(t)
		h := host.NewMemory(host.MemoryConfig{Name: "n", BlkidHidesErrors: hides})
		defer h.Close()
		w.disk(t, "v", 32<<20)
		img := &bad{Image: must1(w.store.Open("v"))(t)}
		must(t, h.AttachDisk(context.Background(), wwn("v"), img))
		formatAndMount(t, h, "/dev/sdb", staging, "ext4")
		must(t, h.WriteAt(staging+"/data", 0, []byte("precious"), true))
		must(t, h.Mounter().Unmount(staging))
		img.reads.Store(true)
		format, err := diskFormat(h, "/dev/sdb")
		if hides != (err == nil) || format != "" {
			t.Errorf("hides=%v: format %q, error %v", hides, format, err)
		}
		if _, err := h.ReadAt("/dev/sdb", 0, 10); !errors.Is(err, syscall.EIO) {
			t.Errorf("read: %v", err)
		}
		if hides {
			continue
		}
		if err := tryFormatAndMount(h, "/dev/sdb", staging, "ext4"); err == nil {
			t.Error("mounted what can't be read")
		}
		img.reads.Store(false)
		formatAndMount(t, h, "/dev/sdb", staging, "ext4")
		if got := must1(h.ReadFile(staging + "/data"))(t); string(got) != "precious" {
			t.Errorf("data is %q", got)
		}
	}
}

func TestWriteErrors(t *testing.T) {
	w := memoryWorld(t)
	h := host.NewMemory(host.MemoryConfig{Name: "n"})
	defer h.Close()
	w.disk(t, "v", 32<<20)
	img := &bad{Image: must1(w.store.Open("v"))(t)}
	must(t, h.AttachDisk(context.Background(), wwn("v"), img))
	formatAndMount(t, h, "/dev/sdb", staging, "ext4")
	must(t, h.WriteAt(staging+"/data", 0, []byte("former"), true))
	img.writes.Store(true)
	wantErrno(t, h.WriteAt(staging+"/data", 0, []byte("latter"), true), syscall.EIO)
	wantErrno(t, h.WriteAt("/dev/sdb", 20<<20, []byte("latter"), true), syscall.EIO)
	img.writes.Store(false)
	// ext4 could not write its journal: it takes no more until it is mounted anew.
	wantErrno(t, h.WriteAt(staging+"/data", 0, []byte("latter"), true), syscall.EROFS)
	must(t, h.Mounter().Unmount(staging))
	must(t, h.Mounter().Mount("/dev/sdb", staging, "ext4", nil))
	if got := must1(h.ReadFile(staging + "/data"))(t); string(got) != "former" {
		t.Errorf("data is %q after the failure", got)
	}
	must(t, h.WriteAt(staging+"/data", 0, []byte("latter"), true))
	must(t, h.PowerOff())
	must(t, h.PowerOn())
	formatAndMount(t, h, "/dev/sdb", staging, "ext4")
	if got := must1(h.ReadFile(staging + "/data"))(t); string(got) != "latter" {
		t.Errorf("data is %q", got)
	}
}

// TestStaleDeviceNode: a bind mount of a device node that was left behind
// leads to whichever disk has the number now.
func TestStaleDeviceNode(t *testing.T) {
	w := memoryWorld(t)
	h := w.node(t)
	w.disk(t, "a", 1<<20)
	w.disk(t, "b", 2<<20)
	must(t, h.WriteFile("/var/lib/kubelet/dev", nil, 0o600))
	must(t, h.Mounter().Mount(w.attach(t, h, "a"), "/var/lib/kubelet/dev", "", []string{"bind"}))
	must(t, h.DetachDisk(context.Background(), wwn("a")))
	_, err := h.DeviceSize("/var/lib/kubelet/dev")
	wantErrno(t, err, syscall.ENXIO)
	w.attach(t, h, "b")
	if got := must1(h.DeviceSize("/var/lib/kubelet/dev"))(t); got != 2<<20 {
		t.Errorf("%d bytes", got)
	}
}

func TestFencedDisk(t *testing.T) {
	w := memoryWorld(t)
	h := w.node(t)
	w.disk(t, "v", 32<<20)
	formatAndMount(t, h, w.attach(t, h, "v"), staging, "ext4")
	must(t, h.WriteAt(staging+"/data", 0, []byte("former"), true))
	must(t, w.store.Fence("v"))
	wantErrno(t, h.WriteAt(staging+"/data", 0, []byte("latter"), true), syscall.EIO)
	h2 := w.node(t)
	formatAndMount(t, h2, w.attach(t, h2, "v"), staging, "ext4")
	if got := must1(h2.ReadFile(staging + "/data"))(t); string(got) != "former" {
		t.Errorf("data is %q", got)
	}
}

// TestTwoNodesOneDisk: no coherency, as in life.
func TestTwoNodesOneDisk(t *testing.T) {
	w := memoryWorld(t)
	h, h2 := w.node(t), w.node(t)
	w.disk(t, "v", 32<<20)
	formatAndMount(t, h, w.attach(t, h, "v"), staging, "ext4")
	must(t, h.WriteAt(staging+"/a", 0, []byte("1"), true))
	formatAndMount(t, h2, w.attach(t, h2, "v"), staging, "ext4")
	must(t, h.WriteAt(staging+"/b", 0, []byte("2"), true))
	if _, err := h2.Stat(staging + "/b"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the other node sees it at once: %v", err)
	}
}

// TestBitFlip: any flipped bit in the metadata is noticed.
func TestBitFlip(t *testing.T) {
	for _, fstype := range []string{"ext4", "xfs"} {
		w := memoryWorld(t)
		h := w.node(t)
		w.disk(t, "v", sizes[fstype])
		dev := w.attach(t, h, "v")
		formatAndMount(t, h, dev, staging, fstype)
		must(t, h.WriteAt(staging+"/data", 0, []byte("precious"), true))
		must(t, h.Mounter().Unmount(staging))
		clean := must1(h.ReadAt(dev, 0, 1<<20))(t)
		flips := [][]int64{{8}, {12}, {20}, {40}, {}}
		for off := 4096; ; off++ { // the name in the metadata, present and former
			i := bytes.Index(clean[off:], []byte(`"data"`))
			if i < 0 {
				break
			}
			off += i
			flips[4] = append(flips[4], int64(off)+1)
		}
		for _, flip := range flips {
			for _, off := range flip {
				must(t, h.WriteAt(dev, off, []byte{clean[off] ^ 4}, true))
			}
			off := flip[0]
			err := h.Mounter().Mount(dev, staging, fstype, nil)
			if err == nil || !strings.Contains(err.Error(), "needs cleaning") {
				t.Errorf("%s: flip at %d: %v", fstype, off, err)
			}
			// It is not taken for an empty disk.
			if f, err := diskFormat(h, dev); err != nil || f == "" {
				t.Errorf("%s: flip at %d: format %q %v", fstype, off, f, err)
			}
			var merr mount.MountError
			err = tryFormatAndMount(h, dev, staging, fstype)
			if !errors.As(err, &merr) || fstype == "ext4" && merr.Type != mount.HasFilesystemErrors {
				t.Errorf("%s: flip at %d: %v", fstype, off, err)
			}
			must(t, h.WriteAt(dev, 0, clean, true))
		}
		formatAndMount(t, h, dev, staging, fstype)
		if got := must1(h.ReadFile(staging + "/data"))(t); string(got) != "precious" {
			t.Errorf("data is %q", got)
		}
		// Data has no checksum: a flip there is read.
		at := int64(bytes.Index(must1(h.ReadAt(dev, 0, 1<<20))(t), []byte("precious")))
		must(t, h.WriteAt(dev, at, []byte("P"), true))
		if got := must1(h.ReadFile(staging + "/data"))(t); string(got) != "Precious" {
			t.Errorf("data is %q", got)
		}
	}
}

func TestXFSRules(t *testing.T) {
	w := memoryWorld(t)
	h := w.node(t)
	w.disk(t, "small", 200<<20)
	if out, err := h.Exec().Command("mkfs.xfs", w.attach(t, h, "small")).CombinedOutput(); err == nil || !strings.Contains(string(out), "300MB") {
		t.Errorf("small xfs: %v %s", err, out)
	}
	w.disk(t, "v", 320<<20)
	dev := w.attach(t, h, "v")
	formatAndMount(t, h, dev, staging, "xfs")
	must(t, w.store.Clone("v", "c", 0))
	clone := w.attach(t, h, "c")
	must(t, h.MkdirAll("/mnt/c", 0o700))
	if err := h.Mounter().Mount(clone, "/mnt/c", "xfs", nil); err == nil {
		t.Error("mounted a second xfs with the same UUID")
	}
	must(t, h.Mounter().Mount(clone, "/mnt/c", "xfs", []string{"nouuid"}))
	must(t, h.Mounter().Unmount("/mnt/c"))
	if out, err := h.Exec().Command("xfs_admin", "-U", "generate", clone).CombinedOutput(); err != nil {
		t.Errorf("%v %s", err, out)
	}
	must(t, h.Mounter().Mount(clone, "/mnt/c", "xfs", nil))
	if out, err := h.Exec().Command("mkfs.xfs", dev).CombinedOutput(); err == nil {
		t.Errorf("mkfs of a mounted device: %s", out)
	}
	must(t, h.Mounter().Unmount(staging))
	if out, err := h.Exec().Command("mkfs.xfs", dev).CombinedOutput(); err == nil || !strings.Contains(string(out), "existing filesystem") {
		t.Errorf("mkfs without -f: %v %s", err, out)
	}
}

func TestMissingTools(t *testing.T) {
	h := host.NewMemory(host.MemoryConfig{Name: "n", Missing: []string{"mkfs.xfs"}})
	defer h.Close()
	if err := h.Supports("xfs"); err == nil || !strings.Contains(err.Error(), "mkfs.xfs") {
		t.Errorf("%v", err)
	}
	if err := h.Exec().Command("mkfs.xfs", "/dev/sdb").Run(); err == nil {
		t.Error("ran a tool that isn't there")
	}
}

// TestDeterministic: the bytes of a filesystem are a function of the seed.
func TestDeterministic(t *testing.T) {
	content := func(seed uint64) []byte {
		var out []byte
		synctest.Test(t, func(t *testing.T) {
			s := disk.NewMemory()
			defer s.Close()
			must(t, s.Create("v", 1<<20))
			img := must1(s.Open("v"))(t)
			h := host.NewMemory(host.MemoryConfig{Name: "n", Seed: seed})
			defer h.Close()
			must(t, h.AttachDisk(context.Background(), wwn("v"), img))
			formatAndMount(t, h, "/dev/sdb", staging, "ext4")
			time.Sleep(time.Hour)
			for i := range 10 {
				must(t, h.WriteFile(fmt.Sprintf("%s/%d", staging, i), []byte("x"), 0o600))
			}
			must(t, h.Mounter().Unmount(staging))
			out = make([]byte, 1<<20)
			_, err := img.ReadAt(out, 0)
			must(t, err)
		})
		return out
	}
	if !bytes.Equal(content(1), content(1)) {
		t.Error("two runs of one seed differ")
	}
	if bytes.Equal(content(1), content(2)) {
		t.Error("two seeds give the same")
	}
}

// tornAfter is an image that takes n writes more and then fails.
type tornAfter struct {
	disk.Image
	left atomic.Int64
}

func (i *tornAfter) WriteAt(p []byte, off int64) (int, error) {
	if i.left.Add(-1) < 0 {
		return 0, errors.New("medium error")
	}
	return i.Image.WriteAt(p, off)
}

// TestTornCommit: wherever a commit stops, the disk holds the former tree or
// the new one, whole.
func TestTornCommit(t *testing.T) {
	seen := map[string]int{}
	for n := range int64(12) {
		w := memoryWorld(t)
		h := w.node(t)
		w.disk(t, "v", 1<<20)
		img := &tornAfter{Image: must1(w.store.Open("v"))(t)}
		img.left.Store(1 << 40)
		must(t, h.AttachDisk(context.Background(), wwn("v"), img))
		formatAndMount(t, h, "/dev/sdb", staging, "ext4")
		old, fresh := strings.Repeat("a", 3*4096), strings.Repeat("b", 3*4096)
		must(t, h.WriteAt(staging+"/old", 0, []byte(old), true))
		must(t, h.Remove(staging+"/old"))
		img.left.Store(n)
		err := h.WriteAt(staging+"/new", 0, []byte(fresh), true)
		must(t, h.PowerOff())
		img.left.Store(1 << 40)
		must(t, h.PowerOn())
		must(t, h.Mounter().Mount("/dev/sdb", staging, "ext4", nil))
		got := readTree(t, h, staging)
		switch {
		case maps.Equal(got, tree{"old": old}) && err != nil:
			seen["old"]++
		case maps.Equal(got, tree{"new": fresh}) && err == nil:
			seen["new"]++
		default:
			t.Errorf("after %d writes (%v): %d files", n, err, len(got))
		}
	}
	if seen["old"] == 0 || seen["new"] == 0 {
		t.Errorf("the test saw %v only", seen)
	}
}

// tree is the content of a directory tree: files, and "/" for directories.
type tree map[string]string

func readTree(t testing.TB, h host.Host, root string) tree {
	out := tree{}
	var visit func(string)
	visit = func(p string) {
		for _, e := range must1(h.ReadDir(p))(t) {
			q := path.Join(p, e.Name())
			rel := strings.TrimPrefix(q, root+"/")
			if e.IsDir() {
				if rel != "lost+found" {
					out[rel] = "/"
					visit(q)
				}
				continue
			}
			out[rel] = string(must1(h.ReadFile(q))(t))
		}
	}
	visit(root)
	return out
}

// TestFilesystemModel drives a filesystem with random operations, crashes,
// snapshots and remounts and compares it with maps.
func TestFilesystemModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := disk.NewMemory()
		defer s.Close()
		must(t, s.Create("v", 16<<20))
		img := must1(s.Open("v"))(t)
		h := host.NewMemory(host.MemoryConfig{Name: "n"})
		defer h.Close()
		must(t, h.AttachDisk(context.Background(), wwn("v"), img))
		formatAndMount(t, h, "/dev/sdb", staging, "ext4")
		now, synced := tree{}, tree{}
		names := rapid.SampledFrom([]string{"a", "b", "d", "d/a", "d/b", "d/e", "d/e/a"})
		dirOf := func(p string) bool { d := path.Dir(p); return d == "." || now[d] == "/" }
		same := func(what string, err error, ok bool) {
			if (err == nil) != ok {
				rt.Fatalf("%s: error %v, model says ok=%v", what, err, ok)
			}
		}
		snaps := 0
		rt.Repeat(map[string]func(*rapid.T){
			"write": func(rt *rapid.T) {
				p := names.Draw(rt, "path")
				off := rapid.Int64Range(0, 20000).Draw(rt, "offset")
				data := rapid.SliceOfN(rapid.ByteRange('a', 'z'), 1, 9000).Draw(rt, "data")
				sync := rapid.Bool().Draw(rt, "sync")
				ok := dirOf(p) && now[p] != "/"
				same("write", h.WriteAt(staging+"/"+p, off, data, sync), ok)
				if ok {
					b := []byte(now[p])
					b = append(b, make([]byte, max(0, int(off)+len(data)-len(b)))...)
					copy(b[off:], data)
					now[p] = string(b)
					if sync {
						synced = maps.Clone(now)
					}
				}
			},
			"replace": func(rt *rapid.T) {
				p := names.Draw(rt, "path")
				data := rapid.StringN(0, 50, 50).Draw(rt, "data")
				if data == "/" {
					data = "//" // the model's mark of a directory
				}
				ok := dirOf(p) && now[p] != "/"
				same("replace", h.WriteFile(staging+"/"+p, []byte(data), 0o600), ok)
				if ok {
					now[p] = data
				}
			},
			"mkdir": func(rt *rapid.T) {
				p := names.Draw(rt, "path")
				ok := true
				made := map[string]bool{}
				for q := p; q != "."; q = path.Dir(q) {
					if v, has := now[q]; has && v != "/" {
						ok = false
					}
					made[q] = true
				}
				same("mkdir", h.MkdirAll(staging+"/"+p, 0o700), ok)
				if ok {
					for q := range made {
						now[q] = "/"
					}
				}
			},
			"remove": func(rt *rapid.T) {
				p := names.Draw(rt, "path")
				_, ok := now[p]
				for q := range now {
					if strings.HasPrefix(q, p+"/") {
						ok = false
					}
				}
				same("remove", h.Remove(staging+"/"+p), ok)
				if ok {
					delete(now, p)
				}
			},
			"rename": func(rt *rapid.T) {
				from, to := names.Draw(rt, "from"), names.Draw(rt, "to")
				v, ok := now[from]
				old, over := now[to]
				ok = ok && dirOf(to) && !strings.HasPrefix(to, from+"/") && (!over || (old == "/") == (v == "/"))
				for q := range now {
					if from != to && strings.HasPrefix(q, to+"/") {
						ok = false // over a directory that isn't empty, or its own parent
					}
				}
				same("rename "+from+" "+to, h.Rename(staging+"/"+from, staging+"/"+to), ok)
				if ok && from != to {
					moved := tree{}
					for q, v := range now {
						if q == from || strings.HasPrefix(q, from+"/") {
							moved[to+strings.TrimPrefix(q, from)] = v
							delete(now, q)
						}
					}
					delete(now, to)
					maps.Copy(now, moved)
				}
			},
			"remount": func(rt *rapid.T) {
				must(t, h.Mounter().Unmount(staging))
				synced = maps.Clone(now)
				must(t, h.Mounter().Mount("/dev/sdb", staging, "ext4", nil))
			},
			"power": func(rt *rapid.T) {
				must(t, h.PowerOff())
				must(t, h.PowerOn())
				now = maps.Clone(synced)
				must(t, h.Mounter().Mount("/dev/sdb", staging, "ext4", nil))
			},
			"snapshot": func(rt *rapid.T) {
				snaps++
				id := fmt.Sprintf("r%d", snaps)
				must(t, s.Snapshot("v", id))
				must(t, s.Restore("v", id, id, 0))
				h2 := host.NewMemory(host.MemoryConfig{Name: "n2"})
				defer h2.Close()
				must(t, h2.AttachDisk(context.Background(), wwn("r"), must1(s.Open(id))(t)))
				formatAndMount(t, h2, "/dev/sdb", staging, "ext4")
				if got := readTree(t, h2, staging); !maps.Equal(got, synced) {
					rt.Fatalf("snapshot has %q, want %q", got, synced)
				}
			},
			"": func(rt *rapid.T) {
				if got := readTree(t, h, staging); !maps.Equal(got, now) {
					rt.Fatalf("got %q, want %q", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(now)))
				}
			},
		})
	})
}

// TestFullFilesystemModel: on a disk that is nearly always full, what a write
// said is what is there, also after a remount.
func TestFullFilesystemModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := disk.NewMemory()
		defer s.Close()
		must(t, s.Create("v", 64*4096))
		img := must1(s.Open("v"))(t)
		h := host.NewMemory(host.MemoryConfig{Name: "n"})
		defer h.Close()
		must(t, h.AttachDisk(context.Background(), wwn("v"), img))
		formatAndMount(t, h, "/dev/sdb", staging, "ext4")
		now := tree{}
		names := rapid.SampledFrom([]string{"a", "b", "c"})
		full := false
		rt.Repeat(map[string]func(*rapid.T){
			"write": func(rt *rapid.T) {
				p := names.Draw(rt, "path")
				off := rapid.IntRange(0, 20).Draw(rt, "block") * 4096
				data := bytes.Repeat([]byte{rapid.ByteRange('a', 'z').Draw(rt, "byte")}, rapid.IntRange(1, 10).Draw(rt, "blocks")*4096)
				err := h.WriteAt(staging+"/"+p, int64(off), data, rapid.Bool().Draw(rt, "sync"))
				if errors.Is(err, syscall.ENOSPC) {
					full = true
					if _, has := now[p]; !has {
						now[p] = "" // made, then no room
					}
					return
				}
				must(t, err)
				b := []byte(now[p])
				b = append(b, make([]byte, max(0, off+len(data)-len(b)))...)
				copy(b[off:], data)
				now[p] = string(b)
			},
			"remove": func(rt *rapid.T) {
				p := names.Draw(rt, "path")
				if h.Remove(staging+"/"+p) == nil {
					delete(now, p)
				}
			},
			"remount": func(rt *rapid.T) {
				must(t, h.Mounter().Unmount(staging))
				must(t, h.Mounter().Mount("/dev/sdb", staging, "ext4", nil))
			},
			"": func(rt *rapid.T) {
				if got := readTree(t, h, staging); !maps.Equal(got, now) {
					rt.Fatalf("content differs (full before: %v)", full)
				}
				u := must1(h.Statfs(staging))(t)
				if u.FreeBytes < 0 || u.FreeBytes > u.TotalBytes {
					rt.Fatalf("%+v", u)
				}
			},
		})
	})
}

func BenchmarkLifeOfAVolume(b *testing.B) {
	s := disk.NewMemory()
	defer s.Close()
	h := host.NewMemory(host.MemoryConfig{Name: "n"})
	defer h.Close()
	must(b, h.MkdirAll(staging, 0o700))
	for i := 0; b.Loop(); i++ {
		id := fmt.Sprint(i)
		must(b, s.Create(id, 1<<30))
		img := must1(s.Open(id))(b)
		must(b, h.AttachDisk(context.Background(), wwn(id), img))
		must(b, tryFormatAndMount(h, "/dev/disk/by-id/wwn-0x"+wwn(id), staging, "ext4"))
		must(b, h.WriteAt(staging+"/f", 0, []byte("x"), true))
		must(b, h.Mounter().Unmount(staging))
		must(b, h.DetachDisk(context.Background(), wwn(id)))
		must(b, s.Delete(id))
	}
}

package disk_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/csilab/csilab/sim/disk"
)

// stores are the implementations; reopen gives the state as it is after a
// restart, or nil where nothing survives.
var stores = []struct {
	name   string
	open   func(t testing.TB, dir string) disk.Store
	reopen bool
}{
	{"memory", func(testing.TB, string) disk.Store { return disk.NewMemory() }, false},
	{"files", func(t testing.TB, dir string) disk.Store {
		s, err := disk.NewFiles(dir)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}, true},
}

func each(t *testing.T, f func(t *testing.T, s disk.Store)) {
	for _, st := range stores {
		t.Run(st.name, func(t *testing.T) {
			s := st.open(t, t.TempDir())
			t.Cleanup(func() { s.Close() })
			f(t, s)
		})
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB, s disk.Store, id string) disk.Image {
	t.Helper()
	im, err := s.Open(id)
	must(t, err)
	t.Cleanup(func() { im.Close() })
	return im
}

func content(t testing.TB, s disk.Store, id string) []byte {
	t.Helper()
	im, err := s.Open(id)
	must(t, err)
	defer im.Close()
	b, err := io.ReadAll(io.NewSectionReader(im, 0, im.Size()))
	must(t, err)
	return b
}

func write(t testing.TB, im disk.Image, off int64, s string) {
	t.Helper()
	_, err := im.WriteAt([]byte(s), off)
	must(t, err)
}

func TestErrors(t *testing.T) {
	each(t, func(t *testing.T, s disk.Store) {
		must(t, s.Create("a", 10000))
		must(t, s.Snapshot("a", "s"))
		long := strings.Repeat("A", 300)
		for _, c := range []struct {
			name string
			err  error
			want error
		}{
			{"create twice", s.Create("a", 1), disk.ErrExists},
			{"create of nothing", s.Create("b", 0), disk.ErrSize},
			{"create negative", s.Create("b", -1), disk.ErrSize},
			{"create without id", s.Create("", 1), disk.ErrID},
			{"open", second(s.Open("b")), disk.ErrNotFound},
			{"stat", second(s.Stat("b")), disk.ErrNotFound},
			{"grow", s.Grow("b", 1), disk.ErrNotFound},
			{"shrink", s.Grow("a", 9999), disk.ErrSize},
			{"snapshot", s.Snapshot("b", "s"), disk.ErrNotFound},
			{"snapshot twice", s.Snapshot("a", "s"), disk.ErrExists},
			{"snapshot without id", s.Snapshot("a", ""), disk.ErrID},
			{"delete snapshot", s.DeleteSnapshot("a", "x"), disk.ErrNotFound},
			{"delete snapshot of nothing", s.DeleteSnapshot("b", "s"), disk.ErrNotFound},
			{"restore", s.Restore("a", "x", "c", 0), disk.ErrNotFound},
			{"restore of nothing", s.Restore("b", "s", "c", 0), disk.ErrNotFound},
			{"restore over", s.Restore("a", "s", "a", 0), disk.ErrExists},
			{"restore smaller", s.Restore("a", "s", "c", 5), disk.ErrSize},
			{"clone", s.Clone("b", "c", 0), disk.ErrNotFound},
			{"clone over", s.Clone("a", "a", 0), disk.ErrExists},
			{"clone smaller", s.Clone("a", "c", 5), disk.ErrSize},
			{"delete", s.Delete("b"), disk.ErrNotFound},
			{"delete with snapshots", s.Delete("a"), disk.ErrInUse},
			{"fence", s.Fence("b"), disk.ErrNotFound},
		} {
			if !errors.Is(c.err, c.want) {
				t.Errorf("%s: got %v, want %v", c.name, c.err, c.want)
			}
		}
		if err := s.Create(long, 1); err == nil {
			// in memory there is no limit
			must(t, s.Delete(long))
		} else if !errors.Is(err, disk.ErrID) {
			t.Errorf("long id: %v", err)
		}
		want := []disk.Info{{ID: "a", Size: 10000, Snapshots: []string{"s"}}}
		if d := cmp.Diff(want, s.List()); d != "" {
			t.Errorf("refused calls changed the store:\n%s", d)
		}
	})
}

func second[T any](_ T, err error) error { return err }

func TestBounds(t *testing.T) {
	each(t, func(t *testing.T, s disk.Store) {
		must(t, s.Create("a", 5000))
		im := open(t, s, "a")
		write(t, im, 4990, "0123456789")
		if _, err := im.WriteAt([]byte("x"), 5000); err == nil {
			t.Error("write past the end went through")
		}
		if _, err := im.WriteAt([]byte("xyz"), 4999); err == nil {
			t.Error("write over the end went through")
		}
		if _, err := im.WriteAt([]byte("x"), -1); err == nil {
			t.Error("write before the start went through")
		}
		b := make([]byte, 20)
		if n, err := im.ReadAt(b, 4995); n != 5 || !errors.Is(err, io.EOF) || string(b[:n]) != "56789" {
			t.Errorf("read over the end: %d %v %q", n, err, b[:n])
		}
		if n, err := im.ReadAt(b, 5000); n != 0 || !errors.Is(err, io.EOF) {
			t.Errorf("read past the end: %d %v", n, err)
		}
		must(t, s.Grow("a", 9000))
		if im.Size() != 9000 {
			t.Errorf("an open image has %d bytes after Grow", im.Size())
		}
		if n, err := im.ReadAt(b, 4995); n != 20 || err != nil || string(b) != "56789"+strings.Repeat("\x00", 15) {
			t.Errorf("what is new: %d %v %q", n, err, b)
		}
	})
}

func TestSnapshotCloneRestore(t *testing.T) {
	each(t, func(t *testing.T, s disk.Store) {
		must(t, s.Create("a", 1<<20))
		im := open(t, s, "a")
		write(t, im, 4090, "first version")
		must(t, s.Snapshot("a", "s1"))
		write(t, im, 4090, "other")
		must(t, s.Clone("a", "clone", 0))
		write(t, im, 4090, "third")
		must(t, s.Restore("a", "s1", "old", 2<<20))
		for id, want := range map[string]string{"a": "third version", "clone": "other version", "old": "first version"} {
			if got := content(t, s, id)[4090 : 4090+len(want)]; string(got) != want {
				t.Errorf("%s: %q, want %q", id, got, want)
			}
		}
		// Writes to a restored image don't reach the snapshot.
		write(t, open(t, s, "old"), 4090, "XXXXX")
		must(t, s.Restore("a", "s1", "old2", 0))
		if got := content(t, s, "old2")[4090:4095]; string(got) != "first" {
			t.Errorf("the snapshot changed: %q", got)
		}
		if info, _ := s.Stat("old"); info.Size != 2<<20 {
			t.Errorf("restored to %d bytes", info.Size)
		}
		must(t, s.DeleteSnapshot("a", "s1"))
		must(t, s.Delete("a"))
		if got := content(t, s, "old2")[4090:4095]; string(got) != "first" {
			t.Errorf("restored image lost its content with its source: %q", got)
		}
	})
}

func TestFence(t *testing.T) {
	each(t, func(t *testing.T, s disk.Store) {
		must(t, s.Create("a", 8192))
		old := open(t, s, "a")
		write(t, old, 0, "mine")
		must(t, s.Fence("a"))
		if _, err := old.WriteAt([]byte("late"), 0); !errors.Is(err, disk.ErrFenced) {
			t.Errorf("write after the fence: %v", err)
		}
		if err := old.Sync(); !errors.Is(err, disk.ErrFenced) {
			t.Errorf("sync after the fence: %v", err)
		}
		// A loop device has opened the path for itself.
		fresh := open(t, s, "a")
		write(t, fresh, 4, "+new")
		if got := content(t, s, "a")[:8]; string(got) != "mine+new" {
			t.Errorf("content %q", got)
		}
	})
}

func TestFilesFenceCutsOffStaleOpeners(t *testing.T) {
	dir := t.TempDir()
	s, err := disk.NewFiles(dir)
	must(t, err)
	must(t, s.Create("a", 8192))
	im := open(t, s, "a")
	loop, err := os.OpenFile(im.Path(), os.O_RDWR, 0)
	must(t, err)
	defer loop.Close()
	must(t, s.Fence("a"))
	if _, err := loop.WriteAt([]byte("late"), 0); err != nil {
		t.Fatal(err)
	}
	if got := content(t, s, "a")[:4]; !bytes.Equal(got, make([]byte, 4)) {
		t.Errorf("a stale opener's write arrived: %q", got)
	}
}

func TestDeletedImageFails(t *testing.T) {
	each(t, func(t *testing.T, s disk.Store) {
		must(t, s.Create("a", 8192))
		im := open(t, s, "a")
		must(t, s.Delete("a"))
		if _, err := im.WriteAt([]byte("x"), 0); err == nil {
			t.Error("a deleted image takes writes")
		}
		must(t, s.Create("a", 8192))
		if got := content(t, s, "a"); !bytes.Equal(got, make([]byte, 8192)) {
			t.Error("a new image of an old name is not empty")
		}
	})
}

func TestClosed(t *testing.T) {
	each(t, func(t *testing.T, s disk.Store) {
		must(t, s.Create("a", 8192))
		must(t, s.Close())
		if err := s.Create("b", 1); !errors.Is(err, disk.ErrClosed) {
			t.Errorf("create after close: %v", err)
		}
		if len(s.List()) != 0 {
			t.Error("images after close")
		}
	})
}

// TestAllocated: what is written takes space, holes take none.
func TestAllocated(t *testing.T) {
	each(t, func(t *testing.T, s disk.Store) {
		must(t, s.Create("a", 1<<30))
		size := func(id string, least, most int64) {
			t.Helper()
			if n, err := s.Allocated(id); err != nil || n < least || n > most {
				t.Errorf("%s takes %d bytes, %v; want %d to %d", id, n, err, least, most)
			}
		}
		size("a", 0, 0)
		write(t, open(t, s, "a"), 3<<20, strings.Repeat("x", 1<<20))
		size("a", 1<<20, 1<<20+1<<16)
		must(t, s.Snapshot("a", "s"))
		must(t, s.Restore("a", "s", "b", 0))
		size("a", 1<<20, 1<<20+1<<16)
		size("b", 1<<20, 1<<20+1<<16)
		write(t, open(t, s, "a"), 3<<20, strings.Repeat("y", 1<<20))
		size("a", 1<<20, 2<<20+1<<17)
		if _, err := s.Allocated("none"); !errors.Is(err, disk.ErrNotFound) {
			t.Errorf("unknown image: %v", err)
		}
	})
}

func TestFilesAreSparse(t *testing.T) {
	dir := t.TempDir()
	s, err := disk.NewFiles(dir)
	must(t, err)
	must(t, s.Create("big", 1<<40))
	write(t, open(t, s, "big"), 1<<39, "here")
	must(t, s.Snapshot("big", "s"))
	must(t, s.Restore("big", "s", "copy", 0))
	im := open(t, s, "copy")
	b := make([]byte, 4)
	if _, err := im.ReadAt(b, 1<<39); err != nil || string(b) != "here" {
		t.Errorf("%v %q", err, b)
	}
}

func TestFilesLeftovers(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, ".tmp-1"), []byte("half"), 0o600))
	s, err := disk.NewFiles(dir)
	must(t, err)
	must(t, s.Close())
	if _, err := os.Stat(filepath.Join(dir, ".tmp-1")); err == nil {
		t.Error("what was not finished is still there")
	}
	must(t, os.WriteFile(filepath.Join(dir, "Bad.img"), nil, 0o600))
	if _, err := disk.NewFiles(dir); !errors.Is(err, disk.ErrID) {
		t.Errorf("a foreign name: %v", err)
	}
}

// model is what a store should hold.
type model struct {
	images map[string][]byte
	snaps  map[string]map[string][]byte
}

// TestModel drives each store with random operations and compares it with
// byte slices; stores that survive a restart are reopened in between.
func TestModel(t *testing.T) {
	for _, st := range stores {
		t.Run(st.name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				dir, err := os.MkdirTemp(t.TempDir(), "")
				must(t, err)
				s := st.open(t, dir)
				defer func() { s.Close() }()
				m := model{map[string][]byte{}, map[string]map[string][]byte{}}
				id := rapid.SampledFrom([]string{"a", "B", "c/d", "c.d"})
				snap := rapid.SampledFrom([]string{"s", "@", "S"})
				size := rapid.Int64Range(1, 20000)
				same := func(err error, ok bool) {
					rt.Helper()
					if (err == nil) != ok {
						rt.Fatalf("error %v, model says ok=%v", err, ok)
					}
				}
				add := func(id string, b []byte, size int64) bool {
					if m.images[id] != nil || size != 0 && size < int64(len(b)) {
						return false
					}
					m.images[id] = append(slices.Clone(b), make([]byte, max(0, size-int64(len(b))))...)
					m.snaps[id] = map[string][]byte{}
					return true
				}
				actions := map[string]func(*rapid.T){
					"create": func(rt *rapid.T) {
						i, n := id.Draw(rt, "id"), size.Draw(rt, "size")
						same(s.Create(i, n), add(i, nil, n))
					},
					"write": func(rt *rapid.T) {
						i := id.Draw(rt, "id")
						im, err := s.Open(i)
						same(err, m.images[i] != nil)
						if err != nil {
							return
						}
						defer im.Close()
						off := rapid.Int64Range(0, 20000).Draw(rt, "off")
						b := rapid.SliceOfN(rapid.Byte(), 0, 9000).Draw(rt, "data")
						if rapid.Bool().Draw(rt, "zeros") {
							clear(b)
						}
						ok := off+int64(len(b)) <= int64(len(m.images[i]))
						_, err = im.WriteAt(b, off)
						same(err, ok)
						if ok {
							copy(m.images[i][off:], b)
						}
					},
					"grow": func(rt *rapid.T) {
						i, n := id.Draw(rt, "id"), size.Draw(rt, "size")
						old := m.images[i]
						ok := old != nil && n >= int64(len(old))
						same(s.Grow(i, n), ok)
						if ok {
							m.images[i] = append(old, make([]byte, n-int64(len(old)))...)
						}
					},
					"snapshot": func(rt *rapid.T) {
						i, n := id.Draw(rt, "id"), snap.Draw(rt, "snap")
						_, has := m.snaps[i][n]
						ok := m.images[i] != nil && !has
						same(s.Snapshot(i, n), ok)
						if ok {
							m.snaps[i][n] = slices.Clone(m.images[i])
						}
					},
					"delete snapshot": func(rt *rapid.T) {
						i, n := id.Draw(rt, "id"), snap.Draw(rt, "snap")
						_, has := m.snaps[i][n]
						same(s.DeleteSnapshot(i, n), has)
						delete(m.snaps[i], n)
					},
					"revert": func(rt *rapid.T) {
						i, n := id.Draw(rt, "id"), snap.Draw(rt, "snap")
						b, has := m.snaps[i][n]
						same(s.Revert(i, n), has)
						if has {
							m.images[i] = slices.Clone(b)
						}
					},
					"changed": func(rt *rapid.T) {
						i, from, to := id.Draw(rt, "id"), snap.Draw(rt, "from"), snap.Draw(rt, "to")
						b, has := m.snaps[i][to]
						ext, err := s.Changed(i, from, to)
						same(err, has)
						if a := m.snaps[i][from]; has && a != nil {
							covered(rt, ext, a, b)
						}
						ext, err = s.Changed(i, "", to)
						same(err, has)
						if has {
							covered(rt, ext, nil, b)
						}
					},
					"restore": func(rt *rapid.T) {
						i, n, to := id.Draw(rt, "id"), snap.Draw(rt, "snap"), id.Draw(rt, "to")
						size := rapid.SampledFrom([]int64{0, 1, 10000, 20000}).Draw(rt, "size")
						b, has := m.snaps[i][n]
						err := s.Restore(i, n, to, size)
						same(err, has && add(to, b, size))
					},
					"clone": func(rt *rapid.T) {
						i, to := id.Draw(rt, "id"), id.Draw(rt, "to")
						b := m.images[i]
						err := s.Clone(i, to, 0)
						same(err, b != nil && add(to, b, 0))
					},
					"delete": func(rt *rapid.T) {
						i := id.Draw(rt, "id")
						ok := m.images[i] != nil && len(m.snaps[i]) == 0
						same(s.Delete(i), ok)
						if ok {
							delete(m.images, i)
						}
					},
					"fence": func(rt *rapid.T) {
						i := id.Draw(rt, "id")
						same(s.Fence(i), m.images[i] != nil)
					},
					"": func(rt *rapid.T) {
						infos := s.List()
						if len(infos) != len(m.images) {
							rt.Fatalf("%d images, want %d", len(infos), len(m.images))
						}
						for _, info := range infos {
							want, ok := m.images[info.ID]
							if !ok || info.Size != int64(len(want)) || len(info.Snapshots) != len(m.snaps[info.ID]) {
								rt.Fatalf("%+v, want %d bytes and %d snapshots", info, len(want), len(m.snaps[info.ID]))
							}
							if !bytes.Equal(content(t, s, info.ID), want) {
								rt.Fatalf("content of %q differs", info.ID)
							}
						}
					},
				}
				if st.reopen {
					actions["reopen"] = func(*rapid.T) {
						must(t, s.Close())
						s = st.open(t, dir)
					}
				}
				rt.Repeat(actions)
			})
		})
	}
}

// covered: what differs is in an extent, and extents are in order, apart and
// within the image.
func covered(t *rapid.T, ext []disk.Extent, a, b []byte) {
	in := func(off int64) bool {
		return slices.ContainsFunc(ext, func(e disk.Extent) bool { return off >= e.Start && off < e.Start+e.Length })
	}
	end := int64(-1)
	for _, e := range ext {
		if e.Start <= end || e.Length <= 0 || e.Start+e.Length > int64(len(b)) || e.Start%disk.ChangeUnit != 0 {
			t.Fatalf("extents %v of %d bytes", ext, len(b))
		}
		end = e.Start + e.Length
	}
	for off := range b {
		was := byte(0)
		if off < len(a) {
			was = a[off]
		}
		if b[off] != was && !in(int64(off)) {
			t.Fatalf("byte %d changed, extents are %v", off, ext)
		}
	}
}

// TestChanged: what was written between two snapshots, and no more than that
// but for the unit.
func TestChanged(t *testing.T) {
	each(t, func(t *testing.T, s disk.Store) {
		const mb = 1 << 20
		must(t, s.Create("a", 8*mb))
		im := open(t, s, "a")
		write(t, im, 0, "boot")
		write(t, im, 5*mb+100, "data")
		must(t, s.Snapshot("a", "s1"))
		write(t, im, 5*mb+200, "more")
		write(t, im, 5*mb+disk.ChangeUnit, "next to it")
		must(t, s.Snapshot("a", "s2"))
		write(t, im, 7*mb, "late")
		must(t, s.Snapshot("a", "s3"))
		u := int64(disk.ChangeUnit)
		check := func(since, snap string, want ...disk.Extent) {
			t.Helper()
			got, err := s.Changed("a", since, snap)
			must(t, err)
			if !slices.Equal(got, want) {
				t.Errorf("changed from %q to %s: %v, want %v", since, snap, got, want)
			}
		}
		check("", "s1", disk.Extent{0, u}, disk.Extent{5 * mb, u})
		check("s1", "s2", disk.Extent{5 * mb, 2 * u})
		check("s1", "s3", disk.Extent{5 * mb, 2 * u}, disk.Extent{7 * mb, u})
		check("s2", "s3", disk.Extent{7 * mb, u})
		check("s3", "s3")
		must(t, s.DeleteSnapshot("a", "s1"))
		got, err := s.Changed("a", "s1", "s2")
		must(t, err)
		if len(got) != 1 || got[0].Start > 5*mb || got[0].Start+got[0].Length < 5*mb+2*u {
			t.Errorf("changed since a snapshot that is gone: %v", got)
		}
		must(t, s.Revert("a", "s2"))
		if b := content(t, s, "a"); string(b[7*mb:7*mb+4]) == "late" || string(b[5*mb+200:5*mb+204]) != "more" {
			t.Error("not the content of the snapshot")
		}
		if _, err := im.WriteAt([]byte("x"), 0); !errors.Is(err, disk.ErrFenced) {
			t.Errorf("write through a handle from before: %v", err)
		}
		must(t, s.DeleteSnapshot("a", "s3"))
		must(t, s.Snapshot("a", "s4"))
		check("s2", "s4")
		got, err = s.Changed("a", "s3", "s4") // what is undone has changed too
		must(t, err)
		if len(got) != 1 || got[0] != (disk.Extent{0, 8 * mb}) {
			t.Errorf("changed since a snapshot that was undone: %v", got)
		}
	})
}

func BenchmarkSnapshotWrite(b *testing.B) {
	for _, st := range stores {
		b.Run(st.name, func(b *testing.B) {
			s := st.open(b, b.TempDir())
			defer s.Close()
			must(b, s.Create("a", 1<<30))
			im := open(b, s, "a")
			buf := bytes.Repeat([]byte("x"), 1<<20)
			for off := int64(0); off < 16<<20; off += 1 << 20 {
				im.WriteAt(buf, off)
			}
			for i := 0; b.Loop(); i++ {
				must(b, s.Snapshot("a", fmt.Sprint(i)))
				im.WriteAt(buf[:4096], int64(i%4096)*4096)
			}
		})
	}
}

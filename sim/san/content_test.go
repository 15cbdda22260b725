package san

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"

	"pgregory.net/rapid"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/disk"
)

var errBroken = errors.New("broken store")

// breaking is a store whose calls that change something fail from a certain one
// on.
type breaking struct {
	disk.Store
	left int // calls that still work; negative: all
}

func (s *breaking) call() error {
	if s.left == 0 {
		return errBroken
	}
	s.left--
	return nil
}

func (s *breaking) Create(id string, size int64) error {
	if err := s.call(); err != nil {
		return err
	}
	return s.Store.Create(id, size)
}

func (s *breaking) Clone(id, to string, size int64) error {
	if err := s.call(); err != nil {
		return err
	}
	return s.Store.Clone(id, to, size)
}

func (s *breaking) Grow(id string, size int64) error {
	if err := s.call(); err != nil {
		return err
	}
	return s.Store.Grow(id, size)
}

// TestContentOperations: whatever operations there are, content is what a map of
// texts says; those that fail, for their own sake or the store's, leave all as
// it was, and the store has no more than is needed.
func TestContentOperations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		store := &breaking{Store: disk.NewMemory(), left: -1}
		defer store.Close()
		later := rapid.Bool().Draw(t, "later")
		s := newContents(store, later)
		defer s.close()
		type known struct {
			text string
			mib  int64
			open disk.Image
		}
		model := map[string]known{}
		var closed []disk.Image // of content that is gone
		defer func() {
			for _, h := range closed {
				h.Close()
			}
		}()
		made := 0 // names are never used again
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			name := rapid.Map(rapid.IntRange(max(0, made-5), made), func(i int) string { return fmt.Sprint("i", i) })
			var ops []array.ContentOp
			next := maps.Clone(model)
			fits := true
			for range rapid.IntRange(1, 4).Draw(t, "ops") {
				o := array.ContentOp{Image: name.Draw(t, "image"), SizeMiB: rapid.Int64Range(1, 4).Draw(t, "size"),
					Do: rapid.SampledFrom([]array.Action{array.MakeImage, array.CopyImage, array.OverwriteImage, array.GrowImage, array.DropImage, array.ShareImage}).Draw(t, "do")}
				if _, there := next[o.Image]; !there && (o.Do == array.MakeImage || o.Do == array.CopyImage) {
					made++
					o.Image = fmt.Sprint("i", made)
				}
				if o.Do == array.CopyImage || o.Do == array.OverwriteImage {
					o.From = name.Draw(t, "from")
				}
				at, there := next[o.Image]
				from, source := next[o.From]
				ops = append(ops, o)
				switch o.Do {
				case array.MakeImage:
					fits = fits && !there
					next[o.Image] = known{mib: o.SizeMiB}
				case array.CopyImage:
					fits = fits && !there && source && o.SizeMiB >= from.mib
					next[o.Image] = known{text: from.text, mib: o.SizeMiB}
				case array.OverwriteImage:
					fits = fits && there && source && o.SizeMiB >= from.mib
					next[o.Image] = known{from.text, o.SizeMiB, at.open}
				case array.GrowImage:
					fits = fits && there && o.SizeMiB >= at.mib
					next[o.Image] = known{at.text, o.SizeMiB, at.open}
				case array.DropImage:
					fits = fits && there
					delete(next, o.Image)
				default:
					fits = fits && there
				}
			}
			if rapid.IntRange(0, 3).Draw(t, "breaks") == 0 {
				store.left = rapid.IntRange(0, 3).Draw(t, "works")
			}
			err := s.Apply(context.Background(), ops)
			store.left = -1
			if err == nil && !fits {
				t.Fatalf("%+v are taken on %v", ops, model)
			}
			if err != nil && fits && !errors.Is(err, errBroken) {
				t.Fatalf("%+v on %v: %v", ops, model, err)
			}
			if err == nil {
				for n, k := range model {
					if _, still := next[n]; !still && k.open != nil {
						closed = append(closed, k.open)
					}
				}
				model = next
			}

			for n, k := range model {
				h := k.open
				if h == nil {
					var err error
					if h, err = s.open(n); err != nil {
						t.Fatal(err)
					}
				}
				b := make([]byte, 8)
				if _, err := h.ReadAt(b, 0); err != nil || string(b[:len(k.text)]) != k.text || h.Size() != k.mib<<20 {
					t.Fatalf("%s is %q of %d bytes, want %q of %d MiB: %v", n, b, h.Size(), k.text, k.mib, err)
				}
				tail := make([]byte, 1)
				if _, err := h.ReadAt(tail, k.mib<<20-1); err != nil || tail[0] != 0 {
					t.Fatalf("the end of %s is %v: %v", n, tail, err)
				}
				if rapid.Bool().Draw(t, "write") {
					k.text = fmt.Sprintf("%08d", rapid.IntRange(0, 99999999).Draw(t, "text"))
					if _, err := h.WriteAt([]byte(k.text), 0); err != nil {
						t.Fatal(err)
					}
				}
				if _, err := h.WriteAt([]byte("x"), k.mib<<20); err == nil {
					t.Fatalf("a write beyond the end of %s", n)
				}
				if keep := rapid.Bool().Draw(t, "keep open"); keep {
					k.open = h
				} else {
					h.Close()
					k.open = nil
				}
				model[n] = k
			}
			for _, h := range closed {
				if _, err := h.ReadAt(make([]byte, 1), 0); !errors.Is(err, ErrNoContent) {
					t.Fatalf("content that is gone: %v", err)
				}
			}
			if later && rapid.Bool().Draw(t, "kept") {
				_, dead := s.kept()
				s.sweep(dead)
			}
			if want := len(model) + len(s.dead); len(store.List()) != want {
				t.Fatalf("the store has %v, %d are needed", store.List(), want)
			}
		}
		for _, k := range model {
			if k.open != nil {
				k.open.Close()
			}
		}
		for _, c := range s.images {
			if c.users != 0 || c.file != nil {
				t.Fatalf("%s is open: %+v", c.name, c)
			}
		}
	})
}

package record

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// stores are all implementations; reopen is what a restart does.
func stores(t *testing.T) map[string]func() (s Store, reopen func() Store) {
	file := func(dir string) Store {
		s, err := NewFile(dir)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	return map[string]func() (Store, func() Store){
		"memory": func() (Store, func() Store) { s := NewMemory(); return s, func() Store { return s } },
		"file": func() (Store, func() Store) {
			dir := filepath.Join(t.TempDir(), "records")
			return file(dir), func() Store { return file(dir) }
		},
	}
}

func TestStore(t *testing.T) {
	ctx := context.Background()
	for name, open := range stores(t) {
		t.Run(name, func(t *testing.T) {
			s, reopen := open()
			long := strings.Repeat("k/", 300)
			want := Record{Key: long, Op: "attach-volume", Backend: "vc", OpID: "id", Task: "task-1",
				Began: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), Params: map[string]string{"node": "n"}}
			if _, err := s.Get(ctx, long); !errors.Is(err, ErrNotFound) {
				t.Fatalf("get of nothing: %v", err)
			}
			for _, r := range []Record{want, {Key: "A"}, {Key: "a", Done: true, Result: "x"}} {
				if err := s.Put(ctx, r); err != nil {
					t.Fatal(err)
				}
			}
			want.Params["node"] = "changed by the caller"
			s = reopen()
			got, err := s.Get(ctx, long)
			want.Params["node"] = "n"
			if d := cmp.Diff(want, got); err != nil || d != "" {
				t.Errorf("%v\n%s", err, d)
			}
			all, err := s.List(ctx)
			if err != nil || len(all) != 3 || all[0].Key != "A" || all[1].Key != "a" {
				t.Errorf("list %v, %v", all, err)
			}
			for range 2 {
				if err := s.Delete(ctx, "A"); err != nil {
					t.Error(err)
				}
			}
			if all, err := reopen().List(ctx); err != nil || len(all) != 2 {
				t.Errorf("list after delete %v, %v", all, err)
			}
			if err := s.Put(ctx, Record{}); err == nil {
				t.Error("a record without a key")
			}
			dead, cancel := context.WithCancel(ctx)
			cancel()
			if err := s.Put(dead, Record{Key: "late"}); !errors.Is(err, context.Canceled) {
				t.Errorf("put of a dead caller: %v", err)
			}
			if _, err := s.Get(ctx, "late"); !errors.Is(err, ErrNotFound) {
				t.Error("a dead caller's record was written")
			}
		})
	}
}

// A walk is short: each step of the file store syncs twice.
func TestStoresAgree(t *testing.T) {
	ctx := context.Background()
	f, err := NewFile(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	m := NewMemory()
	draw := rand.New(rand.NewPCG(1, 2))
	keys := []string{"a", "A", "a/b", "b+c", "ü"}
	for i := range 120 {
		k := keys[draw.IntN(len(keys))]
		if draw.IntN(3) == 0 {
			err = errors.Join(f.Delete(ctx, k), m.Delete(ctx, k))
		} else {
			r := Record{Key: k, Op: fmt.Sprint(i)}
			err = errors.Join(f.Put(ctx, r), m.Put(ctx, r))
		}
		if err != nil {
			t.Fatal(err)
		}
		a, err := f.List(ctx)
		b, err2 := m.List(ctx)
		if d := cmp.Diff(a, b, cmpopts.EquateEmpty()); err != nil || err2 != nil || d != "" {
			t.Fatalf("step %d: %v %v\n%s", i, err, err2, d)
		}
	}
}

// What a killed process was writing is swept, and what it had written stays.
func TestFileAfterKill(t *testing.T) {
	dir := t.TempDir()
	s, err := NewFile(dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	if err := s.Put(ctx, Record{Key: "k", Op: "old"}); err != nil {
		t.Fatal(err)
	}
	half := filepath.Join(dir, "x"+tempSuffix)
	if err := os.WriteFile(half, []byte(`{"key":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err = NewFile(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(half); err == nil {
		t.Error("half a record is left")
	}
	if r, err := s.Get(ctx, "k"); err != nil || r.Op != "old" {
		t.Errorf("%v, %v", r, err)
	}
	if err := os.WriteFile(s.path("bad"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(ctx, "bad"); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("a broken record: %v", err)
	}
	if _, err := NewFile(""); err == nil {
		t.Error("no directory, no error")
	}
}

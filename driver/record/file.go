package record

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// File keeps each record in a file of a directory. A record is written to a
// temporary name, synced, renamed and the directory synced, so that a crash
// leaves the old record or the new one.
type File struct{ dir string }

// NewFile returns a store in dir, which is made with mode 0700 when missing.
// Half-written files of an earlier process are removed. A directory belongs
// to one process at a time.
func NewFile(dir string) (*File, error) {
	if dir == "" {
		return nil, fmt.Errorf("record: directory is empty")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"+tempSuffix))
	if err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	for _, f := range left {
		if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("record: %w", err)
		}
	}
	return &File{dir}, nil
}

const (
	suffix     = ".json"
	tempSuffix = ".tmp"
)

// path names the file by a digest: keys hold any character and may be longer
// than a file name, and a file system may not tell upper from lower case.
func (s *File) path(key string) string {
	sum := sha256.Sum256([]byte(key))
	return filepath.Join(s.dir, hex.EncodeToString(sum[:16])+suffix)
}

// Get implements Store.
func (s *File) Get(ctx context.Context, key string) (Record, error) {
	if err := check(ctx, key); err != nil {
		return Record{}, err
	}
	r, err := read(s.path(key))
	if errors.Is(err, fs.ErrNotExist) {
		return Record{}, ErrNotFound
	}
	return r, err
}

func read(path string) (Record, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return Record{}, fmt.Errorf("record: %w", err)
	}
	var r Record
	if err := json.Unmarshal(b, &r); err != nil {
		return Record{}, fmt.Errorf("record: %s: %w", path, err)
	}
	return r, nil
}

// Put implements Store.
func (s *File) Put(ctx context.Context, r Record) (err error) {
	if err := check(ctx, r.Key); err != nil {
		return err
	}
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	path := s.path(r.Key)
	f, err := os.CreateTemp(s.dir, filepath.Base(path)+"-*"+tempSuffix)
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
			err = fmt.Errorf("record: %w", err)
		}
	}()
	if _, err = f.Write(b); err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(s.dir)
}

// Delete implements Store.
func (s *File) Delete(ctx context.Context, key string) error {
	if err := check(ctx, key); err != nil {
		return err
	}
	err := os.Remove(s.path(key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = syncDir(s.dir)
	}
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	return nil
}

// List implements Store; the order is that of the keys.
func (s *File) List(ctx context.Context) ([]Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	es, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	var out []Record
	for _, e := range es {
		if !strings.HasSuffix(e.Name(), suffix) {
			continue
		}
		r, err := read(filepath.Join(s.dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b Record) int { return cmp.Compare(a.Key, b.Key) })
	return out, nil
}

// syncDir makes a rename durable. Windows cannot sync a directory.
func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}

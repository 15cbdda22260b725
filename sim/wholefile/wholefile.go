// Package wholefile writes files that are there whole, old or new, at any time.
package wholefile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Write replaces the file at path by rename. A process that is killed meanwhile
// may leave a file ".NAME-*" beside it.
func Write(path string, data []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(mode)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// New writes a file of dir that is not there yet, and returns its path: stem and
// ext, or stem-2 and ext, and so on. Processes that do so at once get files of
// their own. ext begins with a dot.
func New(dir, stem, ext string, write func(io.Writer) error) (path string, err error) {
	f, err := os.CreateTemp(dir, "."+stem+"-*")
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	if err := errors.Join(write(f), f.Chmod(0o644), f.Close()); err != nil {
		return "", err
	}
	path, err = claim(dir, stem, ext)
	if err != nil {
		return "", err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		os.Remove(path)
		return "", err
	}
	return path, nil
}

// claim makes an empty file with a free name: a rename alone would replace what
// another process has written meanwhile.
func claim(dir, stem, ext string) (string, error) {
	for n := 1; ; n++ {
		path := filepath.Join(dir, stem+ext)
		if n > 1 {
			path = filepath.Join(dir, fmt.Sprintf("%s-%d%s", stem, n, ext))
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		return path, f.Close()
	}
}

package cli

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// usable makes a directory where there is none, and makes sure that files can be
// written in it: what is kept there is written at the end of a run, when it is too
// late to say that it can't be.
func usable(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".csilab-*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// writable makes sure that a file can be written later. It leaves all as it was: a
// command that is refused for something else leaves no empty file.
func writable(file string) (err error) {
	if fi, serr := os.Stat(file); serr == nil && !fi.Mode().IsRegular() && !fi.IsDir() {
		return nil // a device or pipe, which may take its time to open
	}
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err == nil {
		return f.Close()
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var made []string // the outermost last
	for dir := filepath.Dir(file); ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			break
		}
		made = append(made, dir)
	}
	defer func() {
		for _, dir := range made {
			os.Remove(dir)
		}
	}()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if f, err = os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644); err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(file))
}

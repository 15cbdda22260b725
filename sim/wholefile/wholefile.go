// Package wholefile writes files that are there whole, old or new, at any time.
package wholefile

import (
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

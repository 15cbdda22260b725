package cli

import (
	"errors"
	"io/fs"
	"os"
)

// ledgerFile is the file of a proxy's ledger. What an earlier one wrote stays until
// it is emptied: a start that is refused changes nothing.
type ledgerFile struct {
	*os.File
	isNew bool
}

func openLedger(path string) (*ledgerFile, error) {
	_, err := os.Lstat(path)
	f, oerr := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if oerr != nil {
		return nil, oerr
	}
	return &ledgerFile{f, errors.Is(err, fs.ErrNotExist)}, nil
}

// empty takes away what an earlier proxy wrote; devices and pipes have nothing. nil
// is no file.
func (f *ledgerFile) empty() error {
	if f == nil {
		return nil
	}
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() {
		return err
	}
	return f.Truncate(0)
}

// undo removes the file if it was not there before.
func (f *ledgerFile) undo() {
	if f != nil && f.isNew {
		os.Remove(f.Name())
	}
}

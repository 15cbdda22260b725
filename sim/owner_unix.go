//go:build unix

package sim

import (
	"fmt"
	"os"
	"syscall"
)

// ownDirectory requires a directory, no link, that is this user's and that
// nobody else can write: things are run and removed in it.
func ownDirectory(path string) error {
	fi, err := os.Lstat(path)
	if err != nil {
		return err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	switch {
	case !fi.IsDir():
		return fmt.Errorf("%s is no directory", path)
	case ok && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to user %d, not to %d", path, st.Uid, os.Geteuid())
	case fi.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s has mode %#o: others may write to it", path, fi.Mode().Perm())
	}
	return nil
}

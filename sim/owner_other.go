//go:build !unix

package sim

import (
	"fmt"
	"os"
)

// ownDirectory requires a directory.
func ownDirectory(path string) error {
	fi, err := os.Lstat(path)
	if err == nil && !fi.IsDir() {
		err = fmt.Errorf("%s is no directory", path)
	}
	return err
}

//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

// Package lockfile locks a file for a process, so that two don't work on one
// directory.
package lockfile

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// Acquire locks a file for this process and writes its id into it. The lock
// ends with release, or with the process, however that ends. Errors say which
// process has it (*InUseError).
func Acquire(path string) (release func(), err error) {
	for {
		release, err := acquire(path)
		if release != nil || err != nil {
			return release, err
		}
	}
}

// acquire is one try; it returns nothing where the file was removed meanwhile by
// who had it.
func acquire(path string) (release func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			b, _ := os.ReadFile(path)
			return nil, &InUseError{Process: strings.TrimSpace(string(b))}
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	mine, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	if now, err := os.Stat(path); err != nil || !os.SameFile(mine, now) {
		f.Close()
		return nil, nil
	}
	if err = f.Truncate(0); err == nil {
		_, err = fmt.Fprintln(f, os.Getpid())
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

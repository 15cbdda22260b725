package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/csilab/csilab/sim/lockfile"
	"github.com/csilab/csilab/sim/wholefile"
)

// ownLine is the first line of each file that serve or a proxy writes for a
// client: a file without it is somebody else's.
const ownLine = "# Written by csilab, which removes it when it ends.\n"

// envFiles are the environment file of a client and what is written beside it,
// named after it. They hold passwords, and are true only while this process
// serves.
type envFiles struct {
	env   string // absolute
	lock  string
	free  func()
	wrote map[string][]byte
}

// claimEnv takes an environment file and those beside it, by the ends of their
// names, for this process, and removes those that an earlier one has left: they
// would tell a client of a server that is gone. Errors carry their exit code:
// usage where a file is somebody else's, environment where a process that lives
// has it.
func claimEnv(path string, beside ...string) (*envFiles, error) {
	env, err := filepath.Abs(path)
	if err != nil {
		return nil, exitf(ExitUsage, "--env %q: %w", path, err)
	}
	f := &envFiles{env: env, lock: filepath.Join(filepath.Dir(env), "."+filepath.Base(env)+".lock"), wrote: map[string][]byte{}}
	files := []string{env}
	for _, end := range beside {
		files = append(files, f.beside(end))
	}
	for _, name := range files {
		if err := ours(name, isOwn); err != nil {
			return nil, exitf(codeOfFile(err), "--env %q: %w", path, err)
		}
	}
	if err := ours(f.lock, isLock); err != nil {
		return nil, exitf(codeOfFile(err), "--env %q: %w", path, err)
	}
	release, err := lockfile.Acquire(f.lock)
	if errors.As(err, new(*lockfile.InUseError)) {
		return nil, exitf(ExitEnvironment, "--env %q: %w", path, err)
	}
	if err != nil {
		return nil, exitf(codeOfFile(err), "--env %q: %w", path, err)
	}
	f.free = release
	for _, name := range files {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			f.close()
			return nil, exitf(codeOfFile(err), "--env %q: %w", path, err)
		}
	}
	return f, nil
}

// beside is the path of a file beside the environment.
func (f *envFiles) beside(end string) string { return f.env + "." + end }

// write writes a file, by rename and for its owner only, below a line that says
// whose it is. What somebody else has put there meanwhile stays.
func (f *envFiles) write(path string, data []byte) error {
	if err := ours(path, isOwn); err != nil {
		return err
	}
	data = append([]byte(ownLine), data...)
	if err := wholefile.Write(path, data, 0o600); err != nil {
		return err
	}
	f.wrote[path] = data
	return nil
}

// remove removes the files that still hold what was written.
func (f *envFiles) remove() {
	for path, data := range f.wrote {
		if b, err := os.ReadFile(path); err == nil && bytes.Equal(b, data) {
			os.Remove(path)
		}
	}
}

// close removes what is left and lets the files go; nil has none.
func (f *envFiles) close() {
	if f == nil {
		return
	}
	f.remove()
	os.Remove(f.lock) // while it is held: who waits for it makes a new one
	f.free()
}

func isOwn(b []byte) bool { return bytes.HasPrefix(b, []byte(ownLine)) }

// isLock says whether a file holds the id of a process, or nothing, as a lock.
func isLock(b []byte) bool { return strings.Trim(string(b), "0123456789\n") == "" }

// ours refuses a file that is there and is not csilab's, as is tells.
func ours(path string, is func([]byte) bool) error {
	fi, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !fi.Mode().IsRegular():
		return fmt.Errorf("%s is there and is no regular file (%s)", filepath.Base(path), fi.Mode().Type())
	}
	b, err := readFile(path)
	if err != nil {
		return err
	}
	if !is(b) {
		return fmt.Errorf("%s is there and was not written by csilab serve; move it away, or name another file", filepath.Base(path))
	}
	return nil
}

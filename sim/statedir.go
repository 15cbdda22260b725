package sim

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/csilab/csilab/sim/host"
)

// stateDir is where one lab keeps its files; its lock tells live labs from
// dead ones.
type stateDir struct {
	path    string
	release func()
}

// labPrefix begins the name of a lab's directory. It is short, as the paths of
// unix sockets are.
const labPrefix = "l"

// nodeDir is the directory of a lab's node, by its index.
func nodeDir(lab string, i int) string { return filepath.Join(lab, fmt.Sprintf("n%d", i+1)) }

func newStateDir(root string) (*stateDir, error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	path, err := os.MkdirTemp(root, labPrefix)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	release, err := host.LockLab(path)
	if err != nil {
		os.Remove(path)
		return nil, fmt.Errorf("state directory: %w", err)
	}
	return &stateDir{path, release}, nil
}

func (d *stateDir) close() error {
	err := os.RemoveAll(d.path)
	d.release()
	return err
}

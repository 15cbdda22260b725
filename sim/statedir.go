package sim

import (
	"fmt"
	"os"

	"github.com/csilab/csilab/sim/host"
)

// stateDir is where one lab keeps its files; its lock tells live labs from
// dead ones.
type stateDir struct {
	path    string
	release func()
}

func newStateDir(root string) (*stateDir, error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	path, err := os.MkdirTemp(root, "l") // short: unix socket paths hold about 100 bytes
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

package vcenter

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	core "github.com/csilab/csilab/sim/vcenter/cns"
)

// stateFile is in StateDir.
const stateFile = "vcenter.json"

// taskGap is what a start that did not end in Close may have used up: the
// numbers of its tasks were not written down.
const taskGap = 1_000_000

// state survives a restart.
type state struct {
	// Epoch counts starts.
	Epoch int64 `json:"epoch"`
	// NextTask is where the numbers of tasks go on.
	NextTask int64 `json:"nextTask"`
	// CNS holds volumes and snapshots.
	CNS *core.State `json:"cns,omitempty"`
}

func (v *VCenter) loadState() (state, error) {
	if v.cfg.StateDir == "" {
		return state{}, nil
	}
	if err := os.MkdirAll(v.cfg.StateDir, 0o700); err != nil {
		return state{}, fmt.Errorf("vcenter: StateDir: %w", err)
	}
	var s state
	b, err := os.ReadFile(filepath.Join(v.cfg.StateDir, stateFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return s, fmt.Errorf("vcenter: StateDir: %w", err)
	default:
		if err := json.Unmarshal(b, &s); err != nil {
			return s, fmt.Errorf("vcenter: StateDir: %s: %w", stateFile, err)
		}
	}
	v.epoch = s.Epoch
	// Written before the first task: should this run be killed, the next one
	// starts beyond it.
	next := s
	next.Epoch++
	next.NextTask += taskGap
	return s, v.writeState(next)
}

func (v *VCenter) saveState() error {
	if v.cfg.StateDir == "" {
		return nil
	}
	return v.writeState(state{Epoch: v.epoch + 1, NextTask: v.tasks.Issued(), CNS: v.face.State()})
}

func (v *VCenter) writeState(s state) error {
	b, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("vcenter: state: %w", err)
	}
	if err := replaceFile(filepath.Join(v.cfg.StateDir, stateFile), b, 0o600); err != nil {
		return fmt.Errorf("vcenter: StateDir: %w", err)
	}
	return nil
}

package vcenter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/lockfile"
	core "github.com/csilab/csilab/sim/vcenter/cns"
	"github.com/csilab/csilab/sim/vcenter/task"
	"github.com/csilab/csilab/sim/wholefile"
)

// stateFile is in StateDir.
const stateFile = "vcenter.json"

// lockName is a file in StateDir that a running vCenter has locked.
const lockName = "lock"

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

// StateError says that a state directory can't be used, or not any longer: it
// is full, read-only, or another's.
type StateError struct {
	Dir string
	Err error
}

func (e *StateError) Error() string { return fmt.Sprintf("state directory %q: %v", e.Dir, e.Err) }

// Unwrap gives what is wrong.
func (e *StateError) Unwrap() error { return e.Err }

func (v *VCenter) stateError(err error) error {
	if err == nil {
		return nil
	}
	return &StateError{v.cfg.StateDir, err}
}

func (v *VCenter) loadState() (state, error) {
	if v.cfg.StateDir == "" {
		return state{}, nil
	}
	if err := os.MkdirAll(v.cfg.StateDir, 0o700); err != nil {
		return state{}, v.stateError(err)
	}
	release, err := lockfile.Acquire(filepath.Join(v.cfg.StateDir, lockName))
	if err != nil {
		return state{}, v.stateError(err)
	}
	v.unlockState = release
	var s state
	b, err := os.ReadFile(filepath.Join(v.cfg.StateDir, stateFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return s, v.stateError(err)
	default:
		if err := json.Unmarshal(b, &s); err != nil {
			return s, v.stateError(fmt.Errorf("%s: %w", stateFile, err))
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

// saveState writes what there is at the end of a run.
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
	return v.stateError(wholefile.Write(filepath.Join(v.cfg.StateDir, stateFile), b, 0o600))
}

// keeper writes the state while it changes: a change is acknowledged only once
// it is in the file, so that a killed process has lost nothing that anybody was
// told. The state is written whole; changes that come while a write is under
// way share the next one.
//
// It holds against the end of the process, not against a power cut of the
// machine: nothing waits for the disk itself.
type keeper struct {
	mu     sync.Mutex
	asked  uint64        // changes that want to be kept
	kept   uint64        // of them, how many the last write had
	err    error         // of the last write
	writes chan struct{} // closed when the write under way ends; nil: none is
}

// keep returns once a write that began after the call has ended, with its
// error. No lock of an object or of the core may be held: the write takes them.
func (v *VCenter) keep() error {
	if v.cfg.StateDir == "" {
		return nil
	}
	k := &v.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked++
	for mine := k.asked; k.kept < mine; {
		if under := k.writes; under != nil {
			k.mu.Unlock()
			<-under
			k.mu.Lock()
			continue
		}
		upTo, done := k.asked, make(chan struct{})
		k.writes = done
		k.mu.Unlock()
		err := v.writeState(state{Epoch: v.epoch + 1, NextTask: v.tasks.Issued() + taskGap, CNS: v.face.State()})
		k.mu.Lock()
		if err != nil && k.err == nil {
			v.log.Error("state not kept", "err", err)
			if v.cfg.OnStateError != nil {
				v.cfg.OnStateError(err)
			}
		}
		k.kept, k.err, k.writes = upTo, err, nil
		close(done)
	}
	return k.err
}

// keepTask is onTask, with what the task did kept before its end is reported.
func (v *VCenter) keepTask(ctx context.Context, c task.Call, commit func(context.Context) error) error {
	if v.cfg.StateDir == "" || strings.HasPrefix(c.Op, "CnsQuery") {
		return v.onTask(ctx, c, commit)
	}
	var kerr error
	err := v.onTask(ctx, c, func(ctx context.Context) error {
		err := commit(ctx)
		if err == nil {
			kerr = v.keep()
		}
		return err
	})
	if kerr != nil && !errors.Is(err, task.ErrLost) {
		return &task.Fault{Fault: &types.SystemError{Reason: kerr.Error()}, Message: "A general system error occurred: " + kerr.Error()}
	}
	return err
}

// reading are the beginnings of method names that change nothing that is kept.
var reading = []string{
	"Retrieve", "Query", "Fetch", "Find", "Has", "Check", "List", "Current", "Continue", "CancelRetrieve", "Wait", "CancelWait", "Login", "Logout", "Session",
	"TerminateSession", "CreateFilter", "DestroyPropertyFilter", "CreatePropertyCollector", "DestroyPropertyCollector", "CreateContainerView", "CreateListView",
	"CreateInventoryView", "ModifyListView", "ResetListView", "DestroyView", "Pbm", "VslmRetrieve", "VslmQuery", "VslmList", "VslmFetch", "Vsan",
	"Cns", // either queries or tasks, which keep what they did when they end, but for the two below
}

func changes(method string) bool {
	if method == "CnsSetVolumeControlFlags" || method == "CnsClearVolumeControlFlags" {
		return true
	}
	return !strings.HasSuffix(method, "_Task") && // keeps what it did when it ends
		!slices.ContainsFunc(reading, func(p string) bool { return strings.HasPrefix(method, p) })
}

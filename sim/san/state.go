package san

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/lockfile"
	"github.com/csilab/csilab/sim/wholefile"
)

// stateFile is in StateDir, lockName is a file there that a running SAN has
// locked.
const (
	stateFile = "san.json"
	lockName  = "san.lock"
)

// stored survives a restart. It has CHAP secrets.
type stored struct {
	Arrays map[string]storedArray   `json:"arrays,omitempty"`
	Images map[string]storedContent `json:"images,omitempty"`
}

type storedArray struct {
	Serial string `json:"serial"`
	*array.Stored
}

// StateError says that a state directory can't be used, or not any longer: it
// is full, read-only, another's, or has another configuration's arrays.
type StateError struct {
	Dir string
	Err error
}

func (e *StateError) Error() string { return fmt.Sprintf("state directory %q: %v", e.Dir, e.Err) }

// Unwrap gives what is wrong.
func (e *StateError) Unwrap() error { return e.Err }

// keeper writes the state while it changes. The state is written whole; changes
// that come while a write is under way share the next one.
type keeper struct {
	dir    string // empty: nothing is kept
	told   func(error)
	log    *slog.Logger
	last   stored // what was there at the start
	unlock func()

	mu     sync.Mutex
	asked  uint64        // changes that want to be kept
	kept   uint64        // of them, how many the last write had
	err    error         // of the last write
	writes chan struct{} // closed when the write under way ends; nil: none is
	closed bool
}

// ErrClosed is wrapped in a StateError when something changes after Close.
var ErrClosed = errors.New("closed")

func openState(dir string, told func(error), log *slog.Logger) (*keeper, error) {
	k := &keeper{dir: dir, told: told, log: log}
	if dir == "" {
		return k, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, k.fail(err)
	}
	unlock, err := lockfile.Acquire(filepath.Join(dir, lockName))
	if err != nil {
		return nil, k.fail(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err == nil {
		if err = json.Unmarshal(b, &k.last); err != nil {
			err = fmt.Errorf("%s: %w", stateFile, err)
		}
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		for name, a := range k.last.Arrays {
			if a.Stored == nil {
				err = fmt.Errorf("%s: array %q has no state", stateFile, name)
			}
		}
	}
	if err != nil {
		unlock()
		return nil, k.fail(err)
	}
	k.unlock = unlock
	left, _ := filepath.Glob(filepath.Join(dir, "."+stateFile+"-*")) // of a process that was killed
	for _, f := range left {
		os.Remove(f)
	}
	return k, nil
}

func (k *keeper) fail(err error) error { return &StateError{k.dir, err} }

func (k *keeper) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	if k.unlock != nil {
		k.unlock()
	}
}

// keep returns once a write that began after the call has ended, with its
// error.
func (s *SAN) keep() error {
	k := s.state
	if k.dir == "" {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked++
	for mine := k.asked; k.kept < mine; {
		if k.closed {
			return k.fail(ErrClosed)
		}
		if under := k.writes; under != nil {
			k.mu.Unlock()
			<-under
			k.mu.Lock()
			continue
		}
		upTo, done := k.asked, make(chan struct{})
		k.writes = done
		k.mu.Unlock()
		err := s.write()
		k.mu.Lock()
		if err != nil && k.err == nil {
			k.log.Error("state not kept", "err", err)
			if k.told != nil {
				k.told(err)
			}
		}
		k.kept, k.err, k.writes = upTo, err, nil
		close(done)
	}
	return k.err
}

// write writes the state as of now, and then deletes content that it does not
// need.
func (s *SAN) write() error {
	st := stored{Arrays: map[string]storedArray{}}
	s.mu.RLock()
	for _, a := range s.arrays {
		st.Arrays[a.name] = storedArray{a.serial, a.core.State()}
	}
	var dead []string
	st.Images, dead = s.contents.kept()
	s.mu.RUnlock()
	b, err := json.Marshal(st)
	if err == nil {
		err = wholefile.Write(filepath.Join(s.state.dir, stateFile), b, 0o600)
	}
	if err != nil {
		return s.state.fail(err)
	}
	s.contents.sweep(dead)
	return nil
}

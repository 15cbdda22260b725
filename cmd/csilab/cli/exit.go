package cli

import (
	"errors"
	"fmt"

	"github.com/csilab/csilab/scenarios"
)

// Exit codes. docs/exit-codes.md explains them; a test holds them to it.
const (
	ExitOK          = 0   // all passed
	ExitFailed      = 1   // a scenario failed
	ExitUsage       = 2   // usage or configuration: a flag, a file, a manifest
	ExitEnvironment = 3   // this machine can't do it; the message says what is missing
	ExitUnknown     = 4   // something else went wrong: a bug of csilab
	ExitInvariant   = 5   // an invariant of the lab broke
	ExitNoConverge  = 6   // the lab did not reach a state in time
	ExitInterrupted = 130 // stopped by a signal
)

// exitError is an error with the code that the process ends with.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func exitf(code int, format string, args ...any) error {
	return &exitError{code, fmt.Errorf(format, args...)}
}

// codeOf gives the exit code of a command's error. cobra's own errors are
// about usage.
func codeOf(err error) int {
	if err == nil {
		return ExitOK
	}
	var e *exitError
	if errors.As(err, &e) {
		return e.code
	}
	return ExitUsage
}

// codeOfClass is the exit code of one scenario's end.
func codeOfClass(c scenarios.Class) int {
	switch c {
	case scenarios.Passed, scenarios.Skipped:
		return ExitOK
	case scenarios.Invariant:
		return ExitInvariant
	case scenarios.NoConverge:
		return ExitNoConverge
	case scenarios.Environment:
		return ExitEnvironment
	case scenarios.Interrupted:
		return ExitInterrupted
	case scenarios.Failed:
		return ExitFailed
	}
	return ExitUnknown
}

// severity orders codes: the worst of a run is the run's.
func severity(code int) int {
	for i, c := range []int{ExitOK, ExitFailed, ExitNoConverge, ExitInvariant, ExitEnvironment, ExitUnknown, ExitInterrupted} {
		if c == code {
			return i
		}
	}
	return 0
}

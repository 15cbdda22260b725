package flow

import (
	"context"
	"errors"

	"github.com/csilab/csilab/sim"
)

// Class says how a flow or a scenario ended.
type Class string

// The classes, worst first.
const (
	Invariant   Class = "invariant"      // an invariant of the lab broke
	NoConverge  Class = "no-convergence" // the lab did not reach a state in time
	Failed      Class = "failed"         // a step gave something else than it must
	Environment Class = "environment"    // this machine can't do it
	Interrupted Class = "interrupted"    // stopped from outside
	Skipped     Class = "skipped"
	Passed      Class = "passed"
)

// Classify maps an error to a class and its text. ctx is that of the whole run,
// not of the one flow.
func Classify(ctx context.Context, err error) (Class, string) {
	var (
		inv *sim.InvariantError
		to  *sim.TimeoutError
		env *sim.EnvironmentError
	)
	switch {
	case err == nil:
		return Passed, ""
	case sim.IsSkip(err):
		return Skipped, err.Error()
	case errors.As(err, &inv):
		return Invariant, err.Error()
	case ctx.Err() != nil:
		return Interrupted, context.Cause(ctx).Error()
	case errors.As(err, &env):
		return Environment, err.Error()
	case errors.As(err, &to), errors.Is(err, context.DeadlineExceeded):
		return NoConverge, err.Error()
	}
	return Failed, err.Error()
}

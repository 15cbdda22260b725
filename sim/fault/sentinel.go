package fault

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrDrop tells a face to lose the reply: close the connection without one.
var ErrDrop = errors.New("fault: connection dropped")

// ErrCrashed tells a face that a component of this call has crashed; like
// ErrDrop no reply may leave.
var ErrCrashed = errors.New("fault: component crashed")

// ErrSkip tells the interceptor to answer with success without doing the
// operation: a liar, for mutants. The reply is the protocol's empty one.
var ErrSkip = errors.New("fault: skipped")

// ErrPurged tells the face of a task's work that the task is no longer known.
var ErrPurged = errors.New("fault: task purged")

// ErrReplyLost marks a call whose reply did not arrive for another reason than
// a rule on it: its deadline passed, or the drop of another call closed the
// connection that both shared. Whether it was applied is not known.
var ErrReplyLost = errors.New("fault: reply lost")

// Body tells a face of HTTP how to send the reply that it has. It carries the
// error of the call itself, or nil.
type Body struct {
	// Over is how long sending takes.
	Over time.Duration
	// Cut sends Keep percent of the body only, rounded down, then closes the
	// connection; with Document it sends that part as if it were all.
	Cut      bool
	Keep     int
	Document bool
	Err      error
}

func (b *Body) Error() string {
	switch {
	case b.Cut && b.Document:
		return fmt.Sprintf("fault: reply's document cut to %d%%", b.Keep)
	case b.Cut:
		return fmt.Sprintf("fault: connection closed after %d%% of the reply", b.Keep)
	}
	return fmt.Sprintf("fault: reply sent over %v", b.Over)
}

func (b *Body) Unwrap() error { return b.Err }

type discardKey struct{}

// Discarded says whether what the call of ctx answers reaches nobody, since the
// caller has the reply of another delivery: a face must not keep it as its reply.
func Discarded(ctx context.Context) bool { return ctx.Value(discardKey{}) != nil }

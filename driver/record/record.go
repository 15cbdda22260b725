// Package record keeps what a driver must not forget over a crash: which
// operation it has begun on a backend, on what, and which task carries it.
//
// A record is written before the backend is asked for anything, so that after
// a crash every operation that may have begun is known. It says nothing about
// the outcome: that is found on the backend.
package record

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrNotFound is returned by Get for a key without a record.
var ErrNotFound = errors.New("record: not found")

// Record is one operation on one subject. It holds no secret.
type Record struct {
	// Key is the subject, unique in a store: one operation at a time is under
	// way on a subject. It may hold any character; stores encode it.
	Key string `json:"key"`
	// Op is what was begun, e.g. "create-volume".
	Op string `json:"op"`
	// Backend is the address of the system that was asked.
	Backend string `json:"backend,omitempty"`
	// OpID marks the task on the backend, so that it is found when the reply
	// that named it was lost.
	OpID string `json:"opId,omitempty"`
	// Task is the backend's task, empty until its name is known.
	Task string `json:"task,omitempty"`
	// Began is when the operation began.
	Began time.Time `json:"began"`
	// Done marks an operation that succeeded; it is kept for what Params and
	// Result say about its subject.
	Done bool `json:"done,omitempty"`
	// Result is the id of what a successful operation made.
	Result string `json:"result,omitempty"`
	// Params are the parameters of the operation.
	Params map[string]string `json:"params,omitempty"`
}

// Store keeps records. Put replaces; Delete of a missing key is no error.
// What Put has returned for survives a crash of the process.
type Store interface {
	Get(ctx context.Context, key string) (Record, error)
	Put(ctx context.Context, r Record) error
	Delete(ctx context.Context, key string) error
	List(ctx context.Context) ([]Record, error)
}

func check(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if key == "" {
		return fmt.Errorf("record: key is empty")
	}
	return nil
}

package controller

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Kind is what went wrong, in the words of the CSI specification's tables.
type Kind int

// The kinds and the codes that they become.
const (
	Internal        Kind = iota // codes.Internal: failed for good, nothing done
	Invalid                     // codes.InvalidArgument
	NotFound                    // codes.NotFound
	AlreadyExists               // codes.AlreadyExists
	InUse                       // codes.FailedPrecondition
	Exhausted                   // codes.ResourceExhausted
	OutOfRange                  // codes.OutOfRange
	Aborted                     // codes.Aborted: an operation is under way, or a bad page token
	Unavailable                 // codes.Unavailable: the outcome isn't known, or the backend is away
	Denied                      // codes.PermissionDenied
	Unauthenticated             // codes.Unauthenticated: the secrets are missing or not accepted
)

var kindCodes = [...]codes.Code{codes.Internal, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists,
	codes.FailedPrecondition, codes.ResourceExhausted, codes.OutOfRange, codes.Aborted, codes.Unavailable, codes.PermissionDenied, codes.Unauthenticated}

// Code is the gRPC code of the kind.
func (k Kind) Code() codes.Code { return kindCodes[k] }

func (k Kind) String() string { return k.Code().String() }

// Error is a typed error of a backend. Its text goes to the user.
type Error struct {
	Kind Kind
	Msg  string
	Err  error // the cause, or nil; its text is part of Msg
}

func (e *Error) Error() string { return e.Msg }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an Error; %w keeps a cause.
func Errorf(k Kind, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: k, Msg: err.Error(), Err: errors.Unwrap(err)}
}

// KindOf returns the kind of an error. An error of a context counts as
// Unavailable: whether the operation was applied isn't known.
func KindOf(err error) Kind {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e.Kind
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return Unavailable
	}
	return Internal
}

// toStatus maps an error to the wire.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	var e *Error
	switch {
	case errors.As(err, &e):
		return status.Error(e.Kind.Code(), err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, err.Error())
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, err.Error())
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(codes.Internal, err.Error())
}

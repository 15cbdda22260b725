package hpe

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/csilab/csilab/driver/controller"
	"github.com/csilab/csilab/driver/hpe/csp"
)

// kinds maps statuses of one call to what they mean there, besides what fail
// knows of all calls.
type kinds map[int]controller.Kind

// fail makes an error of the controller of one of the client. What says
// nothing about the outcome is Unavailable: the caller then knows that the call
// may have been done, and repeats it, where a final code would let it forget
// what was made.
func fail(ctx context.Context, err error, special kinds, format string, args ...any) error {
	what := controller.Errorf(controller.Internal, format, args...).Msg
	var e *csp.Error
	if !errors.As(err, &e) {
		if ctx.Err() != nil {
			return err
		}
		return controller.Errorf(controller.Internal, "%s: %w", what, err)
	}
	if ctx.Err() != nil && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)) {
		return err // the caller's own deadline: its code is the context's
	}
	kind := controller.Internal
	special_, ok := special[e.Status]
	switch {
	case e.Unknown || e.Status == 0:
		kind = controller.Unavailable
		if isNoSpace(e) {
			kind = controller.Exhausted
		}
	case e.Login && e.Status == http.StatusBadRequest, e.Status == http.StatusUnauthorized:
		kind = controller.Unauthenticated
	case e.Login && e.Status == http.StatusForbidden:
		kind = controller.Denied
	case e.Login:
		// The provider is there, and can't log in anybody: not a matter of the
		// request.
		kind = controller.Unavailable
	case isNoSpace(e):
		kind = controller.Exhausted
	case ok:
		kind = special_
	case e.Status == http.StatusForbidden:
		kind = controller.Denied
	case e.Status == http.StatusNotFound:
		kind = controller.NotFound
	case e.Status == http.StatusConflict:
		kind = controller.InUse
	case e.Status == http.StatusRequestTimeout, e.Status == http.StatusTooManyRequests:
		kind = controller.Unavailable
	case e.Status == http.StatusNotImplemented:
	case e.Status >= 500:
		kind = controller.Unavailable
	case e.Status >= 400:
		kind = controller.Invalid
	}
	return controller.Errorf(kind, "%s: %w", what, err)
}

// isNoSpace reports a refusal for lack of space. The message is how providers
// say it: hpe.md 1.2 rule 10.
func isNoSpace(e *csp.Error) bool {
	if e.Status == http.StatusInsufficientStorage {
		return true
	}
	if e.Status < 400 {
		return false
	}
	m := strings.ToLower(e.Message)
	for _, s := range []string{"insufficient storage space", "insufficient space", "no space", "not enough space", "out of space", "no_space"} {
		if strings.Contains(m, s) {
			return true
		}
	}
	return false
}

// notFound says that a volume isn't there.
func notFound(volume string) error {
	return controller.Errorf(controller.NotFound, "volume %q doesn't exist", volume)
}

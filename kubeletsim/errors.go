package kubeletsim

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The kinds of errors of a volume operation
// (pkg/volume/util/types/types.go). As there, the first two count only when
// they are the outermost error: wrapped, they are final.

// uncertainError: the operation may be in progress in the driver.
type uncertainError struct{ msg string }

func (e *uncertainError) Error() string { return e.msg }

// transientError: the operation did not start and may succeed later.
type transientError struct{ msg string }

func (e *transientError) Error() string { return e.msg }

// preconditionError: the driver can't expand a volume in use.
type preconditionError struct{ msg string }

func (e *preconditionError) Error() string { return e.msg }

// infeasibleError: the expansion can't succeed as asked for.
type infeasibleError struct{ msg string }

func (e *infeasibleError) Error() string { return e.msg }

// notSupportedError: the driver has no node expansion.
type notSupportedError struct{ msg string }

func (e *notSupportedError) Error() string { return e.msg }

func finished(err error) bool {
	switch err.(type) {
	case *uncertainError, *transientError:
		return false
	}
	return true
}

func isUncertain(err error) bool { _, ok := err.(*uncertainError); return ok }

func is[T error](err error) bool { var t T; return errors.As(err, &t) }

// isFinal says whether a CSI call that failed is surely not in progress in the
// driver (pkg/volume/csi/csi_client.go, isFinalError).
func isFinal(err error) bool {
	st, ok := status.FromError(err)
	if !ok {
		return false
	}
	switch st.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return false
	}
	return true
}

// certain turns a CSI error that is not final into an uncertainError.
func certain(err error) error {
	if err != nil && !isFinal(err) {
		return &uncertainError{err.Error()}
	}
	return err
}

// csiErrorf prefixes a message as the CSI volume plugin does
// (pkg/volume/csi/csi_util.go, log).
func csiErrorf(format string, args ...any) error { return errors.New(csiMsg(format, args...)) }

func csiMsg(format string, args ...any) string {
	return "kubernetes.io/csi: " + fmt.Sprintf(format, args...)
}

func transientf(format string, args ...any) error {
	return &transientError{csiMsg(format, args...)}
}

// opError is what an operation reports: the text of its event
// (pkg/volume/util/operationexecutor/operation_executor.go:327).
func opError(prefix string, spec volumeSpec, err error) error {
	suffix := ""
	if err != nil {
		suffix = ": " + err.Error()
	}
	return fmt.Errorf("%s for volume %q %s", prefix, spec.name(), suffix)
}

package vsphere

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/vmware/govmomi/task"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/driver/broken"
	"github.com/csilab/csilab/driver/controller"
)

// fault is an answer of the vCenter that says no: as a SOAP fault, as the
// error of a task, or on one result of a task that succeeded.
type fault struct {
	name  string // type name, e.g. ResourceInUse; empty when the server gave none
	text  string
	value types.BaseMethodFault // may be nil
}

func (f *fault) Error() string {
	switch {
	case f.name == "":
		return f.text
	case f.text == "":
		return f.name
	}
	return f.text + " (" + f.name + ")"
}

// lost is a call without an answer: what it asked for may have been done.
type lost struct{ err error }

func (l *lost) Error() string {
	if broken.Connection(l.err) {
		return "no answer: " + broken.Text
	}
	return "no answer: " + l.err.Error()
}
func (l *lost) Unwrap() error { return l.err }

// wire turns an error of govmomi's clients into a *fault, an error of the
// context, or *lost.
func wire(err error) error {
	var f *fault
	var l *lost
	var ce *controller.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &f), errors.As(err, &l), errors.As(err, &ce):
		return err
	case soap.IsSoapFault(err):
		sf := soap.ToSoapFault(err)
		return newFault(sf.VimFault(), sf.String)
	case soap.IsVimFault(err):
		return newFault(soap.ToVimFault(err), "")
	}
	var te task.Error
	if errors.As(err, &te) && te.LocalizedMethodFault != nil {
		return localized(te.LocalizedMethodFault)
	}
	return &lost{err}
}

// newFault takes the detail of a SOAP fault, a value or a pointer.
func newFault(v any, text string) *fault {
	f := &fault{text: text}
	if v == nil {
		return f
	}
	rv := reflect.ValueOf(v)
	if rv.Kind() != reflect.Pointer {
		p := reflect.New(rv.Type())
		p.Elem().Set(rv)
		rv = p
	}
	if rv.IsNil() {
		return f
	}
	f.name = rv.Type().Elem().Name()
	f.value, _ = rv.Interface().(types.BaseMethodFault)
	f.addReason()
	return f
}

// localized takes a fault of a result. Real ones arrive without a type now
// and then, kubernetes-csi/external-attacher#460.
func localized(l *types.LocalizedMethodFault) *fault {
	if l == nil {
		return nil
	}
	f := newFault(l.Fault, l.LocalizedMessage)
	return f
}

// addReason appends what is nested in a fault: the outer text of CNS often
// says nothing.
func (f *fault) addReason() {
	add := func(s string) {
		if s = strings.TrimSpace(s); s != "" && !strings.Contains(f.text, s) {
			f.text = strings.TrimPrefix(f.text+": "+s, ": ")
		}
	}
	add(reasonOf(f.value))
	for v, n := f.value, 0; v != nil && n < 5; n++ {
		c := v.GetMethodFault().FaultCause
		if c == nil {
			return
		}
		add(c.LocalizedMessage)
		if c.Fault == nil {
			return
		}
		v = c.Fault
		add(reasonOf(v))
		add(typeName(v))
	}
}

func typeName(v any) string {
	if v == nil {
		return ""
	}
	return reflect.Indirect(reflect.ValueOf(v)).Type().Name()
}

// reasonOf reads the Reason of CnsFault and its kin.
func reasonOf(v types.BaseMethodFault) string {
	if v == nil {
		return ""
	}
	rv := reflect.Indirect(reflect.ValueOf(v))
	if rv.Kind() != reflect.Struct {
		return ""
	}
	if r := rv.FieldByName("Reason"); r.IsValid() && r.Kind() == reflect.String {
		return r.String()
	}
	return ""
}

// faultName is the type name of the fault in err, or "".
func faultName(err error) string {
	var f *fault
	if errors.As(err, &f) {
		return f.name
	}
	return ""
}

// has reports whether the fault or one nested in it has one of the names.
func (f *fault) has(names ...string) bool {
	is := func(n string) bool {
		for _, x := range names {
			if x == n {
				return true
			}
		}
		return false
	}
	if is(f.name) {
		return true
	}
	for v, n := f.value, 0; v != nil && n < 5; n++ {
		c := v.GetMethodFault().FaultCause
		if c == nil || c.Fault == nil {
			return false
		}
		if is(typeName(c.Fault)) {
			return true
		}
		v = c.Fault
	}
	return false
}

// faultHas is has on the fault in err.
func faultHas(err error, names ...string) bool {
	var f *fault
	return errors.As(err, &f) && f.has(names...)
}

// wireKind is the kind of an error that no operation knows better.
func wireKind(err error) controller.Kind {
	var f *fault
	var l *lost
	var ce *controller.Error
	switch {
	case errors.As(err, &ce):
		return ce.Kind
	case errors.As(err, &l), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return controller.Unavailable
	case !errors.As(err, &f):
		return controller.Internal
	}
	text := strings.ToLower(f.text)
	switch {
	case f.has("NoPermission"):
		return controller.Denied
	case f.has("NotAuthenticated", "InvalidLogin", "HostNotConnected", "HostNotReachable", "HostCommunication", "TaskInProgress",
		"InvalidHostState", "InMaintenance"):
		return controller.Unavailable
	case f.has("NoDiskSpace", "InsufficientStorageSpace", "InsufficientDisks", "InsufficientStorageIops", "InsufficientResourcesFault") ||
		strings.Contains(text, "insufficient space") || strings.Contains(text, "insufficient disk space") || strings.Contains(text, "no space"):
		return controller.Exhausted
	case f.has("NotFound", "CnsVolumeNotFoundFault", "CnsNotRegisteredFault", "CnsSnapshotNotFoundFault", "ManagedObjectNotFound"):
		return controller.NotFound
	case f.has("ResourceInUse", "InvalidState", "InvalidPowerState"):
		return controller.InUse
	}
	return controller.Internal
}

// failf wraps an error of the vCenter for the user, keeping errors of the
// context as they are.
func failf(err error, format string, args ...any) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		var l *lost
		if !errors.As(err, &l) {
			return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
		}
	}
	return controller.Errorf(wireKind(err), "%s: %w", fmt.Sprintf(format, args...), err)
}

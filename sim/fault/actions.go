package fault

import (
	"context"
	"errors"
	"fmt"
	"sync"
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

// Skip answers with success without doing the operation. It is how a mutant
// "forgets" a step; a driver under test never gets it by default.
func Skip() Action { return skipAction{} }

type skipAction struct{}

func (skipAction) Act(context.Context, *Interceptor, Call) error { return ErrSkip }
func (skipAction) String() string                                { return "skip" }

// Error answers with a typed error of the hop's protocol: a gRPC status error
// on csi and registration, a vim25 fault (wrapped by vcenter.Fault) on
// vcenter, a syscall.Errno on host, an apimachinery StatusError on kube.
func Error(err error) Action { return errorAction{err} }

type errorAction struct{ err error }

func (a errorAction) Act(context.Context, *Interceptor, Call) error { return a.err }
func (a errorAction) String() string                                { return fmt.Sprintf("error %v", a.err) }

// Delay holds the call for d, or until its context ends.
func Delay(d time.Duration) Action { return delayAction(d) }

type delayAction time.Duration

func (a delayAction) Act(ctx context.Context, _ *Interceptor, _ Call) error {
	return wait(ctx, time.Duration(a))
}
func (a delayAction) String() string { return "delay " + time.Duration(a).String() }

// Hang holds the call until its context ends or the plan's owner closes the lab.
func Hang() Action { return hangAction{} }

type hangAction struct{}

func (hangAction) Act(ctx context.Context, in *Interceptor, _ Call) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-in.closed():
		return ErrDrop
	}
}
func (hangAction) String() string { return "hang" }

// Drop loses the connection: in phase Before the operation never happens, in
// phase After it is committed and its reply lost.
func Drop() Action { return dropAction{} }

type dropAction struct{}

func (dropAction) Act(context.Context, *Interceptor, Call) error { return ErrDrop }
func (dropAction) String() string                                { return "drop" }

// Crash kills a component by name (e.g. "driver-controller",
// "driver@node-1", "kubelet@node-1"); "" means the component that made the
// call. The lab restarts it.
func Crash(component string) Action { return crashAction(component) }

type crashAction string

func (a crashAction) Act(_ context.Context, in *Interceptor, c Call) error {
	name := string(a)
	if name == "" {
		name = c.Component
	}
	in.crash(name)
	return ErrCrashed
}
func (a crashAction) String() string { return "crash " + string(a) }

// Func runs f: a change of state behind the driver's back, or anything else.
func Func(name string, f func(ctx context.Context, c Call) error) Action {
	return funcAction{name, f}
}

type funcAction struct {
	name string
	f    func(context.Context, Call) error
}

func (a funcAction) Act(ctx context.Context, _ *Interceptor, c Call) error { return a.f(ctx, c) }
func (a funcAction) String() string                                        { return a.name }

// Gate stops a call at a point until the test lets it go on.
type Gate struct {
	once    sync.Once
	reached chan Call
	release chan struct{}
}

// NewGate returns a closed gate.
func NewGate() *Gate {
	return &Gate{reached: make(chan Call, 64), release: make(chan struct{})}
}

// Act implements Action.
func (g *Gate) Act(ctx context.Context, in *Interceptor, c Call) error {
	select {
	case g.reached <- c:
	default:
	}
	select {
	case <-g.release:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-in.closed():
		return ErrDrop
	}
}

func (g *Gate) String() string { return "gate" }

// Reached waits until a call stands at the gate.
func (g *Gate) Reached(ctx context.Context) (Call, error) {
	select {
	case c := <-g.reached:
		return c, nil
	case <-ctx.Done():
		return Call{}, context.Cause(ctx)
	}
}

// Release opens the gate for good.
func (g *Gate) Release() { g.once.Do(func() { close(g.release) }) }

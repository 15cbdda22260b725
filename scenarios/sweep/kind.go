package sweep

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"

	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/vim25/types"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/csp"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/vcenter"
	"github.com/csilab/csilab/sim/wsapi"
)

// Kind is a kind of trouble that a sweep puts at a call.
type Kind struct {
	// Name is unique, lower case, words joined by dashes.
	Name string
	// Short is the heading of its column, six characters at the most.
	Short string
	// Doc says in half a sentence what happens to the call.
	Doc string
	// At is the trouble for one call; the error says why it does not fit.
	At func(e ledger.Entry, t times) (Trouble, error)
}

// Trouble is what happens at one call.
type Trouble struct {
	Phase fault.Phase
	Do    fault.Action
	// With makes the action for a lab, in place of Do.
	With func(*sim.Lab) fault.Action
	// Purge takes the task of the call out of the vCenter after that time: what
	// an administrator does about a task that never ends. 0: not.
	Purge time.Duration
}

// times of troubles that last, by the lab's timers.
type times struct {
	// delay is shorter than what callers wait, hold longer than most of them do.
	delay, hold time.Duration
}

func timesOf(timers string) times {
	if timers == "real" {
		// Kubelet gives a call two minutes, sidecars five.
		return times{40 * time.Second, 6 * time.Minute}
	}
	return times{300 * time.Millisecond, 1500 * time.Millisecond}
}

// Kinds lists all kinds in the order of their columns.
func Kinds() []Kind { return slices.Clone(kinds) }

// FindKind returns a kind by name.
func FindKind(name string) (Kind, bool) {
	i := slices.IndexFunc(kinds, func(k Kind) bool { return k.Name == name })
	if i < 0 {
		return Kind{}, false
	}
	return kinds[i], true
}

// isTask says whether a call is the work of a task of the vCenter, which
// nobody waits for at the other end of a connection.
func isTask(e ledger.Entry) bool {
	return e.Hop == ledger.VCenter && strings.HasPrefix(e.Op, "task:")
}

var (
	errTask    = errors.New("a task has no answer of its own; there are kinds for tasks")
	errNoTask  = errors.New("it is no task")
	errNoConn  = errors.New("a call of an operating system has no connection to lose")
	errSession = errors.New("this hop has no sessions")
	errNotCNS  = errors.New("only tasks of CNS have results of volumes")
)

// typed makes kinds that give a typed error.
func typed(phase fault.Phase, of func(ledger.Entry) error) func(ledger.Entry, times) (Trouble, error) {
	return func(e ledger.Entry, _ times) (Trouble, error) {
		if isTask(e) {
			return Trouble{}, errTask
		}
		err := of(e)
		if err == nil {
			return Trouble{}, fmt.Errorf("hop %s has no such error", e.Hop)
		}
		return Trouble{Phase: phase, Do: fault.Error(err)}, nil
	}
}

func dropped(phase fault.Phase) func(ledger.Entry, times) (Trouble, error) {
	return func(e ledger.Entry, _ times) (Trouble, error) {
		switch {
		case isTask(e):
			return Trouble{}, errTask
		case e.Hop == ledger.Host:
			return Trouble{}, errNoConn
		}
		return Trouble{Phase: phase, Do: fault.Drop()}, nil
	}
}

// held stops the call for long; callers with a deadline give up before.
func held(phase fault.Phase, long func(times) time.Duration) func(ledger.Entry, times) (Trouble, error) {
	return func(e ledger.Entry, t times) (Trouble, error) {
		switch {
		case isTask(e):
			return Trouble{}, errTask
		case e.Hop == ledger.Kube && phase == fault.After:
			return Trouble{}, errors.New("an API server's answer that is late is as one to a call that is late")
		}
		return Trouble{Phase: phase, Do: fault.Delay(long(t))}, nil
	}
}

// onTask are kinds for the work of tasks.
func onTask(make func(e ledger.Entry, t times) (Trouble, error)) func(ledger.Entry, times) (Trouble, error) {
	return func(e ledger.Entry, t times) (Trouble, error) {
		if !isTask(e) {
			return Trouble{}, errNoTask
		}
		return make(e, t)
	}
}

// callee is the component that serves a call.
func callee(e ledger.Entry) (string, error) {
	node := ""
	if i := strings.IndexByte(e.Component, '@'); i >= 0 {
		node = e.Component[i:]
	}
	switch e.Hop {
	case ledger.CSI:
		if node != "" {
			return "driver" + node, nil
		}
		return "driver-controller", nil
	case ledger.Registration:
		return "registrar" + node, nil
	case ledger.CSP:
		return "csp", nil
	case ledger.Host:
		return "", errors.New("the node itself serves it: flow failover takes its power")
	case ledger.Kube:
		return "", errors.New("the API server keeps running; its errors are kinds of their own")
	}
	return "", fmt.Errorf("the backend's own death is no kind of hop %s yet", e.Hop)
}

var kinds = []Kind{
	{"error-retriable", "again", "it is refused for the moment: Unavailable, 503, EBUSY, too busy (270)", typed(fault.Before, func(e ledger.Entry) error {
		switch e.Hop {
		case ledger.CSI, ledger.Registration:
			return status.Error(codes.Unavailable, "not now, please try again")
		case ledger.VCenter:
			return &vcenter.HTTPError{Status: http.StatusServiceUnavailable}
		case ledger.CSP:
			return &csp.Fault{Status: http.StatusServiceUnavailable, Message: "not now, please try again"}
		case ledger.WSAPI:
			return &wsapi.Fault{Status: http.StatusServiceUnavailable, Code: 270, Desc: "System is too busy. Please try again later"}
		case ledger.Host:
			return syscall.EBUSY
		case ledger.Kube:
			return apierrors.NewServiceUnavailable("not now, please try again")
		}
		return nil
	})},
	{"error-final", "final", "it is refused for good, this once: Internal, SystemError, 500, EIO", typed(fault.Before, internal)},
	{"error-conflict", "confl", "the object has changed meanwhile (409)", func(e ledger.Entry, _ times) (Trouble, error) {
		verb, kind, _ := strings.Cut(e.Op, " ")
		if e.Hop != ledger.Kube || !strings.HasPrefix(verb, "update") {
			return Trouble{}, errors.New("it is no update of an API object")
		}
		return Trouble{Phase: fault.Before, Do: fault.Error(apierrors.NewConflict(schema.GroupResource{Resource: kind}, e.Request, errors.New("the object has been modified")))}, nil
	}},
	{"session-ended", "sess", "the sessions of who makes it have ended before it arrives: NotAuthenticated, 401, 403 code 6", func(e ledger.Entry, _ times) (Trouble, error) {
		switch {
		case isTask(e):
			return Trouble{}, errTask
		case e.Hop == ledger.Kube:
			return Trouble{Phase: fault.Before, Do: fault.Error(apierrors.NewUnauthorized("the token has expired"))}, nil
		case e.Hop == ledger.VCenter, e.Hop == ledger.CSP, e.Hop == ledger.WSAPI:
			// The backend itself says so then: one that said it and kept the session
			// would make its caller leak one.
			return Trouble{Phase: fault.Before, With: func(l *sim.Lab) fault.Action {
				return fault.Func("end all sessions", func(context.Context, fault.Call) error { l.KillSessions(); return nil })
			}}, nil
		}
		return Trouble{}, errSession
	}},
	{"error-after", "e.aft", "it is done, and the caller told that it failed in a way that says nothing: DeadlineExceeded, 502, 500, EIO", typed(fault.After, func(e ledger.Entry) error {
		switch e.Hop {
		case ledger.CSI:
			// A final code after the commit would be a lie of the driver's.
			return status.Error(codes.DeadlineExceeded, "it took too long")
		case ledger.VCenter:
			return &vcenter.HTTPError{Status: http.StatusBadGateway}
		case ledger.Kube:
			return apierrors.NewTimeoutError("the request did not complete in time", 1)
		}
		return internal(e)
	})},
	{"drop-before", "drop<", "the connection goes before it arrives", dropped(fault.Before)},
	{"drop-after", "drop>", "it is done and the reply lost with the connection", dropped(fault.After)},
	{"delay", "delay", "it arrives late", held(fault.Before, func(t times) time.Duration { return t.delay })},
	{"hang-before", "hang<", "it arrives after its caller has given up", held(fault.Before, func(t times) time.Duration { return t.hold })},
	{"hang-after", "hang>", "it is done and the reply comes after its caller has given up", held(fault.After, func(t times) time.Duration { return t.hold })},
	{"crash-caller-after", "die>", "who made it is killed once it is done, and started again", func(e ledger.Entry, _ times) (Trouble, error) {
		switch {
		case isTask(e): // made by the driver
			return Trouble{Phase: fault.After, Do: fault.Crash("driver-controller")}, nil
		case e.Component == "user":
			return Trouble{}, errors.New("a person made it")
		}
		return Trouble{Phase: fault.After, Do: fault.Crash(e.Component)}, nil
	}},
	{"crash-caller-before", "die<", "who makes it is killed before it arrives, and started again", func(e ledger.Entry, _ times) (Trouble, error) {
		if e.Hop != ledger.CSI || e.Component == "user" {
			return Trouble{}, errors.New("killed before it is as killed after the call before")
		}
		return Trouble{Phase: fault.Before, Do: fault.Crash(e.Component)}, nil
	}},
	{"crash-callee-before", "kill<", "who serves it is killed before it is done, and started again", func(e ledger.Entry, _ times) (Trouble, error) {
		c, err := callee(e)
		return Trouble{Phase: fault.Before, Do: fault.Crash(c)}, err
	}},
	{"crash-callee-after", "kill>", "who serves it is killed once it is done, and started again", func(e ledger.Entry, _ times) (Trouble, error) {
		c, err := callee(e)
		return Trouble{Phase: fault.After, Do: fault.Crash(c)}, err
	}},
	{"task-fault", "t.flt", "the task fails and has done nothing", onTask(func(e ledger.Entry, _ times) (Trouble, error) {
		return Trouble{Phase: fault.Before, Do: fault.Error(&vcenter.Fault{Fault: &types.SystemError{Reason: "out of luck"}})}, nil
	})},
	{"task-fault-after", "t.aft", "the task has done its work and says that it failed", onTask(func(e ledger.Entry, _ times) (Trouble, error) {
		return Trouble{Phase: fault.After, Do: fault.Error(&vcenter.Fault{Fault: &types.SystemError{Reason: "out of luck"}})}, nil
	})},
	{"task-result", "t.res", "the task succeeds, with a fault for its volume", onTask(func(e ledger.Entry, _ times) (Trouble, error) {
		if !strings.HasPrefix(e.Op, "task:Cns") {
			return Trouble{}, errNotCNS
		}
		return Trouble{Phase: fault.Before, Do: fault.Error(&vcenter.Fault{Fault: &cnstypes.CnsFault{Reason: "out of luck"}, Result: true})}, nil
	})},
	{"task-slow", "t.slow", "the task takes longer than its caller waits", onTask(func(_ ledger.Entry, t times) (Trouble, error) {
		return Trouble{Phase: fault.Before, Do: fault.Delay(t.hold)}, nil
	})},
	{"task-never-ends", "t.hang", "the task does nothing and never ends, until an administrator clears it away", onTask(func(_ ledger.Entry, t times) (Trouble, error) {
		return Trouble{Phase: fault.Before, Do: fault.Drop(), Purge: 2 * t.hold}, nil
	})},
	{"task-never-told", "t.mute", "the task has done its work and never ends, until an administrator clears it away", onTask(func(_ ledger.Entry, t times) (Trouble, error) {
		return Trouble{Phase: fault.After, Do: fault.Drop(), Purge: 2 * t.hold}, nil
	})},
}

// internal is the error of something that went wrong at who serves a call.
func internal(e ledger.Entry) error {
	switch e.Hop {
	case ledger.CSI, ledger.Registration:
		return status.Error(codes.Internal, "something went wrong")
	case ledger.VCenter:
		if strings.Contains(e.Op, " ") {
			return &vcenter.HTTPError{Status: http.StatusInternalServerError}
		}
		return &vcenter.Fault{Fault: &types.SystemError{Reason: "something went wrong"}}
	case ledger.CSP:
		return &csp.Fault{Status: http.StatusInternalServerError, Message: "something went wrong"}
	case ledger.WSAPI:
		return &wsapi.Fault{Status: http.StatusInternalServerError, Code: 1, Desc: "internal server error"}
	case ledger.Host:
		return syscall.EIO
	case ledger.Kube:
		return apierrors.NewInternalError(errors.New("something went wrong"))
	}
	return nil
}

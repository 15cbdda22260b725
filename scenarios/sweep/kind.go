package sweep

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

// Kind is a kind of trouble that a sweep puts at a call: a kind of fault in a
// phase, with its parameters.
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
	// Kind of fault by name, and its parameters.
	Kind   string
	Params any
	Phase  fault.Phase
	// Purge takes the task of the call out of the vCenter after that time: what
	// an administrator does about a task that never ends. 0: not.
	Purge time.Duration
}

// rule completes a rule about a call with the trouble. Each lab needs one of its
// own, for what it does is noted there.
func (t Trouble) rule(at fault.Rule) (fault.Rule, error) {
	k, ok := fault.Lookup(t.Kind)
	if !ok {
		return at, fmt.Errorf("there is no fault %q", t.Kind)
	}
	at.Phase = t.Phase
	return k.Rule(at, t.Params)
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
	return e.Hop == ledger.VCenter && strings.HasPrefix(e.Op, fault.TaskPrefix)
}

var (
	errTask    = errors.New("a task has no answer of its own; there are kinds for tasks")
	errNoTask  = errors.New("it is no task")
	errNoConn  = errors.New("a call of an operating system has no connection to lose")
	errSession = errors.New("this hop has no sessions")
	errNotCNS  = errors.New("only tasks of CNS have results of volumes")
	errBeyond  = errors.New("not all comes right by itself after it there")
)

// typed makes kinds that give a typed error.
func typed(phase fault.Phase, of func(ledger.Entry) fault.ErrorParams) func(ledger.Entry, times) (Trouble, error) {
	return func(e ledger.Entry, _ times) (Trouble, error) {
		if isTask(e) {
			return Trouble{}, errTask
		}
		p := of(e)
		if p.Code == "" {
			return Trouble{}, fmt.Errorf("hop %s has no such error", e.Hop)
		}
		return Trouble{Kind: "error", Params: &p, Phase: phase}, nil
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
		return Trouble{Kind: "drop", Phase: phase}, nil
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
		return Trouble{Kind: "latency", Params: &fault.LatencyParams{Time: long(t)}, Phase: phase}, nil
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

// killed makes kinds in which a component of the call dies.
func killed(phase fault.Phase, state string, who func(ledger.Entry) (string, error)) func(ledger.Entry, times) (Trouble, error) {
	return func(e ledger.Entry, _ times) (Trouble, error) {
		name, err := who(e)
		return Trouble{Kind: "crash", Params: &fault.CrashParams{Component: name, State: state}, Phase: phase}, err
	}
}

// caller is the component that makes a call.
func caller(e ledger.Entry) (string, error) {
	switch {
	case isTask(e): // made by the driver
		return "driver-controller", nil
	case e.Component == "user":
		return "", errors.New("a person made it")
	}
	return e.Component, nil
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
	case ledger.VCenter:
		return "vcenter", nil
	case ledger.Host:
		return "", errors.New("the node itself serves it: kind power-loss takes its power")
	case ledger.Kube:
		return "", errors.New("the API server keeps running; its errors are kinds of their own")
	}
	return "", errors.New("an array that goes takes the disks of running pods along")
}

// changed is a kind that changes the lab and heals: it fits where the kind of
// fault says so.
func changed(name, short, kind string, phase fault.Phase, params func(times) any) Kind {
	k, ok := fault.Lookup(kind)
	if !ok || k.Sweep == nil {
		panic("sweep: fault " + kind + " is none for a sweep")
	}
	doc := k.Doc[:strings.IndexAny(k.Doc, ".:")]
	return Kind{name, short, strings.ToLower(doc[:1]) + doc[1:], func(e ledger.Entry, t times) (Trouble, error) {
		c := fault.Call{Hop: e.Hop, Op: e.Op, Component: e.Component, Node: e.Node, Volume: e.Volume, Snapshot: e.Snapshot, Request: e.Request}
		if !k.Sweep(c, phase) {
			return Trouble{}, errBeyond
		}
		trouble := Trouble{Kind: kind, Phase: phase}
		if params != nil {
			trouble.Params = params(t)
		}
		return trouble, nil
	}}
}

// outOfLuck is the error of a task.
func outOfLuck(code string, phase fault.Phase) func(ledger.Entry, times) (Trouble, error) {
	return onTask(func(e ledger.Entry, _ times) (Trouble, error) {
		if phase == fault.Result && !strings.HasPrefix(e.Op, fault.TaskPrefix+"Cns") {
			return Trouble{}, errNotCNS
		}
		return Trouble{Kind: "error", Params: &fault.ErrorParams{Code: code, Message: "out of luck"}, Phase: phase}, nil
	})
}

func endless(phase fault.Phase) func(ledger.Entry, times) (Trouble, error) {
	return onTask(func(_ ledger.Entry, t times) (Trouble, error) {
		return Trouble{Kind: "task-never-ends", Phase: phase, Purge: 2 * t.hold}, nil
	})
}

const notNow = "not now, please try again"

var kinds = []Kind{
	{"error-retriable", "again", "it is refused for the moment: Unavailable, 503, EBUSY, too busy (270)", typed(fault.Before, func(e ledger.Entry) (p fault.ErrorParams) {
		switch e.Hop {
		case ledger.CSI, ledger.Registration:
			return fault.ErrorParams{Code: "Unavailable", Message: notNow}
		case ledger.VCenter:
			return fault.ErrorParams{Code: "HTTP503"}
		case ledger.CSP:
			return fault.ErrorParams{Code: "503", Message: notNow}
		case ledger.WSAPI:
			return fault.ErrorParams{Code: "SYSTEM_BUSY"}
		case ledger.Host:
			return fault.ErrorParams{Code: "EBUSY"}
		case ledger.Kube:
			return fault.ErrorParams{Code: "ServiceUnavailable", Message: notNow}
		}
		return p
	})},
	{"error-final", "final", "it is refused for good, this once: Internal, SystemError, 500, EIO", typed(fault.Before, internal)},
	{"error-conflict", "confl", "the object has changed meanwhile (409)", func(e ledger.Entry, _ times) (Trouble, error) {
		if e.Hop != ledger.Kube || !strings.HasPrefix(e.Op, "update") {
			return Trouble{}, errors.New("it is no update of an API object")
		}
		return Trouble{Kind: "error", Params: &fault.ErrorParams{Code: "Conflict", Message: "the object has been modified"}, Phase: fault.Before}, nil
	}},
	{"session-ended", "sess", "the sessions of who makes it have ended before it arrives: NotAuthenticated, 401, 403 code 6", func(e ledger.Entry, _ times) (Trouble, error) {
		switch {
		case isTask(e):
			return Trouble{}, errTask
		case e.Hop == ledger.Kube:
			return Trouble{Kind: "error", Params: &fault.ErrorParams{Code: "Unauthorized", Message: "the token has expired"}, Phase: fault.Before}, nil
		case e.Hop == ledger.VCenter, e.Hop == ledger.CSP, e.Hop == ledger.WSAPI:
			return Trouble{Kind: "session-killed", Phase: fault.Before}, nil
		}
		return Trouble{}, errSession
	}},
	{"error-after", "e.aft", "it is done, and the caller told that it failed in a way that says nothing: DeadlineExceeded, 502, 500, EIO", typed(fault.After, func(e ledger.Entry) fault.ErrorParams {
		switch e.Hop {
		case ledger.CSI:
			// A final code after the commit would be a lie of the driver's.
			return fault.ErrorParams{Code: "DeadlineExceeded", Message: "it took too long"}
		case ledger.VCenter:
			return fault.ErrorParams{Code: "HTTP502"}
		case ledger.Kube:
			return fault.ErrorParams{Code: "Timeout", Message: "the request did not complete in time"}
		}
		return internal(e)
	})},
	{"drop-before", "drop<", "the connection goes before it arrives", dropped(fault.Before)},
	{"drop-after", "drop>", "it is done and the reply lost with the connection", dropped(fault.After)},
	{"delay", "delay", "it arrives late", held(fault.Before, func(t times) time.Duration { return t.delay })},
	{"hang-before", "hang<", "it arrives after its caller has given up", held(fault.Before, func(t times) time.Duration { return t.hold })},
	{"hang-after", "hang>", "it is done and the reply comes after its caller has given up", held(fault.After, func(t times) time.Duration { return t.hold })},
	{"crash-caller-after", "die>", "who made it is killed once it is done, and started again", killed(fault.After, "", caller)},
	{"crash-caller-before", "die<", "who makes it is killed before it arrives, and started again", killed(fault.Before, "", func(e ledger.Entry) (string, error) {
		if e.Hop != ledger.CSI || e.Component == "user" {
			return "", errors.New("killed before it is as killed after the call before")
		}
		return e.Component, nil
	})},
	{"crash-callee-before", "kill<", "who serves it is killed before it is done, and started again", killed(fault.Before, "", callee)},
	{"crash-callee-after", "kill>", "who serves it is killed once it is done, and started again", killed(fault.After, "", callee)},
	{"crash-callee-losing", "lose>", "the vCenter is killed once it is done, and forgets the tasks that have not begun", killed(fault.After, "lost", func(e ledger.Entry) (string, error) {
		if e.Hop != ledger.VCenter || isTask(e) {
			return "", errors.New("who serves it keeps nothing that it could lose")
		}
		return callee(e)
	})},
	{"task-fault", "t.flt", "the task fails and has done nothing", outOfLuck("SystemError", fault.Task)},
	{"task-fault-after", "t.aft", "the task has done its work and says that it failed", outOfLuck("SystemError", fault.After)},
	{"task-result", "t.res", "the task succeeds, with a fault for its volume", outOfLuck("CnsFault", fault.Result)},
	{"task-slow", "t.slow", "the task takes longer than its caller waits", onTask(func(_ ledger.Entry, t times) (Trouble, error) {
		return Trouble{Kind: "latency", Params: &fault.LatencyParams{Time: t.hold}, Phase: fault.Task}, nil
	})},
	{"task-never-ends", "t.hang", "the task does nothing and never ends, until an administrator clears it away", endless(fault.Task)},
	{"task-never-told", "t.mute", "the task has done its work and never ends, until an administrator clears it away", endless(fault.After)},
	{"duplicate", "twice", "it is delivered twice, and the caller has the reply of the second", func(e ledger.Entry, _ times) (Trouble, error) {
		k, _ := fault.Lookup("duplicate")
		switch {
		case isTask(e):
			return Trouble{}, errTask
		case !k.OnHop(e.Hop):
			return Trouble{}, fmt.Errorf("hop %s delivers a call once", e.Hop)
		}
		return Trouble{Kind: "duplicate", Phase: fault.Before}, nil
	}},
	changed("partition-before", "part<", "partition", fault.Before, cut),
	changed("partition-after", "part>", "partition", fault.After, cut),
	changed("power-loss-before", "power<", "power-loss", fault.Before, off),
	changed("power-loss-after", "power>", "power-loss", fault.After, off),
	changed("password-rotated", "passw", "password-rotated", fault.Before, func(t times) any { return &fault.LastParams{For: t.hold} }),
	changed("vm-moved-before", "move<", "vm-moved", fault.Before, nil),
	changed("vm-moved-after", "move>", "vm-moved", fault.After, nil),
	changed("datastore-maintenance", "maint", "datastore-maintenance", fault.Before, func(t times) any { return &fault.DatastoreParams{For: t.hold} }),
	changed("storage-full", "full", "storage-full", fault.Before, func(t times) any { return &fault.StorageFullParams{For: t.hold} }),
	changed("account-locked", "lock", "account-locked", fault.Before, func(t times) any { return &fault.AccountLockedParams{Sessions: "ended", For: t.hold} }),
	changed("device-late", "late", "device-late", fault.Before, func(t times) any { return &fault.DeviceLateParams{By: t.delay, For: t.hold} }),
	changed("device-silent", "silent", "device-silent", fault.Before, func(t times) any { return &fault.AttachmentLastParams{For: t.hold} }),
	changed("storage-cut", "cut", "storage-cut", fault.Before, func(t times) any { return &fault.NodeLastParams{For: t.hold} }),
	changed("volume-unregistered", "unreg", "volume-unregistered", fault.Before, func(t times) any { return &fault.VolumeLastParams{For: t.hold} }),
	changed("host-entry-removed", "host", "host-entry-removed", fault.Before, nil),
	changed("io-error", "ioerr", "io-error", fault.Before, func(t times) any { return &fault.IOErrorParams{For: t.hold} }),
	changed("read-only-remount", "ro", "read-only-remount", fault.Before, nil),
	changed("vlun-removed", "vlun", "vlun-removed", fault.Before, nil),
	changed("lun-renumbered", "lun", "lun-renumbered", fault.Before, nil),
	changed("snapshot-removed", "s.del", "snapshot-removed", fault.Before, nil),
	changed("volume-deleted", "v.del", "volume-deleted", fault.Before, nil),
}

// cut lasts longer than callers wait.
func cut(t times) any { return &fault.PartitionParams{For: t.hold} }

// off lasts less than until the node's pods are evicted.
func off(t times) any { return &fault.PowerLossParams{For: t.delay} }

// internal is the error of something that went wrong at who serves a call.
func internal(e ledger.Entry) (p fault.ErrorParams) {
	const wrong = "something went wrong"
	switch e.Hop {
	case ledger.CSI, ledger.Registration:
		return fault.ErrorParams{Code: "Internal", Message: wrong}
	case ledger.VCenter:
		if strings.Contains(e.Op, " ") {
			return fault.ErrorParams{Code: "HTTP500"}
		}
		return fault.ErrorParams{Code: "SystemError", Message: wrong}
	case ledger.CSP:
		return fault.ErrorParams{Code: "500", Message: wrong}
	case ledger.WSAPI:
		return fault.ErrorParams{Code: "INT_SERV_ERR"}
	case ledger.Host:
		return fault.ErrorParams{Code: "EIO"}
	case ledger.Kube:
		return fault.ErrorParams{Code: "InternalError", Message: wrong}
	}
	return p
}

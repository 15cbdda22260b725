package host

import (
	"context"
	"errors"
	"strings"
	"syscall"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

// Intercept puts the interceptor of a lab before the operations of h that
// change something, and before its commands; component is who calls. The hop
// is ledger.Host. Operations are named as the methods are, commands "exec
// mkfs.ext4"; Call.Request tells target and arguments, without sensitive mount
// options. Reads (Stat, ReadFile, List, …) pass without an entry: they are too
// many.
//
// A rule's syscall.Errno comes out as a *fs.PathError of the operation, other
// errors as they are. What no rule can mean on this hop, Drop and Crash, comes
// out as EIO and ErrFenced.
//
// The interface of a node has no contexts: a rule that hangs a call lets it go
// when the component is fenced (h is, or wraps, a *Fenced) or the interceptor
// is closed.
func Intercept(h Host, in *fault.Interceptor, component string) Host {
	if in == nil {
		return h
	}
	return guarded{h, interceptGuard{in: in, node: h.Name(), component: component, base: contextOf(h)}}
}

// contextOf is the context of an incarnation.
func contextOf(h Host) context.Context {
	switch x := h.(type) {
	case *Fenced:
		return x.Context()
	case guarded:
		return contextOf(x.h)
	}
	return context.Background()
}

type interceptGuard struct {
	in        *fault.Interceptor
	node      string
	component string
	base      context.Context
}

func (g interceptGuard) do(c operation, op func() error) error {
	if c.read {
		return op()
	}
	ctx := g.base
	if c.ctx != nil {
		// The caller's context, and the end of the incarnation.
		var cancel context.CancelCauseFunc
		ctx, cancel = context.WithCancelCause(c.ctx)
		stop := context.AfterFunc(g.base, func() { cancel(context.Cause(g.base)) })
		defer cancel(nil)
		defer stop()
	}
	request := c.path
	if c.request != "" {
		request = c.request
		if c.path != "" && !c.command {
			request = c.path + " " + c.request
		}
	}
	err := g.in.Do(ctx, fault.Call{Hop: ledger.Host, Op: c.name, Component: g.component, Node: g.node, Volume: volumeIn(request), Request: request},
		func(context.Context) error { return op() })
	var errno syscall.Errno
	switch {
	case errors.Is(err, fault.ErrCrashed):
		return pathError(c.name, c.path, ErrFenced)
	case errors.Is(err, fault.ErrDrop):
		return pathError(c.name, c.path, syscall.EIO)
	case errors.As(err, &errno) && err == error(errno):
		return pathError(c.name, c.path, errno)
	}
	return err
}

// volumeIn finds the PersistentVolume that a kubelet's path is about, as in
// …/volumes/kubernetes.io~csi/PV/mount; "" when it says nothing.
func volumeIn(request string) string {
	for _, before := range []string{"/kubernetes.io~csi/", "/kubernetes.io/csi/volumeDevices/publish/", "/kubernetes.io/csi/volumeDevices/staging/", "/kubernetes.io/csi/volumeDevices/"} {
		if _, rest, ok := strings.Cut(request, before); ok {
			pv, _, _ := strings.Cut(rest, "/")
			pv, _, _ = strings.Cut(pv, " ")
			return pv
		}
	}
	return ""
}

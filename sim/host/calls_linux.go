package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"k8s.io/utils/exec"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/host/shim"
	"github.com/csilab/csilab/sim/ledger"
)

func (h *Real) commandDir() string { return filepath.Join(h.cfg.Dir, "bin") }

// listenForCalls makes the links and the socket.
func (h *Real) listenForCalls() error {
	if h.cfg.Interceptor == nil && h.san == nil {
		return nil
	}
	if !mainCalled {
		return errNoMain
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("host: %w", err)
	}
	var names []string
	if h.cfg.Interceptor != nil {
		for _, name := range shim.Names {
			if _, err := findTool(name); err == nil { // otherwise the node lacks it
				names = append(names, name)
			}
		}
	}
	if h.san != nil {
		names = append(names, shim.Emulated...)
	}
	for _, name := range names {
		link := filepath.Join(h.commandDir(), name)
		_ = os.Remove(link) // an earlier binary's
		if err := os.Symlink(self, link); err != nil {
			return fmt.Errorf("host: %w", err)
		}
	}
	// An abstract name leaves no file, and is the same in every mount namespace.
	h.calls, err = net.Listen("unix", "@csilab-"+UUIDOf(h.cfg.Dir))
	if err != nil {
		return fmt.Errorf("host: %w", err)
	}
	h.serve.Add(1)
	go h.acceptCalls()
	return nil
}

func (h *Real) acceptCalls() {
	defer h.serve.Done()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for {
		c, err := h.calls.Accept()
		if err != nil {
			return
		}
		if !ownProcess(c.(*net.UnixConn)) {
			c.Close()
			continue
		}
		h.serve.Add(1)
		go func() {
			defer h.serve.Done()
			defer c.Close()
			stop := context.AfterFunc(ctx, func() { c.Close() })
			defer stop()
			if err := h.call(ctx, c); err != nil {
				h.log.Debug("command of a node ended without its answer", "node", h.cfg.Name, "error", err)
			}
		}()
	}
}

// ownProcess says whether the peer runs as the same user.
func ownProcess(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var cred *unix.Ucred
	var cerr error
	err = raw.Control(func(fd uintptr) { cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return err == nil && cerr == nil && int(cred.Uid) == os.Geteuid()
}

// call passes one command through the interceptor.
func (h *Real) call(ctx context.Context, c net.Conn) error {
	req, err := shim.Read(c)
	if err != nil {
		return err
	}
	// What the command says later, or its end: a held call is let go when the
	// command is killed.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan shim.Message, 1)
	h.serve.Add(1)
	go func() {
		defer h.serve.Done()
		m, err := shim.Read(c)
		if err != nil {
			cancel(fmt.Errorf("%w: the command was killed", fault.ErrReplyLost))
			return
		}
		ended <- m
	}()
	unmounted := func() {}
	if req.Name == "umount" {
		unmounted = h.san.unmounting()
	}
	op := commandOperation(req.Name, req.Args)
	ran := false
	var status shim.Message
	request := op.request
	if !op.command {
		request = strings.TrimSpace(op.path + " " + op.request)
	}
	err = h.cfg.Interceptor.Do(ctx, fault.Call{Hop: ledger.Host, Op: op.name, Component: h.cfg.Component, Node: h.cfg.Name, Volume: volumeIn(request), Request: request},
		func(ctx context.Context) error {
			if err := ctx.Err(); err != nil {
				return context.Cause(ctx)
			}
			if h.emulates(req.Name) {
				ran = true
				var o, e strings.Builder
				code, err := h.san.run(&o, &e, req.Name, req.Args)
				status = shim.Message{Exit: code, Out: o.String(), Text: e.String()}
				return exit(code, err)
			}
			if err := (shim.Message{Go: true}).Write(c); err != nil {
				return fmt.Errorf("%w: %w", fault.ErrReplyLost, err)
			}
			ran = true
			select {
			case status = <-ended:
				return exit(status.Exit, nil)
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	unmounted()
	return answer(req.Name, ran, status, err).Write(c)
}

// answer makes the end of a command from what the interceptor said.
func answer(name string, ran bool, status shim.Message, err error) shim.Message {
	var own exec.CodeExitError
	var errno syscall.Errno
	switch {
	case err == nil:
		return status
	case errors.As(err, &own):
		status.Exit = own.Code
		if !ran { // a rule says how it ends
			status.Text = fmt.Sprintf("%s: %v\n", name, own.Err)
		}
		return status
	case errors.Is(err, fault.ErrCrashed):
		return shim.Message{Exit: 128 + int(syscall.SIGKILL)}
	case errors.As(err, &errno):
		err = errno
	case errors.Is(err, fault.ErrDrop):
		err = syscall.EIO
	}
	code := 1
	if name == "mount" || name == "umount" {
		code = mountFail
	}
	return shim.Message{Exit: code, Text: fmt.Sprintf("%s: %v\n", name, err)}
}

// commandOperation names a command as the calls through the Host interface are
// named. A bind mount with options is two runs of mount(8) and one Mount: the
// second run keeps the command's name.
func commandOperation(name string, args []string) operation {
	switch name {
	case "mount":
		if r, err := parseMount(args); err == nil && r.target != "" && !(r.bind && r.remount) {
			opts := redact(r.opts)
			if r.bind {
				opts = append(opts, "bind")
			}
			if r.ro {
				opts = append(opts, "ro")
			}
			return mountOperation(r.source, r.target, r.fstype, opts)
		}
	case "umount":
		if len(args) > 0 {
			return operation{name: "Unmount", path: args[len(args)-1]}
		}
	}
	return operation{name: "exec " + name, request: strings.Join(redactCommand(name, args), " "), command: true}
}

package host

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"k8s.io/utils/exec"

	"github.com/csilab/csilab/sim/host/scsi"
)

// command is a program of the node in memory. It runs with the kernel locked
// and returns its exit status.
type command func(h *Memory, out, errs io.Writer, args []string) int

// commands are found by name; the files that define them add to the table.
var commands = map[string]command{}

// memoryExec runs the commands of a node in memory.
type memoryExec struct{ h *Memory }

func (e memoryExec) Command(cmd string, args ...string) exec.Cmd {
	return e.CommandContext(context.Background(), cmd, args...)
}

func (e memoryExec) CommandContext(ctx context.Context, cmd string, args ...string) exec.Cmd {
	return &innerCmd{ctx: ctx, run: func(ctx context.Context, out, errs io.Writer) error {
		return e.h.run(ctx, out, errs, cmd, args)
	}}
}

func (e memoryExec) LookPath(file string) (string, error) {
	if e.h.find(file) == nil {
		return "", exec.ErrExecutableNotFound
	}
	return "/usr/sbin/" + file, nil
}

func (h *Memory) find(name string) command {
	for _, dir := range []string{"/usr/sbin/", "/usr/bin/", "/sbin/", "/bin/", "/lib/udev/", "/usr/lib/udev/"} {
		if rest, ok := strings.CutPrefix(name, dir); ok {
			name = rest
			break
		}
	}
	if slices.Contains(h.cfg.Missing, name) {
		return nil
	}
	if h.scsi != nil && scsi.IsCommand(name) {
		return func(h *Memory, out, errs io.Writer, args []string) int {
			defer h.udev()
			defer h.waiting.wake() // it may have ended a wait
			return h.scsi.Run(out, errs, name, args)
		}
	}
	return commands[name]
}

// run runs a command to its end. The error is an exec.ExitError, ErrOff,
// exec.ErrExecutableNotFound or the context's.
func (h *Memory) run(ctx context.Context, out, errs io.Writer, name string, args []string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	c := h.find(name)
	if c == nil {
		return exec.ErrExecutableNotFound
	}
	// The output goes to the caller's writers once the kernel is unlocked.
	var o, e bytes.Buffer
	eo := &e
	if out == errs {
		eo = &o // in one stream, in order
	}
	status, err := during(h, "fork/exec", name, func() (int, error) {
		o.Reset()
		e.Reset()
		return c(h, &o, eo, args), nil
	})
	if err != nil {
		return err
	}
	if out != nil {
		_, err = out.Write(o.Bytes())
	}
	if errs != nil && err == nil {
		_, err = errs.Write(e.Bytes())
	}
	return exit(status, err)
}

func exit(status int, err error) error {
	if status != 0 {
		return exec.CodeExitError{Err: fmt.Errorf("exit status %d", status), Code: status}
	}
	return err
}

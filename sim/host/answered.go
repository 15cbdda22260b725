package host

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"slices"

	"k8s.io/utils/exec"

	"github.com/csilab/csilab/sim/host/shim"
)

// Answered gives what runs commands in a process of a node: those that the node
// itself answers are asked for from this process, in place of a link to this
// binary that does nothing else. The start of a large binary costs more than most
// answers. The interceptor is asked in the same words; all other commands, and all
// of a process outside a lab, go to e.
func Answered(e exec.Interface) exec.Interface {
	if addr := os.Getenv(shim.EnvCalls); addr != "" {
		return answered{e, addr}
	}
	return e
}

type answered struct {
	exec.Interface
	addr string // of the node
}

func (a answered) Command(cmd string, args ...string) exec.Cmd {
	return a.CommandContext(context.Background(), cmd, args...)
}

func (a answered) CommandContext(ctx context.Context, cmd string, args ...string) exec.Cmd {
	if !slices.Contains(shim.Emulated, cmd) {
		return a.Interface.CommandContext(ctx, cmd, args...)
	}
	if _, err := a.LookPath(cmd); err != nil { // a node without such storage
		return a.Interface.CommandContext(ctx, cmd, args...)
	}
	return &innerCmd{ctx: ctx, run: func(ctx context.Context, out, errs io.Writer) error {
		m, err := a.ask(ctx, cmd, args)
		if err != nil {
			return err
		}
		say(out, m.Out)
		say(errs, m.Text)
		return exit(m.Exit, nil)
	}}
}

// ask passes a command to the node. The connection ends with ctx, which is to the
// node as if the command was killed.
func (a answered) ask(ctx context.Context, name string, args []string) (shim.Message, error) {
	if err := ctx.Err(); err != nil {
		return shim.Message{}, err
	}
	node, err := net.Dial("unix", a.addr)
	if err != nil {
		return shim.Message{}, fmt.Errorf("%s: %w", name, err)
	}
	defer node.Close()
	stop := context.AfterFunc(ctx, func() { node.Close() })
	defer stop()
	if err = (shim.Message{Name: name, Args: args}).Write(node); err == nil {
		var m shim.Message
		if m, err = shim.Read(node); err == nil {
			return m, nil
		}
	}
	if ctx.Err() != nil {
		return shim.Message{}, ctx.Err()
	}
	return shim.Message{}, exec.CodeExitError{Err: fmt.Errorf("%s: %w", name, err), Code: 1} // as the link ends
}

func say(w io.Writer, text string) {
	if w != nil {
		_, _ = io.WriteString(w, text)
	}
}

package host

import (
	"context"
	"path"
	"strings"

	"k8s.io/utils/exec"
)

// guardedExec runs commands behind a guard.
type guardedExec struct {
	e exec.Interface
	g guard
}

func (x guardedExec) LookPath(file string) (string, error) {
	return value(x.g, read("LookPath", file), func() (string, error) { return x.e.LookPath(file) })
}

func (x guardedExec) Command(cmd string, args ...string) exec.Cmd {
	return x.wrap(context.Background(), x.e.Command(cmd, args...), cmd, args)
}

func (x guardedExec) CommandContext(ctx context.Context, cmd string, args ...string) exec.Cmd {
	return x.wrap(ctx, x.e.CommandContext(ctx, cmd, args...), cmd, args)
}

func (x guardedExec) wrap(ctx context.Context, c exec.Cmd, cmd string, args []string) exec.Cmd {
	shown := redactCommand(path.Base(cmd), args)
	op := operation{name: "exec " + path.Base(cmd), request: strings.Join(shown, " "), command: true, ctx: ctx}
	if len(shown) > 0 {
		op.path = shown[len(shown)-1]
	}
	return &guardedCmd{Cmd: c, g: x.g, op: op}
}

// guardedCmd passes the guard once, when the command runs. Of a command that
// is started and waited for separately the guard sees the start.
type guardedCmd struct {
	exec.Cmd
	g  guard
	op operation
}

func (c *guardedCmd) Run() error { return c.g.do(c.op, c.Cmd.Run) }

func (c *guardedCmd) output(run func() ([]byte, error)) ([]byte, error) {
	var out []byte
	err := c.g.do(c.op, func() (err error) {
		out, err = run()
		return err
	})
	return out, err
}

func (c *guardedCmd) CombinedOutput() ([]byte, error) { return c.output(c.Cmd.CombinedOutput) }
func (c *guardedCmd) Output() ([]byte, error)         { return c.output(c.Cmd.Output) }
func (c *guardedCmd) Start() error                    { return c.g.do(c.op, c.Cmd.Start) }

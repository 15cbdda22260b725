package host

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"k8s.io/utils/exec"
)

// innerCmd is one run of a command that is no process: it runs in the caller's
// goroutine, to its end.
type innerCmd struct {
	ctx context.Context
	run func(ctx context.Context, out, errs io.Writer) error

	stdout, stderr io.Writer
	started        bool
	err            error
}

func (c *innerCmd) Run() error { return c.run(c.ctx, c.stdout, c.stderr) }

func (c *innerCmd) CombinedOutput() ([]byte, error) {
	var b bytes.Buffer
	err := c.run(c.ctx, &b, &b)
	return b.Bytes(), err
}

func (c *innerCmd) Output() ([]byte, error) {
	var b bytes.Buffer
	err := c.run(c.ctx, &b, c.stderr)
	return b.Bytes(), err
}

func (c *innerCmd) SetDir(string)         {}
func (c *innerCmd) SetStdin(io.Reader)    {}
func (c *innerCmd) SetEnv([]string)       {}
func (c *innerCmd) SetStdout(w io.Writer) { c.stdout = w }
func (c *innerCmd) SetStderr(w io.Writer) { c.stderr = w }

// StdoutPipe gives the output; it is there once Start has returned.
func (c *innerCmd) StdoutPipe() (io.ReadCloser, error) {
	b := &bytes.Buffer{}
	c.stdout = b
	return io.NopCloser(b), nil
}

// StderrPipe gives the errors; they are there once Start has returned.
func (c *innerCmd) StderrPipe() (io.ReadCloser, error) {
	b := &bytes.Buffer{}
	c.stderr = b
	return io.NopCloser(b), nil
}

// Start runs the command to its end: there is nothing that takes time.
func (c *innerCmd) Start() error {
	if c.started {
		return fmt.Errorf("exec: already started")
	}
	c.started = true
	c.err = c.Run()
	if c.err == exec.ErrExecutableNotFound || c.ctx.Err() != nil {
		return c.err
	}
	return nil
}

func (c *innerCmd) Wait() error {
	if !c.started {
		return fmt.Errorf("exec: not started")
	}
	return c.err
}

func (c *innerCmd) Stop() {}

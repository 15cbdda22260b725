package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/csilab/csilab/sim/host/shim"
)

// StartProcess is Start without standard input, in the directory of this
// process.
func (h *Real) StartProcess(ctx context.Context, argv, env []string, stdout, stderr io.Writer) (*Process, error) {
	return h.Start(ctx, Program{Argv: argv, Env: env, Stdout: stdout, Stderr: stderr})
}

// Start runs a program in the node: it sees the node's mounts, devices and
// identity, and ends with the node, with this process, and with ctx. What it
// runs finds the node's commands first on its PATH.
func (h *Real) Start(ctx context.Context, r Program) (*Process, error) {
	argv, env := r.Argv, r.Env
	if len(argv) == 0 || argv[0] == "" {
		return nil, errors.New("host: Program.Argv: must not be empty")
	}
	name := argv[0]
	if r.Dir != "" && strings.Contains(name, "/") && !filepath.IsAbs(name) {
		name = filepath.Join(r.Dir, name)
	}
	path, err := findTool(name)
	if h.emulates(argv[0]) {
		path, err = filepath.Join(h.commandDir(), emulatedName(argv[0])), nil
	}
	if err != nil {
		return nil, fmt.Errorf("host: start %s: %w", argv[0], err)
	}
	c := osexec.CommandContext(ctx, path, argv[1:]...)
	c.Args[0] = argv[0]
	if env == nil {
		env = os.Environ()
	}
	c.Env = append(h.environment(env), shim.EnvNode+"="+h.cfg.Dir)
	c.Dir, c.Stdin, c.Stdout, c.Stderr = r.Dir, r.Stdin, r.Stdout, r.Stderr
	// A child of the program that outlives it must not keep Wait waiting for
	// its output.
	c.WaitDelay = waitDelay
	h.command(c)
	c.SysProcAttr.Setpgid = r.Group
	p := &Process{done: make(chan struct{})}
	err = h.do(func() error {
		if err := c.Start(); err != nil {
			return err
		}
		p.p = c.Process
		h.mu.Lock()
		defer h.mu.Unlock()
		h.procs[p] = struct{}{}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("host: start %s on %s: %w", argv[0], h.cfg.Name, err)
	}
	go func() {
		defer close(p.done)
		p.err = c.Wait()
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.procs, p)
	}()
	return p, nil
}

// SignalAll sends a signal to a program with Group and to all that it has
// started, unless that left its group. It may have ended itself.
func (p *Process) SignalAll(s syscall.Signal) error { return syscall.Kill(-p.Pid(), s) }

// scriptEnvironment is the environment of a command that Exec runs. What may run
// commands of a storage network itself, a shell, finds them; a storage command
// is the real one, with what it calls.
func (h *Real) scriptEnvironment(cmd string) []string {
	if h.san == nil || slices.Contains(shim.Names, filepath.Base(cmd)) {
		return os.Environ()
	}
	return h.environment(os.Environ())
}

// environment puts the directory of intercepted commands before PATH.
func (h *Real) environment(env []string) []string {
	env = slices.Clone(env)
	if h.calls == nil {
		return env
	}
	path := strings.Join(shim.Sbin, ":")
	env = slices.DeleteFunc(env, func(e string) bool {
		v, ok := strings.CutPrefix(e, "PATH=")
		if ok {
			path = v + ":" + path
		}
		return ok
	})
	// An intercepted command is this binary once more. Built with -race it would
	// sleep for a second at each exit (the race detector's atexit_sleep_ms).
	race := "GORACE=atexit_sleep_ms=0"
	if have := os.Getenv("GORACE"); have != "" {
		race = "GORACE=" + have + " atexit_sleep_ms=0"
	}
	return append(env, race, "PATH="+h.commandDir()+":"+path, shim.EnvCalls+"="+h.calls.Addr().String())
}

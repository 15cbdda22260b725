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

	"github.com/csilab/csilab/sim/host/shim"
)

// StartProcess runs a program in the node: it sees the node's mounts, devices
// and identity, and ends with the node, with this process, and with ctx. env
// is its whole environment (nil: that of this process); the node puts its
// commands before PATH where an interceptor wants to see them.
func (h *Real) StartProcess(ctx context.Context, argv, env []string, stdout, stderr io.Writer) (*Process, error) {
	if len(argv) == 0 {
		return nil, errors.New("host: StartProcess: argv: must not be empty")
	}
	path, err := findTool(argv[0])
	if h.emulates(argv[0]) {
		path, err = filepath.Join(h.commandDir(), emulatedName(argv[0])), nil
	}
	if err != nil {
		return nil, fmt.Errorf("host: StartProcess: %s: %w", argv[0], err)
	}
	c := osexec.CommandContext(ctx, path, argv[1:]...)
	c.Args[0] = argv[0]
	if env == nil {
		env = os.Environ()
	}
	c.Env = append(h.environment(env), shim.EnvNode+"="+h.cfg.Dir)
	c.Stdout, c.Stderr = stdout, stderr
	// A child of the program that outlives it must not keep Wait waiting for
	// its output.
	c.WaitDelay = waitDelay
	h.command(c)
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

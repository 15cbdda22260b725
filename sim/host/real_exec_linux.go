package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"k8s.io/mount-utils"
	"k8s.io/utils/exec"

	"github.com/csilab/csilab/sim/host/shim"
)

// findTool looks a command up.
func findTool(name string) (string, error) {
	if p, err := osexec.LookPath(name); err == nil {
		return filepath.Abs(p)
	}
	if !strings.Contains(name, "/") {
		for _, dir := range shim.Sbin {
			if p, err := osexec.LookPath(filepath.Join(dir, name)); err == nil {
				return p, nil
			}
		}
	}
	return "", exec.ErrExecutableNotFound
}

// Exec implements Host.
func (h *Real) Exec() exec.Interface { return realExec{h} }

type realExec struct{ h *Real }

func (e realExec) LookPath(file string) (string, error) {
	if e.h.emulates(file) {
		return "/usr/sbin/" + emulatedName(file), nil
	}
	return findTool(file)
}

func (e realExec) Command(cmd string, args ...string) exec.Cmd {
	return e.CommandContext(context.Background(), cmd, args...)
}

func (e realExec) CommandContext(ctx context.Context, cmd string, args ...string) exec.Cmd {
	if e.h.emulates(cmd) {
		return e.h.san.command(ctx, emulatedName(cmd), args)
	}
	path, err := findTool(cmd)
	c := osexec.CommandContext(ctx, path, args...)
	c.Args[0] = cmd
	c.Env = append(e.h.scriptEnvironment(cmd), shim.EnvNode+"="+e.h.cfg.Dir)
	return &realCmd{Cmd: e.h.command(c), h: e.h, err: err}
}

// command makes c a process that dies with the node.
func (h *Real) command(c *osexec.Cmd) *osexec.Cmd {
	// The signal comes when the thread that started it ends: at power off, and
	// when this process is killed.
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return c
}

// realCmd is a command in the node's namespace.
type realCmd struct {
	*osexec.Cmd
	h   *Real
	err error // it was not found
}

func (c *realCmd) Start() error {
	if c.err != nil {
		return c.err
	}
	return exitError(c.h.do(c.Cmd.Start))
}

func (c *realCmd) Wait() error { return exitError(c.Cmd.Wait()) }

func (c *realCmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

func (c *realCmd) CombinedOutput() ([]byte, error) {
	var b bytes.Buffer
	c.Cmd.Stdout, c.Cmd.Stderr = &b, &b
	err := c.Run()
	return b.Bytes(), err
}

func (c *realCmd) Output() ([]byte, error) {
	var b bytes.Buffer
	c.Cmd.Stdout = &b
	err := c.Run()
	return b.Bytes(), err
}

func (c *realCmd) SetDir(dir string)       { c.Cmd.Dir = dir }
func (c *realCmd) SetStdin(in io.Reader)   { c.Cmd.Stdin = in }
func (c *realCmd) SetStdout(out io.Writer) { c.Cmd.Stdout = out }
func (c *realCmd) SetStderr(out io.Writer) { c.Cmd.Stderr = out }
func (c *realCmd) SetEnv(env []string) {
	c.Cmd.Env = append(env[:len(env):len(env)], shim.EnvNode+"="+c.h.cfg.Dir)
}

// Stop asks the command to end.
func (c *realCmd) Stop() {
	if c.Cmd.Process != nil {
		c.Cmd.Process.Signal(syscall.SIGTERM)
	}
}

// exitError makes the errors of k8s.io/utils/exec.
func exitError(err error) error {
	var exit *osexec.ExitError
	if errors.As(err, &exit) {
		return &exec.ExitErrorWrapper{ExitError: exit}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return exec.ErrExecutableNotFound
	}
	return err
}

// Mounter implements Host.
func (h *Real) Mounter() mount.Interface { return realMounter{mountCommands{h.Exec()}, h} }

// realMounter is mount.Interface in the node's namespace.
type realMounter struct {
	mountCommands
	h *Real
}

// statMounter answers from statx and openat2, which look where the thread is.
// Its methods that read /proc/self must not be used here.
var statMounter = sync.OnceValue(func() mount.Interface { return mount.NewWithoutSystemd("") })

func (m realMounter) Unmount(target string) error {
	defer m.h.san.unmounting()()
	return m.mountCommands.Unmount(target)
}

func (m realMounter) List() ([]mount.MountPoint, error) {
	return result(m.h, "open", "/proc/mounts", func() ([]mount.MountPoint, error) {
		return mount.ListProcMounts("/proc/thread-self/mounts")
	})
}

func (m realMounter) IsLikelyNotMountPoint(file string) (bool, error) {
	not, err := result(m.h, "statx", file, func() (bool, error) { return statMounter().IsLikelyNotMountPoint(file) })
	return not || err != nil, err
}

func (m realMounter) IsMountPoint(file string) (bool, error) {
	return result(m.h, "statx", file, func() (bool, error) {
		// openat2 is there from Linux 5.6 on; before that this is not sure.
		return statMounter().IsMountPoint(file)
	})
}

func (m realMounter) CanSafelySkipMountPointCheck() bool {
	return statMounter().CanSafelySkipMountPointCheck()
}

func (m realMounter) GetMountRefs(pathname string) ([]string, error) {
	return result(m.h, "stat", pathname, func() ([]string, error) {
		exists, err := mount.PathExists(pathname)
		if !exists || mount.IsCorruptedMnt(err) {
			return []string{}, nil
		}
		if err != nil {
			return nil, fmt.Errorf("error checking path %s: %w", pathname, err)
		}
		path, err := filepath.EvalSymlinks(pathname)
		if err != nil {
			return nil, err
		}
		return mount.SearchMountPoints(path, "/proc/thread-self/mountinfo")
	})
}

package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	osexec "os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// init runs this process as an intercepted command of a node, if that is what
// it is, and exits. It does so before the packages behind it in import path
// order are initialised: a node runs very many commands, and those packages
// cost more than the command.
func init() {
	if os.Getenv(EnvRelay) != "" {
		os.Exit(relay())
	}
	name := filepath.Base(os.Args[0])
	addr := os.Getenv(EnvCalls)
	emulated := slices.Contains(Emulated, name)
	if addr == "" && emulated {
		fmt.Fprintf(os.Stderr, "%s: answered by a node of a lab, which is found by %s in the environment\n", name, EnvCalls)
		os.Exit(127)
	}
	if addr == "" || !emulated && !slices.Contains(Names, name) {
		return
	}
	code, err := runCommand(addr, name, os.Args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		code = 1
	}
	os.Exit(code)
}

func runCommand(addr, name string, args []string) (int, error) {
	// Who called may crash while a rule holds the command. Nothing must happen
	// then any more.
	runtime.LockOSThread()
	parent := os.Getppid()
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0, 0, 0); err != nil {
		return 0, err
	}
	if os.Getppid() != parent {
		return 128 + int(syscall.SIGKILL), nil
	}
	c, err := net.Dial("unix", addr)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	in, out := json.NewDecoder(c), json.NewEncoder(c)
	ask := func(m Message) (reply Message, err error) {
		if err = out.Encode(m); err == nil {
			err = in.Decode(&reply)
		}
		return reply, err
	}
	reply, err := ask(Message{Name: name, Args: args})
	if err != nil {
		return 0, err
	}
	if reply.Go {
		path, err := realTool(name)
		if err != nil {
			return 0, err
		}
		cmd := osexec.Command(path, args...)
		cmd.Args[0] = name
		cmd.Env = plainEnvironment()
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		status := Message{}
		if err := cmd.Run(); err != nil {
			var exit *osexec.ExitError
			if !errors.As(err, &exit) {
				return 0, err
			}
			if status.Exit = exit.ExitCode(); status.Exit < 0 {
				status.Exit = 128 + int(syscall.SIGKILL)
			}
		}
		if reply, err = ask(status); err != nil {
			return 0, err
		}
	}
	fmt.Fprint(os.Stdout, reply.Out)
	fmt.Fprint(os.Stderr, reply.Text)
	return reply.Exit, nil
}

// plainEnvironment is the environment without interception: what mkfs or mount
// call themselves belongs to them.
func plainEnvironment() []string {
	var env []string
	for _, e := range os.Environ() {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			e = "PATH=" + strings.Join(plainPath(v), ":")
		}
		if !strings.HasPrefix(e, EnvCalls+"=") {
			env = append(env, e)
		}
	}
	return env
}

// plainPath leaves out the directory of links, which is in the node's own.
func plainPath(path string) []string {
	return slices.DeleteFunc(filepath.SplitList(path), func(d string) bool {
		return d == filepath.Join(os.Getenv(EnvNode), "bin")
	})
}

// realTool finds the command that a link stands for.
func realTool(name string) (string, error) {
	for _, dir := range append(plainPath(os.Getenv("PATH")), Sbin...) {
		if p, err := osexec.LookPath(filepath.Join(dir, name)); err == nil && filepath.IsAbs(p) {
			return p, nil
		}
	}
	return "", osexec.ErrNotFound
}

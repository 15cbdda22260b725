package shim

import (
	"errors"
	"os"
	"runtime"
	"syscall"
)

// init runs this process as an intercepted command of a node, if that is what
// it is, and exits: before the rest of the program is initialised, which costs
// more than the command.
func init() {
	name := base(os.Args[0])
	addr := os.Getenv(EnvCalls)
	emulated := has(Emulated, name)
	if addr == "" && emulated {
		os.Stderr.WriteString(name + ": answered by a node of a lab, which is found by " + EnvCalls + " in the environment\n")
		os.Exit(127)
	}
	if addr == "" || !emulated && !has(Names, name) {
		return
	}
	code, err := runCommand(addr, name, os.Args[1:])
	if err != nil {
		os.Stderr.WriteString(name + ": " + err.Error() + "\n")
		code = 1
	}
	os.Exit(code)
}

const killed = 128 + int(syscall.SIGKILL)

func runCommand(addr, name string, args []string) (int, error) {
	// Who called may crash while a rule holds the command. Nothing must happen
	// then any more.
	runtime.LockOSThread()
	parent := os.Getppid()
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0); errno != 0 {
		return 0, errno
	}
	if os.Getppid() != parent {
		return killed, nil
	}
	node, err := dial(addr)
	if err != nil {
		return 0, err
	}
	defer node.Close()
	ask := func(m Message) (Message, error) {
		if err := m.Write(node); err != nil {
			return Message{}, err
		}
		return Read(node)
	}
	reply, err := ask(Message{Name: name, Args: args})
	if err != nil {
		return 0, err
	}
	if reply.Go {
		exit, err := runTool(name, args)
		if err != nil {
			return 0, err
		}
		if reply, err = ask(Message{Exit: exit}); err != nil {
			return 0, err
		}
	}
	os.Stdout.WriteString(reply.Out)
	os.Stderr.WriteString(reply.Text)
	return reply.Exit, nil
}

// dial connects to the node, at an abstract name ("@…").
func dial(addr string) (*os.File, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := syscall.Connect(fd, &syscall.SockaddrUnix{Name: addr}); err != nil {
		syscall.Close(fd)
		return nil, &os.PathError{Op: "connect", Path: addr, Err: err}
	}
	return os.NewFile(uintptr(fd), addr), nil
}

// runTool runs the command that a link stands for.
func runTool(name string, args []string) (exit int, err error) {
	path, err := realTool(name)
	if err != nil {
		return 0, err
	}
	p, err := os.StartProcess(path, append([]string{name}, args...), &os.ProcAttr{
		Env:   plainEnvironment(),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Sys:   &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return 0, err
	}
	state, err := p.Wait()
	if err != nil {
		return 0, err
	}
	if exit = state.ExitCode(); exit < 0 { // by a signal
		exit = killed
	}
	return exit, nil
}

// plainEnvironment is the environment without interception: what mkfs or mount
// call themselves belongs to them.
func plainEnvironment() []string {
	var env []string
	for _, e := range os.Environ() {
		switch {
		case hasPrefix(e, EnvCalls+"="):
		case hasPrefix(e, "PATH="):
			path := "PATH="
			for i, dir := range plainPath() {
				if i > 0 {
					path += ":"
				}
				path += dir
			}
			env = append(env, path)
		default:
			env = append(env, e)
		}
	}
	return env
}

// plainPath is PATH without the directory of links, which is in the node's own.
func plainPath() (dirs []string) {
	links := os.Getenv(EnvNode) + "/bin"
	path := os.Getenv("PATH")
	for from, i := 0, 0; i <= len(path); i++ {
		if i < len(path) && path[i] != ':' {
			continue
		}
		if dir := path[from:i]; dir != links && dir != "" {
			dirs = append(dirs, dir)
		}
		from = i + 1
	}
	return dirs
}

var errNoTool = errors.New("executable file not found in $PATH")

// realTool finds the command that a link stands for.
func realTool(name string) (string, error) {
	for _, dir := range append(plainPath(), Sbin...) {
		if dir[0] != '/' {
			continue
		}
		p := dir + "/" + name
		if fi, err := os.Stat(p); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", errNoTool
}

func base(path string) string {
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == '/' {
			return path[i+1:]
		}
	}
	return path
}

func has(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

func hasPrefix(s, prefix string) bool { return len(s) >= len(prefix) && s[:len(prefix)] == prefix }

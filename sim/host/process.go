package host

import (
	"io"
	"os"
)

// Program is what to run on a real node.
type Program struct {
	// Argv is the command; a name without / is looked up as the node's.
	Argv []string
	// Env is the whole environment (nil: that of this process); the node puts its
	// commands before PATH.
	Env []string
	// Dir is the working directory. Empty: that of this process. A command with a
	// relative path is found from there.
	Dir string
	// Group makes it the first of a process group of its own: SignalAll reaches
	// what it has started, too.
	Group          bool
	Stdin          io.Reader // nil: empty
	Stdout, Stderr io.Writer // nil: nowhere
}

// Process is a program that runs on a real node.
type Process struct {
	p    *os.Process
	done chan struct{}
	err  error
}

// Pid is its process id, as this process sees it.
func (p *Process) Pid() int { return p.p.Pid }

// Kill kills it at once (SIGKILL): a crash. It doesn't wait.
func (p *Process) Kill() { _ = p.p.Kill() }

// Signal sends a signal, e.g. os.Interrupt.
func (p *Process) Signal(s os.Signal) error { return p.p.Signal(s) }

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the program to end: nil for exit status 0, otherwise an
// *exec.ExitError of os/exec.
func (p *Process) Wait() error {
	<-p.done
	return p.err
}

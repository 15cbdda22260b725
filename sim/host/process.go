package host

import (
	"os"
)

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

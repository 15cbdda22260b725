//go:build !linux

package host

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"
)

// errNotLinux is the answer to everything that real nodes need.
var errNotLinux = fmt.Errorf("host: real nodes want Linux, this is %s: use memory nodes", runtime.GOOS)

// Real is a node on a Linux machine's kernel. There are none here.
type Real struct{ Host }

// RealSupported says why this machine can't have real nodes.
func RealSupported() error { return errNotLinux }

// NewReal fails here.
func NewReal(context.Context, RealConfig) (*Real, error) { return nil, errNotLinux }

// SocketRoot is where this process sees the node's /var/lib/kubelet.
func (*Real) SocketRoot() string { return "" }

// StartProcess fails here.
func (*Real) StartProcess(context.Context, []string, []string, io.Writer, io.Writer) (*Process, error) {
	return nil, errNotLinux
}

// Start fails here.
func (*Real) Start(context.Context, Program) (*Process, error) { return nil, errNotLinux }

// SignalAll fails here.
func (*Process) SignalAll(syscall.Signal) error { return errNotLinux }

// LockLab makes a lab's directory. Nothing is locked here, and Sweep removes
// nothing: there are no mounts and devices that a dead lab could leave.
func LockLab(dir string) (release func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("host: %w", err)
	}
	return func() {}, nil
}

// Sweep does nothing here.
func Sweep(string) (removed []string, err error) { return nil, nil }

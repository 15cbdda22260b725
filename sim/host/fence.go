package host

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"sync"

	"k8s.io/mount-utils"
	"k8s.io/utils/exec"

	"github.com/csilab/csilab/sim/disk"
)

// ErrFenced is what a component that has crashed gets from its node.
var ErrFenced = errors.New("host: the component has crashed")

// Fenced is a node as one incarnation of one component sees it.
type Fenced struct {
	guarded
	f *fenceGuard
}

// Fence gives one incarnation of a component its own view of h. Put the
// interceptor outside, Intercept(Fence(h), …): then a call that a rule held
// finds the fence when the rule lets it go.
func Fence(h Host) *Fenced {
	ctx, cancel := context.WithCancelCause(context.Background())
	f := &fenceGuard{ctx: ctx, cancel: cancel, waitForCommands: h.Kind() == "memory"}
	return &Fenced{guarded{h, f}, f}
}

// Fence cuts the incarnation off: from when it returns, no operation of it
// starts or takes effect, and all fail with ErrFenced. Operations that are
// under way in the kernel are waited for; they are short. The exception is a
// command on a real node that has started: it is a process of its own and
// outlives who started it, as in life.
func (f *Fenced) Fence() {
	f.f.mu.Lock()
	f.f.fenced = true
	f.f.mu.Unlock()
	f.f.cancel(ErrFenced)
}

// Context ends with ErrFenced as its cause when the fence comes down.
func (f *Fenced) Context() context.Context { return f.f.ctx }

// fenceGuard is the guard of Fenced.
type fenceGuard struct {
	mu              sync.RWMutex
	fenced          bool
	ctx             context.Context
	cancel          context.CancelCauseFunc
	waitForCommands bool
}

func (f *fenceGuard) do(c operation, op func() error) error {
	f.mu.RLock()
	if f.fenced {
		f.mu.RUnlock()
		if c.path != "" {
			return &fs.PathError{Op: c.name, Path: c.path, Err: ErrFenced}
		}
		return ErrFenced
	}
	if c.command && !f.waitForCommands {
		f.mu.RUnlock()
		return op()
	}
	defer f.mu.RUnlock()
	return op()
}

// operation describes what is done to a node.
type operation struct {
	name    string // "Mount", "exec mkfs.ext4", …
	path    string // what it is done to
	request string // further arguments; no secrets
	read    bool   // changes nothing
	command bool   // runs a process
	ctx     context.Context
}

// guard stands before each operation of a node.
type guard interface {
	do(c operation, op func() error) error
}

// guarded is a node behind a guard.
type guarded struct {
	h Host
	g guard
}

var (
	_ Host = guarded{}
	_ Host = (*Fenced)(nil)
)

// value runs an operation that returns something.
func value[T any](g guard, c operation, op func() (T, error)) (T, error) {
	var v T
	err := g.do(c, func() (err error) {
		v, err = op()
		return err
	})
	if err != nil && !c.read {
		var zero T
		return zero, err
	}
	return v, err
}

func read(name, path string) operation { return operation{name: name, path: path, read: true} }

func (x guarded) Stat(p string) (fs.FileInfo, error) {
	return value(x.g, read("Stat", p), func() (fs.FileInfo, error) { return x.h.Stat(p) })
}

func (x guarded) Lstat(p string) (fs.FileInfo, error) {
	return value(x.g, read("Lstat", p), func() (fs.FileInfo, error) { return x.h.Lstat(p) })
}

func (x guarded) ReadDir(p string) ([]fs.DirEntry, error) {
	return value(x.g, read("ReadDir", p), func() ([]fs.DirEntry, error) { return x.h.ReadDir(p) })
}

func (x guarded) ReadFile(p string) ([]byte, error) {
	return value(x.g, read("ReadFile", p), func() ([]byte, error) { return x.h.ReadFile(p) })
}

func (x guarded) WriteFile(p string, data []byte, perm fs.FileMode) error {
	op := operation{name: "WriteFile", path: p}
	if strings.HasPrefix(p, "/sys/") && len(data) <= 64 {
		op.request = strings.TrimSpace(string(data)) // what is asked of the kernel: "- - 5"
	}
	return x.g.do(op, func() error { return x.h.WriteFile(p, data, perm) })
}

func (x guarded) MkdirAll(p string, perm fs.FileMode) error {
	return x.g.do(operation{name: "MkdirAll", path: p}, func() error { return x.h.MkdirAll(p, perm) })
}

func (x guarded) Remove(p string) error {
	return x.g.do(operation{name: "Remove", path: p}, func() error { return x.h.Remove(p) })
}

func (x guarded) Rename(from, to string) error {
	return x.g.do(operation{name: "Rename", path: to, request: "from " + from}, func() error { return x.h.Rename(from, to) })
}

func (x guarded) Symlink(target, p string) error {
	return x.g.do(operation{name: "Symlink", path: p, request: "to " + target}, func() error { return x.h.Symlink(target, p) })
}

func (x guarded) Readlink(p string) (string, error) {
	return value(x.g, read("Readlink", p), func() (string, error) { return x.h.Readlink(p) })
}

func (x guarded) EvalSymlinks(p string) (string, error) {
	return value(x.g, read("EvalSymlinks", p), func() (string, error) { return x.h.EvalSymlinks(p) })
}

func (x guarded) Chmod(p string, mode fs.FileMode) error {
	return x.g.do(operation{name: "Chmod", path: p}, func() error { return x.h.Chmod(p, mode) })
}

func (x guarded) Lchown(p string, uid, gid int) error {
	return x.g.do(operation{name: "Lchown", path: p}, func() error { return x.h.Lchown(p, uid, gid) })
}

func (x guarded) Owner(p string) (uid, gid int, err error) {
	err = x.g.do(read("Owner", p), func() (err error) {
		uid, gid, err = x.h.Owner(p)
		return err
	})
	return uid, gid, err
}

func (x guarded) Statfs(p string) (Usage, error) {
	return value(x.g, read("Statfs", p), func() (Usage, error) { return x.h.Statfs(p) })
}

func (x guarded) DeviceSize(p string) (int64, error) {
	return value(x.g, read("DeviceSize", p), func() (int64, error) { return x.h.DeviceSize(p) })
}

func (x guarded) ReadAt(p string, off int64, n int) ([]byte, error) {
	return value(x.g, read("ReadAt", p), func() ([]byte, error) { return x.h.ReadAt(p, off, n) })
}

func (x guarded) WriteAt(p string, off int64, data []byte, sync bool) error {
	return x.g.do(operation{name: "WriteAt", path: p}, func() error { return x.h.WriteAt(p, off, data, sync) })
}

func (x guarded) Hold(p string) (func(), error) {
	return value(x.g, read("Hold", p), func() (func(), error) { return x.h.Hold(p) })
}

func (x guarded) Name() string                  { return x.h.Name() }
func (x guarded) Kind() string                  { return x.h.Kind() }
func (x guarded) Supports(feature string) error { return x.h.Supports(feature) }
func (x guarded) Disks() []string               { return x.h.Disks() }

func (x guarded) AttachDisk(ctx context.Context, wwn string, img disk.Image) error {
	return x.g.do(operation{name: "AttachDisk", path: wwn, ctx: ctx}, func() error { return x.h.AttachDisk(ctx, wwn, img) })
}

func (x guarded) DetachDisk(ctx context.Context, wwn string) error {
	return x.g.do(operation{name: "DetachDisk", path: wwn, ctx: ctx}, func() error { return x.h.DetachDisk(ctx, wwn) })
}

func (x guarded) ResizeDisk(ctx context.Context, wwn string) error {
	return x.g.do(operation{name: "ResizeDisk", path: wwn, ctx: ctx}, func() error { return x.h.ResizeDisk(ctx, wwn) })
}

func (x guarded) PowerOff() error {
	return x.g.do(operation{name: "PowerOff"}, x.h.PowerOff)
}

func (x guarded) PowerOn() error {
	return x.g.do(operation{name: "PowerOn"}, x.h.PowerOn)
}

func (x guarded) Close() error { return x.h.Close() }

func (x guarded) Mounter() mount.Interface { return guardedMounter{x.h.Mounter(), x.g} }

func (x guarded) Exec() exec.Interface { return guardedExec{x.h.Exec(), x.g} }

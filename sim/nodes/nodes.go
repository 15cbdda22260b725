// Package nodes are real nodes beside vCenters and arrays that are served to
// others: what a VM is given shows up in its node, and a server has adapters on
// the storage network. Any program can be run in them.
package nodes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/csilab/csilab/sim/control"
	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host"
)

// Machine is a node to make.
type Machine struct {
	Name string
	// BIOSUUID is that of its VM; "" for a server, made from the seed.
	BIOSUUID string
	SAN      host.SAN // nil: none
	Adapters host.Adapters
	// NoPathRetry is what its I/O does that has no path.
	NoPathRetry host.NoPathRetry
}

// Nodes are the nodes. It is safe for concurrent use.
type Nodes struct {
	dir     string
	seed    uint64
	log     *slog.Logger
	release func()

	mu     sync.Mutex
	nodes  []*node
	plugs  map[string]map[string]plug // BIOS UUID -> WWN: what VMs are given
	closed bool
}

type node struct {
	Machine
	host *host.Real
}

// plug is a disk of a VM.
type plug struct {
	image string
	store disk.Store
	img   disk.Image // nil: its node is not there yet
}

// New makes the place for nodes, in a directory of its own below root. What
// nodes of processes that died have left there is removed.
func New(root string, seed uint64, log *slog.Logger) (*Nodes, error) {
	if err := host.RealSupported(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("nodes: %w", err)
	}
	if _, err := host.Sweep(root); err != nil {
		log.Warn("sweep of dead nodes", "err", err)
	}
	dir, err := os.MkdirTemp(root, "s") // short: unix socket paths hold about 100 bytes
	if err != nil {
		return nil, fmt.Errorf("nodes: %w", err)
	}
	release, err := host.LockLab(dir)
	if err != nil {
		os.Remove(dir)
		return nil, err
	}
	return &Nodes{dir: dir, seed: seed, log: log, release: release, plugs: map[string]map[string]plug{}}, nil
}

// Store makes a store of disks for VMs, which real nodes want in files. It goes
// with the nodes.
func (n *Nodes) Store(name string) (disk.Store, error) {
	return disk.NewFiles(filepath.Join(n.dir, "disks-"+name))
}

// Add makes a node, with what its VM has been given already.
func (n *Nodes) Add(ctx context.Context, m Machine) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if slices.ContainsFunc(n.nodes, func(x *node) bool { return x.Name == m.Name }) {
		return fmt.Errorf("nodes: two nodes are called %q", m.Name)
	}
	h, err := host.NewReal(ctx, host.RealConfig{Name: m.Name, Seed: n.seed, BIOSUUID: m.BIOSUUID, Dir: filepath.Join(n.dir, fmt.Sprintf("n%d", len(n.nodes)+1)),
		SAN: m.SAN, Adapters: m.Adapters, NoPathRetry: m.NoPathRetry, Log: n.log})
	if err != nil {
		return err
	}
	x := &node{m, h}
	n.nodes = append(n.nodes, x)
	for wwn, p := range n.plugs[m.BIOSUUID] {
		if err := n.attach(ctx, x, wwn, p); err != nil {
			return err
		}
	}
	return nil
}

func (n *Nodes) attach(ctx context.Context, x *node, wwn string, p plug) error {
	img, err := p.store.Open(p.image)
	if err != nil {
		return err
	}
	if err := x.host.AttachDisk(ctx, wwn, img); err != nil {
		img.Close()
		return err
	}
	p.img = img
	n.plugs[x.BIOSUUID][wwn] = p
	return nil
}

// Hardware plugs the disks of a vCenter's VMs in, which are in store.
func (n *Nodes) Hardware(store disk.Store) Hardware { return Hardware{n, store} }

// Hardware is vcenter's.
type Hardware struct {
	n     *Nodes
	store disk.Store
}

func (n *Nodes) byUUID(uuid string) *node {
	for _, x := range n.nodes {
		if x.BIOSUUID == uuid {
			return x
		}
	}
	return nil
}

// Attach implements vcenter's Hardware.
func (h Hardware) Attach(ctx context.Context, vmUUID, diskUUID, image string) error {
	h.n.mu.Lock()
	defer h.n.mu.Unlock()
	if h.n.plugs[vmUUID] == nil {
		h.n.plugs[vmUUID] = map[string]plug{}
	}
	p := plug{image: image, store: h.store}
	if x := h.n.byUUID(vmUUID); x != nil {
		return h.n.attach(ctx, x, diskUUID, p)
	}
	h.n.plugs[vmUUID][diskUUID] = p // its node comes later, or never
	return nil
}

// Detach implements vcenter's Hardware.
func (h Hardware) Detach(ctx context.Context, vmUUID, diskUUID string) error {
	h.n.mu.Lock()
	defer h.n.mu.Unlock()
	p, ok := h.n.plugs[vmUUID][diskUUID]
	delete(h.n.plugs[vmUUID], diskUUID)
	x := h.n.byUUID(vmUUID)
	if !ok || x == nil || p.img == nil {
		return nil
	}
	return errors.Join(x.host.DetachDisk(ctx, diskUUID), p.img.Close())
}

// Resize implements vcenter's Hardware.
func (h Hardware) Resize(ctx context.Context, vmUUID, diskUUID string) error {
	h.n.mu.Lock()
	defer h.n.mu.Unlock()
	if x := h.n.byUUID(vmUUID); x != nil {
		return x.host.ResizeDisk(ctx, diskUUID)
	}
	return nil
}

// List describes the nodes, in the order in which they were made.
func (n *Nodes) List() []control.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := []control.Node{}
	for _, x := range n.nodes {
		out = append(out, control.Node{Name: x.Name, KubeletDir: x.host.SocketRoot(), IQN: x.Adapters.IQN, WWPNs: x.Adapters.WWPNs, Networks: x.Adapters.Networks, Disks: x.host.Disks()})
	}
	return out
}

func (n *Nodes) find(name string) (*host.Real, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var names []string
	for _, x := range n.nodes {
		if x.Name == name {
			return x.host, nil
		}
		names = append(names, x.Name)
	}
	return nil, fmt.Errorf("%w %q; there are %v", control.ErrNoNode, name, names)
}

// patience is how long a program has to end after SIGTERM, once nobody waits
// for it any more.
const patience = 5 * time.Second

// Exec runs a program in a node until it ends, and returns its exit status, as
// shells tell it: 128 and the number for one that a signal ended, 127 and 126
// for one that isn't there or can't be run. When ctx ends the program and what
// it has started get SIGTERM, and SIGKILL later.
func (n *Nodes) Exec(ctx context.Context, name string, c control.Command, stdin io.Reader, stdout, stderr io.Writer, signals <-chan syscall.Signal) (int, error) {
	h, err := n.find(name)
	if err != nil {
		return 0, err
	}
	// A pipe of its own: the program's end is not to wait for more input.
	in, feed, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer feed.Close()
	// The program outlives ctx for a moment.
	p, err := h.Start(context.WithoutCancel(ctx), host.Program{Argv: c.Argv, Env: c.Env, Dir: c.Dir, Group: true, Stdin: in, Stdout: stdout, Stderr: stderr})
	in.Close()
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, osexec.ErrNotFound):
		fmt.Fprintln(stderr, err)
		return 127, nil
	case errors.Is(err, os.ErrPermission), errors.Is(err, syscall.ENOEXEC):
		fmt.Fprintln(stderr, err)
		return 126, nil
	case err != nil:
		return 0, err
	}
	go func() { // until the caller closes its end
		_, _ = io.Copy(feed, stdin)
		feed.Close()
	}()
	gone := ctx.Done()
	var late <-chan time.Time
	for {
		select {
		case <-p.Done():
			if ctx.Err() != nil { // what it has left, e.g. a shell its commands
				_ = p.SignalAll(syscall.SIGKILL)
			}
			return exitStatus(p.Wait()), nil
		case s := <-signals:
			_ = p.Signal(s)
		case <-gone:
			gone = nil
			_ = p.SignalAll(syscall.SIGTERM)
			t := time.NewTimer(patience)
			defer t.Stop()
			late = t.C
		case <-late:
			_ = p.SignalAll(syscall.SIGKILL)
		}
	}
}

func exitStatus(err error) int {
	var exit *osexec.ExitError
	if errors.As(err, &exit) {
		if w, ok := exit.Sys().(syscall.WaitStatus); ok && w.Signaled() {
			return 128 + int(w.Signal())
		}
		return exit.ExitCode()
	}
	return 0 // it ended; what failed is the copying of its output
}

// Close removes every trace of the nodes. Their disks are not to be used any
// more.
func (n *Nodes) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil
	}
	n.closed = true
	var errs []error
	for _, x := range n.nodes {
		errs = append(errs, x.host.Close())
	}
	for _, plugs := range n.plugs {
		for _, p := range plugs {
			if p.img != nil {
				errs = append(errs, p.img.Close())
			}
		}
	}
	errs = append(errs, os.RemoveAll(n.dir))
	n.release()
	return errors.Join(errs...)
}

// Package transport is how the components of a lab reach each other: real
// sockets on the wall, in-memory pipes in a bubble of virtual time.
package transport

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Network listens and dials. Unix addresses are paths as the node sees them.
type Network interface {
	Listen(network, address string) (net.Listener, error)
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Op is what happened to a name in a watched directory.
type Op string

// The events of a directory.
const (
	Created Op = "created"
	Removed Op = "removed"
)

// Event is a change of one name in a watched directory. Path is as the node
// sees it.
type Event struct {
	Op   Op
	Path string
}

// Watcher reports names that appear in and disappear from a directory. What
// is there already is reported as created. The channel closes when ctx ends.
// A directory that does not exist yet is made.
type Watcher interface {
	Watch(ctx context.Context, dir string) (<-chan Event, error)
}

// Wall is the real network of this machine. Unix paths below From are mapped
// below To, which is how the parent process reaches the sockets of a node
// whose /var/lib/kubelet is a bind mount; an empty From maps nothing.
type Wall struct{ From, To string }

// Map translates a path of the node to one of this process.
func (w Wall) Map(path string) string {
	if w.From == "" {
		return path
	}
	if rel, ok := strings.CutPrefix(path, w.From); ok && (rel == "" || rel[0] == '/') {
		return filepath.Join(w.To, rel)
	}
	return path
}

// InUseError says that a process listens on a unix socket.
type InUseError struct{ Path string }

func (e *InUseError) Error() string {
	return fmt.Sprintf("listen on %s: a process that lives listens there", e.Path)
}

// Unwrap makes it the error of a port that is taken.
func (e *InUseError) Unwrap() error { return syscall.EADDRINUSE }

// Listen implements Network. The directory of a unix socket is made, and a socket
// that a dead process left in its place removed, as every CSI driver does at start;
// that of a process that lives is an InUseError.
func (w Wall) Listen(network, address string) (net.Listener, error) {
	if network == "unix" {
		address = w.Map(address)
		if err := os.MkdirAll(filepath.Dir(address), 0o750); err != nil {
			return nil, err
		}
		if fi, err := os.Lstat(address); err == nil && fi.Mode()&os.ModeSocket != 0 {
			if err := RemoveStale(address); err != nil {
				return nil, err
			}
		}
	}
	return net.Listen(network, address)
}

// RemoveStale removes a unix socket on which nobody listens any more. Only a refused
// connection says so: a listener that is busy lives. Errors: InUseError, that it can't
// be asked, or not be removed.
func RemoveStale(path string) error {
	c, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		c.Close()
		return &InUseError{path}
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, fs.ErrPermission):
		return err
	case !errors.Is(err, syscall.ECONNREFUSED):
		return &InUseError{path}
	}
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// DialContext implements Network.
func (w Wall) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if network == "unix" {
		address = w.Map(address)
	}
	var d net.Dialer
	return d.DialContext(ctx, network, address)
}

// Memory is a network of net.Pipe connections within one process, for one
// bubble. Use NewMemory.
type Memory struct {
	mu        sync.Mutex
	listeners map[string]*memListener
	watches   map[*memWatch]struct{}
	files     map[string]struct{} // stale sockets: names without a listener
	port      int

	// Turn holds a connection to a unix socket until it is its turn; nil lets all in at once. Set
	// it before use.
	Turn func(ctx context.Context, address string)
}

// NewMemory returns an empty network.
func NewMemory() *Memory {
	return &Memory{listeners: map[string]*memListener{}, watches: map[*memWatch]struct{}{}, files: map[string]struct{}{}, port: 40000}
}

type memAddr struct{ network, address string }

func (a memAddr) Network() string { return a.network }
func (a memAddr) String() string  { return a.address }

type memListener struct {
	m    *Memory
	addr memAddr
	ch   chan net.Conn
	once sync.Once
	done chan struct{}
}

func (l *memListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.ch:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *memListener) Close() error {
	l.once.Do(func() {
		close(l.done)
		l.m.mu.Lock()
		if l.m.listeners[l.addr.address] == l {
			delete(l.m.listeners, l.addr.address)
		}
		l.m.mu.Unlock()
		if l.addr.network == "unix" {
			l.m.notify(Event{Removed, l.addr.address})
		}
	})
	return nil
}

func (l *memListener) Addr() net.Addr { return l.addr }

// Listen implements Network. A port 0 picks one.
func (m *Memory) Listen(network, address string) (net.Listener, error) {
	m.mu.Lock()
	if network != "unix" {
		if host, port, err := net.SplitHostPort(address); err == nil && port == "0" {
			m.port++
			address = net.JoinHostPort(host, fmt.Sprint(m.port))
		}
	}
	if m.listeners[address] != nil {
		m.mu.Unlock()
		return nil, fmt.Errorf("listen %s %s: address already in use", network, address)
	}
	l := &memListener{m: m, addr: memAddr{network, address}, ch: make(chan net.Conn), done: make(chan struct{})}
	m.listeners[address] = l
	delete(m.files, address)
	m.mu.Unlock()
	if network == "unix" {
		m.notify(Event{Created, address})
	}
	return l, nil
}

// DialContext implements Network.
func (m *Memory) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if m.Turn != nil && network == "unix" { // HTTP clients dial or take an idle connection, as it happens
		m.Turn(ctx, address)
	}
	m.mu.Lock()
	l := m.listeners[address]
	m.mu.Unlock()
	if l == nil {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: memAddr{network, address}, Err: syscall.ECONNREFUSED}
	}
	c, s := net.Pipe()
	select {
	case l.ch <- s:
		return c, nil
	case <-l.done:
		return nil, &net.OpError{Op: "dial", Net: network, Addr: l.addr, Err: syscall.ECONNREFUSED}
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

type memWatch struct {
	dir string
	mu  sync.Mutex
	q   []Event
	sig chan struct{}
}

func (w *memWatch) push(e Event) {
	w.mu.Lock()
	w.q = append(w.q, e)
	w.mu.Unlock()
	select {
	case w.sig <- struct{}{}:
	default:
	}
}

func (m *Memory) notify(e Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for w := range m.watches {
		if filepath.ToSlash(filepath.Dir(e.Path)) == w.dir {
			w.push(e)
		}
	}
}

// Leave puts the name of a dead socket in a directory, as a killed plugin does.
func (m *Memory) Leave(path string) {
	m.mu.Lock()
	m.files[path] = struct{}{}
	m.mu.Unlock()
	m.notify(Event{Created, path})
}

// Watch implements Watcher.
func (m *Memory) Watch(ctx context.Context, dir string) (<-chan Event, error) {
	w := &memWatch{dir: filepath.ToSlash(filepath.Clean(dir)), sig: make(chan struct{}, 1)}
	m.mu.Lock()
	for _, a := range slices.Sorted(maps.Keys(m.listeners)) {
		if l := m.listeners[a]; l.addr.network == "unix" && filepath.ToSlash(filepath.Dir(a)) == w.dir {
			w.push(Event{Created, a})
		}
	}
	for _, a := range slices.Sorted(maps.Keys(m.files)) {
		if filepath.ToSlash(filepath.Dir(a)) == w.dir {
			w.push(Event{Created, a})
		}
	}
	m.watches[w] = struct{}{}
	m.mu.Unlock()
	out := make(chan Event)
	go func() {
		defer close(out)
		defer func() { m.mu.Lock(); delete(m.watches, w); m.mu.Unlock() }()
		for {
			w.mu.Lock()
			q := w.q
			w.q = nil
			w.mu.Unlock()
			for _, e := range q {
				select {
				case out <- e:
				case <-ctx.Done():
					return
				}
			}
			select {
			case <-w.sig:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

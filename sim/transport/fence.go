package transport

import (
	"context"
	"errors"
	"net"
	"sync"
)

// ErrFenced is what a component that has crashed gets from its network.
var ErrFenced = errors.New("transport: the component has crashed")

// Fenced is a network for one incarnation of one component. Once it is fenced
// all of its connections and listeners are closed and no new ones are made.
type Fenced struct {
	Network

	mu     sync.Mutex
	fenced bool
	open   map[interface{ Close() error }]struct{}
}

// NewFenced wraps n.
func NewFenced(n Network) *Fenced {
	return &Fenced{Network: n, open: map[interface{ Close() error }]struct{}{}}
}

// Fence closes everything. It returns once nothing more can leave.
func (f *Fenced) Fence() {
	f.mu.Lock()
	f.fenced = true
	all := f.open
	f.open = map[interface{ Close() error }]struct{}{}
	f.mu.Unlock()
	for c := range all {
		c.Close()
	}
}

func (f *Fenced) add(c interface{ Close() error }) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fenced {
		c.Close()
		return ErrFenced
	}
	f.open[c] = struct{}{}
	return nil
}

func (f *Fenced) remove(c interface{ Close() error }) {
	f.mu.Lock()
	delete(f.open, c)
	f.mu.Unlock()
}

// Listen implements Network.
func (f *Fenced) Listen(network, address string) (net.Listener, error) {
	l, err := f.Network.Listen(network, address)
	if err != nil {
		return nil, err
	}
	fl := &fencedListener{Listener: l, f: f}
	if err := f.add(l); err != nil {
		return nil, err
	}
	return fl, nil
}

// DialContext implements Network.
func (f *Fenced) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := f.Network.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if err := f.add(c); err != nil {
		return nil, err
	}
	return &fencedConn{Conn: c, f: f}, nil
}

type fencedListener struct {
	net.Listener
	f *Fenced
}

func (l *fencedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if err := l.f.add(c); err != nil {
		return nil, err
	}
	return &fencedConn{Conn: c, f: l.f}, nil
}

func (l *fencedListener) Close() error {
	l.f.remove(l.Listener)
	return l.Listener.Close()
}

type fencedConn struct {
	net.Conn
	f *Fenced
}

func (c *fencedConn) Close() error {
	c.f.remove(c.Conn)
	return c.Conn.Close()
}

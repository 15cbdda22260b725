package transport

import (
	"net"
	"net/http"
	"sync"
)

// Line is the network before a listener: what is behind it can be cut off from
// its clients. The zero value is connected.
type Line struct {
	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]bool
}

// Follow is the ConnState of the http.Server behind the line.
func (l *Line) Follow(c net.Conn, s http.ConnState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch s {
	case http.StateNew:
		if l.cut {
			c.Close()
			return
		}
		if l.conns == nil {
			l.conns = map[net.Conn]bool{}
		}
		l.conns[c] = true
	case http.StateClosed, http.StateHijacked:
		delete(l.conns, c)
	}
}

// Break ends the connections that there are; new ones are let in.
func (l *Line) Break() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hangUp()
}

// hangUp ends all connections. The lock is held.
func (l *Line) hangUp() {
	for c := range l.conns {
		c.Close()
	}
	clear(l.conns)
}

// SetReachable cuts the line, or connects it again. Connections break at once,
// and new ones as soon as they are made.
func (l *Line) SetReachable(yes bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = !yes
	if yes {
		return
	}
	l.hangUp()
}

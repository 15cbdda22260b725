package vcenter

import (
	"net"
	"net/http"
	"sync"
)

// line is the network before the listener.
type line struct {
	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]bool
}

// state follows the connections of the server.
func (l *line) state(c net.Conn, s http.ConnState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch s {
	case http.StateNew:
		if l.cut {
			c.Close()
			return
		}
		l.conns[c] = true
	case http.StateClosed, http.StateHijacked:
		delete(l.conns, c)
	}
}

// SetReachable cuts the vCenter off from its clients, or connects it again.
// Connections break at once, and new ones as soon as they are made; tasks go
// on, and sessions stay until they idle out.
func (v *VCenter) SetReachable(yes bool) {
	l := &v.line
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = !yes
	if yes {
		return
	}
	for c := range l.conns {
		c.Close()
	}
	clear(l.conns)
}

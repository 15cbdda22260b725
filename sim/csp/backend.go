package csp

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/csilab/csilab/sim/csp/wsapi"
)

// login is who talks to an array.
type login struct{ user, password string }

// backend is an array with the clients that talk to it.
type backend struct {
	Array
	server *Server
	hosts  hostCache

	mu      sync.Mutex
	clients map[login]*wsapi.Client
	build   int // 0: not known yet
}

// client of a user. One client serves all tokens of a user, since sessions with
// an array are few.
func (b *backend) client(l login) *wsapi.Client {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.clients[l]
	if c == nil {
		cfg := b.server.cfg
		c = wsapi.New(wsapi.Config{URL: b.URL, User: l.user, Password: l.password, Agent: cfg.Agent, Dial: cfg.Dial, Sessions: cfg.Sessions, Backoff: cfg.Backoff, Timeout: cfg.Timeout})
		b.clients[l] = c
	}
	return c
}

// forget drops the client of a login that the array refused, if no token uses
// it.
func (b *backend) forget(l login, err error) {
	if !wsapi.Is(err, wsapi.CodePassword) || b.server.tokens.uses(b, l) {
		return
	}
	b.mu.Lock()
	c := b.clients[l]
	delete(b.clients, l)
	b.mu.Unlock()
	if c != nil {
		ctx, cancel := context.WithCancel(b.server.face.Context())
		cancel() // there is no session to end
		c.Close(ctx)
	}
}

func (t *tokens) uses(b *backend, l login) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range t.byKey {
		if x.on == b && x.login == l {
			return true
		}
	}
	return false
}

func (b *backend) close(ctx context.Context) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.clients {
		c.Close(ctx)
	}
	b.clients = map[login]*wsapi.Client{}
}

// threePAR says of which family the array is.
func (b *backend) threePAR(ctx context.Context, c *wsapi.Client) (bool, error) {
	b.mu.Lock()
	n := b.build
	b.mu.Unlock()
	if n == 0 {
		var err error
		if n, err = c.Build(ctx); err != nil {
			return false, failed("asking "+b.Name+" for its build", err)
		}
		b.mu.Lock()
		b.build = n
		b.mu.Unlock()
	}
	return n < wsapi.FirstPrimera, nil
}

func (s *Server) arrayNamed(name string) *backend {
	for _, b := range s.arrays {
		if b.Name == name {
			return b
		}
	}
	return nil
}

// array is the one that a client calls by some name. Without a name there has
// to be one array only.
func (s *Server) array(name string) (*backend, error) {
	if name == "" {
		if len(s.arrays) == 1 {
			return s.arrays[0], nil
		}
		return nil, refuse(http.StatusBadRequest, "array_ip is required, as there are %d arrays", len(s.arrays))
	}
	// A secret's backend may have the port behind it, as in 10.0.0.1:443.
	bare := name
	if h, _, err := net.SplitHostPort(name); err == nil {
		bare = h
	}
	for _, b := range s.arrays {
		for _, n := range append([]string{b.Name}, b.Backends...) {
			if strings.EqualFold(n, name) || strings.EqualFold(n, bare) {
				return b, nil
			}
		}
	}
	// To the real one this is an address at which nobody answers.
	return nil, refuse(http.StatusInternalServerError, "array %s cannot be reached", clip(name))
}

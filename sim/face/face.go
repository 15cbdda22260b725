// Package face is what the HTTP faces of simulators have in common: an address
// that is served until its context ends, an end that waits for all calls, and how
// a call is told in the ledger.
package face

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"sync"
)

// Config of a face; the zero value serves HTTP on a free port of 127.0.0.1.
type Config struct {
	// Listener to serve on; Close closes it.
	Listener net.Listener
	// TLS serves https, with Certificate or, where that is nil, a self-signed one.
	TLS         bool
	Certificate *tls.Certificate
	// Follow sees each connection change its state; nil: nobody does.
	Follow func(net.Conn, http.ConnState)
	// Log of what goes wrong; nil drops it.
	Log *slog.Logger
}

// Server is an address that is served. It is safe for concurrent use.
type Server struct {
	url      string
	log      *slog.Logger
	listener net.Listener
	http     *http.Server
	ctx      context.Context
	cancel   context.CancelFunc
	running  sync.WaitGroup
	closing  sync.Once

	mu     sync.Mutex
	closed bool
	calls  sync.WaitGroup
}

// Listen takes the address; Serve has to follow. Errors are the listener's and
// the certificate's; a listener that was given is closed then.
func Listen(cfg Config) (*Server, error) {
	l := cfg.Listener
	if l == nil {
		var err error
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return nil, err
		}
	}
	s := &Server{url: "http://" + l.Addr().String(), log: cfg.Log}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if cfg.TLS {
		c := cfg.Certificate
		if c == nil {
			var err error
			if c, err = SelfSigned(l.Addr().String()); err != nil {
				l.Close()
				return nil, fmt.Errorf("certificate: %w", err)
			}
		}
		s.url = "https://" + l.Addr().String()
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{*c}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}})
	}
	s.listener = l
	s.http = &http.Server{
		BaseContext: func(net.Listener) context.Context { return s.ctx },
		ErrorLog:    log.New(io.Discard, "", 0),
		ConnState:   cfg.Follow,
	}
	return s, nil
}

// Serve lets h answer until Close, or until ctx ends.
func (s *Server) Serve(ctx context.Context, h http.Handler) {
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	s.http.Handler = h
	s.Go(func() {
		if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("serve", "err", err)
		}
	})
	s.Go(func() {
		select {
		case <-ctx.Done():
			s.shut()
		case <-s.ctx.Done():
		}
	})
}

// URL is the scheme and the address.
func (s *Server) URL() string { return s.url }

// Context ends with the face.
func (s *Server) Context() context.Context { return s.ctx }

// Go runs something beside the calls, which ends when Context does; Close waits
// for it.
func (s *Server) Go(f func()) { s.running.Go(f) }

// Enter begins a call; leave ends it. A face that is closed hangs up.
func (s *Server) Enter() (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		panic(http.ErrAbortHandler)
	}
	s.calls.Add(1)
	return s.calls.Done
}

// shut lets no call in any more and ends those that wait.
func (s *Server) shut() {
	s.closing.Do(func() {
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
		s.cancel()
		s.http.Close()
	})
}

// Close ends the face; when it returns, no call and no goroutine of it is left.
func (s *Server) Close() {
	s.shut()
	s.calls.Wait()
	s.running.Wait()
}

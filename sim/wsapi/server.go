package wsapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/face"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/transport"
	"github.com/csilab/csilab/sim/turn"
)

// Contents carries out what a command means for the content of volumes.
type Contents interface {
	// Apply does ops in order, and undoes what it did of them when it fails. It is
	// called with the array's lock held and must not call the face or the core.
	Apply(ctx context.Context, ops []array.ContentOp) error
}

// Config of a face. Only Array is needed.
type Config struct {
	Array *array.Array
	// Lock guards Array; arrays that are linked for remote copy share one, and
	// who else uses the core holds it. Nil: one of its own.
	Lock sync.Locker
	// Contents; nil: there is none to care for.
	Contents Contents
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// TickEvery is how often time passes for the array while nobody asks it
	// anything; 0 means a second. Each request lets it pass as well.
	TickEvery time.Duration
	// In is the interceptor; nil lets all calls through unrecorded.
	In *fault.Interceptor
	// Component is who calls, for the ledger, where a client's User-Agent does
	// not say csilab/<component>; empty means driver-controller.
	Component string
	// Listener to serve on; nil means a free port of 127.0.0.1. Close closes it.
	Listener net.Listener
	// TLS serves https, with Certificate or, where that is nil, a self-signed one.
	TLS         bool
	Certificate *tls.Certificate
	// Build is the number that GET /api tells; 0 means one of the family of the
	// array. Clients query exports from 30201292 on, and take the array for a
	// Primera or Alletra from 40000128 on.
	Build int
	// Keep is called after something changed and before that is answered, without
	// Lock: what it writes down outlives the process. When it fails the request is
	// answered with an internal error, and whether it holds is open.
	Keep func() error
	// Log of what goes wrong inside; nil drops it.
	Log *slog.Logger
}

// Builds that GET /api tells by default: the first that compresses on a 3PAR,
// and the first of a Primera (OpenStack's driver tells them apart by these).
const (
	build3PAR    = 30301215
	buildPrimera = 40000128
)

// Server is a face that serves. It is safe for concurrent use.
type Server struct {
	cfg    Config
	a      *array.Array
	family array.Family
	log    *slog.Logger
	lanes  turn.Turns // of requests, by session
	line   transport.Line

	face *face.Server

	// owed are content operations of time passing that failed; they are tried
	// again at the next tick. Under cfg.Lock.
	owed []array.ContentOp
	// unkept: something changed that Keep has not been called for. Under cfg.Lock.
	unkept bool
}

// New serves an array until Close, or until ctx ends. Errors name what is wrong
// in the configuration.
func New(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Array == nil {
		return nil, errors.New("wsapi: Array is nil")
	}
	if cfg.TickEvery < 0 {
		return nil, fmt.Errorf("wsapi: TickEvery is %s, allowed are 0 and more", cfg.TickEvery)
	}
	if cfg.Build < 0 {
		return nil, fmt.Errorf("wsapi: Build is %d, allowed are 0 and more", cfg.Build)
	}
	if cfg.Lock == nil {
		cfg.Lock = new(sync.Mutex)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.TickEvery == 0 {
		cfg.TickEvery = time.Second
	}
	if cfg.Component == "" {
		cfg.Component = "driver-controller"
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	s := &Server{cfg: cfg, a: cfg.Array, log: cfg.Log}
	cfg.Lock.Lock()
	s.family = s.a.Config().Family
	cfg.Lock.Unlock()
	if cfg.Build == 0 {
		s.cfg.Build = build3PAR
		if s.family == array.Primera {
			s.cfg.Build = buildPrimera
		}
	}
	var err error
	if s.face, err = face.Listen(face.Config{Listener: cfg.Listener, TLS: cfg.TLS, Certificate: cfg.Certificate, Follow: s.line.Follow, Log: cfg.Log}); err != nil {
		return nil, fmt.Errorf("wsapi: %w", err)
	}
	s.face.Serve(ctx, s)
	s.face.Go(s.tick)
	return s, nil
}

// URL of the array, without /api/v1.
func (s *Server) URL() string { return s.face.URL() }

// SetReachable cuts the array's API off from its clients, or connects it again:
// connections break at once, new ones as soon as they are made. Sessions stay
// until they idle out.
func (s *Server) SetReachable(yes bool) { s.line.SetReachable(yes) }

// Change runs a command on the core beside the API, as somebody at the array's
// console does. What it returns is done with content afterwards, though it
// failed. Errors: that of do, or of Keep.
func (s *Server) Change(do func(now time.Time) ([]array.ContentOp, error)) error {
	return s.locked(func(now time.Time) error {
		ops, err := do(now)
		s.owe(ops)
		s.unkept = true
		return err
	})
}

// Close ends the face; when it returns, no call and no goroutine of it is left.
func (s *Server) Close() { s.face.Close() }

// tick lets time pass while nobody asks.
func (s *Server) tick() {
	t := time.NewTicker(s.cfg.TickEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			_ = s.locked(func(time.Time) error { return nil })
		case <-s.face.Context().Done():
			return
		}
	}
}

// pass lets time pass for the core. The lock is held.
func (s *Server) pass(now time.Time) { s.owe(s.a.Tick(now)) }

// owe carries out what has to become of content that the core has committed to
// already. What fails is tried again, before anything else is.
func (s *Server) owe(ops []array.ContentOp) {
	s.owed = append(s.owed, ops...)
	if len(s.owed) == 0 {
		return
	}
	s.unkept = true
	if s.cfg.Contents != nil {
		if err := s.cfg.Contents.Apply(s.face.Context(), s.owed); err != nil {
			s.log.Error("content not changed", "err", err, "ops", len(s.owed))
			return
		}
	}
	s.owed = nil
}

// apply carries out what a command needs before it is committed.
func (s *Server) apply(ops []array.ContentOp) error {
	if s.cfg.Contents == nil || len(ops) == 0 {
		return nil
	}
	if len(s.owed) > 0 { // the order is kept
		return broken(errors.New("content is not up to date"))
	}
	if err := s.cfg.Contents.Apply(s.face.Context(), ops); err != nil {
		s.log.Error("content not changed", "err", err)
		return broken(err)
	}
	return nil
}

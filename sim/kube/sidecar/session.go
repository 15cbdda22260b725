package sidecar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/csilab/csilab/sim/kube/store"
)

// Config is one incarnation of a sidecar.
type Config struct {
	// Client is the API as this incarnation sees it. Required.
	Client *store.Client
	// Conn is the incarnation's own connection to the driver. Required. One
	// that reports its state, as *grpc.ClientConn does, is waited for at the
	// start, and its loss ends the sidecar.
	Conn grpc.ClientConnInterface
	// DriverName is what the driver must be called; "" takes its own word.
	DriverName string
	// Set is the flags; the zero Set is Real().
	Set Set
	// Log may be nil.
	Log *slog.Logger
}

// ErrConnectionLost ends a sidecar: its connection to the driver broke, and a
// sidecar does not reconnect (csi-lib-utils v0.25.0 connection/connection.go:110,
// ExitOnConnectionLoss). As there, it happens at the first call after the loss.
var ErrConnectionLost = errors.New("lost connection to CSI driver, exiting")

// Session is a sidecar's connection to a driver that is ready. Calls over it
// must stand in the table, which gives their timeout.
type Session struct {
	// Driver is the driver's name.
	Driver string
	// Plugin and Controller are the driver's capabilities. Plugin is nil for
	// the snapshotter, which does not ask.
	Plugin     map[csi.PluginCapability_Service_Type]bool
	Controller map[csi.ControllerServiceCapability_RPC_Type]bool
	Client     *store.Client
	Log        *slog.Logger

	name  string
	calls map[string]Call
	conn  grpc.ClientConnInterface
	lost  atomic.Bool
	exit  context.CancelCauseFunc
}

// stateful is the part of *grpc.ClientConn that tells a broken connection.
type stateful interface {
	Connect()
	GetState() connectivity.State
	WaitForStateChange(context.Context, connectivity.State) bool
}

// Run connects sidecar name to its driver, asks what it can, and runs the
// loops until ctx ends (then nil), one of them fails or the connection is
// lost. Nothing that it started is left when it returns.
func Run(ctx context.Context, name string, cfg Config, loops func(*Session) ([]func(context.Context) error, error)) error {
	if cfg.Client == nil || cfg.Conn == nil {
		return fmt.Errorf("%s: Client and Conn are required", name)
	}
	if cfg.Set == (Set{}) {
		cfg.Set = Real()
	}
	outer := ctx
	ctx, exit := context.WithCancelCause(ctx)
	defer exit(nil)
	s := &Session{Client: cfg.Client, Log: cfg.Log, name: name, calls: cfg.Set.Calls(name), conn: cfg.Conn, exit: exit}
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	s.Log = s.Log.With("component", name)

	g, gctx := errgroup.WithContext(ctx)
	err := s.start(gctx, g, cfg, loops)
	if err != nil {
		exit(err)
	}
	if werr := g.Wait(); err == nil {
		err = werr
	}
	if cause := context.Cause(ctx); errors.Is(cause, ErrConnectionLost) {
		err = cause
	}
	if outer.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (s *Session) start(ctx context.Context, g *errgroup.Group, cfg Config, loops func(*Session) ([]func(context.Context) error, error)) error {
	if sc, ok := cfg.Conn.(stateful); ok {
		for st := sc.GetState(); st != connectivity.Ready; st = sc.GetState() {
			if st == connectivity.Shutdown {
				return errors.New("connection to the driver is closed")
			}
			sc.Connect()
			if !sc.WaitForStateChange(ctx, st) {
				return context.Cause(ctx)
			}
		}
		g.Go(func() error {
			for st := connectivity.Ready; st == connectivity.Ready; st = sc.GetState() {
				if !sc.WaitForStateChange(ctx, st) {
					return nil
				}
			}
			s.lost.Store(true)
			return nil
		})
	}
	if err := s.handshake(ctx, cmp.Or(cfg.Set.Probe, Real().Probe)); err != nil {
		return err
	}
	if cfg.DriverName != "" && cfg.DriverName != s.Driver {
		return fmt.Errorf("driver name: the driver calls itself %q, expected %q", s.Driver, cfg.DriverName)
	}
	ls, err := loops(s)
	if err != nil {
		return err
	}
	for _, l := range ls {
		g.Go(func() error { return l(ctx) })
	}
	return nil
}

// handshake is the calls that the sidecar makes before its work, in its order:
// the snapshotter asks for the name before it probes and not for plugin
// capabilities, the others the other way round.
func (s *Session) handshake(ctx context.Context, interval time.Duration) error {
	steps := []func() error{
		func() error { return s.probe(ctx, interval) },
		func() error { return s.pluginInfo(ctx) },
		func() error { return s.pluginCapabilities(ctx) },
		func() error { return s.ControllerCapabilities(ctx) },
	}
	if s.name == Snapshotter {
		steps = []func() error{steps[1], steps[0], steps[3]}
	}
	for _, f := range steps {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// probe asks until the driver is ready. A timeout counts as not ready; any
// other error ends it (csi-lib-utils v0.25.0 rpc/common.go:136, ProbeForever).
func (s *Session) probe(ctx context.Context, interval time.Duration) error {
	t := time.NewTicker(interval)
	defer t.Stop()
	for {
		rsp, err := csi.NewIdentityClient(s).Probe(ctx, &csi.ProbeRequest{})
		switch {
		case err == nil && (rsp.GetReady() == nil || rsp.GetReady().GetValue()):
			return nil
		case err != nil && status.Code(err) != codes.DeadlineExceeded:
			return fmt.Errorf("CSI driver probe failed: %w", err)
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (s *Session) pluginInfo(ctx context.Context) error {
	rsp, err := csi.NewIdentityClient(s).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	if err != nil {
		return fmt.Errorf("error getting CSI driver name: %w", err)
	}
	if s.Driver = rsp.GetName(); s.Driver == "" {
		return errors.New("driver name is empty")
	}
	return nil
}

func (s *Session) pluginCapabilities(ctx context.Context) error {
	rsp, err := csi.NewIdentityClient(s).GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
	if err != nil {
		return fmt.Errorf("error getting plugin capabilities: %w", err)
	}
	s.Plugin = map[csi.PluginCapability_Service_Type]bool{}
	for _, c := range rsp.GetCapabilities() {
		if c.GetService() != nil {
			s.Plugin[c.GetService().GetType()] = true
		}
	}
	return nil
}

// ControllerCapabilities asks the driver again for what its controller can.
func (s *Session) ControllerCapabilities(ctx context.Context) error {
	if s.Plugin != nil && !s.Plugin[csi.PluginCapability_Service_CONTROLLER_SERVICE] && s.name == Attacher {
		s.Controller = map[csi.ControllerServiceCapability_RPC_Type]bool{}
		return nil // the attacher asks a driver with a controller service only
	}
	m, err := s.AskController(ctx)
	if err == nil {
		s.Controller = m
	}
	return err
}

// AskController makes a ControllerGetCapabilities call.
func (s *Session) AskController(ctx context.Context) (map[csi.ControllerServiceCapability_RPC_Type]bool, error) {
	rsp, err := csi.NewControllerClient(s).ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
	if err != nil {
		return nil, fmt.Errorf("error getting controller capabilities: %w", err)
	}
	m := map[csi.ControllerServiceCapability_RPC_Type]bool{}
	for _, c := range rsp.GetCapabilities() {
		if c.GetRpc() != nil {
			m[c.GetRpc().GetType()] = true
		}
	}
	return m, nil
}

// Call is the table's row for an RPC of this sidecar. It panics on one that
// the table lacks: that is a mistake in a sidecar.
func (s *Session) Call(rpc string) Call {
	c, ok := s.calls[rpc]
	if !ok {
		panic(fmt.Sprintf("sidecar: %s: no row for %s", s.name, rpc))
	}
	return c
}

// Invoke implements grpc.ClientConnInterface: it calls with the timeout of the
// table, and ends the sidecar where the connection is lost.
func (s *Session) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	row := s.Call(method[strings.LastIndexByte(method, '/')+1:])
	if s.lost.Load() {
		s.exit(ErrConnectionLost)
		return status.Error(codes.Unavailable, "connection lost, reconnecting disabled")
	}
	ctx, cancel := context.WithTimeout(ctx, row.Timeout)
	defer cancel()
	return s.conn.Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface. Sidecars make no streams.
func (s *Session) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "sidecars make no streaming calls")
}

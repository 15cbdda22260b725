// Package server serves CSI services over gRPC, with a log of calls, metrics,
// and recovery of panics; and the HTTP side: /metrics and /healthz.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"strings"
	"time"

	"github.com/kubernetes-csi/csi-lib-utils/protosanitizer"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csilab/csilab/driver/trace"
)

// ErrStuck: calls did not end within the time to stop.
var ErrStuck = errors.New("server: calls are still running")

// Config of a server.
type Config struct {
	Log        *slog.Logger          // nil discards
	Registerer prometheus.Registerer // nil: no metrics
	// MetricsPrefix begins the names of metrics; "": vsphere_csi.
	MetricsPrefix string
	// StopTimeout bounds how long calls under way may go on after the context of
	// Serve ended; 0: 10 s. Then their contexts end.
	StopTimeout time.Duration
}

// Server is a gRPC server for CSI services, which register on it as on a
// grpc.Server.
type Server struct {
	cfg     Config
	grpc    *grpc.Server
	seconds *prometheus.HistogramVec
}

var _ grpc.ServiceRegistrar = (*Server)(nil)

// New returns a server that isn't serving yet.
func New(cfg Config) (*Server, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.StopTimeout < 0 {
		return nil, fmt.Errorf("server: Config.StopTimeout is %s, must not be negative", cfg.StopTimeout)
	}
	if cfg.StopTimeout == 0 {
		cfg.StopTimeout = 10 * time.Second
	}
	if cfg.MetricsPrefix == "" {
		cfg.MetricsPrefix = "vsphere_csi"
	}
	s := &Server{cfg: cfg}
	if cfg.Registerer != nil {
		// Labels as those of csi-lib-utils' csi_sidecar_operations_seconds.
		s.seconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    cfg.MetricsPrefix + "_operations_seconds",
			Help:    "Duration of the CSI calls that the driver served, by method and gRPC code.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600},
		}, []string{"method_name", "grpc_status_code"})
		if err := cfg.Registerer.Register(s.seconds); err != nil {
			return nil, fmt.Errorf("server: %w", err)
		}
	}
	s.grpc = grpc.NewServer(grpc.ChainUnaryInterceptor(trace.Serve, s.observe, s.recover), grpc.WaitForHandlers(true))
	return s, nil
}

// RegisterService implements grpc.ServiceRegistrar.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, impl any) {
	s.grpc.RegisterService(desc, impl)
}

// Serve serves until ctx ends, then lets calls under way end (Config.StopTimeout)
// and returns nil, or ErrStuck when a call ignores even the end of its context.
// It closes the listener.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	failed := make(chan error, 1)
	go func() { failed <- s.grpc.Serve(l) }()
	select {
	case err := <-failed:
		return fmt.Errorf("server: %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	stopped := make(chan struct{})
	go func() { s.grpc.GracefulStop(); close(stopped) }()
	if !s.ended(stopped) {
		hard := make(chan struct{})
		go func() { s.grpc.Stop(); close(hard) }()
		if !s.ended(hard) {
			return ErrStuck
		}
		<-stopped
	}
	<-failed
	return nil
}

func (s *Server) ended(done <-chan struct{}) bool {
	t := time.NewTimer(s.cfg.StopTimeout)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}

// text formats a message when a log line is really written, without secrets.
type text struct{ msg any }

func (t text) LogValue() slog.Value {
	return slog.StringValue(protosanitizer.StripSecrets(t.msg).String())
}

func (s *Server) observe(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	method := info.FullMethod[strings.LastIndexByte(info.FullMethod, '/')+1:]
	s.cfg.Log.DebugContext(ctx, "call", "method", method, "request", text{req})
	start := time.Now()
	resp, err := handler(ctx, req)
	took := time.Since(start)
	code := status.Code(err)
	if s.seconds != nil {
		s.seconds.WithLabelValues(info.FullMethod, code.String()).Observe(took.Seconds())
	}
	if err != nil {
		s.cfg.Log.ErrorContext(ctx, "call failed", "method", method, "request", text{req}, "code", code.String(), "err", status.Convert(err).Message(), "took", took)
	} else {
		s.cfg.Log.DebugContext(ctx, "call done", "method", method, "response", text{resp}, "took", took)
	}
	return resp, err
}

// recover turns a panic of one call into its error: other volumes' calls go on.
func (s *Server) recover(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.cfg.Log.ErrorContext(ctx, "panic", "method", info.FullMethod, "panic", p, "stack", string(debug.Stack()))
			resp, err = nil, status.Errorf(codes.Internal, "panic in %s: %v", info.FullMethod, p)
		}
	}()
	return handler(ctx, req)
}

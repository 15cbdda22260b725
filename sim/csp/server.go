package csp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/csilab/csilab/sim/csp/wsapi"
	"github.com/csilab/csilab/sim/face"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/turn"
)

// Array is one that the provider reaches.
type Array struct {
	// Name is the system's name, by which remote copy knows it as a target.
	Name string
	// Backends are what the secret of a client may call it besides its name: an
	// address, or a name. A port behind it is not looked at.
	Backends []string
	// URL of its WSAPI, without /api/v1.
	URL string
	// FileService is the address at which its file service exports file volumes;
	// "": it has none.
	FileService string
}

// ReplicationDevice says where volumes are replicated to: what an
// HPEReplicationDeviceInfo has, and what is in the secret that it names.
type ReplicationDevice struct {
	TargetName                 string // Array.Name
	TargetCPG, TargetSnapCPG   string
	TargetUser, TargetPassword string // default: those of the token
	// TargetMode is sync, which is the default, or periodic.
	TargetMode string
}

// Config of a provider. Arrays is needed.
type Config struct {
	Arrays []Array
	// ReplicationDevices by the name that the parameter replicationDevices has.
	ReplicationDevices map[string]ReplicationDevice
	// VolumeOf resolves the name of a PVC, as cloneOf and virtualCopyOf have it,
	// to the id of its volume; nil, or false: the value is taken for an id.
	VolumeOf func(ctx context.Context, namespace, claim string) (id string, ok bool)
	// NodeOf is what the cluster knows of the node with a uuid; nil, or false:
	// nothing but what clients tell.
	NodeOf func(ctx context.Context, uuid string) (Node, bool)

	// Dial reaches arrays; nil means this machine's network.
	Dial wsapi.Dialer
	// Listener to serve on; nil means a free port of 127.0.0.1. Close closes it.
	Listener net.Listener
	// TLS serves https, as off the cluster, with Certificate or, where that is nil,
	// a self-signed one.
	TLS         bool
	Certificate *tls.Certificate

	// In is the interceptor; nil lets all calls through unrecorded.
	In *fault.Interceptor
	// Component is who calls, for the ledger, where a client's User-Agent does
	// not say csilab/<component>; empty means driver-controller.
	Component string
	// Agent is the User-Agent towards arrays; empty means csilab/csp.
	Agent string
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// TokenLife is how long a token is good; 0 means 30 minutes. Unverified: the
	// real one's.
	TokenLife time.Duration
	// Backoff, Timeout and Sessions are those of wsapi.Config.
	Backoff  []time.Duration
	Timeout  time.Duration
	Sessions int
	// BatchWindow is how long a volume with allow_batch_replicated_volume_creation
	// waits for others that join the same remote copy group; 0 means 10 s.
	BatchWindow time.Duration
	// OpTime bounds an operation, which goes on when its client has left; 0 means
	// 5 minutes.
	OpTime time.Duration
	// KeepHosts leaves a host on the array when its last export is gone, as with
	// DISABLE_HOST_DELETION.
	KeepHosts bool
	// Seed makes tokens.
	Seed uint64
	// Log of what goes wrong inside; nil drops it.
	Log *slog.Logger
}

// Server is a provider that serves. It is safe for concurrent use.
type Server struct {
	cfg    Config
	log    *slog.Logger
	arrays []*backend
	tokens tokens
	locks  turn.Turns // by what a call changes

	batches struct {
		mu   sync.Mutex
		open map[batchKey]*batch // those that still take volumes
	}

	face *face.Server
}

// New serves a provider until Close, or until ctx ends. Errors name what is
// wrong in the configuration.
func New(ctx context.Context, cfg Config) (*Server, error) {
	if len(cfg.Arrays) == 0 {
		return nil, errors.New("csp: Arrays is empty, allowed are 1 and more")
	}
	def := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&cfg.TokenLife, 30*time.Minute)
	def(&cfg.OpTime, 5*time.Minute)
	def(&cfg.BatchWindow, 10*time.Second)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Component == "" {
		cfg.Component = "driver-controller"
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	s := &Server{cfg: cfg, log: cfg.Log}
	for i, a := range cfg.Arrays {
		if a.Name == "" || a.URL == "" {
			return nil, fmt.Errorf("csp: Arrays[%d]: Name and URL are needed", i)
		}
		b := &backend{Array: a, server: s, clients: map[login]*wsapi.Client{}}
		b.URL = strings.TrimSuffix(a.URL, "/")
		for _, other := range s.arrays {
			if other.Name == a.Name {
				return nil, fmt.Errorf("csp: Arrays[%d]: name %q is given twice", i, a.Name)
			}
		}
		s.arrays = append(s.arrays, b)
	}
	for name, d := range cfg.ReplicationDevices {
		if s.arrayNamed(d.TargetName) == nil {
			return nil, fmt.Errorf("csp: ReplicationDevices[%q]: TargetName %q is none of Arrays", name, d.TargetName)
		}
		if d.TargetMode != "" && d.TargetMode != modeSync && d.TargetMode != modePeriodic {
			return nil, fmt.Errorf("csp: ReplicationDevices[%q]: TargetMode %q, allowed are %s and %s", name, d.TargetMode, modeSync, modePeriodic)
		}
	}
	s.tokens.init(cfg.Seed, cfg.Now())
	var err error
	if s.face, err = face.Listen(face.Config{Listener: cfg.Listener, TLS: cfg.TLS, Certificate: cfg.Certificate, Log: cfg.Log}); err != nil {
		return nil, fmt.Errorf("csp: %w", err)
	}
	s.face.Serve(ctx, s)
	return s, nil
}

// URL of the provider, without /containers/v1.
func (s *Server) URL() string { return s.face.URL() }

// logoutTime bounds how long Close waits for arrays: sessions idle out anyway.
const logoutTime = 5 * time.Second

// Close ends the provider and its sessions with arrays; when it returns, no
// call and no goroutine of it is left.
func (s *Server) Close() { s.close(true) }

// Kill ends the provider as a crash does: its sessions stay on the arrays until
// they idle out.
func (s *Server) Kill() { s.close(false) }

func (s *Server) close(logout bool) {
	s.face.Close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.face.Context()), logoutTime)
	defer cancel()
	if !logout {
		cancel()
	}
	for _, b := range s.arrays {
		b.close(ctx)
	}
}

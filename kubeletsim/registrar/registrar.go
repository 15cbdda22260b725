// Package registrar is the part of the node-driver-registrar sidecar in a
// node's driver pod: it asks the driver for its name and tells kubelet, over a
// socket in plugins_registry, where the driver listens.
//
// Unverified: the sidecar is not served as a Go module, so this follows its
// documentation and what was seen of it; the error texts are approximate.
package registrar

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/hop"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/transport"
)

// Config says which driver to register where. Paths are the node's.
type Config struct {
	// Endpoint is the driver's CSI socket (--csi-address and
	// --kubelet-registration-path, which are one here). Required.
	Endpoint string
	// Driver is the name that the driver must have; "" takes what it says.
	Driver string
	// Path is the registration socket; "" is
	// /var/lib/kubelet/plugins_registry/<driver>-reg.sock.
	Path string
	// Network listens at Path and dials Endpoint. Required.
	Network transport.Network
	// In records the call to the driver; nil records nothing.
	In *fault.Interceptor
	// Node is the node's name, for the ledger.
	Node string
	// Timeout of the call to the driver; 0 is 1 s (--timeout).
	Timeout time.Duration
	// Versions to announce; nil is 1.0.0, as the sidecar has it.
	Versions []string
	// Log may be nil.
	Log *slog.Logger
}

// ErrRefused is wrapped by the error of Serve when kubelet has refused the
// driver. The sidecar exits then and its container is restarted.
var ErrRefused = errors.New("registration process failed")

// Serve waits for the driver, learns its name and serves the registration
// socket until ctx ends (nil), kubelet refuses (ErrRefused), or something
// fails. The socket is removed on return.
func Serve(ctx context.Context, cfg Config) error {
	for _, f := range []struct {
		name  string
		empty bool
	}{{"Endpoint", cfg.Endpoint == ""}, {"Network", cfg.Network == nil}} {
		if f.empty {
			return fmt.Errorf("registrar: Config.%s is required", f.name)
		}
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Second
	}
	if cfg.Versions == nil {
		cfg.Versions = []string{"1.0.0"}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	name, err := driverName(ctx, cfg)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("registrar: error retreiving CSI driver name: %w", err)
	}
	if cfg.Driver != "" && cfg.Driver != name {
		return fmt.Errorf("registrar: the driver at %s calls itself %q, not %q", cfg.Endpoint, name, cfg.Driver)
	}
	if cfg.Path == "" {
		cfg.Path = path.Join("/var/lib/kubelet/plugins_registry", name+"-reg.sock")
	}
	l, err := cfg.Network.Listen("unix", cfg.Path)
	if err != nil {
		return fmt.Errorf("registrar: failed to listen on socket %s: %w", cfg.Path, err)
	}
	s := &server{cfg: cfg, name: name, refused: make(chan string, 1)}
	g := grpc.NewServer()
	registration.RegisterRegistrationServer(g, s)
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	select {
	case <-ctx.Done():
		g.Stop()
		<-served
		return nil
	case msg := <-s.refused:
		g.GracefulStop() // the reply to kubelet still leaves
		<-served
		return fmt.Errorf("registrar: %w: %s", ErrRefused, msg)
	case err := <-served:
		g.Stop()
		return fmt.Errorf("registrar: %s: %w", cfg.Path, err)
	}
}

// driverName waits for the driver to listen, then asks GetPluginInfo once.
func driverName(ctx context.Context, cfg Config) (string, error) {
	conn, err := hop.Dial(hop.Config{Network: cfg.Network, Endpoint: cfg.Endpoint, Hop: ledger.CSI,
		Component: "registrar@" + cfg.Node, Node: cfg.Node, In: cfg.In})
	if err != nil {
		return "", err
	}
	defer conn.Close()
	for st := conn.GetState(); st != connectivity.Ready; st = conn.GetState() {
		conn.Connect()
		if !conn.WaitForStateChange(ctx, st) {
			return "", context.Cause(ctx)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	out, err := csi.NewIdentityClient(conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	if err != nil {
		return "", err
	}
	if out.GetName() == "" {
		return "", errors.New("driver name is empty")
	}
	return out.GetName(), nil
}

type server struct {
	registration.UnimplementedRegistrationServer
	cfg     Config
	name    string
	refused chan string
}

func (s *server) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: s.name, Endpoint: s.cfg.Endpoint, SupportedVersions: s.cfg.Versions}, nil
}

func (s *server) NotifyRegistrationStatus(_ context.Context, r *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if r.GetPluginRegistered() {
		s.cfg.Log.Info("driver registered with kubelet", "driver", s.name)
		return &registration.RegistrationStatusResponse{}, nil
	}
	s.cfg.Log.Error("registration process failed with error, restarting registration container", "driver", s.name, "error", r.GetError())
	select {
	case s.refused <- r.GetError():
	default:
	}
	return &registration.RegistrationStatusResponse{}, nil
}

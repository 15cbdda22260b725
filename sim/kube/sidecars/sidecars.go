// Package sidecars is the controller pod of a CSI driver without the driver:
// its sidecars and the snapshot controller, each restarted when it ends.
package sidecars

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/attacher"
	"github.com/csilab/csilab/sim/kube/provisioner"
	"github.com/csilab/csilab/sim/kube/resizer"
	"github.com/csilab/csilab/sim/kube/sidecar"
	"github.com/csilab/csilab/sim/kube/snapshotcontroller"
	"github.com/csilab/csilab/sim/kube/snapshotter"
	"github.com/csilab/csilab/sim/kube/store"
)

// Conn is a connection to the driver, e.g. *hop.Conn.
type Conn interface {
	grpc.ClientConnInterface
	io.Closer
	Connect()
	GetState() connectivity.State
	WaitForStateChange(context.Context, connectivity.State) bool
}

// Config is the pod. Client and Dial are required.
type Config struct {
	// Client makes the API client of one incarnation of a component.
	Client func(component string) *store.Client
	// Dial makes the connection of one incarnation of a sidecar to the driver.
	// It need not wait for the driver. The pod closes it.
	Dial func(component string) (Conn, error)
	// DriverName is what the driver must be called; "" takes its own word.
	DriverName string
	// Set is the flags; the zero Set is sidecar.Real().
	Set sidecar.Set
	// Without leaves components out, e.g. sidecar.Snapshotter and
	// sidecar.SnapshotController for a driver that has no snapshots.
	Without []string
	// Log may be nil.
	Log *slog.Logger
}

// Components is all components of the pod, in the order of their start.
func Components() []string {
	return []string{sidecar.Provisioner, sidecar.Attacher, sidecar.Resizer, sidecar.SnapshotController, sidecar.Snapshotter}
}

// Pod runs the components.
type Pod struct {
	cfg Config

	mu      sync.Mutex
	running map[string]*incarnation
}

// New checks the configuration.
func New(cfg Config) (*Pod, error) {
	if cfg.Client == nil || cfg.Dial == nil {
		return nil, errors.New("sidecars: Client and Dial are required")
	}
	if cfg.Set == (sidecar.Set{}) {
		cfg.Set = sidecar.Real()
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	known := map[string]bool{}
	for _, c := range Components() {
		known[c] = true
	}
	for _, c := range cfg.Without {
		if !known[c] {
			return nil, fmt.Errorf("sidecars: Without: unknown component %q, allowed are %q", c, Components())
		}
	}
	return &Pod{cfg: cfg, running: map[string]*incarnation{}}, nil
}

// Run runs the components until ctx ends. Nothing is left when it returns.
func (p *Pod) Run(ctx context.Context) {
	without := map[string]bool{}
	for _, c := range p.cfg.Without {
		without[c] = true
	}
	var wg sync.WaitGroup
	for _, name := range Components() {
		if !without[name] {
			wg.Go(func() {
				sidecar.Supervise(ctx, p.cfg.Set.Restart, p.cfg.Log.With("component", name), func(ctx context.Context) error { return p.once(ctx, name) })
			})
		}
	}
	wg.Wait()
}

// Crash kills the running incarnation of a component: nothing that it does
// later has an effect. It does not wait for it to end, so it may be called
// from inside one of its calls. It says whether one was running.
func (p *Pod) Crash(component string) bool {
	p.mu.Lock()
	i := p.running[component]
	p.mu.Unlock()
	if i == nil {
		return false
	}
	i.client.Fence()
	i.dead.Store(true)
	i.cancel(fault.ErrCrashed)
	return true
}

// incarnation is one life of a component; it is its own connection, which
// its death closes for good.
type incarnation struct {
	Conn
	client *store.Client
	cancel context.CancelCauseFunc
	dead   atomic.Bool
}

// Invoke implements grpc.ClientConnInterface.
func (i *incarnation) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if i.dead.Load() {
		return status.Error(codes.Unavailable, fault.ErrCrashed.Error())
	}
	return i.Conn.Invoke(ctx, method, args, reply, opts...)
}

func (p *Pod) once(ctx context.Context, name string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	i := &incarnation{client: p.cfg.Client(name), cancel: cancel}
	if name != sidecar.SnapshotController {
		conn, err := p.cfg.Dial(name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		defer conn.Close()
		i.Conn = conn
	}
	p.mu.Lock()
	p.running[name] = i
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.running[name] == i {
			delete(p.running, name)
		}
	}()
	cfg := sidecar.Config{Client: i.client, Conn: i, DriverName: p.cfg.DriverName, Set: p.cfg.Set, Log: p.cfg.Log}
	switch name {
	case sidecar.Provisioner:
		return provisioner.New(cfg).Run(ctx)
	case sidecar.Attacher:
		return attacher.New(cfg).Run(ctx)
	case sidecar.Resizer:
		return resizer.New(cfg).Run(ctx)
	case sidecar.Snapshotter:
		return snapshotter.New(cfg).Run(ctx)
	}
	return snapshotcontroller.New(snapshotcontroller.Config{Client: i.client, Flags: p.cfg.Set.SnapshotController, Log: p.cfg.Log}).Run(ctx)
}

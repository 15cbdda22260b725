package vsphere

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"reflect"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/csilab/csilab/driver/controller"
	"github.com/csilab/csilab/driver/record"
)

// Options of New. The zero value of a field is what its comment says.
type Options struct {
	// Config is required.
	Config Config
	// ConfigFile, when set together with Watch, is loaded again whenever its
	// directory changes; Getenv overrides it as in LoadConfig. A file that
	// doesn't load leaves the old configuration in force.
	ConfigFile string
	Getenv     func(string) string
	// Watch reports changes in a directory until ctx ends.
	Watch func(ctx context.Context, dir string) (<-chan struct{}, error)
	// Dial connects to the vCenter; nil is the operating system's.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Records keeps operations over a crash; required.
	Records record.Store
	// Log; nil discards.
	Log *slog.Logger
	// Registerer takes the metrics; nil keeps none.
	Registerer prometheus.Registerer
	// Settle is how long a request whose reply was lost may still be about to
	// begin. 0 means 2 s.
	Settle time.Duration
	// CallTimeout bounds one SOAP call. 0 means 30 s.
	CallTimeout time.Duration
	// LoginBackoff is the pause after the first refused password; it doubles
	// up to 3 minutes, so that an account isn't locked. 0 means 5 s.
	LoginBackoff time.Duration
}

// Backend is the vSphere side of the controller service.
type Backend struct {
	opt     Options
	log     *slog.Logger
	records record.Store
	metrics *metrics

	life   context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	inFlight controller.InFlight
	several  bool // one of several: its host names it

	mu       sync.Mutex
	closed   bool // nothing is spawned any more
	config   Config
	current  *session
	retired  *session // the one before, whose last calls may still end
	pending  *loginAttempt
	lastErr  error     // of the last login, nil after a good one
	notUntil time.Time // no login before
	pause    time.Duration
	ever     bool // a login has succeeded
	adopted  bool // running tasks of an earlier process have records
}

var _ controller.Backend = (*Backend)(nil)

// abilities: CNS restores snapshots only, attaches a disk writable and to one
// VM, and has nothing that can be changed later.
var abilities = controller.Abilities{Nodes: true, Capacity: true}

// Abilities implements controller.Backend.
func (b *Backend) Abilities() controller.Abilities { return abilities }

// New returns a backend. It doesn't need the vCenter: the first call logs in.
// The backend ends with ctx or Close, whichever is first.
//
// It serves Config.VCenter only: see NewSeveral.
func New(ctx context.Context, opt Options) (*Backend, error) {
	m, err := newMetrics(opt.Registerer)
	if err != nil {
		return nil, fmt.Errorf("vsphere: %w", err)
	}
	return newBackend(ctx, opt, m)
}

func newBackend(ctx context.Context, opt Options, m *metrics) (*Backend, error) {
	opt.Config.Others = nil
	if err := opt.Config.check(); err != nil {
		return nil, fmt.Errorf("vsphere: %w", err)
	}
	if opt.Records == nil {
		return nil, errors.New("vsphere: Options.Records is nil")
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&opt.Settle, 2*time.Second)
	def(&opt.CallTimeout, 30*time.Second)
	def(&opt.LoginBackoff, 5*time.Second)
	b := &Backend{opt: opt, log: opt.Log, records: opt.Records, metrics: m, config: opt.Config}
	b.life, b.cancel = context.WithCancel(ctx)
	if opt.Watch != nil && opt.ConfigFile != "" {
		changed, err := opt.Watch(b.life, filepath.Dir(opt.ConfigFile))
		if err != nil {
			b.cancel()
			return nil, fmt.Errorf("vsphere: watch %s: %w", filepath.Dir(opt.ConfigFile), err)
		}
		b.wg.Go(func() { b.follow(changed) })
	}
	return b, nil
}

// Close ends calls under way, logs out within ctx, and waits for everything
// that the backend started.
func (b *Backend) Close(ctx context.Context) error {
	b.mu.Lock()
	b.closed = true
	s, old := b.current, b.retired
	b.current, b.retired = nil, nil
	b.mu.Unlock()
	b.cancel()
	defer func() {
		for _, x := range []*session{s, old} {
			if x != nil {
				x.vim.CloseIdleConnections()
			}
		}
	}()
	var err error
	if s != nil {
		err = s.logout(ctx)
	}
	done := make(chan struct{})
	go func() { b.wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return err
}

// spawn runs fn in a goroutine that Close waits for; after Close nothing runs.
func (b *Backend) spawn(fn func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.wg.Go(fn)
	}
}

// Probe says whether the backend is ready: it is once a login has succeeded,
// and stays so, for a restart cures no vCenter that is away.
func (b *Backend) Probe(ctx context.Context) error {
	b.mu.Lock()
	ever := b.ever
	b.mu.Unlock()
	if ever {
		return nil
	}
	_, err := b.session(ctx)
	return err
}

func (b *Backend) conf() Config {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.config
}

// follow loads the configuration when its directory changes: a Secret volume
// swaps a link, so that the file itself never reports a change.
func (b *Backend) follow(changed <-chan struct{}) {
	for {
		select {
		case <-b.life.Done():
			return
		case _, ok := <-changed:
			if !ok {
				return
			}
		}
		c, err := LoadConfig(b.opt.ConfigFile, b.opt.Getenv)
		if err != nil {
			b.log.Error("configuration not reloaded", "error", err)
			continue
		}
		one, ok := c.only(b.conf().VCenter.Host, b.several)
		if !ok {
			b.log.Warn("the configuration no longer has this vCenter; vCenters come and go with a restart only", "vcenter", b.conf().VCenter.Host)
			continue
		}
		b.reconfigure(one)
	}
}

// reconfigure takes a new configuration. The cluster id stays: volumes are
// found by it.
func (b *Backend) reconfigure(c Config) {
	b.mu.Lock()
	if c.ClusterID != b.config.ClusterID {
		b.log.Warn("cluster-id changes with a restart only", "was", b.config.ClusterID, "now", c.ClusterID)
		c.ClusterID = b.config.ClusterID
	}
	c.VCenter.Scheme = b.config.VCenter.Scheme
	if reflect.DeepEqual(c, b.config) {
		b.mu.Unlock()
		return
	}
	b.config = c
	old := b.current
	b.current, b.pending = nil, nil
	b.lastErr, b.notUntil, b.pause = nil, time.Time{}, 0
	b.mu.Unlock()
	b.log.Info("configuration reloaded")
	if old != nil {
		b.spawn(func() {
			ctx, cancel := context.WithTimeout(b.life, b.opt.CallTimeout)
			defer cancel()
			if err := old.logout(ctx); err != nil {
				b.log.Info("logout of the old session", "error", err)
			}
		})
	}
}

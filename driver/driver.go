// Package driver is the CSI drivers csi.vsphere.vmware.com and csi.hpe.com as a
// value, one or the other by Config.Backend: the services of package
// controller, node and identity, put together and served.
// Command csi-driver is a thin main around it; a program may also embed it.
package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/csilab/csilab/driver/controller"
	"github.com/csilab/csilab/driver/hpe"
	"github.com/csilab/csilab/driver/identity"
	"github.com/csilab/csilab/driver/node"
	"github.com/csilab/csilab/driver/node/san"
	"github.com/csilab/csilab/driver/record"
	"github.com/csilab/csilab/driver/server"
	"github.com/csilab/csilab/driver/vsphere"
)

// Name of the driver with a backend, that of the upstream one, so that its
// manifests, classes and volumes fit.
func Name(b Backend) string {
	if b == HPE {
		return "csi.hpe.com"
	}
	return "csi.vsphere.vmware.com"
}

// Mode says which services a process has.
type Mode string

// The modes. Each has the Identity service.
const (
	Controller Mode = "controller"
	Node       Mode = "node"
	All        Mode = "all"
)

// Backend names a storage system.
type Backend string

// The backends.
const (
	VSphere Backend = "vsphere"
	HPE     Backend = "hpe"
)

// DefaultMaxVolumes is what a VM with four SCSI controllers takes besides its
// own disk: 4×15−1.
const DefaultMaxVolumes = 59

// WatchFunc reports changes in a directory until ctx ends, then closes the
// channel.
type WatchFunc func(ctx context.Context, dir string) (<-chan struct{}, error)

// Config of a driver. Four fields are what it has of the world around it: Dial,
// Listen, Host and Watch; their zero values are the operating system's.
type Config struct {
	Mode    Mode    // "": all
	Backend Backend // "": vsphere
	// Endpoint is where the gRPC server listens: unix:///path, unix:/path,
	// /path, or tcp://host:port; required.
	Endpoint string
	// NodeName is the node's Kubernetes name: for logs, and for the array's host
	// with HPE, where a node needs it.
	NodeName string
	Version  string // "": "dev"

	Dial   func(ctx context.Context, network, addr string) (net.Conn, error)
	Listen func(network, addr string) (net.Listener, error)
	Host   node.Host
	Watch  WatchFunc

	// VSphere is the configuration of the controller; nil: it is read from
	// ConfigFile, with Getenv (nil: nothing is set) overriding it.
	VSphere    *vsphere.Config
	ConfigFile string // "": /etc/cloud/csi-vsphere.conf
	Getenv     func(string) string
	// HPE is the configuration of that backend; nil: a zero one, with which each
	// request must bring a Secret.
	HPE *hpe.Config
	// Records keeps operations over a restart of the controller; nil: files in
	// StateDir, or in memory when that is empty too.
	Records  record.Store
	StateDir string

	// TopologyFile tells the node's segments (docs/topology.md); "": none.
	TopologyFile string
	// TopologyLabels are keys that are topology besides those that begin with
	// topology.csi.vmware.com/.
	TopologyLabels []string
	// TopologyWait bounds the wait for that file; 0: 1 min, as upstream's
	// NODEGETINFO_WATCH_TIMEOUT_MINUTES.
	TopologyWait time.Duration
	// MonitorEvery is how often a node with HPE looks at the paths of its volumes
	// between calls; 0: never.
	MonitorEvery time.Duration
	// MaxVolumesPerNode is 1 to 255; 0: DefaultMaxVolumes, hpe.DefaultMaxVolumes.
	MaxVolumesPerNode int
	// DeviceWait bounds the wait for an attached disk to show up; 0: 30 s.
	DeviceWait time.Duration

	// MetricsAddress and HealthAddress are host:port; "": off. Without a host
	// they are on loopback.
	MetricsAddress, HealthAddress string
	// StopTimeout bounds how long calls under way go on after Run's context
	// ended; 0: 10 s.
	StopTimeout time.Duration
	Log         *slog.Logger // nil discards
}

// Driver serves once.
type Driver struct {
	cfg           Config
	network, addr string
	log           *slog.Logger
	ran           atomic.Bool
	ready         chan struct{}
}

// New checks the configuration. It has no effect outside yet.
func New(cfg Config) (*Driver, error) {
	switch cfg.Mode {
	case "":
		cfg.Mode = All
	case Controller, Node, All:
	default:
		return nil, fmt.Errorf("driver: Config.Mode is %q, allowed are %s, %s, %s", cfg.Mode, Controller, Node, All)
	}
	switch cfg.Backend {
	case "":
		cfg.Backend = VSphere
	case VSphere, HPE:
	default:
		return nil, fmt.Errorf("driver: Config.Backend is %q, allowed are %s, %s", cfg.Backend, VSphere, HPE)
	}
	d := &Driver{ready: make(chan struct{})}
	var err error
	if d.network, d.addr, err = ParseEndpoint(cfg.Endpoint); err != nil {
		return nil, fmt.Errorf("driver: Config.Endpoint: %w", err)
	}
	if cfg.Version == "" {
		cfg.Version = "dev"
	}
	switch n := cfg.MaxVolumesPerNode; {
	case n == 0 && cfg.Backend == HPE:
		cfg.MaxVolumesPerNode = hpe.DefaultMaxVolumes
	case n == 0:
		cfg.MaxVolumesPerNode = DefaultMaxVolumes
	case n < 0 || n > 255:
		return nil, fmt.Errorf("driver: Config.MaxVolumesPerNode is %d, allowed are 1 to 255", n)
	}
	for _, t := range []struct {
		name string
		d    time.Duration
	}{{"TopologyWait", cfg.TopologyWait}, {"DeviceWait", cfg.DeviceWait}, {"StopTimeout", cfg.StopTimeout}} {
		if t.d < 0 {
			return nil, fmt.Errorf("driver: Config.%s is %s, must not be negative", t.name, t.d)
		}
	}
	if cfg.TopologyWait == 0 {
		cfg.TopologyWait = time.Minute
	}
	if cfg.StopTimeout == 0 {
		cfg.StopTimeout = 10 * time.Second
	}
	if cfg.MetricsAddress, err = loopback("MetricsAddress", cfg.MetricsAddress); err != nil {
		return nil, err
	}
	if cfg.HealthAddress, err = loopback("HealthAddress", cfg.HealthAddress); err != nil {
		return nil, err
	}
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{}).DialContext
	}
	if cfg.Listen == nil {
		cfg.Listen = listen
	}
	if cfg.Watch == nil {
		cfg.Watch = watch
	}
	if cfg.Getenv == nil {
		cfg.Getenv = func(string) string { return "" }
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.HPE == nil {
		cfg.HPE = &hpe.Config{}
	}
	if cfg.Mode != Node && cfg.Backend == VSphere {
		if cfg.ConfigFile == "" {
			cfg.ConfigFile = vsphere.DefaultConfigFile
		}
		if cfg.VSphere == nil {
			c, err := vsphere.LoadConfig(cfg.ConfigFile, cfg.Getenv)
			if err != nil {
				return nil, fmt.Errorf("driver: %w", err)
			}
			cfg.VSphere = &c
		} else {
			cfg.ConfigFile = ""
		}
	}
	if cfg.Mode != Controller && cfg.Backend == HPE && cfg.NodeName == "" {
		return nil, fmt.Errorf("driver: Config.NodeName is empty, and Config.Mode %q with Config.Backend %q needs it: the array's host is named by it", cfg.Mode, HPE)
	}
	if cfg.Mode != Controller && cfg.Host == nil {
		if cfg.Host, err = node.OS(); err != nil {
			return nil, fmt.Errorf("driver: Config.Mode is %q: %w", cfg.Mode, err)
		}
	}
	d.cfg, d.log = cfg, cfg.Log.With("mode", string(cfg.Mode))
	if cfg.NodeName != "" {
		d.log = d.log.With("node", cfg.NodeName)
	}
	return d, nil
}

// Ready is closed once the driver takes calls.
func (d *Driver) Ready() <-chan struct{} { return d.ready }

// Run serves until ctx ends. Then calls under way may end (Config.StopTimeout),
// everything is closed, and nil is returned. It can be called once.
func (d *Driver) Run(ctx context.Context) (err error) {
	if d.ran.Swap(true) {
		return errors.New("driver: Run was called already")
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	prefix := metricsPrefix[d.cfg.Backend]
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + "_info", Help: "The driver's version."}, []string{"version"})
	info.WithLabelValues(d.cfg.Version).Set(1)
	registry.MustRegister(info)

	srv, err := server.New(server.Config{Log: d.log, Registerer: registry, MetricsPrefix: prefix, StopTimeout: d.cfg.StopTimeout})
	if err != nil {
		return err
	}
	var probe func(context.Context) error
	if d.cfg.Mode != Node {
		b, err := d.controllerBackend(ctx, registry)
		if err != nil {
			return err
		}
		defer func() {
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.cfg.StopTimeout)
			defer cancel()
			if cerr := b.Close(last); cerr != nil {
				// Such as a vCenter that is away at logout: the session times out there.
				d.log.Warn("close of the backend", "err", cerr)
			}
		}()
		probe = b.Probe
		cfg := controller.Config{Backend: b, Log: d.log}
		if d.cfg.Backend == HPE {
			cfg.MinBytes, cfg.MaxBytes, cfg.FSTypes = hpe.MinBytes, hpe.MaxBytes, hpe.FSTypes
		}
		csi.RegisterControllerServer(srv, controller.New(cfg))
		if g, ok := b.(controller.Grouper); ok {
			csi.RegisterGroupControllerServer(srv, controller.NewGroups(g))
		}
	}
	var watch func(context.Context)
	if d.cfg.Mode != Controller {
		n, look, err := d.node()
		if err != nil {
			return err
		}
		csi.RegisterNodeServer(srv, n)
		watch = look
	}
	id, err := identity.New(identity.Config{Name: Name(d.cfg.Backend), Version: d.cfg.Version, Groups: d.cfg.Backend == HPE, Probe: probe, Log: d.log})
	if err != nil {
		return err
	}
	csi.RegisterIdentityServer(srv, id)

	pages, err := d.pages(registry, id)
	if err != nil {
		return err
	}
	l, err := d.cfg.Listen(d.network, d.addr)
	if err != nil {
		for _, p := range pages {
			p.l.Close()
		}
		return fmt.Errorf("driver: listen on %s: %w", d.cfg.Endpoint, err)
	}
	// The first that fails ends the others.
	life, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, p := range pages {
		wg.Go(func() {
			if err := server.ServeHTTP(life, p.l, p.mux); err != nil {
				cancel(err)
			}
		})
	}
	if watch != nil {
		wg.Go(func() { watch(life) })
	}
	d.log.Info("serving", "endpoint", d.cfg.Endpoint, "version", d.cfg.Version)
	close(d.ready)
	err = srv.Serve(life, l)
	cancel(err)
	wg.Wait()
	if err == nil && ctx.Err() == nil {
		err = context.Cause(life)
	}
	if err != nil {
		return fmt.Errorf("driver: %w", err)
	}
	d.log.Info("stopped")
	return nil
}

func (d *Driver) records() (record.Store, error) {
	switch {
	case d.cfg.Records != nil:
		return d.cfg.Records, nil
	case d.cfg.StateDir != "":
		s, err := record.NewFile(d.cfg.StateDir)
		if err != nil {
			return nil, fmt.Errorf("driver: Config.StateDir is %q: %w", d.cfg.StateDir, err)
		}
		return s, nil
	}
	d.log.Warn("records of operations are in memory only: no state directory is configured")
	return record.NewMemory(), nil
}

// straysEvery is how often a node looks at volumes that a boot has found and
// nobody holds; there are none but then.
const straysEvery = 90 * time.Second

// completeEvery is how often a node looks for the paths of volumes that were
// staged without some of them; there are none otherwise.
const completeEvery = 90 * time.Second

// node is the node's service; watch is what runs beside it until ctx ends, or
// nil.
func (d *Driver) node() (n *node.Service, watch func(ctx context.Context), err error) {
	b, err := d.nodeBackend()
	if err != nil {
		return nil, nil, fmt.Errorf("driver: %w", err)
	}
	if s, ok := b.(*san.SAN); ok {
		watch = func(ctx context.Context) {
			s.AfterBoot(ctx)
			var wg sync.WaitGroup
			wg.Go(func() { s.Strays(ctx, straysEvery) })
			wg.Go(func() { s.Complete(ctx, completeEvery) })
			if d.cfg.MonitorEvery > 0 {
				wg.Go(func() { s.Monitor(ctx, d.cfg.MonitorEvery) })
			}
			wg.Wait()
		}
	}
	cfg := node.Config{Host: d.cfg.Host, Backend: b, MaxVolumes: int64(d.cfg.MaxVolumesPerNode), Log: d.log}
	if d.network == "unix" {
		cfg.FormatDir = path.Join(path.Dir(d.addr), "formatting")
	}
	if f := d.cfg.TopologyFile; f != "" {
		labels := d.cfg.TopologyLabels
		if d.cfg.Backend == HPE {
			labels = append([]string{san.ZoneLabel}, labels...)
		}
		cfg.Topology = node.TopologyFile(d.cfg.Host, f, labels, d.cfg.TopologyWait, d.cfg.Watch)
	}
	if n, err = node.New(cfg); err != nil {
		return nil, nil, fmt.Errorf("driver: %w", err)
	}
	return n, watch, nil
}

type page struct {
	l   net.Listener
	mux *http.ServeMux
}

// pages opens the HTTP listeners; metrics and health may share one.
func (d *Driver) pages(g prometheus.Gatherer, id *identity.Service) ([]page, error) {
	byAddr := map[string]*http.ServeMux{}
	add := func(addr, path string, h http.Handler) {
		if addr == "" {
			return
		}
		if byAddr[addr] == nil {
			byAddr[addr] = http.NewServeMux()
		}
		byAddr[addr].Handle(path, h)
	}
	add(d.cfg.MetricsAddress, "/metrics", server.Metrics(g))
	add(d.cfg.HealthAddress, "/healthz", server.Health(id.Probe, 3*time.Second))
	var pages []page
	for addr, mux := range byAddr {
		l, err := d.cfg.Listen("tcp", addr)
		if err != nil {
			for _, p := range pages {
				p.l.Close()
			}
			return nil, fmt.Errorf("driver: listen on %s: %w", addr, err)
		}
		d.log.Info("http", "address", l.Addr().String())
		pages = append(pages, page{l, mux})
	}
	return pages, nil
}

// ParseEndpoint splits an endpoint into what net.Listen takes.
func ParseEndpoint(endpoint string) (network, addr string, err error) {
	scheme, rest, ok := strings.Cut(endpoint, ":")
	switch {
	case endpoint == "":
		return "", "", errors.New("is empty, must be unix:///path or tcp://host:port")
	case strings.HasPrefix(endpoint, "/"):
		return "unix", endpoint, nil
	case ok && scheme == "unix":
		p := strings.TrimPrefix(rest, "//")
		if !strings.HasPrefix(p, "/") {
			return "", "", fmt.Errorf("is %q, its path must be absolute", endpoint)
		}
		return "unix", p, nil
	case ok && scheme == "tcp":
		a := strings.TrimPrefix(rest, "//")
		host, _, err := net.SplitHostPort(a)
		if err != nil {
			return "", "", fmt.Errorf("is %q, must be tcp://host:port: %w", endpoint, err)
		}
		if host == "" {
			a = "127.0.0.1" + a
		}
		return "tcp", a, nil
	}
	return "", "", fmt.Errorf("is %q, must be unix:///path or tcp://host:port", endpoint)
}

func loopback(field, addr string) (string, error) {
	if addr == "" {
		return "", nil
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", fmt.Errorf("driver: Config.%s is %q, must be host:port: %w", field, addr, err)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port), nil
}

package san

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/wsapi"
)

// User and password that an array has where its configuration has none: those
// that a 3PAR comes with.
const (
	DefaultUser     = "3paradm"
	DefaultPassword = "3pardata"
)

// DefaultCPG is the CPG that an array has where its configuration has none,
// DefaultSnapCPG the second one.
const (
	DefaultCPG     = "SSD_r6"
	DefaultSnapCPG = "SSD_r6_snap"
)

// ArrayConfig is one array of a SAN.
type ArrayConfig struct {
	// Config of the core. Seed 0 derives from that of the SAN and the name, Ports
	// nil are DefaultPorts at addresses of the array's own, Users nil is
	// DefaultUser, who may do everything.
	array.Config
	// CPGs that it begins with; nil: DefaultCPG and DefaultSnapCPG. An array that
	// was restored has those that it had.
	CPGs []array.CPGSpec
	// Hosts that it begins with, likewise.
	Hosts []HostConfig
	// Listener of the REST API; nil means a free port of 127.0.0.1. Close closes
	// it.
	Listener net.Listener
	// TLS, Certificate and Build are those of wsapi.Config.
	TLS         bool
	Certificate *tls.Certificate
	Build       int
}

// HostConfig is a host that an array begins with.
type HostConfig struct {
	array.HostSpec
	// CHAPName and CHAPSecret are what the host has to log in with; without a
	// secret, any log-in is taken.
	CHAPName, CHAPSecret string
}

// Pair is two arrays that can copy to each other, by name.
type Pair [2]string

// Config of a SAN. The zero value is one array with everything by default.
type Config struct {
	Arrays []ArrayConfig // none: one, named "array1"
	Pairs  []Pair
	// Seed makes serial numbers and WWNs.
	Seed uint64
	// Store has the content; nil: one in memory, which ends with the SAN. What
	// begins with the serial number of an array in it is the SAN's.
	Store disk.Store
	// StateDir keeps the arrays over restarts; empty: nothing is kept. Store has to
	// outlive the process then.
	StateDir string
	// OnStateError is told once when the state can't be kept any more; commands
	// fail from then on.
	OnStateError func(error)
	// In is the interceptor; nil lets all calls through unrecorded.
	In *fault.Interceptor
	// Component is who calls the REST API, for the ledger.
	Component string
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Log of what goes wrong inside; nil drops it.
	Log *slog.Logger
}

// SAN is arrays and the network to them. It is safe for concurrent use.
type SAN struct {
	now      func() time.Time
	log      *slog.Logger
	contents *contents
	ownStore disk.Store // to be closed
	arrays   []*Array
	byName   map[string]*Array
	state    *keeper
	closing  sync.Once

	// mu guards the cores of all arrays and what is below. The data path holds it
	// for reading.
	mu        sync.RWMutex
	ports     map[string]*port // by target name, of iSCSI and FC
	portals   map[string]*port // by IP:port
	nodes     map[string]*node
	initiator map[array.Path]map[*session]struct{}
}

// Array is one array of a SAN.
type Array struct {
	san    *SAN
	core   *array.Array
	server *wsapi.Server
	name   string
	serial string
	family array.Family
	ports  map[array.PortPos]*port
	down   bool
	// apiDown: the REST API is cut off for itself.
	apiDown bool
	cut     map[string]bool // links that are down for themselves, by peer
}

func (c Config) defaults() Config {
	if len(c.Arrays) == 0 {
		c.Arrays = []ArrayConfig{{}}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	return c
}

// Check says what is wrong in a configuration without starting anything. What it
// takes, New takes, where listeners, Store and StateDir are fine.
func (c Config) Check() error {
	c = c.defaults()
	s := &SAN{byName: map[string]*Array{}, ports: map[string]*port{}, portals: map[string]*port{}}
	if err := s.assemble(c); err != nil {
		return err
	}
	for i, a := range s.arrays {
		if err := a.furnish(c.Now(), c.Arrays[i]); err != nil {
			return err
		}
	}
	return nil
}

// New assembles a SAN, which runs until Close or until ctx ends. Errors name
// what is wrong in the configuration; a *StateError says that StateDir can't be
// used.
func New(ctx context.Context, cfg Config) (_ *SAN, err error) {
	cfg = cfg.defaults()
	s := &SAN{now: cfg.Now, log: cfg.Log, byName: map[string]*Array{}, ports: map[string]*port{}, portals: map[string]*port{},
		nodes: map[string]*node{}, initiator: map[array.Path]map[*session]struct{}{}}
	defer func() {
		if err != nil {
			s.Close()
			for i, a := range cfg.Arrays { // those that no server has taken
				if a.Listener != nil && (i >= len(s.arrays) || s.arrays[i].server == nil) {
					a.Listener.Close()
				}
			}
		}
	}()
	store := cfg.Store
	if store == nil {
		if cfg.StateDir != "" {
			return nil, errors.New("san: StateDir needs a Store that outlives the process")
		}
		store = disk.NewMemory()
		s.ownStore = store
	}
	s.contents = newContents(store, cfg.StateDir != "")
	s.contents.book = s.book
	if err := s.assemble(cfg); err != nil {
		return nil, err
	}
	s.contents.arrays = s.arrays
	if s.state, err = openState(cfg.StateDir, cfg.OnStateError, cfg.Log); err != nil {
		return nil, err
	}
	if err := s.begin(cfg); err != nil {
		return nil, err
	}
	for i, c := range cfg.Arrays {
		a := s.arrays[i]
		a.server, err = wsapi.New(ctx, wsapi.Config{Array: a.core, Lock: &s.mu, Contents: s.contents, Keep: s.keep, Now: cfg.Now, In: cfg.In,
			Component: cfg.Component, Listener: c.Listener, TLS: c.TLS, Certificate: c.Certificate, Build: c.Build, Log: cfg.Log})
		if err != nil {
			return nil, fmt.Errorf("san: array %q: %w", a.name, err)
		}
	}
	return s, nil
}

// assemble makes the cores of all arrays, on the network and paired.
func (s *SAN) assemble(cfg Config) error {
	for i, c := range cfg.Arrays {
		a, err := s.newArray(cfg.Seed, i, c)
		if err != nil {
			return err
		}
		s.arrays = append(s.arrays, a)
		s.byName[a.name] = a
	}
	for _, p := range cfg.Pairs {
		a, b := s.byName[p[0]], s.byName[p[1]]
		if a == nil || b == nil {
			return fmt.Errorf("san: pair %q: no such array", p[0]+","+p[1])
		}
		if err := array.Link(a.core, b.core); err != nil {
			return fmt.Errorf("san: pair: %w", err)
		}
	}
	return nil
}

// newArray makes the core of the i-th array and puts its ports on the network.
func (s *SAN) newArray(seed uint64, i int, c ArrayConfig) (*Array, error) {
	if c.Name == "" {
		c.Name = fmt.Sprintf("array%d", i+1)
	}
	if s.byName[c.Name] != nil {
		return nil, fmt.Errorf("san: array %q is given twice", c.Name)
	}
	if c.Seed == 0 {
		h := fnv.New64a()
		fmt.Fprintf(h, "%d/%s", seed, c.Name)
		c.Seed = h.Sum64()
	}
	if c.Ports == nil {
		if c.Nodes == 0 {
			c.Nodes = 2
		}
		c.Ports = DefaultPorts(i, c.Nodes)
	}
	if c.Users == nil {
		c.Users = []array.User{{Name: DefaultUser, Password: DefaultPassword, Role: array.Super}}
	}
	core, err := array.New(c.Config)
	if err != nil {
		return nil, fmt.Errorf("san: array %q: %w", c.Name, err)
	}
	a := &Array{san: s, core: core, name: c.Name, serial: core.Config().Serial, family: core.Config().Family, ports: map[array.PortPos]*port{}, cut: map[string]bool{}}
	for _, b := range s.arrays {
		if b.core.System() == core.System() || b.serial == a.serial {
			return nil, fmt.Errorf("san: arrays %q and %q have the same serial number or system number: give one another seed", b.name, a.name)
		}
	}
	return a, s.connect(a)
}

// prefix is what the names of its content begin with.
func (a *Array) prefix() string { return a.serial + "-" }

// DefaultPorts are those of the i-th array of a SAN, at addresses of its own:
// those of the networks that are meant for documentation and benchmarks.
func DefaultPorts(i, nodes int) []array.Port {
	net := fmt.Sprintf("198.18.%d.", i)
	if blocks := []string{"192.0.2.", "198.51.100.", "203.0.113."}; i < len(blocks) {
		net = blocks[i]
	}
	ports := array.DefaultPorts(nodes)
	for j := range ports {
		if a := &ports[j].Address; *a != "" {
			*a = net + (*a)[strings.LastIndexByte(*a, '.')+1:]
		}
	}
	return ports
}

// begin restores what was kept, or makes what the arrays begin with.
func (s *SAN) begin(cfg Config) error {
	kept := s.state.last
	for i, c := range cfg.Arrays {
		a := s.arrays[i]
		if k, ok := kept.Arrays[a.name]; ok {
			if k.Serial != a.serial {
				return s.state.fail(fmt.Errorf("array %q had the serial number %s, it has %s now: was it another seed?", a.name, k.Serial, a.serial))
			}
			if err := a.core.Restore(k.Stored); err != nil {
				return s.state.fail(fmt.Errorf("array %q: %w", a.name, err))
			}
			continue
		}
		if err := a.furnish(cfg.Now(), c); err != nil {
			return err
		}
	}
	for name := range kept.Arrays {
		if s.byName[name] == nil {
			return s.state.fail(fmt.Errorf("it has an array %q, which is not configured", name))
		}
	}
	for _, a := range s.arrays {
		if err := a.core.CheckGroups(); err != nil {
			return s.state.fail(err)
		}
	}
	if err := s.contents.restore(kept.Images); err != nil {
		return s.state.fail(fmt.Errorf("content: %w", err))
	}
	for _, a := range s.arrays {
		for _, v := range a.core.Volumes() {
			if s.contents.images[v.Image] == nil {
				return s.state.fail(fmt.Errorf("array %q: volume %q has no content", a.name, v.Name))
			}
		}
	}
	return s.keep()
}

// furnish makes what an array begins with.
func (a *Array) furnish(now time.Time, c ArrayConfig) error {
	cpgs := c.CPGs
	if cpgs == nil {
		cpgs = []array.CPGSpec{{Name: DefaultCPG, RAID: array.RAID6}, {Name: DefaultSnapCPG, RAID: array.RAID6}}
	}
	for _, p := range cpgs {
		if _, err := a.core.CreateCPG(now, p); err != nil {
			return fmt.Errorf("san: array %q: CPG %q: %w", a.name, p.Name, err)
		}
	}
	for _, h := range c.Hosts {
		_, err := a.core.CreateHost(now, h.HostSpec)
		if err == nil && h.CHAPSecret != "" {
			_, err = a.core.ModifyHost(now, h.Name, array.HostChange{CHAPOp: array.EditAdd, CHAPMode: array.CHAPInitiator, CHAPName: h.CHAPName, CHAPSecret: h.CHAPSecret})
		}
		if err != nil {
			return fmt.Errorf("san: array %q: host %q: %w", a.name, h.Name, err)
		}
	}
	return nil
}

// Arrays returns the arrays, in the order of the configuration.
func (s *SAN) Arrays() []*Array { return slices.Clone(s.arrays) }

// Array returns an array by name.
func (s *SAN) Array(name string) (*Array, bool) {
	a, ok := s.byName[name]
	return a, ok
}

func (s *SAN) array(name string) (*Array, error) {
	if a, ok := s.byName[name]; ok {
		return a, nil
	}
	return nil, fmt.Errorf("san: no array %q", name)
}

// Close ends everything; when it returns, no call and no goroutine of the SAN
// is left. Handles that are open fail.
func (s *SAN) Close() {
	s.closing.Do(func() {
		for _, a := range s.arrays {
			if a.server != nil {
				a.server.Close()
			}
		}
		if s.state != nil {
			if len(s.arrays) > 0 && s.arrays[len(s.arrays)-1].server != nil { // it began
				_ = s.keep() // what time has changed since the last one
			}
			s.state.close()
		}
		if s.contents != nil {
			s.contents.close()
		}
		if s.ownStore != nil {
			s.ownStore.Close()
		}
	})
}

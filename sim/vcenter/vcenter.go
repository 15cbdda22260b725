// Package vcenter is a vCenter for a lab: vcsim's inventory with the lab's own
// CNS and first class disks (package cnsface), tasks (package task), property
// collector, VMs, sessions, privileges (package authz), tags (package tags) and
// storage policies, served over one listener. Every request passes the
// interceptor of the hop vcenter.
//
// It differs from a vCenter in what it refuses: whatever would need files on a
// datastore (uploads, exports, browsing) is NotSupported. docs/fidelity.md has
// the rest.
package vcenter

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
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/transport"
	core "github.com/csilab/csilab/sim/vcenter/cns"
	"github.com/csilab/csilab/sim/vcenter/cnsface"
	"github.com/csilab/csilab/sim/vcenter/task"
)

// Node is a node of the cluster: a VM of the same name.
type Node struct {
	Name string
	// Zone and Region are tags (categories k8s-zone and k8s-region) on the
	// cluster that the VM runs in. Empty: no tag.
	Zone, Region string
	PoweredOff   bool
	// OtherDisks is how many disks besides the boot disk are in the VM that are
	// no volumes of CNS. Each takes one of the 59 slots that are left.
	OtherDisks int
	// Encrypted: the VM is, so that it takes encrypted volumes.
	Encrypted bool
	// Datacenter and Cluster that the VM runs in, where Config.Datacenters says
	// which there are. Empty: the first that has a host in Zone, when that is
	// given.
	Datacenter, Cluster string
}

func (n Node) validate() error {
	if n.Name == "" || strings.ContainsAny(n.Name, "/\\%[]") {
		return fmt.Errorf(`vcenter: node name %q: allowed is what a VM name and a datastore path can hold, without / \ %% [ ]`, n.Name)
	}
	if n.OtherDisks < 0 || n.OtherDisks > 59 {
		return fmt.Errorf("vcenter: node %q: OtherDisks is %d, allowed are 0 to 59", n.Name, n.OtherDisks)
	}
	return nil
}

// Datastore is where volumes lie.
type Datastore struct {
	Name string
	// Type is VMFS, NFS, NFS41, vsan or VVOL; empty means VMFS.
	Type string
	// CapacityBytes; 0 means 1 TiB.
	CapacityBytes int64
	// Thick: a disk takes its whole size when it is made. Otherwise it is thin:
	// it takes what is written, and disks may be promised more than there is.
	Thick bool
	// NoFileService: the vSAN file service of the cluster is off, so that there
	// are no file volumes. Type vsan only.
	NoFileService bool
	// Datacenter that it lies in; empty means the first. Two datacenters may
	// have datastores of one name: the one of the first goes by its name, others
	// by datacenter/name, wherever a datastore is named.
	Datacenter string
	// Zones, Clusters and Hosts that mount it; all empty means all hosts of the
	// datacenter.
	Zones, Clusters, Hosts []string
}

var datastoreTypes = []string{"VMFS", "NFS", "NFS41", "vsan", "VVOL"}

// Config of a vCenter. The zero value is a vCenter 8.0.3 without nodes, with
// two datastores, on a free port of 127.0.0.1 without TLS.
type Config struct {
	// Seed of all identities.
	Seed uint64
	// Version, e.g. "8.0.3" (the default). The upstream driver needs 6.7.3.
	Version string
	Nodes   []Node
	// Datacenters with their clusters and hosts; none means DC0 with a cluster of
	// two hosts for each zone of the nodes.
	Datacenters []Datacenter
	// Datastores; none means two of type VMFS, "datastore-1" and "datastore-2".
	Datastores []Datastore
	// Policies; none means DefaultPolicies.
	Policies []Policy
	// User that may log in; empty means administrator@vsphere.local.
	User string
	// Password; empty means one derived from the seed, which keeps nobody out
	// who knows the seed.
	Password string
	// Users that may log in too.
	Users []User
	// Lockout of accounts after wrong passwords; zero is vCenter's default.
	Lockout Lockout
	// MaxSessions is how many SOAP and REST sessions there may be; 0 means 3000.
	MaxSessions int
	// Disks holds the content of volumes, Hardware plugs disks into nodes; see
	// package cnsface. Nil: none. With a StateDir the store must be this vCenter's
	// alone: images that no volume has are removed.
	Disks    cnsface.Disks
	Hardware cnsface.Hardware
	// In is the interceptor; nil lets all calls through unrecorded.
	In *fault.Interceptor
	// Component is who calls, for the ledger, where a client's User-Agent does
	// not say csilab/<component>; empty means driver-controller.
	Component string
	// Listener to serve on; nil means a free port of 127.0.0.1. Close closes it.
	Listener net.Listener
	// TLS serves https, with Certificate or, where that is nil, a self-signed
	// one, which StateDir keeps.
	TLS         bool
	Certificate *tls.Certificate
	// TaskLatency is how long tasks take, by method of the API, e.g.
	// "CnsCreateVolume" or "PowerOffVM_Task"; "" is for all others. None means
	// no time. See also SetTaskLatency and HoldTasks.
	TaskLatency map[string]time.Duration
	// DenseSlots has CNS put 64 disks on a paravirtual SCSI controller instead
	// of 15, so that a node takes 255 volumes: what pvscsiCtrlr256DiskSupportEnabled
	// does on a vCenter 8 and later.
	DenseSlots bool
	// TaskRetention is how long a finished task can be seen; 0 means ten
	// minutes, vCenter's default, below 0 for ever. KeepTasks is how many can be
	// at most, and how many the history has; 0 means 1000.
	TaskRetention time.Duration
	KeepTasks     int
	// SnapshotLimit per volume; 0 means what vSphere allows, 32.
	SnapshotLimit int
	// IdleTimeout ends a session that has made no call for so long; 0 means 30
	// minutes, vCenter's default, below 0 never. A wait for updates is a call.
	IdleTimeout time.Duration
	// StateDir keeps what must survive a restart of the lab: the numbers of
	// tasks, which are never used again, the volumes and the certificate.
	// It is written before a change is acknowledged, and one vCenter at a time may
	// have it. Empty keeps nothing.
	StateDir string
	// OnStateError is called when the state can't be written, once until it can
	// again. Changes are refused then. It must not call the vCenter.
	OnStateError func(error)
	// Log of what goes wrong inside; nil drops it.
	Log *slog.Logger
}

// Check says what is wrong with a configuration, as far as that can be told
// without an inventory. New says the rest.
func (c Config) Check() error {
	_, err := c.withDefaults()
	return err
}

// TakesDenseSlots says whether a version of vCenter has what Config.DenseSlots
// turns on.
func TakesDenseSlots(version string) bool {
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	return err == nil && n >= 8
}

func (c Config) withDefaults() (Config, error) {
	if c.Version == "" {
		c.Version = "8.0.3"
	}
	if n := len(strings.Split(c.Version, ".")); n < 3 || n > 4 || strings.Trim(c.Version, "0123456789.") != "" {
		return c, fmt.Errorf("vcenter: Version is %q, allowed are three or four numbers with dots, e.g. 8.0.3", c.Version)
	}
	if c.DenseSlots && !TakesDenseSlots(c.Version) {
		return c, fmt.Errorf("vcenter: DenseSlots is set with Version %s, allowed is that from 8.0 on", c.Version)
	}
	if c.User == "" {
		c.User = "administrator@vsphere.local"
	}
	if c.Password == "" {
		id := identity(c.Seed, "password", c.User)
		c.Password = fmt.Sprintf("Lab-%x", id[:9])
	}
	if c.Component == "" {
		c.Component = "driver-controller"
	}
	if c.MaxSessions == 0 {
		c.MaxSessions = defaultMaxSessions
	}
	if c.MaxSessions < 0 {
		return c, fmt.Errorf("vcenter: MaxSessions is %d, allowed are 0 and more", c.MaxSessions)
	}
	if c.IdleTimeout == 0 {
		c.IdleTimeout = 30 * time.Minute
	}
	if c.Log == nil {
		c.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	names := map[string]bool{}
	for _, n := range c.Nodes {
		if err := n.validate(); err != nil {
			return c, err
		}
		if names[n.Name] {
			return c, fmt.Errorf("vcenter: node name %q is given twice", n.Name)
		}
		names[n.Name] = true
	}
	dcs, err := c.layout()
	if err != nil {
		return c, err
	}
	c.Datacenters = dcs
	if err := c.checkDatastores(); err != nil {
		return c, err
	}
	for i := range c.Datastores {
		d := &c.Datastores[i]
		if d.Type == "" {
			d.Type = "VMFS"
		}
		if !slices.Contains(datastoreTypes, d.Type) {
			return c, fmt.Errorf("vcenter: datastore %q: Type is %q, allowed are %s", d.Name, d.Type, strings.Join(datastoreTypes, ", "))
		}
		if d.CapacityBytes == 0 {
			d.CapacityBytes = 1 << 40
		}
		if d.CapacityBytes < 0 {
			return c, fmt.Errorf("vcenter: datastore %q: CapacityBytes is %d, allowed are 0 and more", d.Name, d.CapacityBytes)
		}
		if d.NoFileService && d.Type != "vsan" {
			return c, fmt.Errorf("vcenter: datastore %q: NoFileService is set, allowed with type vsan", d.Name)
		}
	}
	if len(c.Policies) == 0 {
		c.Policies = DefaultPolicies()
	}
	for _, p := range c.Policies {
		if p.Name == "" {
			return c, errors.New("vcenter: a policy has no name")
		}
		for _, d := range p.Datastores {
			if !slices.ContainsFunc(c.Datastores, func(x Datastore) bool { return x.Name == d || c.label(x) == d }) {
				return c, fmt.Errorf("vcenter: policy %q: no datastore %q", p.Name, d)
			}
		}
	}
	return c, nil
}

// VCenter is a running vCenter. It is safe for concurrent use.
type VCenter struct {
	cfg   Config
	log   *slog.Logger
	in    *fault.Interceptor
	epoch int64 // how often a lab with this StateDir was started before

	ctx    context.Context
	cancel context.CancelFunc
	stop   func() bool

	svc      *simulator.Service
	base     *simulator.Context // copied for each call
	vim      *simulator.Registry
	content  types.ServiceContent
	watch    *watch
	accounts *accounts
	access   *access
	tokens   *tokenService
	sessions *sessions
	self     *session // of the lab itself
	policies *policies
	vsan     *vsanAPI
	rest     *restAPI
	tagging  *tagging
	tasks    *task.Manager
	face     *cnsface.Face

	url    *url.URL
	cert   atomic.Pointer[tls.Certificate] // nil: no TLS
	server *http.Server
	served chan struct{}

	unlockState func() // of the StateDir
	keeper      keeper
	line        transport.Line

	calls struct {
		mu     sync.Mutex
		closed bool
		wg     sync.WaitGroup
	}
	closing sync.Once

	renaming sync.Mutex // one datastore at a time gets a name; taken before locks of objects
	stir     pulse      // beats when a VM moves, changes its power or goes
	adding   sync.Mutex // AddVM runs one at a time
	// mu guards inv. It may be taken with a VM locked, and other objects may be
	// locked under it; it is never held across a wait.
	mu  sync.Mutex
	inv inventory
}

// New starts a vCenter: when it returns requests are served. It ends with
// Close or with ctx. Errors name the field of the configuration.
func New(ctx context.Context, cfg Config) (_ *VCenter, err error) {
	cfg, err = cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	v := &VCenter{cfg: cfg, log: cfg.Log, in: cfg.In, served: make(chan struct{}), unlockState: func() {}}
	v.ctx, v.cancel = context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		if err != nil {
			v.cancel()
			if v.face != nil {
				v.face.Close()
			}
			if v.tasks != nil {
				v.tasks.Close()
			}
			v.unlockState()
			if cfg.Listener != nil {
				cfg.Listener.Close()
			}
		}
	}()
	v.inv.vms, v.inv.byUUID = map[string]*simulator.VirtualMachine{}, map[string][]*simulator.VirtualMachine{}
	v.inv.nodeOf, v.inv.shelf = map[ref]string{}, map[string]shelved{}
	state, err := v.loadState()
	if err != nil {
		return nil, err
	}
	if d, ok := cfg.Disks.(images); ok && cfg.StateDir != "" {
		if state.CNS == nil {
			state.CNS = &core.State{}
		}
		if err := reconcile(state.CNS, d, cfg.Log); err != nil {
			return nil, v.stateError(err)
		}
	}
	v.svc, v.content = newService(cfg)
	v.base, v.vim = v.svc.Context, v.svc.Context.Map
	v.watch = newWatch(v.vim)
	v.svc.RegisterSDK(v.vim)
	v.accounts = newAccounts(cfg.Lockout)
	v.access = newAccess(v)
	for _, u := range append([]User{{Name: cfg.User, Password: cfg.Password, Groups: []string{"Administrators"}}}, cfg.Users...) {
		if err := v.AddUser(u); err != nil {
			return nil, err
		}
	}
	v.tokens = newTokenService(v)
	v.sessions = newSessions(v)
	v.self = v.sessions.prepare(parsePrincipal(cfg.User), cfg.User, "csilab", "127.0.0.1", "") // not killed with the others, nor listed
	v.vim.Put(newCollector(v, v.self, v.content.PropertyCollector))
	v.vim.AddHandler(v.watch)
	if err := v.build(); err != nil {
		return nil, err
	}
	v.vsan = newVSAN(v)
	v.policies = newPolicies(v)
	v.svc.RegisterSDK(v.policies.registry())
	v.sweepBuild()
	v.tasks, err = task.New(v.svc, task.Config{
		First: state.NextTask, Keep: cfg.KeepTasks, KeepFor: cfg.TaskRetention, Latency: cfg.TaskLatency, OnTask: v.keepTask, Log: cfg.Log,
	})
	if err != nil {
		return nil, err
	}
	v.face, err = cnsface.New(cnsface.Config{
		Seed: cfg.Seed, Disks: cfg.Disks, Hardware: cfg.Hardware, Tasks: v.tasks,
		Version: cfg.Version, SnapshotLimit: cfg.SnapshotLimit, DenseSlots: cfg.DenseSlots, Policies: v.policies.exists, Compatible: v.policies.unmet, DefaultPolicy: v.policies.defaultFor, Storage: v.storage, HasTag: v.hasTag,
		State: state.CNS, Log: cfg.Log,
	})
	if err != nil {
		return nil, err
	}
	if err := v.face.Install(v.svc); err != nil {
		return nil, fmt.Errorf("vcenter: %w", err)
	}
	v.vsan.install()
	if v.cfg.Listener == nil {
		if v.cfg.Listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return nil, fmt.Errorf("vcenter: %w", err)
		}
		cfg.Listener = v.cfg.Listener
	}
	v.url = &url.URL{Scheme: "http", Host: v.cfg.Listener.Addr().String(), Path: vim25.Path, User: url.UserPassword(cfg.User, cfg.Password)}
	l := v.cfg.Listener
	if cfg.TLS {
		v.url.Scheme = "https"
		c, err := v.certificate()
		if err != nil {
			return nil, err
		}
		v.cert.Store(c)
		l = tls.NewListener(l, &tls.Config{
			GetCertificate: v.presented, NextProtos: []string{"http/1.1"},
			// As the OpenSSL of a vCenter 8. The hybrid exchange that Go prefers
			// takes half of the time of a busy client: govmomi keeps two
			// connections only and makes all others anew.
			CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP256, tls.CurveP384},
		})
	}
	v.rest = &restAPI{v}
	v.tagging = newTagging(v)
	if err := v.tagging.tagZones(); err != nil {
		return nil, wrap(err)
	}
	v.server = &http.Server{
		Handler:     http.HandlerFunc(v.serve),
		BaseContext: func(net.Listener) context.Context { return v.ctx },
		ErrorLog:    log.New(io.Discard, "", 0),
		ConnState:   v.line.Follow,
	}
	go func() {
		defer close(v.served)
		if err := v.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			v.log.Error("serve", "err", err)
		}
	}()
	v.calls.mu.Lock() // Close may come at once
	v.stop = context.AfterFunc(ctx, v.Close)
	v.calls.mu.Unlock()
	return v, nil
}

// Close ends all calls and tasks, stops serving and keeps the state where
// there is a StateDir. It may be called more than once.
func (v *VCenter) Close() {
	v.closing.Do(func() {
		v.calls.mu.Lock()
		v.calls.closed = true
		stop := v.stop
		v.calls.mu.Unlock()
		stop()
		v.cancel()
		v.server.Close()
		<-v.served
		v.calls.wg.Wait()
		v.face.Close()
		if err := v.saveState(); err != nil {
			v.log.Error("state not kept", "err", err)
			if v.cfg.OnStateError != nil {
				v.cfg.OnStateError(err)
			}
		}
		v.unlockState()
	})
}

// serve is the one handler: it counts calls, so that Close can wait for them,
// and survives whatever a handler does.
func (v *VCenter) serve(w http.ResponseWriter, r *http.Request) {
	v.calls.mu.Lock()
	if v.calls.closed {
		v.calls.mu.Unlock()
		panic(http.ErrAbortHandler)
	}
	v.calls.wg.Add(1)
	v.calls.mu.Unlock()
	defer v.calls.wg.Done()
	path := strings.TrimSuffix(r.URL.Path, "/")
	switch path {
	case vim25.Path + "/vimService":
		path = vim25.Path
		r.URL.Path = path
	case vim25.Path + "/vimServiceVersions.xml":
		v.serveVersions(w, "urn:vim25")
		return
	case vim25.Path + "/vsanServiceVersions.xml":
		v.serveVersions(w, "urn:vsan")
		return
	}
	if reg := v.registry(path); reg != nil {
		r.URL.Path = path
		v.serveSOAP(w, r, reg)
		return
	}
	v.rest.serve(w, r)
}

// serveVersions answers the question which API versions an endpoint speaks.
func (v *VCenter) serveVersions(w http.ResponseWriter, namespace string) {
	w.Header().Set("Content-Type", "text/xml")
	fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?>
<namespaces version="1.0"><namespace><name>%s</name><version>%s</version><priorVersions><version>7.0.3.0</version><version>7.0</version><version>6.7.3</version><version>6.7</version></priorVersions></namespace></namespaces>
`, namespace, v.content.About.ApiVersion)
}

// URL of the vCenter's SDK, with user and password.
func (v *VCenter) URL() *url.URL { u := *v.url; return &u }

// Version is what the vCenter says it is.
func (v *VCenter) Version() string { return v.cfg.Version }

// Datacenter is the inventory path of the first datacenter.
func (v *VCenter) Datacenter() string { return "/" + v.cfg.Datacenters[0].Name }

// Datacenters are the names of all datacenters.
func (v *VCenter) Datacenters() []string { return namesOf(v.cfg.Datacenters) }

// DatastoreNames lists the datastores in the order of the configuration: those
// of the first datacenter by name, others as datacenter/name.
func (v *VCenter) DatastoreNames() []string {
	var names []string
	for _, d := range v.cfg.Datastores {
		names = append(names, v.cfg.label(d))
	}
	return names
}

// DatastoreURL is the ds:///… URL of a datastore, "" when there is none of
// that name.
func (v *VCenter) DatastoreURL(name string) string {
	for _, d := range v.cfg.Datastores {
		if v.cfg.label(d) == name {
			return datastoreURL(v.cfg.Seed, name, d.Type)
		}
	}
	return ""
}

// ResourcePool is the inventory path of the first cluster's resource pool.
func (v *VCenter) ResourcePool() string {
	return fmt.Sprintf("/%s/host/%s/Resources", v.cfg.Datacenters[0].Name, v.inv.zones[0].cluster.Name)
}

// Policy is the name of a storage policy that all datastores satisfy, or of
// the first one.
func (v *VCenter) Policy() string {
	for _, p := range v.cfg.Policies {
		if len(p.Datastores) == 0 && len(p.Types) == 0 && len(p.Tags) == 0 {
			return p.Name
		}
	}
	return v.cfg.Policies[0].Name
}

// DatastoreMaintenance puts a datastore into maintenance mode or out of it.
func (v *VCenter) DatastoreMaintenance(name string, on bool) error {
	d, err := v.datastoreOf(name)
	if err != nil {
		return err
	}
	mode := types.DatastoreSummaryMaintenanceModeStateNormal
	if on {
		mode = types.DatastoreSummaryMaintenanceModeStateInMaintenance
	}
	ctx := v.internal()
	ctx.WithLock(d, func() {
		ctx.Update(d, []types.PropertyChange{{Name: "summary.maintenanceMode", Val: string(mode)}})
	})
	return nil
}

// Volumes returns copies of all volumes that CNS has, oldest first.
func (v *VCenter) Volumes() []core.Volume { return v.face.Volumes() }

// Snapshots returns all snapshots that CNS has.
func (v *VCenter) Snapshots() []core.Snapshot { return v.face.Snapshots() }

package sim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/driver"
	dhpe "github.com/csilab/csilab/driver/hpe"
	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/csp"
	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/fileservice"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/invariant"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/san"
)

// hpe is a lab's arrays, the network from them to the nodes, and the Container
// Storage Provider between them and the driver. Nodes are machines of metal.
type hpe struct {
	l     *Lab
	san   *san.SAN
	nodes []machine
	// naming guards the initiator names of nodes; renamed is how often one got others.
	naming  sync.RWMutex
	renamed int
	// cspAddr stays the same over restarts of the provider, as a Service's does.
	cspAddr string

	storage Storage

	files   *fileservice.Service
	servers *host.FileServers // what nodes mount of it

	mu        sync.Mutex
	first     net.Listener // for the first life of the provider
	provider  *csp.Server  // nil while it is down
	password  string
	rotations int               // of the password
	byHand    map[string]string // id of a volume that an administrator made, by its virtual volume

	read map[named]comment // what virtual volumes' names and comments say
}

// named is what says whose a virtual volume is.
type named struct{ name, comment string }

// comment is what the provider wrote of itself into a virtual volume's comment.
type comment struct {
	id         string // "" where the provider did not make it
	isSnapshot bool
	isShare    bool
}

// comment reads a virtual volume's comment, once: each look at the lab asks for all.
func (b *hpe) comment(v array.Volume) comment {
	key := named{v.Name, v.Comment}
	b.mu.Lock()
	defer b.mu.Unlock()
	r, ok := b.read[key]
	if !ok {
		r.id, _ = csp.IDOf(v.Name, v.Comment)
		r.isSnapshot = csp.IsSnapshot(v.Comment)
		_, r.isShare = csp.ShareOf(v.Comment, nil)
		if b.read == nil || len(b.read) >= 10_000 {
			b.read = map[named]comment{}
		}
		b.read[key] = r
	}
	return r
}

var _ backend = (*hpe)(nil)

func (b *hpe) start(ctx context.Context) error {
	l := b.l
	b.storage, b.byHand = l.opts.storage(), map[string]string{}
	_, b.password = loginOf(b.storage.SAN.Arrays[0])
	// They live until Close: ctx bounds the start of the lab only.
	ctx = context.WithoutCancel(ctx)
	cfg := b.storage.SAN
	cfg.Seed, cfg.Store, cfg.In, cfg.Component, cfg.Log = l.opts.Seed, l.disks, l.in, "csp", l.log
	for i := range cfg.Arrays {
		ln, err := l.net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			for _, a := range cfg.Arrays[:i] {
				a.Listener.Close()
			}
			return &EnvironmentError{fmt.Errorf("array %s: %w", cfg.Arrays[i].Name, err)}
		}
		cfg.Arrays[i].Listener = ln
		if l.opts.Bubble { // where time begins before its certificate
			cfg.Arrays[i].TLS = false
		}
	}
	var err error
	if b.san, err = san.New(ctx, cfg); err != nil {
		return err
	}
	b.files = fileservice.New(b.san)
	b.servers = host.NewFileServers(b.files)
	if b.first, err = l.net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return &EnvironmentError{fmt.Errorf("storage provider: %w", err)}
	}
	b.cspAddr = b.first.Addr().String()
	for i, name := range l.opts.nodeNames() {
		uuid := host.UUIDOf(fmt.Sprintf("%d|machine|%s", l.opts.Seed, name))
		m := machine{name: name, uuid: uuid, bios: uuid, adapters: b.adapters(i)}
		if z := l.opts.Zones; len(z) > 0 {
			m.zone = z[i%len(z)]
		}
		m.san, m.files = b.san.For(name, m.adapters), b.servers
		b.nodes = append(b.nodes, m)
	}
	l.supervise("csp", b.spawnProvider)
	b.supervise()
	return nil
}

// adapters are those of the i-th node.
func (b *hpe) adapters(i int) host.Adapters {
	id := i
	if b.l.opts.SameInitiator {
		id = 0
	}
	a := b.initiators(id)
	a.Networks = []string{fmt.Sprintf("10.0.0.%d/24", 11+i)}
	return a
}

// initiators are the id-th names that the lab gives, from 0.
func (b *hpe) initiators(id int) (a host.Adapters) {
	if b.l.opts.Protocol == "fc" {
		for port := range 2 {
			a.WWPNs = append(a.WWPNs, fmt.Sprintf("100000109b%02x%04x", port, id+1))
		}
	} else {
		a.IQN = fmt.Sprintf("iqn.1994-05.com.redhat:%012x", 0x5eed00000000+id+1)
	}
	return a
}

// spawnProvider starts the Container Storage Provider. What it knows is on the
// arrays: a new life has lost its tokens and nothing else.
func (b *hpe) spawnProvider() (*incarnation, error) {
	l := b.l
	b.mu.Lock()
	ln := b.first
	b.first = nil
	b.mu.Unlock()
	if ln == nil {
		var err error
		if ln, err = l.net.Listen("tcp", b.cspAddr); err != nil {
			return nil, err
		}
	}
	cfg := csp.Config{Listener: ln, KeepHosts: l.opts.KeepHosts, Dial: l.net, In: l.in, Component: "driver-controller", Seed: l.opts.Seed, Log: l.log.With("component", "csp")}
	k := cluster{l.store.Client("csp")}
	cfg.NodeOf = func(ctx context.Context, uuid string) (csp.Node, bool) {
		n, err := k.NodeInfo(ctx, uuid)
		return csp.Node{Name: n.Name, UUID: n.UUID, IQNs: n.IQNs, WWPNs: n.WWPNs, NQNs: n.NQNs}, err == nil
	}
	if l.opts.Timers == "fast" {
		cfg.BatchWindow = 100 * time.Millisecond
		cfg.Backoff = []time.Duration{10 * time.Millisecond, 30 * time.Millisecond, 70 * time.Millisecond, 150 * time.Millisecond}
	}
	for _, a := range b.san.Arrays() {
		cfg.Arrays = append(cfg.Arrays, csp.Array{Name: a.Name(), URL: a.URL(), Backends: []string{a.Name()}, FileService: b.files.Address(a.Name())})
	}
	cfg.ReplicationDevices = b.storage.Devices
	s, err := csp.New(l.ctx, cfg)
	if err != nil {
		ln.Close()
		return nil, err
	}
	var once sync.Once
	killed := make(chan struct{})
	return &incarnation{
		fence: func() {
			once.Do(func() {
				close(killed)
				l.wg.Go(s.Kill)
			})
		},
		run: func(ctx context.Context) error {
			b.mu.Lock()
			b.provider = s
			b.mu.Unlock()
			defer func() {
				b.mu.Lock()
				b.provider = nil
				b.mu.Unlock()
			}()
			select {
			case <-ctx.Done():
			case <-killed:
			}
			return nil
		},
	}, nil
}

func (b *hpe) close() {
	b.mu.Lock()
	if b.first != nil {
		b.first.Close()
	}
	b.mu.Unlock()
	if b.servers != nil {
		if err := b.servers.Close(); err != nil {
			b.l.log.Error("file service", "err", err)
		}
	}
	if b.san != nil {
		b.san.Close()
	}
}

func (b *hpe) machines() []machine { return b.nodes }

func (b *hpe) secret() map[string]string {
	name, port, _ := net.SplitHostPort(b.cspAddr)
	user, _ := loginOf(b.storage.SAN.Arrays[0])
	b.mu.Lock()
	defer b.mu.Unlock()
	return map[string]string{"serviceName": name, "servicePort": port, "backend": b.san.Arrays()[0].Name(), "username": user, "password": b.password}
}

func (b *hpe) objects() []store.Object {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: SecretNamespace, Name: secretName}, Data: map[string][]byte{}}
	for k, v := range b.secret() {
		s.Data[k] = []byte(v)
	}
	return []store.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: SecretNamespace}}, s}
}

func (b *hpe) providerID(*Node) string { return "" }

// known is what the storage provider says of a virtual volume.
func (b *hpe) known(v array.Volume) (id string, ours bool) {
	if r := b.comment(v); r.id != "" {
		return r.id, true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if id := b.byHand[v.Name]; id != "" {
		return id, false
	}
	return v.Name, false
}

// records are the ids that the storage provider gave, by WWN: of a replicated
// volume one side has it.
func (b *hpe) records() map[string]string {
	out := map[string]string{}
	for _, a := range b.san.Arrays() {
		a.Look(func(core *array.Array) {
			for _, v := range core.Volumes() {
				if r := b.comment(v); r.id != "" {
					out[v.WWN] = r.id
				}
			}
		})
	}
	return out
}

// isSnapshot tells the snapshots of the driver from volumes.
func (b *hpe) isSnapshot(v array.Volume) bool { return b.comment(v).isSnapshot }

func (b *hpe) volumes() (out []volume) {
	records := b.records()
	has := map[string]bool{}
	for _, a := range b.san.Arrays() {
		for _, v := range append(a.Volumes(), a.Snapshots()...) {
			if b.isSnapshot(v) {
				continue
			}
			x := volume{bytes: v.SizeMiB << 20}
			if id := records[v.WWN]; id != "" {
				x.id, x.ours = id, true
			} else {
				x.id, x.ours = b.known(v)
			}
			x.name = x.id
			// The two sides of a replicated volume are one.
			if !has[x.id] {
				has[x.id] = true
				out = append(out, x)
			}
		}
	}
	return out
}

// sides are the virtual volumes that a volume has, as array and name: on a pair
// there are two.
func (b *hpe) sides(id string) (out []string) {
	records := b.records()
	for _, a := range b.san.Arrays() {
		for _, v := range append(a.Volumes(), a.Snapshots()...) {
			known, _ := b.known(v)
			if !b.isSnapshot(v) && (known == id || records[v.WWN] == id) {
				out = append(out, a.Name()+"/"+v.Name)
			}
		}
	}
	return out
}

func (b *hpe) hasSide(side string) bool {
	for _, a := range b.san.Arrays() {
		for _, v := range append(a.Volumes(), a.Snapshots()...) {
			if a.Name()+"/"+v.Name == side {
				return true
			}
		}
	}
	return false
}

func (b *hpe) snapshots() (out []snapshot) {
	for _, a := range b.san.Arrays() {
		all := append(a.Volumes(), a.Snapshots()...)
		for _, v := range all {
			if !b.isSnapshot(v) {
				continue
			}
			s := snapshot{}
			s.id, s.ours = b.known(v)
			for _, of := range all {
				if of.Name == v.CopyOf {
					s.volume, _ = b.known(of)
				}
			}
			out = append(out, s)
		}
	}
	return out
}

// nodeOf is the node that an array's host stands for: the one with its
// initiators, and the one of its name where several have them.
func (b *hpe) nodeOf(h array.Host) (name string) {
	b.naming.RLock()
	defer b.naming.RUnlock()
	for _, m := range b.nodes {
		has := slices.ContainsFunc(h.ISCSINames, func(n string) bool { return strings.EqualFold(n, m.adapters.IQN) }) ||
			slices.ContainsFunc(h.FCWWNs, func(w string) bool {
				return slices.ContainsFunc(m.adapters.WWPNs, func(p string) bool { return strings.EqualFold(p, w) })
			})
		if has && (name == "" || strings.HasSuffix(h.Name, m.name)) {
			name = m.name
		}
	}
	return name
}

func (b *hpe) exports() (out []invariant.Export) {
	records := b.records()
	has := map[invariant.Export]bool{}
	for _, a := range b.san.Arrays() {
		a.Look(func(core *array.Array) {
			hosts := map[string]string{}
			for _, h := range core.Hosts() {
				hosts[h.Name] = b.nodeOf(h)
			}
			for _, x := range core.VLUNs() {
				node := hosts[x.Host]
				v, err := core.Volume(x.Volume)
				if node == "" || err != nil {
					continue
				}
				e := invariant.Export{Node: node, Serial: strings.ToLower(x.WWN)}
				if e.VolumeID = records[v.WWN]; e.VolumeID == "" {
					e.VolumeID, _ = b.known(v)
				}
				if !has[e] { // one for each port and array
					has[e] = true
					out = append(out, e)
				}
			}
			out = append(out, b.sharesOf(a.Name(), core)...)
		})
	}
	return out
}

// exportsOf are the exports of one volume.
func (b *hpe) exportsOf(id string) (out []invariant.Export) {
	of := map[string]bool{} // WWNs: of a replicated volume one side has the record
	for _, a := range b.san.Arrays() {
		a.Look(func(core *array.Array) {
			for _, v := range core.Volumes() {
				if known, _ := b.known(v); known == id {
					of[v.WWN] = true
				}
			}
		})
	}
	for _, a := range b.san.Arrays() {
		a.Look(func(core *array.Array) {
			for wwn := range of {
				v, there := core.VolumeByWWN(wwn)
				if !there {
					continue
				}
				for _, x := range core.VLUNsOf(v.Name) {
					h, err := core.Host(x.Host)
					if err != nil {
						continue
					}
					e := invariant.Export{VolumeID: id, Node: b.nodeOf(h), Serial: strings.ToLower(x.WWN)}
					if e.Node != "" && !slices.Contains(out, e) {
						out = append(out, e)
					}
				}
				out = append(out, b.shareOf(a.Name(), core, v)...)
			}
		})
	}
	return out
}

func (b *hpe) content(n *Node, serial string) (id string, img disk.Image, ok bool) {
	for _, a := range b.san.Arrays() {
		var image string
		a.Look(func(core *array.Array) {
			if v, there := core.VolumeByWWN(strings.ToUpper(serial)); there {
				image = v.Image
				id, _ = b.known(v)
			}
		})
		if image == "" {
			continue
		}
		i := slices.IndexFunc(b.nodes, func(m machine) bool { return m.name == n.Name })
		img, err := b.nodes[i].san.Open(image)
		return id, img, err == nil
	}
	return "", nil, false
}

// leaks: a host that nothing is exported to has no use, unless the array began
// with it; an export to a host that is no node serves nobody; and each life of
// the storage provider may have a few sessions with each password that idle out.
// A session whose login's answer was lost is nobody's.
func (b *hpe) leaks() (out []string) {
	b.mu.Lock()
	may := sessionsOfProvider * (max(1, b.l.Starts("csp")) + b.rotations)
	b.mu.Unlock()
	for i, a := range b.san.Arrays() {
		began := map[string]bool{}
		for _, h := range b.storage.SAN.Arrays[i].Hosts {
			began[h.Name] = true
		}
		if n := a.Sessions(); n > may {
			lost := b.l.Ledger.Count(ledger.OnHop(ledger.WSAPI, "POST /credentials"), ledger.Ended(ledger.MaybeApplied))
			if n > may+lost {
				out = append(out, fmt.Sprintf("%s has %d sessions, the storage provider keeps %d at most", a.Name(), n, may))
			}
		}
		a.Look(func(core *array.Array) {
			for _, h := range core.Hosts() {
				if !began[h.Name] && len(core.VLUNsTo(h.Name)) == 0 && !b.l.opts.KeepHosts {
					out = append(out, fmt.Sprintf("%s: host %s has no export", a.Name(), h.Name))
				}
			}
			for _, x := range core.VLUNs() {
				if strings.HasPrefix(x.Host, "set:") {
					continue // an administrator's
				}
				h, err := core.Host(x.Host)
				if err != nil || b.nodeOf(h) == "" {
					out = append(out, fmt.Sprintf("%s: volume %s is exported to host %s, which is no node", a.Name(), x.Volume, x.Host))
				}
			}
		})
	}
	return out
}

// sessionsOfProvider is how many sessions the storage provider has with an array
// for a user (sim/csp/wsapi.Config.Sessions).
const sessionsOfProvider = 4

// maxVV is how long a virtual volume's name may be.
const maxVV = 31

// makeVolume makes a volume on the first array. The driver takes it for the one
// of a PersistentVolume pvc-<uid>: whose name begins like that.
func (b *hpe) makeVolume(_ context.Context, name string, bytes int64) (string, error) {
	a := b.san.Arrays()[0]
	id := "pvc-" + host.UUIDOf(fmt.Sprintf("%d|volume|%s", b.l.opts.Seed, name))
	name = id[:maxVV]
	b.mu.Lock()
	b.byHand[name] = id
	b.mu.Unlock()
	return id, a.Change(func(now time.Time) ([]array.ContentOp, error) {
		cpg, _ := cpgsOf(b.storage.SAN.Arrays[0])
		spec := array.VolumeSpec{Name: name, CPG: cpg, SizeMiB: bytes >> 20, Provisioning: array.Thin}
		p, err := a.Core().PlanCreateVolume(spec)
		if err != nil {
			return nil, err
		}
		_, err = a.Core().CreateVolume(now, spec)
		return p.Ops, err
	})
}

// find is the virtual volume with an id.
func (b *hpe) find(id string) (*san.Array, array.Volume, error) {
	for _, a := range b.san.Arrays() {
		for _, v := range append(a.Volumes(), a.Snapshots()...) {
			if got, _ := b.known(v); got == id {
				return a, v, nil
			}
		}
	}
	return nil, array.Volume{}, fmt.Errorf("no array has volume %s", id)
}

func (b *hpe) removeVolume(_ context.Context, id string) error {
	a, v, err := b.find(id)
	if err != nil {
		return err
	}
	return a.DeleteVolume(v.Name)
}

// pullDisk removes the exports of a volume to a node. The node's devices stay,
// as SCSI devices do, and fail. Of a share all clients lose it.
func (b *hpe) pullDisk(_ context.Context, n *Node, id string) error {
	a, v, err := b.find(id)
	if err != nil {
		return err
	}
	if rest, shared := csp.Unshare(v.Comment); shared {
		return a.Change(func(now time.Time) ([]array.ContentOp, error) {
			_, err := a.Core().ModifyVolume(now, v.Name, array.VolumeChange{Comment: &rest})
			return nil, err
		})
	}
	err = errors.New("it has no host on the array")
	for _, h := range a.Hosts() {
		if b.nodeOf(h) == n.Name {
			err = a.RemoveVLUN(v.Name, h.Name)
		}
	}
	return err
}

func (b *hpe) killSessions() {
	for _, a := range b.san.Arrays() {
		a.EndSessions()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.provider != nil {
		b.provider.ForgetTokens()
	}
}

func (b *hpe) rotatePassword(_ context.Context, password string) error {
	b.mu.Lock()
	b.password = password
	b.rotations++
	b.mu.Unlock()
	for i, a := range b.san.Arrays() {
		// An array whose user a replication device names has it for itself.
		if i > 0 && b.named(a.Name()) {
			continue
		}
		user, _ := loginOf(b.storage.SAN.Arrays[i])
		if err := a.SetPassword(user, password); err != nil {
			return err
		}
	}
	b.killSessions()
	return nil
}

// named says whether a replication device has a user of an array.
func (b *hpe) named(array string) bool {
	for _, d := range b.storage.Devices {
		if d.TargetName == array && d.TargetUser != "" {
			return true
		}
	}
	return false
}

// redeploy writes the present password to the Secret.
func (b *hpe) redeploy(ctx context.Context) error {
	_, err := store.Modify(ctx, b.l.store.Client("admin"), SecretNamespace, secretName, func(s *corev1.Secret) error {
		for k, v := range b.secret() {
			s.Data[k] = []byte(v)
		}
		return nil
	})
	return err
}

func (b *hpe) powerOff(n *Node) error { b.san.NodeCut(n.Name, true); return nil }
func (b *hpe) powerOn(n *Node) error  { b.san.NodeCut(n.Name, false); return nil }
func (b *hpe) destroy(n *Node) error  { b.san.NodeCut(n.Name, true); return nil }

func (b *hpe) controller(c *driver.Config) error {
	c.Backend = driver.HPE
	c.HPE = &dhpe.Config{SecretSource: func(context.Context) (map[string]string, error) { return b.secret(), nil }}
	c.HPE.Cluster = cluster{b.l.store.Client("driver-controller")}
	if b.l.opts.Timers == "fast" {
		c.HPE.Pause = 10 * time.Millisecond
	}
	return nil
}

// node: a driver in this process registers its node in the API server as
// upstream's kind for Kubernetes does; one that is a process of its own is of
// the kind that needs none, and its id says all.
func (b *hpe) node(n *Node, c *driver.Config) {
	c.Backend = driver.HPE
	c.HPE = &dhpe.Config{}
	if n.host.Kind() != "real" {
		c.HPE.Cluster = cluster{b.l.store.Client("driver@" + n.Name)}
	}
}

func (b *hpe) nodeArgs(*Node) []string { return []string{"--backend", "hpe"} }

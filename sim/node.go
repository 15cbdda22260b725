package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/exec"

	"github.com/csilab/csilab/driver"
	"github.com/csilab/csilab/driver/node"
	"github.com/csilab/csilab/kubeletsim"
	"github.com/csilab/csilab/kubeletsim/registrar"
	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/host/scsi"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/transport"
)

const kubeletRoot = "/var/lib/kubelet"

// Node is a node of a lab: a machine with an operating system, a kubelet, a
// registrar and the driver's node service.
type Node struct {
	Name, Zone, Region string

	lab     *Lab
	uuid    string // of the machine
	host    host.Host
	net     transport.Network
	watcher transport.Watcher

	damage *disk.Damage  // of what the node reads and writes
	units  *scsi.Damage  // its storage network; nil on vSphere
	late   time.Duration // how long after its task a disk shows up; under mu

	mu        sync.Mutex
	images    map[string]plugged // by wwn
	kubelet   *kubeletsim.Kubelet
	changed   chan struct{} // closed when kubelet changes
	off       bool
	forgotten bool   // its leftovers are nobody's business any more
	id        string // CSI's, once it is known
}

func (l *Lab) newNode(ctx context.Context, m machine, i int) (*Node, error) {
	name := m.name
	n := &Node{Name: name, Zone: m.zone, Region: m.region, lab: l, uuid: m.uuid, images: map[string]plugged{}, changed: make(chan struct{}), damage: &disk.Damage{}}
	if m.san != nil {
		n.units = scsi.DamageBy(m.san, n.damage)
		m.san = n.units
	}
	memory := host.MemoryConfig{Name: name, Seed: l.opts.Seed, BIOSUUID: m.bios, SAN: m.san, Adapters: m.adapters, NoPathRetry: l.opts.NoPathRetry, Files: m.files, Log: l.log}
	switch {
	case l.opts.Bubble:
		t := l.memoryNetwork(name)
		n.net, n.watcher = t, t
		n.host = host.NewMemory(memory)
	case l.opts.Host == "real":
		dir := nodeDir(l.dir.path, i)
		h, sockets, err := l.newRealHost(ctx, m, dir)
		if err != nil {
			return nil, err
		}
		n.host = h
		w := transport.Wall{From: kubeletRoot, To: sockets}
		n.net, n.watcher = w, kubeletsim.PluginWatcher{Wall: w}
	default:
		w := transport.Wall{From: kubeletRoot, To: nodeDir(l.dir.path, i)}
		n.net, n.watcher = w, kubeletsim.PluginWatcher{Wall: w}
		n.host = host.NewMemory(memory)
	}
	// The driver's manifest has it as a hostPath of type DirectoryOrCreate.
	if err := n.host.MkdirAll(l.plugin().dir, 0o750); err != nil {
		return n, err
	}
	return n, n.writeTopology()
}

// writeTopology does what the syncer does upstream: it tells the node its
// segments, from the tags above its VM.
func (n *Node) writeTopology() error {
	if n.Zone == "" && n.Region == "" {
		return nil
	}
	var b strings.Builder
	for _, t := range [][2]string{{"k8s-zone", n.Zone}, {"k8s-region", n.Region}} {
		if t[1] != "" {
			fmt.Fprintf(&b, "topology.csi.vmware.com/%s=%q\n", t[0], t[1])
		}
	}
	return n.host.WriteFile(n.lab.plugin().topology, []byte(b.String()), 0o644)
}

// start starts kubelet, registrar and driver under supervision.
func (n *Node) start() {
	l := n.lab
	l.supervise("kubelet@"+n.Name, n.spawnKubelet).losesBy(n.forgetVolumeData)
	if n.host.Kind() == "real" {
		l.supervise("driver@"+n.Name, n.spawnDriverProcess)
	} else {
		l.supervise("driver@"+n.Name, n.spawnDriver)
	}
	l.supervise("registrar@"+n.Name, n.spawnRegistrar)
}

func (n *Node) spawnKubelet() (*incarnation, error) {
	l, name := n.lab, "kubelet@"+n.Name
	client := l.store.Client(name)
	fh := host.Fence(n.host)
	fn := transport.NewFenced(n.net)
	timers := kubeletsim.FastTimers()
	if l.opts.Timers == "real" {
		timers = kubeletsim.RealTimers()
	}
	k, err := kubeletsim.New(kubeletsim.Config{
		NodeName: n.Name, Client: client, Host: host.Intercept(fh, l.in, name),
		Network: fn, Watcher: n.watcher, In: l.in, RootDir: kubeletRoot, Timers: timers,
		Forgetful: l.opts.ForgetfulKubelets, Log: l.log,
	})
	if err != nil {
		return nil, err
	}
	return &incarnation{
		fence: func() { client.Fence(); fh.Fence(); fn.Fence() },
		run: func(ctx context.Context) error {
			n.setKubelet(k)
			defer n.setKubelet(nil)
			return k.Run(ctx)
		},
	}, nil
}

func (n *Node) setKubelet(k *kubeletsim.Kubelet) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.kubelet = k
	close(n.changed)
	n.changed = make(chan struct{})
}

// agent waits for a kubelet that runs.
func (n *Node) agent(ctx context.Context) (*kubeletsim.Kubelet, error) {
	for {
		n.mu.Lock()
		k, ch := n.kubelet, n.changed
		n.mu.Unlock()
		if k != nil {
			return k, nil
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-n.lab.ctx.Done():
			return nil, errors.New("the lab is closed")
		}
	}
}

func (n *Node) driverConfig() driver.Config {
	c := driver.Config{
		Mode: driver.Node, Endpoint: "unix://" + n.lab.plugin().socket, NodeName: n.Name, Version: "lab",
		MaxVolumesPerNode: n.lab.opts.MaxVolumesPerNode, StopTimeout: time.Second, Log: n.lab.log.With("component", "driver@"+n.Name),
	}
	if n.lab.opts.Timers == "fast" {
		c.DeviceWait = 3 * time.Second
	}
	if n.Zone != "" || n.Region != "" {
		c.TopologyFile = n.lab.plugin().topology
	}
	n.lab.backend.node(n, &c)
	return c
}

func (n *Node) spawnDriver() (*incarnation, error) {
	l, name := n.lab, "driver@"+n.Name
	fh := host.Fence(n.host)
	fn := transport.NewFenced(n.net)
	cfg := n.driverConfig()
	cfg.Listen, cfg.Dial = fn.Listen, fn.DialContext
	cfg.Host = driverHost{host.Intercept(fh, l.in, name)}
	cfg.Watch = func(ctx context.Context, _ string) (<-chan struct{}, error) {
		ch := make(chan struct{})
		context.AfterFunc(ctx, func() { close(ch) })
		return ch, nil
	}
	d, err := driver.New(cfg)
	if err != nil {
		return nil, err
	}
	return &incarnation{fence: func() { fh.Fence(); fn.Fence() }, run: d.Run}, nil
}

// driverHost is a lab's host as package driver/node asks for one.
type driverHost struct{ host.Host }

var _ node.Host = driverHost{}

// onRealNode makes the driver's own process on a real node ask the node, and not a
// link, for the commands that the node answers.
func onRealNode(c *driver.Config) {
	if h, err := node.OS(); err == nil { // otherwise driver.New says what is missing
		c.Host = answeredHost{h, host.Answered(h.Exec())}
	}
}

type answeredHost struct {
	node.Host
	exec exec.Interface
}

func (h answeredHost) Exec() exec.Interface { return h.exec }

// lastLines keeps the end of a process's output.
type lastLines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (w *lastLines) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.b.Len() > 1<<16 {
		w.b.Reset()
	}
	return w.b.Write(p)
}

func (w *lastLines) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(w.b.String()), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}

func (n *Node) spawnRegistrar() (*incarnation, error) {
	fn := transport.NewFenced(n.net)
	return &incarnation{
		fence: fn.Fence,
		run: func(ctx context.Context) error {
			return registrar.Serve(ctx, registrar.Config{
				Endpoint: n.lab.plugin().socket, Path: n.lab.plugin().registration, Network: fn, In: n.lab.in, Node: n.Name, Log: n.lab.log,
			})
		},
	}, nil
}

// usesDisk says whether something of the node's is mounted from a disk.
func (n *Node) usesDisk(wwn string) bool {
	ms, err := n.host.Mounter().List()
	if err != nil {
		return false
	}
	serial := n.serials()
	for _, m := range ms {
		if serial(m.Device) == wwn {
			return true
		}
	}
	return false
}

// serials returns a function that maps a device path to the wwn of its disk.
func (n *Node) serials() func(device string) string {
	byDev := map[string]string{}
	const dir = "/dev/disk/by-id"
	es, _ := n.host.ReadDir(dir)
	for _, e := range es {
		if wwn, ok := strings.CutPrefix(e.Name(), "wwn-0x"); ok {
			if dev, err := n.host.EvalSymlinks(dir + "/" + e.Name()); err == nil {
				byDev[dev] = wwn
			}
		}
	}
	return func(device string) string {
		if isShare(device) {
			return device
		}
		if wwn, ok := byDev[device]; ok {
			return wwn
		}
		if dev, err := n.host.EvalSymlinks(device); err == nil {
			return byDev[dev]
		}
		return ""
	}
}

// inPod does something as a program in a pod does. The kubelet only tells
// where the pod's volumes are: when it crashes meanwhile, the program goes on,
// and after a reboot it goes on once the kubelet has started the pod again.
func (n *Node) inPod(ctx context.Context, do func(*kubeletsim.Kubelet) error) error {
	limit := 30 * time.Second
	if n.lab.opts.Timers == "real" {
		limit = 5 * time.Minute
	}
	start := time.Now()
	for try := 0; ; try++ {
		k, err := n.agent(ctx)
		if err != nil {
			return err
		}
		err = do(k)
		if errors.Is(err, kubeletsim.ErrNotHere) && time.Since(start) > limit {
			return err
		}
		if !errors.Is(err, host.ErrFenced) && !errors.Is(err, kubeletsim.ErrNotHere) {
			return err
		}
		if err := n.lab.pauseFor(ctx, between(try, n.lab.opts.Timers)); err != nil {
			return err
		}
	}
}

func (n *Node) writePod(ctx context.Context, p *corev1.Pod, path string, data []byte, sync bool) error {
	return n.lab.program(ctx, func() error {
		return n.inPod(ctx, func(k *kubeletsim.Kubelet) error {
			return k.WriteFile(ctx, p.Namespace, p.Name, "", path, 0, data, sync)
		})
	})
}

func (n *Node) readPod(ctx context.Context, p *corev1.Pod, path string, size int) ([]byte, error) {
	var read []byte
	err := n.lab.program(ctx, func() error {
		return n.inPod(ctx, func(k *kubeletsim.Kubelet) error {
			b, err := k.ReadFile(ctx, p.Namespace, p.Name, "", path, 0, size)
			read = b
			return err
		})
	})
	if err != nil { // it may still read
		return nil, err
	}
	return read, nil
}

// program runs the I/O of a program in a pod. Whoever asked for it may leave when
// ctx ends; the program can't while its I/O waits for a path: as a process in
// uninterruptible sleep it goes on by itself when that ends, with the lab at the
// latest.
func (l *Lab) program(ctx context.Context, io func() error) error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return errClosed
	}
	done := make(chan error, 1)
	l.wg.Go(func() { done <- io() })
	l.mu.Unlock()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	default:
		return context.Cause(ctx)
	}
}

func (n *Node) poweredOff() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.off
}

// failQueued ends what waits on the node for a path, so that what waits for that
// can end too.
func (n *Node) failQueued() {
	if h, ok := n.host.(interface{ FailQueued() }); ok {
		h.FailQueued()
	}
}

func (n *Node) close() error {
	err := n.host.Close()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.images {
		err = errors.Join(err, p.img.Close())
	}
	n.images = map[string]plugged{}
	return err
}

func (l *Lab) node(name string) *Node {
	for _, n := range l.nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// Nodes are the names of the nodes.
func (l *Lab) Nodes() []string {
	var names []string
	for _, n := range l.nodes {
		names = append(names, n.Name)
	}
	return names
}

// OtherNode is a node that is not the named one.
func (l *Lab) OtherNode(name string) string {
	for _, n := range l.nodes {
		if n.Name != name && !n.poweredOff() {
			return n.Name
		}
	}
	return ""
}

// Zone is a node's zone.
func (l *Lab) Zone(node string) string {
	if n := l.node(node); n != nil {
		return n.Zone
	}
	return ""
}

// Host is a node's operating system.
func (l *Lab) Host(node string) host.Host { return l.node(node).host }

// stop ends everything that runs on a node.
func (n *Node) stop() {
	for _, c := range []string{"kubelet@", "registrar@", "driver@"} {
		n.lab.mu.Lock()
		comp := n.lab.components[c+n.Name]
		n.lab.mu.Unlock()
		if comp != nil {
			comp.stop()
		}
	}
}

// PowerOff takes the power from a node: all that runs there and all that is
// not synced is lost.
func (l *Lab) PowerOff(_ context.Context, node string) error {
	n := l.node(node)
	n.mu.Lock()
	n.off = true
	n.mu.Unlock()
	n.failQueued()
	n.stop()
	if err := n.host.PowerOff(); err != nil {
		return err
	}
	return l.backend.powerOff(n)
}

// PowerOn boots a node again.
func (l *Lab) PowerOn(_ context.Context, node string) error {
	n := l.node(node)
	l.byHand(node)
	if err := l.backend.powerOn(n); err != nil {
		return err
	}
	if err := n.host.PowerOn(); err != nil {
		return err
	}
	n.mu.Lock()
	n.off = false
	n.mu.Unlock()
	for _, c := range []string{"driver@", "registrar@", "kubelet@"} {
		l.mu.Lock()
		comp := l.components[c+node]
		l.mu.Unlock()
		comp.start()
	}
	return n.writeTopology()
}

// DestroyVM deletes a node's machine: power, memory and hardware are gone; the
// volumes stay on the backend.
func (l *Lab) DestroyVM(_ context.Context, node string) error {
	n := l.node(node)
	n.mu.Lock()
	n.off, n.forgotten = true, true
	n.mu.Unlock()
	n.failQueued()
	n.stop()
	if err := n.host.PowerOff(); err != nil {
		return err
	}
	return l.backend.destroy(n)
}

// StopKubelet stops a node's kubelet and keeps it down.
func (l *Lab) StopKubelet(node string) error {
	l.mu.Lock()
	c := l.components["kubelet@"+node]
	l.mu.Unlock()
	if c == nil {
		return fmt.Errorf("no node %q", node)
	}
	c.stop()
	return nil
}

// Forget says that a node that was cut off is not looked at for leftovers.
func (l *Lab) Forget(node string) {
	n := l.node(node)
	n.mu.Lock()
	n.forgotten = true
	n.mu.Unlock()
}

// nodeByID is the node that CSI knows under an id, or nil: the driver says it
// when it registers.
func (l *Lab) nodeByID(id string) *Node {
	for _, n := range l.nodes {
		if id != "" && (id == n.uuid || id == n.csiID()) {
			return n
		}
	}
	return nil
}

// csiID is the node's id in CSI; "" before the driver has registered once.
func (n *Node) csiID() string {
	cn, err := store.See[storagev1.CSINode](n.lab.user, "", n.Name)
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil {
		for _, d := range cn.Spec.Drivers {
			if d.Name == n.lab.DriverName() {
				n.id = d.NodeID // kept when the object is deleted with its node
			}
		}
	}
	return n.id
}

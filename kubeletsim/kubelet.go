package kubeletsim

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/transport"
)

// Config says which node a kubelet serves and what it works with.
type Config struct {
	// NodeName is the name of the Node object. Required.
	NodeName string
	// ProviderID and SystemUUID go into a Node object that this kubelet makes
	// (spec.providerID, status.nodeInfo.systemUUID); both may be empty.
	ProviderID, SystemUUID string
	// Client is the API server, as actor kubelet@<NodeName>. Required.
	Client *store.Client
	// Host is the node's operating system. Required.
	Host Host
	// Network reaches the unix sockets as the node sees them. Required.
	Network transport.Network
	// Watcher reports the sockets in plugins_registry: a PluginWatcher on the
	// wall, a transport.Memory in a bubble. Required.
	Watcher transport.Watcher
	// In is the interceptor of the hops csi and registration; nil for none.
	In *fault.Interceptor
	// RootDir is kubelet's directory; "" is /var/lib/kubelet.
	RootDir string
	// Timers: the zero value of each is that of RealTimers.
	Timers Timers
	// Forgetful makes a restart take in what is on disk as kubelet v1.37.2 does,
	// which may end in a detach under a mount in two ways. It looks for mounted
	// volumes only below the pods' directories: one whose last pod was unmounted
	// is forgotten and stays staged (kubernetes#121937, KEP-6058). And one that the
	// Node's status then calls not attached counts as not attachable for as long as
	// it is known, also when it is attached again for another pod: it is in
	// volumesInUse only while that pod is there, not until it is unstaged
	// (pkg/kubelet/volumemanager/reconciler/reconstruct.go:192-202,
	// cache/actual_state_of_world.go:597 and 771-774, volume_manager.go:398).
	// Unverified: the latter is read in the source, not seen on a node.
	// The default finds the former, and asks the CSIDriver object about the latter.
	Forgetful bool
	// Log may be nil.
	Log *slog.Logger
}

// Kubelet is the node agent of one node. Its state is on the node's disk and
// in the API server; a value is run once, and a restart is a new value.
type Kubelet struct {
	cfg  Config
	t    Timers
	dirs layout
	log  *slog.Logger

	wg         sync.WaitGroup
	kick       chan struct{} // the volume loop has something to decide
	statusKick chan struct{}
	claims     podsOfClaims
	eventKick  chan struct{}

	reported time.Time // when the node's status was written last; statusLoop owns it

	mu       sync.Mutex // guards what follows; never held across a wait
	world    *world
	plugins  *plugins
	drivers  map[string]driver
	pods     map[string]*podWorker // by uid
	podNames map[string]string     // namespace/name -> uid of the newest
	posted   []volumeName          // volumesInUse as the API server has it
	events   []eventRecord
}

// New checks the configuration. It starts nothing.
func New(cfg Config) (*Kubelet, error) {
	for _, f := range []struct {
		name  string
		empty bool
	}{
		{"NodeName", cfg.NodeName == ""}, {"Client", cfg.Client == nil}, {"Host", cfg.Host == nil},
		{"Network", cfg.Network == nil}, {"Watcher", cfg.Watcher == nil},
	} {
		if f.empty {
			return nil, fmt.Errorf("kubeletsim: Config.%s is required", f.name)
		}
	}
	if cfg.RootDir == "" {
		cfg.RootDir = "/var/lib/kubelet"
	}
	if !path.IsAbs(cfg.RootDir) {
		return nil, fmt.Errorf("kubeletsim: Config.RootDir %q: must be an absolute path of the node", cfg.RootDir)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	t := cfg.Timers.withDefaults()
	return &Kubelet{
		cfg: cfg, t: t, dirs: layout{cfg.RootDir}, log: cfg.Log.With("component", "kubelet@"+cfg.NodeName),
		kick: make(chan struct{}, 1), statusKick: make(chan struct{}, 1), eventKick: make(chan struct{}, 1),
		world: newWorld(t.BackOff, t.BackOffMax), plugins: newPlugins(t.BackOff, t.BackOffMax), drivers: map[string]driver{},
		pods: map[string]*podWorker{}, podNames: map[string]string{}, claims: podsOfClaims{of: map[string]map[string]bool{}},
	}, nil
}

// Run works until ctx ends, which is how kubelet is stopped and how it
// crashes; then it waits for its goroutines and returns nil. An error means
// that it could not start.
func (k *Kubelet) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer k.wg.Wait()
	defer cancel()

	sockets, err := k.cfg.Watcher.Watch(ctx, k.dirs.registry())
	if err != nil {
		return fmt.Errorf("kubelet %s: watch %s: %w", k.cfg.NodeName, k.dirs.registry(), err)
	}
	k.spawn(func() { k.pluginEvents(ctx, sockets) })
	k.spawn(func() { k.eventLoop(ctx) })
	if !k.registerNode(ctx) {
		return nil
	}
	k.reconstruct()
	objects := k.cfg.Client.WatchOnly(ctx, k.concerns, "Pod", "Node", "PersistentVolumeClaim", "PersistentVolume")
	k.adopt(ctx)
	if node, err := store.Get[corev1.Node](k.cfg.Client, "", k.cfg.NodeName); err == nil {
		k.nodeChanged(node)
	}
	k.spawn(func() { k.volumeLoop(ctx) })
	k.spawn(func() { k.leaseLoop(ctx) })
	k.spawn(func() { k.statusLoop(ctx) })
	for e := range objects { // closes when ctx ends
		k.objectChanged(ctx, e)
	}
	return nil
}

// concerns says which objects a kubelet hears of: of nodes its own, of pods its
// node's (pkg/kubelet/kubelet.go, NewMainKubelet, fieldSelector metadata.name;
// pkg/kubelet/config/apiserver.go, spec.nodeName). It watches neither claims nor
// volumes, but asks for those of its pods again and again; hearing of their
// changes stands for that. What changed before a pod came is read when it comes.
func (k *Kubelet) concerns(o store.Object) bool {
	switch o := o.(type) {
	case *corev1.Pod:
		return o.Spec.NodeName == k.cfg.NodeName
	case *corev1.Node:
		return o.Name == k.cfg.NodeName
	case *corev1.PersistentVolumeClaim:
		return k.claims.has(store.Key(o))
	case *corev1.PersistentVolume:
		r := o.Spec.ClaimRef
		return r != nil && k.t.Eager && k.claims.has(r.Namespace+"/"+r.Name)
	}
	return true
}

// adopt takes in the pods that are there at start, and those that are only on disk.
func (k *Kubelet) adopt(ctx context.Context) {
	var workers []*podWorker
	for _, p := range store.ListBy[corev1.Pod](k.cfg.Client, store.PodsByNode, k.cfg.NodeName) {
		alive := p.Status.Phase == corev1.PodRunning && k.adoptedMounts(string(p.UID), p)
		k.mu.Lock()
		w := k.addWorker(p)
		ended := w.ended()
		k.mu.Unlock()
		workers = append(workers, w)
		if !ended {
			if err := k.populate(p); err != nil {
				k.log.Error("error processing the volumes of a pod", "pod", store.Key(p), "error", err)
			}
		}
		k.mu.Lock()
		w.running, w.posted = alive, alive // once it is known where its volumes are
		k.mu.Unlock()
	}
	for _, uid := range k.listDir(k.dirs.pods()) {
		k.mu.Lock()
		if k.pods[uid] == nil {
			w := k.addWorker(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}})
			w.gone = true
			workers = append(workers, w)
		}
		k.mu.Unlock()
	}
	k.mu.Lock()
	k.world.populated = true
	k.mu.Unlock()
	for _, w := range workers {
		k.spawn(func() { k.runPod(ctx, w) })
	}
}

func (k *Kubelet) objectChanged(ctx context.Context, e store.Event) {
	switch o := e.Object.(type) {
	case *corev1.Pod:
		k.podChanged(ctx, o, e.Type == store.Deleted)
	case *corev1.Node:
		if e.Type != store.Deleted {
			k.nodeChanged(o)
		}
	case *corev1.PersistentVolumeClaim:
		key := store.Key(o)
		k.mu.Lock()
		known := k.world.claimChanged(key, o.ResourceVersion)
		k.mu.Unlock()
		if known {
			k.wake()
		}
		k.dependencyChanged(key)
	case *corev1.PersistentVolume:
		if r := o.Spec.ClaimRef; r != nil {
			k.dependencyChanged(r.Namespace + "/" + r.Name)
		}
	}
}

// dependencyChanged syncs the pods that use a claim, if timers are eager.
func (k *Kubelet) dependencyChanged(claim string) {
	if !k.t.Eager {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, uid := range k.claims.pods(claim) {
		if w := k.pods[uid]; w != nil {
			w.resync = true
			w.wake()
		}
	}
}

func (k *Kubelet) nodeChanged(n *corev1.Node) {
	k.learnAttachability(n)
	k.mu.Lock()
	clear(k.world.attachedOnNode)
	for _, v := range n.Status.VolumesAttached {
		k.world.attachedOnNode[v.Name] = true
	}
	k.mu.Unlock()
	k.wake()
}

func (k *Kubelet) pluginEvents(ctx context.Context, events <-chan transport.Event) {
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-events:
			if !ok {
				return
			}
			if ignored(path.Base(e.Path)) {
				continue
			}
			k.mu.Lock()
			k.plugins.event(e)
			k.mu.Unlock()
			k.wake()
		}
	}
}

// volumeLoop starts what the world and the plugins need, whenever something
// has changed or a back-off has passed.
func (k *Kubelet) volumeLoop(ctx context.Context) {
	for {
		now := time.Now()
		k.mu.Lock()
		ops, wake := k.world.decide(now)
		steps, at := k.plugins.decide(now)
		k.mu.Unlock()
		k.kickStatus()
		if !at.IsZero() && (wake.IsZero() || at.Before(wake)) {
			wake = at
		}
		for _, op := range ops {
			// What is asked of a driver for several volumes can look the same.
			k.spawn(func() { k.runOperation(fault.About(ctx, string(op.volume)+" "+op.uid), op) })
		}
		for _, s := range steps {
			k.spawn(func() {
				err := k.runPluginStep(fault.About(ctx, s.socket), s)
				if err != nil && ctx.Err() == nil {
					k.log.Error("plugin operation failed", "socket", s.socket, "error", err)
				}
				k.mu.Lock()
				k.plugins.end(s.socket, err, time.Now())
				k.mu.Unlock()
				k.wake()
			})
		}
		if !k.idle(ctx, wake) {
			return
		}
	}
}

// idle waits for a kick or, unless zero, for a time; false if ctx ended. What kicks
// at just that time makes no difference.
func (k *Kubelet) idle(ctx context.Context, until time.Time) bool {
	var tick <-chan time.Time
	if !until.IsZero() {
		t := time.NewTimer(time.Until(until))
		defer t.Stop()
		tick = t.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-k.kick:
	case <-tick:
	}
	if passed(until) {
		k.await(ctx, "volumes")
		select {
		case <-k.kick: // what it is about is looked at now
		default:
		}
	}
	return true
}

// passed says whether a time that was waited for has come, unless it is zero.
func passed(t time.Time) bool { return !t.IsZero() && !time.Now().Before(t) }

// await holds what a timer has woken until it is its turn: nodes and pods have
// the same timers. what tells apart those of one kubelet.
func (k *Kubelet) await(ctx context.Context, what string) {
	k.cfg.In.Await(ctx, fault.Call{Op: "timer", Component: "kubelet@" + k.cfg.NodeName, Volume: what})
}

func (k *Kubelet) runOperation(ctx context.Context, op operation) {
	var err error
	reason := ""
	switch {
	case op.name == opVerifyAttached:
		err = k.verifyAttached(ctx, op)
	case op.name == opMount && op.spec.block():
		err, reason = k.mapVolume(ctx, op), "FailedMapVolume"
	case op.name == opMount:
		err, reason = k.mountVolume(ctx, op), "FailedMount"
	case op.name == opExpand:
		err, reason = k.expandInUse(ctx, op), "VolumeResizeFailed"
	case op.name == opUnmount && op.spec.block():
		err = k.unmapVolume(ctx, op)
	case op.name == opUnmount:
		err = k.unmountVolume(ctx, op)
	case op.spec.block():
		err = k.unmapBlockDevice(ctx, op)
	default:
		err = k.unmountDevice(ctx, op)
	}
	if err != nil && ctx.Err() == nil {
		k.log.Error("volume operation failed", "operation", op.name, "volume", op.volume, "pod", op.uid, "error", err)
		if reason != "" {
			k.event(op.pod, warning, reason, err.Error())
		}
	}
	k.mu.Lock()
	k.world.ops.end(op.key, err, time.Now())
	uids := map[string]bool{op.uid: true}
	if d := k.world.desired[op.volume]; d != nil {
		for uid := range d.pods {
			uids[uid] = true
		}
	}
	for _, uid := range sortedKeys(uids) {
		if w := k.pods[uid]; w != nil {
			w.wake()
		}
	}
	k.mu.Unlock()
	k.wake()
}

func (k *Kubelet) spawn(f func()) {
	k.wg.Add(1)
	go func() {
		defer k.wg.Done()
		f()
	}()
}

func (k *Kubelet) wake() {
	select {
	case k.kick <- struct{}{}:
	default:
	}
}

func (k *Kubelet) kickStatus() {
	if !k.t.Eager {
		return
	}
	select {
	case k.statusKick <- struct{}{}:
	default:
	}
}

// sleep waits for d and its turn; false if ctx ended first.
func (k *Kubelet) sleep(ctx context.Context, d time.Duration, what string) bool {
	return k.cfg.In.Sleep(ctx, d, fault.Call{Op: "timer", Component: "kubelet@" + k.cfg.NodeName, Volume: what}) == nil
}

const (
	normal  = corev1.EventTypeNormal
	warning = corev1.EventTypeWarning
)

type eventRecord struct {
	about             store.Object
	kind, reason, msg string
}

// event queues an Event object; like kubelet's recorder it never blocks.
func (k *Kubelet) event(about store.Object, kind, reason, msg string) {
	about = about.DeepCopyObject().(store.Object) // the caller's may change
	k.mu.Lock()
	k.events = append(k.events, eventRecord{about, kind, reason, msg})
	k.mu.Unlock()
	select {
	case k.eventKick <- struct{}{}:
	default:
	}
}

func (k *Kubelet) eventLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.eventKick:
		}
		k.mu.Lock()
		none := len(k.events) == 0
		k.mu.Unlock()
		if none { // the last round has written it: whether that took its kick, too, is by chance
			continue
		}
		k.await(ctx, "events")
		k.mu.Lock()
		q := k.events
		k.events = nil
		k.mu.Unlock()
		// What one moment brings, about several pods or volumes of one, comes in any order.
		slices.SortFunc(q, func(a, b eventRecord) int {
			return cmp.Or(cmp.Compare(store.Key(a.about), store.Key(b.about)), cmp.Compare(a.about.GetUID(), b.about.GetUID()),
				cmp.Compare(a.reason, b.reason), cmp.Compare(a.msg, b.msg))
		})
		for _, e := range q {
			k.cfg.Client.Event(ctx, e.about, e.kind, e.reason, "%s", e.msg)
		}
	}
}

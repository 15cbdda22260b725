// Package attachdetach is the controller that decides which volume is attached
// to which node: it creates a VolumeAttachment for a volume that a pod on a node
// needs, and deletes it when none does and the node has unmounted it. The rules
// are those of k8s v1.37.2 pkg/controller/volume/attachdetach with the CSI
// plugin's attacher (pkg/volume/csi/csi_attacher.go) and the operation executor.
// Where the original polls every 100 ms, this one acts on events and timers.
package attachdetach

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csilab/csilab/sim/kube/controller"
	"github.com/csilab/csilab/sim/kube/nodestatus"
	"github.com/csilab/csilab/sim/kube/store"
)

// Actor is the name that the controller acts and reports events under.
const Actor = "attachdetach-controller"

// Timers are the controller's waiting times.
type Timers struct {
	// MaxWaitForUnmount is how long a volume that no pod needs may stay mounted
	// on an unhealthy node before it is detached by force.
	MaxWaitForUnmount time.Duration
	// Sync is when a volume that is thought to be attached, but whose
	// VolumeAttachment says otherwise, is taken as detached.
	Sync time.Duration
	// Operation is how long one attach or detach is waited for.
	Operation time.Duration
	// BackoffMin and BackoffMax bound the wait between two tries, which doubles.
	BackoffMin, BackoffMax time.Duration
}

// RealTimers are those of kube-controller-manager: attach_detach_controller.go:88
// (DefaultTimerConfig), --attach-detach-reconcile-sync-period 1m, csiTimeout 2m
// (pkg/volume/csi/csi_plugin.go), and the back-off of
// pkg/util/goroutinemap/exponentialbackoff/exponential_backoff.go:30.
func RealTimers() Timers {
	return Timers{MaxWaitForUnmount: 6 * time.Minute, Sync: time.Minute, Operation: 2 * time.Minute,
		BackoffMin: 500 * time.Millisecond, BackoffMax: 2*time.Minute + 2*time.Second}
}

// FastTimers are for tests on the wall.
func FastTimers() Timers {
	return Timers{MaxWaitForUnmount: 3 * time.Second, Sync: 2 * time.Second, Operation: 20 * time.Second,
		BackoffMin: 50 * time.Millisecond, BackoffMax: 2 * time.Second}
}

// Config is one controller.
type Config struct {
	Client *store.Client // required
	Timers Timers        // zero fields take those of RealTimers
	// DisableForceDetach is --disable-force-detach-on-timeout: a mounted volume
	// is then detached only with the out-of-service taint.
	DisableForceDetach bool
	Log                *slog.Logger // may be nil
}

// Controller is the attach/detach controller. Use New.
type Controller struct {
	c       *store.Client
	timers  Timers
	noForce bool
	log     *slog.Logger

	mu       sync.Mutex // guards the maps below, never held over a call
	volumes  map[string]*volume
	byVA     map[string]string              // name of a VolumeAttachment -> volume
	onNode   map[string]map[string]struct{} // node -> volumes with an attachment there
	reported map[string]map[string]struct{} // node -> volumes that its status lists as attached
	dirty    map[string]bool                // nodes whose status does not say so yet
	lastSeen map[string]*corev1.Node        // the newest version of a node that an event showed
}

// New returns a controller that has not started.
func New(cfg Config) *Controller {
	t, r := &cfg.Timers, RealTimers()
	t.MaxWaitForUnmount = cmp.Or(t.MaxWaitForUnmount, r.MaxWaitForUnmount)
	t.Sync = cmp.Or(t.Sync, r.Sync)
	t.Operation = cmp.Or(t.Operation, r.Operation)
	t.BackoffMin = cmp.Or(t.BackoffMin, r.BackoffMin)
	t.BackoffMax = cmp.Or(t.BackoffMax, r.BackoffMax)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Controller{c: cfg.Client, timers: *t, noForce: cfg.DisableForceDetach, log: cfg.Log,
		volumes: map[string]*volume{}, byVA: map[string]string{}, onNode: map[string]map[string]struct{}{},
		reported: map[string]map[string]struct{}{}, dirty: map[string]bool{}, lastSeen: map[string]*corev1.Node{}}
}

// AttachmentName is the name of the VolumeAttachment of a volume on a node:
// csi_attacher.go:593.
func AttachmentName(handle, driver, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+driver+node)))
}

// splitKey takes a store.VolumeKey apart.
func splitKey(name string) (driver, handle string) {
	driver, handle, _ = strings.Cut(strings.TrimPrefix(name, "kubernetes.io/csi/"), "^")
	return driver, handle
}

const nodePrefix = "node:"

// Run rebuilds what is attached from the API, then runs until ctx ends.
func (a *Controller) Run(ctx context.Context) error {
	a.Populate()
	return controller.Run(ctx, controller.Config{Name: Actor, Client: a.c, Log: a.log, Workers: 10,
		Kinds: []string{"Pod", "PersistentVolumeClaim", "PersistentVolume", "VolumeAttachment", "Node", "CSIDriver"},
		Keys:  a.Keys, Reconcile: a.Reconcile})
}

// Populate rebuilds the state after a start: what nodes list as attached is
// attached, what has a VolumeAttachment only is uncertain, and is assumed to be
// mounted until the node writes its status (attach_detach_controller.go:390, 703).
func (a *Controller) Populate() {
	for _, n := range store.List[corev1.Node](a.c, "") {
		for _, v := range n.Status.VolumesAttached {
			name := string(v.Name)
			at := a.attachment(a.volume(name), n.Name)
			at.confirmed, at.assumed = true, "not assumed: the same status says what is mounted"
			a.report(n.Name, name)
		}
	}
	for _, va := range store.List[storagev1.VolumeAttachment](a.c, "") {
		name := a.volumeOf(va)
		if name == "" {
			continue // its volume is not there any more: the original skips it, too
		}
		v := a.volume(name)
		if v.nodes[va.Spec.NodeName] == nil {
			a.attachment(v, va.Spec.NodeName)
		}
	}
}

// volumeOf is the volume of a VolumeAttachment, or "".
func (a *Controller) volumeOf(va *storagev1.VolumeAttachment) string {
	a.mu.Lock()
	name := a.byVA[va.Name]
	a.mu.Unlock()
	if name == "" && va.Spec.Source.PersistentVolumeName != nil {
		name = a.volumeOfPV(*va.Spec.Source.PersistentVolumeName)
	}
	return name
}

func (a *Controller) volumeOfPV(name string) string {
	pv, err := store.See[corev1.PersistentVolume](a.c, "", name)
	if err != nil || pv.Spec.CSI == nil {
		return ""
	}
	return store.VolumeKey(pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle)
}

// Keys says which volumes an event concerns, or which node's status.
func (a *Controller) Keys(e store.Event) []string {
	var keys []string
	add := func(k string) {
		if k != "" {
			keys = append(keys, k)
		}
	}
	switch o := e.Object.(type) {
	case *corev1.Pod:
		for _, k := range store.ClaimKeys(o) {
			ns, name := store.SplitKey(k)
			if claim, err := store.See[corev1.PersistentVolumeClaim](a.c, ns, name); err == nil && claim.Spec.VolumeName != "" {
				add(a.volumeOfPV(claim.Spec.VolumeName))
			}
		}
		if e.Type == store.Deleted { // its claim may be gone, too
			keys = append(keys, a.volumesOn(o.Spec.NodeName)...)
		}
	case *corev1.PersistentVolumeClaim:
		if o.Spec.VolumeName != "" {
			add(a.volumeOfPV(o.Spec.VolumeName))
		}
	case *corev1.PersistentVolume:
		if o.Spec.CSI != nil {
			add(store.VolumeKey(o.Spec.CSI.Driver, o.Spec.CSI.VolumeHandle))
		}
	case *storagev1.VolumeAttachment:
		add(a.volumeOf(o))
	case *storagev1.CSIDriver:
		for _, pv := range store.List[corev1.PersistentVolume](a.c, "") {
			if pv.Spec.CSI != nil && pv.Spec.CSI.Driver == o.Name {
				add(store.VolumeKey(o.Name, pv.Spec.CSI.VolumeHandle))
			}
		}
	case *corev1.Node:
		if a.observe(o, e.Type) {
			add(nodePrefix + o.Name)
			keys = append(keys, a.volumesOn(o.Name)...)
			if e.Type == store.Added { // pods may have waited for the node
				for _, p := range store.SeeBy[corev1.Pod](a.c, store.PodsByNode, o.Name) {
					keys = append(keys, a.Keys(store.Event{Type: store.Modified, Object: p})...)
				}
			}
		}
	}
	return keys
}

// observe keeps the newest version of a node and says whether volumes on it
// may have to be looked at: a mere heartbeat matters only to attachments that
// wait for the node to speak.
func (a *Controller) observe(n *corev1.Node, t store.EventType) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	old := a.lastSeen[n.Name]
	a.lastSeen[n.Name] = n
	if old == nil || t != store.Modified {
		return true
	}
	for name := range a.onNode[n.Name] {
		if at := a.volumes[name].nodes[n.Name]; at != nil && at.assumed == old.ResourceVersion {
			return true
		}
	}
	return nodestatus.Ready(old) != nodestatus.Ready(n) || nodestatus.OutOfService(old) != nodestatus.OutOfService(n) ||
		!equal(old.Status.VolumesInUse, n.Status.VolumesInUse) || !equal(old.Status.VolumesAttached, n.Status.VolumesAttached)
}

func equal[T comparable](a, b []T) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func (a *Controller) volumesOn(node string) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []string
	for v := range a.onNode[node] {
		out = append(out, v)
	}
	slices.Sort(out)
	return out
}

// Reconcile brings one volume, or one node's status, a step further.
func (a *Controller) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	if node, ok := strings.CutPrefix(key, nodePrefix); ok {
		return 0, a.writeNode(ctx, node)
	}
	return a.sync(ctx, key)
}

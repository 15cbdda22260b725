// Package nodelifecycle watches the heartbeats of nodes: one that stops is
// marked Ready=Unknown, and taints tell the scheduler and the eviction what a
// node's conditions are. The rules are those of k8s v1.37.2
// pkg/controller/nodelifecycle/node_lifecycle_controller.go. Where the original
// looks every 5 s, this one acts when a heartbeat is due. A heartbeat is a renewal
// of the node's Lease, or a change of the Ready condition's lastHeartbeatTime.
package nodelifecycle

import (
	"cmp"
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/kube/controller"
	"github.com/csilab/csilab/sim/kube/nodestatus"
	"github.com/csilab/csilab/sim/kube/podstatus"
	"github.com/csilab/csilab/sim/kube/store"
)

// Actor is the name that the controller acts and reports events under.
const Actor = "node-controller"

// Timers are the controller's waiting times.
type Timers struct {
	// Grace is how long a node may be silent.
	Grace time.Duration
	// Startup is the same for a node that has not reported Ready at all.
	Startup time.Duration
	// Eviction is the least time between two nodes of a zone that get a
	// NoExecute taint.
	Eviction time.Duration
}

// RealTimers are those of kube-controller-manager: --node-monitor-grace-period
// 50s, --node-startup-grace-period 60s (nodelifecycle/config/v1alpha1/defaults.go),
// --node-eviction-rate 0.1 (cmd/kube-controller-manager/app/options/nodelifecyclecontroller.go:46).
func RealTimers() Timers {
	return Timers{Grace: 50 * time.Second, Startup: 60 * time.Second, Eviction: 10 * time.Second}
}

// FastTimers are for tests on the wall.
func FastTimers() Timers {
	return Timers{Grace: 2 * time.Second, Startup: 3 * time.Second, Eviction: 200 * time.Millisecond}
}

// Config is one controller.
type Config struct {
	Client *store.Client // required
	Timers Timers        // zero fields take those of RealTimers
	Log    *slog.Logger  // may be nil
}

// Controller is the node lifecycle controller. Use New.
type Controller struct {
	c      *store.Client
	timers Timers
	log    *slog.Logger

	mu        sync.Mutex
	nodes     map[string]*health
	zones     map[string]*zone
	disrupted bool // no node of any zone is ready: evictions are stopped
}

// health is what is known of a node.
type health struct {
	zone      string
	heartbeat time.Time // of the last report, by the node's clock
	renewed   time.Time // of its Lease, likewise
	probe     time.Time // when one of the two was seen, by ours
	ready     corev1.ConditionStatus
}

// zone limits how fast nodes are tainted for eviction.
type zone struct{ next time.Time }

// New returns a controller that has not started.
func New(cfg Config) *Controller {
	t, r := &cfg.Timers, RealTimers()
	t.Grace = cmp.Or(t.Grace, r.Grace)
	t.Startup = cmp.Or(t.Startup, r.Startup)
	t.Eviction = cmp.Or(t.Eviction, r.Eviction)
	return &Controller{c: cfg.Client, timers: *t, log: cfg.Log, nodes: map[string]*health{}, zones: map[string]*zone{}}
}

// Run runs the controller until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	return controller.Run(ctx, controller.Config{Name: Actor, Client: c.c, Log: c.log, Kinds: []string{"Node", "Lease"},
		Keys: c.Keys, Reconcile: c.Reconcile, Workers: 8}) // nodeUpdateWorkerSize
}

// Keys is the node, and all nodes when the state of the cluster may have changed.
func (c *Controller) Keys(e store.Event) []string {
	n, ok := e.Object.(*corev1.Node)
	if !ok {
		c.renewed(e)
		return nil // the next look at the node is when its heartbeat was due
	}
	if !c.observe(n, e.Type) {
		return []string{n.Name}
	}
	var keys []string
	for _, o := range store.List[corev1.Node](c.c, "") {
		keys = append(keys, o.Name)
	}
	return keys
}

func readyStatus(n *corev1.Node) corev1.ConditionStatus {
	if r := nodestatus.Condition(n, corev1.NodeReady); r != nil {
		return r.Status
	}
	return ""
}

// zoneKey is component-helpers node/topology GetZoneKey.
func zoneKey(n *corev1.Node) string {
	return n.Labels[corev1.LabelTopologyRegion] + ":\x00:" + n.Labels[corev1.LabelTopologyZone]
}

// observe notes a node's heartbeat (tryUpdateNodeHealth) and says whether
// readiness changed, or nodes came or went.
func (c *Controller) observe(n *corev1.Node, t store.EventType) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t == store.Deleted {
		delete(c.nodes, n.Name)
		return true
	}
	now := time.Now()
	var beat time.Time
	r := nodestatus.Condition(n, corev1.NodeReady)
	if r != nil {
		beat = r.LastHeartbeatTime.Time
	}
	h := c.nodes[n.Name]
	if h == nil {
		h = &health{probe: now, heartbeat: beat, ready: readyStatus(n), zone: zoneKey(n)}
		if r == nil {
			h.probe = n.CreationTimestamp.Time
		}
		c.nodes[n.Name] = h
		return true
	}
	if !h.heartbeat.Equal(beat) {
		h.heartbeat, h.probe = beat, now
	}
	changed = h.ready != readyStatus(n) || h.zone != zoneKey(n)
	h.ready, h.zone = readyStatus(n), zoneKey(n)
	return changed
}

// renewed notes a node's heartbeat by its Lease (tryUpdateNodeHealth).
func (c *Controller) renewed(e store.Event) {
	l, ok := e.Object.(*coordinationv1.Lease)
	if !ok || l.Namespace != corev1.NamespaceNodeLease || l.Spec.RenewTime == nil || e.Type == store.Deleted {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.nodes[l.Name]; h != nil && h.renewed.Before(l.Spec.RenewTime.Time) {
		h.renewed, h.probe = l.Spec.RenewTime.Time, time.Now()
	}
}

// Reconcile looks whether a node's heartbeat is overdue and sets its taints.
func (c *Controller) Reconcile(ctx context.Context, name string) (time.Duration, error) {
	n, err := store.Get[corev1.Node](c.c, "", name)
	if err != nil {
		return 0, nil
	}
	c.mu.Lock()
	h := c.nodes[name]
	if h == nil { // its first event is yet to come
		c.mu.Unlock()
		return 0, nil
	}
	grace := c.timers.Grace
	if nodestatus.Condition(n, corev1.NodeReady) == nil {
		grace = c.timers.Startup
	}
	due := h.probe.Add(grace)
	c.mu.Unlock()

	wake := time.Until(due)
	if wake <= 0 {
		wake = 0 // silent: the next heartbeat is the next event
		if readyStatus(n) != corev1.ConditionUnknown {
			if err := c.markUnknown(ctx, n); err != nil {
				return 0, ignoreNotFound(err)
			}
		}
	}
	again, err := c.taint(ctx, n)
	if err != nil {
		return 0, ignoreNotFound(err)
	}
	if again > 0 && (wake == 0 || again < wake) {
		wake = again
	}
	return wake, nil
}

// silenced are the conditions that kubelet no longer vouches for.
var silenced = []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure}

// markUnknown sets the conditions of a silent node, tells its events, and
// marks its pods as not ready (tryUpdateNodeHealth, monitorNodeHealth).
func (c *Controller) markUnknown(ctx context.Context, n *corev1.Node) error {
	was := readyStatus(n)
	n, err := store.ModifyStatus(ctx, c.c, "", n.Name, func(n *corev1.Node) error {
		now := metav1.NewTime(time.Now())
		for _, t := range silenced {
			k := nodestatus.Condition(n, t)
			switch {
			case k == nil:
				n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: t, Status: corev1.ConditionUnknown,
					Reason: "NodeStatusNeverUpdated", Message: "Kubelet never posted node status.",
					LastHeartbeatTime: n.CreationTimestamp, LastTransitionTime: now})
			case k.Status != corev1.ConditionUnknown:
				k.Status, k.Reason, k.Message, k.LastTransitionTime = corev1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status.", now
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if was != corev1.ConditionTrue {
		return nil
	}
	c.c.Event(ctx, n, corev1.EventTypeNormal, "NodeNotReady", "Node %s status is now: NodeNotReady", n.Name)
	return c.markPodsNotReady(ctx, n.Name)
}

func (c *Controller) markPodsNotReady(ctx context.Context, node string) error {
	for _, p := range store.ListBy[corev1.Pod](c.c, store.PodsByNode, node) {
		changed := false
		_, err := store.ModifyStatus(ctx, c.c, p.Namespace, p.Name, func(p *corev1.Pod) error {
			changed = false
			for _, k := range p.Status.Conditions {
				if k.Type == corev1.PodReady && k.Status != corev1.ConditionFalse {
					k.Status, k.LastTransitionTime = corev1.ConditionFalse, metav1.NewTime(time.Now())
					changed = podstatus.SetCondition(&p.Status, k)
				}
			}
			return nil
		})
		if ignoreNotFound(err) != nil {
			return err
		}
		if changed && err == nil {
			c.c.Event(ctx, p, corev1.EventTypeWarning, "NodeNotReady", "Node is not ready")
		}
	}
	return nil
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// isEviction says whether a taint is one of the two that evict.
func isEviction(t corev1.Taint) bool {
	return t.Effect == corev1.TaintEffectNoExecute && (t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable)
}

// conditionTaint is the NoSchedule taint of a condition, "" for none
// (node_lifecycle_controller.go:91).
func conditionTaint(k corev1.NodeCondition) string {
	if k.Type == corev1.NodeReady {
		switch k.Status {
		case corev1.ConditionFalse:
			return corev1.TaintNodeNotReady
		case corev1.ConditionUnknown:
			return corev1.TaintNodeUnreachable
		}
		return ""
	}
	if k.Status != corev1.ConditionTrue {
		return ""
	}
	switch k.Type {
	case corev1.NodeMemoryPressure:
		return corev1.TaintNodeMemoryPressure
	case corev1.NodeDiskPressure:
		return corev1.TaintNodeDiskPressure
	case corev1.NodeNetworkUnavailable:
		return corev1.TaintNodeNetworkUnavailable
	case corev1.NodePIDPressure:
		return corev1.TaintNodePIDPressure
	}
	return ""
}

// isConditionTaint says whether a NoSchedule taint is this controller's to remove.
func isConditionTaint(t corev1.Taint) bool {
	switch t.Key {
	case corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeMemoryPressure, corev1.TaintNodeDiskPressure,
		corev1.TaintNodeNetworkUnavailable, corev1.TaintNodePIDPressure, corev1.TaintNodeUnschedulable:
		return t.Effect == corev1.TaintEffectNoSchedule
	}
	return false
}

// taint brings a node's taints in line with its conditions. A result > 0 asks
// for another look then: the zone's rate of evictions is used up.
func (c *Controller) taint(ctx context.Context, n *corev1.Node) (time.Duration, error) {
	evict, wait := c.eviction(n)
	_, err := store.Modify(ctx, c.c, "", n.Name, func(n *corev1.Node) error {
		want := taints(n, evict)
		if !sameTaints(n.Spec.Taints, want) {
			n.Spec.Taints = want
		} else {
			return errNothing
		}
		return nil
	})
	if err == errNothing {
		err = nil
	}
	return wait, err
}

type nothing struct{}

func (nothing) Error() string { return "nothing to change" }

var errNothing = nothing{}

// taints are a node's taints as they should be; evict is the key of the
// NoExecute taint, "" for none.
func taints(n *corev1.Node, evict string) []corev1.Taint {
	var out []corev1.Taint
	want := map[string]corev1.Taint{}
	add := func(key string, effect corev1.TaintEffect) {
		if key != "" {
			t := corev1.Taint{Key: key, Effect: effect}
			now := metav1.NewTime(time.Now())
			t.TimeAdded = &now
			want[key+string(effect)] = t
		}
	}
	for _, k := range n.Status.Conditions {
		add(conditionTaint(k), corev1.TaintEffectNoSchedule)
	}
	if n.Spec.Unschedulable {
		add(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)
	}
	add(evict, corev1.TaintEffectNoExecute)
	for _, t := range n.Spec.Taints {
		id := t.Key + string(t.Effect)
		if _, ok := want[id]; ok || !isConditionTaint(t) && !isEviction(t) {
			out = append(out, t)
			delete(want, id)
		}
	}
	for _, key := range strings.Fields(order) { // a fixed order
		for _, effect := range []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute} {
			if t, ok := want[key+string(effect)]; ok {
				out = append(out, t)
			}
		}
	}
	return out
}

const order = corev1.TaintNodeNotReady + " " + corev1.TaintNodeUnreachable + " " + corev1.TaintNodeUnschedulable + " " + corev1.TaintNodeMemoryPressure + " " +
	corev1.TaintNodeDiskPressure + " " + corev1.TaintNodeNetworkUnavailable + " " + corev1.TaintNodePIDPressure

func sameTaints(a, b []corev1.Taint) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !a[i].MatchTaint(&b[i]) || a[i].Value != b[i].Value {
			return false
		}
	}
	return true
}

// eviction is the key of the NoExecute taint that a node should have now, and
// when to look again if it must wait for its turn (processTaintBaseEviction,
// doNoExecuteTaintingPass, handleDisruption).
func (c *Controller) eviction(n *corev1.Node) (string, time.Duration) {
	key := ""
	switch readyStatus(n) {
	case corev1.ConditionFalse:
		key = corev1.TaintNodeNotReady
	case corev1.ConditionUnknown:
		key = corev1.TaintNodeUnreachable
	default:
		return "", 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped() {
		return "", 0
	}
	for _, t := range n.Spec.Taints {
		if isEviction(t) {
			return key, 0 // tainted already: at most the key is swapped, at once
		}
	}
	if c.partial(zoneKey(n)) {
		return "", 0
	}
	z := c.zones[zoneKey(n)]
	if z == nil {
		z = &zone{}
		c.zones[zoneKey(n)] = z
	}
	now := time.Now()
	if d := z.next.Sub(now); d > 0 {
		return "", d
	}
	z.next = now.Add(c.timers.Eviction)
	return key, 0
}

// stopped says whether no node at all is ready: then the controller distrusts
// itself, evicts nobody, and takes back its taints. When that ends, all nodes
// get a fresh grace period (handleDisruption). c.mu is held.
func (c *Controller) stopped() bool {
	all := len(c.nodes) > 0
	for _, h := range c.nodes {
		if h.ready == corev1.ConditionTrue {
			all = false
		}
	}
	if c.disrupted && !all {
		for _, h := range c.nodes {
			h.probe = time.Now()
		}
	}
	c.disrupted = all
	return all
}

// partial says whether so much of a zone is not ready that evictions stop
// there: more than two nodes and at least 55 %, in a zone of up to 50 nodes
// (ComputeZoneState, ReducedQPSFunc). Larger zones, which go on at a tenth of
// the rate, are taken as small. c.mu is held.
func (c *Controller) partial(zone string) bool {
	ready, not := 0, 0
	for _, h := range c.nodes {
		if h.zone == zone {
			if h.ready == corev1.ConditionTrue {
				ready++
			} else {
				not++
			}
		}
	}
	return ready > 0 && not > 2 && float64(not)/float64(not+ready) >= 0.55
}

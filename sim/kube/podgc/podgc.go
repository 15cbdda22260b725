// Package podgc removes pods that no kubelet will: those of nodes that are
// gone, those that are being deleted on a node that is out of service, and
// those that are being deleted without a node. The rules are those of k8s
// v1.37.2 pkg/controller/podgc/gc_controller.go. Where the original looks every
// 20 s, this one acts on events and timers.
package podgc

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/kube/controller"
	"github.com/csilab/csilab/sim/kube/nodestatus"
	"github.com/csilab/csilab/sim/kube/podstatus"
	"github.com/csilab/csilab/sim/kube/store"
)

// Actor is the name that the controller acts under.
const Actor = "pod-garbage-collector"

// Timers are the controller's waiting times.
type Timers struct {
	// Quarantine is how long a pod's node must be gone before the pod is removed.
	Quarantine time.Duration
}

// RealTimers: gc_controller.go:51. The original adds up to 20 s, its period.
func RealTimers() Timers { return Timers{Quarantine: 40 * time.Second} }

// FastTimers are for tests on the wall.
func FastTimers() Timers { return Timers{Quarantine: time.Second} }

// Config is one controller.
type Config struct {
	Client *store.Client // required
	Timers Timers        // zero fields take those of RealTimers
	Log    *slog.Logger  // may be nil
}

// Controller is the pod garbage collector. Use New.
type Controller struct {
	c      *store.Client
	timers Timers
	log    *slog.Logger

	mu    sync.Mutex
	gone  map[string]time.Time // since when a node with pods is missing
	known map[string]bool      // node -> out of service and not ready
}

// New returns a controller that has not started.
func New(cfg Config) *Controller {
	cfg.Timers.Quarantine = cmp.Or(cfg.Timers.Quarantine, RealTimers().Quarantine)
	return &Controller{c: cfg.Client, timers: cfg.Timers, log: cfg.Log, gone: map[string]time.Time{}, known: map[string]bool{}}
}

// Run runs the controller until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	return controller.Run(ctx, controller.Config{Name: Actor, Client: c.c, Log: c.log, Kinds: []string{"Pod", "Node"},
		Keys: c.Keys, Reconcile: c.Reconcile})
}

func dead(n *corev1.Node) bool { return nodestatus.OutOfService(n) && !nodestatus.Ready(n) }

// Keys are pods: of a node, when it comes, goes or gets out of service.
func (c *Controller) Keys(e store.Event) []string {
	n, ok := e.Object.(*corev1.Node)
	if !ok {
		return []string{store.Key(e.Object)}
	}
	c.mu.Lock()
	was, known := c.known[n.Name]
	if e.Type == store.Deleted {
		delete(c.known, n.Name)
		c.gone[n.Name] = time.Now()
	} else {
		c.known[n.Name] = dead(n)
		delete(c.gone, n.Name)
	}
	c.mu.Unlock()
	if known && e.Type == store.Modified && was == dead(n) {
		return nil
	}
	var keys []string
	for _, p := range store.ListBy[corev1.Pod](c.c, store.PodsByNode, n.Name) {
		keys = append(keys, store.Key(p))
	}
	return keys
}

// Reconcile removes a pod if nobody else will.
func (c *Controller) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	ns, name := store.SplitKey(key)
	p, err := store.Get[corev1.Pod](c.c, ns, name)
	if err != nil {
		return 0, nil
	}
	if p.Spec.NodeName == "" {
		if p.DeletionTimestamp != nil { // gcUnscheduledTerminating
			return 0, c.remove(ctx, p, nil)
		}
		return 0, nil
	}
	n, err := store.Get[corev1.Node](c.c, "", p.Spec.NodeName)
	switch {
	case apierrors.IsNotFound(err): // gcOrphaned
		c.mu.Lock()
		since, ok := c.gone[p.Spec.NodeName]
		if !ok {
			since = time.Now()
			c.gone[p.Spec.NodeName] = since
		}
		c.mu.Unlock()
		if d := time.Until(since.Add(c.timers.Quarantine)); d > 0 {
			return d, nil
		}
		return 0, c.remove(ctx, p, &corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
			Reason: "DeletionByPodGC", Message: "PodGC: node no longer exists", LastTransitionTime: metav1.NewTime(time.Now())})
	case err != nil:
		return 0, err
	case p.DeletionTimestamp != nil && dead(n): // gcTerminating
		return 0, c.remove(ctx, p, nil)
	}
	return 0, nil
}

// remove marks a pod as failed, then deletes it without waiting for a kubelet.
func (c *Controller) remove(ctx context.Context, p *corev1.Pod, cond *corev1.PodCondition) error {
	if !podstatus.Ended(p) {
		if _, err := store.ModifyStatus(ctx, c.c, p.Namespace, p.Name, func(p *corev1.Pod) error {
			p.Status.Phase = corev1.PodFailed
			if cond != nil {
				podstatus.SetCondition(&p.Status, *cond)
			}
			return nil
		}); err != nil {
			return ignoreNotFound(err)
		}
	}
	return ignoreNotFound(c.c.DeleteNow(ctx, p))
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

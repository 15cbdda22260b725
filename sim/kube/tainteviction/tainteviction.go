// Package tainteviction deletes the pods that don't tolerate a NoExecute taint
// of their node, or tolerate it for a time only. The rules are those of k8s
// v1.37.2 pkg/controller/tainteviction/taint_eviction.go.
package tainteviction

import (
	"context"
	"log/slog"
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/csilab/csilab/sim/kube/controller"
	"github.com/csilab/csilab/sim/kube/podstatus"
	"github.com/csilab/csilab/sim/kube/store"
)

// Actor is the name that the controller acts and reports events under.
const Actor = "taint-eviction-controller"

// Config is one controller. It has no timers: how long a pod stays is said by
// the pod's tolerations.
type Config struct {
	Client *store.Client // required
	Log    *slog.Logger  // may be nil
}

// Controller is the taint eviction controller. Use New.
type Controller struct {
	c   *store.Client
	log *slog.Logger

	mu     sync.Mutex
	taints map[string][]corev1.Taint // NoExecute taints by node, as the last event showed
	due    map[string]*eviction      // by pod
}

type eviction struct {
	uid  string
	at   time.Time
	done bool
}

// New returns a controller that has not started.
func New(cfg Config) *Controller {
	return &Controller{c: cfg.Client, log: cfg.Log, taints: map[string][]corev1.Taint{}, due: map[string]*eviction{}}
}

// Run runs the controller until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	return controller.Run(ctx, controller.Config{Name: Actor, Client: c.c, Log: c.log, Workers: 8, // UpdateWorkerSize
		Kinds: []string{"Pod", "Node"}, Keys: c.Keys, Reconcile: c.Reconcile})
}

// Keys are pods: of a node, when its NoExecute taints changed.
func (c *Controller) Keys(e store.Event) []string {
	n, ok := e.Object.(*corev1.Node)
	if !ok {
		return []string{store.Key(e.Object)}
	}
	t := noExecute(n)
	c.mu.Lock()
	old := c.taints[n.Name]
	c.taints[n.Name] = t
	if e.Type == store.Deleted || len(t) == 0 {
		delete(c.taints, n.Name)
	}
	c.mu.Unlock()
	if reflect.DeepEqual(old, t) || e.Type == store.Deleted {
		return nil
	}
	var keys []string
	for _, p := range store.ListBy[corev1.Pod](c.c, store.PodsByNode, n.Name) {
		keys = append(keys, store.Key(p))
	}
	return keys
}

func noExecute(n *corev1.Node) []corev1.Taint {
	var out []corev1.Taint
	for _, t := range n.Spec.Taints {
		if t.Effect == corev1.TaintEffectNoExecute {
			out = append(out, t)
		}
	}
	return out
}

// tolerated says for how long a pod stays in spite of the taints: 0 not at
// all, < 0 for ever (processPodOnNode, getMinTolerationTime).
func tolerated(p *corev1.Pod, taints []corev1.Taint) time.Duration {
	least := time.Duration(-1)
	for i := range taints {
		found := false
		for j := range p.Spec.Tolerations {
			t := &p.Spec.Tolerations[j]
			if !t.ToleratesTaint(klog.Logger{}, &taints[i], false) {
				continue
			}
			found = true
			if t.TolerationSeconds != nil {
				if *t.TolerationSeconds <= 0 {
					return 0
				}
				if d := time.Duration(*t.TolerationSeconds) * time.Second; least < 0 || d < least {
					least = d
				}
			}
			break
		}
		if !found {
			return 0
		}
	}
	return least
}

// Reconcile deletes a pod whose time is over. The time counts from when the
// taint was first seen, and a restart of the controller starts it anew.
func (c *Controller) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	ns, name := store.SplitKey(key)
	p, err := store.Get[corev1.Pod](c.c, ns, name)
	c.mu.Lock()
	ev := c.due[key]
	if ev != nil && (err != nil || ev.uid != string(p.UID)) {
		delete(c.due, key)
		ev = nil
	}
	if err != nil || p.Spec.NodeName == "" {
		c.mu.Unlock()
		return 0, nil
	}
	n, err := store.Get[corev1.Node](c.c, "", p.Spec.NodeName)
	stay := time.Duration(-1)
	if err == nil {
		if t := noExecute(n); len(t) > 0 {
			stay = tolerated(p, t)
		}
	}
	now := time.Now()
	switch {
	case stay < 0:
		delete(c.due, key)
		c.mu.Unlock()
		if ev != nil && !ev.done {
			c.c.Event(ctx, p, corev1.EventTypeNormal, "TaintManagerEviction", "Cancelling deletion of Pod %s", key)
		}
		return 0, nil
	case ev != nil && ev.done:
		c.mu.Unlock()
		return 0, nil
	case ev == nil:
		ev = &eviction{uid: string(p.UID), at: now.Add(stay)}
		c.due[key] = ev
	case stay == 0:
		ev.at = now
	}
	c.mu.Unlock()
	if d := ev.at.Sub(now); d > 0 {
		return d, nil
	}
	return 0, c.evict(ctx, p, ev)
}

func (c *Controller) evict(ctx context.Context, p *corev1.Pod, ev *eviction) error {
	c.c.Event(ctx, p, corev1.EventTypeNormal, "TaintManagerEviction", "Marking for deletion Pod %s", store.Key(p))
	_, err := store.ModifyStatus(ctx, c.c, p.Namespace, p.Name, func(p *corev1.Pod) error {
		podstatus.SetCondition(&p.Status, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
			Reason: "DeletionByTaintManager", Message: "Taint manager: deleting due to NoExecute taint", LastTransitionTime: metav1.NewTime(time.Now())})
		return nil
	})
	if err == nil {
		err = c.c.Delete(ctx, p)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	c.mu.Lock()
	ev.done = true
	c.mu.Unlock()
	return nil
}

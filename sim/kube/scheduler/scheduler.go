// Package scheduler chooses a node for each pod that has none, as kube-scheduler
// does where volumes are concerned: readiness and taints, node selection, attach
// limits, topology of volumes, ReadWriteOncePod, and binding of claims that wait
// for their first consumer. The rules are those of k8s v1.37.2 pkg/scheduler, in
// the order of its default plugins.
//
// Not modelled: resources, ports, affinity between pods, topology spread,
// priorities (nothing is ever preempted), scheduling gates, zone labels on
// volumes (plugin VolumeZone). Among fitting nodes the one with the fewest pods
// is taken, of equals the first by name; the original draws among equals.
package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/kube/controller"
	"github.com/csilab/csilab/sim/kube/podstatus"
	"github.com/csilab/csilab/sim/kube/store"
)

// Actor is the name that the scheduler acts and reports events under, and that
// a pod names in spec.schedulerName ("" counts as it).
const Actor = "default-scheduler"

// Timers are the scheduler's waiting times.
type Timers struct {
	// BackoffMin and BackoffMax bound the time before a pod that did not fit is
	// tried again at an event; it doubles with each try.
	BackoffMin, BackoffMax time.Duration
	// Unschedulable is when such a pod is tried again without an event.
	Unschedulable time.Duration
	// Bind is how long the binding of a pod's claims is waited for.
	Bind time.Duration
}

// RealTimers are those of kube-scheduler: pkg/scheduler/backend/queue/scheduling_queue.go:65-82
// and VolumeBindingArgs.bindTimeoutSeconds 600 (apis/config/v1/defaults.go).
func RealTimers() Timers {
	return Timers{BackoffMin: time.Second, BackoffMax: 10 * time.Second, Unschedulable: 5 * time.Minute, Bind: 600 * time.Second}
}

// FastTimers are for tests on the wall.
func FastTimers() Timers {
	return Timers{BackoffMin: 20 * time.Millisecond, BackoffMax: 200 * time.Millisecond, Unschedulable: 5 * time.Second, Bind: 30 * time.Second}
}

// Config is one scheduler.
type Config struct {
	Client *store.Client // required
	Timers Timers        // zero fields take those of RealTimers
	Log    *slog.Logger  // may be nil
}

// Scheduler is the scheduler. Use New.
type Scheduler struct {
	c      *store.Client
	timers Timers
	log    *slog.Logger

	mu    sync.Mutex // guards the maps; a decision holds it, a call never does
	pods  map[string]*podState
	nodes map[string]*corev1.Node // as the last event showed them
}

// podState is what is known of a pod that has no node yet.
type podState struct {
	uid       string
	spec      int64 // generation at the last event
	attempts  int
	notBefore time.Time
	assumed   *assumption
}

// New returns a scheduler that has not started.
func New(cfg Config) *Scheduler {
	t, r := &cfg.Timers, RealTimers()
	t.BackoffMin = cmp.Or(t.BackoffMin, r.BackoffMin)
	t.BackoffMax = cmp.Or(t.BackoffMax, r.BackoffMax)
	t.Unschedulable = cmp.Or(t.Unschedulable, r.Unschedulable)
	t.Bind = cmp.Or(t.Bind, r.Bind)
	return &Scheduler{c: cfg.Client, timers: *t, log: cfg.Log, pods: map[string]*podState{}, nodes: map[string]*corev1.Node{}}
}

// Run runs the scheduler until ctx ends.
func (s *Scheduler) Run(ctx context.Context) error {
	return controller.Run(ctx, controller.Config{Name: Actor, Client: s.c, Log: s.log, Workers: 10,
		Kinds: []string{"Pod", "Node", "PersistentVolumeClaim", "PersistentVolume", "StorageClass", "CSINode", "CSIDriver", "VolumeAttachment", "CSIStorageCapacity"},
		Keys:  s.Keys, Reconcile: s.Reconcile})
}

// Keys says which waiting pods an event may make schedulable. The original's
// queueing hints are finer; a try too many is the price.
func (s *Scheduler) Keys(e store.Event) []string {
	switch o := e.Object.(type) {
	case *corev1.Pod:
		if o.Spec.NodeName == "" && e.Type != store.Deleted {
			if s.changed(o) {
				return []string{store.Key(o)}
			}
			return nil
		}
		keys := []string{store.Key(o)}
		if e.Type == store.Deleted || podstatus.Ended(o) {
			keys = append(keys, s.waiting()...)
		}
		return keys
	case *corev1.Node:
		s.mu.Lock()
		old := s.nodes[o.Name]
		s.nodes[o.Name] = o
		if e.Type == store.Deleted {
			delete(s.nodes, o.Name)
		}
		s.mu.Unlock()
		if old != nil && e.Type == store.Modified && old.Spec.Unschedulable == o.Spec.Unschedulable &&
			reflect.DeepEqual(old.Spec.Taints, o.Spec.Taints) && maps.Equal(old.Labels, o.Labels) {
			return nil // a heartbeat
		}
	case *corev1.PersistentVolumeClaim:
		return s.users(store.Key(o))
	case *corev1.PersistentVolume:
		if r := o.Spec.ClaimRef; r != nil {
			return s.users(r.Namespace + "/" + r.Name)
		}
	default:
		if store.KindOf(e.Object) == "VolumeAttachment" && e.Type != store.Deleted {
			return nil
		}
	}
	return s.waiting()
}

// changed says whether an event about a waiting pod is more than the
// scheduler's own note in its status.
func (s *Scheduler) changed(p *corev1.Pod) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.state(p)
	known := st.spec
	st.spec = p.Generation
	return known != p.Generation || p.DeletionTimestamp != nil
}

// state returns what is known of a pod; a pod of the same name with another
// uid starts anew. s.mu is held.
func (s *Scheduler) state(p *corev1.Pod) *podState {
	st := s.pods[store.Key(p)]
	if st == nil || st.uid != string(p.UID) {
		st = &podState{uid: string(p.UID)}
		s.pods[store.Key(p)] = st
	}
	return st
}

// waiting are the pods without a node.
func (s *Scheduler) waiting() []string {
	var keys []string
	for _, p := range store.ListBy[corev1.Pod](s.c, store.PodsByNode, "") {
		keys = append(keys, store.Key(p))
	}
	return keys
}

// users are the pods without a node that use a claim.
func (s *Scheduler) users(claim string) []string {
	var keys []string
	for _, p := range store.ListBy[corev1.Pod](s.c, store.PodsByClaim, claim) {
		if p.Spec.NodeName == "" {
			keys = append(keys, store.Key(p))
		}
	}
	return keys
}

// Reconcile brings one pod a step further: to a node, or from its claims'
// binding to its own.
func (s *Scheduler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	ns, name := store.SplitKey(key)
	p, err := store.Get[corev1.Pod](s.c, ns, name)
	if err != nil || p.Spec.NodeName != "" {
		s.mu.Lock()
		delete(s.pods, key)
		s.mu.Unlock()
		return 0, nil
	}
	if p.Spec.SchedulerName != "" && p.Spec.SchedulerName != Actor || len(p.Spec.SchedulingGates) > 0 {
		return 0, nil
	}
	if p.DeletionTimestamp != nil {
		s.c.Event(ctx, p, corev1.EventTypeWarning, "FailedScheduling", "skip schedule deleting pod: %s", key)
		return 0, nil
	}
	s.mu.Lock()
	st := s.state(p)
	if st.assumed == nil {
		if d := time.Until(st.notBefore); d > 0 {
			s.mu.Unlock()
			return d, nil
		}
		st.attempts++
		a, rejection := s.decide(p)
		if rejection != "" {
			s.mu.Unlock()
			return s.reject(ctx, p, st, corev1.PodReasonUnschedulable, rejection)
		}
		st.assumed = a
	}
	a := st.assumed
	s.mu.Unlock()
	return s.bind(ctx, p, st, a)
}

// reject notes why a pod has no node, and when it may be tried again.
func (s *Scheduler) reject(ctx context.Context, p *corev1.Pod, st *podState, reason, msg string) (time.Duration, error) {
	s.mu.Lock()
	backoff := s.timers.BackoffMin
	for i := 1; i < st.attempts && backoff < s.timers.BackoffMax; i++ {
		backoff *= 2
	}
	backoff = min(backoff, s.timers.BackoffMax)
	st.notBefore, st.assumed = time.Now().Add(backoff), nil
	s.mu.Unlock()
	s.c.Event(ctx, p, corev1.EventTypeWarning, "FailedScheduling", "%s", msg)
	if err := s.condition(ctx, p, corev1.ConditionFalse, reason, msg); err != nil {
		return 0, err
	}
	if reason == corev1.PodReasonSchedulerError {
		return backoff, nil // no event is waited for
	}
	return s.timers.Unschedulable, nil
}

func (s *Scheduler) condition(ctx context.Context, p *corev1.Pod, status corev1.ConditionStatus, reason, msg string) error {
	c := corev1.PodCondition{Type: corev1.PodScheduled, Status: status, Reason: reason, Message: msg,
		LastTransitionTime: metav1.NewTime(time.Now())}
	if !podstatus.SetCondition(p.Status.DeepCopy(), c) {
		return nil
	}
	_, err := store.ModifyStatus(ctx, s.c, p.Namespace, p.Name, func(p *corev1.Pod) error {
		podstatus.SetCondition(&p.Status, c)
		return nil
	})
	if err != nil {
		return fmt.Errorf("status of pod %s: %w", store.Key(p), err)
	}
	return nil
}

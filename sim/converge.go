package sim

import (
	"context"
	"errors"
	"fmt"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csilab/csilab/sim/invariant"
	"github.com/csilab/csilab/sim/kube/store"
)

// healing is what happens after the faults have stopped.
type healing struct {
	seq    uint64 // of the last call before
	at     time.Time
	took   time.Duration // once it is over
	over   bool
	left   string
	byHand []string
}

// Bounds of I7 with real timers. Attacher, provisioner and snapshotter try again
// after at most 5 minutes (--retry-interval-max), a kubelet after 2 m 2 s, so
// that nobody does one thing to one object more often than a few times a minute;
// half a minute's worth and a burst are granted.
const (
	healedCalls     = 60
	healedPerMinute = 30
)

// Converge is called when all faults are over: nothing that is still armed will
// act, and what was taken down is up again. What rules have done to the lab heals
// now. It requires that the lab reaches
// what its objects ask for by itself, within the time and the number of calls
// that invariant I7 grants, and that all invariants hold then.
func (l *Lab) Converge(ctx context.Context) error {
	l.Plan.Heal()
	l.mu.Lock()
	l.healing = &healing{seq: uint64(l.Ledger.Len()), at: time.Now()}
	l.mu.Unlock()
	err := l.settle(ctx, "converge", l.unsettled)
	l.mu.Lock()
	h := l.healing
	if h != nil {
		h.took, h.over = time.Since(h.at), err == nil
	}
	l.mu.Unlock()
	var te *TimeoutError
	if h == nil || !errors.As(err, &te) || ctx.Err() != nil || l.ctx.Err() != nil {
		return err
	}
	// It had its time.
	w := l.World(ctx, false)
	vs := invariant.Check(w, l.Ledger)
	if len(vs) == 0 {
		return err
	}
	l.saw("converge", w, vs)
	return broken(vs)
}

// sick says that there are faults again.
func (l *Lab) sick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.healing = nil
}

// stillSick notes why the lab has not converged yet.
func (l *Lab) stillSick(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.healing != nil && !l.healing.over {
		l.healing.left = why.Error()
	}
}

// byHand notes that somebody restarts a component or a node.
func (l *Lab) byHand(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.healing != nil && !l.healing.over {
		l.healing.byHand = append(l.healing.byHand, what)
	}
}

// healed is what I7 looks at; nil while nobody asks for it.
func (l *Lab) healed() *invariant.Healing {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.healing
	if h == nil || h.over {
		return nil
	}
	out := &invariant.Healing{Seq: h.seq, Took: h.took, Bound: l.settleTime(), Left: h.left, ByHand: append([]string(nil), h.byHand...)}
	if out.Took == 0 {
		out.Took = time.Since(h.at)
	}
	if l.opts.Timers == "real" {
		out.Calls, out.PerMinute = healedCalls, healedPerMinute
	}
	return out
}

// unsettled lists the objects that are not what they ask for.
func (l *Lab) unsettled(*invariant.World) (out []string) {
	add := func(o store.Object, what string) {
		out = append(out, fmt.Sprintf("%s %s %s", store.KindOf(o), store.Key(o), what))
	}
	gone := func(o store.Object) bool {
		if o.GetDeletionTimestamp() != nil {
			add(o, "is being deleted")
		}
		return o.GetDeletionTimestamp() != nil
	}
	for _, p := range store.List[corev1.Pod](l.user, "") {
		if !gone(p) && p.Status.Phase == corev1.PodPending {
			add(p, "waits")
		}
	}
	for _, c := range store.List[corev1.PersistentVolumeClaim](l.user, "") {
		if gone(c) || c.Status.Phase == corev1.ClaimBound {
			continue
		}
		if c.Spec.StorageClassName != nil {
			sc, err := l.storageClass(*c.Spec.StorageClassName)
			if err == nil && sc.VolumeBindingMode != nil && *sc.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer {
				continue // its pod, if there is one, waits too
			}
		}
		add(c, "is not bound")
	}
	for _, p := range store.List[corev1.PersistentVolume](l.user, "") {
		if !gone(p) && p.Status.Phase == corev1.VolumeReleased && p.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
			add(p, "is not deleted")
		}
	}
	for _, a := range store.List[storagev1.VolumeAttachment](l.user, "") {
		if !gone(a) && !a.Status.Attached {
			add(a, "is not attached")
		}
	}
	for _, s := range store.List[snapshotv1.VolumeSnapshot](l.user, "") {
		if !gone(s) && (s.Status == nil || s.Status.ReadyToUse == nil || !*s.Status.ReadyToUse) {
			add(s, "is not ready")
		}
	}
	for _, c := range store.List[snapshotv1.VolumeSnapshotContent](l.user, "") {
		gone(c)
	}
	return out
}

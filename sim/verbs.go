package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/admission"
	"github.com/csilab/csilab/sim/kube/store"
)

// Namespace is where the verbs look for objects that are named without one.
const Namespace = "default"

// split gives namespace and name of "name" or "namespace/name".
func split(name string) (string, string) {
	if ns, n := store.SplitKey(name); ns != "" {
		return ns, n
	}
	return Namespace, name
}

// Apply creates the objects of a manifest, as `kubectl create -f` does. The
// error names document, object and field.
func (l *Lab) Apply(ctx context.Context, manifest string) error {
	objs, err := admission.Decode("manifest", []byte(manifest))
	if err != nil {
		return err
	}
	return l.Create(ctx, objs...)
}

// Create creates objects as a user.
func (l *Lab) Create(ctx context.Context, objs ...store.Object) error {
	for _, o := range objs {
		if err := admission.Create(ctx, l.user, o); err != nil {
			return err
		}
	}
	return nil
}

// waitFor blocks until f is true. When the context ends first the error tells
// what was waited for and what the cluster says about the object.
func (l *Lab) waitFor(ctx context.Context, what string, about func() store.Object, f func() (bool, error), kinds ...string) error {
	wctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.alarm, func() { cancel(errAlarm) })()
	err := l.user.Wait(fault.About(wctx, what), f, kinds...)
	if err == nil {
		return nil
	}
	if l.alarm.Err() != nil {
		// No use in waiting for what a broken invariant explains.
		return errors.Join(l.Broken(ctx), fmt.Errorf("while waiting: %s", what))
	}
	if ctx.Err() == nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	msg := what
	if l.ctx.Err() != nil {
		return fmt.Errorf("%s: the lab is closed: %w", what, context.Cause(l.ctx))
	}
	if about != nil {
		if o := about(); o != nil {
			if ev := l.eventsFor(o); len(ev) > 0 {
				msg += "; events:\n  " + strings.Join(ev, "\n  ")
			}
		}
	}
	return &TimeoutError{What: msg, Err: context.Cause(ctx)}
}

var errAlarm = errors.New("an invariant broke")

// TimeoutError says that the lab did not reach a state in time.
type TimeoutError struct {
	What string // what was waited for, with the events that say why not
	Err  error
}

func (e *TimeoutError) Error() string { return fmt.Sprintf("not in time (%v): %s", e.Err, e.What) }

// Unwrap gives the context's error.
func (e *TimeoutError) Unwrap() error { return e.Err }

// Events are the Event objects about o, oldest first: "Warning ProvisioningFailed: … (x3)".
func (l *Lab) Events(o store.Object) []string {
	var out []string
	es := store.ListBy[corev1.Event](l.user, store.EventsByObject, string(o.GetUID()))
	slices.SortStableFunc(es, func(a, b *corev1.Event) int { return a.LastTimestamp.Compare(b.LastTimestamp.Time) })
	for _, e := range es {
		s := fmt.Sprintf("%s %s: %s", e.Type, e.Reason, e.Message)
		if e.Count > 1 {
			s += fmt.Sprintf(" (x%d)", e.Count)
		}
		out = append(out, s)
	}
	return out
}

// eventsFor are the events that say why an object does not get on: its own, and
// of a pod those of its claims.
func (l *Lab) eventsFor(o store.Object) []string {
	out := l.Events(o)
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return out
	}
	for _, v := range pod.Spec.Volumes {
		name := store.ClaimName(pod, &v)
		if name == "" {
			continue
		}
		pvc, err := store.Get[corev1.PersistentVolumeClaim](l.user, pod.Namespace, name)
		if err != nil {
			continue
		}
		for _, e := range l.Events(pvc) {
			out = append(out, "PersistentVolumeClaim "+name+": "+e)
		}
	}
	return out
}

// HasEvent waits until an event about o has the reason and a message that
// holds text.
func (l *Lab) HasEvent(ctx context.Context, o store.Object, reason, text string) error {
	return l.waitFor(ctx, fmt.Sprintf("%s %s has an event %s with %q", store.KindOf(o), store.Key(o), reason, text), func() store.Object { return o }, func() (bool, error) {
		return slices.ContainsFunc(l.Events(o), func(s string) bool {
			return strings.Contains(s, " "+reason+": ") && strings.Contains(s, text)
		}), nil
	}, "Event")
}

// PVC returns a claim.
func (l *Lab) PVC(name string) (*corev1.PersistentVolumeClaim, error) {
	ns, n := split(name)
	return store.Get[corev1.PersistentVolumeClaim](l.user, ns, n)
}

// Pod returns a pod.
func (l *Lab) Pod(name string) (*corev1.Pod, error) {
	ns, n := split(name)
	return store.Get[corev1.Pod](l.user, ns, n)
}

// Bound waits until a claim is bound and returns its volume.
func (l *Lab) Bound(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	var pv *corev1.PersistentVolume
	err := l.waitFor(ctx, fmt.Sprintf("PersistentVolumeClaim %s is bound", name), l.about(l.PVC, name), func() (bool, error) {
		c, err := l.PVC(name)
		if err != nil {
			return false, err
		}
		if c.Status.Phase != corev1.ClaimBound || c.Spec.VolumeName == "" {
			return false, nil
		}
		pv, err = store.Get[corev1.PersistentVolume](l.user, "", c.Spec.VolumeName)
		return err == nil, nil
	}, "PersistentVolumeClaim", "PersistentVolume")
	return pv, err
}

func (l *Lab) about(get func(string) (*corev1.PersistentVolumeClaim, error), name string) func() store.Object {
	return func() store.Object {
		if o, err := get(name); err == nil {
			return o
		}
		return nil
	}
}

// Running waits until a pod runs with all its volumes.
func (l *Lab) Running(ctx context.Context, name string) (*corev1.Pod, error) {
	var pod *corev1.Pod
	err := l.waitFor(ctx, fmt.Sprintf("Pod %s runs", name), func() store.Object {
		if p, err := l.Pod(name); err == nil {
			return p
		}
		return nil
	}, func() (ok bool, err error) {
		pod, err = l.Pod(name)
		return err == nil && pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil, err
	}, "Pod")
	return pod, err
}

// RunningAgain waits until the first container of a pod runs for at least the
// times-th time again, as its kubelet reports it. After a node comes back the
// status from before says Running until the kubelet has looked.
func (l *Lab) RunningAgain(ctx context.Context, name string, times int32) error {
	return l.waitFor(ctx, fmt.Sprintf("Pod %s runs again", name), func() store.Object {
		if p, err := l.Pod(name); err == nil {
			return p
		}
		return nil
	}, func() (bool, error) {
		p, err := l.Pod(name)
		if err != nil || len(p.Status.ContainerStatuses) == 0 {
			return false, err
		}
		c := p.Status.ContainerStatuses[0]
		return c.RestartCount >= times && c.State.Running != nil, nil
	}, "Pod")
}

// DeletePod deletes a pod and waits until it is gone.
func (l *Lab) DeletePod(ctx context.Context, name string) error {
	p, err := l.Pod(name)
	if err != nil {
		return err
	}
	if err := l.user.Delete(ctx, p); err != nil {
		return err
	}
	return l.Gone(ctx, p)
}

// ForceDeletePod deletes a pod with grace period 0, as `kubectl delete --force`.
func (l *Lab) ForceDeletePod(ctx context.Context, name string) error {
	p, err := l.Pod(name)
	if err != nil {
		return err
	}
	return l.user.DeleteNow(ctx, p)
}

// Delete deletes an object and waits until it is gone.
func (l *Lab) Delete(ctx context.Context, o store.Object) error {
	if err := l.user.Delete(ctx, o); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return l.Gone(ctx, o)
}

// Gone waits until an object is gone.
func (l *Lab) Gone(ctx context.Context, o store.Object) error {
	return l.waitFor(ctx, fmt.Sprintf("%s %s is gone", store.KindOf(o), store.Key(o)), func() store.Object { return o },
		func() (bool, error) { return !l.store.Has(o), nil }, store.KindOf(o))
}

// DeletePVC deletes a claim and waits until claim and volume are gone; with a
// reclaim policy of Retain, until the volume is Released.
func (l *Lab) DeletePVC(ctx context.Context, name string) error {
	c, err := l.PVC(name)
	if err != nil {
		return err
	}
	pvName := c.Spec.VolumeName
	if err := l.Delete(ctx, c); err != nil {
		return err
	}
	if pvName == "" {
		return nil
	}
	return l.waitFor(ctx, fmt.Sprintf("PersistentVolume %s is deleted or released", pvName), func() store.Object {
		if pv, err := store.Get[corev1.PersistentVolume](l.user, "", pvName); err == nil {
			return pv
		}
		return nil
	}, func() (bool, error) {
		pv, err := store.See[corev1.PersistentVolume](l.user, "", pvName)
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return err == nil && pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain && pv.Status.Phase == corev1.VolumeReleased, err
	}, "PersistentVolume")
}

// Detached waits until no VolumeAttachment of a claim's volume is left.
func (l *Lab) Detached(ctx context.Context, pv string) error {
	return l.waitFor(ctx, fmt.Sprintf("PersistentVolume %s is detached", pv), nil, func() (bool, error) {
		return len(store.SeeBy[storagev1.VolumeAttachment](l.user, store.AttachmentsByPV, pv)) == 0, nil
	}, "VolumeAttachment")
}

// AttachedTo waits until the claim's volume is attached to a node.
func (l *Lab) AttachedTo(ctx context.Context, pv, node string) error {
	return l.waitFor(ctx, fmt.Sprintf("PersistentVolume %s is attached to %s", pv, node), nil, func() (bool, error) {
		return slices.ContainsFunc(store.List[storagev1.VolumeAttachment](l.user, ""), func(a *storagev1.VolumeAttachment) bool {
			return a.Spec.Source.PersistentVolumeName != nil && *a.Spec.Source.PersistentVolumeName == pv && a.Spec.NodeName == node && a.Status.Attached
		}), nil
	}, "VolumeAttachment")
}

// TakeSnapshot makes a VolumeSnapshot of a claim, waits until it is ready and
// notes what it must hold.
func (l *Lab) TakeSnapshot(ctx context.Context, name, pvc, class string) (*snapshotv1.VolumeSnapshot, error) {
	ns, n := split(name)
	_, claim := split(pvc)
	s := &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: n},
		Spec: snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim}}}
	if class != "" {
		s.Spec.VolumeSnapshotClassName = &class
	}
	if err := l.Create(ctx, s); err != nil {
		return nil, err
	}
	return l.SnapshotReady(ctx, name)
}

// SnapshotReady waits until a VolumeSnapshot is ready to use.
func (l *Lab) SnapshotReady(ctx context.Context, name string) (*snapshotv1.VolumeSnapshot, error) {
	ns, n := split(name)
	var s *snapshotv1.VolumeSnapshot
	get := func() (err error) { s, err = store.Get[snapshotv1.VolumeSnapshot](l.user, ns, n); return err }
	err := l.waitFor(ctx, fmt.Sprintf("VolumeSnapshot %s is ready", name), func() store.Object {
		if get() == nil {
			return s
		}
		return nil
	}, func() (bool, error) {
		if err := get(); err != nil {
			return false, err
		}
		return s.Status != nil && s.Status.ReadyToUse != nil && *s.Status.ReadyToUse, nil
	}, "VolumeSnapshot")
	if err != nil {
		return s, err
	}
	l.data.snapshotTaken(l, s)
	return s, nil
}

// DeleteSnapshot deletes a VolumeSnapshot and waits until it and its content
// are gone.
func (l *Lab) DeleteSnapshot(ctx context.Context, name string) error {
	ns, n := split(name)
	s, err := store.Get[snapshotv1.VolumeSnapshot](l.user, ns, n)
	if err != nil {
		return err
	}
	var content *snapshotv1.VolumeSnapshotContent
	if s.Status != nil && s.Status.BoundVolumeSnapshotContentName != nil {
		content, _ = store.Get[snapshotv1.VolumeSnapshotContent](l.user, "", *s.Status.BoundVolumeSnapshotContentName)
	}
	if err := l.Delete(ctx, s); err != nil {
		return err
	}
	if content != nil && content.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete {
		return l.Gone(ctx, content)
	}
	return nil
}

// Expand asks for a larger claim.
func (l *Lab) Expand(ctx context.Context, pvc, size string) error {
	ns, n := split(pvc)
	q, err := resource.ParseQuantity(size)
	if err != nil {
		return fmt.Errorf("size %q: %w", size, err)
	}
	for {
		c, err := store.Get[corev1.PersistentVolumeClaim](l.user, ns, n)
		if err != nil {
			return err
		}
		c.Spec.Resources.Requests[corev1.ResourceStorage] = q
		if err := admission.Update(ctx, l.user, c); !apierrors.IsConflict(err) {
			return err
		}
	}
}

// Expanded waits until a claim's status has at least the size.
func (l *Lab) Expanded(ctx context.Context, pvc, size string) error {
	q, err := resource.ParseQuantity(size)
	if err != nil {
		return fmt.Errorf("size %q: %w", size, err)
	}
	return l.waitFor(ctx, fmt.Sprintf("PersistentVolumeClaim %s has %s", pvc, size), l.about(l.PVC, pvc), func() (bool, error) {
		c, err := l.PVC(pvc)
		if err != nil {
			return false, err
		}
		got := c.Status.Capacity[corev1.ResourceStorage]
		return got.Cmp(q) >= 0, nil
	}, "PersistentVolumeClaim")
}

// PVName gives the volume of a bound claim.
func (l *Lab) PVName(pvc string) string {
	c, err := l.PVC(pvc)
	if err != nil {
		return ""
	}
	return c.Spec.VolumeName
}

// DeleteNode removes the Node object, as a cloud provider does when the
// machine is gone.
func (l *Lab) DeleteNode(ctx context.Context, node string) error {
	n, err := store.Get[corev1.Node](l.user, "", node)
	if err != nil {
		return err
	}
	return l.Delete(ctx, n)
}

// Taint puts a taint on a node.
func (l *Lab) Taint(ctx context.Context, node, key string, effect corev1.TaintEffect) error {
	_, err := store.Modify(ctx, l.user, "", node, func(n *corev1.Node) error {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: "nodeshutdown", Effect: effect})
		return nil
	})
	return err
}

// Untaint takes the taints with a key off a node.
func (l *Lab) Untaint(ctx context.Context, node, key string) error {
	_, err := store.Modify(ctx, l.user, "", node, func(n *corev1.Node) error {
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
		return nil
	})
	return err
}

// NodesReady waits until all nodes are ready and have the driver registered.
func (l *Lab) NodesReady(ctx context.Context) error {
	for _, n := range l.nodes {
		if err := l.nodeReady(ctx, n.Name); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lab) nodeReady(ctx context.Context, name string) error {
	err := l.waitFor(ctx, fmt.Sprintf("node %s is ready and has %s registered", name, l.DriverName()), nil, func() (bool, error) {
		node, err := store.Get[corev1.Node](l.user, "", name)
		if err != nil {
			return false, nil
		}
		ready := slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
		cn, err := store.Get[storagev1.CSINode](l.user, "", name)
		l.node(name).csiID() // to know it from now on
		return ready && err == nil && slices.ContainsFunc(cn.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == l.DriverName() }), nil
	}, "Node", "CSINode")
	var te *TimeoutError
	if errors.As(err, &te) {
		te.What += l.lastErrors()
	}
	return err
}

func (l *Lab) lastErrors() (s string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, c := range l.components {
		c.mu.Lock()
		if c.lastErr != nil {
			s += fmt.Sprintf("\n  %s: %v", name, c.lastErr)
		}
		c.mu.Unlock()
	}
	return s
}

// ClaimUID is the uid of a claim, for names that derive from it.
func (l *Lab) ClaimUID(pvc string) types.UID {
	c, err := l.PVC(pvc)
	if err != nil {
		return ""
	}
	return c.UID
}

// within bounds a context by d.
func within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("after %v", d))
}

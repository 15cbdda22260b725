package attachdetach

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/kube/nodestatus"
	"github.com/csilab/csilab/sim/kube/podstatus"
	"github.com/csilab/csilab/sim/kube/store"
)

// desired is what pods want of one volume.
type desired struct {
	pv        *corev1.PersistentVolume // nil when no pod wants it
	exclusive bool                     // at most one node may have it
	pods      map[string][]*corev1.Pod // by node
}

// desire is the desired state of the world (cache/desired_state_of_world.go,
// util/util.go): each pod with a node that has not ended wants its claims'
// volumes there, if the driver needs attaching.
func (a *Controller) desire(v *volume) desired {
	d := desired{pods: map[string][]*corev1.Pod{}}
	for _, pv := range store.SeeBy[corev1.PersistentVolume](a.c, store.VolumesByHandle, v.name) {
		d.exclusive = d.exclusive || exclusive(pv)
		ref := pv.Spec.ClaimRef
		if ref == nil || !a.attachable(pv) {
			continue
		}
		claim, err := store.See[corev1.PersistentVolumeClaim](a.c, ref.Namespace, ref.Name)
		if err != nil || claim.UID != ref.UID || claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName != pv.Name {
			continue
		}
		for _, p := range store.SeeBy[corev1.Pod](a.c, store.PodsByClaim, store.Key(claim)) {
			node := p.Spec.NodeName
			if node == "" || podstatus.Terminated(p) || !store.Uses(p, claim) {
				continue
			}
			if _, err := store.See[corev1.Node](a.c, "", node); err != nil && v.nodes[node] == nil {
				continue // a node that is not known; one that was stays wanted while it has pods
			}
			d.pods[node] = append(d.pods[node], p)
			d.pv = pv
		}
	}
	return d
}

// exclusive is the opposite of pkg/volume/util/util.go:595 IsMultiAttachAllowed.
func exclusive(pv *corev1.PersistentVolume) bool {
	return len(pv.Spec.AccessModes) > 0 &&
		!slices.Contains(pv.Spec.AccessModes, corev1.ReadWriteMany) && !slices.Contains(pv.Spec.AccessModes, corev1.ReadOnlyMany)
}

// attachable: a driver without a CSIDriver object needs attaching
// (pkg/volume/csi/csi_plugin.go skipAttach).
func (a *Controller) attachable(pv *corev1.PersistentVolume) bool {
	d, err := store.See[storagev1.CSIDriver](a.c, "", pv.Spec.CSI.Driver)
	return err != nil || d.Spec.AttachRequired == nil || *d.Spec.AttachRequired
}

// step is one sync of one volume.
type step struct {
	*Controller
	v    *volume
	want desired
	now  time.Time
	wake time.Duration // when to look again, 0: at the next event
}

func (s *step) at(t time.Time) {
	d := max(t.Sub(s.now), 1)
	if s.wake == 0 || d < s.wake {
		s.wake = d
	}
}

// op is the newest operation that concerns a node, or nil.
func (s *step) op(node string) *operation {
	if s.want.exclusive {
		for _, o := range s.v.ops { // also one from before the volume's modes were known
			if o.pending {
				return o
			}
		}
		return s.v.ops[""]
	}
	if o := s.v.ops[node]; o != nil {
		return o
	}
	if o := s.v.ops[""]; o != nil && o.node == node {
		return o
	}
	return nil
}

// begin starts an operation; one of another kind starts with a fresh back-off
// (nestedpendingoperations.go, Run).
func (s *step) begin(kind opKind, node string) *operation {
	o := s.op(node)
	if o == nil || o.kind != kind {
		key := node
		if s.want.exclusive {
			key = ""
		}
		o = &operation{kind: kind}
		s.v.ops[key] = o
	}
	o.node, o.pending, o.deadline = node, true, s.now.Add(s.timers.Operation)
	return o
}

func (s *step) end(o *operation) {
	maps.DeleteFunc(s.v.ops, func(_ string, x *operation) bool { return x == o })
}

func (s *step) va(node string) (*storagev1.VolumeAttachment, error) {
	return store.See[storagev1.VolumeAttachment](s.c, "", AttachmentName(s.v.handle, s.v.driver, node))
}

func (s *step) pvName() string {
	if s.want.pv != nil {
		return s.want.pv.Name
	}
	return "nil" // as the original prints a volume without a spec
}

// sync is one pass of reconciler.go:169 for one volume: ended operations, then
// detaches, then attaches.
func (a *Controller) sync(ctx context.Context, name string) (time.Duration, error) {
	v := a.volume(name)
	defer a.tidy(v)
	s := &step{Controller: a, v: v, now: time.Now()}
	s.want = a.desire(v)
	if err := a.writeDirty(ctx); err != nil { // from a pass before that could not
		return 0, err
	}
	for _, k := range slices.Sorted(maps.Keys(v.ops)) {
		if err := s.finish(ctx, v.ops[k]); err != nil {
			return 0, err
		}
	}
	for _, node := range slices.Sorted(maps.Keys(v.nodes)) {
		if err := s.verify(ctx, node); err != nil {
			return 0, err
		}
	}
	for _, node := range slices.Sorted(maps.Keys(v.nodes)) {
		if _, wanted := s.want.pods[node]; !wanted {
			if err := s.detach(ctx, node); err != nil {
				return 0, err
			}
		}
	}
	for node := range v.multiAttach {
		if _, wanted := s.want.pods[node]; !wanted {
			delete(v.multiAttach, node)
		}
	}
	for _, node := range slices.Sorted(maps.Keys(s.want.pods)) {
		if err := s.attach(ctx, node); err != nil {
			return 0, err
		}
	}
	for k, o := range v.ops { // a back-off that has run out is forgotten with what it was for
		if _, wanted := s.want.pods[o.node]; !o.pending && !wanted && v.nodes[o.node] == nil {
			delete(v.ops, k)
		}
	}
	return s.wake, nil
}

// finish looks whether a pending operation has ended (csi_attacher.go:172, 458, 625, 649).
func (s *step) finish(ctx context.Context, o *operation) error {
	if !o.pending {
		return nil
	}
	va, err := s.va(o.node)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	var failure error
	switch {
	case o.kind == attach && err == nil && va.DeletionTimestamp != nil:
		failure = fmt.Errorf("volume attachment is being deleted")
	case o.kind == attach && err == nil && va.Status.Attached:
		at := s.attachment(s.v, o.node)
		at.confirmed, at.detachSince, at.driftSince = true, time.Time{}, time.Time{}
		s.report(o.node, s.v.name)
		s.end(o)
		for _, p := range s.want.pods[o.node] {
			s.c.Event(ctx, p, corev1.EventTypeNormal, "SuccessfulAttachVolume", "AttachVolume.Attach succeeded for volume %q ", s.pvName())
		}
		return s.writeNode(ctx, o.node)
	case o.kind == attach && err == nil && va.Status.AttachError != nil:
		failure = fmt.Errorf("%s", va.Status.AttachError.Message)
	case o.kind == detach && err != nil: // gone
		s.forget(s.v, o.node)
		s.end(o)
		return s.writeNode(ctx, o.node)
	case o.kind == detach && va.Status.DetachError != nil:
		failure = fmt.Errorf("%s", va.Status.DetachError.Message)
	case !s.now.Before(o.deadline):
		failure = fmt.Errorf("timed out waiting for external-attacher of %v CSI driver to %v volume %v", s.v.driver, o.kind, s.v.handle)
	default:
		s.at(o.deadline)
		return nil
	}
	s.fail(ctx, o, failure)
	return nil
}

// fail notes that an operation failed: the attachment is uncertain from then
// on, and for an attach the pods are told (operation_generator.go,
// GenerateAttachVolumeFunc and GenerateDetachVolumeFunc).
func (s *step) fail(ctx context.Context, o *operation, err error) {
	o.fail(s.now, s.timers)
	s.attachment(s.v, o.node).confirmed = false
	if o.kind == attach {
		for _, p := range s.want.pods[o.node] {
			s.c.Event(ctx, p, corev1.EventTypeWarning, "FailedAttachVolume", "AttachVolume.Attach failed for volume %q : %s", s.pvName(), err)
		}
	}
	s.log.Info("operation failed", "operation", o.kind, "volume", s.v.name, "node", o.node, "again", o.wait, "err", err)
}

// verify takes a volume as detached when its VolumeAttachment has said so for
// a while (VerifyVolumesAreAttached in reconciler.go:122, csi_attacher.go:198).
func (s *step) verify(ctx context.Context, node string) error {
	at := s.v.nodes[node]
	if o := s.op(node); !at.confirmed || (o != nil && o.pending) {
		return nil
	}
	va, err := s.va(node)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err == nil && va.Status.Attached {
		at.driftSince = time.Time{}
		return nil
	}
	if at.driftSince.IsZero() {
		at.driftSince = s.now
	}
	if due := at.driftSince.Add(s.timers.Sync); s.now.Before(due) {
		s.at(due)
		return nil
	}
	s.forget(s.v, node)
	return s.writeNode(ctx, node)
}

// mounted says whether a node may still have the volume mounted, by its own
// status; one that is gone, by the last it wrote.
func (s *step) mounted(node string, n *corev1.Node) bool {
	at := s.v.nodes[node]
	if n == nil {
		s.mu.Lock()
		n = s.lastSeen[node]
		s.mu.Unlock()
		if n == nil {
			return at.assumed == ""
		}
	} else if n.ResourceVersion == at.assumed {
		return true
	}
	return slices.Contains(n.Status.VolumesInUse, corev1.UniqueVolumeName(s.v.name))
}

// detach starts to detach a volume that no pod on the node needs. One that the
// node still has mounted is let alone, unless the node is unhealthy and the
// time is over, or it has the out-of-service taint: never from a healthy node
// (reconciler.go:176-312).
func (s *step) detach(ctx context.Context, node string) error {
	if o := s.op(node); o != nil {
		if o.pending {
			return nil
		}
		if o.kind == detach && s.now.Before(o.until) {
			s.at(o.until)
			return nil
		}
	}
	at := s.v.nodes[node]
	if at.detachSince.IsZero() {
		at.detachSince = s.now
	}
	n, err := store.Get[corev1.Node](s.c, "", node)
	if err != nil {
		if !apierrors.IsNotFound(err) {
			return err
		}
		n = nil
	}
	due := at.detachSince.Add(s.timers.MaxWaitForUnmount)
	// The original asks for more than the time and looks every 100 ms, so it
	// comes up to 100 ms later.
	force := !s.noForce && !s.now.Before(due) && (n == nil || !nodestatus.Ready(n))
	taint := n != nil && nodestatus.OutOfService(n)
	if s.mounted(node, n) && !force && !taint {
		if s.now.Before(due) && !s.noForce {
			s.at(due)
		}
		return nil
	}
	// First the node must know that the volume is not safe to mount any more.
	was := s.unreport(node, s.v.name)
	if err := s.writeNode(ctx, node); err != nil {
		if was {
			s.report(node, s.v.name)
		}
		return err
	}
	o := s.begin(detach, node)
	if !force && !taint { // operation_generator.go, verifyVolumeIsSafeToDetach
		if n, err := store.See[corev1.Node](s.c, "", node); err == nil && slices.Contains(n.Status.VolumesInUse, corev1.UniqueVolumeName(s.v.name)) {
			s.fail(ctx, o, fmt.Errorf("volume is still in use by node, according to Node status"))
			s.at(o.until)
			return nil
		}
	} else {
		s.log.Warn("detaching by force", "volume", s.v.name, "node", node, "outOfService", taint, "waited", s.now.Sub(at.detachSince))
		// The original counts forced detaches by these reasons
		// (pkg/controller/volume/attachdetach/metrics/metrics.go).
		reason := "timeout"
		if taint {
			reason = "out-of-service"
		}
		ctx = store.Because(ctx, "by force: "+reason)
	}
	err = s.c.Delete(ctx, &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: AttachmentName(s.v.handle, s.v.driver, node)}})
	if err != nil && !apierrors.IsNotFound(err) {
		s.fail(ctx, o, fmt.Errorf("failed to delete VolumeAttachment: %w", err))
		s.at(o.until)
		return nil
	}
	return s.settle(ctx, o)
}

// settle looks at once whether an operation that was just started is over.
func (s *step) settle(ctx context.Context, o *operation) error {
	if err := s.finish(ctx, o); err != nil {
		return err
	}
	if !o.pending { // it failed; one that succeeded was forgotten as it was
		s.at(o.until)
	}
	return nil
}

// attach starts to attach a volume that pods on the node need (reconciler.go:323-371).
func (s *step) attach(ctx context.Context, node string) error {
	o := s.op(node)
	if o != nil && o.pending {
		return nil
	}
	if at := s.v.nodes[node]; at != nil && at.confirmed {
		at.detachSince = time.Time{}
		return nil
	}
	if s.want.exclusive {
		if others := s.others(node); len(others) > 0 {
			if !s.v.multiAttach[node] {
				s.v.multiAttach[node] = true
				s.reportMultiAttach(ctx, node, others)
			}
			return nil
		}
	}
	if o != nil && o.kind == attach && s.now.Before(o.until) {
		s.at(o.until)
		return nil
	}
	if _, err := store.See[corev1.Node](s.c, "", node); err != nil {
		return nil // gone: its pods are garbage
	}
	delete(s.v.multiAttach, node)
	o = s.begin(attach, node)
	s.mu.Lock()
	name := AttachmentName(s.v.handle, s.v.driver, node)
	s.byVA[name] = s.v.name
	s.mu.Unlock()
	if _, err := s.va(node); apierrors.IsNotFound(err) {
		err := s.c.Create(ctx, &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: storagev1.VolumeAttachmentSpec{Attacher: s.v.driver, NodeName: node,
				Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &s.want.pv.Name}}})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			s.fail(ctx, o, fmt.Errorf("attacher.Attach failed: %w", err))
			s.at(o.until)
			return nil
		}
	}
	return s.settle(ctx, o)
}

// others are the other nodes that surely have the volume.
func (s *step) others(node string) []string {
	var out []string
	for n, at := range s.v.nodes {
		if n != node && at.confirmed {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// reportMultiAttach tells pods why they wait (reconciler.go:375-438). Since
// v1.37 the text starts with "Waiting for detach", no longer with "Multi-Attach error".
func (s *step) reportMultiAttach(ctx context.Context, node string, others []string) {
	var holders []*corev1.Pod
	for _, n := range others {
		holders = append(holders, s.want.pods[n]...)
	}
	for _, p := range s.want.pods[node] {
		msg := "Volume is already exclusively attached to one node, waiting on detach before it can be attached to another node"
		if len(holders) > 0 {
			var local []string
			foreign := 0
			for _, h := range holders {
				if h.Namespace == p.Namespace {
					local = append(local, h.Name)
				} else {
					foreign++
				}
			}
			switch {
			case len(local) == 0:
				msg = fmt.Sprintf("Volume is already used by %d pod(s) in different namespaces", foreign)
			case foreign > 0:
				msg = fmt.Sprintf("Volume is already used by pod(s) %s and %d pod(s) in different namespaces", strings.Join(local, ", "), foreign)
			default:
				msg = "Volume is already used by pod(s) " + strings.Join(local, ", ")
			}
		}
		s.c.Event(ctx, p, corev1.EventTypeWarning, "FailedAttachVolume", "Waiting for detach for volume %q %s", s.pvName(), msg)
	}
}

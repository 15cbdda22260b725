package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	volumehelpers "k8s.io/component-helpers/storage/volume"

	"github.com/csilab/csilab/sim/kube/class"
	"github.com/csilab/csilab/sim/kube/store"
)

// podClaims are a pod's claims (volumebinding/binder.go:836).
type podClaims struct {
	all, bound, delayed []*corev1.PersistentVolumeClaim
	// free are the volumes that a delayed claim could take, by claim: those of
	// no claim and those reserved for it.
	free map[string][]*corev1.PersistentVolume
}

// claims sorts a pod's claims; the error says why the pod can't run anywhere
// (volume_binding.go:305, 351).
func (s *Scheduler) claims(p *corev1.Pod) (podClaims, error) {
	var cl podClaims
	for _, v := range p.Spec.Volumes {
		name := store.ClaimName(p, &v)
		if name == "" {
			continue
		}
		c, err := store.Get[corev1.PersistentVolumeClaim](s.c, p.Namespace, name)
		switch {
		case apierrors.IsNotFound(err) && v.Ephemeral != nil:
			return cl, fmt.Errorf("waiting for ephemeral volume controller to create the persistentvolumeclaim %q", name)
		case apierrors.IsNotFound(err):
			return cl, fmt.Errorf("persistentvolumeclaim %q not found", name)
		case err != nil:
			return cl, err
		case c.Status.Phase == corev1.ClaimLost:
			return cl, fmt.Errorf("persistentvolumeclaim %q bound to non-existent persistentvolume %q", c.Name, c.Spec.VolumeName)
		case c.DeletionTimestamp != nil:
			return cl, fmt.Errorf("persistentvolumeclaim %q is being deleted", c.Name)
		}
		if err := store.Usable(p, &v, c); err != nil {
			return cl, err
		}
		cl.all = append(cl.all, c)
	}
	for _, c := range cl.all {
		if fullyBound(c) {
			cl.bound = append(cl.bound, c)
			continue
		}
		cls, _ := store.Get[storagev1.StorageClass](s.c, "", volumehelpers.GetPersistentVolumeClaimClass(c))
		if c.Spec.VolumeName != "" || !class.Delayed(cls) {
			return cl, errors.New(reasonUnbound)
		}
		cl.delayed = append(cl.delayed, c)
	}
	if len(cl.delayed) > 0 {
		free := store.ListBy[corev1.PersistentVolume](s.c, store.VolumesByClaim, "")
		cl.free = map[string][]*corev1.PersistentVolume{}
		for _, c := range cl.delayed {
			cl.free[store.Key(c)] = append(store.ListBy[corev1.PersistentVolume](s.c, store.VolumesByClaim, store.Key(c)), free...)
		}
	}
	return cl, nil
}

func fullyBound(c *corev1.PersistentVolumeClaim) bool {
	return c.Spec.VolumeName != "" && metav1.HasAnnotation(c.ObjectMeta, volumehelpers.AnnBindCompleted)
}

// assumption is a pod's chosen node, and what must be bound before the pod is.
type assumption struct {
	node      string
	provision []*corev1.PersistentVolumeClaim          // to be provisioned for the node
	static    map[string]*corev1.PersistentVolume      // claim -> volume that it takes
	claims    map[string]*corev1.PersistentVolumeClaim // of static
	written   bool
	deadline  time.Time
}

// fitVolumes says whether a node suits the pod's volumes, and how its unbound
// claims would be bound there (binder.go:281). s.mu is held.
func (s *Scheduler) fitVolumes(cl podClaims, n *corev1.Node) (*assumption, []string) {
	var reasons []string
	for _, c := range cl.bound {
		pv, err := store.See[corev1.PersistentVolume](s.c, "", c.Spec.VolumeName)
		if err != nil {
			reasons = append(reasons, reasonNoVolume)
			break
		}
		if volumehelpers.CheckNodeAffinity(pv, n.Labels) != nil {
			reasons = append(reasons, reasonVolumeNode)
			break
		}
	}
	a := &assumption{node: n.Name, static: map[string]*corev1.PersistentVolume{}, claims: map[string]*corev1.PersistentVolumeClaim{}}
	var match []*corev1.PersistentVolumeClaim
	for _, c := range cl.delayed {
		if selected, ok := c.Annotations[volumehelpers.AnnSelectedNode]; ok {
			if selected != n.Name {
				return nil, append(reasons, reasonBind)
			}
			a.provision = append(a.provision, c)
		} else {
			match = append(match, c)
		}
	}
	slices.SortStableFunc(match, func(x, y *corev1.PersistentVolumeClaim) int { // the smallest first
		return x.Spec.Resources.Requests.Storage().Cmp(*y.Spec.Resources.Requests.Storage())
	})
	chosen := s.assumedVolumes()
	for _, c := range match {
		pv, err := volumehelpers.FindMatchingVolume(c, cl.free[store.Key(c)], n, chosen, true, true)
		if err != nil {
			return nil, append(reasons, err.Error())
		}
		if pv == nil {
			a.provision = append(a.provision, c)
			continue
		}
		chosen[pv.Name], a.static[store.Key(c)], a.claims[store.Key(c)] = pv, pv, c
	}
	for _, c := range a.provision {
		if reason := s.provisionable(c, n); reason != "" {
			reasons = append(reasons, reason)
			break
		}
	}
	if len(reasons) > 0 {
		return nil, reasons
	}
	return a, nil
}

// assumedVolumes are the volumes that other pods' claims will take.
func (s *Scheduler) assumedVolumes() map[string]*corev1.PersistentVolume {
	out := map[string]*corev1.PersistentVolume{}
	for _, st := range s.pods {
		if st.assumed != nil {
			for _, pv := range st.assumed.static {
				out[pv.Name] = pv
			}
		}
	}
	return out
}

// provisionable says why a claim can't be provisioned for a node, "" if it can
// (binder.go:904-1010).
func (s *Scheduler) provisionable(c *corev1.PersistentVolumeClaim, n *corev1.Node) string {
	cls, err := store.Get[storagev1.StorageClass](s.c, "", volumehelpers.GetPersistentVolumeClaimClass(c))
	if err != nil || cls.Provisioner == "" || cls.Provisioner == volumehelpers.NotSupportedProvisioner || !allowed(cls.AllowedTopologies, n.Labels) {
		return reasonBind
	}
	d, err := store.Get[storagev1.CSIDriver](s.c, "", cls.Provisioner)
	if err != nil || d.Spec.StorageCapacity == nil || !*d.Spec.StorageCapacity {
		return ""
	}
	for _, k := range store.List[storagev1.CSIStorageCapacity](s.c, "") {
		limit := k.MaximumVolumeSize
		if limit == nil {
			limit = k.Capacity
		}
		if k.StorageClassName != cls.Name || limit == nil || limit.Cmp(*c.Spec.Resources.Requests.Storage()) < 0 || k.NodeTopology == nil {
			continue
		}
		if sel, err := metav1.LabelSelectorAsSelector(k.NodeTopology); err == nil && sel.Matches(labels.Set(n.Labels)) {
			return ""
		}
	}
	return reasonSpace
}

// allowed says whether a node's labels meet one of the terms; no terms allow
// all (pkg/apis/core/v1/helper MatchTopologySelectorTerms).
func allowed(terms []corev1.TopologySelectorTerm, have map[string]string) bool {
	if len(terms) == 0 {
		return true
	}
	return slices.ContainsFunc(terms, func(t corev1.TopologySelectorTerm) bool {
		return len(t.MatchLabelExpressions) > 0 && !slices.ContainsFunc(t.MatchLabelExpressions, func(e corev1.TopologySelectorLabelRequirement) bool {
			v, ok := have[e.Key]
			return !ok || !slices.Contains(e.Values, v)
		})
	})
}

// bind has the pod's claims bound for its node, waits for that, then binds the
// pod (binder.go:486, schedule_one.go).
func (s *Scheduler) bind(ctx context.Context, p *corev1.Pod, st *podState, a *assumption) (time.Duration, error) {
	fail := func(err error) (time.Duration, error) {
		return s.reject(ctx, p, st, corev1.PodReasonSchedulerError, err.Error())
	}
	if !a.written {
		if err := s.writeBindings(ctx, a); err != nil {
			return fail(fmt.Errorf("running PreBind plugin %q: %w", "VolumeBinding", err))
		}
		a.written, a.deadline = true, time.Now().Add(s.timers.Bind)
	}
	switch done, err := s.checkBindings(a); {
	case err == nil && !done && time.Now().Before(a.deadline):
		return time.Until(a.deadline), nil
	case err == nil && !done:
		err = context.DeadlineExceeded
		fallthrough
	case err != nil:
		return fail(fmt.Errorf("running PreBind plugin %q: binding volumes: %w", "VolumeBinding", err))
	}
	if _, err := store.Modify(ctx, s.c, p.Namespace, p.Name, func(q *corev1.Pod) error {
		if q.UID != p.UID || q.Spec.NodeName != "" && q.Spec.NodeName != a.node || q.DeletionTimestamp != nil {
			return fmt.Errorf("pod %s is assigned to node %q, is being deleted, or is another", store.Key(p), q.Spec.NodeName)
		}
		q.Spec.NodeName = a.node
		return nil
	}); err != nil {
		if apierrors.IsNotFound(err) {
			return 0, nil
		}
		return fail(fmt.Errorf("binding rejected: running Bind plugin %q: %w", "DefaultBinder", err))
	}
	s.mu.Lock()
	delete(s.pods, store.Key(p))
	s.mu.Unlock()
	s.c.Event(ctx, p, corev1.EventTypeNormal, "Scheduled", "Successfully assigned %s to %s", store.Key(p), a.node)
	return 0, s.condition(ctx, p, corev1.ConditionTrue, "", "")
}

// writeBindings reserves volumes for claims and names the node on claims that
// are to be provisioned. What the provisioner and the binder do next is theirs.
func (s *Scheduler) writeBindings(ctx context.Context, a *assumption) error {
	for _, k := range slices.Sorted(maps.Keys(a.static)) {
		pv, dirty, err := volumehelpers.GetBindVolumeToClaim(a.static[k], a.claims[k])
		if err != nil {
			return err
		}
		if dirty {
			if err := s.c.Update(ctx, pv); err != nil {
				return err
			}
		}
	}
	for _, c := range a.provision {
		c = c.DeepCopy()
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, volumehelpers.AnnSelectedNode, a.node)
		if err := s.c.Update(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// checkBindings says whether all is bound; an error means that the pod must be
// scheduled again (binder.go:592).
func (s *Scheduler) checkBindings(a *assumption) (bool, error) {
	if len(a.static)+len(a.provision) == 0 {
		return true, nil
	}
	n, err := store.See[corev1.Node](s.c, "", a.node)
	if err != nil {
		return false, fmt.Errorf("failed to get node %q: %w", a.node, err)
	}
	done := true
	for k, v := range a.static {
		pv, err := store.See[corev1.PersistentVolume](s.c, "", v.Name)
		if err != nil {
			return false, fmt.Errorf("failed to check binding: %w", err)
		}
		ns, name := store.SplitKey(k)
		c, err := store.See[corev1.PersistentVolumeClaim](s.c, ns, name)
		if err != nil {
			return false, fmt.Errorf("failed to check binding: %w", err)
		}
		if err := volumehelpers.CheckNodeAffinity(pv, n.Labels); err != nil {
			return false, fmt.Errorf("pv %q node affinity doesn't match node %q: %w", pv.Name, n.Name, err)
		}
		if pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID == "" {
			return false, fmt.Errorf("ClaimRef got reset for pv %q", pv.Name)
		}
		done = done && fullyBound(c)
	}
	for _, want := range a.provision {
		c, err := store.See[corev1.PersistentVolumeClaim](s.c, want.Namespace, want.Name)
		if err != nil {
			return false, fmt.Errorf("failed to check provisioning pvc: %w", err)
		}
		if c.Annotations == nil {
			return false, fmt.Errorf("selectedNode annotation reset for PVC %q", c.Name)
		}
		if c.Annotations[volumehelpers.AnnSelectedNode] != a.node {
			return false, fmt.Errorf("provisioning failed for PVC %q", c.Name)
		}
		if c.Spec.VolumeName != "" {
			pv, err := store.See[corev1.PersistentVolume](s.c, "", c.Spec.VolumeName)
			if err != nil {
				return false, nil // not there yet, or the claim gets unbound
			}
			if err := volumehelpers.CheckNodeAffinity(pv, n.Labels); err != nil {
				return false, fmt.Errorf("pv %q node affinity doesn't match node %q: %w", pv.Name, n.Name, err)
			}
		}
		done = done && fullyBound(c)
	}
	return done, nil
}

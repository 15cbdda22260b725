package binder

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	volumehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"github.com/csilab/csilab/sim/kube/class"
	"github.com/csilab/csilab/sim/kube/podstatus"
	"github.com/csilab/csilab/sim/kube/store"
)

// AnnPreResizeCapacity on a volume is the size that its claim's filesystem had
// before a resize that has not reached the node (pkg/volume/util/resize_util.go).
const AnnPreResizeCapacity = "volume.alpha.kubernetes.io/pre-resize-capacity"

// syncClaim is pv_controller.go:237.
func (b *Controller) syncClaim(ctx context.Context, key string) (time.Duration, error) {
	ns, name := store.SplitKey(key)
	claim, err := store.Get[corev1.PersistentVolumeClaim](b.c, ns, name)
	if err != nil {
		return 0, ignoreNotFound(err)
	}
	if metav1.HasAnnotation(claim.ObjectMeta, volumehelpers.AnnBindCompleted) {
		return 0, b.syncBoundClaim(ctx, claim)
	}
	if err := b.syncUnboundClaim(ctx, claim); err != nil {
		return 0, err
	}
	return b.timers.Sync, nil // a bound one is not looked at again: see syncBoundClaim
}

// syncUnboundClaim is pv_controller.go:332.
func (b *Controller) syncUnboundClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if claim.Spec.VolumeName != "" {
		return b.syncPreboundClaim(ctx, claim)
	}
	className := volumehelpers.GetPersistentVolumeClaimClass(claim)
	cls, classErr := store.Get[storagev1.StorageClass](b.c, "", className)
	delayed := className != "" && class.Delayed(cls)

	volume, err := b.bestMatch(claim, delayed)
	if err != nil {
		return err
	}
	if volume != nil {
		return b.bind(ctx, volume, claim)
	}
	if !volumehelpers.PersistentVolumeClaimHasClass(claim) {
		if d := class.Default(b.c); d != nil {
			claim.Spec.StorageClassName = &d.Name
			return b.c.Update(ctx, claim) // its event restarts the sync
		}
	}
	switch {
	case delayed && !volumehelpers.IsDelayBindingProvisioning(claim):
		reason, msg := "WaitForFirstConsumer", "waiting for first consumer to be created before binding"
		switch pods := b.unscheduledPods(claim); len(pods) {
		case 0:
		case 1:
			reason, msg = "WaitForPodScheduled", fmt.Sprintf("waiting for pod %s to be scheduled", pods[0])
		default:
			reason, msg = "WaitForPodScheduled", fmt.Sprintf("waiting for pods %s to be scheduled", strings.Join(pods, ","))
		}
		b.c.Event(ctx, claim, corev1.EventTypeNormal, reason, "%s", msg)
	case className != "":
		return b.requestProvisioning(ctx, claim, cls, classErr)
	default:
		b.c.Event(ctx, claim, corev1.EventTypeNormal, "FailedBinding", "no persistent volumes available for this claim and no storage class is set")
	}
	return b.setClaimPhase(ctx, claim, corev1.ClaimPending, nil)
}

// unscheduledPods are the names of the pods that wait for the claim (pv_controller.go:1480).
func (b *Controller) unscheduledPods(claim *corev1.PersistentVolumeClaim) []string {
	var names []string
	for _, p := range store.ListBy[corev1.Pod](b.c, store.PodsByClaim, store.Key(claim)) {
		if p.Spec.NodeName == "" && !podstatus.Terminated(p) {
			names = append(names, p.Name)
		}
	}
	return names
}

// requestProvisioning tells the external provisioner by an annotation that the
// claim waits for it (pv_controller.go:1547, 1792).
func (b *Controller) requestProvisioning(ctx context.Context, claim *corev1.PersistentVolumeClaim, cls *storagev1.StorageClass, classErr error) error {
	if classErr != nil {
		b.c.Event(ctx, claim, corev1.EventTypeWarning, "ProvisioningFailed", "%s", strings.Replace(classErr.Error(), "storageclasses.storage", "storageclass.storage", 1))
		return nil
	}
	if strings.HasPrefix(cls.Provisioner, "kubernetes.io/") {
		// No plugin of Kubernetes' own is modelled: pkg/volume/plugins.go
		// FindProvisionablePluginByName, FindPluginByName.
		b.c.Event(ctx, claim, corev1.EventTypeWarning, "ProvisioningFailed", "no volume plugin matched name: %s", cls.Provisioner)
		return nil
	}
	if claim.Annotations[volumehelpers.AnnStorageProvisioner] != cls.Provisioner {
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volumehelpers.AnnBetaStorageProvisioner, cls.Provisioner)
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volumehelpers.AnnStorageProvisioner, cls.Provisioner)
		if err := b.c.Update(ctx, claim); err != nil {
			if !apierrors.IsConflict(err) {
				b.c.Event(ctx, claim, corev1.EventTypeWarning, "ProvisioningFailed", "Error saving claim: %v", err)
			}
			return err
		}
	}
	b.c.Event(ctx, claim, corev1.EventTypeNormal, "ExternalProvisioning", "Waiting for a volume to be created either by the external provisioner '%s' or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered.", cls.Provisioner)
	return nil
}

// syncPreboundClaim handles a claim that names its volume (pv_controller.go:404).
func (b *Controller) syncPreboundClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	volume, err := store.Get[corev1.PersistentVolume](b.c, "", claim.Spec.VolumeName)
	if apierrors.IsNotFound(err) {
		return b.setClaimPhase(ctx, claim, corev1.ClaimPending, nil)
	}
	if err != nil {
		return err
	}
	switch {
	case volume.Spec.ClaimRef == nil:
		if err := satisfies(volume, claim); err != nil {
			b.c.Event(ctx, claim, corev1.EventTypeWarning, "VolumeMismatch", "Cannot bind to requested volume %q: %s", volume.Name, err)
			return b.setClaimPhase(ctx, claim, corev1.ClaimPending, nil)
		}
		return b.bind(ctx, volume, claim)
	case volumehelpers.IsVolumeBoundToClaim(volume, claim):
		return b.bind(ctx, volume, claim)
	default:
		b.c.Event(ctx, claim, corev1.EventTypeWarning, "FailedBinding", "volume %q already bound to a different claim.", volume.Name)
		if metav1.HasAnnotation(claim.ObjectMeta, volumehelpers.AnnBoundByController) {
			return fmt.Errorf("invalid binding of claim %q to volume %q: volume already claimed by \"%s/%s\"", store.Key(claim), volume.Name, volume.Spec.ClaimRef.Namespace, volume.Spec.ClaimRef.Name)
		}
		return b.setClaimPhase(ctx, claim, corev1.ClaimPending, nil)
	}
}

// satisfies is pv_controller.go:258.
func satisfies(v *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) error {
	want, have := c.Spec.Resources.Requests[corev1.ResourceStorage], v.Spec.Capacity[corev1.ResourceStorage]
	switch {
	case v.DeletionTimestamp != nil:
		return fmt.Errorf("the volume is marked for deletion %q", v.Name)
	case have.Value() < want.Value():
		return fmt.Errorf("requested PV is too small")
	case volumehelpers.GetPersistentVolumeClass(v) != volumehelpers.GetPersistentVolumeClaimClass(c):
		return fmt.Errorf("storageClassName does not match")
	case ptr.Deref(c.Spec.VolumeAttributesClassName, "") != ptr.Deref(v.Spec.VolumeAttributesClassName, ""):
		return fmt.Errorf("volumeAttributesClassName does not match")
	case volumehelpers.CheckVolumeModeMismatches(&c.Spec, &v.Spec):
		return fmt.Errorf("incompatible volumeMode")
	case !volumehelpers.CheckAccessModes(c, v):
		return fmt.Errorf("incompatible accessMode")
	}
	return nil
}

// syncBoundClaim is pv_controller.go:484: a claim whose volume is gone, or
// belongs to another claim, is Lost.
func (b *Controller) syncBoundClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if claim.Spec.VolumeName == "" {
		return b.lose(ctx, claim, "ClaimLost", "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
	}
	volume, err := store.Get[corev1.PersistentVolume](b.c, "", claim.Spec.VolumeName)
	switch {
	case apierrors.IsNotFound(err):
		return b.lose(ctx, claim, "ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
	case err != nil:
		return err
	case volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.UID == claim.UID:
		return b.bind(ctx, volume, claim)
	default:
		return b.lose(ctx, claim, "ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly")
	}
}

func (b *Controller) lose(ctx context.Context, claim *corev1.PersistentVolumeClaim, reason, msg string) error {
	if claim.Status.Phase == corev1.ClaimLost {
		return nil
	}
	if err := b.setClaimPhase(ctx, claim, corev1.ClaimLost, nil); err != nil {
		return err
	}
	b.c.Event(ctx, claim, corev1.EventTypeWarning, reason, "%s", msg)
	return nil
}

// setClaimPhase is pv_controller.go:772. The capacity is set when the claim
// becomes Bound only: later it may differ from the volume's on purpose, while
// a resize has not reached the node.
func (b *Controller) setClaimPhase(ctx context.Context, claim *corev1.PersistentVolumeClaim, phase corev1.PersistentVolumeClaimPhase, volume *corev1.PersistentVolume) error {
	next := claim.DeepCopy()
	s := &next.Status
	s.Phase = phase
	if volume == nil {
		s.AccessModes, s.Capacity, s.CurrentVolumeAttributesClassName = nil, nil, nil
	} else {
		s.AccessModes = volume.Spec.AccessModes
		if claim.Status.Phase != phase {
			size, ok := volume.Spec.Capacity[corev1.ResourceStorage]
			if !ok {
				return fmt.Errorf("PersistentVolume %q is without a storage capacity", volume.Name)
			}
			had, ok := claim.Status.Capacity[corev1.ResourceStorage]
			if pre, marked := volume.Annotations[AnnPreResizeCapacity]; marked {
				if q, err := resource.ParseQuantity(pre); err == nil {
					size = q
				}
				if s.Capacity == nil {
					s.Capacity = corev1.ResourceList{}
				}
				s.Capacity[corev1.ResourceStorage] = size
			} else if !ok || size.Cmp(had) != 0 {
				s.Capacity = volume.Spec.Capacity
			}
		}
		if claim.Status.Phase == corev1.ClaimPending && phase == corev1.ClaimBound {
			s.CurrentVolumeAttributesClassName = volume.Spec.VolumeAttributesClassName
		}
	}
	if equality.Semantic.DeepEqual(claim.Status, next.Status) {
		return nil
	}
	if err := b.c.UpdateStatus(ctx, next); err != nil {
		return err
	}
	*claim = *next
	return nil
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

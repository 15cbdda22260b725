package binder

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	volumehelpers "k8s.io/component-helpers/storage/volume"

	"github.com/csilab/csilab/sim/kube/store"
)

// syncVolume is pv_controller.go:563.
func (b *Controller) syncVolume(ctx context.Context, name string) error {
	v, err := store.Get[corev1.PersistentVolume](b.c, "", name)
	if err != nil {
		return ignoreNotFound(err)
	}
	ref := v.Spec.ClaimRef
	if ref == nil || ref.UID == "" { // unused, or reserved for a claim that has not bound it yet
		return b.setVolumePhase(ctx, v, corev1.VolumeAvailable, "")
	}
	claim, err := store.Get[corev1.PersistentVolumeClaim](b.c, ref.Namespace, ref.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err != nil || claim.UID != ref.UID {
		return b.release(ctx, v)
	}
	switch claim.Spec.VolumeName {
	case "":
		if volumehelpers.CheckVolumeModeMismatches(&claim.Spec, &v.Spec) {
			b.c.Event(ctx, v, corev1.EventTypeWarning, "VolumeMismatch", "Cannot bind PersistentVolume to requested PersistentVolumeClaim %q due to incompatible volumeMode.", claim.Name)
			b.c.Event(ctx, claim, corev1.EventTypeWarning, "VolumeMismatch", "Cannot bind PersistentVolume %q to requested PersistentVolumeClaim due to incompatible volumeMode.", v.Name)
		}
		return nil // the claim's sync, which the same event started, completes the binding
	case v.Name:
		return b.setVolumePhase(ctx, v, corev1.VolumeBound, "")
	}
	// The claim is bound to another volume.
	if metav1.HasAnnotation(v.ObjectMeta, volumehelpers.AnnDynamicallyProvisioned) && v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		return b.release(ctx, v)
	}
	return b.unbind(ctx, v)
}

// release is what happens to a volume whose claim is gone. A CSI volume with
// policy Delete stays Released until the external provisioner has deleted it
// (findDeletablePlugin, pv_controller.go:1915).
func (b *Controller) release(ctx context.Context, v *corev1.PersistentVolume) error {
	if v.Status.Phase != corev1.VolumeReleased && v.Status.Phase != corev1.VolumeFailed {
		if err := b.setVolumePhase(ctx, v, corev1.VolumeReleased, ""); err != nil {
			return err
		}
	}
	switch v.Spec.PersistentVolumeReclaimPolicy {
	case corev1.PersistentVolumeReclaimRetain:
		return nil
	case corev1.PersistentVolumeReclaimDelete:
		if v.Spec.CSI != nil {
			return nil
		}
		return b.fail(ctx, v, "VolumeFailedDelete", "error getting deleter volume plugin for volume \""+v.Name+"\": no volume plugin matched")
	case corev1.PersistentVolumeReclaimRecycle:
		return b.fail(ctx, v, "VolumeFailedRecycle", "No recycler plugin found for the volume!")
	}
	return b.fail(ctx, v, "VolumeUnknownReclaimPolicy", "Volume has unrecognized PersistentVolumeReclaimPolicy")
}

func (b *Controller) fail(ctx context.Context, v *corev1.PersistentVolume, reason, msg string) error {
	if v.Status.Phase == corev1.VolumeFailed {
		return nil
	}
	if err := b.setVolumePhase(ctx, v, corev1.VolumeFailed, msg); err != nil {
		return err
	}
	b.c.Event(ctx, v, corev1.EventTypeWarning, reason, "%s", msg)
	return nil
}

func (b *Controller) setVolumePhase(ctx context.Context, v *corev1.PersistentVolume, phase corev1.PersistentVolumePhase, msg string) error {
	if v.Status.Phase == phase {
		return nil
	}
	v.Status.Phase, v.Status.Message = phase, msg
	return b.c.UpdateStatus(ctx, v)
}

// bind writes both sides, each with its phase, the volume first
// (pv_controller.go:1105). A write that fails leaves the rest to the next sync.
func (b *Controller) bind(ctx context.Context, v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) error {
	next, dirty, err := volumehelpers.GetBindVolumeToClaim(v, claim)
	if err != nil {
		return err
	}
	if dirty {
		if err := b.c.Update(ctx, next); err != nil {
			return err
		}
		v = next
	}
	if err := b.setVolumePhase(ctx, v, corev1.VolumeBound, ""); err != nil {
		return err
	}
	dirty = false
	if claim.Spec.VolumeName != v.Name {
		claim.Spec.VolumeName, dirty = v.Name, true
		if !metav1.HasAnnotation(claim.ObjectMeta, volumehelpers.AnnBoundByController) {
			metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volumehelpers.AnnBoundByController, "yes")
		}
	}
	if !metav1.HasAnnotation(claim.ObjectMeta, volumehelpers.AnnBindCompleted) {
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volumehelpers.AnnBindCompleted, "yes")
		dirty = true
	}
	if dirty {
		if err := b.c.Update(ctx, claim); err != nil {
			return err
		}
	}
	return b.setClaimPhase(ctx, claim, corev1.ClaimBound, v)
}

// unbind takes a binding back (pv_controller.go:1153): one by the controller
// goes away whole, one by the user loses the uid only.
func (b *Controller) unbind(ctx context.Context, v *corev1.PersistentVolume) error {
	if metav1.HasAnnotation(v.ObjectMeta, volumehelpers.AnnBoundByController) {
		v.Spec.ClaimRef = nil
		delete(v.Annotations, volumehelpers.AnnBoundByController)
	} else {
		v.Spec.ClaimRef.UID = ""
	}
	if err := b.c.Update(ctx, v); err != nil {
		return err
	}
	return b.setVolumePhase(ctx, v, corev1.VolumeAvailable, "")
}

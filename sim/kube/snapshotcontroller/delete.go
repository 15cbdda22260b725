package snapshotcontroller

import (
	"context"
	"errors"
	"fmt"
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/kube/snapshotter"
	"github.com/csilab/csilab/sim/kube/store"
)

// deleteSnapshot lets a snapshot go. Its content goes first where the policy is
// Delete; where it is Retain the content stays, marked. A snapshot that a claim
// is being restored from waits for that (C snapshot_controller.go:223, 278).
func (h *handler) deleteSnapshot(ctx context.Context, s *snapshotv1.VolumeSnapshot) error {
	if !candidate(s) {
		return nil
	}
	name := boundName(s)
	if name == "" && s.Spec.Source.PersistentVolumeClaimName != nil {
		name = contentName(s) // made, but the status was not updated yet
	}
	c, err := store.Get[snapshotv1.VolumeSnapshotContent](h.client, "", name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err != nil || !refersTo(c, s) {
		c = nil
	}
	if c != nil && h.restoring(s) {
		h.client.Event(ctx, s, corev1.EventTypeWarning, "SnapshotDeletePending", "Snapshot is being used to restore a PVC")
		return fmt.Errorf("snapshot %s is in use (being used to restore a PVC), will retry deletion", store.Key(s))
	}
	withContent := c != nil && c.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete
	if c != nil {
		if err := h.markDeleted(ctx, c.Name); err != nil {
			return err
		}
	}
	if withContent {
		if err := h.client.Delete(ctx, &snapshotv1.VolumeSnapshotContent{ObjectMeta: metav1.ObjectMeta{Name: c.Name}}); err != nil && !apierrors.IsNotFound(err) {
			h.client.Event(ctx, s, corev1.EventTypeWarning, "SnapshotContentObjectDeleteError", "Failed to delete snapshot content API object")
			return fmt.Errorf("failed to delete VolumeSnapshotContent %s from API server: %w", c.Name, err)
		}
	}
	if err := h.freeClaim(ctx, s, true); err != nil {
		h.client.Event(ctx, s, corev1.EventTypeWarning, "ErrorPVCFinalizer", "Error check and remove PVC Finalizer for VolumeSnapshot")
		return updateFailed(s.Name, err)
	}
	_, err = store.Modify(ctx, h.client, s.Namespace, s.Name, func(o *snapshotv1.VolumeSnapshot) error {
		o.Finalizers = slices.DeleteFunc(o.Finalizers, func(f string) bool {
			// While the content is being deleted the snapshot stays with it.
			return f == AsSourceFinalizer || f == BoundFinalizer && !withContent
		})
		return nil
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// candidate says that a snapshot is being deleted and this controller holds it.
func candidate(s *snapshotv1.VolumeSnapshot) bool {
	return s.DeletionTimestamp != nil && (slices.Contains(s.Finalizers, AsSourceFinalizer) || slices.Contains(s.Finalizers, BoundFinalizer))
}

// restoring says whether a claim waits for its volume to be made from s.
func (h *handler) restoring(s *snapshotv1.VolumeSnapshot) bool {
	for _, p := range store.List[corev1.PersistentVolumeClaim](h.client, s.Namespace) {
		d := p.Spec.DataSource
		if d != nil && d.Name == s.Name && d.Kind == "VolumeSnapshot" && d.APIGroup != nil && *d.APIGroup == snapshotv1.GroupName && p.Status.Phase == corev1.ClaimPending {
			return true
		}
	}
	return false
}

// markDeleted lets the sidecar delete a content.
func (h *handler) markDeleted(ctx context.Context, name string) error {
	_, err := store.Modify(ctx, h.client, "", name, func(o *snapshotv1.VolumeSnapshotContent) error {
		metav1.SetMetaDataAnnotation(&o.ObjectMeta, snapshotter.BeingDeleted, "yes")
		return nil
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// syncContent protects a content, and marks the content of a snapshot that is
// being deleted. A content whose snapshot is not there stays as it is: it may
// have been copied from another cluster (C snapshot_controller.go:89).
func (h *handler) syncContent(ctx context.Context, name string) error {
	c, err := store.Get[snapshotv1.VolumeSnapshotContent](h.client, "", name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if (c.Spec.Source.VolumeHandle == nil) == (c.Spec.Source.SnapshotHandle == nil) {
		//lint:ignore ST1005 the real controller's words, which end up in an event
		err := errors.New("Exactly one of VolumeHandle and SnapshotHandle should be specified")
		h.client.Event(ctx, c, corev1.EventTypeWarning, "ContentValidationError", "%v", err)
		return err
	}
	ref := c.Spec.VolumeSnapshotRef
	if ref.UID == "" {
		return nil // reserved for a snapshot that will bind it
	}
	if c.DeletionTimestamp == nil && !slices.Contains(c.Finalizers, snapshotter.ContentFinalizer) {
		// A patch, as in life: a conflict, retried a second later, would leave
		// the content without protection for that long.
		_, err := store.Modify(ctx, h.client, "", name, func(o *snapshotv1.VolumeSnapshotContent) error {
			if o.DeletionTimestamp == nil && !slices.Contains(o.Finalizers, snapshotter.ContentFinalizer) {
				o.Finalizers = append(o.Finalizers, snapshotter.ContentFinalizer)
			}
			return nil
		})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	s, err := store.Get[snapshotv1.VolumeSnapshot](h.client, ref.Namespace, ref.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil && s.UID == ref.UID && candidate(s) {
		return h.markDeleted(ctx, name)
	}
	return err
}

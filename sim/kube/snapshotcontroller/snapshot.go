package snapshotcontroller

import (
	"context"
	"errors"
	"fmt"
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/csilab/csilab/sim/kube/store"
)

// syncSnapshot is C snapshot_controller_base.go:377 and snapshot_controller.go:176.
func (h *handler) syncSnapshot(ctx context.Context, key string) error {
	ns, name := store.SplitKey(key)
	s, err := store.Get[snapshotv1.VolumeSnapshot](h.client, ns, name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	// A snapshot that is being deleted goes even if its class has gone.
	if err := h.checkClass(ctx, s); err != nil && (s.DeletionTimestamp == nil || !apierrors.IsNotFound(err)) {
		return err
	}
	if err := h.freeClaim(ctx, s, false); err != nil {
		h.client.Event(ctx, s, corev1.EventTypeWarning, "ErrorPVCFinalizer", "Error check and remove PVC Finalizer for VolumeSnapshot")
	}
	if s.DeletionTimestamp != nil {
		return h.deleteSnapshot(ctx, s)
	}
	src := s.Spec.Source
	if (src.PersistentVolumeClaimName == nil) == (src.VolumeSnapshotContentName == nil) {
		//lint:ignore ST1005 the real controller's words, which end up in an event
		err := errors.New("Exactly one of PersistentVolumeClaimName and VolumeSnapshotContentName should be specified")
		h.setError(ctx, s, true, "SnapshotValidationError", err.Error())
		return err
	}
	if err := h.addFinalizers(ctx, s); err != nil {
		h.client.Event(ctx, s, corev1.EventTypeWarning, "SnapshotFinalizerError", "Failed to check and update snapshot: %v", err)
		return err
	}
	if !ready(s) || boundName(s) == "" {
		return h.bind(ctx, s)
	}
	return h.verify(ctx, s)
}

func ready(s *snapshotv1.VolumeSnapshot) bool {
	return s.Status != nil && s.Status.ReadyToUse != nil && *s.Status.ReadyToUse
}

// contentName is the name of a snapshot's content: given, or made from the uid.
func contentName(s *snapshotv1.VolumeSnapshot) string {
	if n := s.Spec.Source.VolumeSnapshotContentName; n != nil {
		return *n
	}
	return "snapcontent-" + string(s.UID)
}

// content is the snapshot's content, nil where there is none. One that is of
// the other sort or belongs to another snapshot is an error (C
// snapshot_controller.go getPreprovisionedContentFromStore, getDynamicallyProvisionedContentFromStore).
func (h *handler) content(ctx context.Context, s *snapshotv1.VolumeSnapshot) (*snapshotv1.VolumeSnapshotContent, error) {
	name := contentName(s)
	c, err := store.Get[snapshotv1.VolumeSnapshotContent](h.client, "", name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	pre := s.Spec.Source.VolumeSnapshotContentName != nil
	if pre && c.Spec.Source.SnapshotHandle == nil {
		h.setError(ctx, s, true, "SnapshotContentMismatch", "VolumeSnapshotContent is dynamically provisioned while expecting a pre-provisioned one")
		return nil, fmt.Errorf("snapshot %s expects a pre-provisioned VolumeSnapshotContent %s but gets a dynamically provisioned one", store.Key(s), name)
	}
	if !pre && c.Spec.Source.VolumeHandle == nil {
		h.setError(ctx, s, true, "SnapshotContentMismatch", "VolumeSnapshotContent "+name+" is pre-provisioned while expecting a dynamically provisioned one")
		return nil, fmt.Errorf("snapshot %s expects a dynamically provisioned VolumeSnapshotContent %s but gets a pre-provisioned one", store.Key(s), name)
	}
	ref := c.Spec.VolumeSnapshotRef
	if ref.Name != s.Name || ref.Namespace != s.Namespace || ref.UID != s.UID && !(pre && ref.UID == "") {
		err := fmt.Errorf("VolumeSnapshotContent [%s] is bound to a different snapshot", name)
		h.setError(ctx, s, true, "SnapshotContentMisbound", err.Error())
		return nil, err
	}
	return c, nil
}

// addFinalizers protects the snapshot as a possible source of a claim, and
// once it is bound to a content that is deleted with it.
func (h *handler) addFinalizers(ctx context.Context, s *snapshotv1.VolumeSnapshot) error {
	c, err := h.content(ctx, s)
	if err != nil {
		return err
	}
	var add []string
	if !slices.Contains(s.Finalizers, AsSourceFinalizer) {
		add = append(add, AsSourceFinalizer)
	}
	if c != nil && boundName(s) != "" && c.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete && !slices.Contains(s.Finalizers, BoundFinalizer) {
		add = append(add, BoundFinalizer)
	}
	if len(add) == 0 {
		return nil
	}
	s.Finalizers = append(s.Finalizers, add...)
	return h.client.Update(ctx, s)
}

// bind brings snapshot and content together and copies the content's status
// (C snapshot_controller.go syncUnreadySnapshot).
func (h *handler) bind(ctx context.Context, s *snapshotv1.VolumeSnapshot) error {
	c, err := h.content(ctx, s)
	if err != nil {
		return err
	}
	switch {
	case s.Spec.Source.VolumeSnapshotContentName != nil && c == nil:
		h.setError(ctx, s, true, "SnapshotContentMissing", "VolumeSnapshotContent is missing")
		return fmt.Errorf("snapshot %s requests an non-existing content %s", store.Key(s), contentName(s))
	case s.Spec.Source.VolumeSnapshotContentName != nil:
		if c, err = h.bindContent(ctx, s, c); err != nil {
			h.setError(ctx, s, true, "SnapshotBindFailed", fmt.Sprintf("Snapshot failed to bind VolumeSnapshotContent, %v", err))
			return fmt.Errorf("snapshot %s is bound, but VolumeSnapshotContent %s is not bound to the VolumeSnapshot correctly, %w", store.Key(s), contentName(s), err)
		}
	case c == nil:
		if c, err = h.createContent(ctx, s); err != nil {
			h.setError(ctx, s, true, "SnapshotContentCreationFailed", fmt.Sprintf("Failed to create snapshot content with error %v", err))
			return err
		}
	case c.Spec.Source.SnapshotHandle != nil:
		h.setError(ctx, s, true, "SnapshotHandleSet", fmt.Sprintf("Snapshot handle should not be set in content %s for dynamic provisioning", store.Key(s)))
		return fmt.Errorf("snapshotHandle should not be set in the content for dynamic provisioning for snapshot %s", store.Key(s))
	}
	if err := h.copyStatus(ctx, s, c); err != nil {
		h.setError(ctx, s, false, "SnapshotStatusUpdateFailed", fmt.Sprintf("Snapshot status update failed, %v", err))
		return err
	}
	return nil
}

// bindContent puts the snapshot's uid and class into a pre-provisioned content.
func (h *handler) bindContent(ctx context.Context, s *snapshotv1.VolumeSnapshot, c *snapshotv1.VolumeSnapshotContent) (*snapshotv1.VolumeSnapshotContent, error) {
	if c.Spec.VolumeSnapshotRef.UID != "" && c.Spec.VolumeSnapshotClassName != nil {
		return c, nil
	}
	return store.Modify(ctx, h.client, "", c.Name, func(o *snapshotv1.VolumeSnapshotContent) error {
		o.Spec.VolumeSnapshotRef.UID = s.UID
		if s.Spec.VolumeSnapshotClassName != nil {
			n := *s.Spec.VolumeSnapshotClassName
			o.Spec.VolumeSnapshotClassName = &n
		}
		return nil
	})
}

// verify looks whether a ready snapshot is still bound (C syncReadySnapshot).
func (h *handler) verify(ctx context.Context, s *snapshotv1.VolumeSnapshot) error {
	c, err := store.Get[snapshotv1.VolumeSnapshotContent](h.client, "", boundName(s))
	if apierrors.IsNotFound(err) {
		h.setError(ctx, s, true, "SnapshotContentMissing", "VolumeSnapshotContent is missing")
		return nil
	}
	if err == nil && !refersTo(c, s) {
		h.setError(ctx, s, true, "SnapshotMisbound", "VolumeSnapshotContent is not bound to the VolumeSnapshot correctly")
	}
	return err
}

func refersTo(c *snapshotv1.VolumeSnapshotContent, s *snapshotv1.VolumeSnapshot) bool {
	r := c.Spec.VolumeSnapshotRef
	return r.Name == s.Name && r.Namespace == s.Namespace && r.UID == s.UID
}

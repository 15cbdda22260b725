package snapshotter

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/kube/store"
)

// setStatus writes what the driver said of a snapshot; what is known already
// stays (S snapshot_controller.go updateSnapshotContentStatus).
func (h *handler) setStatus(ctx context.Context, c *snapshotv1.VolumeSnapshotContent, id string, snap *csi.Snapshot) error {
	at := time.Now()
	if snap.GetCreationTime() != nil {
		at = snap.GetCreationTime().AsTime()
	}
	n, err := store.ModifyStatus(ctx, h.Client, "", c.Name, func(o *snapshotv1.VolumeSnapshotContent) error {
		if o.Status == nil {
			o.Status = &snapshotv1.VolumeSnapshotContentStatus{}
		}
		st := o.Status
		if st.SnapshotHandle == nil {
			st.SnapshotHandle = &id
		}
		if st.ReadyToUse == nil || *st.ReadyToUse != snap.GetReadyToUse() {
			r := snap.GetReadyToUse()
			st.ReadyToUse = &r
			if r {
				st.Error = nil
			}
		}
		if st.CreationTime == nil {
			t := at.UnixNano()
			st.CreationTime = &t
		}
		if st.RestoreSize == nil && snap.GetSizeBytes() > 0 {
			n := snap.GetSizeBytes()
			st.RestoreSize = &n
		}
		return nil
	})
	if err == nil {
		*c = *n
	}
	return err
}

// setError writes an error into the status, with an event, where it is not
// there already.
func (h *handler) setError(ctx context.Context, c *snapshotv1.VolumeSnapshotContent, reason, msg string) {
	if c.Status != nil && c.Status.Error != nil && c.Status.Error.Message != nil && *c.Status.Error.Message == msg {
		return
	}
	_, err := store.ModifyStatus(ctx, h.Client, "", c.Name, func(o *snapshotv1.VolumeSnapshotContent) error {
		if o.Status == nil {
			o.Status = &snapshotv1.VolumeSnapshotContentStatus{}
		}
		no, t := false, metav1.Now()
		o.Status.ReadyToUse = &no
		o.Status.Error = &snapshotv1.VolumeSnapshotError{Time: &t, Message: &msg}
		return nil
	})
	h.Client.Event(ctx, c, corev1.EventTypeWarning, reason, "%s", msg)
	if err != nil {
		h.Log.Debug("updating VolumeSnapshotContent error status failed", "content", c.Name, "err", err)
	}
}

// delete deletes the snapshot where the policy says so, and lets the content
// go (S snapshot_controller.go:58, 409).
func (h *handler) delete(ctx context.Context, c *snapshotv1.VolumeSnapshotContent) error {
	if c.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete && c.Status != nil && c.Status.SnapshotHandle != nil {
		secrets, err := h.secrets(c)
		if err != nil {
			h.Client.Event(ctx, c, corev1.EventTypeWarning, "SnapshotDeleteError", "Failed to get snapshot credentials")
			return fmt.Errorf("failed to get input parameters to delete snapshot for content %s: %w", c.Name, err)
		}
		if _, err := h.csi.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: *c.Status.SnapshotHandle, Secrets: secrets}); err != nil {
			h.Client.Event(ctx, c, corev1.EventTypeWarning, "SnapshotDeleteError", "Failed to delete snapshot")
			return fmt.Errorf("failed to delete snapshot %q, err: %w", c.Name, err)
		}
		// Without the handle a retry does not delete again.
		if _, err := store.ModifyStatus(ctx, h.Client, "", c.Name, func(o *snapshotv1.VolumeSnapshotContent) error {
			if o.Status != nil {
				o.Status.SnapshotHandle, o.Status.ReadyToUse, o.Status.CreationTime, o.Status.RestoreSize = nil, nil, nil, nil
			}
			return nil
		}); err != nil {
			h.Client.Event(ctx, c, corev1.EventTypeWarning, "SnapshotDeleteError", "Failed to clear content status")
			return err
		}
	}
	_, err := store.Modify(ctx, h.Client, "", c.Name, func(o *snapshotv1.VolumeSnapshotContent) error {
		o.Finalizers = slices.DeleteFunc(o.Finalizers, func(f string) bool { return f == ContentFinalizer })
		return nil
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

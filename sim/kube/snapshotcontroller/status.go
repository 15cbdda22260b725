package snapshotcontroller

import (
	"context"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/kube/store"
)

// copyStatus copies a content's status into its snapshot's; what is known
// already stays (C snapshot_controller.go updateSnapshotStatus).
func (h *handler) copyStatus(ctx context.Context, s *snapshotv1.VolumeSnapshot, c *snapshotv1.VolumeSnapshotContent) error {
	var created, becameReady bool
	from := c.Status
	if from == nil {
		from = &snapshotv1.VolumeSnapshotContentStatus{}
	}
	isReady := from.ReadyToUse != nil && *from.ReadyToUse
	_, err := store.ModifyStatus(ctx, h.client, s.Namespace, s.Name, func(o *snapshotv1.VolumeSnapshot) error {
		if o.Status == nil {
			o.Status = &snapshotv1.VolumeSnapshotStatus{}
		}
		st := o.Status
		if st.BoundVolumeSnapshotContentName == nil {
			st.BoundVolumeSnapshotContentName = &c.Name
		}
		created = st.CreationTime == nil && from.CreationTime != nil
		if created {
			st.CreationTime = &metav1.Time{Time: time.Unix(0, *from.CreationTime)}
		}
		becameReady = isReady && !ready(o)
		if st.ReadyToUse == nil || *st.ReadyToUse != isReady {
			st.ReadyToUse = &isReady
		}
		if from.RestoreSize != nil && (st.RestoreSize == nil || st.RestoreSize.IsZero() && *from.RestoreSize > 0) {
			st.RestoreSize = resource.NewQuantity(*from.RestoreSize, resource.BinarySI)
		}
		st.Error = from.Error.DeepCopy()
		return nil
	})
	if err != nil {
		return updateFailed(store.Key(s), err)
	}
	if created {
		h.client.Event(ctx, s, corev1.EventTypeNormal, "SnapshotCreated", "Snapshot %s was successfully created by the CSI driver.", store.Key(s))
	}
	if becameReady {
		h.client.Event(ctx, s, corev1.EventTypeNormal, "SnapshotReady", "Snapshot %s is ready to use.", store.Key(s))
	}
	return nil
}

// setError writes an error into a snapshot's status, with an event, where it
// is not there already.
func (h *handler) setError(ctx context.Context, s *snapshotv1.VolumeSnapshot, notReady bool, reason, msg string) {
	if s.Status != nil && errorText(s.Status.Error) == msg {
		return
	}
	_, err := store.ModifyStatus(ctx, h.client, s.Namespace, s.Name, func(o *snapshotv1.VolumeSnapshot) error {
		if o.Status == nil {
			o.Status = &snapshotv1.VolumeSnapshotStatus{}
		}
		t := metav1.Now()
		o.Status.Error = &snapshotv1.VolumeSnapshotError{Time: &t, Message: &msg}
		if notReady {
			no := false
			o.Status.ReadyToUse = &no
		}
		return nil
	})
	h.client.Event(ctx, s, corev1.EventTypeWarning, reason, "%s", msg)
	if err != nil {
		h.log.Debug("updating VolumeSnapshot error status failed", "snapshot", store.Key(s), "err", err)
	}
}

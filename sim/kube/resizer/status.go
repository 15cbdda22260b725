package resizer

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/kube/store"
)

// The functions of this file write a claim's status as
// pkg/controller/resize_status.go does. Those on the way forward fail where
// the claim has changed since it was read; those that record a failure don't.

func now(t corev1.PersistentVolumeClaimConditionType, msg string) corev1.PersistentVolumeClaimCondition {
	return corev1.PersistentVolumeClaimCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(), Message: msg}
}

func setStatus(pvc *corev1.PersistentVolumeClaim, s corev1.ClaimResourceStatus) {
	if pvc.Status.AllocatedResourceStatuses == nil {
		pvc.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{}
	}
	pvc.Status.AllocatedResourceStatuses[corev1.ResourceStorage] = s
}

// markInProgress says that the controller expands to size; fresh says that it
// has not begun before.
func (h *handler) markInProgress(ctx context.Context, pvc *corev1.PersistentVolumeClaim, size resource.Quantity, fresh bool) error {
	if err := h.annotate(ctx, pvc, false); err != nil {
		return err
	}
	for _, c := range pvc.Status.Conditions {
		if !fresh && c.Type == corev1.PersistentVolumeClaimResizing && c.Status == corev1.ConditionTrue {
			// The real one writes a new transition time here, which nobody reads.
			return nil
		}
	}
	pvc.Status.Conditions = withCondition(pvc.Status.Conditions, now(corev1.PersistentVolumeClaimResizing, ""), !fresh)
	if fresh {
		setStatus(pvc, corev1.PersistentVolumeClaimControllerResizeInProgress)
	}
	if pvc.Status.AllocatedResources == nil {
		pvc.Status.AllocatedResources = corev1.ResourceList{}
	}
	pvc.Status.AllocatedResources[corev1.ResourceStorage] = size
	return h.Client.UpdateStatus(ctx, pvc)
}

// markNodePending leaves the rest to the kubelet.
func (h *handler) markNodePending(ctx context.Context, pvc *corev1.PersistentVolumeClaim) error {
	if err := h.annotate(ctx, pvc, false); err != nil {
		return err
	}
	pvc.Status.Conditions = withCondition(pvc.Status.Conditions, now(corev1.PersistentVolumeClaimFileSystemResizePending,
		"Waiting for user to (re-)start a pod to finish file system resize of volume on node."), true)
	setStatus(pvc, corev1.PersistentVolumeClaimNodeResizePending)
	if err := h.Client.UpdateStatus(ctx, pvc); err != nil {
		return fmt.Errorf("mark PVC %q as node expansion required failed: %w", store.Key(pvc), err)
	}
	h.Client.Event(ctx, pvc, corev1.EventTypeNormal, "FileSystemResizeRequired", "Require file system resize of volume on node")
	return nil
}

// markFinished says that all is done; the kubelet has nothing to do.
func (h *handler) markFinished(ctx context.Context, pvc *corev1.PersistentVolumeClaim, size resource.Quantity) error {
	if err := h.annotate(ctx, pvc, true); err != nil {
		return err
	}
	if pvc.Status.Capacity == nil {
		pvc.Status.Capacity = corev1.ResourceList{}
	}
	pvc.Status.Capacity[corev1.ResourceStorage] = size
	pvc.Status.Conditions = withCondition(pvc.Status.Conditions, corev1.PersistentVolumeClaimCondition{}, false)
	delete(pvc.Status.AllocatedResourceStatuses, corev1.ResourceStorage)
	if len(pvc.Status.AllocatedResourceStatuses) == 0 {
		pvc.Status.AllocatedResourceStatuses = nil
	}
	if err := h.Client.UpdateStatus(ctx, pvc); err != nil {
		return fmt.Errorf("mark PVC %q as resize finished failed: %w", store.Key(pvc), err)
	}
	h.Client.Event(ctx, pvc, corev1.EventTypeNormal, "VolumeResizeSuccessful", "Resize volume succeeded")
	return nil
}

// markFailed records a final error.
func (h *handler) markFailed(ctx context.Context, pvc *corev1.PersistentVolumeClaim, why error, infeasible bool) error {
	_, err := store.ModifyStatus(ctx, h.Client, pvc.Namespace, pvc.Name, func(p *corev1.PersistentVolumeClaim) error {
		p.Status.Conditions = withCondition(p.Status.Conditions,
			now(corev1.PersistentVolumeClaimControllerResizeError, fmt.Sprintf("failed to expand pvc with %v", why)), true)
		if infeasible {
			setStatus(p, corev1.PersistentVolumeClaimControllerResizeInfeasible)
		}
		return nil
	})
	return err
}

// annotate sets or takes the annotation for the kubelet, and updates pvc.
func (h *handler) annotate(ctx context.Context, pvc *corev1.PersistentVolumeClaim, set bool) error {
	if metav1.HasAnnotation(pvc.ObjectMeta, NodeExpansionNotRequired) == set {
		return nil
	}
	if set {
		metav1.SetMetaDataAnnotation(&pvc.ObjectMeta, NodeExpansionNotRequired, "yes")
	} else {
		delete(pvc.Annotations, NodeExpansionNotRequired)
	}
	return h.Client.Update(ctx, pvc)
}

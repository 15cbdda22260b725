package resizer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/kube/sidecar"
	"github.com/csilab/csilab/sim/kube/store"
)

// syncClaim expands the volume of one claim, if it wants more than it has.
func (h *handler) syncClaim(ctx context.Context, key string) (time.Duration, error) {
	ns, name := store.SplitKey(key)
	pvc, err := store.Get[corev1.PersistentVolumeClaim](h.Client, ns, name)
	if apierrors.IsNotFound(err) {
		h.forget(key)
		return 0, nil
	}
	if err != nil || pvc.Spec.VolumeName == "" {
		return 0, err
	}
	pv, err := store.Get[corev1.PersistentVolume](h.Client, "", pvc.Spec.VolumeName)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil || pv.Spec.CSI == nil || pv.Spec.CSI.Driver != h.Driver {
		return 0, err
	}
	have, has, want := pvc.Status.Capacity[corev1.ResourceStorage], pv.Spec.Capacity[corev1.ResourceStorage], pvc.Spec.Resources.Requests[corev1.ResourceStorage]
	if have.Cmp(has) >= 0 && metav1.HasAnnotation(pv.ObjectMeta, PreResizeCapacity) {
		if pv, err = store.Modify(ctx, h.Client, "", pv.Name, func(p *corev1.PersistentVolume) error {
			delete(p.Annotations, PreResizeCapacity)
			return nil
		}); err != nil {
			return 0, fmt.Errorf("failed removing annotation %s from pv %q: %w", PreResizeCapacity, pvc.Spec.VolumeName, err)
		}
	}
	if pvc.Status.Phase != corev1.ClaimBound || want.Cmp(have) <= 0 {
		return 0, nil
	}
	if ref := pv.Spec.ClaimRef; ref == nil || ref.Namespace != pvc.Namespace || ref.UID != pvc.UID {
		return 0, nil
	}
	return h.expand(ctx, pvc, pv)
}

// expand is pkg/controller/expand_and_recover.go expandAndRecover.
func (h *handler) expand(ctx context.Context, pvc *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) (time.Duration, error) {
	key := store.Key(pvc)
	wait := h.slowFor(key)
	if pvc.Status.AllocatedResourceStatuses[corev1.ResourceStorage] == corev1.PersistentVolumeClaimControllerResizeInfeasible {
		h.markSlow(key)
	}
	size, ok := target(pvc, pv, h.failedForGood(key))
	if !ok {
		return 0, nil
	}
	allocated, isAllocated := pvc.Status.AllocatedResources[corev1.ResourceStorage]
	same := isAllocated && allocated.Cmp(size) == 0
	if same && wait > 0 {
		// Infeasible before and nothing new: not before the wait is over.
		return wait, nil
	}
	if err := h.markInProgress(ctx, pvc, size, !same); err != nil {
		return 0, fmt.Errorf("marking pvc %q as resizing failed: %w", key, err)
	}
	if h.heldBack(pvc) {
		//lint:ignore ST1005 the real controller's words, which end up in an event
		err := fmt.Errorf("Unable to expand %s because CSI driver %s only supports offline expansion and volume is currently in-use", key, h.Driver)
		h.Client.Event(ctx, pvc, corev1.EventTypeWarning, "VolumeResizeFailed", "%v", err)
		return 0, err
	}
	h.Client.Event(ctx, pvc, corev1.EventTypeNormal, "Resizing", "External resizer is resizing volume %s", pv.Name)
	if err := h.call(ctx, pvc, pv, size); err != nil {
		h.Client.Event(ctx, pvc, corev1.EventTypeWarning, "VolumeResizeFailed", "%v", err)
		return 0, err
	}
	return 0, nil
}

// call makes the expansion and records what came of it
// (pkg/controller/expand_and_recover.go callResizeOnPlugin).
func (h *handler) call(ctx context.Context, pvc *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume, size resource.Quantity) error {
	key, row := store.Key(pvc), h.Call("ControllerExpandVolume")
	got, nodeToo, err := h.resize(ctx, pv, size)
	if err != nil {
		final, infeasible := row.Final(err), row.NotFeasible(err)
		h.note(key, final, infeasible, status.Code(err) == codes.FailedPrecondition)
		if final {
			if merr := h.markFailed(ctx, pvc, err, infeasible); merr != nil {
				return fmt.Errorf("resizing failed in controller with %w but failed to update PVC %s with: %w", err, key, merr)
			}
		}
		return fmt.Errorf("resize volume %q by resizer %q failed: %w", pv.Name, h.Driver, err)
	}
	h.note(key, false, false, false)
	before := pvc.Status.Capacity[corev1.ResourceStorage]
	if _, err := store.Modify(ctx, h.Client, "", pv.Name, func(p *corev1.PersistentVolume) error {
		p.Spec.Capacity[corev1.ResourceStorage] = got
		if nodeToo && !metav1.HasAnnotation(p.ObjectMeta, PreResizeCapacity) {
			metav1.SetMetaDataAnnotation(&p.ObjectMeta, PreResizeCapacity, before.String())
		}
		return nil
	}); err != nil {
		return fmt.Errorf("error updating pv %q by resizer: %w", pv.Name, err)
	}
	if nodeToo {
		return h.markNodePending(ctx, pvc)
	}
	return h.markFinished(ctx, pvc, got)
}

// resize calls the driver; before each expansion it asks again what the driver
// can, as the real one does (pkg/resizer/csi_resizer.go getVolumeCapabilities).
func (h *handler) resize(ctx context.Context, pv *corev1.PersistentVolume, size resource.Quantity) (got resource.Quantity, nodeToo bool, err error) {
	if pv.Spec.CSI.VolumeHandle == "" {
		return got, false, errors.New("empty volume handle")
	}
	secrets, err := sidecar.Credentials(h.Client, pv.Spec.CSI.ControllerExpandSecretRef)
	if err != nil {
		return got, false, err
	}
	can, err := h.AskController(ctx)
	if err != nil {
		// Not a gRPC error any more, so it is never final.
		return got, false, fmt.Errorf("failed to get capabilities of volume %s with %v", pv.Name, err)
	}
	c, err := sidecar.CapabilityOf(pv, can[csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER])
	if err != nil {
		return got, false, fmt.Errorf("failed to get capabilities of volume %s with %w", pv.Name, err)
	}
	rsp, err := h.csi.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
		VolumeId: pv.Spec.CSI.VolumeHandle, CapacityRange: &csi.CapacityRange{RequiredBytes: size.Value()}, Secrets: secrets, VolumeCapability: c})
	if err != nil {
		return got, false, err
	}
	return *resource.NewQuantity(rsp.CapacityBytes, resource.BinarySI), rsp.NodeExpansionRequired, nil
}

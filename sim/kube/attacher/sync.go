package attacher

import (
	"context"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/kube/sidecar"
	"github.com/csilab/csilab/sim/kube/store"
)

// syncVA brings one VolumeAttachment to where its deletion timestamp says.
func (h *handler) syncVA(ctx context.Context, name string) error {
	leave, err := h.enter(ctx, name)
	if err != nil {
		return err
	}
	defer leave()
	forced := h.consumeForce(name)
	va, err := store.Get[storagev1.VolumeAttachment](h.Client, "", name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || va.Spec.Attacher != h.Driver {
		return err
	}
	if va.DeletionTimestamp == nil {
		if va.Status.Attached && !forced {
			return nil
		}
		return h.attach(ctx, va)
	}
	if !slices.Contains(va.Finalizers, h.finalizer) && !forced {
		return nil // detached already
	}
	return h.detach(ctx, va)
}

// attach publishes the volume and writes what came of it into the status
// (pkg/controller/csi_handler.go:255, 429).
func (h *handler) attach(ctx context.Context, va *storagev1.VolumeAttachment) error {
	published, err := h.publish(ctx, va)
	if err != nil {
		_, serr := store.ModifyStatus(ctx, h.Client, "", va.Name, func(v *storagev1.VolumeAttachment) error {
			v.Status.AttachError = volumeError(err)
			return nil
		})
		if serr != nil {
			h.Log.Debug("failed to save attach error", "volumeattachment", va.Name, "err", serr)
		}
		return fmt.Errorf("failed to attach: %w", err)
	}
	_, err = store.ModifyStatus(ctx, h.Client, "", va.Name, func(v *storagev1.VolumeAttachment) error {
		v.Status.Attached = true
		v.Status.AttachmentMetadata = published
		v.Status.AttachError = nil
		return nil
	})
	if err != nil {
		return fmt.Errorf("failed to mark as attached: %w", err)
	}
	return nil
}

// publish checks all that can be checked before the finalizer is set, for that
// blocks the deletion of the VolumeAttachment until a detach succeeds.
func (h *handler) publish(ctx context.Context, va *storagev1.VolumeAttachment) (map[string]string, error) {
	pv, err := h.source(va)
	if err != nil {
		return nil, err
	}
	if pv.DeletionTimestamp != nil {
		return nil, fmt.Errorf("PersistentVolume %q is marked for deletion", pv.Name)
	}
	if pv, err = store.Modify(ctx, h.Client, "", pv.Name, func(p *corev1.PersistentVolume) error {
		if !slices.Contains(p.Finalizers, h.finalizer) {
			p.Finalizers = append(p.Finalizers, h.finalizer)
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("could not add PersistentVolume finalizer: %w", err)
	}
	c, err := sidecar.CapabilityOf(pv, h.Controller[csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER])
	if err != nil {
		return nil, err
	}
	secrets, err := sidecar.Credentials(h.Client, pv.Spec.CSI.ControllerPublishSecretRef)
	if err != nil {
		return nil, err
	}
	node, err := h.nodeID(va.Spec.NodeName, nil)
	if err != nil {
		return nil, err
	}
	if _, err := store.Modify(ctx, h.Client, "", va.Name, func(v *storagev1.VolumeAttachment) error {
		if !slices.Contains(v.Finalizers, h.finalizer) {
			v.Finalizers = append(v.Finalizers, h.finalizer)
		}
		metav1.SetMetaDataAnnotation(&v.ObjectMeta, NodeIDAnnotation, node)
		return nil
	}); err != nil {
		return nil, fmt.Errorf("could not save VolumeAttachment: %w", err)
	}
	rsp, err := h.csi.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{
		VolumeId:         pv.Spec.CSI.VolumeHandle,
		NodeId:           node,
		VolumeCapability: c,
		Readonly:         pv.Spec.CSI.ReadOnly && h.Controller[csi.ControllerServiceCapability_RPC_PUBLISH_READONLY],
		VolumeContext:    pv.Spec.CSI.VolumeAttributes,
		Secrets:          secrets,
	})
	return rsp.GetPublishContext(), err
}

// detach unpublishes the volume, whatever the last publish said. The finalizer
// goes first, so that no second call is made for the same detach
// (pkg/controller/csi_handler.go:536, util.go:58).
func (h *handler) detach(ctx context.Context, va *storagev1.VolumeAttachment) error {
	err := h.unpublish(ctx, va)
	if err == nil {
		err = h.markDetached(ctx, va)
	}
	if err == nil {
		return nil
	}
	if _, serr := store.ModifyStatus(ctx, h.Client, "", va.Name, func(v *storagev1.VolumeAttachment) error {
		v.Status.DetachError = volumeError(err)
		v.Status.DetachError.ErrorCode = nil // saveDetachError sets no code
		return nil
	}); serr != nil {
		h.Log.Debug("failed to save detach error", "volumeattachment", va.Name, "err", serr)
	}
	return fmt.Errorf("failed to detach: %w", err)
}

func (h *handler) unpublish(ctx context.Context, va *storagev1.VolumeAttachment) error {
	pv, err := h.source(va)
	if err != nil {
		return err
	}
	secrets, err := sidecar.Credentials(h.Client, pv.Spec.CSI.ControllerPublishSecretRef)
	if err != nil {
		return err
	}
	node, err := h.nodeID(va.Spec.NodeName, va)
	if err != nil {
		return err
	}
	_, err = h.csi.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{
		VolumeId: pv.Spec.CSI.VolumeHandle, NodeId: node, Secrets: secrets})
	return err
}

func (h *handler) markDetached(ctx context.Context, va *storagev1.VolumeAttachment) error {
	_, err := store.Modify(ctx, h.Client, "", va.Name, func(v *storagev1.VolumeAttachment) error {
		v.Finalizers = slices.DeleteFunc(v.Finalizers, func(f string) bool { return f == h.finalizer })
		return nil
	})
	if err == nil {
		_, err = store.ModifyStatus(ctx, h.Client, "", va.Name, func(v *storagev1.VolumeAttachment) error {
			v.Status.Attached = false
			v.Status.DetachError = nil
			v.Status.AttachmentMetadata = nil
			return nil
		})
	}
	if apierrors.IsNotFound(err) { // without the finalizer it has gone
		return nil
	}
	if err != nil {
		return fmt.Errorf("could not mark as detached: %w", err)
	}
	return nil
}

// trivial marks attached what has nothing to attach (pkg/controller/trivial_handler.go).
func (h *handler) trivial(ctx context.Context, name string) error {
	va, err := store.Get[storagev1.VolumeAttachment](h.Client, "", name)
	if err != nil || va.Spec.Attacher != h.Driver || va.Status.Attached {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	_, err = store.ModifyStatus(ctx, h.Client, "", name, func(v *storagev1.VolumeAttachment) error {
		v.Status.Attached = true
		return nil
	})
	return err
}

// syncPV lets a PV go that is being deleted and that no VolumeAttachment needs
// (pkg/controller/csi_handler.go:647).
func (h *handler) syncPV(ctx context.Context, name string) error {
	pv, err := store.Get[corev1.PersistentVolume](h.Client, "", name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || pv.DeletionTimestamp == nil || !slices.Contains(pv.Finalizers, h.finalizer) {
		return err
	}
	if len(store.ListBy[storagev1.VolumeAttachment](h.Client, store.AttachmentsByPV, name)) > 0 {
		return nil
	}
	_, err = store.Modify(ctx, h.Client, "", name, func(p *corev1.PersistentVolume) error {
		p.Finalizers = slices.DeleteFunc(p.Finalizers, func(f string) bool { return f == h.finalizer })
		return nil
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// volumeError is an error as a VolumeAttachment's status holds it; a gRPC
// status keeps its code (pkg/controller/csi_handler.go saveAttachError).
func volumeError(err error) *storagev1.VolumeError {
	v := &storagev1.VolumeError{Message: err.Error(), Time: metav1.Now()}
	if st, ok := status.FromError(err); ok {
		code := int32(st.Code())
		v.ErrorCode = &code
	}
	return v
}

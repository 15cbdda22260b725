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

// checkClass sees that a snapshot of a claim has a class that exists; without
// one it takes the default class of the claim's driver
// (C snapshot_controller_base.go:499, snapshot_controller.go SetDefaultSnapshotClass).
func (h *handler) checkClass(ctx context.Context, s *snapshotv1.VolumeSnapshot) error {
	if n := s.Spec.VolumeSnapshotClassName; n != nil {
		_, err := store.Get[snapshotv1.VolumeSnapshotClass](h.client, "", *n)
		if err != nil {
			h.setError(ctx, s, false, "GetSnapshotClassFailed", fmt.Sprintf("Failed to get snapshot class with error %v", err))
		}
		return err
	}
	if s.Spec.Source.VolumeSnapshotContentName != nil {
		return nil
	}
	name, err := h.defaultClass(s)
	if err != nil {
		h.setError(ctx, s, false, "SetDefaultSnapshotClassFailed", fmt.Sprintf("Failed to set default snapshot class with error %v", err))
		return err
	}
	n, err := store.Modify(ctx, h.client, s.Namespace, s.Name, func(o *snapshotv1.VolumeSnapshot) error {
		o.Spec.VolumeSnapshotClassName = &name
		return nil
	})
	if err == nil {
		*s = *n
	}
	return err
}

func (h *handler) defaultClass(s *snapshotv1.VolumeSnapshot) (string, error) {
	pv, err := h.volume(s)
	if err != nil {
		return "", err
	}
	if pv.Spec.CSI == nil {
		return "", fmt.Errorf("snapshotting non-CSI volumes is not supported, snapshot:%s", store.Key(s))
	}
	var names []string
	for _, c := range store.List[snapshotv1.VolumeSnapshotClass](h.client, "") {
		if c.Annotations[IsDefaultClass] == "true" && c.Driver == pv.Spec.CSI.Driver {
			names = append(names, c.Name)
		}
	}
	switch len(names) {
	case 0:
		return "", errors.New("cannot find default snapshot class")
	case 1:
		return names[0], nil
	}
	return "", fmt.Errorf("%d default snapshot classes were found", len(names))
}

// claim is the claim that a snapshot is to be taken of.
func (h *handler) claim(s *snapshotv1.VolumeSnapshot) (*corev1.PersistentVolumeClaim, error) {
	if s.Spec.Source.PersistentVolumeClaimName == nil {
		return nil, errors.New("the snapshot source PVC name is not specified")
	}
	name := *s.Spec.Source.PersistentVolumeClaimName
	pvc, err := store.Get[corev1.PersistentVolumeClaim](h.client, s.Namespace, name)
	if err != nil {
		return nil, fmt.Errorf("failed to retrieve PVC %s from the lister: %q", name, err)
	}
	return pvc, nil
}

// volume is the PV that the claim is bound to.
func (h *handler) volume(s *snapshotv1.VolumeSnapshot) (*corev1.PersistentVolume, error) {
	pvc, err := h.claim(s)
	if err != nil {
		return nil, err
	}
	if pvc.Status.Phase != corev1.ClaimBound {
		return nil, fmt.Errorf("the PVC %s is not yet bound to a PV, will not attempt to take a snapshot", pvc.Name)
	}
	pv, err := store.Get[corev1.PersistentVolume](h.client, "", pvc.Spec.VolumeName)
	if err != nil {
		return nil, fmt.Errorf("failed to retrieve PV %s from the API server: %q", pvc.Spec.VolumeName, err)
	}
	ref := pv.Spec.ClaimRef
	if ref == nil || ref.Name != pvc.Name || ref.Namespace != pvc.Namespace || ref.UID != "" && ref.UID != pvc.UID {
		return nil, errors.New("claim in dataSource not bound or invalid")
	}
	return pv, nil
}

// createContent makes the content of a snapshot of a claim; the claim is
// protected until the snapshot is ready (C snapshot_controller.go createSnapshotContent).
func (h *handler) createContent(ctx context.Context, s *snapshotv1.VolumeSnapshot) (*snapshotv1.VolumeSnapshotContent, error) {
	if err := h.protectClaim(ctx, s); err != nil {
		return nil, err
	}
	wrap := func(err error) error {
		return fmt.Errorf("failed to get input parameters to create snapshot %s: %q", s.Name, err)
	}
	if s.Spec.VolumeSnapshotClassName == nil {
		return nil, wrap(fmt.Errorf("failed to take snapshot %s without a snapshot class", s.Name))
	}
	class, err := store.Get[snapshotv1.VolumeSnapshotClass](h.client, "", *s.Spec.VolumeSnapshotClassName)
	if err != nil {
		return nil, wrap(err)
	}
	pv, err := h.volume(s)
	if err != nil {
		return nil, wrap(err)
	}
	name := contentName(s)
	forNS := map[string]string{"volumesnapshotcontent.name": name, "volumesnapshot.namespace": s.Namespace}
	forName := map[string]string{"volumesnapshotcontent.name": name, "volumesnapshot.namespace": s.Namespace, "volumesnapshot.name": s.Name}
	secret, err := snapshotter.Secret.Reference(class.Parameters, forName, forNS)
	if err != nil {
		return nil, wrap(fmt.Errorf("failed to get name and namespace template from params: %w", err))
	}
	if pv.Spec.CSI == nil {
		return nil, fmt.Errorf("cannot find CSI PersistentVolumeSource for volume %s", pv.Name)
	}
	c := &snapshotv1.VolumeSnapshotContent{
		// The real controller adds the finalizer at the content's first event. A
		// content that is deleted before leaves its snapshot behind, which in
		// life needs a controller that is slower than the driver and the user;
		// in virtual time it takes a goroutine that is scheduled late.
		ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{snapshotter.ContentFinalizer}},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			VolumeSnapshotRef: corev1.ObjectReference{Kind: "VolumeSnapshot", APIVersion: snapshotv1.SchemeGroupVersion.String(),
				Namespace: s.Namespace, Name: s.Name, UID: s.UID, ResourceVersion: s.ResourceVersion},
			Source:                  snapshotv1.VolumeSnapshotContentSource{VolumeHandle: &pv.Spec.CSI.VolumeHandle},
			VolumeSnapshotClassName: &class.Name,
			DeletionPolicy:          class.DeletionPolicy,
			Driver:                  class.Driver,
			SourceVolumeMode:        pv.Spec.VolumeMode, // --prevent-volume-mode-conversion
		},
	}
	if secret != nil {
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, snapshotter.DeletionSecretName, secret.Name)
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, snapshotter.DeletionSecretNS, secret.Namespace)
	}
	if err := h.client.Create(ctx, c); err != nil && !apierrors.IsAlreadyExists(err) {
		h.client.Event(ctx, s, corev1.EventTypeWarning, "CreateSnapshotContentFailed", "Error creating volume snapshot content object for snapshot %s: %v.", store.Key(s), err)
		return nil, updateFailed(store.Key(s), err)
	}
	h.client.Event(ctx, s, corev1.EventTypeNormal, "CreatingSnapshot", "Waiting for a snapshot %s to be created by the CSI driver.", store.Key(s))
	return c, nil
}

// protectClaim keeps the claim until no snapshot of it is in the making.
func (h *handler) protectClaim(ctx context.Context, s *snapshotv1.VolumeSnapshot) error {
	pvc, err := h.claim(s)
	if err != nil {
		return updateFailed(s.Name, errors.New("cannot get claim from snapshot"))
	}
	if slices.Contains(pvc.Finalizers, ClaimFinalizer) {
		return nil
	}
	if pvc.DeletionTimestamp != nil {
		return updateFailed(pvc.Name, errors.New("cannot add finalizer on claim because it is being deleted"))
	}
	pvc.Finalizers = append(pvc.Finalizers, ClaimFinalizer)
	if err := h.client.Update(ctx, pvc); err != nil {
		return updateFailed(pvc.Name, err)
	}
	return nil
}

// freeClaim lets the claim go when no snapshot of it is in the making; without
// says that s does not count (C checkandRemovePVCFinalizer).
func (h *handler) freeClaim(ctx context.Context, s *snapshotv1.VolumeSnapshot, without bool) error {
	if s.Spec.Source.PersistentVolumeClaimName == nil {
		return nil
	}
	pvc, err := h.claim(s)
	if err != nil || !slices.Contains(pvc.Finalizers, ClaimFinalizer) {
		return nil // the claim may have gone
	}
	for _, o := range store.List[snapshotv1.VolumeSnapshot](h.client, s.Namespace) {
		if n := o.Spec.Source.PersistentVolumeClaimName; n != nil && *n == pvc.Name && !ready(o) && !(without && o.Name == s.Name) {
			return nil
		}
	}
	_, err = store.Modify(ctx, h.client, pvc.Namespace, pvc.Name, func(p *corev1.PersistentVolumeClaim) error {
		p.Finalizers = slices.DeleteFunc(p.Finalizers, func(f string) bool { return f == ClaimFinalizer })
		return nil
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// updateFailed wraps an error of a write, as the controller spells it.
func updateFailed(name string, err error) error {
	return fmt.Errorf("snapshot controller failed to update %s on API server: %w", name, err)
}

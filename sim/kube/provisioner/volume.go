package provisioner

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/kube/sidecar"
	"github.com/csilab/csilab/sim/kube/store"
)

// volume is the PV of a created volume (P controller.go:910, L controller.go:1503).
func (h *handler) volume(pvc *corev1.PersistentVolumeClaim, sc *storagev1.StorageClass, r *request, v *csi.Volume, size int64) *corev1.PersistentVolume {
	src := r.source
	src.Driver = h.Driver
	src.VolumeHandle = v.VolumeId
	src.VolumeAttributes = map[string]string{IdentityKey: h.identity}
	maps.Copy(src.VolumeAttributes, v.VolumeContext)
	if !sidecar.IsBlock(pvc.Spec.VolumeMode) {
		src.FSType = r.fsType
	}
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        r.req.Name,
			Finalizers:  []string{Finalizer},
			Annotations: map[string]string{ProvisionedBy: sc.Provisioner, secretNameAnn: "", secretNSAnn: ""},
		},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:            pvc.Spec.AccessModes,
			MountOptions:           sc.MountOptions,
			Capacity:               corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(size, resource.BinarySI)},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &src},
			VolumeMode:             pvc.Spec.VolumeMode,
			StorageClassName:       className(pvc),
			ClaimRef: &corev1.ObjectReference{Kind: claimKind, APIVersion: "v1", Namespace: pvc.Namespace, Name: pvc.Name,
				UID: pvc.UID, ResourceVersion: pvc.ResourceVersion},
			// The API server's default for a PV without a policy is Retain; a
			// class without one has Delete (pkg/apis/core/v1/defaults.go, pkg/apis/storage/v1/defaults.go).
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumePending},
	}
	if sc.ReclaimPolicy != nil {
		pv.Spec.PersistentVolumeReclaimPolicy = *sc.ReclaimPolicy
	}
	if r.secret != nil {
		pv.Annotations[secretNameAnn], pv.Annotations[secretNSAnn] = r.secret.Name, r.secret.Namespace
	}
	if h.topology() {
		pv.Spec.NodeAffinity = nodeAffinity(v.AccessibleTopology)
	}
	return pv
}

// syncVolume protects a bound PV of this driver that is to be deleted with its
// claim, and deletes one that was released (L controller.go:1129).
func (h *handler) syncVolume(ctx context.Context, name string) error {
	pv, err := store.Get[corev1.PersistentVolume](h.Client, "", name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || !h.owns(pv) {
		return err
	}
	if pv, err = h.protect(ctx, pv); err != nil {
		return err
	}
	if !shouldDelete(pv) {
		return nil
	}
	if err := h.deleteVolume(ctx, pv); err != nil {
		h.Client.Event(ctx, pv, corev1.EventTypeWarning, "VolumeFailedDelete", "%v", err)
		return err
	}
	if err := h.Client.Delete(ctx, pv); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	_, err = store.Modify(ctx, h.Client, "", name, func(p *corev1.PersistentVolume) error {
		p.Finalizers = slices.DeleteFunc(p.Finalizers, func(f string) bool { return f == Finalizer })
		return nil
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// owns says whether a PV was provisioned by this driver, or made by hand for it.
func (h *handler) owns(pv *corev1.PersistentVolume) bool {
	if by, ok := pv.Annotations[ProvisionedBy]; ok {
		return by == h.Driver
	}
	return pv.Spec.CSI != nil && pv.Spec.CSI.Driver == h.Driver
}

// protect sets the finalizer on a bound PV with policy Delete and takes it
// from one with another policy (L controller.go:1183).
func (h *handler) protect(ctx context.Context, pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	has := slices.Contains(pv.Finalizers, Finalizer)
	del := pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
	add := !has && del && pv.DeletionTimestamp == nil && pv.Status.Phase == corev1.VolumeBound
	if !add && (!has || del) {
		return pv, nil
	}
	c, err := store.Modify(ctx, h.Client, "", pv.Name, func(p *corev1.PersistentVolume) error {
		p.Finalizers = slices.DeleteFunc(p.Finalizers, func(f string) bool { return f == Finalizer })
		if add {
			p.Finalizers = append(p.Finalizers, Finalizer)
		}
		return nil
	})
	switch {
	case apierrors.IsNotFound(err):
		return pv, nil
	case err != nil:
		return pv, fmt.Errorf("failed to modify finalizers on volume %s err: %w", pv.Name, err)
	}
	return c, nil
}

// shouldDelete is L controller.go:1270: without the finalizer a PV that is
// being deleted has lost its volume already.
func shouldDelete(pv *corev1.PersistentVolume) bool {
	return (pv.DeletionTimestamp == nil || slices.Contains(pv.Finalizers, Finalizer)) &&
		pv.Status.Phase == corev1.VolumeReleased && pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
}

// deleteVolume calls DeleteVolume, unless the volume is attached (P controller.go:1234 Delete).
func (h *handler) deleteVolume(ctx context.Context, pv *corev1.PersistentVolume) error {
	if pv.Spec.CSI == nil {
		return fmt.Errorf("invalid CSI PV")
	}
	if err := h.capable(""); err != nil {
		return err
	}
	req := &csi.DeleteVolumeRequest{VolumeId: pv.Spec.CSI.VolumeHandle}
	var err error
	if req.Secrets, err = h.deletionSecrets(pv); err != nil {
		return err
	}
	if h.Controller[csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME] {
		for _, va := range store.ListBy[storagev1.VolumeAttachment](h.Client, store.AttachmentsByPV, pv.Name) {
			return fmt.Errorf("persistentvolume %s is still attached to node %s", pv.Name, va.Spec.NodeName)
		}
	}
	_, err = h.csi.DeleteVolume(ctx, req)
	return err
}

// deletionSecrets is what the PV was annotated with when it was made, else
// what its class says now. A secret that is gone does not hold up the deletion.
func (h *handler) deletionSecrets(pv *corev1.PersistentVolume) (map[string]string, error) {
	ref := &corev1.SecretReference{Name: pv.Annotations[secretNameAnn], Namespace: pv.Annotations[secretNSAnn]}
	if !metav1.HasAnnotation(pv.ObjectMeta, secretNameAnn) {
		sc, err := store.Get[storagev1.StorageClass](h.Client, "", pv.Spec.StorageClassName)
		if err != nil || pv.Spec.ClaimRef == nil {
			return nil, nil
		}
		tokens := map[string]string{"pv.name": pv.Name, "pvc.namespace": pv.Spec.ClaimRef.Namespace, "pvc.name": pv.Spec.ClaimRef.Name}
		if ref, err = provisionerSecret.Reference(sc.Parameters, tokens, tokens); ref == nil && err == nil {
			ref, err = defaultSecret.Reference(sc.Parameters, tokens, tokens)
		}
		if err != nil {
			return nil, fmt.Errorf("failed to get secretreference for volume %s: %w", pv.Name, err)
		}
	}
	if ref == nil || ref.Name == "" || ref.Namespace == "" {
		return nil, nil
	}
	out, err := sidecar.Credentials(h.Client, ref)
	if err != nil {
		h.Log.Warn("failed to get credentials", "volume", pv.Name, "err", err)
		return nil, nil
	}
	return out, nil
}

// saver creates PVs in the API, and goes on trying: the volume exists, and
// nothing but the PV knows it (L volume_store.go NewVolumeStoreQueue; the
// back-off is client-go's default).
type saver struct {
	*sidecar.Session
	wake chan struct{}

	mu      sync.Mutex
	pending map[string]*unsaved // by PV
}

type unsaved struct {
	pvc    *corev1.PersistentVolumeClaim
	pv     *corev1.PersistentVolume
	trying bool
}

func newSaver(s *sidecar.Session) *saver {
	return &saver{Session: s, wake: make(chan struct{}, 1), pending: map[string]*unsaved{}}
}

func (s *saver) has(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.pending[name]
	return ok
}

// save tries once; run tries the rest.
func (s *saver) save(ctx context.Context, pvc *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
	u := &unsaved{pvc: pvc, pv: pv}
	if s.try(ctx, u) {
		return
	}
	s.mu.Lock()
	s.pending[pv.Name] = u
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *saver) try(ctx context.Context, u *unsaved) bool {
	err := s.Client.Create(ctx, u.pv.DeepCopy())
	if err != nil && !apierrors.IsAlreadyExists(err) {
		s.Log.Error("failed to save volume", "volume", u.pv.Name, "err", err)
		return false
	}
	// The event is for the claim, if it is there still.
	if pvc, err := store.Get[corev1.PersistentVolumeClaim](s.Client, u.pvc.Namespace, u.pvc.Name); err == nil && pvc.UID == u.pvc.UID {
		s.Client.Event(ctx, pvc, corev1.EventTypeNormal, "ProvisioningSucceeded", "Successfully provisioned volume %s", u.pv.Name)
	}
	return true
}

func (s *saver) run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		select {
		case <-s.wake:
		case <-ctx.Done():
			return nil
		}
		s.mu.Lock()
		for _, u := range s.pending {
			if !u.trying {
				u.trying = true
				wg.Go(func() { s.retry(ctx, u) })
			}
		}
		s.mu.Unlock()
	}
}

func (s *saver) retry(ctx context.Context, u *unsaved) {
	b := sidecar.Backoff{Start: 5 * time.Millisecond, Max: 1000 * time.Second}
	for d := b.Start; ; d = b.Next(d) {
		t := time.NewTimer(d)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
		if s.try(ctx, u) {
			s.mu.Lock()
			delete(s.pending, u.pv.Name)
			s.mu.Unlock()
			return
		}
	}
}

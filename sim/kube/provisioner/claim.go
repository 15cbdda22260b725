package provisioner

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/csilab/csilab/sim/kube/sidecar"
	"github.com/csilab/csilab/sim/kube/store"
)

// state says what is known of a volume after an attempt to make it.
type state int

const (
	noChange     state = iota // as much as before the attempt
	finished                  // not in the making: made, or failed for good
	inBackground              // may be in the making
	reschedule                // failed for good on this node
)

// errStop ends the work on a claim without a retry.
var errStop = errors.New("stop provisioning")

// classify says what an error of CreateVolume means (P controller.go:1880 checkError).
func classify(row sidecar.Call, err error, mayReschedule bool) state {
	switch {
	case !row.Final(err):
		return inBackground
	case status.Code(err) == codes.ResourceExhausted && mayReschedule:
		return reschedule
	}
	return finished
}

// syncClaim works on the claim with this uid (L controller.go:1082).
func (h *handler) syncClaim(ctx context.Context, uid string) error {
	pvc := h.claims.get(h.Client, uid)
	if pvc == nil {
		return nil
	}
	should, err := h.shouldProvision(pvc)
	if err != nil {
		return err
	}
	if !should {
		h.claims.forget(uid)
		return nil
	}
	st, err := h.provisionClaim(ctx, pvc)
	switch {
	case err == nil, errors.Is(err, errStop):
		h.claims.forget(uid)
		return nil
	case st == finished:
		h.claims.forget(uid)
	case st == inBackground:
		h.claims.keep(pvc)
	}
	return err
}

// shouldProvision says whether the claim waits for a volume of this driver
// (L controller.go:1227). A claim that binds late waits for its node first.
func (h *handler) shouldProvision(pvc *corev1.PersistentVolumeClaim) (bool, error) {
	if pvc.Spec.VolumeName != "" || provisionerOf(pvc) != h.Driver {
		return false, nil
	}
	sc, err := h.class(pvc)
	if err != nil {
		return false, err
	}
	if sc.VolumeBindingMode != nil && *sc.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer {
		return pvc.Annotations[SelectedNode] != "", nil
	}
	return true, nil
}

func provisionerOf(pvc *corev1.PersistentVolumeClaim) string {
	if p, ok := pvc.Annotations[ProvisionerAnn]; ok {
		return p
	}
	return pvc.Annotations[betaAnn]
}

func className(pvc *corev1.PersistentVolumeClaim) string {
	if n, ok := pvc.Annotations[betaClassAnn]; ok {
		return n
	}
	if pvc.Spec.StorageClassName != nil {
		return *pvc.Spec.StorageClassName
	}
	return ""
}

func (h *handler) class(pvc *corev1.PersistentVolumeClaim) (*storagev1.StorageClass, error) {
	sc, err := store.Get[storagev1.StorageClass](h.Client, "", className(pvc))
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("storageclass %q not found", className(pvc))
	}
	return sc, err
}

// provisionClaim makes a volume for a claim and saves its PV (L controller.go:1412).
func (h *handler) provisionClaim(ctx context.Context, pvc *corev1.PersistentVolumeClaim) (state, error) {
	pvName := "pvc-" + string(pvc.UID)
	if _, err := store.Get[corev1.PersistentVolume](h.Client, "", pvName); err == nil || h.saver.has(pvName) {
		return finished, errStop // made already
	}
	sc, err := h.class(pvc)
	if err != nil {
		return finished, err
	}
	if sc.Provisioner != h.Driver {
		return finished, errStop
	}
	var node *corev1.Node
	if n, ok := pvc.Annotations[SelectedNode]; ok {
		node, err = store.Get[corev1.Node](h.Client, "", n)
		switch {
		case apierrors.IsNotFound(err):
			return h.failed(ctx, pvc, reschedule, err)
		case err != nil:
			return h.failed(ctx, pvc, noChange, fmt.Errorf("failed to get target node: %w", err))
		}
	}
	h.Client.Event(ctx, pvc, corev1.EventTypeNormal, "Provisioning",
		"External provisioner is provisioning volume for claim %q", store.Key(pvc))
	pv, st, err := h.provision(ctx, pvc, sc, node)
	if errors.Is(err, errStop) {
		return finished, errStop
	}
	if err != nil {
		return h.failed(ctx, pvc, st, fmt.Errorf("failed to provision volume with StorageClass %q: %w", className(pvc), err))
	}
	h.saver.save(ctx, pvc, pv)
	return finished, nil
}

// failed records a failure; one that another node may not have takes the node
// from the claim, and the scheduler chooses again (L controller.go:1522).
func (h *handler) failed(ctx context.Context, pvc *corev1.PersistentVolumeClaim, st state, err error) (state, error) {
	h.Client.Event(ctx, pvc, corev1.EventTypeWarning, "ProvisioningFailed", "%v", err)
	if st != reschedule {
		return st, err
	}
	if _, ok := pvc.Annotations[SelectedNode]; !ok {
		return finished, err
	}
	c := pvc.DeepCopy()
	delete(c.Annotations, SelectedNode)
	if uerr := h.Client.Update(ctx, c); uerr != nil {
		h.Log.Info("volume rescheduling failed", "claim", store.Key(pvc), "err", uerr)
		return finished, err
	}
	return finished, errStop
}

// provision calls CreateVolume and makes the PV of the answer (P controller.go:786 Provision).
func (h *handler) provision(ctx context.Context, pvc *corev1.PersistentVolumeClaim, sc *storagev1.StorageClass, node *corev1.Node) (*corev1.PersistentVolume, state, error) {
	r, st, err := h.prepare(pvc, sc, node)
	if err != nil {
		if errors.Is(err, errStop) {
			h.Client.Event(ctx, pvc, corev1.EventTypeNormal, "Provisioning", "Assuming an external populator will provision the volume")
		}
		return nil, st, err
	}
	rsp, err := h.csi.CreateVolume(ctx, r.req)
	if err != nil {
		return nil, classify(h.Call("CreateVolume"), err, h.topology() && node != nil), err
	}
	if rsp.GetVolume() == nil {
		// A driver that answers so breaks the CSI spec; the real provisioner panics.
		return nil, inBackground, errors.New("CreateVolume answered without a volume")
	}
	size := r.req.CapacityRange.RequiredBytes
	switch got := rsp.Volume.CapacityBytes; {
	case got == 0: // unknown, CSI spec CreateVolume
	case got < size:
		return nil, inBackground, h.discard(ctx, r, rsp.Volume.VolumeId, fmt.Errorf("created volume capacity %v less than requested capacity %v", got, size))
	default:
		size = got
	}
	if pvc.Spec.DataSource != nil && rsp.Volume.ContentSource == nil {
		return nil, inBackground, h.discard(ctx, r, rsp.Volume.VolumeId, errors.New("volume content source missing"))
	}
	return h.volume(pvc, sc, r, rsp.Volume, size), finished, nil
}

// discard deletes a volume that is not what was asked for (P controller.go:1917 cleanupVolume).
func (h *handler) discard(ctx context.Context, r *request, id string, why error) error {
	ctx, cancel := context.WithTimeout(ctx, h.Call("DeleteVolume").Timeout) // all attempts
	defer cancel()
	var err error
	for range cleanupAttempts {
		if _, err = h.csi.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id, Secrets: r.req.Secrets}); err == nil {
			return why
		}
	}
	return fmt.Errorf("%w. Cleanup of volume %s failed, volume is orphaned: %w", why, r.req.Name, err)
}

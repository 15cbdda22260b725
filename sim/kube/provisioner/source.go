package provisioner

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csilab/csilab/sim/kube/sidecar"
	"github.com/csilab/csilab/sim/kube/store"
)

const (
	snapshotKind  = "VolumeSnapshot"
	snapshotGroup = snapshotv1.GroupName
	claimKind     = "PersistentVolumeClaim"
)

// contentSource is what the volume is to be filled from.
func (h *handler) contentSource(pvc *corev1.PersistentVolumeClaim, sc *storagev1.StorageClass) (*csi.VolumeContentSource, error) {
	if pvc.Spec.DataSource.Kind == claimKind {
		return h.claimSource(pvc, sc)
	}
	return h.snapshotSource(pvc, sc)
}

// snapshotSource checks that a snapshot is there, bound both ways, of this
// driver, ready and not larger than the claim (P controller.go:1141 getSnapshotSource).
// One that is being deleted is as good as any: a restore whose end nobody knows
// must be asked for again, or its volume is nobody's. That is v6.2.0
// (external-provisioner#1448); the versions before refuse it.
func (h *handler) snapshotSource(pvc *corev1.PersistentVolumeClaim, sc *storagev1.StorageClass) (*csi.VolumeContentSource, error) {
	name := pvc.Spec.DataSource.Name
	snap, err := store.Get[snapshotv1.VolumeSnapshot](h.Client, pvc.Namespace, name)
	if err != nil {
		return nil, fmt.Errorf("error getting snapshot %s from api server: %w", name, err)
	}
	if snap.Status == nil || snap.Status.BoundVolumeSnapshotContentName == nil {
		return nil, fmt.Errorf("snapshot %s not bound", name)
	}
	content, err := store.Get[snapshotv1.VolumeSnapshotContent](h.Client, "", *snap.Status.BoundVolumeSnapshotContentName)
	if err != nil {
		return nil, fmt.Errorf("snapshot %s not bound", name)
	}
	ref := content.Spec.VolumeSnapshotRef
	switch {
	case ref.UID != snap.UID || ref.Namespace != snap.Namespace || ref.Name != snap.Name, content.Spec.Driver != sc.Provisioner:
		return nil, fmt.Errorf("snapshot %s not bound", name)
	case snap.Status.ReadyToUse == nil || !*snap.Status.ReadyToUse:
		return nil, fmt.Errorf("snapshot %s is not Ready", name)
	case content.Status == nil || content.Status.SnapshotHandle == nil:
		return nil, fmt.Errorf("snapshot handle %s is not available", name)
	}
	if rs := snap.Status.RestoreSize; rs != nil {
		want := pvc.Spec.Resources.Requests[corev1.ResourceStorage]
		if want.Value() < rs.Value() {
			return nil, fmt.Errorf("requested volume size %d is less than the size %d for the source snapshot %s", want.Value(), rs.Value(), name)
		}
	}
	if m := content.Spec.SourceVolumeMode; m != nil && pvc.Spec.VolumeMode != nil && *m != *pvc.Spec.VolumeMode {
		if ok, _ := strconv.ParseBool(content.Annotations[modeChangeAnn]); !ok {
			return nil, fmt.Errorf("requested volume %s modifies the mode of the source volume but does not have permission to do so. %s annotation is not present on snapshotcontent %s",
				store.Key(pvc), modeChangeAnn, content.Name)
		}
	}
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: *content.Status.SnapshotHandle}}}, nil
}

// claimSource checks that a claim is bound to a volume of this driver and not
// larger than the new one (P controller.go:1050 getPVCSource). The finalizer
// that keeps the source during the cloning is not simulated.
func (h *handler) claimSource(pvc *corev1.PersistentVolumeClaim, sc *storagev1.StorageClass) (*csi.VolumeContentSource, error) {
	name := pvc.Spec.DataSource.Name
	src, err := store.Get[corev1.PersistentVolumeClaim](h.Client, pvc.Namespace, name)
	if err != nil {
		return nil, fmt.Errorf("error getting PVC %s (namespace %q) from api server: %w", name, pvc.Namespace, err)
	}
	invalid := errors.New("claim in dataSource not bound or invalid")
	want, have := pvc.Spec.Resources.Requests[corev1.ResourceStorage], src.Spec.Resources.Requests[corev1.ResourceStorage]
	switch {
	case src.Status.Phase != corev1.ClaimBound:
		return nil, fmt.Errorf("the PVC DataSource %s must have a status of Bound. Got %v", name, src.Status.Phase)
	case src.DeletionTimestamp != nil:
		return nil, fmt.Errorf("the PVC DataSource %s is currently being deleted", name)
	case want.Cmp(have) < 0:
		return nil, fmt.Errorf("error, new PVC request must be greater than or equal in size to the specified PVC data source, requested %v but source is %v", want.Value(), have.Value())
	}
	pv, err := store.Get[corev1.PersistentVolume](h.Client, "", src.Spec.VolumeName)
	if err != nil || pv.Spec.CSI == nil || pv.Spec.CSI.Driver != sc.Provisioner || pv.Spec.ClaimRef == nil ||
		pv.Spec.ClaimRef.UID != src.UID || pv.Status.Phase != corev1.VolumeBound {
		return nil, invalid
	}
	if sidecar.IsBlock(pvc.Spec.VolumeMode) != sidecar.IsBlock(pv.Spec.VolumeMode) {
		return nil, errors.New("the source PVC and destination PVCs must have the same volume mode for cloning")
	}
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: pv.Spec.CSI.VolumeHandle}}}, nil
}

package kubeletsim

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// nodeExpansionNotRequired marks a claim whose nodes have nothing to do
// (pkg/volume/util/types, NodeExpansionNotRequired).
const nodeExpansionNotRequired = "volume.kubernetes.io/node-expansion-not-required"

// expandDuringMount grows a volume that was mounted just now and whose claim
// is behind its PV (operation_generator.go:1960).
func (k *Kubelet) expandDuringMount(ctx context.Context, op operation, volumePath, staging string) error {
	pvc, err := k.claimOf(op.spec)
	if err != nil {
		return fmt.Errorf("mountVolume.NodeExpandVolume get PVC failed : %v", err)
	}
	have, want := pvc.Status.Capacity[corev1.ResourceStorage], op.spec.pv.Spec.Capacity[corev1.ResourceStorage]
	if have.Cmp(want) >= 0 {
		return nil
	}
	_, _, err = k.nodeExpand(ctx, op, pvc, have, want, volumePath, staging)
	return err
}

// expandInUse grows a volume that pods use (operation_generator.go:1825).
func (k *Kubelet) expandInUse(ctx context.Context, op operation) error {
	volumePath, staging := k.dirs.publish(op.uid, op.innerName), k.dirs.stage(op.spec.csi().Driver, op.spec.csi().VolumeHandle)
	if op.spec.block() {
		k.mu.Lock()
		volumePath = k.world.actual[op.volume].devicePath
		k.mu.Unlock()
		staging = k.dirs.blockStage(op.innerName)
	}
	k.mu.Lock()
	k.world.watchClaim(op.spec)
	k.mu.Unlock()
	pvc, err := k.claimOf(op.spec)
	if err != nil {
		return opError("NodeExpandVolume.NodeExpandVolume failed", op.spec, fmt.Errorf("mountVolume.NodeExpandVolume get PVC failed : %w", err))
	}
	asked := pvc.ResourceVersion
	done, size, err := k.nodeExpand(ctx, op, pvc, op.oldSize, op.size, volumePath, staging)
	if err != nil {
		return opError("NodeExpandVolume.NodeExpandVolume failed", op.spec, err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if v := k.world.actual[op.volume]; v != nil {
		if done {
			v.size = size
		}
		if v.size.Cmp(op.size) < 0 {
			k.world.waitForClaim(v, op.spec, asked)
		}
	}
	return nil
}

// nodeExpand is the common part. done says that this node need not try again.
func (k *Kubelet) nodeExpand(ctx context.Context, op operation, pvc *corev1.PersistentVolumeClaim, have, want resource.Quantity, volumePath, staging string) (done bool, size resource.Quantity, err error) {
	if op.spec.readOnly {
		msg := fmt.Sprintf("MountVolume.NodeExpandVolume failed for volume %q requested read-only file system", op.spec.name())
		k.event(op.pod, warning, "FileSystemResizeFailed", msg)
		k.event(pvc, warning, "FileSystemResizeFailed", msg)
		return true, have, nil
	}
	resizing := pvc.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
	if resizing == "" && pvc.Status.AllocatedResources == nil {
		return k.expandLegacy(ctx, op, pvc, have, want, volumePath, staging)
	}
	want = pvc.Status.AllocatedResources[corev1.ResourceStorage]
	return k.expandRecovering(ctx, op, pvc, resizing, have, want, volumePath, staging)
}

// expandLegacy is for a resizer that doesn't use allocatedResources
// (operation_generator.go:2104).
func (k *Kubelet) expandLegacy(ctx context.Context, op operation, pvc *corev1.PersistentVolumeClaim, have, want resource.Quantity, volumePath, staging string) (bool, resource.Quantity, error) {
	switch err := k.expandCall(ctx, op, want, volumePath, staging); {
	case is[*notSupportedError](err):
		return true, want, nil
	case is[*preconditionError](err):
		k.noExpandInUse(op.volume)
		return true, want, nil
	case err != nil:
		return false, have, err
	}
	k.expandSucceeded(ctx, op, pvc)
	if c := pvc.Status.Capacity[corev1.ResourceStorage]; c.Cmp(want) >= 0 {
		return true, want, nil
	}
	if err := k.resizeFinished(ctx, pvc, want); err != nil {
		return false, have, fmt.Errorf("mountVolume.NodeExpandVolume update PVC status failed : %v", err)
	}
	return true, want, nil
}

// expandRecovering is pkg/volume/util/operationexecutor/node_expander.go.
func (k *Kubelet) expandRecovering(ctx context.Context, op operation, pvc *corev1.PersistentVolumeClaim, resizing corev1.ClaimResourceStatus, have, want resource.Quantity, volumePath, staging string) (bool, resource.Quantity, error) {
	// runPreCheck
	k.mu.Lock()
	v := k.world.actual[op.volume]
	failedBefore := v != nil && v.expandFailed
	k.mu.Unlock()
	asked := pvc.Spec.Resources.Requests[corev1.ResourceStorage]
	infeasibleOnFailure := asked.Cmp(want) != 0 && failedBefore
	claimHas := pvc.Status.Capacity[corev1.ResourceStorage]
	updated := claimHas.Cmp(want) >= 0 && resizing == ""
	allowed := resizing == corev1.PersistentVolumeClaimNodeResizePending || resizing == corev1.PersistentVolumeClaimNodeResizeInProgress ||
		updated && slices.Contains(pvc.Spec.AccessModes, corev1.ReadWriteMany) && !metav1.HasAnnotation(pvc.ObjectMeta, nodeExpansionNotRequired)
	if !allowed {
		if updated {
			return true, want, nil // the controller did all of it
		}
		return false, have, nil // not this node's turn
	}
	if !updated {
		if err := k.claimStatus(ctx, pvc, func(s *corev1.PersistentVolumeClaimStatus) {
			setResizeStatus(s, corev1.PersistentVolumeClaimNodeResizeInProgress)
		}); err != nil {
			return false, have, err
		}
	}
	if err := k.expandCall(ctx, op, want, volumePath, staging); err != nil {
		if is[*notSupportedError](err) && updated {
			return true, want, nil
		}
		if finished(err) {
			k.mu.Lock()
			if v := k.world.actual[op.volume]; v != nil {
				v.expandFailed = true
			}
			k.mu.Unlock()
			cond := corev1.PersistentVolumeClaimCondition{Type: corev1.PersistentVolumeClaimNodeResizeError, Status: corev1.ConditionTrue,
				LastTransitionTime: metav1.NewTime(time.Now()), Message: fmt.Sprintf("failed to expand pvc with %v", err)}
			if serr := k.claimStatus(ctx, pvc, func(s *corev1.PersistentVolumeClaimStatus) {
				if is[*infeasibleError](err) || infeasibleOnFailure {
					setResizeStatus(s, corev1.PersistentVolumeClaimNodeResizeInfeasible)
				}
				mergeResizeConditions(s, true, cond)
			}); serr != nil {
				k.log.Error("MountVolume.NodeExpandVolume failed to mark node expansion as failed", "volume", op.volume, "error", serr)
			}
		}
		if is[*preconditionError](err) {
			k.noExpandInUse(op.volume)
			return false, have, nil
		}
		return false, have, err
	}
	k.expandSucceeded(ctx, op, pvc)
	if updated {
		return true, want, nil
	}
	if err := k.resizeFinished(ctx, pvc, want); err != nil {
		return true, want, fmt.Errorf("mountVolume.NodeExpandVolume update pvc status failed: %w", err)
	}
	return true, want, nil
}

// expandCall is pkg/volume/csi/expander.go. An uncertain error ends up wrapped
// and so counts as final, as there (expander.go:122).
func (k *Kubelet) expandCall(ctx context.Context, op operation, want resource.Quantity, volumePath, staging string) error {
	src := op.spec.csi()
	c, err := k.client(src.Driver)
	if err != nil {
		return &transientError{err.Error()}
	}
	ctx, cancel := context.WithTimeout(ctx, k.t.CSICall)
	defer cancel()
	ok, err := c.supports(ctx, csi.NodeServiceCapability_RPC_EXPAND_VOLUME)
	if err != nil {
		return fmt.Errorf("Expander.NodeExpand failed to check if node supports expansion : %v", err)
	}
	if !ok {
		return &notSupportedError{"NodeExpand is not supported by the CSI driver " + src.Driver}
	}
	secrets, err := k.secret(src.NodeExpandSecretRef)
	if err != nil {
		return fmt.Errorf("expander.NodeExpand failed to get NodeExpandSecretRef %s/%s: %v", src.NodeExpandSecretRef.Namespace, src.NodeExpandSecretRef.Name, err)
	}
	err = c.expand(ctx, mountArgs{volumeID: src.VolumeHandle, secrets: secrets, accessMode: op.spec.accessMode(),
		block: op.spec.block(), fsType: src.FSType, mountFlags: op.spec.pv.Spec.MountOptions}, volumePath, staging, want)
	if err == nil {
		return nil
	}
	if st, ok := status.FromError(err); ok {
		switch st.Code() {
		case codes.FailedPrecondition:
			return fmt.Errorf("Expander.NodeExpand failed to expand the volume : %w", &preconditionError{err.Error()})
		case codes.InvalidArgument, codes.OutOfRange, codes.NotFound:
			return &infeasibleError{"Expander.NodeExpand failed to expand the volume " + err.Error()}
		}
	}
	return fmt.Errorf("Expander.NodeExpand failed to expand the volume : %w", err)
}

func (k *Kubelet) noExpandInUse(n volumeName) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if v := k.world.actual[n]; v != nil {
		v.noInUseExpand = true
	}
}

func (k *Kubelet) expandSucceeded(ctx context.Context, op operation, pvc *corev1.PersistentVolumeClaim) {
	msg := fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q %s", op.spec.name(), k.cfg.NodeName)
	k.event(op.pod, normal, "FileSystemResizeSuccessful", msg)
	k.event(pvc, normal, "FileSystemResizeSuccessful", msg)
}

// resizeFinished gives the claim its new capacity and clears what told of the
// resize (pkg/volume/util/resize_util.go, MarkNodeExpansionFinishedWithRecovery).
func (k *Kubelet) resizeFinished(ctx context.Context, pvc *corev1.PersistentVolumeClaim, size resource.Quantity) error {
	return k.claimStatus(ctx, pvc, func(s *corev1.PersistentVolumeClaimStatus) {
		if s.Capacity == nil {
			s.Capacity = corev1.ResourceList{}
		}
		s.Capacity[corev1.ResourceStorage] = size
		delete(s.AllocatedResourceStatuses, corev1.ResourceStorage)
		if len(s.AllocatedResourceStatuses) == 0 {
			s.AllocatedResourceStatuses = nil
		}
		mergeResizeConditions(s, false)
	})
}

// claimStatus updates the status of the claim as it was read: a conflict is an
// error and the operation is repeated, as with kubelet's patch by resource version.
func (k *Kubelet) claimStatus(ctx context.Context, pvc *corev1.PersistentVolumeClaim, f func(*corev1.PersistentVolumeClaimStatus)) error {
	next := pvc.DeepCopy()
	f(&next.Status)
	if err := k.cfg.Client.UpdateStatus(ctx, next); err != nil {
		return fmt.Errorf("patchPVCStatus failed to patch PVC %q: %v", pvc.Name, err)
	}
	*pvc = *next
	return nil
}

func setResizeStatus(s *corev1.PersistentVolumeClaimStatus, st corev1.ClaimResourceStatus) {
	if s.AllocatedResourceStatuses == nil {
		s.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{}
	}
	s.AllocatedResourceStatuses[corev1.ResourceStorage] = st
}

// mergeResizeConditions sets resize conditions; other resize conditions stay
// only with keep (resize_util.go, MergeResizeConditionOnPVC).
func mergeResizeConditions(s *corev1.PersistentVolumeClaimStatus, keep bool, set ...corev1.PersistentVolumeClaimCondition) {
	var out []corev1.PersistentVolumeClaimCondition
	for _, old := range s.Conditions {
		switch old.Type {
		case corev1.PersistentVolumeClaimFileSystemResizePending, corev1.PersistentVolumeClaimResizing,
			corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError:
			i := slices.IndexFunc(set, func(c corev1.PersistentVolumeClaimCondition) bool { return c.Type == old.Type })
			switch {
			case i >= 0 && set[i].Status != old.Status:
				out, set = append(out, set[i]), slices.Delete(set, i, i+1)
			case i >= 0:
				out, set = append(out, old), slices.Delete(set, i, i+1)
			case keep:
				out = append(out, old)
			}
		default:
			out = append(out, old)
		}
	}
	s.Conditions = append(out, set...)
}

// Usage is what the driver tells about a pod's volume.
type Usage struct {
	TotalBytes, UsedBytes, AvailableBytes    int64
	TotalInodes, UsedInodes, AvailableInodes int64
}

// VolumeStats asks the driver for a pod's volume, by the name in the pod's
// spec (pkg/volume/csi/csi_metrics.go).
func (k *Kubelet) VolumeStats(ctx context.Context, namespace, pod, volume string) (Usage, error) {
	w, err := k.podByName(namespace, pod)
	if err != nil {
		return Usage{}, err
	}
	k.mu.Lock()
	n := k.world.byPod[w.uid][volume]
	var spec volumeSpec
	v := k.world.actual[n]
	if v != nil && v.pods[w.uid] != nil {
		spec = v.pods[w.uid].spec
	}
	k.mu.Unlock()
	if spec.pv == nil {
		return Usage{}, fmt.Errorf("pod %s/%s: volume %q is not mounted", namespace, pod, volume)
	}
	c, err := k.client(spec.csi().Driver)
	if err != nil {
		return Usage{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, k.t.CSICall)
	defer cancel()
	ok, err := c.supports(ctx, csi.NodeServiceCapability_RPC_GET_VOLUME_STATS)
	if err != nil {
		return Usage{}, err
	}
	if !ok {
		return Usage{}, errors.New("volume stats are not supported by the CSI driver " + spec.csi().Driver)
	}
	p := k.dirs.publish(w.uid, spec.name())
	if spec.block() {
		p = path.Join(k.dirs.blockGlobal(spec.name()), w.uid) // csi_plugin.go, NewBlockVolumeMapper
	}
	out, err := c.stats(ctx, spec.csi().VolumeHandle, p)
	if err != nil {
		return Usage{}, err
	}
	var u Usage
	for _, x := range out.GetUsage() {
		switch x.GetUnit() {
		case csi.VolumeUsage_BYTES:
			u.TotalBytes, u.UsedBytes, u.AvailableBytes = x.GetTotal(), x.GetUsed(), x.GetAvailable()
		case csi.VolumeUsage_INODES:
			u.TotalInodes, u.UsedInodes, u.AvailableInodes = x.GetTotal(), x.GetUsed(), x.GetAvailable()
		}
	}
	return u, nil
}

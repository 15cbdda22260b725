package resizer

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// target is the size that a claim is to be expanded to now; ok is false where
// nothing is to do. An expansion that is under way or pending on the node is
// finished before one to another size begins; only after the driver said for
// good that it failed, the user's present wish counts
// (pkg/controller/expand_and_recover.go expandAndRecover).
func target(pvc *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume, failedForGood bool) (size resource.Quantity, ok bool) {
	want := pvc.Spec.Resources.Requests[corev1.ResourceStorage]
	has := pv.Spec.Capacity[corev1.ResourceStorage]
	status := pvc.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
	allocated, isAllocated := pvc.Status.AllocatedResources[corev1.ResourceStorage]
	last := want // the size of the expansion before
	if isAllocated {
		last = allocated
	}
	if has.Cmp(want) < 0 {
		switch status {
		case corev1.PersistentVolumeClaimNodeResizeInfeasible:
			return last, true
		case corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress:
			return last, has.Cmp(last) < 0
		case corev1.PersistentVolumeClaimControllerResizeInProgress:
			if failedForGood {
				return want, true
			}
			return last, true
		}
		return want, true
	}
	// The PV has been expanded, by an operation whose outcome may not have
	// been recorded, or to more than the user wants by now.
	switch status {
	case corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress:
		return last, false // the kubelet's turn
	case corev1.PersistentVolumeClaimNodeResizeInfeasible,
		corev1.PersistentVolumeClaimControllerResizeInProgress, corev1.PersistentVolumeClaimControllerResizeInfeasible:
		return last, true
	}
	if status == "" && isAllocated {
		return last, true
	}
	return want, !hasCondition(pvc, corev1.PersistentVolumeClaimFileSystemResizePending)
}

func hasCondition(pvc *corev1.PersistentVolumeClaim, t corev1.PersistentVolumeClaimConditionType) bool {
	for _, c := range pvc.Status.Conditions {
		if c.Type == t && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}

// withCondition adds or replaces a condition; keep says whether the other
// conditions of a resize stay. A zero type adds none.
func withCondition(old []corev1.PersistentVolumeClaimCondition, c corev1.PersistentVolumeClaimCondition, keep bool) []corev1.PersistentVolumeClaimCondition {
	var out []corev1.PersistentVolumeClaimCondition
	placed := c.Type == ""
	for _, o := range old {
		switch o.Type {
		case c.Type:
			out = append(out, c)
			placed = true
		case corev1.PersistentVolumeClaimResizing, corev1.PersistentVolumeClaimFileSystemResizePending,
			corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError:
			if keep {
				out = append(out, o)
			}
		default:
			out = append(out, o)
		}
	}
	if !placed {
		out = append(out, c)
	}
	return out
}

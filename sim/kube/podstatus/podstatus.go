// Package podstatus answers what controllers ask about a pod.
package podstatus

import corev1 "k8s.io/api/core/v1"

// Terminated says whether none of a pod's containers runs or will run again,
// so that its volumes are not wanted any more. A pod that is being deleted
// counts once its containers are reported as stopped (or never were reported).
// Source: k8s v1.37.2 pkg/volume/util/util.go IsPodTerminated.
func Terminated(p *corev1.Pod) bool {
	if Ended(p) {
		return true
	}
	if p.DeletionTimestamp == nil {
		return false
	}
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses} {
		for _, s := range list {
			if s.State.Terminated == nil && s.State.Waiting == nil {
				return false
			}
		}
	}
	return true
}

// Ended says whether the pod is Succeeded or Failed.
func Ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// SetCondition sets a condition and says whether that changed anything. The
// transition time of a status that stays is kept.
func SetCondition(s *corev1.PodStatus, c corev1.PodCondition) bool {
	for i := range s.Conditions {
		old := &s.Conditions[i]
		if old.Type != c.Type {
			continue
		}
		if old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		if *old == c {
			return false
		}
		*old = c
		return true
	}
	s.Conditions = append(s.Conditions, c)
	return true
}

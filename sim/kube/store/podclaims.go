package store

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/ephemeral"
)

// ClaimName is the claim behind a volume of a pod, "" for other kinds. That of a
// generic ephemeral volume is named after the pod and the volume, and may be
// another's: see Usable.
func ClaimName(p *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return ephemeral.VolumeClaimName(p, v)
	}
	return ""
}

// Usable says why a claim is none for a volume of a pod, although it has the name:
// that of an ephemeral volume must have been made for the pod.
func Usable(p *corev1.Pod, v *corev1.Volume, c *corev1.PersistentVolumeClaim) error {
	if v.Ephemeral == nil {
		return nil
	}
	return ephemeral.VolumeIsForPod(p, c)
}

// Uses says whether a claim is behind a volume of a pod.
func Uses(p *corev1.Pod, c *corev1.PersistentVolumeClaim) bool {
	return p.Namespace == c.Namespace && slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
		return ClaimName(p, &v) == c.Name && Usable(p, &v, c) == nil
	})
}

// ClaimKeys are the keys of the claims that a pod names, in the order of its volumes.
func ClaimKeys(p *corev1.Pod) []string {
	var out []string
	for _, v := range p.Spec.Volumes {
		if name := ClaimName(p, &v); name != "" {
			out = append(out, key(p.Namespace, name))
		}
	}
	return out
}

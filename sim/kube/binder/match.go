package binder

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	volumehelpers "k8s.io/component-helpers/storage/volume"

	"github.com/csilab/csilab/sim/kube/store"
)

// bestMatch finds the volume for a claim: one that is reserved for it, or else
// the smallest available one that fits. Volumes are tried by their set of
// access modes, those with the fewest modes first (index.go:83-170). With
// delayed binding only a reserved one is taken; the scheduler does the rest.
func (b *Controller) bestMatch(claim *corev1.PersistentVolumeClaim, delayed bool) (*corev1.PersistentVolume, error) {
	candidates := store.ListBy[corev1.PersistentVolume](b.c, store.VolumesByClaim, store.Key(claim))
	if !delayed {
		for _, v := range store.ListBy[corev1.PersistentVolume](b.c, store.VolumesByClaim, "") {
			if volumehelpers.GetPersistentVolumeClass(v) == volumehelpers.GetPersistentVolumeClaimClass(claim) {
				candidates = append(candidates, v)
			}
		}
	}
	groups := map[string][]*corev1.PersistentVolume{}
	for _, v := range candidates {
		if volumehelpers.CheckAccessModes(claim, v) {
			modes := make([]string, 0, len(v.Spec.AccessModes))
			for _, m := range v.Spec.AccessModes {
				modes = append(modes, string(m))
			}
			slices.Sort(modes)
			k := fmt.Sprintf("%02d %s", len(modes), strings.Join(modes, ","))
			groups[k] = append(groups[k], v)
		}
	}
	keys := make([]string, 0, len(groups))
	for k := range groups {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		v, err := volumehelpers.FindMatchingVolume(claim, groups[k], nil, nil, delayed, true)
		if v != nil || err != nil {
			return v, err
		}
	}
	return nil, nil
}

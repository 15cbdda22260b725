package scenarios

import (
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csilab/csilab/sim/kube/store"
)

// rounds say in which order claims and snapshots of manifests are made, so that a
// snapshot holds what its claim's pod wrote: what is restored comes a round after
// what it was taken of, which may be restored itself.
type rounds struct {
	claims []*corev1.PersistentVolumeClaim
	snaps  []*snapshotv1.VolumeSnapshot
}

// source is what a claim is made from; "" is nothing.
func source(c *corev1.PersistentVolumeClaim) (kind, name string) {
	if s := c.Spec.DataSourceRef; s != nil {
		return s.Kind, s.Name
	}
	if s := c.Spec.DataSource; s != nil {
		return s.Kind, s.Name
	}
	return "", ""
}

func (r rounds) claim(namespace, name string, depth int) int {
	i := slices.IndexFunc(r.claims, func(c *corev1.PersistentVolumeClaim) bool { return c.Namespace == namespace && c.Name == name })
	if i < 0 || depth > len(r.claims) { // of the user's that is nobody's, or one that would be made from itself
		return 0
	}
	switch kind, from := source(r.claims[i]); kind {
	case "VolumeSnapshot":
		return r.snapshot(namespace, from, depth) + 1
	case "PersistentVolumeClaim":
		return r.claim(namespace, from, depth+1)
	}
	return 0
}

func (r rounds) snapshot(namespace, name string, depth int) int {
	i := slices.IndexFunc(r.snaps, func(s *snapshotv1.VolumeSnapshot) bool { return s.Namespace == namespace && s.Name == name })
	if i < 0 || r.snaps[i].Spec.Source.PersistentVolumeClaimName == nil {
		return 0
	}
	return r.claim(namespace, *r.snaps[i].Spec.Source.PersistentVolumeClaimName, depth+1)
}

func (r rounds) ofClaim(c *corev1.PersistentVolumeClaim) int { return r.claim(c.Namespace, c.Name, 0) }

// ofPod is the round in which all claims of a pod are there.
func (r rounds) ofPod(p *corev1.Pod) (last int) {
	for _, name := range claimsOf(p) {
		last = max(last, r.claim(p.Namespace, name, 0))
	}
	return last
}

// snapshots are those that are taken in a round.
func (r rounds) snapshots(round int) (out []*snapshotv1.VolumeSnapshot) {
	for _, s := range r.snaps {
		if r.snapshot(s.Namespace, s.Name, 0) == round {
			out = append(out, s)
		}
	}
	return out
}

// last is the last round in which something is made.
func (r rounds) last() (last int) {
	for _, c := range r.claims {
		last = max(last, r.ofClaim(c))
	}
	return last
}

// mounts says whether a container of a pod has a claim's volume: a kubelet leaves
// out the others (desired_state_of_world_populator.go, v1.37.2).
func mounts(p *corev1.Pod, claim string) bool {
	has := func(c corev1.Container) bool {
		for _, v := range p.Spec.Volumes {
			if store.ClaimName(p, &v) == claim &&
				(slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == v.Name }) ||
					slices.ContainsFunc(c.VolumeDevices, func(d corev1.VolumeDevice) bool { return d.Name == v.Name })) {
				return true
			}
		}
		return false
	}
	return slices.ContainsFunc(p.Spec.Containers, has) || slices.ContainsFunc(p.Spec.InitContainers, has)
}

// labHas says whether an object is of a kind of which a lab has some itself, under
// the names that manifests for a cluster have: namespaces, the driver's, and the
// Secret with the address of the array, which can only be the lab's.
func labHas(o store.Object) bool {
	switch o.(type) {
	case *corev1.Namespace, *corev1.Secret, *storagev1.CSIDriver:
		return true
	}
	return false
}

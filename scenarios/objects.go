package scenarios

import (
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/scenarios/object"
	"github.com/csilab/csilab/sim"
)

// What most scenarios are made of.
var (
	claim        = object.Claim
	block        = object.Block
	fromSnapshot = object.FromSnapshot
	fromClaim    = object.FromClaim
	pod          = object.Pod
)

// tolerateNothing makes a pod leave a lost node at once.
func tolerateNothing(p *corev1.Pod) *corev1.Pod {
	zero := int64(0)
	for _, key := range []string{"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"} {
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &zero})
	}
	return p
}

// mode sets a claim's access mode.
func mode(m corev1.PersistentVolumeAccessMode) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{m} }
}

// volumeNamed makes a claim one for a certain volume, without a class.
func volumeNamed(pv string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName, c.Spec.StorageClassName = pv, new(string) }
}

// volume is a PersistentVolume that an administrator makes for a volume that
// is there already; it is retained.
func volume(l *sim.Lab, name, handle, size string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: l.Source(handle, "ext4")},
		},
	}
}

// snapshotOf is a VolumeSnapshot of a claim.
func snapshotOf(name, pvc string) *snapshotv1.VolumeSnapshot {
	class := "snap"
	return &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: sim.Namespace, Name: name}, Spec: snapshotv1.VolumeSnapshotSpec{
		VolumeSnapshotClassName: &class, Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &pvc}}}
}

package sim

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
)

// SecretNamespace is where the Secret with an array's address and password is, as
// HPE's own manifests have it.
const SecretNamespace = "hpe-storage"

const secretName = "hpe-backend"

// Parameters are those that a StorageClass of the lab's backend needs, with
// more of them: the references of its Secret, and the protocol.
func (l *Lab) Parameters(more map[string]string) map[string]string {
	out := map[string]string{}
	if l.opts.Backend == HPE {
		out["accessProtocol"] = l.opts.Protocol
		for _, k := range []string{"provisioner", "controller-publish", "node-stage", "node-publish", "controller-expand"} {
			out["csi.storage.k8s.io/"+k+"-secret-name"] = secretName
			out["csi.storage.k8s.io/"+k+"-secret-namespace"] = SecretNamespace
		}
	}
	maps.Copy(out, more)
	return out
}

// SnapshotParameters are those of a VolumeSnapshotClass.
func (l *Lab) SnapshotParameters() map[string]string {
	if l.opts.Backend != HPE {
		return nil
	}
	out := map[string]string{}
	for _, k := range []string{"snapshotter", "snapshotter-list"} {
		out["csi.storage.k8s.io/"+k+"-secret-name"] = secretName
		out["csi.storage.k8s.io/"+k+"-secret-namespace"] = SecretNamespace
	}
	return out
}

// Source is what a PersistentVolume that an administrator makes says of a
// volume that is there.
func (l *Lab) Source(handle, fsType string) *corev1.CSIPersistentVolumeSource {
	s := &corev1.CSIPersistentVolumeSource{Driver: l.DriverName(), VolumeHandle: handle, FSType: fsType}
	if l.opts.Backend == HPE {
		ref := &corev1.SecretReference{Name: secretName, Namespace: SecretNamespace}
		s.ControllerPublishSecretRef, s.NodeStageSecretRef, s.NodePublishSecretRef, s.ControllerExpandSecretRef = ref, ref, ref, ref
		s.VolumeAttributes = map[string]string{"accessProtocol": l.opts.Protocol}
	}
	return s
}

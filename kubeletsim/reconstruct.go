package kubeletsim

import (
	"path"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/kube/store"
)

// reconstruct rebuilds the actual state from the node's disk. All that is
// found is uncertain: it is mounted again for the pods that want it and
// unmounted for those that don't (pkg/kubelet/volumemanager/reconciler/reconstruct.go).
func (k *Kubelet) reconstruct() {
	for _, pod := range k.listDir(k.dirs.pods()) {
		for _, pv := range k.listDir(k.dirs.csiVolumes(pod)) {
			dir := path.Join(k.dirs.csiVolumes(pod), pv)
			data, err := k.loadData(dir)
			if err != nil {
				// kubelet tries one unmount, which needs the same file, and then leaves
				// the directory (reconstruct.go, cleanOrphanVolumes).
				k.log.Error("could not reconstruct a volume", "pod", pod, "volume", pv, "error", err)
				continue
			}
			s := foundSpec(data[keySpecVolID], data[keyDriver], data[keyHandle], corev1.PersistentVolumeFilesystem)
			k.found(s, pod, pv, k.dirs.stage(data[keyDriver], data[keyHandle]))
		}
		for _, pv := range k.listDir(k.dirs.blockPodDir(pod)) {
			data, err := k.loadData(k.dirs.blockData(pv))
			if err != nil {
				k.log.Error("could not reconstruct a block volume", "pod", pod, "volume", pv, "error", err)
				continue
			}
			s := foundSpec(data[keySpecVolID], data[keyDriver], data[keyHandle], corev1.PersistentVolumeBlock)
			k.found(s, pod, pv, k.dirs.blockGlobal(pv))
		}
	}
	if k.cfg.Forgetful {
		return
	}
	// What follows kubelet v1.37.2 lacks: a volume that is staged and that no pod
	// has any more, because kubelet stopped before NodeUnstageVolume, or one
	// whose block publish failed half-way (kubernetes#121937, KEP-6058).
	for _, driver := range k.listDir(k.dirs.plugins()) {
		if driver == blockSub {
			continue
		}
		for _, sha := range k.listDir(path.Join(k.dirs.plugins(), driver)) {
			dir := path.Join(k.dirs.plugins(), driver, sha)
			staging := path.Join(dir, "globalmount")
			data, err := k.loadData(dir)
			if missing(err) { // the data file goes after the mount point: only an empty directory is left
				if err := k.removeMountDir(staging); err != nil {
					k.log.Error("could not remove a staging directory", "path", staging, "error", err)
				}
			}
			if err != nil {
				continue
			}
			if k.dirs.stage(data[keyDriver], data[keyHandle]) != staging {
				continue
			}
			k.found(foundSpec("", data[keyDriver], data[keyHandle], corev1.PersistentVolumeFilesystem), "", "", staging)
		}
	}
	for _, pv := range k.listDir(k.dirs.blockRoot()) {
		if pv == "staging" || pv == "publish" {
			continue
		}
		data, err := k.loadData(k.dirs.blockData(pv))
		if missing(err) { // it comes before and goes after staging
			if err := k.cleanBlockFiles(pv); err != nil {
				k.log.Error("could not remove a block volume's directories", "volume", pv, "error", err)
			}
		}
		if err != nil {
			continue
		}
		s := foundSpec(pv, data[keyDriver], data[keyHandle], corev1.PersistentVolumeBlock)
		k.found(s, "", "", k.dirs.blockGlobal(pv))
		for _, uid := range append(k.listDir(k.dirs.blockPublishDir(pv)), k.listDir(k.dirs.blockGlobal(pv))...) {
			k.found(s, uid, pv, k.dirs.blockGlobal(pv))
		}
	}
}

func (k *Kubelet) listDir(p string) []string {
	entries, err := k.cfg.Host.ReadDir(p)
	if err != nil && !missing(err) {
		k.log.Error("could not read a directory", "path", p, "error", err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// foundSpec is what the files tell of a volume (pkg/volume/csi/csi_plugin.go,
// constructPVSourceSpec).
func foundSpec(pv, driver, handle string, mode corev1.PersistentVolumeMode) volumeSpec {
	return volumeSpec{pv: &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: pv}, Spec: corev1.PersistentVolumeSpec{
		VolumeMode: &mode, PersistentVolumeSource: corev1.PersistentVolumeSource{
			CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}}}}}
}

// found adds a volume that is on disk; uid "" if no pod is known to have it.
func (k *Kubelet) found(s volumeSpec, uid, dirName, mountPath string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := s.unique()
	v := k.world.actual[n]
	if v == nil {
		v = k.world.attached(n, s, attachUncertain, "")
		v.reconstructed = map[string]bool{}
		k.world.setDevice(n, uncertain, "", mountPath)
	}
	if uid != "" {
		v.reconstructed[uid] = true
		v.pods[uid] = &actualPod{uid: uid, innerName: dirName, state: uncertain, spec: s}
	}
}

// learnAttachability asks the Node object which of the volumes found on disk
// are attached; nothing is unmounted before
// (reconstruct.go, updateReconstructedFromNodeStatus). One that is not may be
// attached again while it is known, for another pod, and is then in use until it is
// unstaged: kubelet v1.37.2 calls it not attachable for good, see Config.Forgetful.
func (k *Kubelet) learnAttachability(node *corev1.Node) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for n, v := range k.world.actual {
		if v.attachability != attachUncertain {
			continue
		}
		v.attachability = notAttachable
		if !k.cfg.Forgetful && k.needsAttach(v.spec.csi().Driver) {
			v.attachability = attachable
		}
		for _, a := range node.Status.VolumesAttached {
			if a.Name == n {
				v.attachability = attachable
				if !v.spec.block() || v.devicePath == "" {
					v.devicePath = a.DevicePath
				}
			}
		}
	}
}

// adoptedMounts says whether all claims of a pod that the API server calls
// running are mounted. If so its containers outlived kubelet; after a reboot of
// the node they are not, and the containers have to be started again.
func (k *Kubelet) adoptedMounts(uid string, pod *corev1.Pod) bool {
	for _, v := range pod.Spec.Volumes {
		claim := store.ClaimName(pod, &v)
		if claim == "" {
			continue
		}
		pvc, err := store.Get[corev1.PersistentVolumeClaim](k.cfg.Client, pod.Namespace, claim)
		if err != nil || pvc.Spec.VolumeName == "" {
			return false
		}
		if m := pvc.Spec.VolumeMode; m != nil && *m == corev1.PersistentVolumeBlock {
			if dev, err := k.isDevice(path.Join(k.dirs.blockGlobal(pvc.Spec.VolumeName), uid)); err != nil || !dev {
				return false
			}
			continue
		}
		if m, err := k.isMounted(k.dirs.publish(uid, pvc.Spec.VolumeName)); err != nil || !m {
			return false
		}
	}
	return true
}

package kubeletsim

import (
	"io/fs"
	"path"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

func fsGroupOf(pod *corev1.Pod) *int64 {
	if pod == nil || pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}

// fsGroupPolicy is the driver's (pkg/volume/csi/csi_mounter.go,
// getFSGroupPolicy). The API server defaults the field, so an empty one is an
// error to kubelet; here it counts as the default, since objects may not have
// passed an API server's defaulting.
func fsGroupPolicy(d *storagev1.CSIDriver) (storagev1.FSGroupPolicy, error) {
	if d == nil || d.Spec.FSGroupPolicy == nil || *d.Spec.FSGroupPolicy == "" {
		return storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, nil
	}
	return *d.Spec.FSGroupPolicy, nil
}

// changesGroup says whether kubelet gives the volume to the pod's fsGroup
// (csi_mounter.go, supportsFSGroup).
func changesGroup(s volumeSpec, group *int64, p storagev1.FSGroupPolicy) bool {
	switch {
	case group == nil, p == storagev1.NoneFSGroupPolicy, s.readOnly:
		return false
	case p == storagev1.FileFSGroupPolicy:
		return true
	case s.csi().FSType == "":
		return false
	}
	for _, m := range s.pv.Spec.AccessModes {
		if m == corev1.ReadWriteOnce || m == corev1.ReadWriteOncePod {
			return true
		}
	}
	return false
}

const (
	groupRW   = fs.FileMode(0o660)
	groupExec = fs.FileMode(0o110)
)

// applyFSGroup gives all files to the group, and directories the setgid bit
// (pkg/volume/volume_linux.go). Like kubelet it goes on when a single chown or
// chmod fails.
func (k *Kubelet) applyFSGroup(dir string, group int64, policy *corev1.PodFSGroupChangePolicy) error {
	if policy != nil && *policy == corev1.FSGroupChangeOnRootMismatch && k.rootMatches(dir, group) {
		return nil
	}
	return k.walkGroup(dir, group)
}

func (k *Kubelet) rootMatches(dir string, group int64) bool {
	fi, err := k.cfg.Host.Stat(dir)
	if err != nil || !fi.IsDir() {
		return false
	}
	_, gid, err := k.cfg.Host.Owner(dir)
	if err != nil || int64(gid) != group {
		return false
	}
	want := groupRW | groupExec
	return fi.Mode().Perm()&want == want && fi.Mode()&fs.ModeSetgid != 0
}

// walkGroup changes a directory after what is in it, as kubelet's walkDeep.
func (k *Kubelet) walkGroup(p string, group int64) error {
	h := k.cfg.Host
	fi, err := h.Lstat(p)
	if err != nil {
		return err
	}
	if fi.IsDir() {
		entries, err := h.ReadDir(p)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := k.walkGroup(path.Join(p, e.Name()), group); err != nil {
				return err
			}
		}
	}
	if err := h.Lchown(p, -1, int(group)); err != nil {
		k.log.Error("Lchown failed", "path", p, "error", err)
	}
	if fi.Mode()&fs.ModeSymlink != 0 {
		return nil
	}
	mask := groupRW
	if fi.IsDir() {
		mask |= groupExec | fs.ModeSetgid
	}
	if err := h.Chmod(p, fi.Mode()|mask); err != nil {
		k.log.Error("chmod failed", "path", p, "error", err)
	}
	return nil
}

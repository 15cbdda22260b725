package kubeletsim

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"

	"github.com/csilab/csilab/sim/kube/store"
)

// WriteFile is a program in a container that writes to one of its volumes.
// name is a path in the container: below a volumeMounts[].mountPath, or equal
// to a volumeDevices[].devicePath; container "" is the first that has a volume
// there. With sync it returns once the data is on
// the disk; without, a power loss drops it. Errors: the container does not
// run; name is on no volume; EROFS (as *fs.PathError) where volume or mount is
// read-only; what the host says.
func (k *Kubelet) WriteFile(ctx context.Context, namespace, pod, container, name string, offset int64, data []byte, sync bool) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	p, readOnly, err := k.resolve(namespace, pod, container, name)
	if err != nil {
		return err
	}
	if readOnly {
		return &fs.PathError{Op: "write", Path: name, Err: syscall.EROFS}
	}
	return k.cfg.Host.WriteAt(p, offset, data, sync)
}

// ReadFile is a program in a container that reads n bytes. Errors: as WriteFile.
func (k *Kubelet) ReadFile(ctx context.Context, namespace, pod, container, name string, offset int64, n int) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	p, _, err := k.resolve(namespace, pod, container, name)
	if err != nil {
		return nil, err
	}
	return k.cfg.Host.ReadAt(p, offset, n)
}

// HostPath is where a path of a container is on the node. Errors: as WriteFile.
func (k *Kubelet) HostPath(namespace, pod, container, name string) (string, error) {
	p, _, err := k.resolve(namespace, pod, container, name)
	return p, err
}

func (k *Kubelet) resolve(namespace, podName, container, name string) (hostPath string, readOnly bool, err error) {
	w, err := k.podByName(namespace, podName)
	if err != nil {
		return "", false, err
	}
	k.mu.Lock()
	pod, running := w.pod, w.running
	k.mu.Unlock()
	if !running {
		return "", false, fmt.Errorf("pod %s/%s: container %q is not running: %w %s", namespace, podName, container, ErrNotHere, k.cfg.NodeName)
	}
	var c *corev1.Container
	if container == "" {
		c = ContainerAt(pod, name)
	}
	var have []string
	for i := range pod.Spec.Containers {
		have = append(have, pod.Spec.Containers[i].Name)
		if container != "" && pod.Spec.Containers[i].Name == container {
			c = &pod.Spec.Containers[i]
		}
	}
	if c == nil {
		return "", false, fmt.Errorf("pod %s/%s: no container %q, there are %q", namespace, podName, container, have)
	}
	if !path.IsAbs(name) {
		return "", false, fmt.Errorf("pod %s/%s: path %q: must be absolute", namespace, podName, name)
	}
	name = path.Clean(name)
	for _, d := range c.VolumeDevices {
		if path.Clean(d.DevicePath) != name {
			continue
		}
		p, ro, err := k.volumeDir(w.uid, pod, d.Name)
		return p, ro, err
	}
	var best *corev1.VolumeMount
	var mounts []string
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		mounts = append(mounts, m.MountPath)
		if below(name, MountPoint(*m)) && (best == nil || len(MountPoint(*m)) > len(MountPoint(*best))) {
			best = m
		}
	}
	if best == nil {
		return "", false, fmt.Errorf("pod %s/%s: path %q is on no volume of container %q, its mounts are %q", namespace, podName, name, c.Name, mounts)
	}
	if best.SubPathExpr != "" {
		return "", false, fmt.Errorf("pod %s/%s: volumeMounts[%s].subPathExpr is not supported", namespace, podName, best.Name)
	}
	dir, ro, err := k.volumeDir(w.uid, pod, best.Name)
	if err != nil {
		return "", false, err
	}
	if dir == "" {
		return "", false, fmt.Errorf("pod %s/%s: volume %q is not a claim or an emptyDir: not supported", namespace, podName, best.Name)
	}
	rel := strings.TrimPrefix(name, MountPoint(*best))
	return path.Join(dir, best.SubPath, rel), ro || best.ReadOnly, nil
}

// ContainerAt is the first container of a pod that has a volume at a path in it,
// or else the pod's first.
func ContainerAt(pod *corev1.Pod, name string) *corev1.Container {
	name = path.Clean(name)
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		for _, d := range c.VolumeDevices {
			if path.Clean(d.DevicePath) == name {
				return c
			}
		}
		for _, m := range c.VolumeMounts {
			if below(name, MountPoint(m)) {
				return c
			}
		}
	}
	return &pod.Spec.Containers[0]
}

// MountPoint is where a container has a mount: a mountPath that is relative is
// below the root (kubelet_pods.go makeMounts, v1.37.2).
func MountPoint(m corev1.VolumeMount) string { return path.Join("/", m.MountPath) }

func below(name, dir string) bool {
	return name == dir || dir == "/" || strings.HasPrefix(name, dir+"/")
}

// volumeDir is the directory, or the device, of a pod's volume on the node; ""
// for a kind of volume that is not modelled.
func (k *Kubelet) volumeDir(uid string, pod *corev1.Pod, volume string) (p string, readOnly bool, err error) {
	for _, v := range pod.Spec.Volumes {
		if v.Name != volume {
			continue
		}
		if v.EmptyDir != nil {
			return k.dirs.emptyDir(uid, v.Name), false, nil
		}
		if store.ClaimName(pod, &v) == "" {
			return "", false, nil
		}
		k.mu.Lock()
		n, ok := k.world.byPod[uid][v.Name]
		var spec volumeSpec
		if ok {
			spec = k.world.desired[n].pods[uid].spec
		}
		k.mu.Unlock()
		if !ok {
			return "", false, fmt.Errorf("pod %s/%s: volume %q is not known: %w %s", pod.Namespace, pod.Name, volume, ErrNotHere, k.cfg.NodeName)
		}
		if spec.block() {
			// The container got a device of its own when it was made. This stands for
			// it: the pod's link is made anew whenever the volume is published again.
			return path.Join(k.dirs.blockGlobal(spec.name()), uid), spec.readOnly, nil
		}
		return k.dirs.publish(uid, spec.name()), spec.readOnly, nil
	}
	return "", false, fmt.Errorf("pod %s/%s: no volume %q", pod.Namespace, pod.Name, volume)
}

package sim

import (
	"context"
	"fmt"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/mount-utils"

	"github.com/csilab/csilab/kubeletsim"
	"github.com/csilab/csilab/sim/kube/store"
)

// hostPath is where a path of a running pod is on its node.
func (l *Lab) hostPath(ctx context.Context, pod, p string) (*Node, string, error) {
	o, err := l.Pod(pod)
	if err != nil {
		return nil, "", err
	}
	n := l.node(o.Spec.NodeName)
	if n == nil {
		return nil, "", fmt.Errorf("pod %s runs on no node of this lab (%q)", pod, o.Spec.NodeName)
	}
	var where string
	err = n.inPod(ctx, func(k *kubeletsim.Kubelet) (err error) {
		where, err = k.HostPath(o.Namespace, o.Name, "", p)
		return err
	})
	return n, where, err
}

// Group is the gid of a file or directory that a pod sees.
func (l *Lab) Group(ctx context.Context, pod, p string) (int, error) {
	n, where, err := l.hostPath(ctx, pod, p)
	if err != nil {
		return 0, err
	}
	_, gid, err := n.host.Owner(where)
	return gid, err
}

// MountOptions are those of the mount that a pod has at a path, as its node's
// mount table shows them.
func (l *Lab) MountOptions(ctx context.Context, pod, p string) ([]string, error) {
	n, where, err := l.hostPath(ctx, pod, p)
	if err != nil {
		return nil, err
	}
	ms, err := n.host.Mounter().List()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(ms, func(m mount.MountPoint) bool { return path.Clean(m.Path) == path.Clean(where) })
	if i < 0 {
		return nil, fmt.Errorf("pod %s: nothing is mounted at %s (%s on %s)", pod, p, where, n.Name)
	}
	return ms[i].Opts, nil
}

// Space is what the driver tells of the filesystem that a pod has at a mount
// path.
func (l *Lab) Space(ctx context.Context, pod, mountPath string) (kubeletsim.Usage, error) {
	p, err := l.Pod(pod)
	if err != nil {
		return kubeletsim.Usage{}, err
	}
	n := l.node(p.Spec.NodeName)
	if n == nil {
		return kubeletsim.Usage{}, fmt.Errorf("pod %s runs on no node of this lab (%q)", pod, p.Spec.NodeName)
	}
	k, err := n.agent(ctx)
	if err != nil {
		return kubeletsim.Usage{}, err
	}
	mounts := kubeletsim.ContainerAt(p, mountPath).VolumeMounts
	i := slices.IndexFunc(mounts, func(m corev1.VolumeMount) bool { return kubeletsim.MountPoint(m) == mountPath })
	if i < 0 {
		return kubeletsim.Usage{}, fmt.Errorf("pod %s mounts nothing at %s", pod, mountPath)
	}
	return k.VolumeStats(ctx, p.Namespace, p.Name, mounts[i].Name)
}

// Registered says whether a node's CSINode object has the driver.
func (l *Lab) Registered(node string) bool {
	cn, err := store.Get[storagev1.CSINode](l.user, "", node)
	return err == nil && slices.ContainsFunc(cn.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == l.DriverName() })
}

// Restarted waits until a component was started more often than before.
func (l *Lab) Restarted(ctx context.Context, component string, before int) error {
	return l.poll(ctx, component+" was started again", func() (string, bool) {
		n := l.Starts(component)
		return fmt.Sprintf("it was started %d times", n), n > before
	})
}

// Released waits until a PersistentVolume has lost its claim and is kept.
func (l *Lab) Released(ctx context.Context, pv string) error {
	return l.waitFor(ctx, fmt.Sprintf("PersistentVolume %s is released", pv), func() store.Object {
		if o, err := l.Volume(pv); err == nil {
			return o
		}
		return nil
	}, func() (bool, error) {
		o, err := l.Volume(pv)
		return err == nil && o.Status.Phase == corev1.VolumeReleased, err
	}, "PersistentVolume")
}

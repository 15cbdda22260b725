package sim

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/csilab/csilab/sim/kube/store"
)

// Volume returns a PersistentVolume.
func (l *Lab) Volume(name string) (*corev1.PersistentVolume, error) {
	return store.Get[corev1.PersistentVolume](l.user, "", name)
}

// VolumeID is the backend's id of a claim's volume; "" when it has none.
func (l *Lab) VolumeID(pvc string) string {
	pv, err := l.Volume(l.PVName(pvc))
	if err != nil || pv.Spec.CSI == nil {
		return ""
	}
	return pv.Spec.CSI.VolumeHandle
}

// BackendSize waits until the backend's volume of a claim has exactly the size,
// as the backend rounds it.
func (l *Lab) BackendSize(ctx context.Context, pvc, size string) error {
	q, err := resource.ParseQuantity(size)
	if err != nil {
		return fmt.Errorf("size %q: %w", size, err)
	}
	id := l.VolumeID(pvc)
	return l.poll(ctx, fmt.Sprintf("the volume of %s has %s on the backend", pvc, size), func() (string, bool) {
		for _, v := range l.backend.volumes() {
			if v.id == id {
				return fmt.Sprintf("it has %d bytes", v.bytes), v.bytes == l.rounded(q.Value())
			}
		}
		return "there is none", false
	})
}

// poll looks until f is true; the last words of f are in the error.
func (l *Lab) poll(ctx context.Context, what string, f func() (string, bool)) error {
	for {
		state, ok := f()
		if ok {
			return nil
		}
		if err := l.pause(ctx); err != nil {
			return &TimeoutError{What: what + ": " + state, Err: err}
		}
	}
}

// FilesystemBytes is the size of the filesystem that a pod sees at a mount path.
func (l *Lab) FilesystemBytes(ctx context.Context, pod, mountPath string) (int64, error) {
	u, err := l.Space(ctx, pod, mountPath)
	return u.TotalBytes, err
}

// GrowableClass is the first of the storage classes whose filesystem the nodes
// can grow while it is mounted, or why none can.
func (l *Lab) GrowableClass(classes ...string) (string, error) {
	var why error
	for _, c := range classes {
		sc, err := l.storageClass(c)
		if err != nil {
			return "", err
		}
		err = l.supportsGrow(sc.Parameters["csi.storage.k8s.io/fstype"])
		if err == nil {
			return c, nil
		}
		if why == nil {
			why = err
		}
	}
	return classes[0], why
}

func (l *Lab) storageClass(name string) (*storagev1.StorageClass, error) {
	return store.Get[storagev1.StorageClass](l.user, "", name)
}

func (l *Lab) supportsGrow(fstype string) error {
	if fstype == "" {
		fstype = "ext4" // what provisioner and driver default to
	}
	return l.supportsGrowOn(l.nodes[0], fstype)
}

func (l *Lab) supportsGrowOn(n *Node, fstype string) error {
	if err := n.host.Supports(fstype); err != nil {
		return err
	}
	return n.host.Supports("grow-online:" + fstype)
}

// CanGrowOnline says whether the nodes can grow the filesystem of a claim's
// volume while it is mounted, and why not. A raw block volume always can.
func (l *Lab) CanGrowOnline(pvc string) error {
	c, err := l.PVC(pvc)
	if err != nil {
		return err
	}
	if c.Spec.VolumeMode != nil && *c.Spec.VolumeMode == corev1.PersistentVolumeBlock {
		return nil
	}
	pv, err := l.Volume(c.Spec.VolumeName)
	if err != nil {
		return err
	}
	return l.supportsGrow(pv.Spec.CSI.FSType)
}

// VolumeZone is the zone in a claim's PersistentVolume's node affinity.
func (l *Lab) VolumeZone(pvc string) (string, error) {
	pv, err := l.Volume(l.PVName(pvc))
	if err != nil {
		return "", err
	}
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return "", fmt.Errorf("PersistentVolume %s has no node affinity", pv.Name)
	}
	for _, t := range pv.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, e := range t.MatchExpressions {
			if e.Key == l.facts().zone && len(e.Values) == 1 {
				return e.Values[0], nil
			}
		}
	}
	return "", fmt.Errorf("PersistentVolume %s has no zone in its node affinity", pv.Name)
}

// NotReady waits until the control plane has given a node up.
func (l *Lab) NotReady(ctx context.Context, name string) error {
	return l.waitFor(ctx, fmt.Sprintf("node %s is not ready", name), nil, func() (bool, error) {
		n, err := store.Get[corev1.Node](l.user, "", name)
		if err != nil {
			return false, err
		}
		return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue
		}), nil
	}, "Node")
}

// SizeOnBackend is the size of a claim's volume there now, in bytes.
func (l *Lab) SizeOnBackend(pvc string) (int64, error) { return l.bytesOf(l.VolumeID(pvc)) }

func (l *Lab) bytesOf(id string) (int64, error) {
	for _, v := range l.backend.volumes() {
		if v.id == id {
			return v.bytes, nil
		}
	}
	return 0, fmt.Errorf("the backend has no volume %q", id)
}

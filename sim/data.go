package sim

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/csilab/csilab/kubeletsim"
	"github.com/csilab/csilab/sim/invariant"
	"github.com/csilab/csilab/sim/kube/store"
)

// data remembers what pods wrote and synced, by volume id and by snapshot id:
// the oracle of invariant I8.
type data struct {
	mu        sync.Mutex
	volumes   map[string]map[string][]byte // volume id -> file (relative; "" is a raw block device) -> content
	snapshots map[string]map[string][]byte // snapshot id
}

func newData() *data {
	return &data{volumes: map[string]map[string][]byte{}, snapshots: map[string]map[string][]byte{}}
}

// place is where a path of a container is.
type place struct {
	pvc, volumeID string
	rel           string // "" for a raw block device
	readOnly      bool
}

// locate resolves a path of a pod's container to a volume.
func (l *Lab) locate(pod *corev1.Pod, p string) (place, error) {
	c := kubeletsim.ContainerAt(pod, p)
	claim := func(volume string) (string, bool) {
		for _, v := range pod.Spec.Volumes {
			if name := store.ClaimName(pod, &v); v.Name == volume && name != "" {
				return name, true
			}
		}
		return "", false
	}
	found := func(pvc, rel string, ro bool) (place, error) {
		c, err := store.Get[corev1.PersistentVolumeClaim](l.user, pod.Namespace, pvc)
		if err != nil {
			return place{}, err
		}
		if !store.Uses(pod, c) {
			return place{}, fmt.Errorf("PersistentVolumeClaim %s/%s is not of pod %s/%s", pod.Namespace, pvc, pod.Namespace, pod.Name)
		}
		pv, err := store.Get[corev1.PersistentVolume](l.user, "", c.Spec.VolumeName)
		if err != nil {
			return place{}, err
		}
		return place{pvc: pod.Namespace + "/" + pvc, volumeID: pv.Spec.CSI.VolumeHandle, rel: rel, readOnly: ro}, nil
	}
	for _, d := range c.VolumeDevices {
		if d.DevicePath == p {
			if pvc, ok := claim(d.Name); ok {
				return found(pvc, "", false)
			}
		}
	}
	// The innermost: one volume may be mounted below another.
	mounts := slices.Clone(c.VolumeMounts)
	slices.SortStableFunc(mounts, func(a, b corev1.VolumeMount) int {
		return len(kubeletsim.MountPoint(b)) - len(kubeletsim.MountPoint(a))
	})
	for _, m := range mounts {
		if rel, ok := strings.CutPrefix(p, strings.TrimSuffix(kubeletsim.MountPoint(m), "/")+"/"); ok {
			if pvc, ok := claim(m.Name); ok {
				return found(pvc, path.Join(m.SubPath, rel), m.ReadOnly)
			}
			break
		}
	}
	return place{}, fmt.Errorf("pod %s/%s has no volume at %s", pod.Namespace, pod.Name, p)
}

// expected returns the files of a volume; a volume that was restored starts
// with what its snapshot held.
func (d *data) expected(l *Lab, volumeID string) map[string][]byte {
	d.mu.Lock()
	files, ok := d.volumes[volumeID]
	d.mu.Unlock()
	if ok {
		return files
	}
	files = map[string][]byte{}
	for _, pv := range store.SeeBy[corev1.PersistentVolume](l.user, store.VolumesByHandle, store.VolumeKey(l.DriverName(), volumeID)) {
		if pv.Spec.ClaimRef == nil {
			continue
		}
		c, err := store.See[corev1.PersistentVolumeClaim](l.user, pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name)
		if err != nil || c.Spec.DataSource == nil || c.Spec.DataSource.Kind != "VolumeSnapshot" {
			continue
		}
		if s, err := store.Get[snapshotv1.VolumeSnapshot](l.user, c.Namespace, c.Spec.DataSource.Name); err == nil {
			d.mu.Lock()
			maps.Copy(files, d.snapshots[l.snapshotID(s)])
			d.mu.Unlock()
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if have, ok := d.volumes[volumeID]; ok {
		return have
	}
	d.volumes[volumeID] = files
	return files
}

func (l *Lab) snapshotID(s *snapshotv1.VolumeSnapshot) string {
	if s.Status == nil || s.Status.BoundVolumeSnapshotContentName == nil {
		return ""
	}
	c, err := store.Get[snapshotv1.VolumeSnapshotContent](l.user, "", *s.Status.BoundVolumeSnapshotContentName)
	if err != nil || c.Status == nil || c.Status.SnapshotHandle == nil {
		return ""
	}
	return *c.Status.SnapshotHandle
}

func (d *data) snapshotTaken(l *Lab, s *snapshotv1.VolumeSnapshot) {
	id := l.snapshotID(s)
	if id == "" || s.Spec.Source.PersistentVolumeClaimName == nil {
		return
	}
	pvc, err := store.Get[corev1.PersistentVolumeClaim](l.user, s.Namespace, *s.Spec.Source.PersistentVolumeClaimName)
	if err != nil {
		return
	}
	pv, err := store.Get[corev1.PersistentVolume](l.user, "", pvc.Spec.VolumeName)
	if err != nil || pv.Spec.CSI == nil {
		return
	}
	files := d.expected(l, pv.Spec.CSI.VolumeHandle)
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.snapshots[id]; !ok {
		d.snapshots[id] = maps.Clone(files)
	}
}

// Write writes content to a file or block device of a running pod and syncs
// it. From then on the lab expects to read it back.
func (l *Lab) Write(ctx context.Context, pod, path, content string) error {
	return l.write(ctx, pod, path, content, true)
}

// WriteUnsynced writes without fsync: a power loss may drop it.
func (l *Lab) WriteUnsynced(ctx context.Context, pod, path, content string) error {
	return l.write(ctx, pod, path, content, false)
}

func (l *Lab) write(ctx context.Context, pod, path, content string, sync bool) error {
	p, err := l.Pod(pod)
	if err != nil {
		return err
	}
	pl, err := l.locate(p, path)
	if err != nil {
		return err
	}
	n := l.node(p.Spec.NodeName)
	if n == nil {
		return fmt.Errorf("pod %s runs on no node of this lab (%q)", pod, p.Spec.NodeName)
	}
	if err := n.writePod(ctx, p, path, []byte(content), sync); err != nil {
		return fmt.Errorf("pod %s writes %s: %w", pod, path, err)
	}
	if sync {
		files := l.data.expected(l, pl.volumeID)
		l.data.mu.Lock()
		files[pl.rel] = []byte(content)
		l.data.mu.Unlock()
	}
	return nil
}

// Read reads n bytes of a file or block device in a running pod.
func (l *Lab) Read(ctx context.Context, pod, path string, n int) (string, error) {
	p, err := l.Pod(pod)
	if err != nil {
		return "", err
	}
	node := l.node(p.Spec.NodeName)
	if node == nil {
		return "", fmt.Errorf("pod %s runs on no node of this lab (%q)", pod, p.Spec.NodeName)
	}
	b, err := node.readPod(ctx, p, path, n)
	if err != nil {
		return "", fmt.Errorf("pod %s reads %s: %w", pod, path, err)
	}
	return string(b), nil
}

// Expect reads a file in a pod and compares it.
func (l *Lab) Expect(ctx context.Context, pod, path, content string) error {
	got, err := l.Read(ctx, pod, path, len(content))
	if err != nil {
		return err
	}
	if got != content {
		return fmt.Errorf("pod %s reads %q from %s, expected %q", pod, got, path, content)
	}
	return nil
}

// readBack reads all that the running pods' volumes must hold.
func (l *Lab) readBack(ctx context.Context) (out []invariant.Read) {
	for _, p := range store.List[corev1.Pod](l.user, "") {
		n := l.node(p.Spec.NodeName)
		if p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil || n == nil || n.poweredOff() {
			continue
		}
		var paths []string
		for _, c := range p.Spec.Containers {
			for _, d := range c.VolumeDevices {
				paths = append(paths, d.DevicePath)
			}
			for _, m := range c.VolumeMounts {
				paths = append(paths, strings.TrimSuffix(kubeletsim.MountPoint(m), "/")+"/")
			}
		}
		for _, base := range paths {
			pl, err := l.locate(p, base)
			if err != nil {
				continue
			}
			files := l.data.expected(l, pl.volumeID)
			l.data.mu.Lock()
			files = maps.Clone(files)
			l.data.mu.Unlock()
			for _, rel := range slices.Sorted(maps.Keys(files)) {
				want, file := files[rel], base+rel
				if pl.rel != "" {
					sub, ok := strings.CutPrefix(rel, pl.rel+"/")
					if !ok {
						continue
					}
					file = base + sub
				}
				got, err := n.readPod(ctx, p, file, len(want))
				r := invariant.Read{VolumeID: pl.volumeID, Where: "pod " + store.Key(p), What: file, Want: digest(want), Got: digest(got)}
				if err != nil {
					r.Err = err.Error()
				}
				out = append(out, r)
			}
		}
	}
	return out
}

func digest(b []byte) string {
	if len(b) <= 32 {
		return fmt.Sprintf("%q", b)
	}
	return fmt.Sprintf("%d bytes, sha256 %x", len(b), sha256.Sum256(b))
}

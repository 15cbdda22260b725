package scenarios

import (
	"context"
	"fmt"
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/kube/store"
)

// kept names the objects that the retained is looked at with; they are gone
// before the next are made.
const kept = "csilab-kept"

// doing does a step of a drive and tells of it.
type doing func(what string, f func(context.Context) error) error

// dropClaim deletes a claim. A volume whose class says Retain must outlive it.
func (d drive) dropClaim(ctx context.Context, l *sim.Lab, name string, do doing) error {
	pv, err := l.Volume(l.PVName(name))
	if err != nil {
		return err
	}
	if err := do("delete PersistentVolumeClaim "+name, func(ctx context.Context) error { return l.DeletePVC(ctx, name) }); err != nil {
		return err
	}
	if !slices.ContainsFunc(of[*storagev1.StorageClass](d.objs), func(sc *storagev1.StorageClass) bool {
		return sc.Name == pv.Spec.StorageClassName && sc.ReclaimPolicy != nil && *sc.ReclaimPolicy == corev1.PersistentVolumeReclaimRetain
	}) {
		return nil
	}
	if err := do("PersistentVolume "+pv.Name+" is retained: Released, and its volume is there", func(ctx context.Context) error {
		if err := l.Released(ctx, pv.Name); err != nil {
			return err
		}
		return stillThere(l, pv.Spec.CSI.VolumeHandle)
	}); err != nil {
		return err
	}
	return reuse(ctx, l, name, pv, do)
}

// reuse does what an administrator does with a Released volume: gives it to
// another claim, whose pod must find the data, and removes it in the end, first the
// object and then the volume.
func reuse(ctx context.Context, l *sim.Lab, was string, pv *corev1.PersistentVolume, do doing) error {
	ns, _ := store.SplitKey(was)
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: kept},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: pv.Spec.AccessModes, VolumeMode: pv.Spec.VolumeMode, VolumeName: pv.Name, StorageClassName: &pv.Spec.StorageClassName,
			Resources: corev1.VolumeResourceRequirements{Requests: pv.Spec.Capacity},
		},
	}
	return steps(
		func() error {
			return do("PersistentVolumeClaim "+store.Key(c)+" takes PersistentVolume "+pv.Name, func(ctx context.Context) error {
				if _, err := store.Modify(ctx, l.Client(), "", pv.Name, func(v *corev1.PersistentVolume) error {
					v.Spec.ClaimRef = nil
					return nil
				}); err != nil {
					return err
				}
				if err := l.Create(ctx, c); err != nil {
					return err
				}
				_, err := l.Bound(ctx, store.Key(c))
				return err
			})
		},
		func() error {
			return look(ctx, l, c, "the retained volume of PersistentVolumeClaim "+was+" holds its data", do)
		},
		func() error {
			return do("PersistentVolume "+pv.Name+" and its volume are removed", func(ctx context.Context) error {
				if err := l.DeletePVC(ctx, store.Key(c)); err != nil {
					return err
				}
				l.Retain(pv.Spec.CSI.VolumeHandle)
				if err := l.Delete(ctx, pv); err != nil {
					return err
				}
				return l.RemoveVolume(ctx, pv.Spec.CSI.VolumeHandle)
			})
		},
	)
}

// look lets a pod read all that a claim's volume must hold.
func look(ctx context.Context, l *sim.Lab, c *corev1.PersistentVolumeClaim, what string, do doing) error {
	p := pod(kept, "", c)
	p.Namespace = c.Namespace
	return steps(
		func() error {
			return do("Pod "+store.Key(p)+" runs", func(ctx context.Context) error {
				if err := l.Create(ctx, p); err != nil {
					return err
				}
				_, err := l.Running(ctx, store.Key(p))
				return err
			})
		},
		func() error { return do(what, func(ctx context.Context) error { return l.Check(ctx) }) },
		func() error {
			return do("delete Pod "+store.Key(p), func(ctx context.Context) error {
				pv := l.PVName(store.Key(c))
				if err := l.DeletePod(ctx, store.Key(p)); err != nil {
					return err
				}
				return l.Detached(ctx, pv)
			})
		},
	)
}

// dropSnapshot deletes a snapshot. One whose class says Retain must outlive it.
func (d drive) dropSnapshot(ctx context.Context, l *sim.Lab, s *snapshotv1.VolumeSnapshot, do doing) error {
	now, err := store.Get[snapshotv1.VolumeSnapshot](l.Client(), s.Namespace, s.Name)
	if err != nil {
		return err
	}
	content, handle, err := contentOf(l, now)
	if err != nil {
		return err
	}
	if err := do("delete VolumeSnapshot "+store.Key(s), func(ctx context.Context) error { return l.DeleteSnapshot(ctx, store.Key(s)) }); err != nil {
		return err
	}
	class := content.Spec.VolumeSnapshotClassName
	if class == nil || !slices.ContainsFunc(of[*snapshotv1.VolumeSnapshotClass](d.objs), func(sc *snapshotv1.VolumeSnapshotClass) bool {
		return sc.Name == *class && sc.DeletionPolicy == snapshotv1.VolumeSnapshotContentRetain
	}) {
		return nil
	}
	if err := do("VolumeSnapshotContent "+content.Name+" is retained, and its snapshot is there", func(context.Context) error {
		if _, err := store.Get[snapshotv1.VolumeSnapshotContent](l.Client(), "", content.Name); err != nil {
			return err
		}
		return stillThere(l, handle)
	}); err != nil {
		return err
	}
	return d.restore(ctx, l, now, content, handle, do)
}

// restore does what an administrator does with a retained snapshot: makes a
// content for it that a snapshot of another name can have, from which a claim's
// volume must get the data, and removes it in the end, first the object and then
// the snapshot.
func (d drive) restore(ctx context.Context, l *sim.Lab, was *snapshotv1.VolumeSnapshot, content *snapshotv1.VolumeSnapshotContent, handle string, do doing) error {
	source, err := l.PVC(was.Namespace + "/" + *was.Spec.Source.PersistentVolumeClaimName)
	if err != nil {
		return err
	}
	name := kept
	again := &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			Driver: content.Spec.Driver, DeletionPolicy: content.Spec.DeletionPolicy,
			VolumeSnapshotClassName: content.Spec.VolumeSnapshotClassName, SourceVolumeMode: content.Spec.SourceVolumeMode,
			Source:            snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: &handle},
			VolumeSnapshotRef: corev1.ObjectReference{Namespace: was.Namespace, Name: name},
		},
	}
	s := &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: was.Namespace, Name: name},
		Spec: snapshotv1.VolumeSnapshotSpec{
			VolumeSnapshotClassName: content.Spec.VolumeSnapshotClassName,
			Source:                  snapshotv1.VolumeSnapshotSource{VolumeSnapshotContentName: &name},
		},
	}
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: was.Namespace, Name: "csilab-restored"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: source.Spec.AccessModes, VolumeMode: source.Spec.VolumeMode, StorageClassName: source.Spec.StorageClassName,
			Resources: corev1.VolumeResourceRequirements{Requests: source.Status.Capacity},
		},
	}
	fromSnapshot(name)(c)
	return steps(
		func() error {
			return do("VolumeSnapshot "+store.Key(s)+" takes the retained snapshot", func(ctx context.Context) error {
				l.Retain(handle)
				if err := l.Delete(ctx, content); err != nil {
					return err
				}
				if err := l.Create(ctx, again, s); err != nil {
					return err
				}
				_, err := l.SnapshotReady(ctx, store.Key(s))
				return err
			})
		},
		func() error {
			return do("create PersistentVolumeClaim "+store.Key(c), func(ctx context.Context) error { return l.Create(ctx, c) })
		},
		func() error {
			return look(ctx, l, c, "the retained snapshot of VolumeSnapshot "+store.Key(was)+" holds its data", do)
		},
		func() error { return d.dropClaim(ctx, l, store.Key(c), do) },
		func() error {
			return do("VolumeSnapshotContent "+again.Name+" and its snapshot are removed", func(ctx context.Context) error {
				if err := l.DeleteSnapshot(ctx, store.Key(s)); err != nil {
					return err
				}
				if err := l.Delete(ctx, again); err != nil {
					return err
				}
				if err := stillThere(l, handle); err != nil {
					return fmt.Errorf("after VolumeSnapshotContent %s was deleted: %w", again.Name, err)
				}
				return l.LoseSnapshot(ctx, handle)
			})
		},
	)
}

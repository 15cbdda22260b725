// Package object makes the objects of users that flows and scenarios work
// with: claims and pods, as short as they can be.
package object

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim"
)

// Claim is a ReadWriteOnce PersistentVolumeClaim in the lab's namespace; class
// "" takes the default class. size is a quantity, e.g. "256Mi".
func Claim(name, class, size string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: sim.Namespace},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
		},
	}
	if class != "" {
		c.Spec.StorageClassName = &class
	}
	for _, f := range change {
		f(c)
	}
	return c
}

// Block makes a claim one for a raw block volume.
func Block(c *corev1.PersistentVolumeClaim) {
	m := corev1.PersistentVolumeBlock
	c.Spec.VolumeMode = &m
}

// FromSnapshot makes a claim one for what a VolumeSnapshot holds.
func FromSnapshot(name string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		group := "snapshot.storage.k8s.io"
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: name}
	}
}

// FromClaim makes a claim one for a copy of another's volume.
func FromClaim(name string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: name}
	}
}

// Pod mounts its claims at /<claim>, or sees them as /dev/<claim>. node ""
// leaves the place to the scheduler.
func Pod(name, node string, claims ...*corev1.PersistentVolumeClaim) *corev1.Pod {
	grace := int64(1)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: sim.Namespace},
		Spec: corev1.PodSpec{
			NodeName:                      node,
			TerminationGracePeriodSeconds: &grace,
			Containers:                    []corev1.Container{{Name: "app", Image: "registry.k8s.io/pause:3.10"}},
		},
	}
	c := &p.Spec.Containers[0]
	for _, pvc := range claims {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: pvc.Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: pvc.Name}}})
		if IsBlock(pvc) {
			c.VolumeDevices = append(c.VolumeDevices, corev1.VolumeDevice{Name: pvc.Name, DevicePath: "/dev/" + pvc.Name})
		} else {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: pvc.Name, MountPath: "/" + pvc.Name})
		}
	}
	return p
}

// IsBlock says whether a claim is for a raw block volume.
func IsBlock(c *corev1.PersistentVolumeClaim) bool {
	return c.Spec.VolumeMode != nil && *c.Spec.VolumeMode == corev1.PersistentVolumeBlock
}

// Package class answers what controllers and admission ask about storage classes.
package class

import (
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csilab/csilab/sim/kube/store"
)

// The annotations that make a StorageClass the default one (k8s v1.37.2
// pkg/volume/util/storageclass.go:25-38).
const (
	DefaultAnnotation     = "storageclass.kubernetes.io/is-default-class"
	DefaultAnnotationBeta = "storageclass.beta.kubernetes.io/is-default-class"
)

// IsDefault says whether a class carries the annotation.
func IsDefault(c *storagev1.StorageClass) bool {
	return c.Annotations[DefaultAnnotation] == "true" || c.Annotations[DefaultAnnotationBeta] == "true"
}

// Default is the default class, or nil. Of several the newest is taken, of
// equally old ones the first by name (storageclass.go:40).
func Default(c *store.Client) *storagev1.StorageClass {
	var best *storagev1.StorageClass
	for _, s := range store.List[storagev1.StorageClass](c, "") { // sorted by name
		if IsDefault(s) && (best == nil || s.CreationTimestamp.After(best.CreationTimestamp.Time)) {
			best = s
		}
	}
	return best
}

// Delayed says whether claims of the class are bound when a pod uses them. A
// class without a mode, which the API server's defaults don't let happen,
// counts as Immediate.
func Delayed(c *storagev1.StorageClass) bool {
	return c != nil && c.VolumeBindingMode != nil && *c.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

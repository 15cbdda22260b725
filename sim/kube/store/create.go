package store

import (
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// prepareForCreate drops a status that the writer sent and sets the one that
// every new object has. Sources: k8s v1.37.2 pkg/registry/core/pod/strategy.go:87,
// core/persistentvolume/strategy.go:67, core/persistentvolumeclaim/strategy.go:66
// (with the phase that pkg/apis/core/v1/defaults.go gives), storage/volumeattachment/strategy.go:63.
// A node keeps what it sends (core/node/strategy.go:96). The snapshot kinds are
// custom resources with a status subresource, where a create drops the status
// too (apiextensions-apiserver pkg/registry/customresource/strategy.go PrepareForCreate).
func prepareForCreate(o Object) {
	if _, ok := o.(*corev1.Node); ok {
		return
	}
	if s := reflect.ValueOf(o).Elem().FieldByName("Status"); s.IsValid() {
		s.SetZero()
	}
	switch o := o.(type) {
	case *corev1.Pod:
		o.Status.Phase = corev1.PodPending
	case *corev1.PersistentVolumeClaim:
		o.Status.Phase = corev1.ClaimPending
	case *corev1.PersistentVolume:
		now := metav1.NewTime(time.Now())
		o.Status.Phase, o.Status.LastPhaseTransitionTime = corev1.VolumePending, &now
	case *corev1.Namespace:
		o.Status.Phase = corev1.NamespaceActive
	}
}

// prepareForStatusUpdate notes when a volume changed its phase
// (pkg/registry/core/persistentvolume/strategy.go, the status strategy).
func prepareForStatusUpdate(next, old Object) {
	n, ok := next.(*corev1.PersistentVolume)
	if o, ok2 := old.(*corev1.PersistentVolume); ok && ok2 {
		if n.Status.Phase != o.Status.Phase {
			now := metav1.NewTime(time.Now())
			n.Status.LastPhaseTransitionTime = &now
		} else {
			n.Status.LastPhaseTransitionTime = o.Status.LastPhaseTransitionTime
		}
	}
}

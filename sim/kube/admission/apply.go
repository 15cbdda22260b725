package admission

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/csilab/csilab/sim/kube/store"
)

// Create names, defaults, validates and stores a new object, and writes the stored
// version back into o; an error leaves o without a name that was generated. Errors
// are StatusErrors: Invalid, Forbidden, AlreadyExists, NotFound (the namespace).
func Create(ctx context.Context, c *store.Client, o store.Object) error {
	given := o.GetName()
	err := create(ctx, c, o)
	if err != nil {
		o.SetName(given)
	}
	return err
}

func create(ctx context.Context, c *store.Client, o store.Object) error {
	Default(c, o)
	c.SetName(o)
	if err := Validate(c, o, nil); err != nil {
		return err
	}
	if ns := o.GetNamespace(); ns != "" && ns != "default" && ns != "kube-system" { // those two always exist
		if _, err := store.Get[corev1.Namespace](c, "", ns); err != nil {
			return apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, ns)
		}
	}
	return c.Create(ctx, o)
}

// Update validates a changed object against the stored one and stores it.
// Errors: as Create's, NotFound, Conflict.
func Update(ctx context.Context, c *store.Client, o store.Object) error {
	old, err := c.GetLike(o)
	if err != nil {
		return err
	}
	if err := Validate(c, o, old); err != nil {
		return err
	}
	return c.Update(ctx, o)
}

// Result is what Apply did, in kubectl's words.
type Result string

// The results.
const (
	Created    Result = "created"
	Configured Result = "configured"
	Unchanged  Result = "unchanged"
)

// Apply creates an object or brings the stored one in line with it, as
// `kubectl apply` does: what the manifest leaves out stays as it is. An object
// without a name is refused, as there is none to find it by.
func Apply(ctx context.Context, c *store.Client, o store.Object) (Result, error) {
	if o.GetName() == "" && o.GetGenerateName() != "" {
		return "", fmt.Errorf("from %s: cannot use generate name with apply", o.GetGenerateName())
	}
	if store.Namespaced(o) && o.GetNamespace() == "" {
		o.SetNamespace("default")
	}
	for {
		old, err := c.GetLike(o)
		if apierrors.IsNotFound(err) {
			return Created, Create(ctx, c, o)
		}
		if err != nil {
			return "", err
		}
		next := o.DeepCopyObject().(store.Object)
		merge(next, old)
		Default(c, next)
		if equality.Semantic.DeepEqual(store.WithoutStatus(next), store.WithoutStatus(old)) {
			return Unchanged, nil
		}
		switch err := Update(ctx, c, next); {
		case apierrors.IsConflict(err): // somebody else wrote in between
		case err != nil:
			return "", err
		default:
			return Configured, nil
		}
	}
}

// merge takes over from the stored object what a manifest does not say.
func merge(next, old store.Object) {
	labels, annotations := maps.Clone(old.GetLabels()), maps.Clone(old.GetAnnotations())
	for dst, src := range map[*map[string]string]map[string]string{&labels: next.GetLabels(), &annotations: next.GetAnnotations()} {
		if *dst == nil && len(src) > 0 {
			*dst = map[string]string{}
		}
		maps.Copy(*dst, src)
	}
	finalizers := next.GetFinalizers()
	next.SetUID(old.GetUID())
	next.SetResourceVersion(old.GetResourceVersion())
	next.SetCreationTimestamp(old.GetCreationTimestamp())
	next.SetDeletionTimestamp(old.GetDeletionTimestamp())
	next.SetDeletionGracePeriodSeconds(old.GetDeletionGracePeriodSeconds())
	next.SetGeneration(old.GetGeneration())
	next.SetOwnerReferences(old.GetOwnerReferences())
	next.SetLabels(labels)
	next.SetAnnotations(annotations)
	next.SetFinalizers(slices.Clone(old.GetFinalizers()))
	for _, f := range finalizers {
		addFinalizer(next, f)
	}
	switch next := next.(type) {
	case *corev1.PersistentVolumeClaim:
		was := old.(*corev1.PersistentVolumeClaim)
		if next.Spec.VolumeName == "" {
			next.Spec.VolumeName = was.Spec.VolumeName
		}
		if next.Spec.StorageClassName == nil {
			next.Spec.StorageClassName = was.Spec.StorageClassName
		}
	case *corev1.PersistentVolume:
		was := old.(*corev1.PersistentVolume)
		if ref := was.Spec.ClaimRef; next.Spec.ClaimRef == nil || ref != nil && ref.Name == next.Spec.ClaimRef.Name && ref.Namespace == next.Spec.ClaimRef.Namespace {
			next.Spec.ClaimRef = ref
		}
	case *corev1.Pod:
		if next.Spec.NodeName == "" {
			next.Spec.NodeName = old.(*corev1.Pod).Spec.NodeName
		}
	case *corev1.Node:
		next.Spec.Taints = old.(*corev1.Node).Spec.Taints
	}
}

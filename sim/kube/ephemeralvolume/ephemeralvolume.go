// Package ephemeralvolume makes the claims of pods' generic ephemeral volumes:
// <pod>-<volume>, owned by the pod, with which the garbage collector deletes it.
// The rules are those of k8s v1.37.2 pkg/controller/volume/ephemeral/controller.go.
package ephemeralvolume

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/kube/admission"
	"github.com/csilab/csilab/sim/kube/controller"
	"github.com/csilab/csilab/sim/kube/store"
)

// Actor is the name that the controller acts under.
const Actor = "ephemeral-volume-controller"

// Run runs the controller until ctx ends. log may be nil.
func Run(ctx context.Context, c *store.Client, log *slog.Logger) error {
	return controller.Run(ctx, controller.Config{Name: Actor, Client: c, Log: log,
		Kinds: []string{"Pod", "PersistentVolumeClaim"}, Keys: func(e store.Event) []string { return keys(c, e) },
		Reconcile: func(ctx context.Context, key string) (time.Duration, error) { return 0, sync(ctx, c, key) }})
}

// keys are pods: a new one, whose volumes do not change, and those of a claim
// that was deleted, which is made again.
func keys(c *store.Client, e store.Event) (keys []string) {
	var pods []*corev1.Pod
	switch o := e.Object.(type) {
	case *corev1.Pod:
		if e.Type == store.Added {
			pods = []*corev1.Pod{o}
		}
	case *corev1.PersistentVolumeClaim:
		if e.Type == store.Deleted {
			pods = store.SeeBy[corev1.Pod](c, store.PodsByClaim, store.Key(o))
		}
	}
	for _, p := range pods {
		if p.DeletionTimestamp == nil && slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Ephemeral != nil }) {
			keys = append(keys, store.Key(p))
		}
	}
	return keys
}

func sync(ctx context.Context, c *store.Client, key string) error {
	ns, name := store.SplitKey(key)
	p, err := store.Get[corev1.Pod](c, ns, name)
	if err != nil || p.DeletionTimestamp != nil {
		return nil
	}
	for _, v := range p.Spec.Volumes {
		if v.Ephemeral == nil {
			continue
		}
		if err := provide(ctx, c, p, &v); err != nil {
			c.Event(ctx, p, corev1.EventTypeWarning, "FailedBinding", "ephemeral volume %s: %v", v.Name, err)
			return fmt.Errorf("pod %s, ephemeral volume %s: %w", key, v.Name, err)
		}
	}
	return nil
}

// provide makes the claim of a volume; one that is there must be the pod's.
func provide(ctx context.Context, c *store.Client, p *corev1.Pod, v *corev1.Volume) error {
	name := store.ClaimName(p, v)
	have, err := store.See[corev1.PersistentVolumeClaim](c, p.Namespace, name)
	if err == nil {
		return store.Usable(p, v, have)
	}
	if !apierrors.IsNotFound(err) {
		return err
	}
	template := v.Ephemeral.VolumeClaimTemplate
	if err := admission.Create(ctx, c, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: name, Labels: template.Labels, Annotations: template.Annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(p, corev1.SchemeGroupVersion.WithKind("Pod"))},
		},
		Spec: template.Spec,
	}); err != nil {
		return fmt.Errorf("create PVC %s: %w", name, err)
	}
	return nil
}

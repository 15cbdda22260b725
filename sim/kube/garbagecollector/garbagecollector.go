// Package garbagecollector deletes claims whose owners are gone: those of pods'
// ephemeral volumes, and those that a user gave such an owner. The rules are those
// of k8s v1.37.2 pkg/controller/garbagecollector/garbagecollector.go
// attemptToDeleteItem. Owners are pods: of another kind they count as there, and
// objects of other kinds stay. Deletion in the foreground is not modelled.
package garbagecollector

import (
	"context"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/kube/controller"
	"github.com/csilab/csilab/sim/kube/store"
)

// Actor is the name that the controller acts under.
const Actor = "garbage-collector-controller"

// Run runs the controller until ctx ends. log may be nil.
func Run(ctx context.Context, c *store.Client, log *slog.Logger) error {
	return controller.Run(ctx, controller.Config{Name: Actor, Client: c, Log: log,
		Kinds: []string{"PersistentVolumeClaim", "Pod"}, Keys: func(e store.Event) []string { return keys(c, e) },
		Reconcile: func(ctx context.Context, key string) (time.Duration, error) { return 0, sync(ctx, c, key) }})
}

// keys are claims: one with owners, and those of a pod that is gone.
func keys(c *store.Client, e store.Event) (keys []string) {
	switch {
	case e.Kind == "Pod" && e.Type == store.Deleted:
		for _, p := range store.SeeBy[corev1.PersistentVolumeClaim](c, store.ClaimsByOwner, string(e.Object.GetUID())) {
			keys = append(keys, store.Key(p))
		}
	case e.Kind == "PersistentVolumeClaim" && e.Type != store.Deleted && len(e.Object.GetOwnerReferences()) > 0:
		keys = []string{store.Key(e.Object)}
	}
	return keys
}

// sync deletes a claim that has owners and all are gone; of several it forgets
// those that are.
func sync(ctx context.Context, c *store.Client, key string) error {
	ns, name := store.SplitKey(key)
	p, err := store.Get[corev1.PersistentVolumeClaim](c, ns, name)
	if err != nil || p.DeletionTimestamp != nil {
		return nil
	}
	owners := len(p.OwnerReferences)
	p.OwnerReferences = slices.DeleteFunc(p.OwnerReferences, func(r metav1.OwnerReference) bool { return gone(c, ns, r) })
	switch len(p.OwnerReferences) {
	case owners:
		return nil
	case 0:
		err = c.Delete(ctx, p)
	default:
		err = c.Update(ctx, p)
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func gone(c *store.Client, ns string, r metav1.OwnerReference) bool {
	if r.APIVersion != "v1" || r.Kind != "Pod" {
		return false
	}
	p, err := store.See[corev1.Pod](c, ns, r.Name)
	return apierrors.IsNotFound(err) || err == nil && p.UID != r.UID
}

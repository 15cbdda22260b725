// Package protection keeps claims that a pod uses, and volumes that are bound,
// from going away: finalizers that it adds and, when the object may go,
// removes. The rules are those of k8s v1.37.2 pkg/controller/volume/pvcprotection
// and pvprotection.
package protection

import (
	"context"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/csilab/csilab/sim/kube/controller"
	"github.com/csilab/csilab/sim/kube/store"
)

// The finalizers (pkg/volume/util/finalizer.go).
const (
	ClaimFinalizer  = "kubernetes.io/pvc-protection"
	VolumeFinalizer = "kubernetes.io/pv-protection"
)

// The names that the two controllers act under.
const (
	ClaimActor  = "persistentvolumeclaim-protection-controller"
	VolumeActor = "persistentvolume-protection-controller"
)

// RunClaims protects claims until ctx ends. log may be nil.
func RunClaims(ctx context.Context, c *store.Client, log *slog.Logger) error {
	return controller.Run(ctx, controller.Config{Name: ClaimActor, Client: c, Log: log,
		Kinds: []string{"PersistentVolumeClaim", "Pod"}, Keys: claimKeys,
		Reconcile: func(ctx context.Context, key string) (time.Duration, error) { return 0, syncClaim(ctx, c, key) }})
}

// RunVolumes protects volumes until ctx ends. log may be nil.
func RunVolumes(ctx context.Context, c *store.Client, log *slog.Logger) error {
	return controller.Run(ctx, controller.Config{Name: VolumeActor, Client: c, Log: log,
		Kinds:     []string{"PersistentVolume"},
		Reconcile: func(ctx context.Context, key string) (time.Duration, error) { return 0, syncVolume(ctx, c, key) }})
}

func claimKeys(e store.Event) []string {
	if p, ok := e.Object.(*corev1.Pod); ok {
		return store.ClaimKeys(p)
	}
	return []string{store.Key(e.Object)}
}

func syncClaim(ctx context.Context, c *store.Client, key string) error {
	ns, name := store.SplitKey(key)
	p, err := store.Get[corev1.PersistentVolumeClaim](c, ns, name)
	if err != nil {
		return ignoreNotFound(err)
	}
	// A pod without a node does not count: kubelet won't start it with a claim
	// that is being deleted. One that has ended does, as long as it is there
	// (pvc_protection_controller.go, podUsesPVCForDeletion).
	used := slices.ContainsFunc(store.SeeBy[corev1.Pod](c, store.PodsByClaim, key), func(q *corev1.Pod) bool {
		return q.Spec.NodeName != "" && store.Uses(q, p)
	})
	return guard(ctx, c, p, ClaimFinalizer, used)
}

func syncVolume(ctx context.Context, c *store.Client, name string) error {
	v, err := store.Get[corev1.PersistentVolume](c, "", name)
	if err != nil {
		return ignoreNotFound(err)
	}
	return guard(ctx, c, v, VolumeFinalizer, v.Status.Phase == corev1.VolumeBound)
}

// guard adds the finalizer to an object that stays, and removes it from one
// that is to go and is not used.
func guard(ctx context.Context, c *store.Client, o store.Object, finalizer string, used bool) error {
	f := o.GetFinalizers()
	switch has := slices.Contains(f, finalizer); {
	case o.GetDeletionTimestamp() == nil && !has:
		o.SetFinalizers(append(f, finalizer))
	case o.GetDeletionTimestamp() != nil && has && !used:
		o.SetFinalizers(slices.DeleteFunc(f, func(s string) bool { return s == finalizer }))
	default:
		return nil
	}
	return ignoreNotFound(c.Update(ctx, o))
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// Package binder is the persistent volume controller: it binds claims to
// volumes, asks for provisioning by an annotation on the claim, and releases
// volumes whose claim is gone. Deleting a released CSI volume is the external
// provisioner's part. The rules are those of k8s v1.37.2
// pkg/controller/volume/persistentvolume (pv_controller.go, index.go).
package binder

import (
	"cmp"
	"context"
	"log/slog"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csilab/csilab/sim/kube/class"
	"github.com/csilab/csilab/sim/kube/controller"
	"github.com/csilab/csilab/sim/kube/store"
)

// Actor is the name that the controller acts and reports events under.
const Actor = "persistentvolume-controller"

// Timers are the controller's waiting times.
type Timers struct {
	// Sync is when an unbound claim is looked at again without an event, which
	// also repeats its events.
	Sync time.Duration
}

// RealTimers are those of kube-controller-manager: --pvclaimbinder-sync-period
// 15s (pkg/controller/volume/persistentvolume/config/v1alpha1/defaults.go).
func RealTimers() Timers { return Timers{Sync: 15 * time.Second} }

// FastTimers are for tests on the wall.
func FastTimers() Timers { return Timers{Sync: time.Second} }

// Config is one controller.
type Config struct {
	Client *store.Client // required
	Timers Timers        // zero fields take those of RealTimers
	Log    *slog.Logger  // may be nil
}

// Controller is the persistent volume controller. Use New.
type Controller struct {
	c      *store.Client
	timers Timers
	log    *slog.Logger
}

// New returns a controller that has not started.
func New(cfg Config) *Controller {
	cfg.Timers.Sync = cmp.Or(cfg.Timers.Sync, RealTimers().Sync)
	return &Controller{c: cfg.Client, timers: cfg.Timers, log: cfg.Log}
}

// Run runs the controller until ctx ends.
func (b *Controller) Run(ctx context.Context) error {
	return controller.Run(ctx, controller.Config{Name: Actor, Client: b.c, Log: b.log,
		Kinds: []string{"PersistentVolumeClaim", "PersistentVolume", "StorageClass"},
		Keys:  b.Keys, Reconcile: b.Reconcile})
}

const (
	claimPrefix  = "claim:"
	volumePrefix = "volume:"
)

// Keys says what an event concerns: claims and volumes, each under a prefix.
func (b *Controller) Keys(e store.Event) []string {
	switch o := e.Object.(type) {
	case *corev1.PersistentVolumeClaim:
		keys := []string{claimPrefix + store.Key(o)}
		if o.Spec.VolumeName != "" { // pv_controller_base.go deleteClaim: the volume must be released
			keys = append(keys, volumePrefix+o.Spec.VolumeName)
		}
		if e.Type == store.Deleted {
			for _, v := range store.ListBy[corev1.PersistentVolume](b.c, store.VolumesByClaim, store.Key(o)) {
				keys = append(keys, volumePrefix+v.Name)
			}
		}
		return keys
	case *corev1.PersistentVolume:
		keys := []string{volumePrefix + o.Name}
		if r := o.Spec.ClaimRef; r != nil {
			keys = append(keys, claimPrefix+r.Namespace+"/"+r.Name)
		} else if e.Type != store.Deleted && o.Status.Phase == corev1.VolumeAvailable {
			// The real controller finds a volume for a waiting claim at its next sync.
			keys = append(keys, b.waiting(o.Spec.StorageClassName)...)
		}
		for _, c := range store.ListBy[corev1.PersistentVolumeClaim](b.c, store.ClaimsByVolume, o.Name) {
			keys = append(keys, claimPrefix+store.Key(c))
		}
		return keys
	case *storagev1.StorageClass:
		if e.Type == store.Deleted {
			return nil
		}
		keys := b.waiting(o.Name)
		if class.IsDefault(o) {
			keys = append(keys, b.waiting("")...)
		}
		return keys
	}
	return nil
}

// waiting are the keys of the unbound claims of a class.
func (b *Controller) waiting(className string) []string {
	var keys []string
	for _, c := range store.ListBy[corev1.PersistentVolumeClaim](b.c, store.ClaimsByClass, className) {
		if c.Spec.VolumeName == "" {
			keys = append(keys, claimPrefix+store.Key(c))
		}
	}
	return keys
}

// Reconcile brings one claim or volume a step further.
func (b *Controller) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	if k, ok := strings.CutPrefix(key, claimPrefix); ok {
		return b.syncClaim(ctx, k)
	}
	return 0, b.syncVolume(ctx, strings.TrimPrefix(key, volumePrefix))
}

// Package resizer is the external-resizer: it turns a claim that asks for more
// than it has into ControllerExpandVolume, and leaves the node's part to the
// kubelet.
//
// Source of all rules: external-resizer main branch at its v2 module path,
// pkg/controller/expand_and_recover.go and resize_status.go
// (RecoverVolumeExpansionFailure, which is GA). Unverified: that v2.2.1, which
// the vSphere deployment pins, is the same there.
//
// Not simulated: ControllerModifyVolume, drivers with node expansion only.
package resizer

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"

	"github.com/csilab/csilab/sim/kube/controller"
	"github.com/csilab/csilab/sim/kube/sidecar"
	"github.com/csilab/csilab/sim/kube/store"
)

// Annotations that the resizer sets.
const (
	// PreResizeCapacity keeps the claim's size before the expansion on the PV
	// until the node's part is done.
	PreResizeCapacity = "volume.alpha.kubernetes.io/pre-resize-capacity"
	// NodeExpansionNotRequired tells the kubelet that nothing is left to do
	// (kubernetes v1.37.2 pkg/volume/util/types/types.go:29).
	NodeExpansionNotRequired = "volume.kubernetes.io/node-expansion-not-required"
)

// Resizer is one incarnation of the sidecar.
type Resizer struct{ cfg sidecar.Config }

// New returns a resizer that Run starts.
func New(cfg sidecar.Config) *Resizer {
	if cfg.Set == (sidecar.Set{}) {
		cfg.Set = sidecar.Real()
	}
	return &Resizer{cfg}
}

// Run works until ctx ends, then returns nil; it returns an error where the
// real sidecar exits: a failed handshake, a driver that can't expand, a lost
// connection.
func (r *Resizer) Run(ctx context.Context) error {
	return sidecar.Run(ctx, sidecar.Resizer, r.cfg, func(s *sidecar.Session) ([]func(context.Context) error, error) {
		switch {
		case !s.Plugin[csi.PluginCapability_Service_CONTROLLER_SERVICE]:
			return nil, errors.New("CSI driver does not support controller service")
		case !s.Controller[csi.ControllerServiceCapability_RPC_EXPAND_VOLUME]:
			return nil, errors.New("CSI driver does not support controller resize")
		}
		f := r.cfg.Set.Resizer
		h := newHandler(s, f)
		return []func(context.Context) error{func(ctx context.Context) error {
			keys, rec := sidecar.Filtered(relevant, f.Resync, h.syncClaim)
			return controller.Run(ctx, controller.Config{
				Name: "resize", Client: s.Client, Kinds: []string{"PersistentVolumeClaim"}, Keys: keys, Reconcile: rec,
				Workers: f.Workers, BaseDelay: f.RetryStart, MaxDelay: f.RetryMax, Log: s.Log,
			})
		}}, nil
	})
}

// relevant says which changes of a claim are worked on: another request, or a
// status that has grown, whose PV may then lose its annotation
// (pkg/controller/controller.go updatePVC). A lower request counts as well.
// Unverified: main tests for a higher one only in the version that was read,
// but recovery by a lower request needs it.
func relevant(old, new *corev1.PersistentVolumeClaim) bool {
	newReq, oldReq := new.Spec.Resources.Requests[corev1.ResourceStorage], old.Spec.Resources.Requests[corev1.ResourceStorage]
	newCap, oldCap := new.Status.Capacity[corev1.ResourceStorage], old.Status.Capacity[corev1.ResourceStorage]
	return newReq.Cmp(oldReq) != 0 || newCap.Cmp(oldCap) > 0
}

// handler is what the resizer knows while it runs.
type handler struct {
	*sidecar.Session
	flags sidecar.Flags
	csi   csi.ControllerClient

	mu    sync.Mutex
	slow  map[string]time.Time // infeasible claims, since when
	final map[string]bool      // claims whose last expansion failed for good
	inUse map[string]bool      // claims whose last expansion failed since they were in use
}

func newHandler(s *sidecar.Session, f sidecar.Flags) *handler {
	return &handler{Session: s, flags: f, csi: csi.NewControllerClient(s),
		slow: map[string]time.Time{}, final: map[string]bool{}, inUse: map[string]bool{}}
}

// slowFor is how long an infeasible claim still waits, 0 if it doesn't. It
// waits RetryMax (cmd/csi-resizer/main.go, NewResizeController).
func (h *handler) slowFor(key string) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	since, ok := h.slow[key]
	if !ok {
		return 0
	}
	left := h.flags.RetryMax - time.Since(since)
	if left <= 0 {
		delete(h.slow, key)
		return 0
	}
	return left
}

func (h *handler) markSlow(key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.slow[key]; !ok {
		h.slow[key] = time.Now()
	}
}

// note records what came of an expansion.
func (h *handler) note(key string, final, infeasible, inUse bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	set := func(m map[string]bool, v bool) {
		if v {
			m[key] = true
		} else {
			delete(m, key)
		}
	}
	set(h.final, final)
	set(h.inUse, inUse)
	if !infeasible {
		delete(h.slow, key)
	}
}

func (h *handler) forget(key string) {
	h.note(key, false, false, false)
}

func (h *handler) failedForGood(key string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.final[key]
}

// heldBack says whether a claim that the driver refused to expand in use is in
// use still (--handle-volume-inuse-error; pkg/controller/inuse_pvc_store.go).
func (h *handler) heldBack(pvc *corev1.PersistentVolumeClaim) bool {
	h.mu.Lock()
	refused := h.inUse[store.Key(pvc)]
	h.mu.Unlock()
	if !refused || !h.flags.HandleVolumeInUseError {
		return false
	}
	for _, p := range store.ListBy[corev1.Pod](h.Client, store.PodsByClaim, store.Key(pvc)) {
		if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			return true
		}
	}
	return false
}

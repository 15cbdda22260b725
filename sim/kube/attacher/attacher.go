// Package attacher is the external-attacher: it turns VolumeAttachments into
// ControllerPublishVolume and ControllerUnpublishVolume calls.
// Source of all rules: external-attacher v4.12.0, pkg/controller.
package attacher

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/csilab/csilab/sim/kube/controller"
	"github.com/csilab/csilab/sim/kube/sidecar"
	"github.com/csilab/csilab/sim/kube/store"
)

// NodeIDAnnotation keeps the node's id on a VolumeAttachment, for a detach
// when the CSINode is gone (pkg/controller/util.go:124).
const NodeIDAnnotation = "csi.alpha.kubernetes.io/node-id"

var notLabel = regexp.MustCompile("[^a-zA-Z0-9-]")

// FinalizerName is the attacher's finalizer on VolumeAttachments and PVs, e.g.
// external-attacher/csi-vsphere-vmware-com (pkg/controller/util.go:139).
func FinalizerName(driver string) string {
	n := notLabel.ReplaceAllString(driver, "-")
	if n != "" && n[len(n)-1] == '-' {
		n += "X"
	}
	return "external-attacher/" + n
}

// Attacher is one incarnation of the sidecar.
type Attacher struct{ cfg sidecar.Config }

// New returns an attacher that Run starts.
func New(cfg sidecar.Config) *Attacher {
	if cfg.Set == (sidecar.Set{}) {
		cfg.Set = sidecar.Real()
	}
	return &Attacher{cfg}
}

// Run works until ctx ends, then returns nil; it returns an error where the
// real sidecar exits: a failed handshake, a lost connection.
func (a *Attacher) Run(ctx context.Context) error {
	return sidecar.Run(ctx, sidecar.Attacher, a.cfg, func(s *sidecar.Session) ([]func(context.Context) error, error) {
		h := newHandler(s)
		f := a.cfg.Set.Attacher
		cfg := controller.Config{Client: s.Client, Workers: f.Workers, BaseDelay: f.RetryStart, MaxDelay: f.RetryMax, Log: s.Log}
		va, pv := cfg, cfg
		va.Name, va.Kinds = "va", []string{"VolumeAttachment"}
		va.Keys, va.Reconcile = sidecar.Filtered(relevant, f.Resync, plain(h.syncVA))
		pv.Name, pv.Kinds = "pv", []string{"PersistentVolume", "VolumeAttachment"}
		pv.Keys, pv.Reconcile, pv.Resync = h.pvKeys, plain(h.syncPV), f.Resync
		if !s.Controller[csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME] {
			// cmd/csi-attacher/main.go:259: nothing to call, attached at once.
			va.Keys, va.Reconcile = sidecar.Filtered(relevant, f.Resync, plain(h.trivial))
			return []func(context.Context) error{func(ctx context.Context) error { return controller.Run(ctx, va) }}, nil
		}
		loops := []func(context.Context) error{
			func(ctx context.Context) error { return controller.Run(ctx, va) },
			func(ctx context.Context) error { return controller.Run(ctx, pv) },
		}
		if s.Controller[csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES] && f.ReconcileSync > 0 {
			loops = append(loops, func(ctx context.Context) error { return h.reconcileEvery(ctx, f.ReconcileSync, f.Workers) })
		}
		return loops, nil
	})
}

// plain is a reconciler that asks for no other call by itself.
func plain(f func(context.Context, string) error) func(context.Context, string) (time.Duration, error) {
	return func(ctx context.Context, key string) (time.Duration, error) { return 0, f(ctx, key) }
}

// relevant says which changes of a VolumeAttachment are worked on: not those
// of attachError and detachError, which the attacher has just made itself and
// which would break its back-off (pkg/controller/controller.go:316).
func relevant(old, new *storagev1.VolumeAttachment) bool {
	if old.ResourceVersion == new.ResourceVersion {
		return true
	}
	c := new.DeepCopy()
	c.ResourceVersion = old.ResourceVersion
	c.Status.AttachError, c.Status.DetachError = old.Status.AttachError, old.Status.DetachError
	noErrors := old.Status.AttachError == nil && old.Status.DetachError == nil && new.Status.AttachError == nil && new.Status.DetachError == nil
	return noErrors || !equality.Semantic.DeepEqual(old, c)
}

// handler is what the attacher knows while it runs.
type handler struct {
	*sidecar.Session
	csi       csi.ControllerClient
	finalizer string

	mu    sync.Mutex
	slots map[string]*slot // one worker per VolumeAttachment
	force map[string]bool  // drift was seen: act although the status says done
}

func newHandler(s *sidecar.Session) *handler {
	return &handler{Session: s, csi: csi.NewControllerClient(s), finalizer: FinalizerName(s.Driver),
		slots: map[string]*slot{}, force: map[string]bool{}}
}

// pvKeys wakes a PV that is being deleted, or whose VolumeAttachment has gone.
func (h *handler) pvKeys(e store.Event) []string {
	switch o := e.Object.(type) {
	case *corev1.PersistentVolume:
		if e.Type != store.Deleted && o.DeletionTimestamp != nil && slices.Contains(o.Finalizers, h.finalizer) {
			return []string{o.Name}
		}
	case *storagev1.VolumeAttachment:
		if e.Type == store.Deleted && o.Spec.Source.PersistentVolumeName != nil {
			return []string{*o.Spec.Source.PersistentVolumeName}
		}
	}
	return nil
}

// source is the CSI part of the volume that a VolumeAttachment is about.
func (h *handler) source(va *storagev1.VolumeAttachment) (*corev1.PersistentVolume, error) {
	if va.Spec.Source.PersistentVolumeName == nil {
		return nil, fmt.Errorf("neither InlineCSIVolumeSource nor PersistentVolumeName specified in VA source")
	}
	pv, err := store.Get[corev1.PersistentVolume](h.Client, "", *va.Spec.Source.PersistentVolumeName)
	if err != nil {
		return nil, err
	}
	if pv.Spec.CSI == nil {
		return nil, fmt.Errorf("pv spec contained non-csi source that was not migrated")
	}
	return pv, nil
}

// nodeID is the driver's id of a node: from the CSINode, or where that is gone
// or lacks the driver, from the annotation of va, if va isn't nil
// (pkg/controller/csi_handler.go:747).
func (h *handler) nodeID(node string, va *storagev1.VolumeAttachment) (string, error) {
	n, err := store.Get[storagev1.CSINode](h.Client, "", node)
	if err == nil {
		for _, d := range n.Spec.Drivers {
			if d.Name == h.Driver {
				return d.NodeID, nil
			}
		}
		err = fmt.Errorf("CSINode %s does not contain driver %s", node, h.Driver)
	}
	if va != nil {
		if id, ok := va.Annotations[NodeIDAnnotation]; ok {
			return id, nil
		}
	}
	return "", err
}

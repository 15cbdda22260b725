// Package snapshotcontroller is the snapshot-controller: it binds
// VolumeSnapshots to VolumeSnapshotContents, which the csi-snapshotter sidecar
// then turns into snapshots. It never calls a driver.
// Source of all rules: external-snapshotter v8.6.0, pkg/common-controller
// (cited as C) and pkg/utils. Not simulated: volume group snapshots,
// distributed snapshotting.
package snapshotcontroller

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"golang.org/x/sync/errgroup"

	"github.com/csilab/csilab/sim/kube/controller"
	"github.com/csilab/csilab/sim/kube/sidecar"
	"github.com/csilab/csilab/sim/kube/store"
)

// Names in the API (pkg/utils/util.go:80).
const (
	BoundFinalizer    = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection"
	AsSourceFinalizer = "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection"
	ClaimFinalizer    = "snapshot.storage.kubernetes.io/pvc-as-source-protection"
	IsDefaultClass    = "snapshot.storage.kubernetes.io/is-default-class"
)

// Config is one incarnation of the snapshot controller.
type Config struct {
	Client *store.Client // required
	Flags  sidecar.Flags // the zero Flags is Real().SnapshotController
	Log    *slog.Logger  // may be nil
}

// Controller is the snapshot controller.
type Controller struct{ cfg Config }

// New returns a controller that Run starts.
func New(cfg Config) *Controller {
	if cfg.Flags == (sidecar.Flags{}) {
		cfg.Flags = sidecar.Real().SnapshotController
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Controller{cfg}
}

// Run works until ctx ends, then returns nil, or until its client is fenced.
func (c *Controller) Run(ctx context.Context) error {
	if c.cfg.Client == nil {
		return fmt.Errorf("%s: Client is required", sidecar.SnapshotController)
	}
	h := &handler{client: c.cfg.Client, log: c.cfg.Log.With("component", sidecar.SnapshotController)}
	f := c.cfg.Flags
	g, ctx := errgroup.WithContext(ctx)
	run := func(name string, keys func(store.Event) []string, rec func(context.Context, string) error) {
		g.Go(func() error {
			return controller.Run(ctx, controller.Config{
				Name: name, Client: h.client, Kinds: []string{"VolumeSnapshot", "VolumeSnapshotContent"}, Keys: keys,
				Workers: f.Workers, BaseDelay: f.RetryStart, MaxDelay: f.RetryMax, Resync: f.Resync, Log: h.log,
				Reconcile: func(ctx context.Context, key string) (time.Duration, error) { return 0, rec(ctx, key) },
			})
		})
	}
	run("snapshot", h.snapshotKeys, h.syncSnapshot)
	run("content", h.contentKeys, h.syncContent)
	return g.Wait()
}

type handler struct {
	client *store.Client
	log    *slog.Logger
}

// snapshotKeys is a changed snapshot, the snapshot of a content that has gone,
// and that of a content whose status says something new (C
// snapshot_controller_base.go:613, snapshot_controller.go:136).
func (h *handler) snapshotKeys(e store.Event) []string {
	switch o := e.Object.(type) {
	case *snapshotv1.VolumeSnapshot:
		if e.Type != store.Deleted {
			return []string{store.Key(o)}
		}
	case *snapshotv1.VolumeSnapshotContent:
		ref := o.Spec.VolumeSnapshotRef
		key := ref.Namespace + "/" + ref.Name
		if e.Type == store.Deleted {
			return []string{key}
		}
		s, err := store.Get[snapshotv1.VolumeSnapshot](h.client, ref.Namespace, ref.Name)
		if err == nil && s.UID == ref.UID && tellsMore(s, o) {
			return []string{key}
		}
	}
	return nil
}

// contentKeys is a changed content, and the content of a snapshot that has gone.
func (h *handler) contentKeys(e store.Event) []string {
	switch o := e.Object.(type) {
	case *snapshotv1.VolumeSnapshotContent:
		if e.Type != store.Deleted {
			return []string{o.Name}
		}
	case *snapshotv1.VolumeSnapshot:
		if e.Type == store.Deleted && boundName(o) != "" {
			return []string{boundName(o)}
		}
	}
	return nil
}

func boundName(s *snapshotv1.VolumeSnapshot) string {
	if s.Status == nil || s.Status.BoundVolumeSnapshotContentName == nil {
		return ""
	}
	return *s.Status.BoundVolumeSnapshotContentName
}

// tellsMore says whether a content's status has what the snapshot's lacks (C
// snapshot_controller.go needsUpdateSnapshotStatus).
func tellsMore(s *snapshotv1.VolumeSnapshot, c *snapshotv1.VolumeSnapshotContent) bool {
	cs, ss := c.Status, s.Status
	switch {
	case cs == nil:
		return false
	case ss == nil, ss.BoundVolumeSnapshotContentName == nil,
		ss.CreationTime == nil && cs.CreationTime != nil,
		cs.ReadyToUse != nil && (ss.ReadyToUse == nil || *ss.ReadyToUse != *cs.ReadyToUse),
		cs.RestoreSize != nil && (ss.RestoreSize == nil || ss.RestoreSize.IsZero() && *cs.RestoreSize > 0),
		// Unverified: the real one compares two pointers for readyToUse and so
		// always looks again when both are set; with it come new errors.
		errorText(cs.Error) != errorText(ss.Error):
		return true
	}
	return false
}

func errorText(e *snapshotv1.VolumeSnapshotError) string {
	if e == nil || e.Message == nil {
		return ""
	}
	return *e.Message
}

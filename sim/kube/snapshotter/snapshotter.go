// Package snapshotter is the csi-snapshotter sidecar: it cuts and deletes the
// snapshots of VolumeSnapshotContents, which the snapshot controller makes.
// Source of all rules: external-snapshotter v8.6.0, pkg/sidecar-controller
// (cited as S) and pkg/utils. Not simulated: volume group snapshots.
package snapshotter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/kube/controller"
	"github.com/csilab/csilab/sim/kube/sidecar"
	"github.com/csilab/csilab/sim/kube/store"
)

// Names in the API that the sidecar and the snapshot controller share
// (pkg/utils/util.go:80).
const (
	ContentFinalizer       = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"
	BeingCreated           = "snapshot.storage.kubernetes.io/volumesnapshot-being-created"
	BeingDeleted           = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted"
	DeletionSecretName     = "snapshot.storage.kubernetes.io/deletion-secret-name"
	DeletionSecretNS       = "snapshot.storage.kubernetes.io/deletion-secret-namespace"
	snapshotNamePrefix     = "snapshot-" // --snapshot-name-prefix
	volumeSnapshotName     = sidecar.ParameterPrefix + "volumesnapshot/name"
	volumeSnapshotNS       = sidecar.ParameterPrefix + "volumesnapshot/namespace"
	volumeSnapshotContName = sidecar.ParameterPrefix + "volumesnapshotcontent/name"
)

// Secrets that a VolumeSnapshotClass may refer to.
var (
	Secret     = sidecar.Prefixed("Snapshotter", "snapshotter")
	ListSecret = sidecar.Prefixed("SnapshotterList", "snapshotter-list")
)

// Snapshotter is one incarnation of the sidecar.
type Snapshotter struct{ cfg sidecar.Config }

// New returns a snapshotter that Run starts.
func New(cfg sidecar.Config) *Snapshotter {
	if cfg.Set == (sidecar.Set{}) {
		cfg.Set = sidecar.Real()
	}
	return &Snapshotter{cfg}
}

// Run works until ctx ends, then returns nil; it returns an error where the
// real sidecar exits: a failed handshake, a driver without snapshots, a lost
// connection.
func (n *Snapshotter) Run(ctx context.Context) error {
	return sidecar.Run(ctx, sidecar.Snapshotter, n.cfg, func(s *sidecar.Session) ([]func(context.Context) error, error) {
		if !s.Controller[csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT] {
			return nil, fmt.Errorf("CSI driver %s does not support ControllerCreateSnapshot", s.Driver)
		}
		f := n.cfg.Set.Snapshotter
		h := &handler{Session: s, flags: f, csi: csi.NewControllerClient(s)}
		return []func(context.Context) error{func(ctx context.Context) error {
			keys, rec := sidecar.Filtered(relevant, f.Resync, func(ctx context.Context, key string) (time.Duration, error) {
				return 0, h.syncContent(ctx, key)
			})
			return controller.Run(ctx, controller.Config{
				Name: "content", Client: s.Client, Kinds: []string{"VolumeSnapshotContent"}, Keys: keys, Reconcile: rec,
				Workers: f.Workers, BaseDelay: f.RetryStart, MaxDelay: f.RetryMax, Log: s.Log,
			})
		}}, nil
	})
}

// relevant says which changes of a content are worked on: not those of the
// status, the finalizers and the annotation that the sidecar writes itself and
// that would break its back-off, but the moment when it becomes ready
// (pkg/utils/util.go:682 ShouldEnqueueContentChange).
func relevant(old, new *snapshotv1.VolumeSnapshotContent) bool {
	if old.ResourceVersion == new.ResourceVersion || (!ready(old) && ready(new)) {
		return true
	}
	o, n := old.DeepCopy(), new.DeepCopy()
	for _, c := range []*snapshotv1.VolumeSnapshotContent{o, n} {
		c.ResourceVersion, c.Status, c.Finalizers, c.ManagedFields = "", nil, nil, nil
		delete(c.Annotations, BeingCreated)
	}
	return !equality.Semantic.DeepEqual(o, n)
}

func ready(c *snapshotv1.VolumeSnapshotContent) bool {
	return c.Status != nil && c.Status.ReadyToUse != nil && *c.Status.ReadyToUse
}

type handler struct {
	*sidecar.Session
	flags sidecar.Flags
	csi   csi.ControllerClient
}

// errPoll asks for another look at a snapshot that is cut but not ready: with
// the back-off of an error (S snapshot_controller_base.go:258).
var errPoll = errors.New("snapshot is not ready yet")

// syncContent is S snapshot_controller.go:58.
func (h *handler) syncContent(ctx context.Context, name string) error {
	c, err := store.Get[snapshotv1.VolumeSnapshotContent](h.Client, "", name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || !h.mine(c) {
		return err
	}
	if shouldDelete(c) {
		return h.delete(ctx, c)
	}
	if ready(c) {
		return h.created(ctx, c)
	}
	reason := "SnapshotContentCheckandUpdateFailed"
	text := "Failed to check and update snapshot content: %v"
	if c.Spec.Source.VolumeHandle != nil && c.Status == nil {
		reason, text = "SnapshotCreationFailed", "Failed to create snapshot: %v"
	}
	isReady, err := h.look(ctx, c)
	if err != nil {
		h.setError(ctx, c, reason, fmt.Sprintf(text, err))
		return err
	}
	if !isReady {
		return errPoll
	}
	return nil
}

func (h *handler) mine(c *snapshotv1.VolumeSnapshotContent) bool {
	if c.Spec.Source.VolumeHandle == nil && c.Spec.Source.SnapshotHandle == nil || c.Spec.Driver != h.Driver {
		return false
	}
	if n := c.Spec.VolumeSnapshotClassName; n != nil {
		if class, err := store.Get[snapshotv1.VolumeSnapshotClass](h.Client, "", *n); err == nil && class.Driver != h.Driver {
			return false
		}
	}
	return true
}

// shouldDelete holds while a CreateSnapshot is unanswered: its snapshot would
// be left behind (S snapshot_controller.go:625).
func shouldDelete(c *snapshotv1.VolumeSnapshotContent) bool {
	switch {
	case c.DeletionTimestamp == nil:
		return false
	case c.Spec.Source.SnapshotHandle != nil && c.Spec.VolumeSnapshotRef.UID == "":
		return true
	case metav1.HasAnnotation(c.ObjectMeta, BeingCreated):
		return false
	}
	return metav1.HasAnnotation(c.ObjectMeta, BeingDeleted)
}

// look finds the snapshot of a content, cutting it where it is not
// pre-provisioned: a repeated CreateSnapshot is also how a snapshot that is
// not ready is asked for (S snapshot_controller.go checkandUpdateContentStatusOperation).
func (h *handler) look(ctx context.Context, c *snapshotv1.VolumeSnapshotContent) (bool, error) {
	if c.Spec.Source.SnapshotHandle != nil {
		return h.find(ctx, c)
	}
	return h.create(ctx, c)
}

// find asks for a pre-provisioned snapshot (pkg/snapshotter/snapshotter.go GetSnapshotStatus).
func (h *handler) find(ctx context.Context, c *snapshotv1.VolumeSnapshotContent) (bool, error) {
	var secrets map[string]string
	if n := c.Spec.VolumeSnapshotClassName; n != nil {
		class, err := store.Get[snapshotv1.VolumeSnapshotClass](h.Client, "", *n)
		if err != nil {
			return false, fmt.Errorf("failed to get snapshot class %s for snapshot content %s: %w", *n, c.Name, err)
		}
		tokens := map[string]string{"volumesnapshotcontent.name": c.Name}
		ref, err := ListSecret.Reference(class.Parameters, tokens, tokens)
		if err != nil {
			return false, fmt.Errorf("failed to get secret reference for snapshot content %s: %w", c.Name, err)
		}
		if secrets, err = sidecar.Credentials(h.Client, ref); err != nil {
			return false, fmt.Errorf("failed to get credentials for snapshot content %s: %w", c.Name, err)
		}
	}
	id := *c.Spec.Source.SnapshotHandle
	callCtx, cancel := context.WithTimeout(ctx, h.Call("ListSnapshots").Timeout) // both calls
	defer cancel()
	can, err := h.AskController(callCtx)
	if err != nil {
		return false, fmt.Errorf("failed to list snapshot for content %s: failed to check if ListSnapshots is supported: %w", c.Name, err)
	}
	snap := &csi.Snapshot{SnapshotId: id, ReadyToUse: true} // taken on trust where it can't be asked for
	if can[csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS] {
		rsp, err := h.csi.ListSnapshots(callCtx, &csi.ListSnapshotsRequest{SnapshotId: id, Secrets: secrets})
		if err != nil {
			return false, fmt.Errorf("failed to list snapshot for content %s: %w", c.Name, err)
		}
		if len(rsp.GetEntries()) == 0 {
			return false, fmt.Errorf("failed to list snapshot for content %s: can not find snapshot for snapshotID %s", c.Name, id)
		}
		snap = rsp.Entries[0].Snapshot
	}
	return snap.GetReadyToUse(), h.setStatus(ctx, c, id, snap)
}

// create cuts the snapshot. The annotation tells everyone, and this sidecar
// after a restart, that the driver was asked and has not answered
// (S snapshot_controller.go:338 createSnapshotWrapper).
func (h *handler) create(ctx context.Context, c *snapshotv1.VolumeSnapshotContent) (bool, error) {
	if c.Spec.VolumeSnapshotClassName == nil {
		return false, fmt.Errorf("failed to take snapshot %s without a snapshot class", c.Name)
	}
	class, err := store.Get[snapshotv1.VolumeSnapshotClass](h.Client, "", *c.Spec.VolumeSnapshotClassName)
	if err != nil {
		return false, fmt.Errorf("failed to get input parameters to create snapshot for content %s: %w", c.Name, err)
	}
	secrets, err := h.secrets(c)
	if err != nil {
		return false, fmt.Errorf("failed to get input parameters to create snapshot for content %s: %w", c.Name, err)
	}
	if err := h.annotate(ctx, c, true); err != nil {
		return false, fmt.Errorf("failed to add VolumeSnapshotBeingCreated annotation on the content %s: %w", c.Name, err)
	}
	params, err := driverParameters(class.Parameters)
	if err != nil {
		return false, fmt.Errorf("failed to remove CSI Parameters of prefixed keys: %w", err)
	}
	if h.flags.ExtraCreateMetadata {
		params[volumeSnapshotName] = c.Spec.VolumeSnapshotRef.Name
		params[volumeSnapshotNS] = c.Spec.VolumeSnapshotRef.Namespace
		params[volumeSnapshotContName] = c.Name
	}
	if c.Spec.VolumeSnapshotRef.UID == "" {
		return false, fmt.Errorf("cannot create snapshot. Snapshot content %s not bound to a snapshot", c.Name)
	}
	rsp, err := h.csi.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{
		SourceVolumeId: *c.Spec.Source.VolumeHandle, Name: snapshotNamePrefix + string(c.Spec.VolumeSnapshotRef.UID), Parameters: params, Secrets: secrets})
	if err != nil {
		if h.Call("CreateSnapshot").Final(err) {
			if aerr := h.annotate(ctx, c, false); aerr != nil {
				return false, fmt.Errorf("failed to remove VolumeSnapshotBeingCreated annotation from the content %s: %w", c.Name, aerr)
			}
		}
		return false, fmt.Errorf("failed to take snapshot of the volume %s: %q", *c.Spec.Source.VolumeHandle, err)
	}
	if err := h.setStatus(ctx, c, rsp.GetSnapshot().GetSnapshotId(), rsp.GetSnapshot()); err != nil {
		return false, fmt.Errorf("error updating status for volume snapshot content %s: %w", c.Name, err)
	}
	return rsp.GetSnapshot().GetReadyToUse(), h.created(ctx, c)
}

// created takes the annotation away: the driver has answered.
func (h *handler) created(ctx context.Context, c *snapshotv1.VolumeSnapshotContent) error {
	if err := h.annotate(ctx, c, false); err != nil {
		return fmt.Errorf("failed to remove VolumeSnapshotBeingCreated annotation on the content %s: %w", c.Name, err)
	}
	return nil
}

func (h *handler) annotate(ctx context.Context, c *snapshotv1.VolumeSnapshotContent, set bool) error {
	if metav1.HasAnnotation(c.ObjectMeta, BeingCreated) == set {
		return nil
	}
	n, err := store.Modify(ctx, h.Client, "", c.Name, func(o *snapshotv1.VolumeSnapshotContent) error {
		if set {
			metav1.SetMetaDataAnnotation(&o.ObjectMeta, BeingCreated, "yes")
		} else {
			delete(o.Annotations, BeingCreated)
		}
		return nil
	})
	if err == nil {
		*c = *n
	}
	return err
}

// driverParameters is the parameters of a class that the driver sees
// (pkg/utils/util.go:547 RemovePrefixedParameters).
func driverParameters(params map[string]string) (map[string]string, error) {
	known := []string{Secret.Name, Secret.Namespace, ListSecret.Name, ListSecret.Namespace}
	for _, what := range []string{"group-snapshotter", "group-snapshotter-get"} {
		k := sidecar.Prefixed("", what)
		known = append(known, k.Name, k.Namespace)
	}
	out := map[string]string{}
	for _, k := range slices.Sorted(maps.Keys(params)) {
		switch {
		case !strings.HasPrefix(k, sidecar.ParameterPrefix):
			out[k] = params[k]
		case !slices.Contains(known, k):
			return nil, fmt.Errorf("found unknown parameter key %q with reserved namespace %s", k, sidecar.ParameterPrefix)
		}
	}
	return out, nil
}

// secrets is what the content is annotated with.
func (h *handler) secrets(c *snapshotv1.VolumeSnapshotContent) (map[string]string, error) {
	name, ok := c.Annotations[DeletionSecretName]
	ns, ok2 := c.Annotations[DeletionSecretNS]
	if !ok || !ok2 {
		return nil, nil
	}
	if name == "" || ns == "" {
		return nil, fmt.Errorf("cannot retrieve secrets for snapshot content %q, err: secret name or namespace not specified", c.Name)
	}
	out, err := sidecar.Credentials(h.Client, &corev1.SecretReference{Name: name, Namespace: ns})
	if err != nil {
		return nil, fmt.Errorf("cannot get credentials for snapshot content %q", c.Name)
	}
	return out, nil
}

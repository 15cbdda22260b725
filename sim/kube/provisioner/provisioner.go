// Package provisioner is the external-provisioner: it turns claims into
// CreateVolume calls and PersistentVolumes, and Released volumes into
// DeleteVolume calls.
//
// Source of all rules: external-provisioner v5.3.0 pkg/controller (cited as
// P) and its library sig-storage-lib-external-provisioner v11.0.1
// controller (cited as L). The vSphere deployment pins v4.0.1, whose source
// was not at hand. Unverified: that v4.0.1 differs in nothing but the defaults
// of two gates, Topology (see sidecar.Flags.Topology) and HonorPVReclaimPolicy,
// which is on here: a PV keeps its finalizer until its volume is deleted.
//
// Not simulated: CSI migration, volume populators, node deployment, storage
// capacity objects, cloning protection, VolumeAttributesClass.
package provisioner

import (
	"context"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"

	"github.com/csilab/csilab/sim/kube/controller"
	"github.com/csilab/csilab/sim/kube/sidecar"
	"github.com/csilab/csilab/sim/kube/store"
)

// Names in the API that the provisioner reads or writes.
const (
	Finalizer       = "external-provisioner.volume.kubernetes.io/finalizer"
	ProvisionedBy   = "pv.kubernetes.io/provisioned-by"
	ProvisionerAnn  = "volume.kubernetes.io/storage-provisioner"
	betaAnn         = "volume.beta.kubernetes.io/storage-provisioner"
	SelectedNode    = "volume.kubernetes.io/selected-node"
	IdentityKey     = "storage.kubernetes.io/csiProvisionerIdentity"
	secretNameAnn   = "volume.kubernetes.io/provisioner-deletion-secret-name"
	secretNSAnn     = "volume.kubernetes.io/provisioner-deletion-secret-namespace"
	modeChangeAnn   = "snapshot.storage.kubernetes.io/allow-volume-mode-change"
	betaClassAnn    = "volume.beta.kubernetes.io/storage-class"
	cleanupAttempts = 5 // deleteVolumeRetryCount, P controller.go:136
)

// Provisioner is one incarnation of the sidecar.
type Provisioner struct{ cfg sidecar.Config }

// New returns a provisioner that Run starts.
func New(cfg sidecar.Config) *Provisioner {
	if cfg.Set == (sidecar.Set{}) {
		cfg.Set = sidecar.Real()
	}
	return &Provisioner{cfg}
}

// Run works until ctx ends, then returns nil; it returns an error where the
// real sidecar exits: a failed handshake, a lost connection. What it knew of
// operations under way is lost then, as in life: a volume whose CreateVolume
// was not answered and whose claim is gone stays behind.
func (p *Provisioner) Run(ctx context.Context) error {
	return sidecar.Run(ctx, sidecar.Provisioner, p.cfg, func(s *sidecar.Session) ([]func(context.Context) error, error) {
		h := newHandler(s, p.cfg.Set.Provisioner)
		run := func(name, kind string, keys func(store.Event) []string, rec func(context.Context, string) error) func(context.Context) error {
			return func(ctx context.Context) error {
				return controller.Run(ctx, controller.Config{
					Name: name, Client: s.Client, Kinds: []string{kind}, Keys: keys, Workers: h.flags.Workers,
					BaseDelay: h.flags.RetryStart, MaxDelay: h.flags.RetryMax, Resync: h.flags.Resync, Log: s.Log,
					Reconcile: func(ctx context.Context, key string) (time.Duration, error) { return 0, rec(ctx, key) },
				})
			}
		}
		return []func(context.Context) error{
			run("claims", "PersistentVolumeClaim", h.claims.keys, h.syncClaim),
			run("volumes", "PersistentVolume", nil, h.syncVolume),
			h.saver.run,
		}, nil
	})
}

// handler is what the provisioner knows while it runs.
type handler struct {
	*sidecar.Session
	flags    sidecar.Flags
	csi      csi.ControllerClient
	identity string
	claims   *claimIndex
	saver    *saver
}

func newHandler(s *sidecar.Session, f sidecar.Flags) *handler {
	h := &handler{Session: s, flags: f, csi: csi.NewControllerClient(s), claims: newClaimIndex(), saver: newSaver(s)}
	// The real identity is <start in ms>-<random>-<driver>. It ends up in the
	// volume context, so here it depends on the driver's name only.
	n := fnv.New32a()
	fmt.Fprint(n, s.Driver)
	h.identity = fmt.Sprintf("%d-%04d-%s", 1700000000000, n.Sum32()%10000, s.Driver)
	return h
}

func (h *handler) topology() bool {
	return h.flags.Topology && h.Plugin[csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS]
}

// claimIndex finds claims by uid, the key of the claim queue, and keeps those
// whose volume may be in the making, for they are worked on after their end.
type claimIndex struct {
	mu         sync.Mutex
	names      map[string][2]string
	inProgress map[string]*corev1.PersistentVolumeClaim
}

func newClaimIndex() *claimIndex {
	return &claimIndex{names: map[string][2]string{}, inProgress: map[string]*corev1.PersistentVolumeClaim{}}
}

// keys is the uid of a claim that was made or changed. A deleted claim is
// either in progress, then it is in the queue, or of no interest (L controller.go:707).
func (x *claimIndex) keys(e store.Event) []string {
	uid := string(e.Object.GetUID())
	x.mu.Lock()
	defer x.mu.Unlock()
	if e.Type == store.Deleted {
		delete(x.names, uid)
		return nil
	}
	x.names[uid] = [2]string{e.Object.GetNamespace(), e.Object.GetName()}
	return []string{uid}
}

// get returns the claim as the API has it, else as it was when its volume was
// last asked for, else nil.
func (x *claimIndex) get(c *store.Client, uid string) *corev1.PersistentVolumeClaim {
	x.mu.Lock()
	n, ok := x.names[uid]
	kept := x.inProgress[uid]
	x.mu.Unlock()
	if ok {
		if pvc, err := store.Get[corev1.PersistentVolumeClaim](c, n[0], n[1]); err == nil && string(pvc.UID) == uid {
			return pvc
		}
	}
	return kept
}

func (x *claimIndex) keep(pvc *corev1.PersistentVolumeClaim) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.inProgress[string(pvc.UID)] = pvc
}

func (x *claimIndex) forget(uid string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.inProgress, uid)
}

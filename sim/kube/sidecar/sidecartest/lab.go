package sidecartest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/hop"
	"github.com/csilab/csilab/sim/kube/sidecar"
	"github.com/csilab/csilab/sim/kube/sidecars"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/transport"
)

// Lab is a driver, an API and the sidecars, to be made inside a bubble.
type Lab struct {
	T      testing.TB
	Driver *Driver
	Store  *store.Store
	Client *store.Client // the user
	Ledger *ledger.Ledger
	Plan   *fault.Plan
	In     *fault.Interceptor
	Net    transport.Network
	Pod    *sidecars.Pod
	Begin  time.Time

	socket string
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	server *grpc.Server
}

// New returns a lab in memory whose driver serves; Start runs sidecars. Close
// it before the bubble ends.
func New(t testing.TB) *Lab { return NewOn(t, transport.NewMemory(), "/csi/csi.sock") }

// NewOn is New on a network, with the driver's socket at a path of it.
func NewOn(t testing.TB, net transport.Network, socket string) *Lab {
	l := &Lab{T: t, Driver: NewDriver(), Ledger: &ledger.Ledger{}, Plan: &fault.Plan{}, Net: net, Begin: time.Now(), socket: socket}
	l.In = &fault.Interceptor{Ledger: l.Ledger, Plan: l.Plan, OnCrash: func(c string) { l.Pod.Crash(c) }}
	l.Store = store.New(1, l.In)
	l.Client = l.Store.Client("user")
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.Serve()
	return l
}

// Serve starts the driver's server.
func (l *Lab) Serve() {
	ln, err := l.Net.Listen("unix", l.socket)
	if err != nil {
		l.T.Fatal(err)
	}
	l.server = grpc.NewServer()
	csi.RegisterIdentityServer(l.server, l.Driver)
	csi.RegisterControllerServer(l.server, l.Driver)
	srv := l.server
	l.wg.Go(func() { _ = srv.Serve(ln) })
}

// StopDriver closes the driver's server and all its connections.
func (l *Lab) StopDriver() { l.server.Stop() }

// Dial is a connection of a component.
func (l *Lab) Dial(component string) (*hop.Conn, error) {
	return hop.Dial(hop.Config{Network: l.Net, Endpoint: l.socket, Hop: ledger.CSI, Component: component, In: l.In})
}

// Start runs the named components (none: all), restarted when they end.
func (l *Lab) Start(set sidecar.Set, only ...string) {
	var without []string
	for _, c := range sidecars.Components() {
		if len(only) > 0 && !slices.Contains(only, c) {
			without = append(without, c)
		}
	}
	pod, err := sidecars.New(sidecars.Config{
		Client: func(c string) *store.Client { return l.Store.Client(c) },
		Dial: func(c string) (sidecars.Conn, error) {
			conn, err := l.Dial(c)
			if err != nil {
				return nil, err
			}
			return conn, nil
		},
		DriverName: Name, Set: set, Without: without,
	})
	if err != nil {
		l.T.Fatal(err)
	}
	l.Pod = pod
	l.wg.Go(func() { pod.Run(l.ctx) })
}

// Close ends all.
func (l *Lab) Close() {
	l.cancel()
	l.In.Close()
	l.server.Stop()
	l.wg.Wait()
}

// Create makes objects; like an API server it drops their status.
func (l *Lab) Create(objs ...store.Object) {
	l.T.Helper()
	for _, o := range objs {
		if err := l.Client.Create(l.ctx, o); err != nil {
			l.T.Fatal(err)
		}
	}
}

// setStatus writes the status that an object was made with.
func (l *Lab) setStatus(o store.Object) {
	l.T.Helper()
	o.SetResourceVersion("")
	if err := l.Client.UpdateStatus(l.ctx, o); err != nil {
		l.T.Fatal(err)
	}
}

// Delete deletes objects.
func (l *Lab) Delete(objs ...store.Object) {
	l.T.Helper()
	for _, o := range objs {
		if err := l.Client.Delete(l.ctx, o); err != nil {
			l.T.Fatal(err)
		}
	}
}

// Calls is the calls of an RPC on the hop csi: when they began, in seconds
// since the lab's begin, e.g. "0 1 3".
func (l *Lab) Calls(rpc string) string {
	var out []string
	for _, e := range l.Ledger.Entries() {
		if e.Hop == ledger.CSI && e.Op == rpc {
			out = append(out, fmt.Sprint(e.Start.Sub(l.Begin).Truncate(time.Millisecond).Seconds()))
		}
	}
	return strings.Join(out, " ")
}

// Sequence is the RPCs on the hop csi in order, without the handshakes.
func (l *Lab) Sequence() string {
	var out []string
	for _, e := range l.Ledger.Entries() {
		switch {
		case e.Hop != ledger.CSI, e.Op == "Probe", e.Op == "GetPluginInfo", e.Op == "GetPluginCapabilities", e.Op == "ControllerGetCapabilities", e.Op == "ListVolumes":
		default:
			out = append(out, e.Op)
		}
	}
	return strings.Join(out, " ")
}

// Events is the events about objects of a kind, "Reason: message", in the
// order of their first occurrence.
func (l *Lab) Events(kind string) []string {
	es := store.List[corev1.Event](l.Client, "")
	slices.SortStableFunc(es, func(a, b *corev1.Event) int { return a.FirstTimestamp.Compare(b.FirstTimestamp.Time) })
	var out []string
	for _, e := range es {
		if e.InvolvedObject.Kind == kind {
			out = append(out, e.Reason+": "+e.Message)
		}
	}
	return out
}

// HasEvent fails the test unless an event about a kind contains all texts.
func (l *Lab) HasEvent(kind string, texts ...string) {
	l.T.Helper()
	for _, e := range l.Events(kind) {
		if !slices.ContainsFunc(texts, func(s string) bool { return !strings.Contains(e, s) }) {
			return
		}
	}
	l.T.Errorf("no event about a %s has %q; there are %q", kind, texts, l.Events(kind))
}

// Class is a StorageClass of the driver.
func Class(name string, params map[string]string) *storagev1.StorageClass {
	yes := true
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: Name, Parameters: params, AllowVolumeExpansion: &yes}
}

// Claim is a claim that waits for the provisioner.
func Claim(name, class, size string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{"volume.kubernetes.io/storage-provisioner": Name}},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}}},
	}
}

// Bound makes a claim and a PV that are bound to each other, of a volume that
// the driver has.
func (l *Lab) Bound(name, size string) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	l.T.Helper()
	q := resource.MustParse(size)
	pvc := Claim(name, "sc", size)
	pvc.Spec.VolumeName = "pv-" + name
	l.Create(pvc)
	pvc.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: corev1.ResourceList{corev1.ResourceStorage: q}}
	l.setStatus(pvc)
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name, Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": Name}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: q}, AccessModes: pvc.Spec.AccessModes, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef:               &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: name, UID: pvc.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: Name, VolumeHandle: "id-" + name, FSType: "ext4"}},
		},
	}
	l.Create(pv)
	pv.Status.Phase = corev1.VolumeBound
	l.setStatus(pv)
	l.Driver.mu.Lock()
	l.Driver.Volumes[name] = &csi.Volume{VolumeId: "id-" + name, CapacityBytes: q.Value()}
	l.Driver.mu.Unlock()
	return pvc, pv
}

// Attachment is a VolumeAttachment.
func Attachment(name, pv, node string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagev1.VolumeAttachmentSpec{Attacher: Name, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}}}
}

// Node makes a node with the driver on it, in a zone ("" is none).
func (l *Lab) Node(name, zone string) {
	l.T.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	d := storagev1.CSINodeDriver{Name: Name, NodeID: "id-" + name}
	if zone != "" {
		n.Labels = map[string]string{"zone": zone}
		d.TopologyKeys = []string{"zone"}
	}
	l.Create(n, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{d}}})
}

// SnapshotClass is a VolumeSnapshotClass of the driver.
func SnapshotClass(name string, policy snapshotv1.DeletionPolicy) *snapshotv1.VolumeSnapshotClass {
	return &snapshotv1.VolumeSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Driver: Name, DeletionPolicy: policy}
}

// Snapshot is a VolumeSnapshot of a claim; class "" is the default.
func Snapshot(name, claim, class string) *snapshotv1.VolumeSnapshot {
	s := &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim}}}
	if class != "" {
		s.Spec.VolumeSnapshotClassName = &class
	}
	return s
}

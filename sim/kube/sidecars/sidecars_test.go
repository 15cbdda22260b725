package sidecars_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/sidecar"
	"github.com/csilab/csilab/sim/kube/sidecar/sidecartest"
	"github.com/csilab/csilab/sim/kube/sidecars"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/transport"
)

// binder is the little of the PV controller that the life below needs.
func binder(ctx context.Context, l *sidecartest.Lab) {
	c := l.Store.Client("binder")
	for e := range c.Watch(ctx, "PersistentVolume", "PersistentVolumeClaim") {
		switch o := e.Object.(type) {
		case *corev1.PersistentVolume:
			pvc, err := store.Get[corev1.PersistentVolumeClaim](c, o.Spec.ClaimRef.Namespace, o.Spec.ClaimRef.Name)
			if e.Type == store.Deleted || err != nil || pvc.UID != o.Spec.ClaimRef.UID || pvc.Spec.VolumeName != "" {
				continue
			}
			_, _ = store.ModifyStatus(ctx, c, "", o.Name, func(p *corev1.PersistentVolume) error { p.Status.Phase = corev1.VolumeBound; return nil })
			_, _ = store.Modify(ctx, c, pvc.Namespace, pvc.Name, func(p *corev1.PersistentVolumeClaim) error { p.Spec.VolumeName = o.Name; return nil })
			_, _ = store.ModifyStatus(ctx, c, pvc.Namespace, pvc.Name, func(p *corev1.PersistentVolumeClaim) error {
				p.Status.Phase, p.Status.Capacity = corev1.ClaimBound, o.Spec.Capacity
				return nil
			})
		case *corev1.PersistentVolumeClaim:
			if e.Type == store.Deleted && o.Spec.VolumeName != "" {
				_, _ = store.ModifyStatus(ctx, c, "", o.Spec.VolumeName, func(p *corev1.PersistentVolume) error { p.Status.Phase = corev1.VolumeReleased; return nil })
			}
		}
	}
}

// life is a volume from its claim to its end, with all sidecars; each step
// waits for what the API says, and then for settle.
func life(t *testing.T, l *sidecartest.Lab, settle func()) {
	ctx, cancel := context.WithTimeout(context.Background(), 24*time.Hour)
	defer cancel()
	until := func(what string, f func() bool) {
		t.Helper()
		if err := l.Client.Wait(ctx, func() (bool, error) { return f(), nil }); err != nil {
			t.Fatalf("%s: %v; ledger %s", what, err, l.Sequence())
		}
		settle()
	}
	claim := func(n string) *corev1.PersistentVolumeClaim {
		p, _ := store.Get[corev1.PersistentVolumeClaim](l.Client, "default", n)
		return p
	}
	bound := func(n string) func() bool {
		return func() bool { p := claim(n); return p != nil && p.Status.Phase == corev1.ClaimBound }
	}
	del := func(o store.Object) {
		t.Helper()
		if err := l.Client.Delete(ctx, o); err != nil {
			t.Fatal(err)
		}
	}

	settle() // the attacher has had its first look for drift
	l.Node("n1", "")
	l.Create(sidecartest.Class("sc", nil), sidecartest.SnapshotClass("snap", snapshotv1.VolumeSnapshotContentDelete), sidecartest.Claim("data", "sc", "1Gi"))
	until("provision", bound("data"))

	l.Create(sidecartest.Attachment("va", claim("data").Spec.VolumeName, "n1"))
	until("attach", func() bool {
		va, err := store.Get[storagev1.VolumeAttachment](l.Client, "", "va")
		return err == nil && va.Status.Attached
	})

	l.Create(sidecartest.Snapshot("s", "data", "snap"))
	snap := func() *snapshotv1.VolumeSnapshot {
		s, _ := store.Get[snapshotv1.VolumeSnapshot](l.Client, "default", "s")
		return s
	}
	until("snapshot", func() bool { s := snap(); return s.Status != nil && s.Status.ReadyToUse != nil && *s.Status.ReadyToUse })

	copied := sidecartest.Claim("copy", "sc", "1Gi")
	g := snapshotv1.GroupName
	copied.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: &g, Kind: "VolumeSnapshot", Name: "s"}
	l.Create(copied)
	until("restore", bound("copy"))

	if _, err := store.Modify(ctx, l.Client, "default", "data", func(p *corev1.PersistentVolumeClaim) error {
		p.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("2Gi")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	until("expand", func() bool { q := claim("data").Status.Capacity[corev1.ResourceStorage]; return q.String() == "2Gi" })

	va, _ := store.Get[storagev1.VolumeAttachment](l.Client, "", "va")
	del(snap())
	del(va)
	del(claim("copy"))
	del(claim("data"))
	until("all gone", func() bool {
		return len(store.List[corev1.PersistentVolume](l.Client, ""))+len(store.List[storagev1.VolumeAttachment](l.Client, ""))+
			len(store.List[snapshotv1.VolumeSnapshot](l.Client, ""))+len(store.List[snapshotv1.VolumeSnapshotContent](l.Client, ""))+
			len(store.List[corev1.PersistentVolumeClaim](l.Client, "")) == 0
	})
	if got := l.Driver.Left(); got != "0 volumes, 0 attached, 0 snapshots" {
		t.Errorf("left: %s; ledger %s", got, l.Sequence())
	}
}

// bubble runs life in virtual time with a plan.
func bubble(t *testing.T, settle func(), arm func(l *sidecartest.Lab)) (calls []ledger.Entry) {
	synctest.Test(t, func(t *testing.T) {
		l := sidecartest.New(t)
		defer l.Close()
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); binder(ctx, l) }()
		defer func() { cancel(); <-done }()
		if arm != nil {
			arm(l)
		}
		l.Start(sidecar.Real())
		life(t, l, settle)
		calls = l.Ledger.Entries()
		for _, r := range l.Plan.Unfired() {
			t.Errorf("did not fire: %s", r.Name)
		}
	})
	return calls
}

// hurry is a user who waits for nothing: steps overlap with what the sidecars
// still do for the one before.
func hurry() {}

func TestLife(t *testing.T) {
	calls := bubble(t, synctest.Wait, nil)
	var seq []string
	for _, e := range calls {
		if e.Hop == ledger.CSI && strings.HasPrefix(e.Component, "csi-") && e.Op != "ListVolumes" && !strings.Contains(e.Op, "Get") && e.Op != "Probe" {
			seq = append(seq, e.Op)
		}
	}
	slices.Sort(seq[5:]) // the end is in any order
	want := "CreateVolume ControllerPublishVolume CreateSnapshot CreateVolume ControllerExpandVolume ControllerUnpublishVolume DeleteSnapshot DeleteVolume DeleteVolume"
	if got := strings.Join(seq, " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// Each call that a clean life makes, on both hops, is broken once in each way:
// the life goes on to its end without help.
func TestSweep(t *testing.T) {
	type cell struct {
		hop             ledger.Hop
		op, who, action string
		phase           fault.Phase
	}
	actions := map[string]fault.Action{
		"crash": fault.Crash(""), "drop": fault.Drop(), "deadline": fault.Error(context.DeadlineExceeded), "hang": fault.Hang(),
	}
	done := map[cell]bool{}
	for _, e := range bubble(t, hurry, nil) {
		if !slices.Contains(sidecars.Components(), e.Component) || strings.Contains(e.Op, "events") || e.Op == "ListVolumes" {
			continue
		}
		for name, a := range actions {
			for _, phase := range []fault.Phase{fault.Before, fault.After} {
				c := cell{e.Hop, e.Op, e.Component, name, phase}
				handshake := e.Op == "Probe" || strings.HasPrefix(e.Op, "GetPlugin") || e.Op == "ControllerGetCapabilities"
				if done[c] || e.Hop == ledger.Kube && name != "crash" || phase == fault.Before && (handshake || name == "hang") {
					continue // before and after are the same for a call without an effect
				}
				done[c] = true
				t.Run(fmt.Sprintf("%s %s %s %s", c.who, c.op, name, phase), func(t *testing.T) {
					bubble(t, hurry, func(l *sidecartest.Lab) {
						l.Plan.Arm(fault.Rule{Name: name, Hop: c.hop, Op: c.op, Component: c.who, Phase: phase, Nth: 1, Do: a})
					})
				})
			}
		}
	}
	if len(done) < 80 {
		t.Errorf("%d cells only", len(done))
	}
}

// The driver goes away in the middle of each step and comes back.
func TestDriverRestarts(t *testing.T) {
	for _, op := range []string{"CreateVolume", "ControllerPublishVolume", "CreateSnapshot", "ControllerExpandVolume", "DeleteSnapshot", "ControllerUnpublishVolume", "DeleteVolume"} {
		t.Run(op, func(t *testing.T) {
			bubble(t, hurry, func(l *sidecartest.Lab) {
				l.Plan.Arm(fault.Rule{Hop: ledger.CSI, Op: op, Phase: fault.After, Nth: 1, Do: fault.Func("restart driver", func(context.Context, fault.Call) error {
					l.StopDriver()
					l.Serve()
					return fault.ErrDrop
				})})
			})
		})
	}
}

// The same life on the wall: real time, a real socket, the fast flags.
func TestLifeOnTheWall(t *testing.T) {
	dir, err := os.MkdirTemp("", "csi") // short, for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l := sidecartest.NewOn(t, transport.Wall{}, filepath.Join(dir, "csi.sock"))
	defer l.Close()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); binder(ctx, l) }()
	defer func() { cancel(); <-done }()
	l.Plan.Arm(fault.Rule{Hop: ledger.CSI, Op: "CreateSnapshot", Phase: fault.After, Nth: 1, Do: fault.Drop()})
	l.Plan.Arm(fault.Rule{Hop: ledger.CSI, Op: "DeleteVolume", Nth: 1, Do: fault.Crash("")})
	l.Start(sidecar.Fast())
	life(t, l, hurry)
	if d := time.Since(l.Begin); d > 20*time.Second {
		t.Errorf("took %v", d)
	}
}

func TestConfig(t *testing.T) {
	if _, err := sidecars.New(sidecars.Config{}); err == nil {
		t.Error("no error without Client and Dial")
	}
	_, err := sidecars.New(sidecars.Config{Client: func(string) *store.Client { return nil }, Dial: func(string) (sidecars.Conn, error) { return nil, nil }, Without: []string{"csi-nothing"}})
	if err == nil || !strings.Contains(err.Error(), `unknown component "csi-nothing", allowed are ["csi-provisioner"`) {
		t.Error(err)
	}
}

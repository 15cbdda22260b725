package snapshotter_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/sidecar"
	"github.com/csilab/csilab/sim/kube/sidecar/sidecartest"
	"github.com/csilab/csilab/sim/kube/snapshotter"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
)

// bubble runs f in virtual time with a bound volume, a class that deletes and
// the two snapshot components.
func bubble(t *testing.T, f func(t *testing.T, l *sidecartest.Lab)) {
	synctest.Test(t, func(t *testing.T) {
		l := sidecartest.New(t)
		defer l.Close()
		l.Bound("data", "1Gi")
		l.Create(sidecartest.SnapshotClass("snap", snapshotv1.VolumeSnapshotContentDelete))
		f(t, l)
	})
}

func start(l *sidecartest.Lab) {
	l.Start(sidecar.Real(), sidecar.SnapshotController, sidecar.Snapshotter)
}

func getSnap(l *sidecartest.Lab) *snapshotv1.VolumeSnapshot {
	l.T.Helper()
	s, err := store.Get[snapshotv1.VolumeSnapshot](l.Client, "default", "s")
	if err != nil {
		l.T.Fatal(err)
	}
	return s
}

func isReady(l *sidecartest.Lab) bool {
	s := getSnap(l)
	return s.Status != nil && s.Status.ReadyToUse != nil && *s.Status.ReadyToUse
}

// nothing fails the test unless API and driver have no snapshot and the claim is free.
func nothing(l *sidecartest.Lab) {
	l.T.Helper()
	if n := len(store.List[snapshotv1.VolumeSnapshot](l.Client, "")); n != 0 {
		l.T.Errorf("%d snapshots: %+v", n, store.List[snapshotv1.VolumeSnapshot](l.Client, "")[0])
	}
	if n := len(store.List[snapshotv1.VolumeSnapshotContent](l.Client, "")); n != 0 {
		l.T.Errorf("%d contents: %+v", n, store.List[snapshotv1.VolumeSnapshotContent](l.Client, "")[0])
	}
	if got := l.Driver.Left(); got != "1 volumes, 0 attached, 0 snapshots" {
		l.T.Error(got)
	}
	if pvc, _ := store.Get[corev1.PersistentVolumeClaim](l.Client, "default", "data"); len(pvc.Finalizers) != 0 {
		l.T.Errorf("the claim keeps %v", pvc.Finalizers)
	}
}

func TestCreateAndDelete(t *testing.T) {
	bubble(t, func(t *testing.T, l *sidecartest.Lab) {
		l.Create(sidecartest.Snapshot("s", "data", "snap"))
		start(l)
		synctest.Wait()
		s := getSnap(l)
		if !isReady(l) || s.Status.RestoreSize.String() != "1Gi" || s.Status.CreationTime == nil || s.Status.Error != nil || len(s.Finalizers) != 2 {
			t.Errorf("%+v", s)
		}
		req := l.Driver.Requests("CreateSnapshot")[0].(*csi.CreateSnapshotRequest)
		if req.Name != "snapshot-"+string(s.UID) || req.SourceVolumeId != "id-data" || len(req.Parameters) != 3 ||
			req.Parameters["csi.storage.k8s.io/volumesnapshot/name"] != "s" || req.Parameters["csi.storage.k8s.io/volumesnapshotcontent/name"] != "snapcontent-"+string(s.UID) {
			t.Errorf("request %v", req)
		}
		l.HasEvent("VolumeSnapshot", "CreatingSnapshot: Waiting for a snapshot default/s to be created by the CSI driver.")
		l.HasEvent("VolumeSnapshot", "SnapshotReady: Snapshot default/s is ready to use.")
		l.Delete(s)
		synctest.Wait()
		nothing(l)
		if got := l.Sequence(); got != "CreateSnapshot DeleteSnapshot" {
			t.Error(got)
		}
	})
}

func TestRetain(t *testing.T) {
	bubble(t, func(t *testing.T, l *sidecartest.Lab) {
		l.Create(sidecartest.SnapshotClass("keep", snapshotv1.VolumeSnapshotContentRetain), sidecartest.Snapshot("s", "data", "keep"))
		start(l)
		synctest.Wait()
		l.Delete(getSnap(l))
		time.Sleep(time.Hour)
		c := store.List[snapshotv1.VolumeSnapshotContent](l.Client, "")
		if len(store.List[snapshotv1.VolumeSnapshot](l.Client, "")) != 0 || len(c) != 1 || l.Driver.Left() != "1 volumes, 0 attached, 1 snapshots" {
			t.Fatalf("%+v, %s", c, l.Driver.Left())
		}
		// The content, deleted by hand, goes without the snapshot.
		l.Delete(c[0])
		synctest.Wait()
		if len(store.List[snapshotv1.VolumeSnapshotContent](l.Client, "")) != 0 || l.Driver.Left() != "1 volumes, 0 attached, 1 snapshots" {
			t.Error(l.Driver.Left())
		}
	})
}

// A snapshot that is cut but not ready is asked for again, less and less often.
func TestNotReadyYet(t *testing.T) {
	bubble(t, func(t *testing.T, l *sidecartest.Lab) {
		l.Driver.SnapshotReadyAfter = 4
		l.Create(sidecartest.Snapshot("s", "data", "snap"))
		start(l)
		time.Sleep(5 * time.Second)
		s := getSnap(l)
		if isReady(l) || s.Status.CreationTime == nil {
			t.Errorf("%+v", s.Status)
		}
		l.HasEvent("VolumeSnapshot", "SnapshotCreated")
		time.Sleep(time.Minute)
		if got := l.Calls("CreateSnapshot"); got != "0 1 3 7 15" || !isReady(l) {
			t.Errorf("called at %s", got)
		}
		if pvc, _ := store.Get[corev1.PersistentVolumeClaim](l.Client, "default", "data"); len(pvc.Finalizers) != 0 {
			t.Errorf("the claim keeps %v", pvc.Finalizers)
		}
	})
}

// For each code: the snapshot is deleted while the driver has not said yes.
// Final: nothing is left to delete. Uncertain: it is cut first, then deleted.
func TestCodes(t *testing.T) {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		t.Run(code.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, l *sidecartest.Lab) {
				uncertain := code == codes.Canceled || code == codes.DeadlineExceeded || code == codes.Unavailable || code == codes.Aborted || code == codes.ResourceExhausted
				l.Driver.Answer("CreateSnapshot", sidecartest.Repeat(4, sidecartest.Status(code))...)
				l.Create(sidecartest.Snapshot("s", "data", "snap"))
				start(l)
				time.Sleep(4 * time.Second)
				s := getSnap(l)
				if s.Status == nil || s.Status.Error == nil || !strings.Contains(*s.Status.Error.Message, "code = "+code.String()) {
					t.Errorf("status %+v", s.Status)
				}
				l.HasEvent("VolumeSnapshotContent", "SnapshotCreationFailed: Failed to create snapshot: failed to take snapshot of the volume id-data", "code = "+code.String())
				c := store.List[snapshotv1.VolumeSnapshotContent](l.Client, "")[0]
				if metav1.HasAnnotation(c.ObjectMeta, snapshotter.BeingCreated) != uncertain {
					t.Errorf("annotations %v", c.Annotations)
				}
				l.Delete(s)
				time.Sleep(time.Hour)
				nothing(l)
				want := "CreateSnapshot CreateSnapshot CreateSnapshot"
				if uncertain {
					// The annotation that the controller sets brings one more try at once.
					want += " CreateSnapshot CreateSnapshot DeleteSnapshot"
				}
				// The controller marks the content before it deletes it; between the
				// two the sidecar may try once more, as in life.
				if got := l.Sequence(); got != want && (uncertain || got != want+" CreateSnapshot") {
					t.Errorf("got %s, want %s", got, want)
				}
			})
		})
	}
}

func TestTimeoutAndDeleteErrors(t *testing.T) {
	bubble(t, func(t *testing.T, l *sidecartest.Lab) {
		l.Driver.Do("CreateSnapshot", sidecartest.Hang)
		l.Driver.Answer("DeleteSnapshot", sidecartest.Repeat(3, sidecartest.Status(codes.FailedPrecondition))...)
		l.Create(sidecartest.Snapshot("s", "data", "snap"))
		start(l)
		time.Sleep(310 * time.Second)
		if got := l.Calls("CreateSnapshot"); got != "0 301" {
			t.Errorf("called at %s", got)
		}
		l.Delete(getSnap(l))
		time.Sleep(2 * time.Second)
		getSnap(l) // it stays until its content has gone
		time.Sleep(30 * time.Second)
		// The content is marked and then deleted: two changes. A call that falls
		// between them is followed by another at once, as an informer's second
		// event does; the back-off counts both.
		if got := l.Calls("DeleteSnapshot"); got != "310 311 313 317" && got != "310 310 311 315" {
			t.Errorf("called at %s", got)
		}
		l.HasEvent("VolumeSnapshotContent", "SnapshotDeleteError: Failed to delete snapshot")
		nothing(l)
	})
}

// K46: a claim is being restored from the snapshot that is deleted.
func TestRestoring(t *testing.T) {
	bubble(t, func(t *testing.T, l *sidecartest.Lab) {
		l.Create(sidecartest.Snapshot("s", "data", "snap"))
		start(l)
		synctest.Wait()
		pvc := sidecartest.Claim("restore", "sc", "1Gi")
		g := snapshotv1.GroupName
		pvc.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: &g, Kind: "VolumeSnapshot", Name: "s"}
		l.Create(pvc)
		l.Delete(getSnap(l))
		time.Sleep(time.Minute)
		l.HasEvent("VolumeSnapshot", "SnapshotDeletePending: Snapshot is being used to restore a PVC")
		if l.Calls("DeleteSnapshot") != "" {
			t.Error("deleted")
		}
		l.Delete(pvc)
		time.Sleep(2 * time.Minute)
		nothing(l)
	})
}

func TestPreProvisioned(t *testing.T) {
	bubble(t, func(t *testing.T, l *sidecartest.Lab) {
		l.Driver.Snapshots["old"] = &csi.Snapshot{SnapshotId: "old-id", SizeBytes: 5, ReadyToUse: true}
		id, name := "old-id", "content"
		s := sidecartest.Snapshot("s", "", "")
		s.Spec.Source = snapshotv1.VolumeSnapshotSource{VolumeSnapshotContentName: &name}
		l.Create(s)
		start(l)
		time.Sleep(2 * time.Second)
		l.HasEvent("VolumeSnapshot", "SnapshotContentMissing: VolumeSnapshotContent is missing")
		l.Create(&snapshotv1.VolumeSnapshotContent{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: snapshotv1.VolumeSnapshotContentSpec{
			Driver: sidecartest.Name, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
			Source:            snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: &id},
			VolumeSnapshotRef: corev1.ObjectReference{Kind: "VolumeSnapshot", Namespace: "default", Name: "s"}}})
		time.Sleep(10 * time.Second)
		if !isReady(l) || getSnap(l).Status.RestoreSize.Value() != 5 {
			t.Errorf("%+v", getSnap(l).Status)
		}
		if got := l.Sequence(); got != "ListSnapshots" {
			t.Error(got)
		}
		l.Delete(getSnap(l))
		synctest.Wait()
		nothing(l)
	})
}

func TestClasses(t *testing.T) {
	yes := map[string]string{"snapshot.storage.kubernetes.io/is-default-class": "true"}
	for name, c := range map[string]struct {
		defaults []string
		class    string
		event    string
	}{
		"default":      {[]string{"a"}, "", ""},
		"none":         {nil, "", "SetDefaultSnapshotClassFailed: Failed to set default snapshot class with error cannot find default snapshot class"},
		"two":          {[]string{"a", "b"}, "", "with error 2 default snapshot classes were found"},
		"missing":      {nil, "zz", `GetSnapshotClassFailed: Failed to get snapshot class with error volumesnapshotclasses.snapshot.storage.k8s.io "zz" not found`},
		"not prefixed": {nil, "bad", ""},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, l *sidecartest.Lab) {
				for _, n := range c.defaults {
					d := sidecartest.SnapshotClass(n, snapshotv1.VolumeSnapshotContentDelete)
					d.Annotations = yes
					l.Create(d)
				}
				bad := sidecartest.SnapshotClass("bad", snapshotv1.VolumeSnapshotContentDelete)
				bad.Parameters = map[string]string{"csi.storage.k8s.io/nonsense": "x"}
				l.Create(bad, sidecartest.Snapshot("s", "data", c.class))
				start(l)
				time.Sleep(time.Second)
				switch {
				case c.event != "":
					l.HasEvent("VolumeSnapshot", c.event)
				case c.class == "bad":
					l.HasEvent("VolumeSnapshotContent", `found unknown parameter key "csi.storage.k8s.io/nonsense"`)
				case *getSnap(l).Spec.VolumeSnapshotClassName != "a" || !isReady(l):
					t.Errorf("%+v", getSnap(l))
				}
			})
		})
	}
}

func TestUnboundClaim(t *testing.T) {
	bubble(t, func(t *testing.T, l *sidecartest.Lab) {
		l.Create(sidecartest.Claim("loose", "sc", "1Gi"), sidecartest.Snapshot("s", "loose", "snap"))
		start(l)
		time.Sleep(time.Second)
		l.HasEvent("VolumeSnapshot", "SnapshotContentCreationFailed", "the PVC loose is not yet bound to a PV, will not attempt to take a snapshot")
	})
}

// Both components are killed at each of their calls.
func TestCrashAtEachCall(t *testing.T) {
	for _, op := range []struct {
		who, op string
		hop     ledger.Hop
		nth     int
	}{
		{sidecar.Snapshotter, "CreateSnapshot", ledger.CSI, 1}, {sidecar.Snapshotter, "DeleteSnapshot", ledger.CSI, 1},
		{sidecar.Snapshotter, "update volumesnapshotcontents", ledger.Kube, 1}, {sidecar.Snapshotter, "update volumesnapshotcontents", ledger.Kube, 2}, {sidecar.Snapshotter, "update volumesnapshotcontents", ledger.Kube, 3},
		{sidecar.Snapshotter, "update-status volumesnapshotcontents", ledger.Kube, 1}, {sidecar.Snapshotter, "update-status volumesnapshotcontents", ledger.Kube, 2},
		{sidecar.SnapshotController, "create volumesnapshotcontents", ledger.Kube, 1}, {sidecar.SnapshotController, "delete volumesnapshotcontents", ledger.Kube, 1},
		{sidecar.SnapshotController, "update volumesnapshotcontents", ledger.Kube, 1},
		{sidecar.SnapshotController, "update persistentvolumeclaims", ledger.Kube, 1}, {sidecar.SnapshotController, "update persistentvolumeclaims", ledger.Kube, 2},
		{sidecar.SnapshotController, "update volumesnapshots", ledger.Kube, 1}, {sidecar.SnapshotController, "update volumesnapshots", ledger.Kube, 2}, {sidecar.SnapshotController, "update volumesnapshots", ledger.Kube, 3},
		{sidecar.SnapshotController, "update-status volumesnapshots", ledger.Kube, 1}, {sidecar.SnapshotController, "update-status volumesnapshots", ledger.Kube, 2},
	} {
		for _, phase := range []fault.Phase{fault.Before, fault.After} {
			t.Run(op.who+" "+op.op+" "+string(phase), func(t *testing.T) {
				bubble(t, func(t *testing.T, l *sidecartest.Lab) {
					r := l.Plan.Arm(fault.Rule{Hop: op.hop, Op: op.op, Component: op.who, Phase: phase, Nth: op.nth, Do: fault.Crash("")})
					start(l)
					synctest.Wait()
					l.Create(sidecartest.Snapshot("s", "data", "snap"))
					time.Sleep(time.Minute)
					if !isReady(l) {
						t.Errorf("%+v", getSnap(l).Status)
					}
					l.Delete(getSnap(l))
					time.Sleep(time.Minute)
					nothing(l)
					if r.Fired() != 1 {
						t.Errorf("the rule fired %d times", r.Fired())
					}
				})
			})
		}
	}
}

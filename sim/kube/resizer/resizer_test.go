package resizer_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/resizer"
	"github.com/csilab/csilab/sim/kube/sidecar"
	"github.com/csilab/csilab/sim/kube/sidecar/sidecartest"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
)

// bubble runs f in virtual time with a bound volume of 1Gi and a resizer.
func bubble(t *testing.T, set sidecar.Set, f func(t *testing.T, l *sidecartest.Lab)) {
	synctest.Test(t, func(t *testing.T) {
		l := sidecartest.New(t)
		defer l.Close()
		l.Bound("data", "1Gi")
		l.Start(set, sidecar.Resizer)
		synctest.Wait()
		f(t, l)
	})
}

func getPVC(l *sidecartest.Lab) *corev1.PersistentVolumeClaim {
	l.T.Helper()
	pvc, err := store.Get[corev1.PersistentVolumeClaim](l.Client, "default", "data")
	if err != nil {
		l.T.Fatal(err)
	}
	return pvc
}

func ask(l *sidecartest.Lab, size string) {
	l.T.Helper()
	if _, err := store.Modify(context.Background(), l.Client, "default", "data", func(p *corev1.PersistentVolumeClaim) error {
		p.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse(size)
		return nil
	}); err != nil {
		l.T.Fatal(err)
	}
}

// state is e.g. "pvc 1Gi pv 2Gi allocated 2Gi NodeResizePending [FileSystemResizePending]".
func state(l *sidecartest.Lab) string {
	pvc := getPVC(l)
	pv, _ := store.Get[corev1.PersistentVolume](l.Client, "", "pv-data")
	have, has, alloc := pvc.Status.Capacity[corev1.ResourceStorage], pv.Spec.Capacity[corev1.ResourceStorage], pvc.Status.AllocatedResources[corev1.ResourceStorage]
	var conds []string
	for _, c := range pvc.Status.Conditions {
		conds = append(conds, string(c.Type))
	}
	return strings.Join(strings.Fields("pvc "+have.String()+" pv "+has.String()+" allocated "+alloc.String()+" "+
		string(pvc.Status.AllocatedResourceStatuses[corev1.ResourceStorage])+" ["+strings.Join(conds, " ")+"]"), " ")
}

func want(l *sidecartest.Lab, s string) {
	l.T.Helper()
	if got := state(l); got != s {
		l.T.Errorf("got  %s\nwant %s", got, s)
	}
}

// sizes is what ControllerExpandVolume asked for, in Gi.
func sizes(l *sidecartest.Lab) string {
	var out []string
	for _, r := range l.Driver.Requests("ControllerExpandVolume") {
		q := resource.NewQuantity(r.(*csi.ControllerExpandVolumeRequest).CapacityRange.RequiredBytes, resource.BinarySI)
		out = append(out, q.String())
	}
	return strings.Join(out, " ")
}

func TestExpandWithNode(t *testing.T) {
	bubble(t, sidecar.Real(), func(t *testing.T, l *sidecartest.Lab) {
		l.Driver.NodeExpansion = true
		ask(l, "2Gi")
		synctest.Wait()
		want(l, "pvc 1Gi pv 2Gi allocated 2Gi NodeResizePending [Resizing FileSystemResizePending]")
		pv, _ := store.Get[corev1.PersistentVolume](l.Client, "", "pv-data")
		if pv.Annotations[resizer.PreResizeCapacity] != "1Gi" {
			t.Errorf("annotations %v", pv.Annotations)
		}
		l.HasEvent("PersistentVolumeClaim", "Resizing: External resizer is resizing volume pv-data")
		l.HasEvent("PersistentVolumeClaim", "FileSystemResizeRequired: Require file system resize of volume on node")
		// The kubelet's turn; more is not asked for before it is done.
		ask(l, "3Gi")
		time.Sleep(time.Hour)
		if sizes(l) != "2Gi" {
			t.Error(sizes(l))
		}
		if _, err := store.ModifyStatus(context.Background(), l.Client, "default", "data", func(p *corev1.PersistentVolumeClaim) error {
			p.Status.Capacity[corev1.ResourceStorage] = resource.MustParse("2Gi")
			p.Status.AllocatedResourceStatuses, p.Status.Conditions = nil, nil
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		want(l, "pvc 2Gi pv 3Gi allocated 3Gi NodeResizePending [Resizing FileSystemResizePending]")
		if sizes(l) != "2Gi 3Gi" {
			t.Error(sizes(l))
		}
	})
}

func TestExpandWithoutNode(t *testing.T) {
	bubble(t, sidecar.Real(), func(t *testing.T, l *sidecartest.Lab) {
		ask(l, "2Gi")
		time.Sleep(time.Hour - time.Second) // then its events go
		want(l, "pvc 2Gi pv 2Gi allocated 2Gi []")
		if !metav1.HasAnnotation(getPVC(l).ObjectMeta, resizer.NodeExpansionNotRequired) || sizes(l) != "2Gi" {
			t.Errorf("%v %s", getPVC(l).Annotations, sizes(l))
		}
		l.HasEvent("PersistentVolumeClaim", "VolumeResizeSuccessful: Resize volume succeeded")
	})
}

// Three sorts of error: uncertain keeps to its size, final takes the user's
// new one at once, infeasible waits for RetryMax unless there is a new one.
func TestErrors(t *testing.T) {
	for _, c := range []struct {
		code  codes.Code
		at    string // within 20 minutes, a lower request after 10.5
		sizes string
		mid   string
	}{
		{codes.Internal, "0 1 3 7 15 31 63 127 255 511 630", "9Gi 9Gi 9Gi 9Gi 9Gi 9Gi 9Gi 9Gi 9Gi 9Gi 2Gi", "pvc 1Gi pv 1Gi allocated 9Gi ControllerResizeInProgress [Resizing ControllerResizeError]"},
		{codes.FailedPrecondition, "0 1 3 7 15 31 63 127 255 511 630", "9Gi 9Gi 9Gi 9Gi 9Gi 9Gi 9Gi 9Gi 9Gi 9Gi 2Gi", "pvc 1Gi pv 1Gi allocated 9Gi ControllerResizeInProgress [Resizing ControllerResizeError]"},
		{codes.DeadlineExceeded, "0 1 3 7 15 31 63 127 255 511 630", "9Gi 9Gi 9Gi 9Gi 9Gi 9Gi 9Gi 9Gi 9Gi 9Gi 9Gi", "pvc 1Gi pv 1Gi allocated 9Gi ControllerResizeInProgress [Resizing]"},
		{codes.ResourceExhausted, "0 1 3 7 15 31 63 127 255 511 630", "9Gi 9Gi 9Gi 9Gi 9Gi 9Gi 9Gi 9Gi 9Gi 9Gi 9Gi", "pvc 1Gi pv 1Gi allocated 9Gi ControllerResizeInProgress [Resizing]"},
		{codes.OutOfRange, "0 1 301 601 630", "9Gi 9Gi 9Gi 9Gi 2Gi", "pvc 1Gi pv 1Gi allocated 9Gi ControllerResizeInfeasible [Resizing ControllerResizeError]"},
		{codes.InvalidArgument, "0 1 301 601 630", "9Gi 9Gi 9Gi 9Gi 2Gi", "pvc 1Gi pv 1Gi allocated 9Gi ControllerResizeInfeasible [Resizing ControllerResizeError]"},
		{codes.NotFound, "0 1 301 601 630", "9Gi 9Gi 9Gi 9Gi 2Gi", "pvc 1Gi pv 1Gi allocated 9Gi ControllerResizeInfeasible [Resizing ControllerResizeError]"},
	} {
		t.Run(c.code.String(), func(t *testing.T) {
			set := sidecar.Real()
			set.Resizer.Resync = 0
			bubble(t, set, func(t *testing.T, l *sidecartest.Lab) {
				l.Plan.Arm(fault.Rule{Hop: ledger.CSI, Op: "ControllerExpandVolume", Match: func(c fault.Call) bool { return strings.Contains(c.Request, "9663676416") }, First: 10,
					Do: fault.Error(sidecartest.Status(c.code)), MayNotFire: true})
				ask(l, "9Gi")
				time.Sleep(630 * time.Second)
				want(l, c.mid)
				l.HasEvent("PersistentVolumeClaim", "VolumeResizeFailed: resize volume \"pv-data\" by resizer \"csi.example.com\" failed: rpc error: code = "+c.code.String())
				ask(l, "2Gi")
				time.Sleep(10 * time.Second)
				if got := l.Calls("ControllerExpandVolume"); got != c.at {
					t.Errorf("called at %s\nwant      %s", got, c.at)
				}
				var got []string
				for _, e := range l.Ledger.Entries() {
					if e.Op == "ControllerExpandVolume" {
						if strings.Contains(e.Request, "9663676416") {
							got = append(got, "9Gi")
						} else {
							got = append(got, "2Gi")
						}
					}
				}
				if s := strings.Join(got, " "); s != c.sizes {
					t.Errorf("asked for %s, want %s", s, c.sizes)
				}
			})
		})
	}
}

// The reply was lost after the expansion, then the user wants less: what has
// been done is found and recorded, not undone.
func TestReplyLostThenLess(t *testing.T) {
	bubble(t, sidecar.Real(), func(t *testing.T, l *sidecartest.Lab) {
		l.Plan.Arm(fault.Rule{Hop: ledger.CSI, Op: "ControllerExpandVolume", Phase: fault.After, Nth: 1, Do: fault.Error(sidecartest.Status(codes.Unavailable))})
		ask(l, "3Gi")
		synctest.Wait()
		ask(l, "2Gi")
		time.Sleep(time.Minute)
		want(l, "pvc 3Gi pv 3Gi allocated 3Gi []")
	})
}

func TestInUse(t *testing.T) {
	for _, handle := range []bool{false, true} {
		set := sidecar.Real()
		set.Resizer.HandleVolumeInUseError = handle
		bubble(t, set, func(t *testing.T, l *sidecartest.Lab) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v",
				VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}}}
			l.Create(pod)
			l.Driver.Answer("ControllerExpandVolume", sidecartest.Repeat(3, sidecartest.Status(codes.FailedPrecondition))...)
			ask(l, "2Gi")
			time.Sleep(100 * time.Second)
			if at := l.Calls("ControllerExpandVolume"); handle && at != "0" || !handle && at != "0 1 3 7" {
				t.Errorf("handle-volume-inuse-error=%v: called at %s", handle, at)
			}
			if handle {
				l.HasEvent("PersistentVolumeClaim", "VolumeResizeFailed: Unable to expand default/data because CSI driver csi.example.com only supports offline expansion")
				l.Delete(pod)
				time.Sleep(time.Hour)
				want(l, "pvc 2Gi pv 2Gi allocated 2Gi []")
			}
		})
	}
}

func TestCrashAtEachCall(t *testing.T) {
	for _, op := range []struct {
		hop ledger.Hop
		op  string
		nth int
	}{{ledger.CSI, "ControllerExpandVolume", 1}, {ledger.Kube, "update persistentvolumes", 1}, {ledger.Kube, "update persistentvolumeclaims", 1},
		{ledger.Kube, "update-status persistentvolumeclaims", 1}, {ledger.Kube, "update-status persistentvolumeclaims", 2}} {
		for _, phase := range []fault.Phase{fault.Before, fault.After} {
			t.Run(op.op+" "+string(phase), func(t *testing.T) {
				bubble(t, sidecar.Real(), func(t *testing.T, l *sidecartest.Lab) {
					r := l.Plan.Arm(fault.Rule{Hop: op.hop, Op: op.op, Component: sidecar.Resizer, Phase: phase, Nth: op.nth, Do: fault.Crash("")})
					ask(l, "2Gi")
					time.Sleep(time.Minute)
					want(l, "pvc 2Gi pv 2Gi allocated 2Gi []")
					if r.Fired() != 1 {
						t.Errorf("the rule fired %d times", r.Fired())
					}
				})
			})
		}
	}
}

package attacher_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/attacher"
	"github.com/csilab/csilab/sim/kube/sidecar"
	"github.com/csilab/csilab/sim/kube/sidecar/sidecartest"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
)

// bubble runs f in virtual time with a node, a bound volume and a lab.
func bubble(t *testing.T, f func(t *testing.T, l *sidecartest.Lab, pv string)) {
	synctest.Test(t, func(t *testing.T) {
		l := sidecartest.New(t)
		defer l.Close()
		l.Node("n1", "")
		_, pv := l.Bound("data", "1Gi")
		f(t, l, pv.Name)
	})
}

// quiet is the real flags without the interval that looks for drift.
func quiet() sidecar.Set {
	s := sidecar.Real()
	s.Attacher.ReconcileSync = 0
	return s
}

func getVA(l *sidecartest.Lab) *storagev1.VolumeAttachment {
	l.T.Helper()
	va, err := store.Get[storagev1.VolumeAttachment](l.Client, "", "va")
	if err != nil {
		l.T.Fatal(err)
	}
	return va
}

func gone(l *sidecartest.Lab) {
	l.T.Helper()
	if _, err := store.Get[storagev1.VolumeAttachment](l.Client, "", "va"); !apierrors.IsNotFound(err) {
		l.T.Errorf("VolumeAttachment: %v", err)
	}
}

func TestAttachAndDetach(t *testing.T) {
	bubble(t, func(t *testing.T, l *sidecartest.Lab, pv string) {
		l.Create(sidecartest.Attachment("va", pv, "n1"))
		l.Start(quiet(), sidecar.Attacher)
		synctest.Wait()
		va := getVA(l)
		fin := attacher.FinalizerName(sidecartest.Name)
		if fin != "external-attacher/csi-example-com" {
			t.Error(fin)
		}
		if !va.Status.Attached || va.Status.AttachmentMetadata["diskUUID"] != "uuid-id-data" || va.Finalizers[0] != fin || va.Annotations[attacher.NodeIDAnnotation] != "id-n1" {
			t.Errorf("attached: %+v", va)
		}
		req := l.Driver.Requests("ControllerPublishVolume")[0].(*csi.ControllerPublishVolumeRequest)
		if req.NodeId != "id-n1" || req.VolumeId != "id-data" || req.Readonly || req.VolumeCapability.GetMount().GetFsType() != "ext4" {
			t.Errorf("request %v", req)
		}
		// The PV waits for the detach.
		p, _ := store.Get[corev1.PersistentVolume](l.Client, "", pv)
		l.Delete(p)
		synctest.Wait()
		if _, err := store.Get[corev1.PersistentVolume](l.Client, "", pv); err != nil {
			t.Fatalf("PV of an attachment: %v", err)
		}
		l.Delete(va)
		synctest.Wait()
		gone(l)
		if _, err := store.Get[corev1.PersistentVolume](l.Client, "", pv); !apierrors.IsNotFound(err) {
			t.Errorf("PV after the detach: %v", err)
		}
		if got := l.Sequence(); got != "ControllerPublishVolume ControllerUnpublishVolume" {
			t.Error(got)
		}
	})
}

// The node has gone: its id comes from the annotation.
func TestDetachWithoutNode(t *testing.T) {
	bubble(t, func(t *testing.T, l *sidecartest.Lab, pv string) {
		l.Create(sidecartest.Attachment("va", pv, "n1"))
		l.Start(quiet(), sidecar.Attacher)
		synctest.Wait()
		cn, _ := store.Get[storagev1.CSINode](l.Client, "", "n1")
		l.Delete(cn, getVA(l))
		synctest.Wait()
		gone(l)
		if got := l.Driver.Requests("ControllerUnpublishVolume")[0].(*csi.ControllerUnpublishVolumeRequest).NodeId; got != "id-n1" {
			t.Error(got)
		}
	})
}

// Errors are kept in the status with their code; tries are spaced; a
// VolumeAttachment that is deleted is detached whatever the last answer was.
func TestAttachErrors(t *testing.T) {
	for _, code := range []codes.Code{codes.Internal, codes.DeadlineExceeded, codes.ResourceExhausted, codes.NotFound} {
		t.Run(code.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, l *sidecartest.Lab, pv string) {
				l.Driver.Answer("ControllerPublishVolume", sidecartest.Repeat(5, sidecartest.Status(code))...)
				l.Driver.Answer("ControllerUnpublishVolume", sidecartest.Repeat(2, sidecartest.Status(code))...)
				l.Create(sidecartest.Attachment("va", pv, "n1"))
				l.Start(quiet(), sidecar.Attacher)
				time.Sleep(6 * time.Second)
				// The finalizer and the node's id, written just before the first
				// call, bring the object back once at once, which counts as a failure: 1, then 4 s.
				if got := l.Calls("ControllerPublishVolume"); got != "0 0 1 5" {
					t.Errorf("published at %s", got)
				}
				e := getVA(l).Status.AttachError
				if e == nil || e.ErrorCode == nil || *e.ErrorCode != int32(code) || e.Message != "rpc error: code = "+code.String()+" desc = scripted "+code.String() {
					t.Errorf("attachError %+v", e)
				}
				l.Delete(getVA(l))
				time.Sleep(time.Hour)
				gone(l)
				if got := l.Sequence(); got != "ControllerPublishVolume ControllerPublishVolume ControllerPublishVolume ControllerPublishVolume ControllerUnpublishVolume ControllerUnpublishVolume ControllerUnpublishVolume" {
					t.Error(got)
				}
			})
		})
	}
}

func TestTimeout(t *testing.T) {
	bubble(t, func(t *testing.T, l *sidecartest.Lab, pv string) {
		l.Driver.Do("ControllerPublishVolume", sidecartest.Hang)
		l.Create(sidecartest.Attachment("va", pv, "n1"))
		l.Start(quiet(), sidecar.Attacher)
		time.Sleep(299 * time.Second)
		if e := getVA(l).Status.AttachError; e != nil {
			t.Errorf("attachError before the timeout: %+v", e)
		}
		time.Sleep(2 * time.Second)
		if got := l.Calls("ControllerPublishVolume"); got != "0 300" {
			t.Errorf("published at %s", got)
		}
		if va := getVA(l); !va.Status.Attached || va.Status.AttachError != nil {
			t.Errorf("status %+v", va.Status)
		}
	})
}

// K01: the attach timed out but went through; the volume must not stay attached.
func TestReplyLostThenDeleted(t *testing.T) {
	bubble(t, func(t *testing.T, l *sidecartest.Lab, pv string) {
		l.Plan.Arm(fault.Rule{Hop: ledger.CSI, Op: "ControllerPublishVolume", Phase: fault.After, Do: fault.Error(sidecartest.Status(codes.DeadlineExceeded))})
		l.Create(sidecartest.Attachment("va", pv, "n1"))
		l.Start(quiet(), sidecar.Attacher)
		time.Sleep(10 * time.Second)
		if getVA(l).Status.Attached {
			t.Error("attached")
		}
		l.Delete(getVA(l))
		time.Sleep(10 * time.Second)
		gone(l)
		if got := l.Driver.Left(); got != "1 volumes, 0 attached, 0 snapshots" {
			t.Error(got)
		}
	})
}

// What can be checked is checked before the finalizer is set.
func TestRefusedBeforeTheCall(t *testing.T) {
	for name, prepare := range map[string]func(l *sidecartest.Lab, pv string) string{
		`CSINode n2 does not contain driver csi.example.com`: func(l *sidecartest.Lab, pv string) string {
			l.Create(&storagev1.CSINode{ObjectMeta: sidecartest.Attachment("n2", "", "").ObjectMeta})
			return "n2"
		},
		`csinodes.storage.k8s.io "n3" not found`: func(l *sidecartest.Lab, pv string) string { return "n3" },
		`PersistentVolume "pv-data" is marked for deletion`: func(l *sidecartest.Lab, pv string) string {
			p, _ := store.Modify(context.Background(), l.Client, "", pv, func(p *corev1.PersistentVolume) error {
				p.Finalizers = append(p.Finalizers, "x/y")
				return nil
			})
			l.Delete(p)
			return "n1"
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, l *sidecartest.Lab, pv string) {
				node := prepare(l, pv)
				l.Create(sidecartest.Attachment("va", pv, node))
				l.Start(quiet(), sidecar.Attacher)
				time.Sleep(time.Second)
				va := getVA(l)
				if va.Status.AttachError == nil || va.Status.AttachError.Message != name || len(va.Finalizers) != 0 || l.Calls("ControllerPublishVolume") != "" {
					t.Errorf("%+v, published at %q", va, l.Calls("ControllerPublishVolume"))
				}
				l.Delete(va)
				synctest.Wait()
				gone(l)
			})
		})
	}
}

// Once a minute the attachments are compared with the driver's list.
func TestDrift(t *testing.T) {
	bubble(t, func(t *testing.T, l *sidecartest.Lab, pv string) {
		_, pv2 := l.Bound("more", "1Gi")
		l.Start(sidecar.Real(), sidecar.Attacher)
		synctest.Wait()
		l.Create(sidecartest.Attachment("va", pv, "n1"), sidecartest.Attachment("va2", pv2.Name, "n1"))
		time.Sleep(90 * time.Second)
		if got := l.Calls("ListVolumes"); got != "0 60 60" { // two pages
			t.Errorf("listed at %s", got)
		}
		l.Driver.Detach("id-data")
		l.Driver.Answer("ControllerPublishVolume", sidecartest.Status(codes.Internal))
		time.Sleep(31 * time.Second)
		if e := getVA(l).Status.AttachError; e == nil || !getVA(l).Status.Attached {
			t.Errorf("status %+v", getVA(l).Status)
		}
		time.Sleep(time.Minute)
		if got := l.Calls("ControllerPublishVolume"); got != "0 0 120 180" {
			t.Errorf("published at %s", got)
		}
		if va := getVA(l); va.Status.AttachError != nil {
			t.Errorf("status %+v", va.Status)
		}
	})
}

func TestNothingToAttach(t *testing.T) {
	bubble(t, func(t *testing.T, l *sidecartest.Lab, pv string) {
		l.Driver.Without = []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME}
		l.Create(sidecartest.Attachment("va", pv, "n1"))
		l.Start(sidecar.Real(), sidecar.Attacher)
		synctest.Wait()
		if va := getVA(l); !va.Status.Attached || len(va.Finalizers) != 0 || l.Sequence() != "" {
			t.Errorf("%+v %s", va, l.Sequence())
		}
	})
}

func TestCrashAtEachCall(t *testing.T) {
	for _, op := range []struct {
		hop ledger.Hop
		op  string
		nth int
	}{{ledger.CSI, "ControllerPublishVolume", 1}, {ledger.CSI, "ControllerUnpublishVolume", 1},
		{ledger.Kube, "update persistentvolumes", 1}, {ledger.Kube, "update persistentvolumes", 2},
		{ledger.Kube, "update volumeattachments", 1}, {ledger.Kube, "update volumeattachments", 2}, {ledger.Kube, "update-status volumeattachments", 1}} {
		for _, phase := range []fault.Phase{fault.Before, fault.After} {
			t.Run(op.op+" "+string(phase), func(t *testing.T) {
				bubble(t, func(t *testing.T, l *sidecartest.Lab, pv string) {
					r := l.Plan.Arm(fault.Rule{Hop: op.hop, Op: op.op, Component: sidecar.Attacher, Phase: phase, Nth: op.nth, Do: fault.Crash("")})
					l.Start(quiet(), sidecar.Attacher)
					l.Create(sidecartest.Attachment("va", pv, "n1"))
					time.Sleep(time.Minute)
					if !getVA(l).Status.Attached {
						t.Errorf("not attached: %+v", getVA(l).Status)
					}
					p, _ := store.Get[corev1.PersistentVolume](l.Client, "", pv)
					l.Delete(p, getVA(l))
					time.Sleep(time.Minute)
					gone(l)
					if n := len(store.List[corev1.PersistentVolume](l.Client, "")); n != 0 {
						t.Errorf("%d PVs left", n)
					}
					if got := l.Driver.Left(); got != "1 volumes, 0 attached, 0 snapshots" {
						t.Error(got)
					}
					if r.Fired() != 1 {
						t.Errorf("the rule fired %d times", r.Fired())
					}
				})
			})
		}
	}
}

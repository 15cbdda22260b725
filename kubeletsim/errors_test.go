package kubeletsim_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
)

// Which codes leave a volume uncertain: then it is unmounted although no mount
// succeeded (pkg/volume/csi/csi_client.go, isFinalError).
func TestFinalAndUncertainErrors(t *testing.T) {
	uncertain := []codes.Code{codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted}
	all := []codes.Code{codes.Canceled, codes.Unknown, codes.InvalidArgument, codes.DeadlineExceeded, codes.NotFound, codes.AlreadyExists,
		codes.PermissionDenied, codes.ResourceExhausted, codes.FailedPrecondition, codes.Aborted, codes.OutOfRange, codes.Unimplemented,
		codes.Internal, codes.Unavailable, codes.DataLoss, codes.Unauthenticated}
	for _, method := range []string{"NodeStageVolume", "NodePublishVolume"} {
		for _, code := range all {
			for _, block := range []bool{false, true} {
				name := method + "/" + code.String()
				if block {
					name += "/block"
				}
				t.Run(name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						r := newRig(t)
						r.up()
						var opts []volOption
						if block {
							opts = append(opts, asBlock)
						}
						r.volume("v1", opts...)
						for range 3 {
							r.driver.failNext(method, status.Error(code, "no"))
						}
						r.create(pod("p1", "v1", block))
						r.until("third failure", func() bool { return len(r.driver.made(method)) == 3 })
						r.deletePod("p1")
						r.clean()
						want := []string{}
						got := r.driver.order()
						for _, m := range []string{"NodeUnpublishVolume", "NodeUnstageVolume"} {
							if slices.Contains(got, m) {
								want = append(want, m)
							}
						}
						undone := ""
						switch {
						case method == "NodeStageVolume" && slices.Contains(uncertain, code):
							undone = "NodeUnstageVolume"
						case method == "NodePublishVolume" && slices.Contains(uncertain, code):
							undone = "NodeUnpublishVolume NodeUnstageVolume"
						case method == "NodePublishVolume":
							undone = "NodeUnstageVolume"
						}
						if strings.Join(want, " ") != undone {
							t.Errorf("undone by %q, want %q; calls %v\n%s", want, undone, got, r.dump())
						}
					})
				})
			}
		}
	}
}

func TestBackOffOfAVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.up()
		r.volume("v1")
		for range 11 {
			r.driver.failNext("NodeStageVolume", status.Error(codes.Internal, "disk on fire"))
		}
		r.create(pod("p1", "v1", false))
		r.within(20*time.Minute, "running", func() bool { return r.phase("p1") == corev1.PodRunning })
		var got []time.Duration
		calls := r.driver.made("NodeStageVolume")
		for i := 1; i < len(calls); i++ {
			got = append(got, calls[i].at.Sub(calls[i-1].at))
		}
		want := []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second,
			32 * time.Second, 64 * time.Second, 122 * time.Second, 122 * time.Second, 122 * time.Second}
		if !slices.Equal(got, want) {
			t.Errorf("back-offs %v, want %v", got, want)
		}
		es := store.ListBy[corev1.Event](r.client, store.EventsByObject, string(must(store.Get[corev1.Pod](r.client, "default", "p1")).UID))
		want1 := `MountVolume.MountDevice failed for volume "pv-v1" : rpc error: code = Internal desc = disk on fire`
		if !slices.ContainsFunc(es, func(e *corev1.Event) bool { return e.Reason == "FailedMount" && e.Message == want1 && e.Count == 11 }) {
			t.Errorf("no event %q 11 times\n%s", want1, r.dump())
		}
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// A call that hangs ends after csiTimeout and leaves the volume uncertain.
func TestHangingStageTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.up()
		r.volume("v1")
		r.driver.failNext("NodeStageVolume", errHang)
		r.create(pod("p1", "v1", false))
		r.running("p1")
		c := r.driver.made("NodeStageVolume")
		if len(c) != 2 || c[1].at.Sub(c[0].at) != 2*time.Minute+500*time.Millisecond {
			t.Errorf("stage calls %v apart, want 2m0.5s", c[1].at.Sub(c[0].at))
		}
		r.deletePod("p1")
		r.clean()
	})
}

// The reply of each call of the flow is lost once; the flow goes through.
func TestRepliesLost(t *testing.T) {
	for _, op := range []string{"NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume", "NodeGetCapabilities", "NodeGetInfo"} {
		t.Run(op, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				a := r.plan.Arm(fault.Rule{Hop: ledger.CSI, Op: op, Phase: fault.After, Nth: 1, Do: fault.Drop()})
				r.up()
				r.volume("v1")
				r.create(pod("p1", "v1", false))
				r.running("p1")
				r.deletePod("p1")
				r.clean()
				if a.Fired() != 1 {
					t.Errorf("rule fired %d times", a.Fired())
				}
			})
		})
	}
}

// Without the driver volumes wait, and a volume that is mounted stays in use.
func TestDriverAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.up()
		r.volume("v1")
		r.create(pod("p1", "v1", false))
		r.running("p1")
		r.driver.stop()
		r.deletePod("p1")
		time.Sleep(10 * time.Minute)
		n := must(store.Get[corev1.Node](r.client, "", nodeName))
		if len(n.Status.VolumesInUse) != 1 || r.phase("p1") == "" {
			t.Fatalf("in use %v, pod %q: volume forgotten while mounted", n.Status.VolumesInUse, r.phase("p1"))
		}
		r.startDriver()
		r.clean()
	})
}

// A claim that isn't bound is looked at again after 10 s; the event says why.
func TestUnboundClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.up()
		r.create(pod("p1", "v1", false))
		r.until("event", func() bool { return strings.Contains(r.dump(), "Unable to attach or mount volumes") })
		r.volume("v1")
		at := time.Now()
		r.running("p1")
		if d := time.Since(at); d < 9*time.Second || d > 20*time.Second {
			t.Errorf("noticed and mounted after %v", d)
		}
		if want := `unmounted volumes=[vol], unattached volumes=[], failed to process volumes=[vol]: error processing PVC default/v1: failed to fetch PVC from API server: persistentvolumeclaims "v1" not found`; !strings.Contains(r.dump(), want) {
			t.Errorf("no event with %q\n%s", want, r.dump())
		}
		r.deletePod("p1")
		r.clean()
	})
}

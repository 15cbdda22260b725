package kubeletsim_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/csilab/csilab/kubeletsim"
	"github.com/csilab/csilab/sim/kube/store"
)

const pending = corev1.PersistentVolumeClaimNodeResizePending

// resize does what user and resizer do before the node's turn. With an empty
// status the PV is grown and the claim not yet marked.
func (r *rig) resize(name, size string, st corev1.ClaimResourceStatus) {
	r.t.Helper()
	q := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	must(store.Modify(r.ctx, r.client, "default", name, func(c *corev1.PersistentVolumeClaim) error { c.Spec.Resources.Requests = q; return nil }))
	// As external-resizer does: what is allocated is marked before the PV grows,
	// or a kubelet that looks in between takes it for a resizer without marks.
	must(store.ModifyStatus(r.ctx, r.client, "default", name, func(c *corev1.PersistentVolumeClaim) error {
		c.Status.AllocatedResources = q.DeepCopy()
		return nil
	}))
	must(store.Modify(r.ctx, r.client, "", "pv-"+name, func(p *corev1.PersistentVolume) error { p.Spec.Capacity = q.DeepCopy(); return nil }))
	must(store.ModifyStatus(r.ctx, r.client, "default", name, func(c *corev1.PersistentVolumeClaim) error {
		if st != "" {
			c.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: st}
			c.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue}}
		}
		return nil
	}))
}

func (r *rig) claim(name string) *corev1.PersistentVolumeClaim {
	return must(store.Get[corev1.PersistentVolumeClaim](r.client, "default", name))
}

func (r *rig) grown(name, size string) bool {
	s := r.claim(name).Status
	c := s.Capacity[corev1.ResourceStorage]
	return c.String() == size && len(s.AllocatedResourceStatuses) == 0 && len(s.Conditions) == 0
}

func TestExpandOnline(t *testing.T) {
	for _, block := range []bool{false, true} {
		for _, eager := range []bool{false, true} {
			t.Run(fmt.Sprintf("block=%v/eager=%v", block, eager), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newRig(t)
					r.timers.Eager = eager
					r.up()
					var opts []volOption
					if block {
						opts = append(opts, asBlock)
					}
					r.volume("v1", opts...)
					r.create(pod("p1", "v1", block))
					r.running("p1")
					r.resize("v1", "16Mi", pending)
					at := time.Now()
					r.until("grown", func() bool { return r.grown("v1", "16Mi") })
					// kube.md 4.2: not before the next sync of the pod
					if d := time.Since(at); eager != (d < time.Second) || d > time.Minute+time.Second {
						t.Errorf("noticed after %v", d)
					}
					c := r.driver.made("NodeExpandVolume")
					if len(c) != 1 {
						t.Fatalf("%d calls of NodeExpandVolume", len(c))
					}
					req := c[0].req.(*csi.NodeExpandVolumeRequest)
					uid := must(store.Get[corev1.Pod](r.client, "default", "p1")).UID
					want := fmt.Sprintf("/var/lib/kubelet/pods/%s/volumes/kubernetes.io~csi/pv-v1/mount", uid)
					if block {
						want = fmt.Sprintf("/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pv-v1/%s", uid)
					}
					if req.VolumePath != want || req.CapacityRange.RequiredBytes != 16*mib || req.StagingTargetPath == "" {
						t.Errorf("request %v, want path %s", req, want)
					}
					if !strings.Contains(r.dump(), `FileSystemResizeSuccessful 1x: MountVolume.NodeExpandVolume succeeded for volume "pv-v1" node-1`) {
						t.Error(r.dump())
					}
					r.deletePod("p1")
					r.clean()
				})
			})
		}
	}
}

func TestExpandAtMount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.up()
		r.volume("v1")
		r.resize("v1", "16Mi", pending)
		r.create(pod("p1", "v1", false))
		r.running("p1")
		if !r.grown("v1", "16Mi") || len(r.driver.made("NodeExpandVolume")) != 1 {
			t.Error(r.dump())
		}
		r.deletePod("p1")
		r.clean()
	})
}

// The PV is grown before the claim says that it is the node's turn: nothing
// is called until then, and no time is lost afterwards.
func TestExpandWaitsForItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.timers.Eager = true
		r.up()
		r.volume("v1")
		r.create(pod("p1", "v1", false))
		r.running("p1")
		r.resize("v1", "16Mi", "")
		time.Sleep(3 * time.Minute)
		r.stopKubelet()
		r.startKubelet()
		time.Sleep(3 * time.Minute)
		if n := len(r.driver.made("NodeExpandVolume")); n != 0 {
			t.Fatalf("%d calls too early", n)
		}
		r.resize("v1", "16Mi", pending)
		at := time.Now()
		r.until("grown", func() bool { return r.grown("v1", "16Mi") })
		if time.Since(at) > time.Second {
			t.Errorf("noticed after %v", time.Since(at))
		}
	})
}

func TestExpandFails(t *testing.T) {
	for _, c := range []struct {
		code  codes.Code
		calls int // in five minutes
		st    corev1.ClaimResourceStatus
		cond  bool
	}{
		{codes.Internal, 3, "", false}, // twice, then it goes through
		{codes.OutOfRange, 1, corev1.PersistentVolumeClaimNodeResizeInfeasible, true},
		{codes.InvalidArgument, 1, corev1.PersistentVolumeClaimNodeResizeInfeasible, true},
		{codes.FailedPrecondition, 1, corev1.PersistentVolumeClaimNodeResizeInProgress, true},
	} {
		t.Run(c.code.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.timers.Eager = true
				r.up()
				r.volume("v1")
				r.create(pod("p1", "v1", false))
				r.running("p1")
				r.driver.failNext("NodeExpandVolume", status.Error(c.code, "no"), status.Error(c.code, "no"))
				r.resize("v1", "16Mi", pending)
				time.Sleep(5 * time.Minute)
				s := r.claim("v1").Status
				if n := len(r.driver.made("NodeExpandVolume")); n != c.calls || s.AllocatedResourceStatuses[corev1.ResourceStorage] != c.st {
					t.Errorf("%d calls, status %v, want %d and %q\n%s", n, s.AllocatedResourceStatuses, c.calls, c.st, r.dump())
				}
				found := false
				for _, x := range s.Conditions {
					found = found || x.Type == corev1.PersistentVolumeClaimNodeResizeError
				}
				if found != c.cond {
					t.Errorf("conditions %v", s.Conditions)
				}
				if r.phase("p1") != corev1.PodRunning {
					t.Errorf("pod is %s", r.phase("p1"))
				}
			})
		})
	}
}

// Without node expansion in the driver an old resizer's claim is done at once.
func TestExpandNotSupported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.driver.noGrow = true
		r.timers.Eager = true
		r.up()
		r.volume("v1")
		r.create(pod("p1", "v1", false))
		r.running("p1")
		must(store.Modify(r.ctx, r.client, "", "pv-v1", func(p *corev1.PersistentVolume) error {
			p.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse("16Mi")
			return nil
		}))
		time.Sleep(time.Minute)
		if n := len(r.driver.made("NodeExpandVolume")); n != 0 || r.phase("p1") != corev1.PodRunning {
			t.Errorf("%d calls\n%s", n, r.dump())
		}
	})
}

func TestVolumeStats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.up()
		r.volume("v1")
		r.create(pod("p1", "v1", false))
		r.running("p1")
		u, err := r.kubelet.VolumeStats(r.ctx, "default", "p1", "vol")
		if err != nil || u != (kubeletsim.Usage{TotalBytes: 100, UsedBytes: 40, AvailableBytes: 60}) {
			t.Errorf("%+v, %v", u, err)
		}
		if _, err := r.kubelet.VolumeStats(r.ctx, "default", "p1", "other"); err == nil {
			t.Error("stats of a volume that isn't there")
		}
	})
}

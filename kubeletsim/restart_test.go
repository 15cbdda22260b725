package kubeletsim_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/csilab/csilab/kubeletsim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
)

// Kubelet restarts under a running pod: Stage and Publish are repeated, the
// pod goes on (kube.md 4.2), and what it wrote is there.
func TestRestartUnderARunningPod(t *testing.T) {
	for _, block := range []bool{false, true} {
		t.Run(fmt.Sprintf("block=%v", block), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				file := "/data/f"
				var opts []volOption
				if block {
					file, opts = "/dev/xvda", []volOption{asBlock}
				}
				r := newRig(t)
				r.up()
				r.volume("v1", opts...)
				r.create(pod("p1", "v1", block))
				r.running("p1")
				if err := r.kubelet.WriteFile(r.ctx, "default", "p1", "main", file, 0, []byte("kept"), true); err != nil {
					t.Fatal(err)
				}
				r.stopKubelet()
				r.driver.forget()
				r.startKubelet()
				r.until("staged and published again", func() bool { return len(r.driver.made("NodePublishVolume")) == 1 })
				time.Sleep(time.Minute)
				if got := r.driver.order(); !slices.Equal(got, []string{"NodeStageVolume", "NodePublishVolume"}) {
					t.Errorf("calls after the restart: %v", got)
				}
				p := must(store.Get[corev1.Pod](r.client, "default", "p1"))
				if c := p.Status.ContainerStatuses[0]; c.RestartCount != 0 || c.State.Running == nil {
					t.Errorf("container %+v", c)
				}
				if got, err := r.kubelet.ReadFile(r.ctx, "default", "p1", "main", file, 0, 4); err != nil || string(got) != "kept" {
					t.Errorf("read %q, %v", got, err)
				}
				r.deletePod("p1")
				r.clean()
			})
		})
	}
}

// A program in a pod that reads while kubelet is started again and again reads
// what it wrote, or is told that the pod is not known yet.
func TestReadsDuringRestarts(t *testing.T) {
	for _, block := range []bool{false, true} {
		t.Run(fmt.Sprintf("block=%v", block), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.timers = kubeletsim.FastTimers()
			r.up()
			file, opts := "/data/f", []volOption(nil)
			if block {
				file, opts = "/dev/xvda", []volOption{asBlock}
			}
			r.volume("v1", opts...)
			r.create(pod("p1", "v1", block))
			r.running("p1")
			if err := r.kubelet.WriteFile(r.ctx, "default", "p1", "main", file, 0, []byte("kept"), true); err != nil {
				t.Fatal(err)
			}
			for range 25 {
				r.stopKubelet()
				r.driver.forget()
				r.startKubelet()
				read := false
				r.until("published again", func() bool {
					for range 1000 { // not at the pace of until: what is wrong is so for microseconds
						got, err := r.kubelet.ReadFile(r.ctx, "default", "p1", "main", file, 0, 4)
						if err == nil && string(got) == "kept" {
							read = true
						} else if !errors.Is(err, kubeletsim.ErrNotHere) {
							t.Errorf("read %q, %v", got, err)
							return true
						}
					}
					return read && len(r.driver.made("NodePublishVolume")) == 1
				})
				if t.Failed() {
					return
				}
			}
			r.deletePod("p1")
			r.clean()
		})
	}
}

// After a restart a final error of the repeated call says nothing about what
// the call before the restart did: the volume stays uncertain and is taken
// down when the pod goes (operation_generator.go:689,715).
func TestFinalErrorAfterRestart(t *testing.T) {
	for _, method := range []string{"NodeStageVolume", "NodePublishVolume"} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.up()
				r.volume("v1")
				r.create(pod("p1", "v1", false))
				r.running("p1")
				r.stopKubelet()
				r.driver.forget()
				for range 4 {
					r.driver.failNext(method, status.Error(codes.Internal, "no"))
				}
				r.startKubelet()
				r.until("tried three times", func() bool { return len(r.driver.made(method)) == 3 })
				if err := r.kubelet.WriteFile(r.ctx, "default", "p1", "main", "/data/f", 0, []byte("x"), true); err != nil {
					t.Errorf("the running container: %v", err)
				}
				r.deletePod("p1")
				r.clean()
				if len(r.driver.made("NodeUnpublishVolume")) != 1 || len(r.driver.made("NodeUnstageVolume")) != 1 {
					t.Errorf("calls %v", r.driver.order())
				}
			})
		})
	}
}

// The pod is deleted by force while kubelet is down.
func TestOrphanAfterRestart(t *testing.T) {
	for _, block := range []bool{false, true} {
		t.Run(fmt.Sprintf("block=%v", block), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.up()
				var opts []volOption
				if block {
					opts = append(opts, asBlock)
				}
				r.volume("v1", opts...)
				r.create(pod("p1", "v1", block))
				r.running("p1")
				r.stopKubelet()
				if err := r.client.DeleteNow(r.ctx, must(store.Get[corev1.Pod](r.client, "default", "p1"))); err != nil {
					t.Fatal(err)
				}
				r.driver.forget()
				r.startKubelet()
				r.clean()
				if got := r.driver.order(); !slices.Equal(got, []string{"NodeUnpublishVolume", "NodeUnstageVolume"}) {
					t.Errorf("calls %v", got)
				}
			})
		})
	}
}

// The node loses power: the containers are started again, once the volume is back.
func TestPowerLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.up()
		r.volume("v1")
		r.create(pod("p1", "v1", false))
		r.running("p1")
		// In this order: a sync commits all that was written before.
		for _, name := range []string{"/data/synced", "/data/lost"} {
			if err := r.kubelet.WriteFile(r.ctx, "default", "p1", "main", name, 0, []byte("x"), name == "/data/synced"); err != nil {
				t.Fatal(err)
			}
		}
		r.stopKubelet()
		if err := r.host.PowerOff(); err != nil {
			t.Fatal(err)
		}
		if err := r.host.PowerOn(); err != nil {
			t.Fatal(err)
		}
		r.startKubelet()
		r.until("container started again", func() bool {
			p := must(store.Get[corev1.Pod](r.client, "default", "p1"))
			return p.Status.ContainerStatuses[0].RestartCount == 1
		})
		if _, err := r.kubelet.ReadFile(r.ctx, "default", "p1", "main", "/data/synced", 0, 1); err != nil {
			t.Error(err)
		}
		if _, err := r.kubelet.ReadFile(r.ctx, "default", "p1", "main", "/data/lost", 0, 1); err == nil {
			t.Error("what was not synced has survived a power loss")
		}
		r.deletePod("p1")
		r.clean()
	})
}

// After a power loss publishing fails for good: what is needed to unpublish
// what the last life published must not be removed (csi_mounter.go, SetUpAt).
func TestPublishFailsAfterPowerLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.up()
		r.volume("v1")
		r.create(pod("p1", "v1", false))
		r.running("p1")
		r.stopKubelet()
		if err := errors.Join(r.host.PowerOff(), r.host.PowerOn()); err != nil {
			t.Fatal(err)
		}
		r.driver.forget()
		for range 4 {
			r.driver.failNext("NodePublishVolume", status.Error(codes.Internal, "no"))
		}
		r.startKubelet()
		r.until("tried three times", func() bool { return len(r.driver.made("NodePublishVolume")) == 3 })
		r.deletePod("p1")
		r.clean()
		if len(r.driver.made("NodeUnpublishVolume")) != 1 {
			t.Errorf("calls %v", r.driver.order())
		}
	})
}

// A file where only directories should be is never removed.
func TestStrayFileIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.up()
		r.volume("v1")
		r.create(pod("p1", "v1", false))
		r.running("p1")
		p := must(store.Get[corev1.Pod](r.client, "default", "p1"))
		r.stopKubelet()
		dir := fmt.Sprintf("%s/pods/%s/volumes/kubernetes.io~csi/pv-v1", kubeletDir, p.UID)
		if err := errors.Join(r.host.Mounter().Unmount(dir+"/mount"), r.host.WriteFile(dir+"/mount/precious", []byte("x"), 0o600),
			r.host.Remove(dir+"/vol_data.json"), r.client.DeleteNow(r.ctx, p)); err != nil {
			t.Fatal(err)
		}
		r.startKubelet()
		time.Sleep(5 * time.Minute)
		if _, err := r.host.Stat(dir + "/mount/precious"); err != nil {
			t.Error(err)
		}
	})
}

// Kubelet stops between NodeUnpublish and NodeUnstage: found again by default,
// forgotten as kubelet v1.37.2 does with Forgetful (kubernetes#121937).
func TestStoppedBeforeUnstage(t *testing.T) {
	for _, forgetful := range []bool{false, true} {
		t.Run(fmt.Sprintf("Forgetful=%v", forgetful), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.forgetful = forgetful
				r.up()
				r.volume("v1")
				r.create(pod("p1", "v1", false))
				r.running("p1")
				r.driver.failNext("NodeUnstageVolume", status.Error(codes.Internal, "busy"))
				r.deletePod("p1")
				r.until("unstage tried", func() bool { return len(r.driver.made("NodeUnstageVolume")) == 1 })
				r.stopKubelet()
				r.startKubelet()
				if !forgetful {
					r.clean()
					return
				}
				r.until("detached under the mount", func() bool {
					r.mu.Lock()
					defer r.mu.Unlock()
					return len(r.detachOf) == 1
				})
			})
		})
	}
}

// A node was off, and its volumes were detached by force. Its kubelet finds one on
// disk, staged for no pod or published to one that is gone, which another pod on the
// node uses again. When that pod goes the volume is in use until it is unstaged;
// with Forgetful, as with kubelet v1.37.2, it is detached under its mount
// (reconstruct.go:192-202).
func TestFoundWhileDetached(t *testing.T) {
	for _, c := range []struct {
		name      string
		opts      []volOption
		staged    bool // no pod directory
		forgetful bool
	}{
		{name: "published"},
		{name: "staged", staged: true},
		{name: "block", opts: []volOption{asBlock}},
		{name: "Forgetful", forgetful: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.forgetful = c.forgetful
				r.up()
				r.volume("v1", c.opts...)
				block := len(c.opts) > 0
				if c.staged {
					r.driver.failNext("NodePublishVolume", status.Error(codes.Internal, "no"))
				}
				r.create(pod("p1", "v1", block))
				if c.staged {
					r.until("publish tried", func() bool { return len(r.driver.made("NodePublishVolume")) == 1 })
				} else {
					r.running("p1")
				}
				r.stopKubelet()
				if err := errors.Join(r.host.PowerOff(), r.client.DeleteNow(r.ctx, must(store.Get[corev1.Pod](r.client, "default", "p1")))); err != nil {
					t.Fatal(err)
				}
				if _, err := store.ModifyStatus(r.ctx, r.client, "", nodeName, func(n *corev1.Node) error {
					n.Status.VolumesInUse = nil
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				r.until("detached by force", func() bool {
					return len(must(store.Get[corev1.Node](r.client, "", nodeName)).Status.VolumesAttached) == 0
				})
				r.create(pod("p2", "v1", block))
				if err := r.host.PowerOn(); err != nil {
					t.Fatal(err)
				}
				r.startKubelet()
				r.running("p2")
				for range 6 { // with its back-off longer than the 10 s to the next write of the status
					r.driver.failNext("NodeUnstageVolume", status.Error(codes.Internal, "busy"))
				}
				r.deletePod("p2")
				if !c.forgetful {
					r.until("unstage tried six times", func() bool { return len(r.driver.made("NodeUnstageVolume")) == 6 })
					if n := must(store.Get[corev1.Node](r.client, "", nodeName)); len(n.Status.VolumesInUse) != 1 {
						t.Errorf("in use while it is staged: %v", n.Status.VolumesInUse)
					}
					r.clean()
					return
				}
				r.until("detached under the mount", func() bool {
					r.mu.Lock()
					defer r.mu.Unlock()
					return len(r.detachOf) == 1
				})
			})
		})
	}
}

// A pod's data file is lost: kubelet can't unmount and says so; nothing is
// removed across the mount.
func TestDataFileLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.up()
		r.volume("v1")
		r.create(pod("p1", "v1", false))
		r.running("p1")
		if err := r.kubelet.WriteFile(r.ctx, "default", "p1", "main", "/data/f", 0, []byte("x"), true); err != nil {
			t.Fatal(err)
		}
		uid := must(store.Get[corev1.Pod](r.client, "default", "p1")).UID
		dir := fmt.Sprintf("%s/pods/%s/volumes/kubernetes.io~csi/pv-v1", kubeletDir, uid)
		if err := r.host.Remove(dir + "/vol_data.json"); err != nil {
			t.Fatal(err)
		}
		r.deletePod("p1")
		time.Sleep(5 * time.Minute)
		if _, err := r.host.ReadAt(dir+"/mount/f", 0, 1); err != nil {
			t.Errorf("the pod's data: %v", err)
		}
		if r.phase("p1") == "" {
			t.Error("the pod was deleted while its volume is mounted")
		}
	})
}

// A block volume of a running pod can't be staged again after a restart of
// kubelet, for good as it seems: what is published stays known and goes with
// the pod.
func TestStageFailsWhilePublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.up()
		r.volume("v1", asBlock)
		r.create(pod("p1", "v1", true))
		r.running("p1")
		r.stopKubelet()
		a := r.plan.Arm(fault.Rule{Hop: ledger.CSI, Op: "NodeStageVolume", Do: fault.Error(status.Error(codes.Internal, "not now"))})
		r.startKubelet()
		r.until("staging failed", func() bool { return a.Fired() > 0 })
		r.deletePod("p1")
		r.until("the pod is gone", func() bool { return r.phase("p1") == "" })
		r.clean()
	})
}

// flow is what the crash tests run: a filesystem and a block volume live and die.
func flow(r *rig) {
	r.volume("v1")
	r.volume("v2", asBlock)
	r.create(pod("p1", "v1", false), pod("p2", "v2", true))
	r.running("p1")
	r.running("p2")
	r.deletePod("p1")
	r.deletePod("p2")
	r.until("pods gone", func() bool { return r.phase("p1") == "" && r.phase("p2") == "" })
	r.clean()
}

// Kubelet crashes before and after each call that it makes, on every hop, and
// comes back: the flow goes through and nothing stays behind.
func TestCrashAtEachCall(t *testing.T) {
	type cell struct {
		hop ledger.Hop
		op  string
		nth int
	}
	var cells []cell
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.up()
		flow(r)
		seen := map[cell]int{}
		for _, e := range r.led.Entries() {
			if e.Component != "kubelet@"+nodeName || e.Op == "update-status nodes" || strings.HasSuffix(e.Op, " leases") || e.Op == "NodeGetCapabilities" || strings.HasSuffix(e.Op, "events") {
				continue
			}
			c := cell{e.Hop, e.Op, 0}
			seen[c]++
			c.nth = seen[c]
			cells = append(cells, c)
		}
	})
	if len(cells) < 30 {
		t.Fatalf("the flow has only %d calls: %v", len(cells), cells)
	}
	for _, c := range cells {
		for _, ph := range []fault.Phase{fault.Before, fault.After} {
			if ph == fault.Before && c.nth > 1 {
				continue // much the same as after the call before
			}
			t.Run(fmt.Sprintf("%s/%s/%d/%s", c.hop, c.op, c.nth, ph), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					r := newRig(t)
					crashed := make(chan struct{}, 1)
					r.in.OnCrash = func(string) {
						r.mu.Lock()
						cut := r.cut
						r.mu.Unlock()
						cut()
						crashed <- struct{}{}
					}
					a := r.plan.Arm(fault.Rule{Hop: c.hop, Op: c.op, Component: "kubelet@" + nodeName, Nth: c.nth, Phase: ph, Do: fault.Crash("")})
					r.spawn(func() {
						select {
						case <-crashed:
							r.stopKubelet()
							r.startKubelet()
						case <-r.ctx.Done():
						}
					})
					r.startDriver()
					r.startKubelet()
					r.startRegistrar()
					flow(r)
					synctest.Wait() // the last call has had its effect, and is not over yet
					if a.Fired() != 1 {
						t.Errorf("fired %d times", a.Fired())
					}
				})
			})
		}
	}
}

package scheduler_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/binder"
	"github.com/csilab/csilab/sim/kube/scheduler"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
)

// While the write that reserves a volume for one pod's claim is under way, the
// next pod must choose another volume, and a third none.
func TestAssumedVolumesAreNotChosenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plan := &fault.Plan{}
		slow := plan.Arm(fault.Rule{Name: "slow", Hop: ledger.Kube, Component: scheduler.Actor, Op: "update persistentvolumes", Do: fault.Delay(time.Second)})
		in := &fault.Interceptor{Plan: plan}
		w := &world{T: t, s: store.New(1, in), refuse: map[string]bool{}}
		w.c = w.s.Client("test")
		none := class("later", storagev1.VolumeBindingWaitForFirstConsumer)
		none.Provisioner = "kubernetes.io/no-provisioner"
		w.create(none, node("a"), volume("v1", "later"), volume("v2", "later"))
		for _, c := range []string{"c", "d", "e"} {
			w.create(claim(c, "later"))
		}
		w.start(binder.New(binder.Config{Client: w.s.Client(binder.Actor)}).Run)
		synctest.Wait()
		w.start(scheduler.New(scheduler.Config{Client: w.s.Client(scheduler.Actor)}).Run)
		w.create(pod("p", "c"), pod("q", "d"), pod("r", "e"))
		time.Sleep(time.Minute)
		placed, waiting := 0, 0
		for _, name := range []string{"p", "q", "r"} {
			failed := strings.Contains(strings.Join(w.events(name), "\n"), "running PreBind plugin")
			if failed {
				t.Errorf("%s: %q", name, w.events(name))
			}
			if w.get(name).Spec.NodeName == "a" {
				placed++
			} else {
				waiting++
				w.event(name, "FailedScheduling: 0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.")
			}
		}
		if placed != 2 || waiting != 1 || slow.Fired() != 2 {
			t.Errorf("%d placed, %d waiting, %d slow writes", placed, waiting, slow.Fired())
		}
	})
}

// A pod that was given a node behind the scheduler's back is let alone.
func TestNodeGivenByHandDuringBinding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plan := &fault.Plan{}
		plan.Arm(fault.Rule{Name: "slow", Hop: ledger.Kube, Component: scheduler.Actor, Op: "update persistentvolumeclaims", Do: fault.Delay(time.Second)})
		w := &world{T: t, s: store.New(1, &fault.Interceptor{Plan: plan}), refuse: map[string]bool{}}
		w.c = w.s.Client("test")
		w.start(binder.New(binder.Config{Client: w.s.Client(binder.Actor)}).Run)
		w.start(scheduler.New(scheduler.Config{Client: w.s.Client(scheduler.Actor)}).Run)
		w.start(w.provisioner)
		w.create(class("later", storagev1.VolumeBindingWaitForFirstConsumer), node("a"), node("b"), claim("c", "later"), pod("p", "c"))
		synctest.Wait()
		if _, err := store.Modify(ctx, w.c, "default", "p", func(p *corev1.Pod) error { p.Spec.NodeName = "b"; return nil }); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		w.on("p", "b")
	})
}

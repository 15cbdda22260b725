package scenarios

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:      "force-detached-under-a-mount",
		Text:      "a node's kubelet hangs and its volume is force-detached under the mount: the next pod elsewhere has the data, and when the kubelet is back it clears the dead mount away and stages the volume anew",
		Labels:    []string{"K07", "incident", "attach", "stage", "node-loss"},
		Incidents: []string{"K07 kubernetes/kubernetes#106710", "K28 kubernetes/kubernetes#85476"},
		Flow:      func(ctx context.Context, l *sim.Lab) error { return forcedOff(ctx, l, false) },
		Mutation:  "a NodeUnstageVolume that answers OK and leaves the mount on a vanished device",
		Mutate:    lies("NodeUnstageVolume"),
	})
	register(Scenario{
		Name:      "out-of-service-while-mounted",
		Text:      "a hanging node is tainted out-of-service: its volume moves at once although it is mounted there, and the node that comes back clears its old mounts away before anything new",
		Labels:    []string{"K08", "incident", "attach", "stage", "node-loss"},
		Incidents: []string{"K08 kubernetes/kubernetes#108486"},
		Flow:      func(ctx context.Context, l *sim.Lab) error { return forcedOff(ctx, l, true) },
		Mutation:  "a NodeUnstageVolume that answers OK and leaves the mount on a vanished device",
		Mutate:    lies("NodeUnstageVolume"),
	})
	register(Scenario{
		Name:          "force-detach-disabled",
		Text:          "with force detach off a hanging node keeps its volume for good: no Unpublish before its kubelet is back and has unstaged",
		Labels:        []string{"K07", "incident", "attach", "node-loss"},
		Incidents:     []string{"K07 kubernetes/kubernetes#120344"},
		Options:       func(o *sim.Options) { o.DisableForceDetach = true },
		Flow:          forceDetachOff,
		Mutation:      "a controller manager that forces the detach after its time all the same",
		MutateOptions: func(o *sim.Options) { o.DisableForceDetach = false },
	})
	register(Scenario{
		Name:      "in-use-is-not-detached",
		Text:      "an unstage takes very long on a healthy node: the volume is not detached under it, however long",
		Labels:    []string{"K41", "incident", "attach", "stage"},
		Incidents: []string{"K41 kubernetes/kubernetes#33203", "K07 kubernetes/kubernetes#69168"},
		Flow:      inUseStays,
		Mutation:  "node statuses that lose volumesInUse on their way",
		Mutate: func(l *sim.Lab) {
			node := l.Nodes()[0]
			l.Inject(fault.Rule{Name: "volumesInUse is lost", Hop: ledger.Kube, Op: "update-status nodes", Component: "kubelet@" + node, Phase: fault.After,
				Do: fault.Func("lose volumesInUse", func(ctx context.Context, _ fault.Call) error {
					_, err := store.ModifyStatus(ctx, l.Client(), "", node, func(n *corev1.Node) error { n.Status.VolumesInUse = nil; return nil })
					return err
				})})
		},
	})
	register(Scenario{
		Name:      "partitioned-node-keeps-writing",
		Text:      "a node is cut off from the control plane and its pod writes on: before the volume is the next node's, the first can't write to it any more",
		Labels:    []string{"K10", "incident", "attach", "node-loss"},
		Incidents: []string{"K10 kubernetes/kubernetes#61832"},
		Flow:      partitionedWriter,
		Mutation:  "a ControllerUnpublishVolume that answers OK and leaves the volume on the first node",
		Mutate:    lies("ControllerUnpublishVolume"),
	})
}

// lateWrite writes on a node to the file of a pod that the API has no more.
func lateWrite(l *sim.Lab, node, dir string) error {
	return l.Host(node).WriteAt(dir+"/a", 0, []byte("LATE WRITE"), true)
}

// mustNotWrite requires that a late write fails. On a real node the kernel may
// take it into a cache that reaches nobody: there only the data tells.
func mustNotWrite(l *sim.Lab, node, dir string) error {
	if err := lateWrite(l, node, dir); err == nil && l.Host(node).Kind() == "memory" {
		return fmt.Errorf("%s still writes to a volume that was taken from it: %w", node, errUnexpected)
	}
	return nil
}

// cleared waits until a node that was cut off has unstaged a claim's volume,
// which it has lost. From then on it counts as one that is not cut off.
func cleared(ctx context.Context, l *sim.Lab, node, pvc string) error {
	err := l.Until(ctx, node+" has unstaged what it has lost", func() bool {
		return len(csiCalls(l, "NodeUnstageVolume", succeeded, func(e ledger.Entry) bool { return e.Component == "kubelet@"+node })) > 0 &&
			notMounted(l, node, l.StagingPath(pvc)) == nil
	})
	if err == nil {
		l.Remember(node)
	}
	return err
}

// forcedOff takes a volume from a node whose kubelet hangs, by time or by
// taint, uses it elsewhere, lets the kubelet come back, and uses it there again.
func forcedOff(ctx context.Context, l *sim.Lab, taint bool) error {
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	c := claim("data", "fast", "256Mi")
	var dir string
	var lost time.Time
	return steps(
		func() error { return startWriter(ctx, l, "app", a, c, "of the first node") },
		func() (err error) { dir, err = l.PublishPath("app", "data"); return err },
		func() error { l.Forget(a); return l.StopComponent("kubelet@" + a) },
		func() error { return l.NotReady(ctx, a) },
		func() error {
			lost = time.Now()
			if taint {
				return l.Taint(ctx, a, corev1.TaintNodeOutOfService, corev1.TaintEffectNoExecute)
			}
			return l.ForceDeletePod(ctx, "app")
		},
		func() error { return l.Gone(ctx, pod("app", a)) },
		func() error { return startReader(ctx, l, "next", b, c, "of the first node") },
		func() error {
			if d := time.Since(lost); taint && l.Options().Timers == "real" && d > 3*time.Minute {
				return fmt.Errorf("with the taint the move took %v: %w", d, errUnexpected)
			}
			return onlyOn(l, "data", b)
		},
		func() error { return l.Write(ctx, "next", "/data/b", "of the second node") },
		func() error { return mustNotWrite(l, a, dir) },
		func() error { return l.Expect(ctx, "next", "/data/a", "of the first node") },
		func() error { return l.Check(ctx) },

		func() error {
			if !taint {
				return nil
			}
			return l.Untaint(ctx, a, corev1.TaintNodeOutOfService)
		},
		func() error { return l.StartComponent("kubelet@" + a) },
		func() error { return l.NodesReady(ctx) },
		func() error { return cleared(ctx, l, a, "data") },
		func() error { return l.Check(ctx) }, // no mount is left that no pod wants
		func() error { return l.Expect(ctx, "next", "/data/a", "of the first node") },
		func() error { return l.Expect(ctx, "next", "/data/b", "of the second node") },
		func() error { return l.DeletePod(ctx, "next") },
		func() error { return startReader(ctx, l, "back", a, c, "of the first node") },
		func() error { return l.Expect(ctx, "back", "/data/b", "of the second node") },
		func() error { return l.Check(ctx) },
		func() error { return allGone(ctx, l, []string{"back"}, []string{"data"}) },
	)
}

// noUnpublish requires that the driver was not asked to detach.
func noUnpublish(l *sim.Lab, from uint64) func() error {
	return func() error {
		if es := csiCalls(l, "ControllerUnpublishVolume", ledger.After(from)); len(es) > 0 {
			return fmt.Errorf("a volume that is mounted was detached: %s: %w", es[0], errUnexpected)
		}
		return nil
	}
}

// unstagedFirst requires that the first detach since from came after a
// successful unstage.
func unstagedFirst(l *sim.Lab, from uint64) error {
	unstaged, detached := csiCalls(l, "NodeUnstageVolume", succeeded, ledger.After(from)), csiCalls(l, "ControllerUnpublishVolume", ledger.After(from))
	switch {
	case len(unstaged) == 0:
		return fmt.Errorf("the volume was never unstaged: %w", errUnexpected)
	case len(detached) == 0:
		return fmt.Errorf("the volume was never detached: %w", errUnexpected)
	case detached[0].Seq < unstaged[0].Seq:
		return fmt.Errorf("%s came before %s: %w", detached[0], unstaged[0], errUnexpected)
	}
	return nil
}

func forceDetachOff(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	c := claim("data", "fast", "256Mi")
	next := pod("next", l.OtherNode(a), c)
	var from uint64
	return steps(
		func() error { return startWriter(ctx, l, "app", a, c, "of the first node") },
		func() error { from = now(l); return l.StopComponent("kubelet@" + a) },
		func() error { return l.NotReady(ctx, a) },
		func() error { return l.ForceDeletePod(ctx, "app") },
		func() error { return l.Create(ctx, next) },
		func() error { return l.HasEvent(ctx, next, "FailedAttachVolume", "Waiting for detach") },
		func() error {
			return stays(ctx, l, longer(l, 3500*time.Millisecond, 15*time.Minute), noUnpublish(l, from))
		},
		func() error { return onlyOn(l, "data", a) },
		func() error { return l.StartComponent("kubelet@" + a) },
		func() error { _, err := l.Running(ctx, "next"); return err },
		func() error { return unstagedFirst(l, from) },
		func() error { return l.Expect(ctx, "next", "/data/a", "of the first node") },
		func() error { return l.Check(ctx) },
		func() error { return allGone(ctx, l, []string{"next"}, []string{"data"}) },
	)
}

func inUseStays(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	c := claim("data", "fast", "256Mi")
	var from uint64
	return steps(
		func() error { return startWriter(ctx, l, "app", a, c, "of the first pod") },
		func() error {
			from = now(l)
			g := fault.NewGate()
			rule := l.Inject(fault.Rule{Name: "unstage takes long", Hop: ledger.CSI, Op: "NodeUnstageVolume", Do: g})
			defer l.Disarm(rule)
			defer g.Release()
			return steps(
				func() error { return l.DeletePod(ctx, "app") },
				func() error { _, err := g.Reached(ctx); return err },
				func() error {
					return stays(ctx, l, longer(l, 3500*time.Millisecond, 15*time.Minute), noUnpublish(l, from))
				},
				func() error { return onlyOn(l, "data", a) },
			)
		},
		func() error { return l.Detached(ctx, l.PVName("data")) },
		func() error { return unstagedFirst(l, from) },
		func() error { return startReader(ctx, l, "next", a, c, "of the first pod") },
		func() error { return l.Check(ctx) },
		func() error { return allGone(ctx, l, []string{"next"}, []string{"data"}) },
	)
}

func partitionedWriter(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	c := claim("data", "fast", "256Mi")
	var dir string
	return steps(
		func() error { return startWriter(ctx, l, "app", a, c, "before the cut") },
		func() (err error) { dir, err = l.PublishPath("app", "data"); return err },
		func() error { l.Forget(a); return l.StopComponent("kubelet@" + a) },
		func() error { return l.NotReady(ctx, a) },
		// Nobody has told the pod's program; the storage answers it.
		func() error { return l.Host(a).WriteAt(dir+"/alone", 0, []byte("written in the cut"), true) },
		func() error { return l.ForceDeletePod(ctx, "app") },
		func() error { return l.Gone(ctx, pod("app", a)) },
		func() error {
			// The next node has it on the backend, and has not been told.
			return midway(ctx, l, ledger.CSI, "ControllerPublishVolume", fault.After,
				func() error { return l.Create(ctx, pod("next", b, c)) },
				func() error {
					return steps(
						func() error { return onlyOn(l, "data", b) },
						func() error { return mustNotWrite(l, a, dir) },
					)
				})
		},
		func() error { _, err := l.Running(ctx, "next"); return err },
		func() error { return l.Expect(ctx, "next", "/data/a", "before the cut") },
		func() error { return l.Expect(ctx, "next", "/data/alone", "written in the cut") },
		func() error { return l.Write(ctx, "next", "/data/a", "by the second!") },
		func() error { return mustNotWrite(l, a, dir) },
		func() error { return l.Expect(ctx, "next", "/data/a", "by the second!") },
		func() error { return l.Check(ctx) },
		// The cut is over.
		func() error { return l.StartComponent("kubelet@" + a) },
		func() error { return l.NodesReady(ctx) },
		func() error { return cleared(ctx, l, a, "data") },
		func() error { return l.Check(ctx) },
		func() error { return l.Expect(ctx, "next", "/data/a", "by the second!") },
		func() error { return allGone(ctx, l, []string{"next"}, []string{"data"}) },
	)
}

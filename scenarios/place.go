package scenarios

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:     "late-binding-zones",
		Backends: []string{sim.VSphere},
		Text:     "with WaitForFirstConsumer a volume is made in the zone of the pod's node, and the next pod follows it",
		Labels:   []string{"provision", "topology"},
		Options: func(o *sim.Options) {
			o.Nodes, o.Zones = 3, []string{"zone-a", "zone-b", "zone-c"}
		},
		Flow:          lateBinding,
		Mutation:      "a provisioner that asks for no topology",
		MutateOptions: func(o *sim.Options) { o.TopologyGateOff = true },
	})
	register(Scenario{
		Name:          "attach-limit-scheduler",
		Text:          "the scheduler puts no more volumes on a node than the node says it takes",
		Labels:        []string{"K13", "incident", "attach", "limit"},
		Incidents:     []string{"K13 kubernetes/kubernetes#80286"},
		Options:       func(o *sim.Options) { o.Nodes, o.MaxVolumesPerNode = 2, 2 },
		Flow:          limitScheduler,
		Mutation:      "nodes that tell a limit far above what they are meant to take",
		MutateOptions: func(o *sim.Options) { o.MaxVolumesPerNode = 255 },
	})
	register(Scenario{
		Name:     "attach-limit-backend",
		Text:     "a pod that bypasses the scheduler gets the backend's refusal as an event, and starts once a slot is free",
		Labels:   []string{"attach", "limit"},
		Backends: []string{sim.VSphere}, // an array has no such limit
		// Two slots of the VM are left, whatever the node says.
		Options:  func(o *sim.Options) { o.Nodes, o.FreeSlots = 2, 2 },
		Flow:     limitBackend,
		Mutation: "an attach that answers OK when the VM has no free slot",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "attach lies", Hop: ledger.CSI, Op: "ControllerPublishVolume", Do: fault.Skip()})
		},
	})
}

func lateBinding(ctx context.Context, l *sim.Lab) error {
	node := l.Nodes()[1]
	c := claim("late", "late", "256Mi")
	p := pod("app", "", c)
	p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	return steps(
		func() error { return l.Create(ctx, c) },
		func() error { return l.HasEvent(ctx, c, "WaitForFirstConsumer", "waiting for first consumer") },
		func() error { return l.Create(ctx, p) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error {
			zone, err := l.VolumeZone("late")
			if err != nil {
				return err
			}
			if want := l.Zone(node); zone != want {
				return fmt.Errorf("the volume is in %q, its pod's node in %q: %w", zone, want, errUnexpected)
			}
			return nil
		},
		func() error { return l.Write(ctx, "app", "/late/a", "in zone b") },
		func() error { return l.DeletePod(ctx, "app") },
		// Without a selector the scheduler must still find the one node.
		func() error { return l.Create(ctx, pod("app", "", c)) },
		func() error {
			got, err := l.Running(ctx, "app")
			if err != nil {
				return err
			}
			if got.Spec.NodeName != node {
				return fmt.Errorf("the second pod is on %s, the volume is in the zone of %s: %w", got.Spec.NodeName, node, errUnexpected)
			}
			return nil
		},
		func() error { return l.Expect(ctx, "app", "/late/a", "in zone b") },
		// A pod that must be elsewhere waits, with the reason.
		func() error {
			elsewhere := pod("elsewhere", "", c)
			elsewhere.Spec.NodeSelector = map[string]string{corev1.LabelHostname: l.Nodes()[0]}
			if err := l.Create(ctx, elsewhere); err != nil {
				return err
			}
			return l.HasEvent(ctx, elsewhere, "FailedScheduling", "didn't match PersistentVolume's node affinity")
		},
		func() error { return l.DeletePod(ctx, "elsewhere") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePVC(ctx, "late") },
		func() error { return l.Empty(ctx) },
	)
}

func limitScheduler(ctx context.Context, l *sim.Lab) error {
	var claims []*corev1.PersistentVolumeClaim
	for i := range 5 {
		c := claim(fmt.Sprintf("c%d", i), "fast", "256Mi")
		claims = append(claims, c)
		if err := l.Create(ctx, c, pod(fmt.Sprintf("p%d", i), "", c)); err != nil {
			return err
		}
		if i == 4 {
			break
		}
		if _, err := l.Running(ctx, fmt.Sprintf("p%d", i)); err != nil {
			return err
		}
		if err := l.Write(ctx, fmt.Sprintf("p%d", i), fmt.Sprintf("/c%d/a", i), fmt.Sprintf("pod %d", i)); err != nil {
			return err
		}
	}
	last, err := l.Pod("p4")
	if err != nil {
		return err
	}
	return steps(
		func() error { return l.HasEvent(ctx, last, "FailedScheduling", "exceed max volume count") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "p0") },
		func() error { _, err := l.Running(ctx, "p4"); return err },
		func() error { return l.Check(ctx) },
		func() error {
			for i := range claims {
				if i > 0 {
					if err := l.DeletePod(ctx, fmt.Sprintf("p%d", i)); err != nil {
						return err
					}
				}
				if err := l.DeletePVC(ctx, fmt.Sprintf("c%d", i)); err != nil {
					return err
				}
			}
			return l.Empty(ctx)
		},
	)
}

func limitBackend(ctx context.Context, l *sim.Lab) error {
	node := l.Nodes()[0]
	for i := range 3 {
		c := claim(fmt.Sprintf("c%d", i), "fast", "256Mi")
		if err := l.Create(ctx, c); err != nil {
			return err
		}
		if _, err := l.Bound(ctx, c.Name); err != nil {
			return err
		}
		if err := l.Create(ctx, pod(fmt.Sprintf("p%d", i), node, c)); err != nil {
			return err
		}
		if i == 2 {
			break
		}
		if _, err := l.Running(ctx, fmt.Sprintf("p%d", i)); err != nil {
			return err
		}
	}
	last, err := l.Pod("p2")
	if err != nil {
		return err
	}
	return steps(
		func() error { return l.HasEvent(ctx, last, "FailedAttachVolume", "") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "p0") },
		func() error { _, err := l.Running(ctx, "p2"); return err },
		func() error { return l.Write(ctx, "p2", "/c2/a", "at last") },
		func() error { return l.Check(ctx) },
		func() error {
			for i := range 3 {
				if i > 0 {
					if err := l.DeletePod(ctx, fmt.Sprintf("p%d", i)); err != nil {
						return err
					}
				}
				if err := l.DeletePVC(ctx, fmt.Sprintf("c%d", i)); err != nil {
					return err
				}
			}
			return l.Empty(ctx)
		},
	)
}

package scenarios

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/garbagecollector"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:     "ephemeral-volume",
		Text:     "a generic ephemeral volume lives as long as its pod: its data survives a crash of kubelet and a claim that is deleted early, its claim is no other pod's and goes with the pod; a claim of the same name that the pod does not own is left alone",
		Labels:   []string{"ephemeral", "provision", "stage", "delete"},
		Flow:     ephemeralVolume,
		Mutation: "a garbage collector that leaves the claim of a pod that is gone",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "leaves the claim", Hop: ledger.Kube, Op: "delete persistentvolumeclaims", Component: garbagecollector.Actor, Do: fault.Skip()})
		},
	})
}

// withScratch is a pod with an ephemeral volume at /scratch, whose claim is
// <pod>-scratch.
func withScratch(name, class string) *corev1.Pod {
	c := claim("scratch", class, "256Mi")
	p := pod(name, "", c)
	p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
		VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: c.Spec}}}
	return p
}

func ephemeralVolume(ctx context.Context, l *sim.Lab) error {
	const content = "for as long as the pod"
	app, second, again := withScratch("app", "late"), withScratch("second", "fast"), withScratch("app", "late")
	foreign, bypassed := claim("second-scratch", "fast", "256Mi"), claim("pinned-scratch", "fast", "256Mi")
	pinned := withScratch("pinned", "fast")
	pinned.Spec.NodeName = l.Nodes()[0]
	first, pv := "", ""
	return steps(
		func() error { return l.Create(ctx, app) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/scratch/a", content) },
		func() error { return l.Check(ctx) },
		func() error { first, pv = l.VolumeID("app-scratch"), l.PVName("app-scratch"); return nil },
		func() error {
			p, err := l.Pod("app")
			if err != nil {
				return err
			}
			kubelet := "kubelet@" + p.Spec.NodeName
			before := l.Starts(kubelet)
			l.Crash(kubelet)
			return l.Restarted(ctx, kubelet, before)
		},
		func() error { return l.Expect(ctx, "app", "/scratch/a", content) },
		func() error { return l.Check(ctx) },

		func() error { return l.Create(ctx, foreign) },
		func() error { _, err := l.Bound(ctx, "second-scratch"); return err },
		func() error { return l.Create(ctx, second) },
		func() error {
			return l.HasEvent(ctx, second, "FailedBinding", "PVC default/second-scratch was not created for pod default/second (pod is not owner)")
		},
		func() error { return l.HasEvent(ctx, second, "FailedScheduling", "(pod is not owner)") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePVC(ctx, "second-scratch") },
		func() error { _, err := l.Running(ctx, "second"); return err },
		func() error { return l.Write(ctx, "second", "/scratch/a", "of another pod altogether") },
		func() error { return ownedBy(l, "second-scratch", second) },

		// A pod that bypasses the scheduler is held by kubelet and attach controller.
		func() error { return l.Create(ctx, bypassed) },
		func() error { _, err := l.Bound(ctx, "pinned-scratch"); return err },
		func() error { return l.Create(ctx, pinned) },
		func() error {
			return l.HasEvent(ctx, pinned, "FailedMount", "PVC default/pinned-scratch was not created for pod default/pinned (pod is not owner)")
		},
		func() error { return exportedTo(ctx, l, "pinned-scratch") },
		func() error { return l.DeletePod(ctx, "pinned") },
		func() error { return l.DeletePVC(ctx, "pinned-scratch") },

		// A claim in use goes when its pod does.
		func() error {
			c, err := l.PVC("app-scratch")
			if err != nil {
				return err
			}
			return l.Client().Delete(ctx, c)
		},
		func() error { return l.Check(ctx) },
		func() error { return ownedBy(l, "app-scratch", app) },
		func() error { return l.Expect(ctx, "app", "/scratch/a", content) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Gone(ctx, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: pv}}) },
		func() error {
			if l.OnBackend(first) {
				return fmt.Errorf("the volume %s of a pod that is gone is still there: %w", first, errUnexpected)
			}
			return nil
		},

		// A pod of the same name begins with a new volume.
		func() error { return l.Create(ctx, again) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error {
			if got, err := l.Read(ctx, "app", "/scratch/a", len(content)); err == nil {
				return fmt.Errorf("a new pod reads %q in its ephemeral volume: %w", got, errUnexpected)
			}
			return nil
		},
		func() error { return l.Expect(ctx, "second", "/scratch/a", "of another pod altogether") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePod(ctx, "second") },
		func() error { return l.Empty(ctx) },
	)
}

// ownedBy says whether a claim is there and a pod controls it.
func ownedBy(l *sim.Lab, pvc string, p *corev1.Pod) error {
	c, err := l.PVC(pvc)
	if err != nil {
		return err
	}
	if !metav1.IsControlledBy(c, p) {
		return fmt.Errorf("PersistentVolumeClaim %s has the owners %v, expected pod %s: %w", pvc, c.OwnerReferences, p.Name, errUnexpected)
	}
	return nil
}

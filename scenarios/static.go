package scenarios

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:     "static-volume-retain",
		Text:     "a volume made by hand is used through a pre-provisioned PersistentVolume; it outlives claim and PersistentVolume, and a second pair finds its data",
		Labels:   []string{"static", "attach", "stage"},
		Flow:     staticVolume,
		Mutation: "an API server that stores Delete where a PersistentVolume says Retain",
		Mutate:   alterVolumes("user", "forgets Retain", deletePolicy),
	})
	register(Scenario{
		Name:     "retain-class",
		Text:     "a class with reclaimPolicy Retain: volume and data stay when the claim is deleted, until somebody cleans up",
		Labels:   []string{"static", "provision"},
		Flow:     retainClass,
		Mutation: "a provisioner that ignores the reclaim policy of the class",
		Mutate:   alterVolumes("csi-provisioner", "forgets Retain", deletePolicy),
	})
}

func deletePolicy(pv *corev1.PersistentVolume) {
	pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
}

// alterVolumes changes each PersistentVolume that a component creates, right
// after that: what a provisioner makes that does not take over all that it
// should.
func alterVolumes(component, name string, change func(*corev1.PersistentVolume)) func(*sim.Lab) {
	return func(l *sim.Lab) {
		l.Inject(fault.Rule{Name: name, Hop: ledger.Kube, Op: "create persistentvolumes", Component: component, Phase: fault.After,
			Do: fault.Func(name, func(ctx context.Context, c fault.Call) error {
				_, err := store.Modify(ctx, l.Client(), "", c.Volume, func(pv *corev1.PersistentVolume) error { change(pv); return nil })
				return err
			})})
	}
}

func staticVolume(ctx context.Context, l *sim.Lab) error {
	id, err := l.MakeVolume(ctx, "by-hand", "256Mi")
	if err != nil {
		return err
	}
	first := claim("data", "", "256Mi", volumeNamed("first"))
	second := claim("again", "", "256Mi", volumeNamed("second"))
	return steps(
		func() error { return l.Create(ctx, volume(l, "first", id, "256Mi"), first, pod("app", "", first)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/data/a", "in a volume made by hand") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePVC(ctx, "data") },
		func() error { return l.Released(ctx, "first") },
		func() error { return stillThere(l, id) },
		// A released PersistentVolume is not given to another claim.
		func() error {
			c := claim("late", "", "256Mi", volumeNamed("first"))
			if err := l.Create(ctx, c); err != nil {
				return err
			}
			// Its turn with the binder is over once a later claim is bound.
			if err := l.Create(ctx, volume(l, "second", id, "256Mi"), second); err != nil {
				return err
			}
			if _, err := l.Bound(ctx, "again"); err != nil {
				return err
			}
			now, err := l.PVC("late")
			if err != nil {
				return err
			}
			if now.Status.Phase == corev1.ClaimBound {
				return step(errUnexpected, "a claim got the PersistentVolume that another had")
			}
			return l.Delete(ctx, c)
		},
		func() error { return l.Delete(ctx, volume(l, "first", id, "256Mi")) },
		func() error { return l.Create(ctx, pod("reader", "", second)) },
		func() error { _, err := l.Running(ctx, "reader"); return err },
		func() error { return l.Expect(ctx, "reader", "/again/a", "in a volume made by hand") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "reader") },
		func() error { return l.Detached(ctx, "second") },
		func() error { return l.DeletePVC(ctx, "again") },
		func() error { return l.Delete(ctx, volume(l, "second", id, "256Mi")) },
		func() error { return stillThere(l, id) },
		func() error { return l.RemoveVolume(ctx, id) },
		func() error { return l.Empty(ctx) },
	)
}

func stillThere(l *sim.Lab, id string) error {
	if !l.OnBackend(id) {
		return fmt.Errorf("%s is gone from the backend: %w", id, errUnexpected)
	}
	return nil
}

func retainClass(ctx context.Context, l *sim.Lab) error {
	c := claim("data", "keep", "256Mi")
	pv, id := "", ""
	return steps(
		func() error { return l.Create(ctx, c, pod("app", "", c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/data/a", "to be kept") },
		func() error { pv, id = l.PVName("data"), l.VolumeID("data"); return nil },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Detached(ctx, pv) },
		func() error { return l.Delete(ctx, c) },
		func() error { return l.Released(ctx, pv) },
		func() error { return stillThere(l, id) },
		func() error { return l.Check(ctx) },
		// Somebody takes it over by hand: a new pair for the same volume.
		func() error { return l.Delete(ctx, volume(l, pv, id, "256Mi")) },
		func() error { l.Retain(id); return stillThere(l, id) },
		func() error { return l.Check(ctx) },
		func() error {
			c := claim("again", "", "256Mi", volumeNamed("taken-over"))
			return l.Create(ctx, volume(l, "taken-over", id, "256Mi"), c, pod("reader", "", c))
		},
		func() error { _, err := l.Running(ctx, "reader"); return err },
		func() error { return l.Expect(ctx, "reader", "/again/a", "to be kept") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "reader") },
		func() error { return l.Detached(ctx, "taken-over") },
		func() error { return l.DeletePVC(ctx, "again") },
		func() error { return l.Delete(ctx, volume(l, "taken-over", id, "256Mi")) },
		func() error { return l.RemoveVolume(ctx, id) },
		func() error { return l.Empty(ctx) },
	)
}

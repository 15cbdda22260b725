package scenarios

import (
	"context"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:     "cpg-full",
		Text:     "others fill the CPGs of the array: what a pod has goes on, a new claim waits and says why, and comes about once there is room, as a snapshot does",
		Labels:   []string{"provision", "snapshot", "space"},
		Backends: onArray,
		Flow:     cpgFull,
		Mutation: "a DeleteVolume that answers OK and leaves the volume",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "delete lies", Hop: ledger.CSI, Op: "DeleteVolume", Do: fault.Skip()})
		},
	})
}

// fillCPGs leaves so many MiB in all CPGs of all arrays; negative lifts that.
func fillCPGs(l *sim.Lab, freeMiB int64) error {
	for _, a := range l.SAN().Arrays() {
		for _, c := range a.CPGs() {
			if err := a.FillCPG(c.Name, freeMiB); err != nil {
				return err
			}
		}
	}
	return nil
}

func cpgFull(ctx context.Context, l *sim.Lab) error {
	has, wants := claim("has", "fast", "512Mi"), claim("wants", "fast", "512Mi")
	return steps(
		func() error { return l.Create(ctx, has, pod("app", "", has)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/has/a", "before it was full") },
		func() error { return fillCPGs(l, 0) },
		func() error { return l.Create(ctx, wants) },
		func() error { return l.HasEvent(ctx, wants, "ProvisioningFailed", "ResourceExhausted") },
		func() error { return noteEvent(l, "while the CPGs are full", wants, "ProvisioningFailed") },
		func() error { return l.Write(ctx, "app", "/has/a", "into space that it has") },
		func() error { return l.Expect(ctx, "app", "/has/a", "into space that it has") },
		func() error { return l.Check(ctx) },
		func() error { return fillCPGs(l, -1) },
		func() error { _, err := l.Bound(ctx, "wants"); return err },
		func() error { _, err := l.TakeSnapshot(ctx, "cut", "has", "snap"); return err },
		func() error { return l.DeleteSnapshot(ctx, "cut") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePVC(ctx, "has") },
		func() error { return l.DeletePVC(ctx, "wants") },
		func() error { return l.Empty(ctx) },
	)
}

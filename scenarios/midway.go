package scenarios

import (
	"context"
	"fmt"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:     "deleted-midway",
		Text:     "claim, pod and snapshot are deleted while their volume is being made, attached, staged, published or cut; nothing is left of them",
		Labels:   []string{"provision", "attach", "stage", "publish", "snapshot"},
		Flow:     deletedMidway,
		Mutation: "a DeleteVolume that answers OK and leaves the volume",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "delete lies", Hop: ledger.CSI, Op: "DeleteVolume", Do: fault.Skip()})
		},
	})
}

// midway holds the next call of an operation before or after its commit, does
// something, and lets the call go on.
func midway(ctx context.Context, l *sim.Lab, hop ledger.Hop, op string, phase fault.Phase, begin, do func() error) error {
	g := fault.NewGate()
	rule := l.Inject(fault.Rule{Name: "midway in " + op, Hop: hop, Op: op, Phase: phase, Nth: 1, Do: g})
	defer l.Disarm(rule)
	defer g.Release()
	return steps(
		begin,
		func() error { _, err := g.Reached(ctx); return step(err, "%s did not come", op) },
		func() error { return step(do(), "midway in %s", op) },
	)
}

func deletedMidway(ctx context.Context, l *sim.Lab) error {
	both := []fault.Phase{fault.Before, fault.After}
	remove := func(name string) func() error {
		return func() error {
			p, err := l.Pod(name)
			if err != nil {
				return err
			}
			return l.Client().Delete(ctx, p)
		}
	}
	var flows []func() error
	n := 0
	for _, phase := range both {
		for _, op := range []string{"CreateVolume"} {
			n++
			c := claim(fmt.Sprintf("made%d", n), "fast", "256Mi")
			flows = append(flows, func() error {
				return midway(ctx, l, ledger.CSI, op, phase,
					func() error { return l.Create(ctx, c) },
					func() error { return l.Delete(ctx, c) })
			}, func() error { return l.Empty(ctx) })
		}
		for _, op := range []string{"ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume"} {
			n++
			name := fmt.Sprintf("used%d", n)
			c := claim(name, "fast", "256Mi")
			flows = append(flows,
				func() error { return l.Create(ctx, c) },
				func() error { _, err := l.Bound(ctx, name); return err },
				func() error {
					return midway(ctx, l, ledger.CSI, op, phase,
						func() error { return l.Create(ctx, pod(name, "", c)) },
						remove(name))
				},
				func() error { return step(l.Gone(ctx, pod(name, "")), "after %s", op) },
				func() error { return step(l.Detached(ctx, l.PVName(name)), "after %s", op) },
				func() error { return l.Check(ctx) },
				// The volume is as good as before.
				func() error { return l.Create(ctx, pod(name, "", c)) },
				func() error { _, err := l.Running(ctx, name); return err },
				func() error { return l.Write(ctx, name, "/"+name+"/a", name) },
				func() error { return l.Check(ctx) },
				func() error { return l.DeletePod(ctx, name) },
				func() error { return l.DeletePVC(ctx, name) },
				func() error { return step(l.Empty(ctx), "after %s", op) },
			)
		}
		n++
		name := fmt.Sprintf("cut%d", n)
		c := claim(name, "fast", "256Mi")
		flows = append(flows,
			func() error { return l.Create(ctx, c) },
			func() error { _, err := l.Bound(ctx, name); return err },
			func() error {
				return midway(ctx, l, ledger.CSI, "CreateSnapshot", phase,
					func() error { return l.Create(ctx, snapshotOf(name, name)) },
					func() error { return l.Client().Delete(ctx, snapshotOf(name, name)) })
			},
			func() error { return l.Gone(ctx, snapshotOf(name, name)) },
			func() error { return l.DeletePVC(ctx, name) },
			func() error { return step(l.Empty(ctx), "after CreateSnapshot") },
		)
	}
	return steps(flows...)
}

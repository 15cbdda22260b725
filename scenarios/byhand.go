package scenarios

import (
	"context"
	"strings"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:     "attached-elsewhere-by-hand",
		Text:     "an administrator attaches the volume of a running pod to a second node, past the driver: the vCenter refuses it as in use, and the pod goes on",
		Labels:   []string{"attach", "access", "behind-the-back"},
		Backends: []string{sim.VSphere},
		Flow:     attachedElsewhereByHand,
		Mutation: "a vCenter that takes the volume from its VM for a second one",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "taken away first", Hop: ledger.VCenter, Op: "CnsAttachVolume", Component: fault.Administrator,
				Do: fault.Func("detach", func(ctx context.Context, _ fault.Call) error {
					return l.PullVolume(ctx, l.VolumeID("data"), l.Nodes()[0])
				})})
		},
	})
}

func attachedElsewhereByHand(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	return steps(
		func() error { return used(ctx, l, "data", "app", a, "of the holder") },
		func() error {
			err := l.AttachByHand(ctx, l.VolumeID("data"), l.OtherNode(a))
			if err == nil {
				return step(errUnexpected, "a second VM got the disk")
			}
			if !strings.Contains(err.Error(), "ResourceInUse") && !strings.Contains(err.Error(), "in use") {
				return step(err, "refused for another reason than that it is in use")
			}
			l.Note("refused: %v", err)
			return nil
		},
		func() error { return exportedTo(ctx, l, "data", a) },
		func() error { return l.Write(ctx, "app", "/data/b", "the holder goes on") },
		func() error { return l.Check(ctx) },
		func() error { return removed(ctx, l, []string{"app"}, []string{"data"}) },
	)
}

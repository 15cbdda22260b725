package scenarios

import (
	"context"
	"path"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:     "staged-where-another-is",
		Text:     "a volume is to be staged where another one is mounted: that is refused, also by a driver that was just started, and both keep their data",
		Labels:   []string{"stage", "idempotent"},
		Kernel:   true,
		Flow:     stagedWhereAnotherIs,
		Mutation: "a NodeStageVolume that takes any mount for its own",
		Mutate:   stageTakesAnyMount,
	})
	register(Scenario{
		Name:     "staged-over-a-dead-mount",
		Text:     "the device below a staged filesystem is gone and the volume comes back as a new one: a stage finds the dead mount and makes it anew, with the data",
		Labels:   []string{"stage", "node-loss"},
		Kernel:   true,
		Flow:     stagedOverADeadMount,
		Mutation: "a NodeStageVolume that takes any mount for its own",
		Mutate:   stageTakesAnyMount,
	})
}

func stageTakesAnyMount(l *sim.Lab) {
	l.Inject(fault.Rule{Name: "any mount will do", Hop: ledger.CSI, Op: "NodeStageVolume", Component: "operator", Do: fault.Skip()})
}

func stagedWhereAnotherIs(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	c, other := claim("data", "fast", "256Mi"), claim("other", "fast", "256Mi")
	refused := func() error {
		err := l.As("operator").NodeStage(ctx, "data", a, l.StagingPath("other"))
		for status.Code(err) == codes.Unavailable && ctx.Err() == nil { // its driver starts
			_ = l.Sleep(ctx, 100*time.Millisecond)
			err = l.As("operator").NodeStage(ctx, "data", a, l.StagingPath("other"))
		}
		return refusedWith(err, "a stage where another volume is mounted", codes.AlreadyExists, codes.FailedPrecondition, codes.InvalidArgument)
	}
	return steps(
		func() error { return startWriter(ctx, l, "user", a, other, "of the other volume") },
		func() error { return startWriter(ctx, l, "app", a, c, "of the volume") },
		refused,
		// Once more while it is attached and staged nowhere, by a driver that knows
		// of neither.
		func() error {
			return midway(ctx, l, ledger.CSI, "ControllerUnpublishVolume", fault.Before, func() error { return l.DeletePod(ctx, "app") }, func() error {
				l.Crash("driver@" + a)
				return refused()
			})
		},
		func() error { return l.Detached(ctx, l.PVName("data")) },
		func() error { return l.Expect(ctx, "user", "/other/a", "of the other volume") },
		func() error { return startReader(ctx, l, "app", a, c, "of the volume") },
		func() error { return l.Check(ctx) },
		func() error { return allGone(ctx, l, []string{"user", "app"}, []string{"data", "other"}) },
	)
}

func stagedOverADeadMount(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	c := claim("data", "fast", "256Mi")
	operator := l.As("operator")
	return steps(
		func() error { return startWriter(ctx, l, "app", a, c, "synced before") },
		func() error { return l.PullDisk(ctx, a, "data") },
		func() error { return step(operator.Publish(ctx, "data", a), "publish of what was pulled") },
		func() error {
			return step(operator.NodeStage(ctx, "data", a, l.StagingPath("data")), "stage over the dead mount")
		},
		func() error {
			b, err := l.Host(a).ReadFile(path.Join(l.StagingPath("data"), "a"))
			if err == nil && string(b) != "synced before" {
				err = errUnexpected
			}
			return step(err, "what is staged reads %q", b)
		},
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Detached(ctx, l.PVName("data")) },
		func() error { return startReader(ctx, l, "app", a, c, "synced before") },
		func() error { return l.Check(ctx) },
		func() error { return allGone(ctx, l, []string{"app"}, []string{"data"}) },
	)
}

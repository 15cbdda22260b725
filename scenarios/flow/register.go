package flow

import (
	"context"

	"github.com/csilab/csilab/scenarios/object"
	"github.com/csilab/csilab/sim"
)

func init() {
	c, next := filesystem.claim("data"), filesystem.claim("next")
	restart := func(ctx context.Context, l *sim.Lab, component string) error {
		component += "@" + l.Nodes()[0]
		before := l.Starts(component)
		l.Crash(component)
		return steps(
			func() error { return l.Restarted(ctx, component, before) },
			func() error { return l.NodesReady(ctx) },
		)
	}
	register(Flow{
		Name: "register",
		Text: "driver, registrar and kubelet of a node are restarted in turn; the driver is registered again and a new pod gets its volume",
		Prepare: func(ctx context.Context, l *sim.Lab) error {
			return steps(
				func() error { return written(ctx, l, filesystem, c, "app", l.Nodes()[0], "before it all") },
				func() error { return bound(ctx, l, next) },
			)
		},
		Body: func(ctx context.Context, l *sim.Lab) error {
			return steps(
				func() error { return restart(ctx, l, "driver") },
				func() error { return restart(ctx, l, "registrar") },
				func() error { return restart(ctx, l, "kubelet") },
				// A pod that runs proves it.
				func() error { return running(ctx, l, object.Pod("next", l.Nodes()[0], next)) },
			)
		},
		End: func(ctx context.Context, l *sim.Lab) error {
			return steps(
				func() error { return l.Write(ctx, "next", filesystem.file(next.Name), "after it all") },
				func() error { return l.Expect(ctx, "app", filesystem.file(c.Name), "before it all") },
				func() error { return l.Check(ctx) },
				func() error { return l.DeletePod(ctx, "next") },
				func() error { return l.DeletePod(ctx, "app") },
				func() error { return l.DeletePVC(ctx, next.Name) },
				func() error { return l.DeletePVC(ctx, c.Name) },
			)
		},
	})
}

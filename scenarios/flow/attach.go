package flow

import (
	"context"

	"github.com/csilab/csilab/scenarios/object"
	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	c := filesystem.claim("data")
	register(Flow{
		Name: "attach",
		Text: "a pod that is placed on a node gets its volume attached there",
		Prepare: func(ctx context.Context, l *sim.Lab) error {
			return bound(ctx, l, c)
		},
		Body: func(ctx context.Context, l *sim.Lab) error {
			return steps(
				func() error { return l.Create(ctx, object.Pod("app", l.Nodes()[0], c)) },
				func() error { return l.AttachedTo(ctx, l.PVName(c.Name), l.Nodes()[0]) },
			)
		},
		// What the node does from then on is flow stage.
		Calls: func(e ledger.Entry) bool { return !OnNode(e) },
		End: func(ctx context.Context, l *sim.Lab) error {
			return steps(
				func() error { _, err := l.Running(ctx, "app"); return err },
				func() error { return l.Write(ctx, "app", filesystem.file(c.Name), "attached") },
				func() error { return l.DeletePod(ctx, "app") },
				func() error { return holds(ctx, l, filesystem, c, l.Nodes()[1], "attached") },
				func() error { return l.DeletePVC(ctx, c.Name) },
			)
		},
	})
	for _, m := range []medium{filesystem, raw} {
		c := m.claim("data")
		register(Flow{
			Name:    "stage" + m.suffix,
			Text:    "a node stages an attached " + m.words + " for the first time and a pod starts with it",
			Prepare: func(ctx context.Context, l *sim.Lab) error { return bound(ctx, l, c) },
			Body: func(ctx context.Context, l *sim.Lab) error {
				return running(ctx, l, object.Pod("app", l.Nodes()[0], c))
			},
			Calls: OnNode,
			End: func(ctx context.Context, l *sim.Lab) error {
				return steps(
					func() error { return l.Write(ctx, "app", m.file(c.Name), "staged") },
					func() error { return l.Check(ctx) },
					func() error { return l.DeletePod(ctx, "app") },
					func() error { return holds(ctx, l, m, c, l.Nodes()[1], "staged") },
					func() error { return l.DeletePVC(ctx, c.Name) },
				)
			},
		})
		register(Flow{
			Name: "publish" + m.suffix,
			Text: "a second pod on the node starts with a " + m.words + " that is staged already, and the first one ends",
			Prepare: func(ctx context.Context, l *sim.Lab) error {
				return written(ctx, l, m, c, "one", l.Nodes()[0], "from the first")
			},
			Body: func(ctx context.Context, l *sim.Lab) error {
				return steps(
					func() error { return running(ctx, l, object.Pod("two", l.Nodes()[0], c)) },
					func() error { return l.DeletePod(ctx, "one") },
				)
			},
			End: func(ctx context.Context, l *sim.Lab) error {
				return steps(
					func() error { return l.Expect(ctx, "two", m.file(c.Name), "from the first") },
					func() error { return l.Write(ctx, "two", m.file(c.Name), "from the second") },
					func() error { return l.DeletePod(ctx, "two") },
					func() error { return holds(ctx, l, m, c, l.Nodes()[1], "from the second") },
					func() error { return l.DeletePVC(ctx, c.Name) },
				)
			},
		})
		register(Flow{
			Name: "detach" + m.suffix,
			Text: "a pod ends, and its " + m.words + " is unpublished, unstaged and detached",
			Prepare: func(ctx context.Context, l *sim.Lab) error {
				return written(ctx, l, m, c, "app", l.Nodes()[0], "left behind")
			},
			Body: func(ctx context.Context, l *sim.Lab) error {
				return steps(
					func() error { return l.DeletePod(ctx, "app") },
					func() error { return l.Detached(ctx, l.PVName(c.Name)) },
				)
			},
			End: func(ctx context.Context, l *sim.Lab) error {
				return steps(
					func() error { return holds(ctx, l, m, c, l.Nodes()[1], "left behind") },
					func() error { return l.DeletePVC(ctx, c.Name) },
				)
			},
		})
	}
	register(Flow{
		Name: "move",
		Text: "a pod ends and starts on another node, where it finds its data",
		Prepare: func(ctx context.Context, l *sim.Lab) error {
			return written(ctx, l, filesystem, c, "app", l.Nodes()[0], "on the first node")
		},
		Body: func(ctx context.Context, l *sim.Lab) error {
			return steps(
				func() error { return l.DeletePod(ctx, "app") },
				func() error { return running(ctx, l, object.Pod("app", l.Nodes()[1], c)) },
			)
		},
		End: func(ctx context.Context, l *sim.Lab) error {
			return steps(
				func() error { return l.Expect(ctx, "app", filesystem.file(c.Name), "on the first node") },
				func() error { return l.Write(ctx, "app", filesystem.file(c.Name), "on the second node") },
				func() error { return l.Check(ctx) },
				func() error { return l.DeletePod(ctx, "app") },
				func() error { return holds(ctx, l, filesystem, c, l.Nodes()[0], "on the second node") },
				func() error { return l.DeletePVC(ctx, c.Name) },
			)
		},
	})
}

package flow

import (
	"context"

	"github.com/csilab/csilab/scenarios/object"
	"github.com/csilab/csilab/sim"
)

func init() {
	src, restored := filesystem.claim("source"), filesystem.claim("restored", object.FromSnapshot("cut"))
	file, copied := filesystem.file(src.Name), filesystem.file(restored.Name)
	register(Flow{
		Name:  "life",
		Text:  "a volume is provisioned, used, snapshotted, restored, expanded and deleted",
		Whole: true,
		Body: func(ctx context.Context, l *sim.Lab) error {
			node := l.Nodes()[0]
			return steps(
				func() error { return written(ctx, l, filesystem, src, "app", node, "one") },
				func() error { _, err := l.TakeSnapshot(ctx, "cut", src.Name, "snap"); return err },
				func() error { return l.Write(ctx, "app", file, "two") },
				func() error { return bound(ctx, l, restored) },
				func() error { return running(ctx, l, object.Pod("reader", node, restored)) },
				func() error { return l.Expect(ctx, "reader", copied, "one") },
				func() error { return l.Expect(ctx, "app", file, "two") },
				func() error { return l.DeletePod(ctx, "reader") },
				func() error { return l.DeletePVC(ctx, restored.Name) },
				func() error { return l.DeleteSnapshot(ctx, "cut") },
				func() error {
					if l.CanGrowOnline(src.Name) != nil {
						return nil
					}
					return steps(
						func() error { return l.Expand(ctx, src.Name, bigger) },
						func() error { return l.Expanded(ctx, src.Name, bigger) })
				},
				func() error { return l.Check(ctx) },
				func() error { return l.DeletePod(ctx, "app") },
				func() error { return l.DeletePVC(ctx, src.Name) },
			)
		},
		End: func(context.Context, *sim.Lab) error { return nil },
	})
}

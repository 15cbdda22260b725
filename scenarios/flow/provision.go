package flow

import (
	"context"

	"github.com/csilab/csilab/scenarios/object"
	"github.com/csilab/csilab/sim"
)

func init() {
	c := filesystem.claim("data")
	register(Flow{
		Name: "provision",
		Text: "a claim gets a volume",
		Body: func(ctx context.Context, l *sim.Lab) error { return bound(ctx, l, c) },
		End:  func(ctx context.Context, l *sim.Lab) error { return usable(ctx, l, filesystem, c) },
	})
	register(Flow{
		Name: "delete",
		Text: "a snapshot is deleted, then the claim that it was taken of, with its volume and its data",
		Prepare: func(ctx context.Context, l *sim.Lab) error {
			return steps(
				func() error { return written(ctx, l, filesystem, c, "app", l.Nodes()[0], "to be deleted") },
				func() error { _, err := l.TakeSnapshot(ctx, "cut", c.Name, "snap"); return err },
				func() error { return l.DeletePod(ctx, "app") },
				func() error { return l.Detached(ctx, l.PVName(c.Name)) },
			)
		},
		Body: func(ctx context.Context, l *sim.Lab) error {
			return steps(
				func() error { return l.DeleteSnapshot(ctx, "cut") },
				func() error { return l.DeletePVC(ctx, c.Name) },
			)
		},
		// A volume for the same claim again is a new one, and empty.
		End: func(ctx context.Context, l *sim.Lab) error {
			return steps(
				func() error { return bound(ctx, l, c) },
				func() error { return usable(ctx, l, filesystem, c) },
			)
		},
	})

	src, copied := filesystem.claim("source"), filesystem.claim("copied", object.FromClaim("source"))
	register(Flow{
		Name:     "clone",
		Text:     "a claim gets a copy of the volume of another, which a pod goes on writing to afterwards",
		Backends: []string{sim.HPE},
		Prepare: func(ctx context.Context, l *sim.Lab) error {
			return written(ctx, l, filesystem, src, "app", l.Nodes()[0], "before the copy")
		},
		Body: func(ctx context.Context, l *sim.Lab) error { return bound(ctx, l, copied) },
		End: func(ctx context.Context, l *sim.Lab) error {
			return steps(
				func() error { l.Expects(copied.Name, map[string]string{"a": "before the copy"}); return nil },
				func() error { return l.Write(ctx, "app", filesystem.file(src.Name), "after the copy!") },
				func() error { return holds(ctx, l, filesystem, copied, l.Nodes()[1], "before the copy") },
				func() error { return l.Expect(ctx, "app", filesystem.file(src.Name), "after the copy!") },
				func() error { return l.DeletePod(ctx, "app") },
				func() error { return l.DeletePVC(ctx, copied.Name) },
				func() error { return l.DeletePVC(ctx, src.Name) },
			)
		},
	})
}

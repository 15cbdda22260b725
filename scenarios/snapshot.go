package scenarios

import (
	"context"

	"github.com/csilab/csilab/sim"
)

func init() {
	register(Scenario{
		Name:     "snapshot-restore",
		Text:     "a restored snapshot holds what was there when it was taken, and the two volumes go separate ways",
		Labels:   []string{"snapshot", "restore"},
		Kernel:   true,
		Flow:     snapshotRestore,
		Mutation: "a snapshot that returns what the volume holds now instead of then",
		Mutate:   liveSnapshots,
	})
}

func snapshotRestore(ctx context.Context, l *sim.Lab) error {
	src := claim("source", "fast", "256Mi")
	first := claim("first", "fast", "256Mi", fromSnapshot("one"))
	second := claim("second", "fast", "256Mi", fromSnapshot("two"))
	return steps(
		func() error { return l.Create(ctx, src, pod("writer", "", src)) },
		func() error { _, err := l.Running(ctx, "writer"); return err },
		func() error { return l.Write(ctx, "writer", "/source/a", "version one") },
		func() error { _, err := l.TakeSnapshot(ctx, "one", "source", "snap"); return err },
		func() error { return l.Write(ctx, "writer", "/source/a", "version two") },
		func() error { return l.Write(ctx, "writer", "/source/b", "only in two") },
		func() error { _, err := l.TakeSnapshot(ctx, "two", "source", ""); return err },
		func() error { return l.Write(ctx, "writer", "/source/a", "version 333") },
		func() error { return l.Create(ctx, first, second, pod("reader", "", first, second)) },
		func() error { _, err := l.Running(ctx, "reader"); return err },
		func() error { return l.Expect(ctx, "reader", "/first/a", "version one") },
		func() error {
			if _, err := l.Read(ctx, "reader", "/first/b", 1); err == nil {
				return step(errUnexpected, "a file from after the snapshot is in the restored volume")
			}
			return nil
		},
		func() error { return l.Expect(ctx, "reader", "/second/a", "version two") },
		func() error { return l.Expect(ctx, "reader", "/second/b", "only in two") },
		func() error { return l.Write(ctx, "reader", "/first/a", "its own way") },
		func() error { return l.Expect(ctx, "writer", "/source/a", "version 333") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "reader") },
		func() error { return l.DeletePod(ctx, "writer") },
		func() error { return l.DeletePVC(ctx, "first") },
		func() error { return l.DeletePVC(ctx, "second") },
		// The claim goes before its snapshots: the volume must wait for them.
		func() error { return l.DeleteSnapshot(ctx, "one") },
		func() error { return l.DeleteSnapshot(ctx, "two") },
		func() error { return l.DeletePVC(ctx, "source") },
		func() error { return l.Empty(ctx) },
	)
}

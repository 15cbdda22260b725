package scenarios

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:     "volume-full",
		Text:     "a full filesystem refuses to be written, tells so in its stats, keeps its data, and takes more once the volume has grown",
		Labels:   []string{"expand", "stage", "stats"},
		Flow:     volumeFull,
		Mutation: "filesystem tools that answer OK and grow nothing",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "the filesystem tools lie", Hop: ledger.Host, Do: fault.Skip(),
				Match: func(c fault.Call) bool { return c.Op == "exec resize2fs" || c.Op == "exec xfs_growfs" }})
		},
	})
}

func volumeFull(ctx context.Context, l *sim.Lab) error {
	const mib = 1 << 20
	c := claim("data", "fast", "32Mi")
	piece := strings.Repeat("fill", mib)
	// fill writes files, ten at the most, and says how many went in.
	fill := func() (n int, err error) {
		for ; n < 10 && err == nil; n++ {
			err = l.Write(ctx, "app", fmt.Sprintf("/data/fill%d", n), piece)
		}
		return n, err
	}
	var free int64
	return steps(
		func() (err error) { free, err = l.FreeSpace(ctx); return err },
		func() error { return l.Create(ctx, c, pod("app", "", c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error {
			now, err := l.FreeSpace(ctx)
			// The volume is thin: it takes nothing yet.
			if err == nil && (now > free || now < 32*mib) {
				err = fmt.Errorf("GetCapacity gives %d bytes after a volume of 32 MiB was made, %d before: %w", now, free, errUnexpected)
			}
			return err
		},
		func() error { return filesystemSize(l, ctx, "app", "/data", "32Mi") },
		func() error { return l.Write(ctx, "app", "/data/a", "before it was full") },
		func() error {
			n, err := fill()
			if !errors.Is(err, syscall.ENOSPC) || n < 4 {
				return fmt.Errorf("a volume of 32 MiB takes %d files of 4 MiB, then gives %v, not ENOSPC: %w", n, err, errUnexpected)
			}
			return nil
		},
		func() error {
			u, err := l.Space(ctx, "app", "/data")
			if err == nil && (u.AvailableBytes > 4*mib || u.UsedBytes < 16*mib) {
				err = fmt.Errorf("the stats of a full volume are %+v: %w", u, errUnexpected)
			}
			return err
		},
		func() error { return l.Expect(ctx, "app", "/data/a", "before it was full") },
		func() error { return l.Check(ctx) },
		// Not every kernel here can grow a mounted filesystem of this kind; all
		// can when it is next mounted.
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Detached(ctx, l.PVName("data")) },
		func() error { return l.Expand(ctx, "data", "96Mi") },
		func() error { return l.BackendSize(ctx, "data", "96Mi") },
		func() error { return l.Create(ctx, pod("app", "", c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Expanded(ctx, "data", "96Mi") },
		func() error { return filesystemSize(l, ctx, "app", "/data", "96Mi") },
		func() error { return l.Expect(ctx, "app", "/data/a", "before it was full") },
		func() error { _, err := fill(); return step(err, "after growing") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePVC(ctx, "data") },
		func() error { return l.Empty(ctx) },
	)
}

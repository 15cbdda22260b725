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
		Kernel:   true,
		Long:     true,
		Flow:     volumeFull,
		Mutation: "filesystem tools that answer OK and grow nothing",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "the filesystem tools lie", Hop: ledger.Host, Do: fault.Skip(),
				Match: func(c fault.Call) bool { return c.Op == "exec resize2fs" || c.Op == "exec xfs_growfs" }})
		},
	})
}

func volumeFull(ctx context.Context, l *sim.Lab) error {
	// The smallest that the backend has, from 32 MiB on.
	size := max(32<<20, l.Smallest())
	small, large := fmt.Sprint(size), fmt.Sprint(3*size)
	c := claim("data", "fast", small)
	piece := strings.Repeat("fill", int(size)/32)
	// fill writes files, of which ten are more than a small volume takes, and says
	// how many went in. The first is read back at each check; all of them would be
	// most of what the scenario does.
	fill := func(from int) (n int, err error) {
		for ; n < 10-from && err == nil; n++ {
			write := l.WriteUnsynced
			if n == 0 {
				write = l.Write
			}
			err = write(ctx, "app", fmt.Sprintf("/data/fill%d", from+n), piece)
		}
		return n, err
	}
	var free int64
	return steps(
		func() (err error) {
			if l.Backend() == sim.VSphere { // the other driver has no GetCapacity
				free, err = l.FreeSpace(ctx)
			}
			return err
		},
		func() error { return l.Create(ctx, c, pod("app", "", c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error {
			if free == 0 {
				return nil
			}
			now, err := l.FreeSpace(ctx)
			// The volume is thin: it takes nothing yet.
			if err == nil && (now > free || now < size) {
				err = fmt.Errorf("GetCapacity gives %d bytes after a volume of %d was made, %d before: %w", now, size, free, errUnexpected)
			}
			return err
		},
		func() error { return filesystemSize(l, ctx, "app", "/data", small) },
		func() error { return l.Write(ctx, "app", "/data/a", "before it was full") },
		func() error {
			n, err := fill(0)
			if !errors.Is(err, syscall.ENOSPC) || n < 4 {
				return fmt.Errorf("a volume of %d bytes takes %d files of an eighth of it, then gives %v, not ENOSPC: %w", size, n, err, errUnexpected)
			}
			return nil
		},
		func() error {
			u, err := l.Space(ctx, "app", "/data")
			if err == nil && (u.AvailableBytes > size/8 || u.UsedBytes < size/2) {
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
		func() error { return l.Expand(ctx, "data", large) },
		func() error { return l.BackendSize(ctx, "data", large) },
		func() error { return l.Create(ctx, pod("app", "", c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Expanded(ctx, "data", large) },
		func() error { return filesystemSize(l, ctx, "app", "/data", large) },
		func() error { return l.Expect(ctx, "app", "/data/a", "before it was full") },
		func() error { _, err := fill(8); return step(err, "after growing") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePVC(ctx, "data") },
		func() error { return l.Empty(ctx) },
	)
}

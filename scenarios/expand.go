package scenarios

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

var errUnexpected = errors.New("not as it must be")

func init() {
	noGrow := func(l *sim.Lab) {
		l.Inject(fault.Rule{Name: "the node forgets to grow", Hop: ledger.CSI, Op: "NodeExpandVolume", Do: fault.Skip()})
	}
	register(Scenario{
		Name:     "expand-online",
		Text:     "a volume grows while a pod writes to it, up to the filesystem",
		Labels:   []string{"expand"},
		Kernel:   true,
		Flow:     func(ctx context.Context, l *sim.Lab) error { return expandFlow(ctx, l, true) },
		Mutation: "a NodeExpandVolume that answers OK and grows nothing",
		Mutate:   noGrow,
	})
	register(Scenario{
		Name:     "expand-offline",
		Text:     "a volume grows while nothing uses it, and its filesystem when it is next mounted",
		Labels:   []string{"expand"},
		Kernel:   true,
		Flow:     func(ctx context.Context, l *sim.Lab) error { return expandFlow(ctx, l, false) },
		Mutation: "a NodeExpandVolume and a NodeStageVolume that leave the filesystem as small as it was",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "the filesystem tools lie", Hop: ledger.Host, Do: fault.Skip(),
				Match: func(c fault.Call) bool { return c.Op == "exec resize2fs" || c.Op == "exec xfs_growfs" }})
		},
	})
}

func expandFlow(ctx context.Context, l *sim.Lab, online bool) error {
	class, err := l.GrowableClass("fast", "fast-xfs")
	if err != nil && online {
		return sim.Skip("online growth: %v", err)
	}
	size, bigger := "512Mi", "1Gi" // mkfs.xfs refuses less than 300 MiB
	c := claim("growing", class, size)
	return steps(
		func() error { return l.Create(ctx, c, pod("app", "", c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/growing/a", "before it grew") },
		func() error {
			if online {
				return expand(ctx, l, "app", "growing", "/growing/a", bigger, false)
			}
			if err := l.DeletePod(ctx, "app"); err != nil {
				return err
			}
			if err := l.Detached(ctx, l.PVName("growing")); err != nil {
				return err
			}
			if err := l.Expand(ctx, "growing", bigger); err != nil {
				return err
			}
			if err := l.BackendSize(ctx, "growing", bigger); err != nil {
				return err
			}
			if err := l.Create(ctx, pod("app", "", c)); err != nil {
				return err
			}
			if _, err := l.Running(ctx, "app"); err != nil {
				return err
			}
			return step(l.Expanded(ctx, "growing", bigger), "after the pod started")
		},
		func() error { return filesystemSize(l, ctx, "app", "/growing", bigger) },
		func() error { return l.Expect(ctx, "app", "/growing/a", "before it grew") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePVC(ctx, "growing") },
		func() error { return l.Empty(ctx) },
	)
}

// expand grows a claim that a pod uses and sees that pod and data have stayed.
func expand(ctx context.Context, l *sim.Lab, podName, pvc, file, size string, isBlock bool) error {
	before, err := l.Read(ctx, podName, file, 8)
	if err != nil {
		return err
	}
	if !isBlock {
		if err := l.CanGrowOnline(pvc); err != nil {
			l.Note("online growth of %s is left out: %v", pvc, err)
			return nil
		}
	}
	return steps(
		func() error { return l.Expand(ctx, pvc, size) },
		func() error { return l.Expanded(ctx, pvc, size) },
		func() error { return l.BackendSize(ctx, pvc, size) },
		func() error { return step(l.Expect(ctx, podName, file, before), "after growing to %s", size) },
	)
}

// filesystemSize checks that a pod's filesystem has the size, less what a
// filesystem keeps to itself (a quarter at the most, of a small one).
func filesystemSize(l *sim.Lab, ctx context.Context, podName, mount, size string) error {
	q := resource.MustParse(size)
	got, err := l.FilesystemBytes(ctx, podName, mount)
	if err != nil {
		return err
	}
	if got < q.Value()*3/4 || got > q.Value() {
		return fmt.Errorf("the filesystem at %s has %d bytes, the volume %d: %w", mount, got, q.Value(), errUnexpected)
	}
	return nil
}

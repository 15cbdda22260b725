package sim_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/simtest"
)

// A pod's I/O without a path waits for 90 s, as HPE's no_path_retry has it, and
// then fails.
func TestIOWithoutAPathFailsAfterAWhile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lab := simtest.New(t, simtest.Bubble(), simtest.OnArray("iscsi"))
		ctx := hour(t)
		start(ctx, t, lab, "app", "node-1", "data")
		must(t, lab.Write(ctx, "app", "/data/a", "before"))
		lab.SAN().NodeCut("node-1", true)
		from := time.Now()
		if err := lab.Write(ctx, "app", "/data/b", "without a path"); err == nil {
			t.Error("a write without a path succeeds")
		}
		if d := time.Since(from); d < 85*time.Second || d > 95*time.Second {
			t.Errorf("it failed after %v", d)
		}
	})
}

// Who writes in a pod may leave when I/O waits without end; the write goes on, and
// neither it nor the lab's end waits for the other.
func TestIOWithoutAPathEndsForItsCaller(t *testing.T) {
	for _, back := range []bool{true, false} {
		bubble(t, func(t *testing.T) {
			lab := simtest.New(t, simtest.Bubble(), simtest.OnArray("iscsi"), simtest.With(func(o *sim.Options) { o.NoPathRetry = host.RetryForever }))
			ctx := hour(t)
			start(ctx, t, lab, "app", "node-1", "data")
			must(t, lab.Write(ctx, "app", "/data/a", "before"))
			lab.SAN().NodeCut("node-1", true)
			soon, cancel := context.WithTimeout(ctx, 10*time.Minute)
			defer cancel()
			if err := lab.Write(soon, "app", "/data/b", "late"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a write without a path: %v", err)
			}
			if back {
				lab.SAN().NodeCut("node-1", false)
				must(t, lab.Until(ctx, "the write is done", func() bool { return lab.Expect(ctx, "app", "/data/b", "late") == nil }))
			}
		})
	}
}

package sim_test

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/simtest"
)

// A node that was cut off still has its old mount after the volume was
// detached from its VM by force and attached elsewhere. What it writes there
// late must not reach the volume.
func TestLateWriteOfAFencedNode(t *testing.T) {
	for kind, hosts := range map[string]simtest.Option{"memory": simtest.MemoryHosts(), "real": simtest.RealHosts()} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			lab := simtest.New(t, hosts)
			ctx := bounded(t)
			start(ctx, t, lab, "app", "node-1", "data")
			must(t, lab.Write(ctx, "app", "/data/a", "first owner"))
			old, p := podPath(lab, "app", "data"), pod("app", "node-1", "data")
			late := func(name string) error {
				done := make(chan error, 1)
				go func() { done <- lab.Host("node-1").WriteAt(old+"/"+name, 0, []byte("LATE WRITE!"), true) }()
				select {
				case err := <-done:
					return err
				case <-time.After(10 * time.Second):
					t.Fatal("the late write hangs")
					return nil
				}
			}

			lab.Forget("node-1")
			must(t, lab.StopKubelet("node-1"))
			must(t, lab.DeleteNode(ctx, "node-1"))
			must(t, lab.Gone(ctx, p))
			start(ctx, t, lab, "app", "node-2", "data")
			if len(lab.Ledger.Entries(ledger.OnHop(ledger.VCenter, "CnsDetachVolume"))) == 0 {
				t.Fatal("the disk was not detached from the first VM")
			}
			must(t, lab.Expect(ctx, "app", "/data/a", "first owner"))
			must(t, lab.Write(ctx, "app", "/data/b", "second owner"))

			for _, name := range []string{"a", "b", "new"} {
				err := late(name)
				t.Logf("late write to %s: %v", name, err)
				if kind == "memory" && !errors.Is(err, syscall.EIO) {
					t.Errorf("the late write to %s gave %v, want EIO", name, err)
				}
			}
			check := func() {
				t.Helper()
				must(t, lab.Expect(ctx, "app", "/data/a", "first owner"))
				must(t, lab.Expect(ctx, "app", "/data/b", "second owner"))
				if s, err := lab.Read(ctx, "app", "/data/new", 1); err == nil {
					t.Errorf("a file of the fenced node is there: %q", s)
				}
				must(t, lab.Check(ctx))
			}
			check()
			// And from the medium, not from the second node's cache.
			must(t, lab.DeletePod(ctx, "app"))
			must(t, lab.Detached(ctx, lab.PVName("data")))
			start(ctx, t, lab, "app", "node-2", "data")
			check()
			end(ctx, t, lab, "app", "data")
		})
	}
}

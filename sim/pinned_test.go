package sim_test

import (
	"context"
	"testing"
	"time"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/simtest"
)

// A driver that pins the certificate works by its SHA-1, and by its SHA-256
// once its configuration was changed under it: without a restart, with another
// session.
func TestPinnedCertificate(t *testing.T) {
	t.Parallel()
	lab := simtest.New(t, simtest.MemoryHosts(), simtest.With(func(o *sim.Options) { o.PinCertificate = true }))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	start(ctx, t, lab, "app", "node-1", "data")
	first := lab.VCenter().SessionList()
	must(t, lab.Redeploy(ctx))
	must(t, lab.Until(ctx, "the driver has taken the new configuration", func() bool {
		for _, s := range lab.VCenter().SessionList() {
			for _, old := range first {
				if s.Key == old.Key {
					return false
				}
			}
		}
		return true
	}))
	start(ctx, t, lab, "user", "node-2", "more")
	if n := lab.Starts("driver-controller"); n != 1 {
		t.Errorf("the driver was started %d times", n)
	}
	must(t, lab.DeletePod(ctx, "user"))
	must(t, lab.DeletePVC(ctx, "more"))
	end(ctx, t, lab, "app", "data")
}

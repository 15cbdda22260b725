package sim_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/simtest"
)

// Each component crashes while a pod uses a volume, with its state and without,
// and the life goes on to its end.
func TestEachComponentCrashes(t *testing.T) {
	eachBackend(t, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
		start(ctx, t, lab, "app", "node-1", "data")
		must(t, lab.Write(ctx, "app", "/data/a", "before"))
		for _, name := range lab.Components() {
			lab.Crash(name)
			time.Sleep(30 * time.Second)
			must(t, lab.CrashLosingState(name))
			time.Sleep(30 * time.Second)
			if n := lab.Starts(name); n != 0 && n < 3 { // sidecars count none
				t.Errorf("%s was started %d times", name, n)
			}
		}
		must(t, lab.NodesReady(ctx))
		start(ctx, t, lab, "second", "node-2", "more")
		must(t, lab.DeletePod(ctx, "second"))
		must(t, lab.DeletePVC(ctx, "more"))
		must(t, lab.Expect(ctx, "app", "/data/a", "before"))
		end(ctx, t, lab, "app", "data")
	})
}

func TestStoppedComponentStaysDown(t *testing.T) {
	eachBackend(t, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
		must(t, lab.Stop(storage(lab)))
		must(t, lab.Create(ctx, claim("data")))
		if _, err := lab.Bound(soon(t), "data"); err == nil {
			t.Errorf("bound without a %s", storage(lab))
		}
		must(t, lab.StartAgain(storage(lab)))
		start(ctx, t, lab, "app", "node-1", "data")
		end(ctx, t, lab, "app", "data")
		if err := lab.Stop("nobody"); err == nil || !strings.Contains(err.Error(), "driver-controller") {
			t.Error(err)
		}
	})
}

// One that is stopped and started again at the same moment comes back at once, as
// any that is started by hand: the delay of a crash loop is for crashes.
func TestStartedAgainAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lab := simtest.New(t, simtest.Bubble())
		ctx := hour(t)
		time.Sleep(time.Second)
		took := func(name string, end func()) time.Duration {
			before, at := lab.Starts(name), time.Now()
			end()
			must(t, lab.Until(ctx, name+" is back", func() bool { return lab.Starts(name) == before+1 }))
			return time.Since(at)
		}
		for _, name := range []string{"driver-controller", "driver@node-1", "registrar@node-1", "kubelet@node-1"} {
			if d := took(name, func() { must(t, lab.Stop(name)); must(t, lab.StartAgain(name)) }); d > time.Second {
				t.Errorf("%s was stopped and started at once, and took %v", name, d)
			}
			time.Sleep(time.Minute)
			if d := took(name, func() { lab.Crash(name) }); d < 10*time.Second || d > 12*time.Second {
				t.Errorf("%s crashed, and was back after %v", name, d)
			}
			time.Sleep(time.Minute)
		}
		must(t, lab.NodesReady(ctx))
	})
}

// Tasks that wait when a vCenter goes down are done or not by choice; nobody
// can ask for them, and no volume is made twice.
func TestVCenterRestartsWithTasks(t *testing.T) {
	for name, lose := range map[string]bool{"tasks go on": false, "tasks are lost": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				lab := simtest.New(t, simtest.Bubble())
				ctx := hour(t)
				time.Sleep(time.Second)
				hold := lab.VCenter().HoldTasks("CnsCreateVolume")
				must(t, lab.Create(ctx, claim("data")))
				_, err := hold.Wait(ctx)
				must(t, err)
				if lose {
					must(t, lab.CrashLosingState("vcenter"))
				} else {
					lab.Crash("vcenter")
				}
				if n := len(lab.VCenter().TaskList()); n != 0 {
					t.Errorf("%d tasks are known after the crash", n)
				}
				if n := len(lab.VCenter().SessionList()); n != 0 {
					t.Errorf("%d sessions are left", n)
				}
				hold.Release()
				time.Sleep(time.Second)
				want := 1
				if lose {
					want = 0
				}
				if n := lab.BackendVolumes(); n != want {
					t.Errorf("%d volumes before the vCenter is back, want %d", n, want)
				}
				start(ctx, t, lab, "app", "node-1", "data")
				if n := lab.BackendVolumes(); n != 1 {
					t.Errorf("%d volumes for one claim", n)
				}
				end(ctx, t, lab, "app", "data")
			})
		})
	}
}

// One controller node of an array goes: the pod's I/O goes over the other.
func TestArrayNodeGoes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lab := simtest.New(t, simtest.OnArray("iscsi"), simtest.Bubble())
		ctx := hour(t)
		time.Sleep(time.Second)
		start(ctx, t, lab, "app", "node-1", "data")
		paths := lab.SAN().LoggedIn("node-1", "array1")
		must(t, lab.Stop("array1:0"))
		if n := lab.SAN().LoggedIn("node-1", "array1"); n >= paths || n == 0 {
			t.Errorf("%d of %d paths are left, want some", n, paths)
		}
		must(t, lab.Write(ctx, "app", "/data/a", "over the other node"))
		must(t, lab.Expect(ctx, "app", "/data/a", "over the other node"))
		must(t, lab.StartAgain("array1:0"))
		must(t, lab.Until(ctx, "all paths are back", func() bool { return lab.SAN().LoggedIn("node-1", "array1") == paths }))
		end(ctx, t, lab, "app", "data")
	})
}

// The driver distrusts a certificate that it was not given.
func TestCertificateChanges(t *testing.T) {
	lab := simtest.New(t, simtest.MemoryHosts())
	ctx := bounded(t)
	must(t, lab.Create(ctx, claim("first"))) // the driver is there, with the old one
	_, err := lab.Bound(ctx, "first")
	must(t, err)
	old := lab.VCenter().Thumbprint()
	must(t, lab.ReplaceCertificates())
	if lab.VCenter().Thumbprint() == old {
		t.Error("it is the same certificate")
	}
	must(t, lab.Create(ctx, claim("data")))
	pvc, err := lab.PVC("data")
	must(t, err)
	must(t, lab.HasEvent(ctx, pvc, "ProvisioningFailed", "certificate"))
	must(t, lab.Redeploy(ctx))
	must(t, lab.DeletePVC(ctx, "first"))
	start(ctx, t, lab, "app", "node-1", "data")
	end(ctx, t, lab, "app", "data")
}

func TestNoCertificateInABubble(t *testing.T) {
	bubble(t, func(t *testing.T) {
		if err := simtest.New(t, simtest.Bubble()).ReplaceCertificates(); !sim.IsSkip(err) {
			t.Error(err)
		}
	})
}

package sim_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/simtest"
)

// restage takes a pod down and starts it again on a node, so that it reads
// from the medium.
func restage(ctx context.Context, t *testing.T, lab *sim.Lab, name, node, pvc string) {
	t.Helper()
	must(t, lab.DeletePod(ctx, name))
	must(t, lab.Detached(ctx, lab.PVName(pvc)))
	start(ctx, t, lab, name, node, pvc)
}

// written is a pod on node-1 that has written a file to its claim "data".
func written(ctx context.Context, t *testing.T, lab *sim.Lab) (volume string) {
	t.Helper()
	start(ctx, t, lab, "app", "node-1", "data")
	must(t, lab.Write(ctx, "app", "/data/a", "content"))
	return lab.VolumeID("data")
}

func TestFlippedBits(t *testing.T) {
	eachBackend(t, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
		v := written(ctx, t, lab)
		must(t, lab.DeletePod(ctx, "app"))
		must(t, lab.Detached(ctx, lab.PVName("data")))
		// The first byte is the filesystem's.
		must(t, lab.FlipBits(v, 20, 0xff))
		must(t, lab.Create(ctx, pod("app", "node-2", "data")))
		if _, err := lab.Running(soon(t), "app"); err == nil {
			t.Error("a spoiled filesystem was mounted")
		}
		must(t, lab.Broken(ctx)) // nobody has formatted it
		must(t, lab.FlipBits(v, 20, 0xff))
		_, err := lab.Running(ctx, "app")
		must(t, err)
		must(t, lab.Expect(ctx, "app", "/data/a", "content"))
		end(ctx, t, lab, "app", "data")
		if err := lab.FlipBits(v, 20, 1); err == nil {
			t.Error("flipped a bit of a volume that is gone")
		}
	})
}

// What a node can't read or misses it does not format.
func TestUnreadableDevices(t *testing.T) {
	for name, spoil := range map[string]func(lab *sim.Lab, v string) (func(), error){
		"reads fail":         func(lab *sim.Lab, v string) (func(), error) { return lab.FailIO(v, "node-2", 0, 0, disk.Reads) },
		"all nodes":          func(lab *sim.Lab, v string) (func(), error) { return lab.FailIO(v, "", 0, 4096, disk.ReadsAndWrites) },
		"reads give nothing": func(lab *sim.Lab, v string) (func(), error) { return lab.SilentDevice(v, "node-2") },
		"the paths are down": func(lab *sim.Lab, v string) (func(), error) { return lab.CutStorage("node-2") },
		"the device is late": func(lab *sim.Lab, v string) (func(), error) { return lab.LateDevices("node-2", 2*time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			eachBackend(t, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
				v := written(ctx, t, lab)
				must(t, lab.DeletePod(ctx, "app"))
				must(t, lab.Detached(ctx, lab.PVName("data")))
				heal, err := spoil(lab, v)
				must(t, err)
				must(t, lab.Create(ctx, pod("app", "node-2", "data")))
				if _, err := lab.Running(soon(t), "app"); err == nil {
					t.Error("the pod runs")
				}
				heal()
				_, err = lab.Running(ctx, "app")
				must(t, err)
				must(t, lab.Expect(ctx, "app", "/data/a", "content"))
				must(t, lab.Check(ctx))
				end(ctx, t, lab, "app", "data")
			})
		})
	}
}

// A device that reads as zeros looks new, so that a driver without a memory of
// its volumes formats it: the lab sees that the volume held data.
func TestBlankDevice(t *testing.T) {
	eachBackend(t, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
		v := written(ctx, t, lab)
		must(t, lab.DeletePod(ctx, "app"))
		must(t, lab.Detached(ctx, lab.PVName("data")))
		heal, err := lab.BlankDevice(v, "node-2")
		must(t, err)
		must(t, lab.Create(ctx, pod("app", "node-2", "data")))
		_, _ = lab.Running(soon(t), "app")
		heal()
		formats := lab.Ledger.Entries(ledger.OnHop(ledger.Host), func(e ledger.Entry) bool { return e.Node == "node-2" && len(e.Op) > 10 && e.Op[:10] == "exec mkfs." })
		var broken *sim.InvariantError
		if err := lab.Broken(ctx); (len(formats) > 0) != errors.As(err, &broken) {
			t.Errorf("%d times formatted, and the invariants say %v", len(formats), err)
		}
	})
}

// A write that the medium refuses is told to the pod, and a filesystem that the
// kernel made read-only takes nothing more until it is mounted anew.
func TestFailingWrites(t *testing.T) {
	eachBackend(t, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
		v := written(ctx, t, lab)
		heal, err := lab.FailIO(v, "node-1", 0, 0, disk.Writes)
		must(t, err)
		if err := lab.Write(ctx, "app", "/data/b", "lost"); err == nil {
			t.Error("the write succeeded")
		}
		heal()
		// A filesystem that could not be written is not to be trusted before it is
		// mounted anew.
		restage(ctx, t, lab, "app", "node-1", "data")
		must(t, lab.Expect(ctx, "app", "/data/a", "content"))
		heal, err = lab.MakeReadOnly(v, "node-1")
		must(t, err)
		if err := lab.Write(ctx, "app", "/data/c", "refused"); err == nil {
			t.Error("wrote to what is read-only")
		}
		must(t, lab.Expect(ctx, "app", "/data/a", "content"))
		heal()
		must(t, lab.Write(ctx, "app", "/data/c", "again"))
		_, err = lab.MakeReadOnly(v, "node-1")
		must(t, err)
		restage(ctx, t, lab, "app", "node-1", "data")
		must(t, lab.Write(ctx, "app", "/data/c", "after a new mount"))
		if _, err := lab.MakeReadOnly(v, "node-2"); err == nil {
			t.Error("made read-only what is not there")
		}
		end(ctx, t, lab, "app", "data")
	})
}

// The names or LUNs of two devices are exchanged. What is mounted by its device
// goes on; over a LUN that was exchanged a node reads the other's data, as in
// life.
func TestWrongDevice(t *testing.T) {
	eachBackend(t, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
		v := written(ctx, t, lab)
		start(ctx, t, lab, "second", "node-1", "more")
		must(t, lab.Write(ctx, "second", "/more/a", "other's"))
		heal, err := lab.WrongDevice(ctx, v, lab.VolumeID("more"), "node-1")
		must(t, err)
		got, err := lab.Read(ctx, "app", "/data/a", 7)
		if wrong := err != nil || got != "content"; wrong != (lab.Backend() == sim.HPE) {
			t.Errorf("the pod reads %q, %v", got, err)
		}
		heal()
		must(t, lab.Expect(ctx, "app", "/data/a", "content"))
		must(t, lab.Expect(ctx, "second", "/more/a", "other's"))
		must(t, lab.DeletePod(ctx, "second"))
		must(t, lab.DeletePVC(ctx, "more"))
		end(ctx, t, lab, "app", "data")
	})
}

// A LUN that a node still has devices for goes to another volume.
func TestReusedLUN(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lab := simtest.New(t, simtest.OnArray("iscsi"), simtest.Bubble())
		ctx := hour(t)
		time.Sleep(time.Second)
		v := written(ctx, t, lab)
		start(ctx, t, lab, "second", "node-1", "more")
		other := lab.VolumeID("more")
		luns := func() map[string]int {
			out := map[string]int{}
			for _, e := range lab.LUNs("node-1") {
				out[e.VolumeID] = e.LUN
			}
			return out
		}
		before := luns()
		must(t, lab.ReuseLUN(v, other, "node-1"))
		if now := luns(); now[other] != before[v] || len(now) != 1 {
			t.Errorf("LUNs %v, before %v", now, before)
		}
		// The old device answers for the other, and nobody has looked.
		if got, err := lab.Read(ctx, "app", "/data/a", 7); err == nil && got == "content" {
			t.Errorf("the pod reads %q", got)
		}
	})
}

func TestLateDeviceComes(t *testing.T) {
	eachBackend(t, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
		heal, err := lab.LateDevices("", 5*time.Second)
		must(t, err)
		began := time.Now()
		start(ctx, t, lab, "app", "node-1", "data")
		if d := time.Since(began); d < 5*time.Second {
			t.Errorf("the pod runs after %v", d)
		}
		heal()
		must(t, lab.Check(ctx))
		end(ctx, t, lab, "app", "data")
		if slices.Contains(lab.Host("node-1").Disks(), "") {
			t.Error("a disk without a name")
		}
	})
}

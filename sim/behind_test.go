package sim_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/simtest"
)

// A volume goes behind the driver's back. Its claim can be deleted all the same.
func TestLostVolume(t *testing.T) {
	eachBackend(t, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
		v := written(ctx, t, lab)
		must(t, lab.LoseVolume(ctx, v))
		if _, err := lab.Read(ctx, "app", "/data/a", 1); err == nil && lab.Backend() == sim.HPE {
			t.Error("a volume that is gone was read")
		}
		must(t, lab.DeletePod(ctx, "app"))
		must(t, lab.DeletePVC(ctx, "data"))
		if lab.Backend() == sim.VSphere { // on arrays the node's host entry stays until its next export goes
			must(t, lab.Empty(ctx))
		}
		if err := lab.LoseVolume(ctx, v); err == nil {
			t.Error("lost a volume that is gone")
		}
	})
}

func TestUnregisteredVolume(t *testing.T) {
	eachBackend(t, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
		v := written(ctx, t, lab)
		must(t, lab.DeletePod(ctx, "app"))
		must(t, lab.Detached(ctx, lab.PVName("data")))
		err := lab.UnregisterVolume(ctx, v)
		if lab.Backend() == sim.HPE {
			if !sim.IsSkip(err) {
				t.Error(err)
			}
			return
		}
		must(t, err)
		if lab.OnBackend(v) {
			t.Error("CNS has it still")
		}
		must(t, lab.DeletePVC(ctx, "data"))
	})
}

func TestLostSnapshot(t *testing.T) {
	eachBackend(t, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
		written(ctx, t, lab)
		s, err := lab.TakeSnapshot(ctx, "cut", "data", "snap")
		must(t, err)
		id := lab.SnapshotHandle(s.Name)
		if !lab.OnBackend(id) {
			t.Fatalf("no snapshot %q", id)
		}
		must(t, lab.LoseSnapshot(ctx, id))
		if lab.OnBackend(id) {
			t.Error("the snapshot is there")
		}
		must(t, lab.DeleteSnapshot(ctx, "cut"))
		end(ctx, t, lab, "app", "data")
	})
}

// A snapshot by hand may stand against the deletion of its volume, until it goes.
func TestSnapshotByHand(t *testing.T) {
	eachBackend(t, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
		v := written(ctx, t, lab)
		must(t, lab.SnapshotByHand(ctx, v, "by-hand"))
		must(t, lab.DeletePod(ctx, "app"))
		ids := lab.SnapshotsOf(v)
		if len(ids) != 1 {
			t.Fatalf("snapshots %q", ids)
		}
		must(t, lab.LoseSnapshot(ctx, ids[0]))
		must(t, lab.DeletePVC(ctx, "data"))
		must(t, lab.Empty(ctx))
	})
}

func TestPulledVolume(t *testing.T) {
	eachBackend(t, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
		v := written(ctx, t, lab)
		must(t, lab.PullVolume(ctx, v, "node-1"))
		if err := lab.Write(ctx, "app", "/data/b", "x"); err == nil {
			t.Error("wrote to what was pulled")
		}
		restage(ctx, t, lab, "app", "node-1", "data")
		must(t, lab.Expect(ctx, "app", "/data/a", "content"))
		end(ctx, t, lab, "app", "data")
		if err := lab.PullVolume(ctx, v, "node-9"); err == nil || !strings.Contains(err.Error(), "node-2") {
			t.Error(err)
		}
	})
}

func TestFilledStorage(t *testing.T) {
	eachBackend(t, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
		heal, err := lab.FillStorage(1 << 20)
		must(t, err)
		must(t, lab.Create(ctx, claim("data")))
		if _, err := lab.Bound(soon(t), "data"); err == nil && lab.Backend() == sim.VSphere {
			t.Error("a volume was made without space") // on arrays volumes are thin
		}
		heal()
		start(ctx, t, lab, "app", "node-1", "data")
		end(ctx, t, lab, "app", "data")
	})
}

// What the storage's administrators forbid stops new volumes, and heals.
func TestStorageClosed(t *testing.T) {
	for name, close := range map[string]func(*sim.Lab) (func(), error){
		"maintenance": func(l *sim.Lab) (func(), error) { return l.MaintainDatastore("") },
		"suspension":  func(l *sim.Lab) (func(), error) { return l.SuspendDatastore("") },
		"account":     func(l *sim.Lab) (func(), error) { l.KillSessions(); return l.LockAccount() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				lab := simtest.New(t, simtest.Bubble())
				ctx := hour(t)
				time.Sleep(time.Second)
				heal, err := close(lab)
				must(t, err)
				must(t, lab.Create(ctx, claim("data")))
				if _, err := lab.Bound(soon(t), "data"); err == nil {
					t.Error("a volume was made")
				}
				heal()
				start(ctx, t, lab, "app", "node-1", "data")
				end(ctx, t, lab, "app", "data")
			})
		})
	}
}

func TestVMBehindTheBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lab := simtest.New(t, simtest.Bubble())
		ctx := hour(t)
		time.Sleep(time.Second)
		written(ctx, t, lab)
		at := lab.VCenter().HostOf("node-1")
		must(t, lab.MoveVM("node-1"))
		if now := lab.VCenter().HostOf("node-1"); now == at {
			t.Errorf("the VM is on %s still", now)
		}
		must(t, lab.Expect(ctx, "app", "/data/a", "content"))
		// A VM with a snapshot does not let its volumes go.
		heal, err := lab.SnapshotVM("node-1")
		must(t, err)
		must(t, lab.DeletePod(ctx, "app"))
		if err := lab.Detached(soon(t), lab.PVName("data")); err == nil {
			t.Error("detached from a VM that has a snapshot")
		}
		heal()
		must(t, lab.DeletePVC(ctx, "data"))
		must(t, lab.Empty(ctx))
		if err := lab.MoveVM("node-9"); err == nil {
			t.Error("moved nobody")
		}
	})
}

func TestPurgedTasks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lab := simtest.New(t, simtest.Bubble())
		ctx := hour(t)
		time.Sleep(time.Second)
		hold := lab.VCenter().HoldTasks("CnsCreateVolume")
		must(t, lab.Create(ctx, claim("data")))
		_, err := hold.Wait(ctx)
		must(t, err)
		must(t, lab.PurgeTasks())
		hold.Release()
		start(ctx, t, lab, "app", "node-1", "data")
		if n := lab.BackendVolumes(); n != 1 {
			t.Errorf("%d volumes for one claim", n)
		}
		end(ctx, t, lab, "app", "data")
	})
}

func TestHostAndLUNBehindTheBack(t *testing.T) {
	for _, protocol := range []string{"iscsi", "fc"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				lab := simtest.New(t, simtest.OnArray(protocol), simtest.Bubble())
				ctx := hour(t)
				time.Sleep(time.Second)
				v := written(ctx, t, lab)
				lun := lab.LUNs("node-1")[0].LUN
				must(t, lab.RenumberLUN(v, "node-1"))
				if now := lab.LUNs("node-1")[0].LUN; now == lun {
					t.Errorf("LUN is %d still", now)
				}
				restage(ctx, t, lab, "app", "node-1", "data")
				must(t, lab.Expect(ctx, "app", "/data/a", "content"))
				must(t, lab.RemoveHostEntry("node-1"))
				if _, ok := lab.ArrayHost("node-1"); ok || len(lab.LUNs("node-1")) > 0 {
					t.Error("the host is there")
				}
				restage(ctx, t, lab, "app", "node-1", "data")
				must(t, lab.Expect(ctx, "app", "/data/a", "content"))
				must(t, lab.RenameVolume(v, "somebody-elses"))
				must(t, lab.DeletePod(ctx, "app"))
			})
		})
	}
}

// The subjects of calls lead to the volume and the node.
func TestResolve(t *testing.T) {
	eachBackend(t, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
		v := written(ctx, t, lab)
		for _, s := range []string{v, sim.Namespace + "/data", lab.PVName("data")} {
			if id, ok := lab.ResolveVolume(s); !ok || id != v {
				t.Errorf("%q is %q, %v", s, id, ok)
			}
		}
		for _, s := range []string{"node-1", "kubelet@node-1"} {
			if n, ok := lab.ResolveNode(s); !ok || n != "node-1" {
				t.Errorf("%q is %q, %v", s, n, ok)
			}
		}
		for _, s := range []string{"", "nothing"} {
			if id, ok := lab.ResolveVolume(s); ok {
				t.Errorf("%q is %q", s, id)
			}
		}
	})
}

package san_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/csilab/csilab/driver/node/san"
)

// A volume that is still mounted was taken from the node by force, and its LUN
// number is given to another one. No byte of either reaches the other.
func TestLUNReusedUnderAMountedVolume(t *testing.T) {
	protocols(t, func(t *testing.T, r *rig) {
		r.create(vol, 1024)
		r.create(vol2, 1024)
		lun := r.export(vol)
		s, c := r.Service, filesystem("ext4")
		r.must(r.stage(s, vol, c))
		r.must(r.publish(s, vol, "p1", c))
		r.write(targetOf(vol, "p1")+"/data", "first")
		before := r.begins(vol, 65536)
		r.unexport(vol)
		if got := r.export(vol2); got != lun {
			t.Fatalf("LUN %d, was %d", got, lun)
		}

		r.must(r.stage(s, vol2, c))
		r.must(r.publish(s, vol2, "p2", c))
		r.write(targetOf(vol2, "p2")+"/data", "second")
		// What the first pod still writes fails, and is in neither.
		if err := r.host.WriteAt(targetOf(vol, "p1")+"/data", 0, []byte("third"), true); err == nil {
			t.Error("a write to the volume that is gone succeeds")
		}
		if got := r.read(targetOf(vol2, "p2")+"/data", 6); got != "second" {
			t.Errorf("the second volume has %q", got)
		}
		if got := r.begins(vol, 65536); got != before {
			t.Error("the first volume was written to")
		}
		r.must(r.unpublish(s, vol2, "p2"))
		r.must(r.unstage(s, vol2))
		r.must(r.unpublish(s, vol, "p1"))
		r.must(r.unstage(s, vol))
		r.clean()
	})
}

// What a driver without a release left behind: paths, with and without their
// map, whose LUN is another volume's by now.
func TestLUNReusedUnderStalePaths(t *testing.T) {
	for _, mapped := range []bool{true, false} {
		protocols(t, func(t *testing.T, r *rig) {
			r.create(vol, 1024)
			r.create(vol2, 1024)
			r.export(vol)
			s, c := r.Service, filesystem("xfs")
			r.must(r.stage(s, vol, c))
			r.write(stagingOf(vol)+"/data", "first")
			r.must(r.host.Mounter().Unmount(stagingOf(vol)))
			if !mapped {
				out, err := r.host.Exec().Command("multipath", "-f", "mpatha").CombinedOutput()
				if err != nil {
					t.Fatal(string(out))
				}
			}
			stale := len(r.disks())
			if stale == 0 {
				t.Fatal("no stale path")
			}
			r.unexport(vol)
			r.export(vol2)
			r.must(r.stage(s, vol2, c))
			r.write(stagingOf(vol2)+"/data", "second")
			if d := r.mounts(); len(d) != 1 || d[0].Device == "/dev/mapper/mpatha" {
				t.Errorf("mounted: %v", d)
			}
			// The first is exported again, at another number.
			r.export(vol)
			r.must(r.stage(s, vol, c))
			if got := r.read(stagingOf(vol)+"/data", 5); got != "first" {
				t.Errorf("the first volume has %q", got)
			}
			if got := r.read(stagingOf(vol2)+"/data", 6); got != "second" {
				t.Errorf("the second volume has %q", got)
			}
			r.must(r.unstage(s, vol))
			r.must(r.unstage(s, vol2))
			r.clean()
		})
	}
}

// The volume's own stale paths are at a LUN that is another's now: the map would
// have both.
func TestLUNMoved(t *testing.T) {
	protocols(t, func(t *testing.T, r *rig) {
		r.create(vol, 1024)
		r.create(vol2, 1024)
		old := r.export(vol)
		s, c := r.Service, filesystem("ext4")
		r.must(r.stage(s, vol, c))
		r.write(stagingOf(vol)+"/data", "first")
		r.must(r.host.Mounter().Unmount(stagingOf(vol)))
		r.unexport(vol)
		r.export(vol2)
		if now := r.export(vol); now == old {
			t.Fatalf("LUN %d again", now)
		}
		r.must(r.stage(s, vol, c))
		r.write(stagingOf(vol)+"/data", "third")
		if got := r.begins(vol2, 4096); got != "" {
			t.Error("the second volume was written to")
		}
		r.must(r.stage(s, vol2, c))
		r.must(r.unstage(s, vol2))
		if got := r.read(stagingOf(vol)+"/data", 5); got != "third" {
			t.Errorf("the first volume has %q", got)
		}
		r.must(r.unstage(s, vol))
		r.clean()
	})
}

// The controller says a LUN that the volume isn't at (35): nothing is used, and
// once the context is right it works.
func TestWrongLUN(t *testing.T) {
	protocols(t, func(t *testing.T, r *rig) {
		r.create(vol, 1024)
		r.create(vol2, 1024)
		r.export(vol2)
		r.export(vol)
		right := r.contexts[vol]
		wrong := r.published(vol)
		wrong["lunId"] = r.contexts[vol2]["lunId"]
		r.contexts[vol] = wrong
		s, c := r.Service, filesystem("ext4")
		r.code(r.stage(s, vol, c), codes.Unavailable, "LUN")
		r.contexts[vol] = right
		r.must(r.stage(s, vol, c))
		r.write(stagingOf(vol)+"/data", "first")
		if got := r.begins(vol2, 4096); got != "" {
			t.Error("the other volume was written to")
		}
		// The other one's, with a path that a scan for the first has left.
		r.must(r.stage(s, vol2, c))
		r.must(r.unstage(s, vol))
		r.must(r.unstage(s, vol2))
		r.clean()
	})
}

// The array moved the volume behind the controller's back while it was staged.
func TestRenumbered(t *testing.T) {
	protocols(t, func(t *testing.T, r *rig) {
		r.create(vol, 1024)
		r.export(vol)
		s, c := r.Service, filesystem("ext4")
		r.must(r.stage(s, vol, c))
		r.write(stagingOf(vol)+"/data", "first")
		r.must(r.unstage(s, vol))
		r.must(r.array(1).RenumberLUN(vv(vol), "worker-1", 9))
		r.code(r.stage(s, vol, c), codes.Unavailable)
		r.contexts[vol] = r.published(vol)
		r.must(r.stage(s, vol, c))
		if got := r.read(stagingOf(vol)+"/data", 5); got != "first" {
			t.Errorf("reads %q", got)
		}
		r.must(r.unstage(s, vol))
		r.clean()
	})
}

// What a node has in its memory for a volume that was taken from it by force is
// written at the unmount, or when the map goes: not into the volume that has the
// LUN by then.
func TestUnsyncedWritesAtTheEnd(t *testing.T) {
	for name, c := range map[string]*csi.VolumeCapability{"filesystem": filesystem("ext4"), "block": block(writer)} {
		t.Run(name, func(t *testing.T) {
			protocols(t, func(t *testing.T, r *rig) {
				r.create(vol, 1024)
				r.create(vol2, 1024)
				lun := r.export(vol)
				s := r.Service
				r.must(r.stage(s, vol, c))
				r.must(r.publish(s, vol, "p1", c))
				p := targetOf(vol, "p1")
				if c.GetMount() != nil {
					p += "/data"
				}
				r.must(r.host.WriteAt(p, 0, []byte("first"), false))
				r.unexport(vol)
				if got := r.export(vol2); got != lun {
					t.Fatalf("LUN %d, was %d", got, lun)
				}
				r.must(r.unpublish(s, vol, "p1"))
				r.must(r.unstage(s, vol))
				if got := r.begins(vol2, 1<<20); got != "" {
					t.Error("the second volume was written to")
				}
				r.must(r.stage(s, vol2, c))
				r.must(r.unstage(s, vol2))
				r.clean()
			})
		})
	}
}

// A pod that comes to a volume that was staged before its LUN was another's.
func TestPublishAfterTheLUNIsAnothers(t *testing.T) {
	protocols(t, func(t *testing.T, r *rig) {
		r.create(vol, 1024)
		r.create(vol2, 1024)
		r.export(vol)
		s, c := r.Service, block(writer)
		r.must(r.stage(s, vol, c))
		r.unexport(vol)
		r.export(vol2)
		r.code(r.publish(s, vol, "p1", c), codes.Unavailable)
		r.must(r.unstage(s, vol))
		r.clean()
	})
}

// Between calls nobody tells the node that a volume was taken from it: with a
// monitor its paths go soon after its LUN is another volume's, and the volumes
// that it has keep theirs.
func TestMonitor(t *testing.T) {
	protocols(t, func(t *testing.T, r *rig) {
		r.create(vol, 1024)
		r.create(vol2, 1024)
		lun := r.export(vol)
		c := filesystem("ext4")
		r.must(r.stage(r.Service, vol, c))
		r.write(stagingOf(vol)+"/data", "first")
		disks := len(r.disks())
		cfg := r.cfg
		cfg.Host, cfg.NodeName = r.host, "worker-1"
		monitor, err := san.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var done sync.WaitGroup
		done.Go(func() { monitor.Monitor(ctx, 90*time.Second) })
		time.Sleep(10 * time.Minute)
		if n := len(r.disks()); n != disks {
			t.Errorf("%d of %d paths are left", n, disks)
		}
		r.unexport(vol)
		if got := r.export(vol2); got != lun {
			t.Fatalf("LUN %d, was %d", got, lun)
		}
		before := r.begins(vol2, 65536)
		time.Sleep(2 * time.Minute)
		if n := len(r.disks()); n != 0 {
			t.Errorf("%d paths that lead to another volume are left", n)
		}
		if err := r.host.WriteAt(stagingOf(vol)+"/data", 0, []byte("third"), true); err == nil {
			t.Error("a write to the volume that is gone succeeds")
		}
		if got := r.begins(vol2, 65536); got != before {
			t.Error("the other volume was written to")
		}
		cancel()
		done.Wait()
		r.must(r.unstage(r.Service, vol))
		r.clean()
	})
}

package san_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/csilab/csilab/driver/node"
	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/host/scsi"
)

func TestMain(m *testing.M) {
	host.Main()
	os.Exit(m.Run())
}

// The same on this machine's kernel, with its mkfs, mount and page cache.
func TestRealNode(t *testing.T) {
	if err := host.RealSupported(); err != nil {
		t.Skip(err)
	}
	for _, protocol := range []string{"iscsi", "fc"} {
		t.Run(protocol, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "csi")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			disks, err := disk.NewFiles(filepath.Join(dir, "d"))
			if err != nil {
				t.Fatal(err)
			}
			r := newRigOn(t, protocol, 1, disks, func(s scsi.SAN, a scsi.Adapters) (host.Host, error) {
				return host.NewReal(context.Background(), host.RealConfig{Name: "worker-1", Dir: filepath.Join(dir, "n"), SAN: s, Adapters: a})
			})
			r.cfg.Wait = 5 * time.Second
			realLife(r)
		})
	}
}

func realLife(r *rig) {
	r.create(vol, 256)
	r.create(vol2, 256)
	r.export(vol)
	s, c := r.service(r.host), filesystem("ext4")
	r.must(r.host.MkdirAll(stagingOf(vol), 0o750))
	r.must(r.stage(s, vol, c))
	r.must(r.publish(s, vol, "p1", c))
	r.write(targetOf(vol, "p1")+"/data", "first")
	r.must(r.unpublish(s, vol, "p1"))
	r.must(r.unstage(s, vol))
	r.clean()
	if r.protocol == "fc" {
		realLoss(r, s)
		return
	}

	// Its LUN is another's, while it is mounted: nothing of either is in the other.
	r.must(r.stage(s, vol, c))
	r.unexport(vol)
	r.export(vol2)
	b := block(writer)
	r.must(r.stage(s, vol2, b))
	r.must(r.publish(s, vol2, "p2", b))
	r.write(targetOf(vol2, "p2"), "second")
	if err := r.host.WriteAt(stagingOf(vol)+"/data", 0, []byte("third"), true); err == nil {
		r.t.Error("a write to the volume that is gone succeeds")
	}
	if got := r.begins(vol2, 6); got != "second" {
		r.t.Errorf("the second volume begins with %q", got)
	}
	r.code(r.unstage(s, vol2), codes.FailedPrecondition, "still published")
	r.must(r.unpublish(s, vol2, "p2"))
	r.must(r.unstage(s, vol2))
	r.unexport(vol2)
	r.must(r.unstage(s, vol))
	r.clean()
}

// realLoss: all paths go while the volume is mounted, and come back.
func realLoss(r *rig, s *node.Service) {
	c := filesystem("ext4")
	r.must(r.stage(s, vol, c))
	if got := r.read(stagingOf(vol)+"/data", 5); got != "first" {
		r.t.Errorf("reads %q", got)
	}
	r.allPorts(true)
	r.must(r.unstage(s, vol))
	r.clean()
	r.allPorts(false)
	r.must(r.stage(s, vol, c))
	if got := r.read(stagingOf(vol)+"/data", 5); got != "first" {
		r.t.Errorf("reads %q", got)
	}
	r.must(r.unstage(s, vol))
	r.clean()
}

package node_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/csilab/csilab/driver/node"
	"github.com/csilab/csilab/driver/node/guest"
	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host"
)

func TestMain(m *testing.M) {
	host.Main()
	os.Exit(m.Run())
}

// The same service on this machine's kernel, with its own mkfs and mount.
func TestRealNode(t *testing.T) {
	if err := host.RealSupported(); err != nil {
		t.Skip(err)
	}
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "csi")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	disks, err := disk.NewFiles(filepath.Join(dir, "disks"))
	if err != nil {
		t.Fatal(err)
	}
	defer disks.Close()
	h, err := host.NewReal(ctx, host.RealConfig{Name: "node-1", BIOSUUID: "420a1f3c-7b6d-4e5f-8a90-1b2c3d4e5f60", Dir: filepath.Join(dir, "n")})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	g, err := guest.New(guest.Config{Host: h, Wait: 1})
	if err != nil {
		t.Fatal(err)
	}
	if id, err := g.NodeID(ctx); err != nil || id != "420a1f3c-7b6d-4e5f-8a90-1b2c3d4e5f60" {
		t.Errorf("node id %q, %v", id, err)
	}
	s, err := node.New(node.Config{Host: h, Backend: g})
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []struct {
		name string
		cap  *csi.VolumeCapability
	}{
		{"ext4", mounted(multi, "ext4", "noatime")},
		{"ext3", mounted(multi, "ext3")},
		{"xfs", mounted(multi, "xfs")},
		{"block", raw(multi)},
	} {
		t.Run(k.name, func(t *testing.T) {
			if err := h.Supports(k.name); err != nil && k.name != "block" {
				t.Skip(err)
			}
			realLife(t, s, h, disks, k.name, k.cap)
		})
	}
}

func realLife(t *testing.T, s *node.Service, h *host.Real, disks disk.Store, name string, c *csi.VolumeCapability) {
	ctx := context.Background()
	r := &rig{t: t}
	must := r.must
	attach := func(id string) {
		t.Helper()
		img, err := disks.Open(id)
		must(err)
		t.Cleanup(func() { img.Close() })
		must(h.AttachDisk(ctx, wwn, img))
	}
	must(disks.Create(name, 512*mib))
	attach(name)
	must(h.MkdirAll(staging, 0o750))
	must(h.MkdirAll(parent(target), 0o750))
	must(h.MkdirAll(parent(target2), 0o750))
	file := func(p string) string {
		if c.GetBlock() != nil {
			return p
		}
		return p + "/data"
	}
	for range 2 {
		must(stage(s, c))
		must(publish(s, c, target, false))
	}
	must(h.WriteAt(file(target), 0, []byte("hello"), true))
	must(publish(s, c, target2, false))
	if b, err := h.ReadAt(file(target2), 0, 5); err != nil || string(b) != "hello" {
		t.Fatalf("second pod reads %q, %v", b, err)
	}
	if c.GetBlock() == nil {
		r.code(unstage(s), codes.FailedPrecondition, target)
		r.code(publish(s, c, target2, true), codes.OK)
		if err := h.WriteAt(file(target2), 0, []byte("x"), true); err == nil {
			t.Fatal("a read-only publish could be written to")
		}
		r.code(publish(s, mounted(single, ""), target2, true), codes.FailedPrecondition, target)
	}
	stats, err := s.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: volume, VolumePath: target})
	must(err)
	before := stats.GetUsage()[0].GetTotal()
	if before < 400*mib || before > 512*mib {
		t.Errorf("total %d", before)
	}

	// Online growth, where this kernel lets root do it.
	if err := h.Supports("grow-online:" + name); err == nil || name == "block" {
		must(disks.Grow(name, 768*mib))
		must(h.ResizeDisk(ctx, wwn))
		for range 2 {
			e, err := s.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{VolumeId: volume, VolumePath: target, CapacityRange: &csi.CapacityRange{RequiredBytes: 768 * mib}})
			must(err)
			if e.GetCapacityBytes() != 768*mib {
				t.Errorf("capacity_bytes %d", e.GetCapacityBytes())
			}
		}
		stats, err = s.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: volume, VolumePath: target})
		must(err)
		if now := stats.GetUsage()[0].GetTotal(); now < before+200*mib {
			t.Errorf("total %d, was %d", now, before)
		}
	} else {
		t.Logf("growth not tried: %v", err)
	}
	for range 2 {
		must(unpublish(s, target))
		must(unpublish(s, target2))
	}
	for range 2 {
		must(unstage(s))
	}
	// Nothing is formatted again.
	must(h.DetachDisk(ctx, wwn))
	attach(name)
	must(stage(s, c))
	must(publish(s, c, target, false))
	if b, err := h.ReadAt(file(target), 0, 5); err != nil || string(b) != "hello" {
		t.Fatalf("reads %q, %v", b, err)
	}
	must(unpublish(s, target))
	must(unstage(s))
	must(h.DetachDisk(ctx, wwn))

	// Pulled while it was staged, and back under another name.
	attach(name)
	must(stage(s, c))
	must(h.DetachDisk(ctx, wwn))
	attach(name)
	must(stage(s, c))
	must(publish(s, c, target, false))
	if b, err := h.ReadAt(file(target), 0, 5); err != nil || string(b) != "hello" {
		t.Fatalf("back again: reads %q, %v", b, err)
	}
	must(unpublish(s, target))
	must(unstage(s))
	must(h.DetachDisk(ctx, wwn))

	// Restored to a larger disk, which works on any kernel.
	must(disks.Snapshot(name, "s"))
	must(disks.Restore(name, "s", name+"-large", 1024*mib))
	attach(name + "-large")
	must(stage(s, c))
	must(publish(s, c, target, false))
	stats, err = s.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: volume, VolumePath: target})
	must(err)
	if now := stats.GetUsage()[0].GetTotal(); now < 900*mib {
		t.Errorf("restored: total %d, was %d", now, before)
	}
	if b, err := h.ReadAt(file(target), 0, 5); err != nil || string(b) != "hello" {
		t.Fatalf("restored: reads %q, %v", b, err)
	}
	must(unpublish(s, target))
	must(unstage(s))
	must(h.DetachDisk(ctx, wwn))
	all, err := h.Mounter().List()
	must(err)
	for _, m := range all {
		if strings.HasPrefix(m.Path, "/var/lib/kubelet/") {
			t.Errorf("left mounted: %s", m.Path)
		}
	}
}

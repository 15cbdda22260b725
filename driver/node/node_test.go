package node_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/csilab/csilab/driver/node"
)

func TestLifeOfAVolume(t *testing.T) {
	for _, c := range []struct {
		fs    string
		flags []string
	}{{fs: "ext4"}, {fs: "ext3"}, {fs: "xfs"}, {fs: ""}, {fs: "ext4", flags: []string{"noatime", "nosuid"}}, {fs: "xfs", flags: []string{"noatime,nodev"}}} {
		t.Run(strings.Join(append([]string{"fs:" + c.fs}, c.flags...), "+"), func(t *testing.T) {
			r := newRig(t, 512*mib)
			cap := mounted(multi, c.fs, c.flags...)
			for range 3 { // each call repeated is OK
				r.must(stage(r, cap))
			}
			for range 3 {
				r.must(publish(r, cap, target, false))
			}
			r.writeSynced(target+"/data", "hello")
			r.must(publish(r, cap, target2, false))
			if got := r.read(target2+"/data", 5); got != "hello" {
				t.Fatalf("second pod reads %q", got)
			}
			if n := len(r.mounts()); n != 3 {
				t.Fatalf("%d mounts, want 3: %v", n, r.mounts())
			}
			for _, p := range []string{target, target2} {
				for range 3 {
					r.must(unpublish(r, p))
				}
				if r.exists(p) {
					t.Fatalf("%s still exists", p)
				}
			}
			for range 3 {
				r.must(unstage(r))
			}
			if m := r.mounts(); len(m) != 0 {
				t.Fatalf("left mounted: %v", m)
			}
			if !r.exists(staging) {
				t.Fatal("the staging directory is the orchestrator's and must stay")
			}
			// Another driver, later: the data is there.
			s := r.service(r.host)
			r.must(stage(s, cap))
			r.must(publish(s, cap, target, true))
			if got := r.read(target+"/data", 5); got != "hello" {
				t.Fatalf("reads %q", got)
			}
			if err := r.host.WriteAt(target+"/data", 0, []byte("x"), true); err == nil {
				t.Fatal("a read-only publish could be written to")
			}
		})
	}
}

func TestLifeOfARawBlockVolume(t *testing.T) {
	r := newRig(t, 64*mib)
	c := raw(multi)
	for range 2 {
		r.must(stage(r, c))
	}
	for range 2 {
		r.must(publish(r, c, target, false))
	}
	r.must(publish(r, c, target2, false))
	r.writeSynced(target, "raw")
	if got := r.read("/dev/disk/by-id/wwn-0x"+wwn, 3); got != "raw" {
		t.Fatalf("device holds %q", got)
	}
	if got := r.read(target2, 3); got != "raw" {
		t.Fatalf("second pod reads %q", got)
	}
	r.code(unstage(r), codes.OK) // nothing is mounted at the staging path
	for _, p := range []string{target, target2} {
		for range 2 {
			r.must(unpublish(r, p))
		}
		if r.exists(p) {
			t.Fatalf("%s still exists", p)
		}
	}
	r.must(unstage(r))
	if m := r.mounts(); len(m) != 0 {
		t.Fatalf("left mounted: %v", m)
	}
	// A pod's raw data is not formatted over (I4).
	r.code(stage(r, mounted(multi, "ext4")), codes.Internal, "neither blank")
	if got := r.read("/dev/disk/by-id/wwn-0x"+wwn, 3); got != "raw" {
		t.Fatalf("device holds %q", got)
	}
}

func TestArguments(t *testing.T) {
	r := newRig(t, 64*mib)
	ctx := context.Background()
	ok := mounted(multi, "ext4")
	stageWith := func(change func(*csi.NodeStageVolumeRequest)) error {
		q := stageReq(ok)
		change(q)
		_, err := r.NodeStageVolume(ctx, q)
		return err
	}
	publishWith := func(change func(*csi.NodePublishVolumeRequest)) error {
		q := publishReq(ok, target, false)
		change(q)
		_, err := r.NodePublishVolume(ctx, q)
		return err
	}
	stats := func(id, p string) error {
		_, err := r.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: p})
		return err
	}
	expand := func(q *csi.NodeExpandVolumeRequest) error { _, err := r.NodeExpandVolume(ctx, q); return err }
	capability := func(c *csi.VolumeCapability) error {
		return stageWith(func(q *csi.NodeStageVolumeRequest) { q.VolumeCapability = c })
	}
	for _, c := range []struct {
		name  string
		err   error
		code  codes.Code
		words []string
	}{
		{"stage: id", stageWith(func(q *csi.NodeStageVolumeRequest) { q.VolumeId = "" }), codes.InvalidArgument, []string{"volume_id"}},
		{"stage: path", stageWith(func(q *csi.NodeStageVolumeRequest) { q.StagingTargetPath = "" }), codes.InvalidArgument, []string{"staging_target_path"}},
		{"stage: relative", stageWith(func(q *csi.NodeStageVolumeRequest) { q.StagingTargetPath = "a/b" }), codes.InvalidArgument, []string{`"a/b"`, "absolute"}},
		{"stage: no capability", capability(nil), codes.InvalidArgument, []string{"volume_capability"}},
		{"stage: no access type", capability(&csi.VolumeCapability{AccessMode: mode(multi)}), codes.InvalidArgument, []string{"access_type"}},
		{"stage: no access mode", capability(mounted(0, "ext4")), codes.InvalidArgument, []string{"access_mode"}},
		{"stage: many nodes", capability(mounted(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, "ext4")), codes.FailedPrecondition, []string{"MULTI_NODE_MULTI_WRITER"}},
		{"stage: fs", capability(mounted(multi, "btrfs")), codes.FailedPrecondition, []string{`"btrfs"`, "ext4, ext3, xfs"}},
		{"stage: own flag", capability(mounted(multi, "ext4", "noatime,bind")), codes.InvalidArgument, []string{`"bind"`}},
		{"stage: group", capability(&csi.VolumeCapability{AccessMode: mode(multi), AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{VolumeMountGroup: "5"}}}), codes.InvalidArgument, []string{"volume_mount_group"}},
		{"stage: no disk in context", stageWith(func(q *csi.NodeStageVolumeRequest) { q.PublishContext = nil }), codes.InvalidArgument, []string{"diskUUID"}},
		{"stage: bad disk in context", stageWith(func(q *csi.NodeStageVolumeRequest) { q.PublishContext["diskUUID"] = "../../sda" }), codes.InvalidArgument, []string{"diskUUID"}},
		{"stage: disk not there", stageWith(func(q *csi.NodeStageVolumeRequest) { q.PublishContext["diskUUID"] = wwn2 }), codes.Unavailable, []string{wwn2}},
		{"publish: id", publishWith(func(q *csi.NodePublishVolumeRequest) { q.VolumeId = "" }), codes.InvalidArgument, []string{"volume_id"}},
		{"publish: target", publishWith(func(q *csi.NodePublishVolumeRequest) { q.TargetPath = "" }), codes.InvalidArgument, []string{"target_path"}},
		{"publish: capability", publishWith(func(q *csi.NodePublishVolumeRequest) { q.VolumeCapability = nil }), codes.InvalidArgument, []string{"volume_capability"}},
		{"publish: staging", publishWith(func(q *csi.NodePublishVolumeRequest) { q.StagingTargetPath = "" }), codes.FailedPrecondition, []string{"staging_target_path"}},
		{"publish: target is staging", publishWith(func(q *csi.NodePublishVolumeRequest) { q.TargetPath = staging + "/" }), codes.InvalidArgument, []string{"staging_target_path"}},
		{"publish: not staged", publishWith(func(q *csi.NodePublishVolumeRequest) {}), codes.FailedPrecondition, []string{"not staged"}},
		{"publish: block read-only", publishWith(func(q *csi.NodePublishVolumeRequest) { q.VolumeCapability, q.Readonly = raw(multi), true }), codes.InvalidArgument, []string{"readonly"}},
		{"publish: block reader", publishWith(func(q *csi.NodePublishVolumeRequest) { q.VolumeCapability = raw(reader) }), codes.InvalidArgument, []string{"readonly"}},
		{"stats: id", stats("", target), codes.InvalidArgument, nil},
		{"stats: path", stats(volume, ""), codes.InvalidArgument, nil},
		{"stats: relative", stats(volume, "some/path"), codes.NotFound, nil},
		{"stats: unknown", stats(volume, "/some/path"), codes.NotFound, nil},
		{"stats: a plain directory", stats(volume, staging), codes.NotFound, nil},
		{"expand: id", expand(&csi.NodeExpandVolumeRequest{VolumePath: target}), codes.InvalidArgument, nil},
		{"expand: path", expand(&csi.NodeExpandVolumeRequest{VolumeId: volume}), codes.InvalidArgument, nil},
		{"expand: unknown", expand(&csi.NodeExpandVolumeRequest{VolumeId: volume, VolumePath: "some/path"}), codes.NotFound, nil},
		{"expand: range", expand(&csi.NodeExpandVolumeRequest{VolumeId: volume, VolumePath: target, CapacityRange: &csi.CapacityRange{RequiredBytes: 5, LimitBytes: 4}}), codes.OutOfRange, nil},
		{"expand: capability", expand(&csi.NodeExpandVolumeRequest{VolumeId: volume, VolumePath: target, VolumeCapability: mounted(multi, "btrfs")}), codes.InvalidArgument, nil},
		{"unstage", unstage(r), codes.OK, nil},
		{"unpublish", unpublish(r, target), codes.OK, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			(&rig{t: t}).code(c.err, c.code, c.words...)
		})
	}
	if m := r.mounts(); len(m) != 0 {
		t.Fatalf("mounted: %v", m)
	}
}

// The table of the CSI spec (NodePublishVolume, with SINGLE_NODE_MULTI_WRITER).
func TestSecondPublish(t *testing.T) {
	for _, c := range []struct {
		name                             string
		mode                             csi.VolumeCapability_AccessMode_Mode
		same, otherArgs, target, bothNew codes.Code
	}{
		{"SINGLE_NODE_SINGLE_WRITER", single, codes.OK, codes.AlreadyExists, codes.FailedPrecondition, codes.FailedPrecondition},
		{"SINGLE_NODE_WRITER", plain, codes.OK, codes.AlreadyExists, codes.FailedPrecondition, codes.FailedPrecondition},
		{"SINGLE_NODE_MULTI_WRITER", multi, codes.OK, codes.AlreadyExists, codes.OK, codes.OK},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, 64*mib)
			v := mounted(c.mode, "ext4")
			r.must(stage(r, v))
			r.must(publish(r, v, target, true))
			r.code(publish(r, v, target, true), c.same)
			r.code(publish(r, v, target, false), c.otherArgs)
			r.code(publish(r, v, target2, true), c.target)
			r.must(unpublish(r, target2))
			r.code(publish(r, v, target2, false), c.bothNew)
		})
		t.Run(c.name+" block", func(t *testing.T) {
			r := newRig(t, 64*mib)
			v := raw(c.mode)
			r.must(stage(r, v))
			r.must(publish(r, v, target, false))
			r.code(publish(r, v, target, false), c.same)
			r.code(publish(r, v, target2, false), c.target)
			r.must(unpublish(r, target))
			r.must(publish(r, v, target2, false))
		})
	}
}

func TestReadOnlyPublishInUseIsNotTakenAway(t *testing.T) {
	r := newRig(t, 64*mib)
	v := mounted(multi, "ext4")
	r.must(stage(r, v))
	r.must(publish(r, v, target, false))
	release, err := r.host.Hold(target)
	r.must(err)
	r.code(publish(r, v, target, true), codes.AlreadyExists, "busy")
	release()
	r.must(publish(r, v, target, true))
	if err := r.host.WriteAt(target+"/x", 0, []byte("x"), true); err == nil {
		t.Fatal("still writable")
	}
}

func TestStagedOtherwise(t *testing.T) {
	r := newRig(t, 64*mib)
	r.attach(wwn2, "other", 64*mib)
	r.must(stage(r, mounted(multi, "ext4", "noatime")))
	for _, c := range []struct {
		name  string
		c     *csi.VolumeCapability
		disk  string
		words string
	}{
		{"other fs", mounted(multi, "xfs"), wwn, "asks for xfs"},
		{"flag missing", mounted(multi, "ext4"), wwn, "has noatime"},
		{"flag more", mounted(multi, "ext4", "noatime", "noexec"), wwn, "lacks noexec"},
		{"read-only", mounted(multi, "ext4", "noatime", "ro"), wwn, "lacks ro"},
		{"block", raw(multi), wwn, "filesystem"},
		{"other disk", mounted(multi, "ext4"), wwn2, "/dev/sdb"},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := stageReq(c.c)
			q.PublishContext["diskUUID"] = c.disk
			_, err := r.NodeStageVolume(context.Background(), q)
			(&rig{t: t}).code(err, codes.AlreadyExists, c.words)
		})
	}
	r.must(stage(r, mounted(single, "", "noatime")))
}

func TestWrongVolume(t *testing.T) {
	r := newRig(t, 64*mib)
	ctx := context.Background()
	v := mounted(multi, "ext4")
	r.must(stage(r, v))
	r.must(publish(r, v, target, false))
	_, err := r.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: "other", StagingTargetPath: staging})
	r.code(err, codes.FailedPrecondition, volume)
	_, err = r.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: "other", TargetPath: target})
	r.code(err, codes.FailedPrecondition, volume)
	_, err = r.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: "other", VolumePath: target})
	r.code(err, codes.NotFound)
	if n := len(r.mounts()); n != 2 {
		t.Fatalf("%d mounts, want 2", n)
	}
}

func TestUnstageWhilePublished(t *testing.T) {
	r := newRig(t, 64*mib)
	v := mounted(multi, "ext4")
	r.must(stage(r, v))
	r.must(publish(r, v, target, false))
	r.code(unstage(r), codes.FailedPrecondition, target)
	r.must(unpublish(r, target))
	r.must(unstage(r))
}

func TestUnpublishKeepsFiles(t *testing.T) {
	r := newRig(t, 64*mib)
	// The unmount was missed by somebody: a file below the target is data.
	r.must(r.host.MkdirAll(target, 0o750))
	r.writeSynced(target+"/precious", "x")
	r.code(unpublish(r, target), codes.Internal, "not empty")
	if !r.exists(target + "/precious") {
		t.Fatal("the file was removed")
	}
}

// A disk that was pulled under its mounts, and one that came back (K28, K38).
func TestDeadMounts(t *testing.T) {
	ctx := context.Background()
	r := newRig(t, 64*mib)
	v := mounted(multi, "ext4")
	r.must(stage(r, v))
	r.must(publish(r, v, target, false))
	r.writeSynced(target+"/data", "hello")
	r.must(r.host.DetachDisk(ctx, wwn))
	r.code(publish(r, v, target2, false), codes.Unavailable)
	_, err := r.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: volume, VolumePath: target})
	r.code(err, codes.Internal)

	r.attach(wwn, "disk", 0) // as another device: the old number is still in use
	r.code(publish(r, v, target2, false), codes.FailedPrecondition, "dead")
	r.must(stage(r, v))
	r.must(publish(r, v, target2, false))
	if got := r.read(target2+"/data", 5); got != "hello" {
		t.Fatalf("reads %q", got)
	}
	r.must(publish(r, v, target, false)) // the dead one is replaced
	if got := r.read(target+"/data", 5); got != "hello" {
		t.Fatalf("reads %q", got)
	}
	r.must(r.host.DetachDisk(ctx, wwn))
	r.must(unpublish(r, target))
	r.must(unpublish(r, target2))
	r.must(unstage(r))
	if m := r.mounts(); len(m) != 0 {
		t.Fatalf("left mounted: %v", m)
	}
}

// A program in the pod still has a file open on it.
func TestDeadMountInUse(t *testing.T) {
	r := newRig(t, 64*mib)
	v := mounted(multi, "ext4")
	r.must(stage(r, v))
	r.must(publish(r, v, target, false))
	release, err := r.host.Hold(target)
	r.must(err)
	defer release()
	r.code(unpublish(r, target), codes.Internal, "busy")
	r.must(r.host.DetachDisk(context.Background(), wwn))
	r.must(unpublish(r, target))
	r.must(unstage(r))
	if m := r.mounts(); len(m) != 0 {
		t.Fatalf("left mounted: %v", m)
	}
}

func TestDeadBlockPublish(t *testing.T) {
	ctx := context.Background()
	r := newRig(t, 64*mib)
	v := raw(multi)
	r.must(publish(r, v, target, false))
	r.must(r.host.DetachDisk(ctx, wwn))
	r.attach(wwn2, "other", 64*mib) // takes the name sdb
	r.attach(wwn, "disk", 0)
	r.must(publish(r, v, target, false))
	r.writeSynced(target, "raw")
	if got := r.read("/dev/disk/by-id/wwn-0x"+wwn, 3); got != "raw" {
		t.Fatalf("the volume holds %q", got)
	}
	if got := r.read("/dev/disk/by-id/wwn-0x"+wwn2, 3); got == "raw" {
		t.Fatal("the other volume was written to (I3)")
	}
}

// The kernel made it read-only after an error, and then the volume is staged
// again for a new pod.
func TestReadOnlyAfterError(t *testing.T) {
	r := newRig(t, 64*mib)
	v := mounted(multi, "ext4")
	r.must(stage(r, v))
	r.must(publish(r, v, target, false))
	remount := func(o string) {
		t.Helper()
		_, err := r.host.Exec().Command("mount", "-o", "remount,"+o, staging).CombinedOutput()
		r.must(err)
	}
	remount("ro")
	r.code(publish(r, v, target2, false), codes.FailedPrecondition, "read-only")
	r.code(stage(r, v), codes.AlreadyExists, target)
	r.must(unpublish(r, target))
	r.must(stage(r, v))
	r.must(publish(r, v, target, false))
	r.writeSynced(target+"/data", "hello")
}

func TestReadOnlyVolume(t *testing.T) {
	r := newRig(t, 64*mib)
	r.code(stage(r, mounted(reader, "ext4")), codes.FailedPrecondition, "blank", "read-only")
	r.must(stage(r, mounted(multi, "ext4")))
	r.must(unstage(r))
	r.must(stage(r, mounted(reader, "ext4")))
	r.must(stage(r, mounted(reader, "ext4")))
	r.must(publish(r, mounted(reader, "ext4"), target, false))
	r.must(publish(r, mounted(reader, "ext4"), target, true))
	if err := r.host.WriteAt(target+"/x", 0, []byte("x"), true); err == nil {
		t.Fatal("writable")
	}
	r.code(publish(r, mounted(multi, "ext4"), target2, false), codes.FailedPrecondition, "read-only")
}

func TestExistingFilesystemDecides(t *testing.T) {
	r := newRig(t, 512*mib)
	r.must(stage(r, mounted(multi, "xfs")))
	r.must(unstage(r))
	r.code(stage(r, mounted(multi, "ext4")), codes.FailedPrecondition, "holds xfs", "asks for ext4")
	r.must(stage(r, mounted(multi, "")))
}

func TestGrow(t *testing.T) {
	ctx := context.Background()
	for _, fs := range []string{"ext4", "xfs"} {
		t.Run(fs, func(t *testing.T) {
			r := newRig(t, 512*mib)
			v := mounted(multi, fs)
			total := func(p string) int64 {
				t.Helper()
				s, err := r.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: volume, VolumePath: p})
				r.must(err)
				for _, u := range s.GetUsage() {
					if u.GetUnit() == csi.VolumeUsage_BYTES {
						return u.GetTotal()
					}
				}
				return 0
			}
			expand := func(p string, size int64) error {
				resp, err := r.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{VolumeId: volume, VolumePath: p, CapacityRange: &csi.CapacityRange{RequiredBytes: size}})
				if err == nil && resp.GetCapacityBytes() < size {
					t.Errorf("capacity_bytes %d, want %d", resp.GetCapacityBytes(), size)
				}
				return err
			}
			r.must(stage(r, v))
			r.must(publish(r, v, target, false))
			before := total(target)
			r.code(expand(target, 1024*mib), codes.Unavailable, "not yet")
			r.grow("disk", 1024*mib)
			r.must(expand(target, 1024*mib))
			r.must(expand(target, 1024*mib))
			r.must(expand(target, 512*mib)) // larger already
			if now := total(target); now < before+400*mib {
				t.Fatalf("filesystem has %d bytes, had %d", now, before)
			}
			r.grow("disk", 1536*mib)
			r.must(expand(staging, 1536*mib))
			if now := total(staging); now < before+900*mib {
				t.Fatalf("filesystem has %d bytes, had %d", now, before)
			}
			_, err := r.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{VolumeId: volume, VolumePath: target, CapacityRange: &csi.CapacityRange{LimitBytes: 512 * mib}})
			r.code(err, codes.OutOfRange)

			// A restored snapshot on a larger disk is grown when it is staged.
			r.must(unpublish(r, target))
			r.must(unstage(r))
			r.must(r.disks.Snapshot("disk", "s"))
			r.must(r.disks.Restore("disk", "s", "restored", 3072*mib))
			r.must(r.host.DetachDisk(ctx, wwn))
			r.attach(wwn, "restored", 0)
			r.must(stage(r, v))
			if now := total(staging); now < before+2400*mib {
				t.Fatalf("filesystem has %d bytes, had %d", now, before)
			}
		})
	}
}

func TestGrowRawBlock(t *testing.T) {
	ctx := context.Background()
	r := newRig(t, 64*mib)
	r.attach(wwn2, "other", 64*mib)
	r.must(publish(r, raw(multi), target, false))
	r.grow("disk", 128*mib)
	// kubelet gives the path of the device's link.
	link := "/var/lib/kubelet/link"
	r.must(r.host.Symlink(target, link))
	for _, p := range []string{target, link} {
		resp, err := r.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{VolumeId: volume, VolumePath: p, VolumeCapability: raw(multi), CapacityRange: &csi.CapacityRange{RequiredBytes: 128 * mib}})
		r.must(err)
		if resp.GetCapacityBytes() != 128*mib {
			t.Fatalf("capacity_bytes %d", resp.GetCapacityBytes())
		}
	}
	s, err := r.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: volume, VolumePath: target})
	r.must(err)
	if u := s.GetUsage(); len(u) != 1 || u[0].GetTotal() != 128*mib || u[0].GetUnit() != csi.VolumeUsage_BYTES {
		t.Fatalf("usage %v", u)
	}
}

// Two clones of one xfs on one node have one UUID.
func TestCloneBesideItsSource(t *testing.T) {
	r := newRig(t, 512*mib)
	v := mounted(multi, "xfs")
	r.must(stage(r, v))
	r.must(r.disks.Snapshot("disk", "s"))
	r.must(r.disks.Restore("disk", "s", "clone", 0))
	r.attach(wwn2, "clone", 0)
	other := staging + "2"
	_, err := r.NodeStageVolume(context.Background(), &csi.NodeStageVolumeRequest{VolumeId: "clone", StagingTargetPath: other, VolumeCapability: v, PublishContext: map[string]string{"diskUUID": wwn2}})
	r.must(err)
}

func TestInFlight(t *testing.T) {
	r := newRig(t, 64*mib)
	at, goOn := make(chan string), make(chan struct{})
	h := &steps{Memory: r.host}
	h.hold = func(op string) {
		if strings.HasPrefix(op, "mkfs") {
			at <- op
			<-goOn
		}
	}
	s := r.service(h)
	done := make(chan error)
	go func() { done <- stage(s, mounted(multi, "ext4")) }()
	<-at
	r.code(stage(s, mounted(multi, "ext4")), codes.Aborted, "NodeStageVolume")
	r.code(unstage(s), codes.Aborted)
	r.code(publish(s, mounted(multi, "ext4"), target, false), codes.Aborted)
	// Another volume isn't held up.
	r.attach(wwn2, "other", 64*mib)
	_, err := s.NodePublishVolume(context.Background(), &csi.NodePublishVolumeRequest{VolumeId: "other", StagingTargetPath: staging + "2", TargetPath: target2, VolumeCapability: raw(multi), PublishContext: map[string]string{"diskUUID": wwn2}})
	r.must(err)
	close(goOn)
	r.must(<-done)
	r.must(publish(s, mounted(multi, "ext4"), target, false))
}

func TestCapabilities(t *testing.T) {
	r := newRig(t, 64*mib)
	resp, err := r.NodeGetCapabilities(context.Background(), &csi.NodeGetCapabilitiesRequest{})
	r.must(err)
	var got []string
	for _, c := range resp.GetCapabilities() {
		got = append(got, c.GetRpc().GetType().String())
	}
	slices.Sort(got)
	if want := "EXPAND_VOLUME GET_VOLUME_STATS SINGLE_NODE_MULTI_WRITER STAGE_UNSTAGE_VOLUME"; strings.Join(got, " ") != want {
		t.Fatalf("capabilities %v, want %s", got, want)
	}
}

func TestConfig(t *testing.T) {
	if _, err := node.New(node.Config{}); err == nil || !strings.Contains(err.Error(), "Host") {
		t.Errorf("no host: %v", err)
	}
	r := newRig(t, 64*mib)
	if _, err := node.New(node.Config{Host: r.host}); err == nil || !strings.Contains(err.Error(), "Backend") {
		t.Errorf("no backend: %v", err)
	}
}

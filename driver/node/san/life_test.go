package san_test

import (
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"k8s.io/mount-utils"

	"github.com/csilab/csilab/driver/node/san"
	"github.com/csilab/csilab/sim/host/scsi"
)

func TestLife(t *testing.T) {
	protocols(t, func(t *testing.T, r *rig) {
		r.create(vol, 1024)
		r.export(vol)
		s := r.Service
		c := filesystem("")
		for range 2 {
			r.must(r.stage(s, vol, c))
			r.must(r.publish(s, vol, "p1", c))
		}
		at := r.mounts()
		i := slices.IndexFunc(at, func(m mount.MountPoint) bool { return m.Path == stagingOf(vol) })
		if i < 0 || at[i].Type != "xfs" {
			t.Errorf("mounted: %+v", at)
		} else if dev, err := r.host.EvalSymlinks(at[i].Device); err != nil || dev != "/dev/dm-0" {
			t.Errorf("%s is mounted, %v", at[i].Device, err)
		}
		r.write(targetOf(vol, "p1")+"/data", "hello")
		if want := len(r.positions(r.array(1))); len(r.disks()) < want {
			t.Errorf("%d paths, want %d", len(r.disks()), want)
		}
		st, err := s.NodeGetVolumeStats(context.Background(), &csi.NodeGetVolumeStatsRequest{VolumeId: vol, VolumePath: targetOf(vol, "p1")})
		if err != nil || len(st.Usage) != 2 {
			t.Error(st, err)
		}
		r.code(r.unstage(s, vol), codes.FailedPrecondition, "still published")
		for range 2 {
			r.must(r.unpublish(s, vol, "p1"))
		}
		for range 2 {
			r.must(r.unstage(s, vol))
		}
		r.clean()

		// A driver that was restarted, and the data.
		s = r.service(r.host)
		r.must(r.stage(s, vol, c))
		if got := r.read(stagingOf(vol)+"/data", 5); got != "hello" {
			t.Errorf("reads %q", got)
		}
		s = r.service(r.host)
		r.must(r.unstage(s, vol))
		r.clean()
	})
}

func TestRawBlock(t *testing.T) {
	protocols(t, func(t *testing.T, r *rig) {
		r.create(vol, 1024)
		r.export(vol)
		s := r.Service
		c := block(writer)
		for range 2 {
			r.must(r.stage(s, vol, c))
			r.must(r.publish(s, vol, "p1", c))
		}
		r.write(targetOf(vol, "p1"), "hello")
		if got := r.begins(vol, 5); got != "hello" {
			t.Errorf("the volume begins with %q", got)
		}
		// The node of the device is still bound to the target.
		s = r.service(r.host)
		r.code(r.unstage(s, vol), codes.FailedPrecondition, "still published")
		if len(r.disks()) == 0 {
			t.Error("the paths are gone")
		}
		r.must(r.unpublish(s, vol, "p1"))
		r.must(r.unstage(s, vol))
		r.clean()
		r.must(r.unstage(s, vol))
	})
}

// Raw block volumes may be shared by nodes, filesystems not.
func TestShared(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, "fc", 1)
		r.create(vol, 1024)
		r.export(vol)
		for _, m := range []csi.VolumeCapability_AccessMode_Mode{csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER} {
			c := block(m)
			r.must(r.stage(r.Service, vol, c))
			r.must(r.publish(r.Service, vol, "p1", c))
			r.must(r.publish(r.Service, vol, "p2", c))
			r.must(r.unpublish(r.Service, vol, "p1"))
			r.must(r.unpublish(r.Service, vol, "p2"))
			r.must(r.unstage(r.Service, vol))
			f := filesystem("xfs")
			f.AccessMode.Mode = m
			r.code(r.stage(r.Service, vol, f), codes.FailedPrecondition, "raw block")
		}
		r.clean()
	})
}

func TestExpand(t *testing.T) {
	protocols(t, func(t *testing.T, r *rig) {
		r.create(vol, 1024)
		r.export(vol)
		s := r.Service
		for _, c := range []*csi.VolumeCapability{filesystem("xfs"), block(writer)} {
			r.must(r.stage(s, vol, c))
			r.must(r.publish(s, vol, "p1", c))
			before, err := r.host.DeviceSize("/dev/mapper/mpatha")
			r.must(err)
			r.grow(vol, 1024)
			want := before + 1024*mib
			req := &csi.NodeExpandVolumeRequest{VolumeId: vol, VolumePath: targetOf(vol, "p1"), CapacityRange: &csi.CapacityRange{RequiredBytes: want}}
			resp, err := s.NodeExpandVolume(context.Background(), req)
			if err != nil || resp.CapacityBytes != want {
				t.Fatal(resp, err)
			}
			if c.GetMount() != nil {
				u, err := r.host.Statfs(targetOf(vol, "p1"))
				if err != nil || u.TotalBytes < 1900*mib {
					t.Errorf("%+v, %v", u, err)
				}
			}
			// Not there yet: to be asked again.
			req.CapacityRange.RequiredBytes = want + mib
			_, err = s.NodeExpandVolume(context.Background(), req)
			r.code(err, codes.Unavailable)
			r.must(r.unpublish(s, vol, "p1"))
			r.must(r.unstage(s, vol))
			wipe(r)
		}
		r.clean()
	})
}

// wipe makes the volume blank again, so that the next capability may have it.
func wipe(r *rig) {
	r.t.Helper()
	for _, v := range r.array(1).Volumes() {
		img, err := r.fabric.For("beside", scsi.Adapters{}).Open(v.Image)
		r.must(err)
		_, err = img.WriteAt(make([]byte, mib), 0)
		r.must(err)
		r.must(img.Close())
	}
}

func TestFilesystemOptions(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, "fc", 1)
		r.create(vol, 1024)
		r.export(vol)
		p := r.contexts[vol]
		p["fsType"], p["fsOwner"], p["fsMode"], p["fsCreateOptions"] = "ext4", "1000:2000", "2770", "-E nodiscard"
		c := filesystem("")
		r.must(r.stage(r.Service, vol, c))
		fi, err := r.host.Stat(stagingOf(vol))
		r.must(err)
		if m := fi.Mode(); m.Perm() != 0o770 || m&fs.ModeSetgid == 0 {
			t.Errorf("mode %s", m)
		}
		if uid, gid, err := r.host.Owner(stagingOf(vol)); uid != 1000 || gid != 2000 || err != nil {
			t.Errorf("owner %d:%d, %v", uid, gid, err)
		}
		at := r.mounts()
		if len(at) != 1 || at[0].Type != "ext4" {
			t.Errorf("mounts %v", at)
		}
		r.must(r.unstage(r.Service, vol))

		// For reading: mounted so, and its root is left alone.
		p["readOnly"], p["fsOwner"] = "true", "1:1"
		r.must(r.stage(r.Service, vol, c))
		r.must(r.publish(r.Service, vol, "p1", c))
		if err := r.host.WriteFile(targetOf(vol, "p1")+"/x", nil, 0o600); err == nil {
			t.Error("it can be written to")
		}
		if uid, _, _ := r.host.Owner(stagingOf(vol)); uid != 1000 {
			t.Errorf("owner is %d", uid)
		}
		r.must(r.unpublish(r.Service, vol, "p1"))
		r.must(r.unstage(r.Service, vol))
		r.must(r.stage(r.Service, vol, block(writer)))
		r.code(r.publish(r.Service, vol, "p1", block(writer)), codes.InvalidArgument, "reading")
		r.must(r.unstage(r.Service, vol))

		p["fsMode"] = "rwx"
		r.code(r.stage(r.Service, vol, c), codes.InvalidArgument, "fsMode")
		r.clean()
	})
}

// A stage that fails for good is followed by no unstage (K40): the driver lets
// go of the device by itself, before the controller gives its LUN to another.
func TestStageThatFailsForGood(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, "iscsi", 1)
		r.create(vol, 1024)
		r.export(vol)
		r.must(r.stage(r.Service, vol, filesystem("ext4")))
		r.write(stagingOf(vol)+"/data", "hello")
		r.must(r.unstage(r.Service, vol))
		r.code(r.stage(r.Service, vol, filesystem("xfs")), codes.FailedPrecondition, "ext4")
		r.clean()
		// Also after a stage that the orchestrator would have undone.
		r.unexport(vol)
		r.code(r.stage(r.Service, vol, filesystem("xfs")), codes.Unavailable)
		r.export(vol)
		r.code(r.stage(r.Service, vol, filesystem("xfs")), codes.FailedPrecondition, "ext4")
		r.clean()
		// One that was staged before stays what it is.
		r.must(r.stage(r.Service, vol, filesystem("ext4")))
		r.code(r.stage(r.Service, vol, filesystem("xfs")), codes.AlreadyExists)
		if got := r.read(stagingOf(vol)+"/data", 5); got != "hello" {
			t.Errorf("reads %q", got)
		}
		r.must(r.unstage(r.Service, vol))
		r.clean()
	})
}

// Two volume ids of one volume of the array: the paths stay until the last.
func TestTwoIDsOfOneVolume(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, "fc", 1)
		r.create(vol, 1024)
		r.export(vol)
		r.contexts[vol2] = r.contexts[vol]
		c := block(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER)
		r.must(r.stage(r.Service, vol, c))
		r.must(r.stage(r.Service, vol2, c))
		r.must(r.unstage(r.Service, vol))
		r.must(r.publish(r.Service, vol2, "p1", c))
		r.must(r.unpublish(r.Service, vol2, "p1"))
		r.must(r.unstage(r.Service, vol2))
		r.clean()
	})
}

// Staged by a driver that keeps other notes: found by what is mounted.
func TestUnstageWithoutNotes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, "iscsi", 1)
		r.create(vol, 1024)
		r.export(vol)
		r.must(r.stage(r.Service, vol, filesystem("xfs")))
		for _, n := range r.entries(san.DefaultStateDir+"/volumes", "") {
			r.must(r.host.Remove(san.DefaultStateDir + "/volumes/" + n))
		}
		r.must(r.unstage(r.Service, vol))
		r.clean()
		// A volume that nobody ever saw here.
		r.must(r.unstage(r.Service, vol2))
	})
}

func TestNodeInfo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for _, p := range []string{"iscsi", "fc"} {
			r := newRig(t, p, 1)
			info, err := r.NodeGetInfo(context.Background(), &csi.NodeGetInfoRequest{})
			r.must(err)
			want := r.adapters.IQN
			if p == "fc" {
				want = strings.Join(r.adapters.WWPNs, `","`)
			}
			if info.MaxVolumesPerNode != 100 || !strings.Contains(info.NodeId, want) || len(info.NodeId) > 256 {
				t.Errorf("%v", info)
			}
		}
	})
}

// A target per volume is left with the volume.
func TestTargetOfAVolume(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, "iscsi", 1)
		r.create(vol, 1024)
		r.export(vol)
		for scope, left := range map[string]bool{"volume": false, "group": true} {
			r.contexts[vol]["targetScope"] = scope
			r.must(r.stage(r.Service, vol, filesystem("xfs")))
			r.must(r.unstage(r.service(r.host), vol))
			if n := len(r.entries("/sys/class/iscsi_session", "session")); n > 0 != left {
				t.Errorf("scope %s: %d sessions are left", scope, n)
			}
			r.clean()
		}
	})
}

// Errors that only a repair can mend are mended where the class says so.
func TestRepair(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for kind, command := range map[string]string{"ext4": "e2fsck -f -y /dev/mapper/mpatha", "xfs": "xfs_repair /dev/mapper/mpatha"} {
			r := newRig(t, "fc", 1)
			r.create(vol, 1024)
			r.export(vol)
			c := filesystem(kind)
			r.must(r.stage(r.Service, vol, c))
			r.write(stagingOf(vol)+"/data", strings.Repeat("hello", 2000))
			r.must(r.unstage(r.Service, vol))
			// Within the superblock, past the magic.
			at := int64(len(r.begins(vol, 4096)) - 1)
			for _, v := range r.array(1).Volumes() {
				img, err := r.fabric.For("beside", scsi.Adapters{}).Open(v.Image)
				r.must(err)
				b := make([]byte, 1)
				_, err = img.ReadAt(b, at)
				r.must(err)
				_, err = img.WriteAt([]byte{b[0] ^ 0x10}, at)
				r.must(err)
				r.must(img.Close())
			}
			for _, repair := range []bool{false, true} {
				h := &steps{Host: r.host}
				r.context = map[string]string{"fsRepair": fmt.Sprint(repair)}
				// Nodes in memory find damage and mend none.
				r.code(r.stage(r.service(h), vol, c), codes.Internal)
				if got := slices.Contains(h.log, command); got != repair {
					t.Errorf("%s, repair=%t: ran %v", kind, repair, h.log)
				}
				r.clean()
			}
		}
	})
}

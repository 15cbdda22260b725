package san_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/csilab/csilab/sim/array"
)

// peers makes a volume that two arrays export, the second at LUN 7.
func (r *rig) peers() {
	r.t.Helper()
	one, two := r.array(1), r.array(2)
	r.create(vol, 256)
	r.wsapi(one, "POST", "/remotecopygroups", `{"name":"g","targets":[{"targetName":"array2","mode":1,"userCPG":"SSD_r6","snapCPG":"SSD_r6"}]}`)
	r.wsapi(one, "PUT", "/remotecopygroups/g", `{"targets":[{"targetName":"array2","policies":{"autoFailover":true,"pathManagement":true}}]}`)
	r.wsapi(one, "POST", "/remotecopygroups/g/volumes", fmt.Sprintf(`{"volumeName":%q,"volumeAutoCreation":true,"targets":[{"targetName":"array2","secVolumeName":%q}]}`, vv(vol), vv(vol)))
	r.export(vol)
	r.wsapi(two, "POST", "/vluns", fmt.Sprintf(`{"volumeName":%q,"hostname":"worker-1","lun":7}`, vv(vol)))
	r.wsapi(one, "PUT", "/remotecopygroups/g", `{"action":3}`)
	time.Sleep(time.Minute) // of the bubble: until the volumes are alike
	r.contexts[vol]["secondaryArrayDetailsKey"] = r.peer(7)
}

// Peer Persistence (39): both arrays' LUNs are the volume's, and either array is
// enough.
func TestPeers(t *testing.T) {
	for _, protocol := range []string{"iscsi", "fc"} {
		t.Run(protocol, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, protocol, 2)
				r.peers()
				s, c := r.Service, filesystem("ext4")
				r.must(r.stage(s, vol, c))
				r.must(r.publish(s, vol, "p1", c))
				both := len(r.disks())
				if want := len(r.positions(r.array(1))) + len(r.positions(r.array(2))); both < want {
					t.Errorf("%d paths, want %d", both, want)
				}
				p := targetOf(vol, "p1") + "/data"
				r.write(p, "before")
				// The primary is lost while a pod writes.
				r.must(r.fabric.ArrayDown("array1", true))
				r.write(p, "while ")
				if got := r.read(p, 6); got != "while " {
					t.Errorf("reads %q", got)
				}
				r.must(r.stage(s, vol, c))
				r.must(r.unpublish(s, vol, "p1"))
				r.must(r.unstage(s, vol))
				r.clean()
				// A stage with the secondary only, of a node that knows neither.
				if protocol == "iscsi" {
					r.logout()
				}
				r.must(r.stage(s, vol, c))
				if got := r.read(stagingOf(vol)+"/data", 6); got != "while " {
					t.Errorf("reads %q", got)
				}
				// It is back, and its paths come with the next look.
				r.must(r.fabric.ArrayDown("array1", false))
				r.must(r.fabric.Recover("array2"))
				time.Sleep(time.Minute)
				r.must(r.unstage(s, vol))
				r.must(r.stage(s, vol, c))
				if n := len(r.disks()); n != both {
					t.Errorf("%d paths, had %d", n, both)
				}
				r.must(r.unstage(s, vol))
				r.clean()
			})
		})
	}
}

// A peer's LUN is the peer's alone: what is at that number of the other array is
// another volume.
func TestPeersNumberOnTheOtherArray(t *testing.T) {
	for _, protocol := range []string{"iscsi", "fc"} {
		t.Run(protocol, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, protocol, 2)
				r.peers()
				r.create(vol2, 256)
				a := r.array(1)
				r.change(a, func(now time.Time) error {
					_, err := a.Core().CreateVLUN(now, array.VLUNSpec{Volume: vv(vol2), Host: "worker-1", LUN: 7})
					return err
				})
				r.contexts[vol2] = r.published(vol2)
				s, c := r.Service, filesystem("ext4")
				r.must(r.stage(s, vol, c))
				// Nobody would take the other one's paths off again.
				if n := r.pathsOf(vol2); protocol == "iscsi" && n > 0 {
					t.Errorf("%d paths of the other volume came along", n)
				}
				r.must(r.stage(s, vol2, c))
				r.write(stagingOf(vol)+"/data", "first")
				r.write(stagingOf(vol2)+"/data", "second")
				r.must(r.unstage(s, vol))
				if got := r.read(stagingOf(vol2)+"/data", 6); got != "second" {
					t.Errorf("reads %q", got)
				}
				r.must(r.stage(s, vol, c))
				if got := r.read(stagingOf(vol)+"/data", 5); got != "first" {
					t.Errorf("reads %q", got)
				}
				r.must(r.unstage(s, vol))
				r.must(r.unstage(s, vol2))
				r.clean()
			})
		})
	}
}

// logout ends all sessions of the node and forgets where they were.
func (r *rig) logout() {
	r.t.Helper()
	for _, args := range [][]string{{"-m", "node", "--logout"}, {"-m", "node", "--op", "delete"}} {
		_, _ = r.host.Exec().Command("iscsiadm", args...).CombinedOutput() // nothing to do
	}
	if n := r.entries("/sys/class/iscsi_session", "session"); len(n) > 0 {
		r.t.Fatalf("sessions are left: %v", strings.Join(n, ", "))
	}
}

// pathsOf counts the paths that say they are a volume's.
func (r *rig) pathsOf(volume string) (n int) {
	for _, d := range r.disks() {
		b, err := r.host.ReadFile("/sys/block/" + d + "/device/wwid")
		if err == nil && strings.TrimSpace(string(b)) == "naa."+r.contexts[volume]["serialNumber"] {
			n++
		}
	}
	return n
}

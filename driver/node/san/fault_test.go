package san_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/csilab/csilab/driver/node/san"
	"github.com/csilab/csilab/sim/array"
)

// hpe.md, faults 34 and 36: what the publish context may be.
func TestPublishContexts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, "iscsi", 1)
		r.create(vol, 1024)
		r.export(vol)
		right := r.contexts[vol]
		with := func(key, value string) {
			c := r.published(vol)
			c[key] = value
			r.contexts[vol] = c
		}
		s, c := r.Service, filesystem("ext4")
		with("serialNumber", strings.ToUpper(right["serialNumber"]))
		r.must(r.stage(s, vol, c))
		r.must(r.unstage(s, vol))
		for key, value := range map[string]string{"serialNumber": "", "lunId": "-1", "targetNames": "", "discoveryIps": ""} {
			with(key, value)
			r.code(r.stage(s, vol, c), codes.InvalidArgument, key)
		}
		// The VLUN isn't there, though the CSP said so.
		r.contexts[vol] = right
		r.unexport(vol)
		r.code(r.stage(s, vol, c), codes.Unavailable, "no path", right["serialNumber"])
		r.must(r.unstage(s, vol))
		r.clean()
	})
}

// hpe.md, fault 37: one portal, or port, is down.
func TestOnePortDown(t *testing.T) {
	protocols(t, func(t *testing.T, r *rig) {
		r.create(vol, 1024)
		r.export(vol)
		ports := r.positions(r.array(1))
		r.must(r.fabric.PortDown("array1", ports[0], true))
		s, c := r.Service, filesystem("ext4")
		r.must(r.stage(s, vol, c))
		r.write(stagingOf(vol)+"/data", "hello")
		fewer := len(r.disks())
		// The next stage finds the one that is back.
		r.must(r.fabric.PortDown("array1", ports[0], false))
		time.Sleep(time.Minute) // of the bubble
		r.must(r.unstage(s, vol))
		r.must(r.stage(s, vol, c))
		if n := len(r.disks()); n <= fewer {
			t.Errorf("%d paths, had %d", n, fewer)
		}
		r.must(r.unstage(s, vol))
		r.clean()
	})
}

// A port that is down for days isn't waited for by each stage.
func TestDeadPortIsAskedNowAndThen(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, "iscsi", 1)
		r.create(vol, 1024)
		r.export(vol)
		ports := r.positions(r.array(1))
		for _, p := range ports[:len(ports)-1] {
			r.must(r.fabric.PortDown("array1", p, true))
		}
		h := &steps{Host: r.host}
		s, c := r.service(h), filesystem("ext4")
		asked := func() (n int) {
			for _, op := range h.log {
				if strings.Contains(op, "discovery") {
					n++
				}
			}
			h.log = nil
			return n
		}
		// The one that is up is asked each time: it may know of other targets.
		for i, want := range []int{len(ports), 1, len(ports), 1} {
			if i == 2 {
				time.Sleep(patience)
			}
			r.must(r.stage(s, vol, c))
			r.must(r.unstage(s, vol))
			if n := asked(); n != want {
				t.Errorf("stage %d: %d discoveries, want %d", i, n, want)
			}
		}
		// Where there is no other, it is asked.
		r.allPorts(true)
		r.logout()
		r.code(r.stage(s, vol, c), codes.Unavailable)
		if n := asked(); n != len(ports) {
			t.Errorf("%d discoveries, want %d", n, len(ports))
		}
	})
}

const patience = 31 * time.Second

// A volume that was staged while a port was down has the path when the port is
// back and the node has logged in there, for whichever volume.
func TestPortComesBackForAll(t *testing.T) {
	protocols(t, func(t *testing.T, r *rig) {
		r.create(vol, 1024)
		r.create(vol2, 1024)
		r.export(vol)
		ports := r.positions(r.array(1))
		r.must(r.fabric.PortDown("array1", ports[0], true))
		s, c := r.Service, filesystem("ext4")
		r.must(r.stage(s, vol, c))
		fewer := r.pathsOf(vol)
		r.must(r.fabric.PortDown("array1", ports[0], false))
		time.Sleep(time.Minute) // of the bubble
		r.export(vol2)
		r.must(r.stage(s, vol2, c))
		if n, all := r.pathsOf(vol), r.pathsOf(vol2); n != all || n <= fewer {
			t.Errorf("%d paths, had %d; the other volume has %d", n, fewer, all)
		}
		// All others may go.
		for _, p := range ports[1:] {
			r.must(r.fabric.PortDown("array1", p, true))
		}
		r.write(stagingOf(vol)+"/data", "hello")
		r.must(r.unstage(s, vol))
		r.must(r.unstage(s, vol2))
		r.clean()
	})
}

// hpe.md, fault 38: all paths are lost, before the stage and after it.
func TestAllPathsLost(t *testing.T) {
	protocols(t, func(t *testing.T, r *rig) {
		r.create(vol, 1024)
		r.export(vol)
		s, c := r.Service, filesystem("ext4")
		r.allPorts(true)
		r.code(r.stage(s, vol, c), codes.Unavailable)
		r.allPorts(false)
		r.must(r.stage(s, vol, c))
		r.must(r.publish(s, vol, "p1", c))
		r.write(targetOf(vol, "p1")+"/data", "hello")

		r.allPorts(true)
		if err := r.host.WriteAt(targetOf(vol, "p1")+"/data", 0, []byte("x"), true); err == nil {
			t.Error("a write without a path succeeds")
		}
		if _, err := s.NodeGetVolumeStats(context.Background(), &csi.NodeGetVolumeStatsRequest{VolumeId: vol, VolumePath: targetOf(vol, "p1")}); err != nil {
			t.Logf("stats: %v", err)
		}
		r.code(r.stage(s, vol, c), codes.Unavailable)
		if r.protocol == "iscsi" {
			r.code(r.stage(s, vol, c), codes.Unavailable, "FAILED")
		}
		r.allPorts(false)
		r.must(r.unpublish(s, vol, "p1"))
		r.must(r.unstage(s, vol))
		r.must(r.stage(s, vol, c))
		if got := r.read(stagingOf(vol)+"/data", 5); got != "hello" {
			t.Errorf("reads %q", got)
		}
		// Lost, and taken off the node like that.
		r.allPorts(true)
		r.must(r.unstage(s, vol))
		r.clean()
	})
}

// A volume that was unstaged has let go of its device; that it is not staged is
// what a publish is told, not that the device is missing (kubernetes#86360).
func TestPublishOfWhatWasUnstaged(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, "iscsi", 1)
		r.create(vol, 1024)
		r.export(vol)
		s, c := r.Service, filesystem("ext4")
		r.code(r.publish(s, vol, "p1", c), codes.FailedPrecondition, "not staged")
		r.must(r.stage(s, vol, c))
		r.must(r.unstage(s, vol))
		r.code(r.publish(s, vol, "p1", c), codes.FailedPrecondition, "not staged")
		r.clean()
	})
}

func (r *rig) chap(secret string) {
	r.t.Helper()
	a := r.array(1)
	r.change(a, func(now time.Time) error {
		_, err := a.Core().ModifyHost(now, "worker-1", array.HostChange{CHAPOp: array.EditAdd, CHAPMode: array.CHAPInitiator, CHAPName: "worker", CHAPSecret: secret})
		return err
	})
}

func TestCHAP(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, "iscsi", 1)
		r.create(vol, 1024)
		r.export(vol)
		r.chap("right-secret-1")
		s, c := r.Service, filesystem("ext4")
		r.code(r.stage(s, vol, c), codes.Unauthenticated, "without CHAP")
		r.secrets = map[string]string{"chapUser": "worker", "chapPassword": "wrong-secret-1"}
		err := r.stage(s, vol, c)
		r.code(err, codes.Unauthenticated, `"worker"`)
		if strings.Contains(err.Error(), "wrong-secret-1") {
			t.Errorf("the secret is in the error: %v", err)
		}
		r.clean() // final: nobody unstages
		r.secrets["chapPassword"] = "right-secret-1"
		r.must(r.stage(s, vol, c))
		r.must(r.unstage(s, vol))
		r.secrets["chapPassword"] = "short"
		r.code(r.stage(s, vol, c), codes.InvalidArgument, "12 to 16")
		r.clean()
	})
}

// A boot brings no session back: what the node had may be another's.
func TestBoot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, "iscsi", 1)
		r.create(vol, 1024)
		r.export(vol)
		s, c := r.Service, filesystem("ext4")
		r.must(r.stage(s, vol, c))
		r.write(stagingOf(vol)+"/data", "hello")
		r.must(r.host.PowerOff())
		r.must(r.host.PowerOn())
		if n := r.entries("/sys/class/iscsi_session", "session"); len(n) > 0 {
			t.Errorf("sessions %v", n)
		}
		s = r.service(r.host)
		r.must(r.stage(s, vol, c))
		if got := r.read(stagingOf(vol)+"/data", 5); got != "hello" {
			t.Errorf("reads %q", got)
		}
		r.must(r.unstage(s, vol))
		r.clean()
	})
}

// An FC adapter finds at a boot what was never staged: while it is exported it
// stays, and it goes with its export, if nobody has staged it meanwhile.
func TestBootBeforeStage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, "fc", 1)
		c := filesystem("ext4")
		for _, v := range []string{vol, vol2} {
			r.create(v, 1024)
			r.export(v)
		}
		r.must(r.host.PowerOff())
		r.must(r.host.PowerOn())
		all := len(r.disks())
		s, err := san.New(r.config(r.host))
		r.must(err)
		ctx, cancel := context.WithCancel(t.Context())
		var strays sync.WaitGroup
		strays.Go(func() { s.Strays(ctx, 90*time.Second) })
		r.must(r.stage(r.Service, vol2, c))
		r.write(stagingOf(vol2)+"/data", "hello")
		time.Sleep(10 * time.Minute)
		if n := len(r.disks()); n != all || n == 0 {
			t.Errorf("%d disks, of %d for two volumes", n, all)
		}
		r.unexport(vol)
		time.Sleep(10 * time.Minute)
		if n := len(r.disks()); n*2 != all {
			t.Errorf("%d disks after the end of an export, of %d for two volumes", n, all)
		}
		done := make(chan struct{})
		go func() { strays.Wait(); close(done) }()
		select {
		case <-done: // of itself
		case <-time.After(10 * time.Minute):
			t.Error("what is left on the node is held, and is still looked at")
		}
		cancel()
		<-done
		if got := r.read(stagingOf(vol2)+"/data", 5); got != "hello" {
			t.Errorf("reads %q", got)
		}
		r.must(r.unstage(r.Service, vol2))
		r.unexport(vol2)
		r.clean()
	})
}

// An FC adapter finds at a boot what was unstaged and is exported still: the start
// of the driver lets go of it once more, and of nothing that is staged again.
func TestBootBetweenUnstageAndUnpublish(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, "fc", 1)
		c := filesystem("ext4")
		for _, v := range []string{vol, vol2} {
			r.create(v, 1024)
			r.export(v)
			r.must(r.stage(r.Service, v, c))
			r.must(r.unstage(r.Service, v))
		}
		r.must(r.stage(r.Service, vol2, c))
		r.write(stagingOf(vol2)+"/data", "hello")
		r.must(r.host.PowerOff())
		r.must(r.host.PowerOn())
		all := len(r.disks())
		r.must(r.stage(r.Service, vol2, c)) // may come first
		s, err := san.New(r.config(r.host))
		r.must(err)
		s.AfterBoot(t.Context())
		if n := len(r.disks()); n*2 != all || n == 0 {
			t.Errorf("%d disks after the start, of %d for two volumes", n, all)
		}
		if got := r.read(stagingOf(vol2)+"/data", 5); got != "hello" {
			t.Errorf("reads %q", got)
		}
		r.unexport(vol)
		r.must(r.unstage(r.Service, vol2))
		r.unexport(vol2)
		r.clean()
		s.AfterBoot(t.Context())
		if n := r.entries(san.DefaultStateDir+"/released", ""); len(n) > 0 {
			t.Errorf("notes are left of what is off the node: %v", n)
		}
	})
}

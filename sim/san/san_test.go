package san_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host/scsi"
	"github.com/csilab/csilab/sim/san"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestVolumeOnANode: what a node writes to an exported volume is there over all
// ports, is what a snapshot of it has, and stays there when the snapshot's
// source goes on.
func TestVolumeOnANode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, san.Config{})
		r.volume("array1", "v")
		r.host("array1", "n1")
		n := r.node("n1")
		if len(n.targets) != 4 || n.targets[0].Tag != 21 || n.targets[3].Tag != 122 {
			t.Fatalf("targets are %+v", n.targets)
		}
		r.export("array1", "v", "n1")
		n.write(0, "first")
		n.is(0, "first")
		r.want(201, "array1", "POST", "/volumes/v", `{"action":"createSnapshot","parameters":{"name":"s","readOnly":true}}`)
		n.write(0, "later")
		r.export("array1", "s", "n1")
		n.is(0, "later")
		n.is(1, "first")
		l, err := n.at(0, 1)
		ok(t, err)
		if v := r.array("array1").Volumes()[0]; !l.ReadOnly || l.Vendor != "3PARdata" || l.Product != "VV" || l.Bytes != 1<<30 ||
			v.WWN == strings.ToUpper(l.WWN) || len(l.WWN) != 32 || strings.ToLower(l.WWN) != l.WWN {
			t.Fatalf("LUN is %+v, volume %+v", l, v)
		}
		if v, s := r.array("array1").Volumes(), r.array("array1").Snapshots(); len(v) != 1 || len(s) != 1 || s[0].Name != "s" {
			t.Fatalf("volumes %+v, snapshots %+v", v, s)
		}

		// A handle sees the volume grow, and fails once it is gone.
		img, err := n.Open(l.Image)
		ok(t, err)
		defer img.Close()
		r.want(200, "array1", "PUT", "/volumes/v", `{"action":3,"sizeMiB":1024}`)
		if l, _ := n.at(0, 0); l.Bytes != 2<<30 {
			t.Fatalf("grown LUN has %d bytes", l.Bytes)
		}
		n.is(0, "later")
		ok(t, r.array("array1").RemoveVLUN("s", "n1"))
		r.want(200, "array1", "DELETE", "/volumes/s", "")
		if _, err := img.WriteAt([]byte("x"), 0); !errors.Is(err, san.ErrNoContent) {
			t.Fatalf("a write to a volume that is gone: %v", err)
		}
		if _, err := n.at(0, 1); !errors.Is(err, scsi.ErrNoLUN) {
			t.Fatalf("a LUN that is gone: %v", err)
		}
	})
}

// TestLUNOfAnother: the number that a volume had leads to the volume that has
// it now.
func TestLUNOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, san.Config{})
		r.host("array1", "n1")
		n := r.node("n1")
		for _, v := range []string{"a", "b"} {
			r.volume("array1", v)
			r.export("array1", v, "n1")
		}
		n.write(0, "this is a")
		n.write(1, "this is b")
		r.want(200, "array1", "DELETE", "/vluns/a,0,n1", "")
		if _, err := n.at(0, 0); !errors.Is(err, scsi.ErrNoLUN) {
			t.Fatal(err)
		}
		a := r.array("array1")
		ok(t, a.RenumberLUN("b", "n1", 0))
		n.is(0, "this is b")
		if err := a.RenumberLUN("b", "n1", 254); err == nil { // of the persona
			t.Fatal("LUN 254 is given")
		}
		n.is(0, "this is b")
		ok(t, a.DeleteVolume("b"))
		if v := a.Volumes(); len(v) != 1 || len(a.Exports()) != 0 {
			t.Fatalf("volumes %+v, exports %+v", v, a.Exports())
		}
	})
}

func TestCHAP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, san.Config{})
		r.host("array1", "n1")
		n := r.node("n1")
		r.want(200, "array1", "PUT", "/hosts/n1", `{"chapOperation":1,"chapOperationMode":1,"chapName":"user","chapSecret":"secret-of-n1"}`)
		login := func(c scsi.CHAP) error { return n.Login(t.Context(), iqn+"n1", n.targets[0], c) }
		for _, c := range []scsi.CHAP{{}, {User: "user"}, {User: "user", Secret: "secret-of-n2"}, {User: "other", Secret: "secret-of-n1"}} {
			if err := login(c); !errors.Is(err, scsi.ErrAuthentication) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%+v: %v", c, err)
			}
		}
		right := scsi.CHAP{User: "user", Secret: "secret-of-n1"}
		ok(t, login(right))
		r.volume("array1", "v")
		r.export("array1", "v", "n1")
		n.wantPaths(0, 4, 4) // who was logged in before stays so

		// After the path was away each logs in anew, with the secret that it has.
		r.san.NodeCut("n1", true)
		n.wantPaths(0, 0, 0)
		r.san.NodeCut("n1", false)
		n.wantPaths(0, 1, 1)
		if got := r.san.LoggedIn("n1", "array1"); got != 1 {
			t.Errorf("%d log-ins", got)
		}
	})
}

// TestPathsGoAndComeBack over iSCSI: a session outlasts the loss of its path.
func TestPathsGoAndComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, san.Config{})
		a := r.array("array1")
		first, second := array.PortPos{Node: 0, Slot: 2, Card: 1}, array.PortPos{Node: 0, Slot: 2, Card: 2}
		n, other := r.node("n1"), r.node("n2")
		r.host("array1", "n1")
		r.host("array1", "n2")
		r.volume("array1", "v")
		r.export("array1", "v", "n1")
		r.export("array1", "v", "n2")
		n.wantPaths(0, 4, 4)
		for _, c := range []struct {
			name         string
			down         func(bool) error
			mine, others int
		}{
			{"port", func(d bool) error { return r.san.PortDown("array1", first, d) }, 3, 3},
			{"path", func(d bool) error { return r.san.PathDown("n1", "array1", second, d) }, 3, 4},
			{"node", func(d bool) error { r.san.NodeCut("n1", d); return nil }, 0, 4},
			{"array", func(d bool) error { return r.san.ArrayDown("array1", d) }, 0, 0},
		} {
			ok(t, c.down(true), c.down(true))
			n.wantPaths(0, c.mine, c.mine)
			other.wantPaths(0, c.others, c.others)
			ok(t, c.down(false))
			n.wantPaths(0, 4, 4)
			other.wantPaths(0, 4, 4)
		}

		ok(t, r.san.PathDown("n1", "array1", first, true))
		if _, err := n.Discover(t.Context(), iqn+"n1", n.targets[0].Portal); !errors.Is(err, scsi.ErrUnreachable) {
			t.Errorf("discovery: %v", err)
		}
		if err := n.Login(t.Context(), iqn+"n1", n.targets[0], scsi.CHAP{}); !errors.Is(err, scsi.ErrUnreachable) {
			t.Errorf("log-in: %v", err)
		}
		var active int
		a.Look(func(c *array.Array) { active = len(c.ActiveVLUNs("n1")) })
		if active != 3 {
			t.Errorf("the array sees %d paths", active)
		}
		n.Logout(iqn+"n1", n.targets[0])
		ok(t, r.san.PathDown("n1", "array1", first, false))
		n.wantPaths(0, 3, 3)
		if err := r.san.PortDown("array1", array.PortPos{Node: 7, Slot: 1, Card: 1}, true); err == nil {
			t.Error("a port that isn't there is down")
		}

		r.node("n1") // another life: no log-in of the old one stays
		if got := r.san.LoggedIn("n1", "array1"); got != 4 {
			t.Errorf("%d log-ins", got)
		}
	})
}

// TestFC: ports are found by the zone, and log-ins work as over iSCSI.
func TestFC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, san.Config{})
		const wwpn = "10000000c9a0b0c1"
		n := r.san.For("n1", scsi.Adapters{WWPNs: []string{strings.ToUpper(wwpn)}})
		all := n.Targets(wwpn)
		if len(all) != 4 || all[0].Protocol != scsi.FC || len(all[0].Name) != 16 || len(all[0].Node) != 16 || n.Targets("10000000c9a0b0c2") != nil {
			t.Fatalf("targets are %+v", all)
		}
		r.volume("array1", "v")
		r.want(201, "array1", "POST", "/hosts", `{"name":"n1","FCWWNs":["10000000C9A0B0C1"]}`)
		r.want(201, "array1", "POST", "/vluns", `{"volumeName":"v","hostname":"n1","lun":3,"portPos":{"node":0,"slot":1,"cardPort":1}}`)
		for i, target := range all {
			if _, err := n.LUNs(wwpn, target); !errors.Is(err, scsi.ErrUnreachable) {
				t.Errorf("without a log-in: %v", err)
			}
			ok(t, n.Login(t.Context(), wwpn, target, scsi.CHAP{}))
			l, err := n.LUNs(wwpn, target)
			if ok(t, err); (len(l) == 1 && l[0].Number == 3) != (i == 0) { // a matched set
				t.Errorf("port %d has %+v", i, l)
			}
		}
		ok(t, r.san.PortDown("array1", array.PortPos{Node: 0, Slot: 1, Card: 1}, true))
		if got := n.Targets(wwpn); len(got) != 3 {
			t.Errorf("targets are %+v", got)
		}
		if _, err := n.Discover(t.Context(), iqn+"n1", "192.0.2.10:3260"); !errors.Is(err, scsi.ErrUnreachable) {
			t.Errorf("iSCSI of a node without: %v", err)
		}
	})
}

// TestPeerPersistence: the primary array is lost while a node writes; the other
// has all of it, under the same WWN, and goes on; once back, the lost one is
// brought up to date.
func TestPeerPersistence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, san.Config{Arrays: make([]san.ArrayConfig, 2), Pairs: []san.Pair{{"array1", "array2"}}})
		r.volume("array1", "v")
		r.want(201, "array1", "POST", "/remotecopygroups", `{"name":"g","targets":[{"targetName":"array2","mode":1,"userCPG":"SSD_r6","snapCPG":"SSD_r6"}]}`)
		r.want(200, "array1", "PUT", "/remotecopygroups/g", `{"targets":[{"targetName":"array2","policies":{"autoFailover":true,"pathManagement":true}}]}`)
		r.want(201, "array1", "POST", "/remotecopygroups/g/volumes", `{"volumeName":"v","volumeAutoCreation":true,"targets":[{"targetName":"array2","secVolumeName":"v"}]}`)
		for _, on := range []string{"array1", "array2"} {
			r.host(on, "n1")
			r.export(on, "v", "n1")
		}
		n := r.node("n1")
		n.write(0, "before")
		r.want(200, "array1", "PUT", "/remotecopygroups/g", `{"action":3}`)
		time.Sleep(time.Minute)
		n.wantPaths(0, 8, 4)
		n.write(0, "in sync")
		if a, b := r.array("array1").Volumes()[0], r.array("array2").Volumes()[0]; a.WWN != b.WWN || a.Image != b.Image {
			t.Fatalf("%+v and %+v", a, b)
		}

		ok(t, r.san.ArrayDown("array1", true))
		if code, _, err := r.send("array1", "GET", "/system", ""); err == nil {
			t.Fatalf("a lost array answers %d", code)
		}
		n.wantPaths(0, 4, 4)
		n.is(0, "in sync")
		n.write(0, "on two")

		ok(t, r.san.ArrayDown("array1", false))
		r.want(403, "array1", "GET", "/system", "") // it was another life
		r.key = map[string]string{}
		r.want(200, "array1", "GET", "/system", "")
		n.wantPaths(0, 8, 4) // what it has is old: it takes no I/O
		n.is(0, "on two")
		ok(t, r.san.Recover("array2"))
		time.Sleep(time.Minute)
		n.wantPaths(0, 8, 4)
		if a, b := r.array("array1").Volumes()[0], r.array("array2").Volumes()[0]; a.Image != b.Image {
			t.Fatalf("recovered: %+v and %+v", a, b)
		}
		n.is(0, "on two")
		if g := r.array("array1").Groups()[0]; g.Role != array.Secondary || g.State != array.GroupIsStarted {
			t.Fatalf("recovered: %+v", g)
		}

		// The link alone: no side takes over, and nothing starts again by itself.
		ok(t, r.san.LinkDown("array1", "array2", true))
		if g := r.array("array2").Groups()[0]; g.Role != array.Primary || g.State != array.GroupIsStopped {
			t.Fatalf("without the link: %+v", g)
		}
		n.is(0, "on two")
		ok(t, r.san.LinkDown("array1", "array2", false))
		if err := r.san.LinkDown("array1", "array1", true); err == nil {
			t.Error("a link to itself")
		}
	})
}

// TestAPIOutage: I/O goes on, and what the API knew is there afterwards.
func TestAPIOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, san.Config{})
		a := r.array("array1")
		r.volume("array1", "v")
		r.host("array1", "n1")
		r.export("array1", "v", "n1")
		n := r.node("n1")
		a.APIDown(true)
		if code, _, err := r.send("array1", "GET", "/system", ""); err == nil {
			t.Fatalf("an API that is cut off answers %d", code)
		}
		n.write(0, "goes on")
		ok(t, r.san.ArrayDown("array1", true), r.san.ArrayDown("array1", false))
		if _, _, err := r.send("array1", "GET", "/system", ""); err == nil {
			t.Fatal("the API is back with the array")
		}
		a.APIDown(false)
		r.key = map[string]string{}
		r.want(200, "array1", "GET", "/volumes/v", "")
		img, err := a.Open("v")
		ok(t, err)
		defer img.Close()
		b := make([]byte, 7)
		if _, err := img.ReadAt(b, 0); err != nil || string(b) != "goes on" {
			t.Fatalf("%q %v", b, err)
		}
		a.EndSessions()
		if b := r.want(403, "array1", "GET", "/system", ""); !strings.Contains(b, `"code":6`) || a.Sessions() != 0 {
			t.Fatalf("%s, %d sessions", b, a.Sessions())
		}
		if _, err := a.Open("w"); err == nil {
			t.Fatal("a volume that isn't there")
		}
	})
}

// TestPromote: content that is replaced is the new one for handles that were
// open before.
func TestPromote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, san.Config{})
		r.host("array1", "n1")
		r.volume("array1", "v")
		r.export("array1", "v", "n1")
		n := r.node("n1")
		n.write(0, "old")
		l, err := n.at(0, 0)
		ok(t, err)
		img, err := n.Open(l.Image)
		ok(t, err)
		defer img.Close()
		r.want(201, "array1", "POST", "/volumes/v", `{"action":"createSnapshot","parameters":{"name":"s","readOnly":true}}`)
		n.write(0, "new")
		ok(t, r.array("array1").RemoveVLUN("v", "n1"))
		r.want(200, "array1", "PUT", "/volumes/s", `{"action":4}`)
		time.Sleep(time.Minute)
		b := make([]byte, 3)
		if _, err := img.ReadAt(b, 0); err != nil || string(b) != "old" {
			t.Fatalf("%q %v", b, err)
		}
	})
}

// TestThinVolumesTakeWhatIsWritten, and snapshots what is written over; where
// the CPG has nothing left the write fails, and content and books stay.
func TestThinVolumesTakeWhatIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, san.Config{})
		a := r.array("array1")
		r.volume("array1", "v")
		r.host("array1", "n1")
		r.export("array1", "v", "n1")
		n := r.node("n1")
		l, err := n.at(0, 0)
		ok(t, err)
		img, err := n.Open(l.Image)
		ok(t, err)
		defer img.Close()
		used := func(user, snap int64) {
			t.Helper()
			if c := a.CPGs()[0]; c.UserMiB != user || c.SnapshotMiB != snap {
				t.Fatalf("%d and %d MiB are used, want %d and %d", c.UserMiB, c.SnapshotMiB, user, snap)
			}
		}
		write := func(off int64, want error) {
			t.Helper()
			if _, err := img.WriteAt([]byte("data"), off); !errors.Is(err, want) {
				t.Fatalf("write at %d: %v", off, err)
			}
		}
		const unit = 256 << 20
		write(unit-2, nil) // of two units
		write(0, nil)
		used(512, 0)
		r.want(201, "array1", "POST", "/volumes/v", `{"action":"createSnapshot","parameters":{"name":"s","readOnly":false}}`)
		write(0, nil)
		write(1, nil)
		write(2*unit, nil) // nothing was there
		used(768, 256)
		r.export("array1", "s", "n1")
		s, err := n.at(0, 1)
		ok(t, err)
		copied, err := n.Open(s.Image)
		ok(t, err)
		defer copied.Close()
		if _, err := copied.WriteAt([]byte("data"), 0); err != nil {
			t.Fatal(err)
		}
		used(768, 512)
		ok(t, a.FillCPG("SSD_r6", 255))
		write(3*unit, syscall.ENOSPC)
		write(unit, syscall.ENOSPC) // the snapshot would have to keep it
		write(0, nil)
		used(768, 512)
		ok(t, a.FillCPG("SSD_r6", -1), a.RemoveVLUN("s", "n1"))
		r.want(200, "array1", "DELETE", "/volumes/s", "")
		used(768, 0)
		write(3*unit, nil)
		write(4*unit, disk.ErrSize)
		used(1024, 0)
	})
}

// TestFullCPG: what fills it behind the driver's back refuses volumes and
// snapshots, thin ones where nothing at all is left.
func TestFullCPG(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, san.Config{Arrays: []san.ArrayConfig{{Config: array.Config{Family: array.ThreePAR}}}})
		ok(t, r.array("array1").FillCPG("SSD_r6", 512))
		full := `{"name":"v","cpg":"SSD_r6","sizeMiB":1024}`
		if b := r.want(400, "array1", "POST", "/volumes", full); !strings.Contains(b, `"code":24`) {
			t.Fatal(b)
		}
		thin := `{"name":"w","cpg":"SSD_r6","snapCPG":"SSD_r6","sizeMiB":1024,"tpvv":true}`
		r.want(201, "array1", "POST", "/volumes", thin)
		ok(t, r.array("array1").FillCPG("SSD_r6", 0)) // nothing at all
		if b := r.want(400, "array1", "POST", "/volumes", strings.Replace(thin, `"w"`, `"x"`, 1)); !strings.Contains(b, `"code":24`) {
			t.Fatal(b)
		}
		if b := r.want(400, "array1", "POST", "/volumes/w", `{"action":"createSnapshot","parameters":{"name":"s"}}`); !strings.Contains(b, `"code":24`) {
			t.Fatal(b)
		}
		ok(t, r.array("array1").FillCPG("SSD_r6", -1))
		r.want(201, "array1", "POST", "/volumes", full)
		ok(t, r.array("array1").SetPassword("3paradm", "other"))
		r.key = map[string]string{}
		if code, b, _ := r.send("array1", "GET", "/system", ""); code != 403 || !strings.Contains(b, `"code":5`) {
			t.Fatal(code, b)
		}
	})
}

func TestConfigurationsThatCannotBe(t *testing.T) {
	port := func(addr string) []array.Port {
		return []array.Port{{PortPos: array.PortPos{Slot: 2, Card: 1}, Protocol: array.ISCSI, Type: array.ISCSIPort, Address: addr}}
	}
	for want, cfg := range map[string]san.Config{
		`array "a" is given twice`:    {Arrays: []san.ArrayConfig{{Config: array.Config{Name: "a"}}, {Config: array.Config{Name: "a"}}}},
		`same serial number`:          {Arrays: []san.ArrayConfig{{Config: array.Config{Seed: 7}}, {Config: array.Config{Seed: 7}}}},
		`no such array`:               {Pairs: []san.Pair{{"array1", "array2"}}},
		`is no IP address`:            {Arrays: []san.ArrayConfig{{Config: array.Config{Ports: port("here")}}}},
		`has the address 192.0.2.1`:   {Arrays: []san.ArrayConfig{{Config: array.Config{Ports: port("192.0.2.1")}}, {Config: array.Config{Ports: port("192.0.2.1")}}}},
		`needs a Store that outlives`: {StateDir: t.TempDir()},
		`EXISTENT_CPG`:                {Arrays: []san.ArrayConfig{{CPGs: []array.CPGSpec{{Name: "c"}, {Name: "c"}}}}},
	} {
		s, err := san.New(context.Background(), cfg)
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %s: %v", want, err)
		}
	}
}

// TestHTTPS on a socket, until the context ends.
func TestHTTPS(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	s, err := san.New(ctx, san.Config{Arrays: []san.ArrayConfig{{TLS: true}}})
	ok(t, err)
	defer s.Close()
	url := s.Arrays()[0].URL()
	if !strings.HasPrefix(url, "https://127.0.0.1:") {
		t.Fatal(url)
	}
	if _, err := http.Get(url + "/api"); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Fatal(err)
	}
	cancel()
}

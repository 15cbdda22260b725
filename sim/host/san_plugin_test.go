package host_test

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/host/scsi/scsitest"
)

// TestSANStepsOfAPlugin goes the way of HPE's node plugin with the commands that it
// runs, the files that it reads and the patterns that it reads them by
// (common-host-libs, packages linux and chapi).
func TestSANStepsOfAPlugin(t *testing.T) {
	eachSAN(t, func(t *testing.T, w *sanWorld) {
		n := w.connect(t)
		serial := scsitest.WWN("v")
		must(t, w.san.Volume("v", 32<<20))
		must(t, w.san.Export("v", n.initiator, 7))

		dmLine := regexp.MustCompile(`(.*)\((?P<Major>\d+),\s+(?P<Minor>\d+)\)`)
		if out := n.run(t, 0, "dmsetup", "ls", "--target", "multipath"); dmLine.MatchString(out) {
			t.Errorf("maps before: %q", out)
		}
		if w.protocol == host.ISCSI {
			n.run(t, 21, "iscsiadm", "-m", "node")
			portals := regexp.MustCompile(`(?m)^(?P<address>.*):(?P<port>\d*),(?P<tag>\d*) (?P<target>iqn.*(com.3pardata):.*)$`)
			found := portals.FindAllStringSubmatch(n.run(t, 0, "iscsiadm", "-m", "discovery", "-t", "st", "-p", "10.0.0.1", "-o", "new"), -1)
			if len(found) != 2 {
				t.Fatalf("portals %q", found)
			}
			for _, f := range found {
				at := []string{"--mode", "node", "--targetname", f[4], "--portal", f[1]}
				n.run(t, 0, "iscsiadm", slices.Concat(at, []string{"--op", "update", "-n", "node.session.auth.username", "-v", ""})...)
				n.run(t, 0, "iscsiadm", slices.Concat(at, []string{"--op", "update", "-n", "node.session.auth.password", "-v", ""})...)
				if out := n.run(t, 0, "iscsiadm", slices.Concat(at, []string{"--login"})...); !strings.Contains(out, "successful.\n") {
					t.Errorf("login: %q", out)
				}
				n.run(t, 0, "iscsiadm", slices.Concat(at, []string{"--op", "update", "-n", "node.startup", "-v", "manual"})...)
			}
			var targets []string
			for _, e := range must1(n.ReadDir("/sys/class/iscsi_session"))(t) {
				targets = append(targets, n.text(t, "/sys/class/iscsi_session/"+e.Name()+"/targetname"))
			}
			slices.Sort(targets)
			if !slices.Equal(targets, []string{w.ports[0].Name, w.ports[1].Name}) {
				t.Errorf("targets %v", targets)
			}
			for _, e := range must1(n.ReadDir("/sys/class/iscsi_host"))(t) {
				number := strings.TrimPrefix(e.Name(), "host")
				dir := "/sys/class/scsi_host/host" + number + "/device/"
				session := ""
				for _, e := range must1(n.ReadDir(dir))(t) {
					if m := regexp.MustCompile(`session(?P<sessionid>\d+)`).FindStringSubmatch(e.Name()); m != nil {
						session = m[1]
					}
				}
				s := dir + "session" + session + "/iscsi_session/session" + session
				c := fmt.Sprintf("/sys/class/iscsi_host/host%s/device/session%s/connection%s:0/iscsi_connection/connection%s:0/", number, session, session, session)
				i := slices.IndexFunc(w.ports, func(p host.Target) bool { return p.Name == n.text(t, s+"/targetname") })
				if i < 0 || n.text(t, s+"/tpgt") != fmt.Sprint(w.ports[i].Tag) || n.text(t, c+"persistent_address")+":"+n.text(t, c+"port") != w.ports[i].Portal {
					t.Errorf("session %s of host %s is not at a port", session, number)
				}
			}
		} else {
			for _, e := range must1(n.ReadDir("/sys/class/fc_host"))(t) {
				at := "/sys/class/fc_host/" + e.Name()
				if n.text(t, at+"/port_name") != "0x"+n.initiator || n.text(t, at+"/port_state") != "Online" || !strings.HasPrefix(n.text(t, at+"/node_name"), "0x20") {
					t.Errorf("%s is another adapter", at)
				}
			}
			var names []string
			for _, e := range must1(n.ReadDir("/sys/class/fc_remote_ports"))(t) {
				names = append(names, n.text(t, "/sys/class/fc_remote_ports/"+e.Name()+"/port_name"))
			}
			if !slices.Equal(names, []string{"0x" + w.ports[0].Name, "0x" + w.ports[1].Name}) {
				t.Errorf("remote ports %v", names)
			}
		}
		n.scan(t, "7")

		// The map with the serial number.
		dm := dmLine.FindStringSubmatch(n.run(t, 0, "dmsetup", "ls", "--target", "multipath"))
		if dm == nil {
			t.Fatal("no map")
		}
		name := "dm-" + dm[3]
		alias := n.text(t, "/sys/block/"+name+"/dm/name")
		if got := strings.TrimPrefix(n.text(t, "/sys/block/"+name+"/dm/uuid"), "mpath-")[1:]; got != serial {
			t.Errorf("serial number %q", got)
		}
		bindings := regexp.MustCompile(`(?m)^(?P<mapname>.*) +.*` + serial).FindString(n.text(t, "/etc/multipath/bindings"))
		if !strings.HasPrefix(bindings, alias+" ") {
			t.Errorf("bindings %q", bindings)
		}
		var paths []string
		for _, line := range regexp.MustCompile("(?m)^.*"+serial+".*$").FindAllString(n.run(t, 0, "multipathd", "show", "paths", "format", "%w %d %t %i %o %T %z %s %m"), -1) {
			f := strings.Fields(line)
			if f[2] != "active" || f[5] != "ready" || !strings.HasSuffix(f[3], ":7") {
				t.Errorf("path %q", line)
			}
			paths = append(paths, f[1])
		}
		if len(paths) != 2 {
			t.Fatalf("paths %v", paths)
		}
		for _, p := range paths {
			target := must1(n.Readlink("/sys/block/" + p))(t)
			if strings.Contains(target, "rport") != (w.protocol == host.FC) || !regexp.MustCompile(`.*\d+:0:\d+:7.*block/`+p).MatchString(target) {
				t.Errorf("%s -> %s", p, target)
			}
		}
		n.run(t, 0, "lsblk", "-b", "-l", "-o", "NAME,TYPE,SIZE", "/dev/mapper/"+alias)

		// It goes: no matter whether the export is gone already.
		w.san.Unexport(n.initiator, 7)
		maps := n.run(t, 0, "multipathd", "show", "maps", "format", "%w %d %n %s")
		if !regexp.MustCompile("(?m)^3" + serial + " +" + name + " +" + alias + " ").MatchString(maps) {
			t.Errorf("maps %q", maps)
		}
		if out := n.run(t, 0, "dmsetup", "message", alias, "0", "fail_if_no_path"); out != "" {
			t.Errorf("message: %q", out)
		}
		if out := n.run(t, 0, "dmsetup", "remove", "--force", alias); out != "" {
			t.Errorf("remove: %q", out)
		}
		for _, p := range paths {
			if got := n.text(t, "/sys/block/"+p+"/device/state"); got != "running" {
				t.Errorf("%s is %s", p, got)
			}
			must(t, n.WriteFile("/sys/block/"+p+"/device/delete", []byte("1\n"), 0o200))
			if _, err := n.Lstat("/sys/block/" + p); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s is left: %v", p, err)
			}
		}
		if out := n.run(t, 0, "dmsetup", "table"); strings.Contains(out, "error") {
			t.Errorf("table %q", out)
		}
		if got := n.Disks(); len(got) != 0 {
			t.Errorf("disks %v", got)
		}
	})
}

// TestSANSession is what is told of a session whose target doesn't answer.
func TestSANSession(t *testing.T) {
	eachSAN(t, func(t *testing.T, w *sanWorld) {
		n := w.node(t)
		must(t, w.san.Volume("v", 1<<20))
		must(t, w.san.Export("v", n.initiator, 0))
		n.scan(t, "-")
		w.san.Down("", w.ports[0], true)
		state := "/sys/class/iscsi_session/session1/state"
		up, down := "LOGGED_IN", "FAILED"
		if w.protocol == host.FC {
			state, up, down = "/sys/class/fc_remote_ports/rport-1:0-0/port_state", "Online", "Blocked"
		}
		if got := n.text(t, state); got != down {
			t.Errorf("%s: %s", state, got)
		}
		if got := n.text(t, "/sys/block/sdb/device/state"); got != "transport-offline" {
			t.Errorf("disk is %s", got)
		}
		if w.protocol == host.ISCSI {
			if _, err := n.ReadFile("/sys/class/iscsi_connection/connection1:0/port"); !errors.Is(err, syscall.ENOTCONN) {
				t.Errorf("port of a connection that is down: %v", err)
			}
		}
		// A scan of what is down finds nothing and takes nothing away.
		n.scan(t, "-")
		if got := len(n.slaves(t, "dm-0")); got != 2 {
			t.Errorf("%d paths", got)
		}
		w.san.Down("", w.ports[0], false)
		n.run(t, 0, "multipath", "-ll")
		if got := n.text(t, state); got != up {
			t.Errorf("%s: %s", state, got)
		}
		if got := n.text(t, "/sys/block/sdb/device/state"); got != "running" {
			t.Errorf("disk is %s", got)
		}
	})
}

// TestSANLossUnderAMount: ext4 whose paths all go while it writes takes no more
// writes, also when they are back, until it is mounted anew.
func TestSANLossUnderAMount(t *testing.T) {
	eachSAN(t, func(t *testing.T, w *sanWorld) {
		n := w.node(t)
		must(t, w.san.Volume("v", 32<<20))
		must(t, w.san.Export("v", n.initiator, 0))
		n.scan(t, "-")
		supports(t, n, "ext4")
		formatAndMount(t, n, "/dev/mapper/mpatha", staging, "ext4")
		must(t, n.WriteAt(staging+"/f", 0, []byte("safe"), true))
		for _, p := range w.ports {
			w.san.Down("", p, true)
		}
		if err := n.WriteAt(staging+"/f", 0, []byte("lost"), true); !errors.Is(err, syscall.EIO) && !errors.Is(err, syscall.EROFS) {
			t.Errorf("write without a path: %v", err)
		}
		if w.kind == "real" {
			// Linux gives up at the next commit of the log, which is due within 5
			// seconds; the write of data alone has not made it.
			_ = n.Exec().Command("sync", "-f", staging).Run()
		}
		for _, p := range w.ports {
			w.san.Down("", p, false)
		}
		n.run(t, 0, "multipath", "-ll")
		if err := n.WriteAt(staging+"/f", 0, []byte("lost"), true); !errors.Is(err, syscall.EIO) && !errors.Is(err, syscall.EROFS) {
			t.Errorf("write with the paths back: %v", err)
		}
		must(t, n.Mounter().Unmount(staging))
		formatAndMount(t, n, "/dev/mapper/mpatha", staging, "ext4")
		if got := must1(n.ReadFile(staging + "/f"))(t); string(got) != "safe" {
			t.Errorf("read %q", got)
		}
		must(t, n.WriteAt(staging+"/f", 0, []byte("good"), true))
		must(t, n.Mounter().Unmount(staging))
	})
}

// TestSANInABubble: nothing of a node on a storage network waits.
func TestSANInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := disk.NewMemory()
		defer store.Close()
		w := &sanWorld{kind: "memory", protocol: host.ISCSI, ports: scsitest.Ports(host.ISCSI, 2)}
		w.san = scsitest.New(store, w.ports...)
		n := w.node(t)
		must(t, w.san.Volume("v", 32<<20))
		must(t, w.san.Export("v", n.initiator, 0))
		n.scan(t, "-")
		n.run(t, 0, "mkfs.ext4", "/dev/mapper/mpatha")
		must(t, n.PowerOff())
		must(t, n.PowerOn())
		synctest.Wait()
	})
}

// TestLocalAndSANDisks share the names.
func TestLocalAndSANDisks(t *testing.T) {
	store := disk.NewMemory()
	defer store.Close()
	w := &sanWorld{kind: "memory", protocol: host.FC, ports: scsitest.Ports(host.FC, 1), dir: filepath.Join("x")}
	w.san = scsitest.New(store, w.ports...)
	n := w.node(t)
	local := &world{kind: "memory", store: store}
	for i, id := range []string{"a", "b"} {
		must(t, w.san.Volume("san-"+id, 1<<20))
		must(t, w.san.Export("san-"+id, n.initiator, i))
		n.scan(t, "-")
		local.disk(t, "local-"+id, 1<<20)
		local.attach(t, n, "local-"+id)
	}
	for p, want := range map[string]string{"/dev/disk/by-path/pci-0000:00:04.0-fc-0x20210002ac012345-lun-0": "/dev/sdb", "/dev/disk/by-id/wwn-0x" + wwn("local-a"): "/dev/sdc",
		"/dev/disk/by-path/pci-0000:00:04.0-fc-0x20210002ac012345-lun-1": "/dev/sdd", "/dev/disk/by-id/wwn-0x" + wwn("local-b"): "/dev/sde"} {
		if got := must1(n.EvalSymlinks(p))(t); got != want {
			t.Errorf("%s is %s, want %s", p, got, want)
		}
	}
	if out := n.run(t, 0, "lsblk", "-nlo", "NAME"); out != "sda\nsdb\nmpatha\nsdc\nsdd\nmpathb\nsde\n" {
		t.Errorf("lsblk: %q", out)
	}
	// A disk that is held open keeps its name while it is gone.
	release := must1(n.Hold("/dev/sdb"))(t)
	must(t, n.WriteFile("/sys/block/sdb/device/delete", []byte("1"), 0o200))
	n.scan(t, "-")
	if got := must1(n.EvalSymlinks("/dev/disk/by-path/pci-0000:00:04.0-fc-0x20210002ac012345-lun-0"))(t); got != "/dev/sdf" {
		t.Errorf("found again as %s", got)
	}
	release()
	release()
}

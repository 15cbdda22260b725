package host_test

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"k8s.io/utils/exec"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/host/scsi/scsitest"
)

// sanWorld is a storage network with nodes of one kind, over one protocol.
type sanWorld struct {
	kind     string
	protocol host.Protocol
	san      *scsitest.SAN
	ports    []host.Target
	dir      string
	n        int
}

// sanNode is a node on it.
type sanNode struct {
	host.Host
	initiator string
}

// newSANHost makes a node of a kind, or says that there is none.
func newSANHost(t testing.TB, kind, name, dir string, san host.SAN, a host.Adapters) host.Host {
	if kind == "memory" {
		return host.NewMemory(host.MemoryConfig{Name: name, Seed: 1, SAN: san, Adapters: a})
	}
	h, err := host.NewReal(t.Context(), host.RealConfig{Name: name, Seed: 1, Dir: dir, SAN: san, Adapters: a})
	must(t, err)
	return h
}

// node makes a node that is logged in to all ports.
func (w *sanWorld) node(t testing.TB) sanNode {
	t.Helper()
	n := w.connect(t)
	if w.protocol == host.ISCSI {
		n.run(t, 0, "iscsiadm", "-m", "discovery", "-t", "st", "-p", "10.0.0.1")
		n.run(t, 0, "iscsiadm", "-m", "node", "--login")
	}
	return n
}

// connect makes a node with an adapter.
func (w *sanWorld) connect(t testing.TB) sanNode {
	t.Helper()
	w.n++
	name := fmt.Sprintf("node-%d", w.n)
	n := sanNode{initiator: fmt.Sprintf("iqn.1994-05.com.redhat:%s", name)}
	a := host.Adapters{Networks: []string{fmt.Sprintf("10.0.1.%d/24", w.n)}}
	if w.protocol == host.FC {
		n.initiator = fmt.Sprintf("10000000c90000%02d", w.n)
		a.WWPNs = []string{n.initiator}
	} else {
		a.IQN = n.initiator
	}
	n.Host = newSANHost(t, w.kind, name, filepath.Join(w.dir, name), w.san, a)
	t.Cleanup(func() {
		must(t, n.Close())
		if l := w.san.Logins(n.initiator); l != 0 {
			t.Errorf("%d log-ins are left", l)
		}
	})
	return n
}

// run runs a command and wants its exit status.
func (n sanNode) run(t testing.TB, status int, cmd string, args ...string) string {
	t.Helper()
	out, err := n.Exec().Command(cmd, args...).CombinedOutput()
	got := 0
	var exit exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitStatus()
	} else if err != nil {
		t.Fatalf("%s %v: %v", cmd, args, err)
	}
	if got != status {
		t.Fatalf("%s %v: exit status %d, want %d:\n%s", cmd, args, got, status, out)
	}
	return string(out)
}

// scan writes "- - lun" to all SCSI hosts.
func (n sanNode) scan(t testing.TB, lun string) {
	t.Helper()
	for _, e := range must1(n.ReadDir("/sys/class/scsi_host"))(t) {
		must(t, n.WriteFile("/sys/class/scsi_host/"+e.Name()+"/scan", []byte("- - "+lun), 0o200))
	}
}

func (n sanNode) text(t testing.TB, p string) string {
	t.Helper()
	return strings.TrimSpace(string(must1(n.ReadFile(p))(t)))
}

// slaves are the paths of a map.
func (n sanNode) slaves(t testing.TB, dm string) []string {
	t.Helper()
	var out []string
	for _, e := range must1(n.ReadDir("/sys/block/" + dm + "/slaves"))(t) {
		out = append(out, e.Name())
	}
	return out
}

// discard takes a volume off a node as a node plugin does.
func (n sanNode) discard(t testing.TB, alias, dm string) {
	t.Helper()
	paths := n.slaves(t, dm)
	n.run(t, 0, "dmsetup", "message", alias, "0", "fail_if_no_path")
	n.run(t, 0, "dmsetup", "remove", "--force", alias)
	for _, p := range paths {
		must(t, n.WriteFile("/sys/block/"+p+"/device/delete", []byte("1"), 0o200))
	}
}

// eachSAN runs a test over all kinds of node and both protocols.
func eachSAN(t *testing.T, f func(t *testing.T, w *sanWorld)) {
	for _, kind := range []string{"memory", "real"} {
		for _, p := range []host.Protocol{host.ISCSI, host.FC} {
			t.Run(kind+"/"+string(p), func(t *testing.T) {
				w := &sanWorld{kind: kind, protocol: p, ports: scsitest.Ports(p, 2)}
				var store disk.Store
				if kind == "memory" {
					t.Parallel()
					store = disk.NewMemory()
				} else {
					if err := realSupported(); err != nil {
						t.Skip(err)
					}
					t.Parallel()
					w.dir = shortTempDir(t)
					store = must1(disk.NewFiles(filepath.Join(w.dir, "disks")))(t)
				}
				t.Cleanup(func() { store.Close() })
				w.san = scsitest.New(store, w.ports...)
				f(t, w)
			})
		}
	}
}

func TestSANLifeOfAVolume(t *testing.T) {
	eachSAN(t, func(t *testing.T, w *sanWorld) {
		n := w.node(t)
		serial := scsitest.WWN("v")
		must(t, w.san.Volume("v", 32<<20))
		must(t, w.san.Export("v", n.initiator, 5))
		if out := n.run(t, 0, "dmsetup", "ls", "--target", "multipath"); out != "" {
			t.Errorf("maps before the scan: %q", out)
		}
		n.scan(t, "4")
		if len(n.Disks()) != 0 {
			t.Error("a scan of another LUN found it")
		}
		n.scan(t, "5")
		if got := n.Disks(); !slices.Equal(got, []string{serial}) {
			t.Errorf("disks %v", got)
		}
		if out := n.run(t, 0, "dmsetup", "ls", "--target", "multipath"); out != "mpatha\t(253, 0)\n" {
			t.Errorf("dmsetup ls: %q", out)
		}
		if got := n.text(t, "/sys/block/dm-0/dm/uuid"); got != "mpath-3"+serial {
			t.Errorf("dm/uuid %q", got)
		}
		if got := n.text(t, "/sys/block/dm-0/size"); got != "65536" {
			t.Errorf("size %q", got)
		}
		paths := n.slaves(t, "dm-0")
		if len(paths) != 2 {
			t.Fatalf("paths %v", paths)
		}
		for i, line := range strings.Split(strings.TrimSpace(n.run(t, 0, "multipathd", "show", "paths", "format", "%w %d %t %i %o %T %c %s %m"))+"\n", "\n")[1:3] {
			f := strings.Fields(line)
			if len(f) != 9 || f[0] != "3"+serial || f[1] != paths[i] || f[2] != "active" || !strings.HasSuffix(f[3], ":5") || f[4] != "running" || f[5] != "ready" || f[7] != "3PARdata,VV" || f[8] != "mpatha" {
				t.Errorf("path %d: %q", i, line)
			}
		}
		if out := n.run(t, 0, "multipathd", "show", "maps", "format", "%w %d %n %s"); !strings.Contains(out, "3"+serial+" dm-0  mpatha 3PARdata,VV\n") {
			t.Errorf("show maps: %q", out)
		}
		for _, p := range paths {
			if got := n.text(t, "/sys/block/"+p+"/device/state"); got != "running" {
				t.Errorf("%s is %q", p, got)
			}
			if got := n.text(t, "/sys/block/"+p+"/device/wwid"); got != "naa."+serial {
				t.Errorf("%s: wwid %q", p, got)
			}
			if _, err := n.Lstat("/sys/block/" + p + "/holders/dm-0"); err != nil {
				t.Error(err)
			}
			link := must1(n.Readlink("/sys/block/" + p))(t)
			if fc := strings.Contains(link, "rport"); fc != (w.protocol == host.FC) {
				t.Errorf("%s leads to %s", p, link)
			}
		}
		for _, p := range []string{"/dev/mapper/mpatha", "/dev/disk/by-id/dm-name-mpatha", "/dev/disk/by-id/dm-uuid-mpath-3" + serial, "/dev/disk/by-id/wwn-0x" + serial, "/dev/disk/by-id/scsi-3" + serial} {
			if got := must1(n.EvalSymlinks(p))(t); got != "/dev/dm-0" {
				t.Errorf("%s leads to %s", p, got)
			}
		}
		if out := n.run(t, 0, "lsblk", "-b", "-l", "-o", "NAME,TYPE,SIZE", "/dev/mapper/mpatha"); strings.Join(strings.Fields(out), " ") != "NAME TYPE SIZE mpatha mpath 33554432" {
			t.Errorf("lsblk: %q", out)
		}

		// A filesystem on the map; a path of it is busy.
		supports(t, n, "ext4")
		formatAndMount(t, n, "/dev/mapper/mpatha", staging, "ext4")
		if m, ok := listed(t, n, staging); !ok || path.Base(m.Device) != "mpatha" && path.Base(m.Device) != "dm-0" {
			t.Errorf("mounted %+v", m)
		}
		must(t, n.MkdirAll("/mnt/path", 0o755))
		if err := n.Mounter().Mount("/dev/"+paths[0], "/mnt/path", "ext4", nil); err == nil || !strings.Contains(err.Error(), "busy") {
			t.Errorf("a path of a map was mounted: %v", err)
		}
		must(t, n.WriteAt(staging+"/data", 0, []byte("precious"), true))

		// A path goes: nobody sees it.
		w.san.Down("", w.ports[0], true)
		must(t, n.WriteAt(staging+"/more", 0, []byte("also"), true))
		if out := n.run(t, 0, "multipathd", "show", "paths", "raw", "format", "%t %T"); !strings.Contains(out, "failed faulty\n") || !strings.Contains(out, "active ready\n") {
			t.Errorf("with a path down: %q", out)
		}
		w.san.Down("", w.ports[0], false)
		if out := n.run(t, 0, "multipathd", "show", "paths", "raw", "format", "%t %T"); out != "active ready\nactive ready\n" {
			t.Errorf("with the path back: %q", out)
		}

		// In use it can't be removed.
		n.run(t, 1, "multipath", "-f", "mpatha")
		must(t, n.Mounter().Unmount(staging))
		n.discard(t, "mpatha", "dm-0")
		for _, p := range []string{"/dev/mapper/mpatha", "/dev/dm-0", "/sys/block/dm-0", "/dev/disk/by-id/wwn-0x" + serial, "/sys/block/" + paths[0], "/dev/" + paths[0]} {
			if _, err := n.Lstat(p); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s is left: %v", p, err)
			}
		}
		w.san.Unexport(n.initiator, 5)

		// Another node reads what was written.
		n2 := w.node(t)
		must(t, w.san.Export("v", n2.initiator, 1))
		n2.run(t, 0, "rescan-scsi-bus.sh")
		formatAndMount(t, n2, "/dev/mapper/mpatha", staging, "ext4")
		for name, want := range map[string]string{"data": "precious", "more": "also"} {
			if got := must1(n2.ReadFile(staging + "/" + name))(t); string(got) != want {
				t.Errorf("%s: read %q on another node", name, got)
			}
		}
		must(t, n2.Mounter().Unmount(staging))
	})
}

func TestSANStaleDisk(t *testing.T) {
	eachSAN(t, func(t *testing.T, w *sanWorld) {
		n := w.node(t)
		for _, id := range []string{"old", "new"} {
			must(t, w.san.Volume(id, 1<<20))
			img := must1(w.san.Store.Open(id))(t)
			must1(img.WriteAt([]byte(id), 0))(t)
			must(t, img.Sync())
			img.Close()
		}
		must(t, w.san.Export("old", n.initiator, 0))
		n.scan(t, "-")
		w.san.Unexport(n.initiator, 0)
		if _, err := n.ReadAt("/dev/mapper/mpatha", 0, 3); !errors.Is(err, syscall.EIO) {
			t.Errorf("read without a unit: %v", err)
		}
		must(t, w.san.Export("new", n.initiator, 0))
		n.scan(t, "-")
		if got := must1(n.ReadAt("/dev/disk/by-id/wwn-0x"+scsitest.WWN("old"), 0, 3))(t); string(got) != "new" {
			t.Errorf("read %q through the stale map: the hazard is gone", got)
		}
		if _, err := n.Lstat("/dev/disk/by-id/wwn-0x" + scsitest.WWN("new")); err == nil {
			t.Error("the new unit shows up without a rescan")
		}
		// Who asks the unit itself is told.
		if out := n.run(t, 0, "/lib/udev/scsi_id", "--whitelisted", "--device=/dev/mapper/mpatha"); out != "3"+scsitest.WWN("new")+"\n" {
			t.Errorf("scsi_id: %q", out)
		}
		n.discard(t, "mpatha", "dm-0")
		n.scan(t, "0")
		if got := must1(n.ReadAt("/dev/disk/by-id/wwn-0x"+scsitest.WWN("new"), 0, 3))(t); string(got) != "new" {
			t.Errorf("read %q", got)
		}
	})
}

func TestSANGrowth(t *testing.T) {
	eachSAN(t, func(t *testing.T, w *sanWorld) {
		n := w.node(t)
		must(t, w.san.Volume("v", 32<<20))
		must(t, w.san.Export("v", n.initiator, 0))
		n.scan(t, "-")
		supports(t, n, "ext4")
		formatAndMount(t, n, "/dev/mapper/mpatha", staging, "ext4")
		must(t, w.san.Grow("v", 64<<20))
		size := func() int64 { return must1(n.DeviceSize("/dev/mapper/mpatha"))(t) }
		n.run(t, 0, "multipathd", "resize", "map", "mpatha")
		if size() != 32<<20 {
			t.Error("grown without a rescan of the paths")
		}
		paths := n.slaves(t, "dm-0")
		must(t, n.WriteFile("/sys/block/"+paths[0]+"/device/rescan", []byte("1"), 0o200))
		n.run(t, 1, "multipathd", "resize", "map", "mpatha")
		must(t, n.WriteFile("/sys/block/"+paths[1]+"/device/rescan", []byte("1"), 0o200))
		if size() != 32<<20 {
			t.Error("grown without a resize of the map")
		}
		if out := n.run(t, 0, "multipathd", "resize", "map", "mpatha"); out != "ok\n" {
			t.Errorf("resize: %q", out)
		}
		if size() != 64<<20 {
			t.Errorf("size %d", size())
		}
		if err := n.Supports("grow-online:ext4"); err == nil {
			n.run(t, 0, "resize2fs", "/dev/mapper/mpatha")
			if u := must1(n.Statfs(staging))(t); u.TotalBytes < 50<<20 {
				t.Errorf("filesystem of %d bytes", u.TotalBytes)
			}
		}
		must(t, n.Mounter().Unmount(staging))
	})
}

func TestSANPower(t *testing.T) {
	eachSAN(t, func(t *testing.T, w *sanWorld) {
		n := w.node(t)
		must(t, w.san.Volume("v", 1<<20))
		must(t, w.san.Export("v", n.initiator, 0))
		n.scan(t, "-")
		must(t, n.WriteAt("/dev/mapper/mpatha", 0, []byte("kept"), true))
		must(t, n.WriteAt("/dev/mapper/mpatha", 4, []byte("lost"), false))
		if w.protocol == host.ISCSI {
			n.run(t, 0, "iscsiadm", "-m", "node", "-p", "10.0.0.1:3260", "-o", "update", "-n", "node.startup", "-v", "automatic")
		}
		must(t, n.PowerOff())
		if l := w.san.Logins(n.initiator); l != 0 {
			t.Errorf("%d log-ins of a node without power", l)
		}
		must(t, n.PowerOn())
		want := len(w.ports) // what is automatic: all of FC
		if w.protocol == host.ISCSI {
			want = 1
		}
		if got := len(n.slaves(t, "dm-0")); got != want {
			t.Errorf("%d paths after the boot, want %d", got, want)
		}
		if got := must1(n.ReadAt("/dev/mapper/mpatha", 0, 8))(t); string(got) != "kept\x00\x00\x00\x00" {
			t.Errorf("read %q after the boot", got)
		}
	})
}

func TestSANReadOnly(t *testing.T) {
	eachSAN(t, func(t *testing.T, w *sanWorld) {
		n := w.node(t)
		must(t, w.san.Volume("v", 32<<20))
		must(t, w.san.Export("v", n.initiator, 0))
		n.scan(t, "-")
		supports(t, n, "ext4")
		formatAndMount(t, n, "/dev/mapper/mpatha", staging, "ext4")
		must(t, n.WriteFile(staging+"/f", []byte("x"), 0o644))
		must(t, n.Mounter().Unmount(staging))
		n.discard(t, "mpatha", "dm-0")
		w.san.Change(n.initiator, 0, func(l *host.LUN) { l.ReadOnly = true })
		n.scan(t, "-")
		if got := n.text(t, "/sys/block/dm-0/ro"); got != "1" {
			t.Errorf("ro is %q", got)
		}
		wantErrno(t, n.WriteAt("/dev/mapper/mpatha", 0, []byte("x"), true), syscall.EPERM)
		// mount(8) takes -o rw for a wish, -w for an order (mount(8), --rw).
		if n.Kind() == "real" {
			n.run(t, 32, "mount", "-w", "/dev/mapper/mpatha", staging)
		} else if err := n.Mounter().Mount("/dev/mapper/mpatha", staging, "ext4", []string{"rw"}); err == nil || !strings.Contains(err.Error(), "read-only") {
			t.Errorf("mounted rw: %v", err)
		}
		must(t, n.Mounter().Mount("/dev/mapper/mpatha", staging, "ext4", nil))
		wantErrno(t, n.WriteFile(staging+"/f", []byte("y"), 0o644), syscall.EROFS)
		must(t, n.Mounter().Unmount(staging))
	})
}

package host_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/mount-utils"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/host/scsi"
	"github.com/csilab/csilab/sim/host/scsi/scsitest"
	"github.com/csilab/csilab/sim/host/shim"
	"github.com/csilab/csilab/sim/ledger"
)

// TestEmulatedCommands: a link for each program that the stack is.
func TestEmulatedCommands(t *testing.T) {
	want := slices.Sorted(slices.Values(append(scsi.Commands(), "ip")))
	if !slices.Equal(want, shim.Emulated) {
		t.Errorf("the node has %v, links are made for %v", want, shim.Emulated)
	}
}

// realSANNode makes a real node and a network with one volume, exported to it.
func realSANNode(t *testing.T, p host.Protocol, in *fault.Interceptor) (*sanWorld, sanNode, *host.Real) {
	t.Helper()
	if err := realSupported(); err != nil {
		t.Skip(err)
	}
	w := &sanWorld{kind: "real", protocol: p, ports: scsitest.Ports(p, 2), dir: shortTempDir(t)}
	store := must1(disk.NewFiles(filepath.Join(w.dir, "disks")))(t)
	t.Cleanup(func() { store.Close() })
	w.san = scsitest.New(store, w.ports...)
	cfg := host.RealConfig{Name: "node-1", Seed: 1, Dir: filepath.Join(w.dir, "n"), SAN: w.san, Interceptor: in,
		Adapters: host.Adapters{Networks: []string{"10.0.1.1/24"}}}
	n := sanNode{initiator: "iqn.1994-05.com.redhat:node-1"}
	if p == host.FC {
		n.initiator = "10000000c9000001"
		cfg.Adapters.WWPNs = []string{n.initiator}
	} else {
		cfg.Adapters.IQN = n.initiator
	}
	r := must1(host.NewReal(context.Background(), cfg))(t)
	t.Cleanup(func() { must(t, r.Close()) })
	n.Host = r
	must(t, w.san.Volume("v", 32<<20))
	must(t, w.san.Export("v", n.initiator, 5))
	return w, n, r
}

// plugin is what a node plugin for such arrays does, in shell: it knows nothing
// but commands and files.
const plugin = `
set -e
serial=$1 staging=$2
find_map() {
	for d in /sys/block/dm-*; do
		if [ "$(cat $d/dm/uuid 2>/dev/null)" = mpath-3$serial ]; then cat $d/dm/name; return; fi
	done
}
[ -z "$(find_map)" ]
if [ -e /sys/class/fc_host ]; then
	for h in /sys/class/fc_host/host*; do grep -q Online $h/port_state; echo "- - 5" > /sys/class/scsi_host/$(basename $h)/scan; done
else
	grep -q InitiatorName /etc/iscsi/initiatorname.iscsi
	iscsiadm -m discovery -t st -p 10.0.0.1 -o new
	iscsiadm -m node | while read portal iqn; do
		iscsiadm --mode node --targetname $iqn --portal ${portal%%,*} --op update -n node.session.auth.password -v verysecret123
		iscsiadm --mode node --targetname $iqn --portal ${portal%%,*} --login
	done
	for s in /sys/class/iscsi_session/session*; do grep -q 3pardata $s/targetname; done
	for h in /sys/class/iscsi_host/host*; do echo "- - 5" > /sys/class/scsi_host/$(basename $h)/scan; done
fi
dmsetup ls --target multipath
multipathd show paths format "%w %d %t %i %o %T %z %s %m"
map=$(find_map)
[ -b /dev/mapper/$map ]
lsblk -b -l -o NAME,TYPE,SIZE /dev/mapper/$map
if cryptsetup status -v /dev/mapper/$map; then exit 9; fi
mkfs.ext4 -q /dev/mapper/$map
blkid -o export /dev/mapper/$map | grep TYPE
mkdir -p $staging
mount -t ext4 /dev/mapper/$map $staging
grep " $staging " /proc/mounts
echo precious > $staging/data
sync -f $staging
umount $staging
slaves=$(ls /sys/block/dm-0/slaves)
dmsetup message $map 0 fail_if_no_path
dmsetup remove --force $map
for s in $slaves; do echo 1 > /sys/block/$s/device/delete; done
[ -z "$(find_map)" ]
[ ! -e /dev/mapper/$map ]
echo done
`

// TestUnmodifiedPlugin: a program that isn't ours, as a process of the node.
func TestUnmodifiedPlugin(t *testing.T) {
	for _, p := range []host.Protocol{host.ISCSI, host.FC} {
		t.Run(string(p), func(t *testing.T) {
			t.Parallel()
			in := &fault.Interceptor{Ledger: &ledger.Ledger{}, Plan: &fault.Plan{}}
			w, _, r := realSANNode(t, p, in)
			var out bytes.Buffer
			proc := must1(r.StartProcess(context.Background(), []string{"sh", "-c", plugin, "sh", scsitest.WWN("v"), staging}, nil, &out, &out))(t)
			if err := proc.Wait(); err != nil {
				t.Fatalf("%v:\n%s", err, out.String())
			}
			for _, want := range []string{"mpatha\t(253, 0)\n", "3" + scsitest.WWN("v") + " sdb active ", "mpatha mpath 33554432\n", "TYPE=ext4\n", "/dev/mapper/mpatha " + staging, "done\n"} {
				if !strings.Contains(strings.Join(strings.Fields(out.String()), " "), strings.Join(strings.Fields(want), " ")) {
					t.Errorf("no %q in\n%s", want, out.String())
				}
			}
			ops := map[string]int{}
			for _, e := range in.Ledger.Entries() {
				ops[e.Op]++
				if strings.Contains(e.Request, "verysecret123") {
					t.Errorf("the ledger has a secret: %s", e.Request)
				}
			}
			for _, op := range []string{"exec dmsetup", "exec multipathd", "exec lsblk", "exec mkfs.ext4", "Mount", "Unmount"} {
				if ops[op] == 0 {
					t.Errorf("%s is not in the ledger: %v", op, ops)
				}
			}
			// What it wrote is on the array.
			img := must1(w.san.Store.Open("v"))(t)
			defer img.Close()
			if all := must1(io.ReadAll(io.NewSectionReader(img, 0, img.Size())))(t); !bytes.Contains(all, []byte("precious\n")) {
				t.Error("what was synced is not in the volume")
			}
			// A rule reaches an emulated command.
			rule := in.Plan.Arm(fault.Rule{Hop: ledger.Host, Op: "exec dmsetup", Nth: 1, Do: fault.Error(syscall.EIO)})
			out.Reset()
			proc = must1(r.StartProcess(context.Background(), []string{"sh", "-c", "/usr/sbin/dmsetup ls || dmsetup ls"}, nil, &out, &out))(t)
			if err := proc.Wait(); err != nil || rule.Fired() != 1 || !strings.Contains(out.String(), "input/output error") {
				t.Errorf("dmsetup that a rule refused: %v, %q", err, out.String())
			}
		})
	}
}

// TestRealIOErrors: what the network does is felt below a real mount.
func TestRealIOErrors(t *testing.T) {
	w, n, _ := realSANNode(t, host.FC, nil)
	t.Parallel()
	supports(t, n, "ext4")
	n.scan(t, "5")
	formatAndMount(t, n, "/dev/mapper/mpatha", staging, "ext4")
	must(t, n.WriteAt(staging+"/data", 0, []byte("before"), true))
	// One path down: nobody sees it. Both down: EIO, and the filesystem gives up.
	w.san.Down("", w.ports[0], true)
	must(t, n.WriteAt(staging+"/data", 0, []byte("beyond"), true))
	w.san.Down("", w.ports[1], true)
	if err := n.WriteAt(staging+"/data", 0, []byte("losing"), true); !errors.Is(err, syscall.EIO) && !errors.Is(err, syscall.EROFS) {
		t.Errorf("write without a path: %v", err)
	}
	for _, p := range w.ports {
		w.san.Down("", p, false)
	}
	must(t, n.Mounter().Unmount(staging))
	must(t, n.Mounter().Mount("/dev/mapper/mpatha", staging, "ext4", nil))
	if got := must1(n.ReadFile(staging + "/data"))(t); string(got) != "beyond" && string(got) != "losing" {
		t.Errorf("read %q with the paths back", got)
	}
	// Bytes that change on the array are read by the node: nothing is kept apart.
	must(t, n.Mounter().Unmount(staging))
	img := must1(w.san.Store.Open("v"))(t)
	defer img.Close()
	must1(img.WriteAt(bytes.Repeat([]byte{0xff}, 4096), 0))(t)
	if err := n.Mounter().Mount("/dev/mapper/mpatha", staging, "ext4", nil); err == nil {
		t.Error("a filesystem without its superblock was mounted")
	}
}

// TestSysIsNotHidden: a plugin finds what isn't the storage network's, too.
func TestSysIsNotHidden(t *testing.T) {
	_, n, _ := realSANNode(t, host.ISCSI, nil)
	t.Parallel()
	for _, p := range []string{"/sys/class/net", "/sys/devices/system/cpu/online", "/sys/devices/virtual/net", "/sys/bus/cpu", "/sys/fs", "/sys/class/dmi/id/product_serial", "/etc/passwd"} {
		if _, err := n.Stat(p); err != nil {
			if _, here := os.Stat(p); here == nil {
				t.Error(err)
			}
		}
	}
	if got := n.text(t, "/sys/class/dmi/id/sys_vendor"); got != "HPE" {
		t.Errorf("vendor %q", got)
	}
	wantErrno(t, n.WriteFile("/sys/class/new", nil, 0o644), syscall.EACCES)
	wantErrno(t, n.MkdirAll("/sys/class/new", 0o755), syscall.EPERM)
	must(t, n.WriteFile("/etc/iscsi/own", []byte("x"), 0o600))
	if _, err := os.Stat("/etc/iscsi/own"); err == nil {
		t.Error("the node wrote to the machine's /etc")
	}
}

func init() {
	// sanlab is a lab on a storage network that is killed while it writes.
	host.RegisterChild("sanlab", func(args []string) int {
		if err := sanLab(args[0]); err != nil {
			fmt.Println(err)
		}
		return 1
	})
}

func sanLab(dir string) error {
	if _, err := host.LockLab(dir); err != nil {
		return err
	}
	store, err := disk.NewFiles(filepath.Join(dir, "disks"))
	if err != nil {
		return err
	}
	const wwpn = "10000000c9000001"
	w := scsitest.New(store, scsitest.Ports(host.FC, 2)...)
	h, err := host.NewReal(context.Background(), host.RealConfig{Name: "n", Dir: filepath.Join(dir, "n"), SAN: w, Adapters: host.Adapters{WWPNs: []string{wwpn}}})
	if err != nil {
		return err
	}
	if err := errors.Join(w.Volume("v", 64<<20), w.Export("v", wwpn, 5), h.MkdirAll(staging, 0o700),
		h.WriteFile("/sys/class/scsi_host/host1/scan", []byte("- - -"), 0o200)); err != nil {
		return err
	}
	if err := mount.NewSafeFormatAndMount(h.Mounter(), h.Exec()).FormatAndMount("/dev/mapper/mpatha", staging, "ext4", nil); err != nil {
		return err
	}
	// This process and one of the node's write and look at /sys without an end.
	if _, err := h.StartProcess(context.Background(), []string{"sh", "-c", "while :; do dd if=/dev/zero of=" + staging + "/child bs=64k count=32 conv=fsync; cat /sys/block/*/size; done"}, nil, nil, nil); err != nil {
		return err
	}
	data := make([]byte, 1<<20)
	go func() {
		for {
			_, _ = h.ReadDir("/sys/class/fc_host")
			_, _ = h.ReadFile("/sys/block/sdb/device/state")
		}
	}()
	for i := 0; ; i++ {
		if err := h.WriteAt(fmt.Sprintf("%s/own-%d", staging, i%16), 0, data, true); err != nil {
			return err
		}
		if i == 3 {
			fmt.Println("ready")
		}
	}
}

// TestKilledSANLabLeavesNothing: SIGKILL while it writes, then a sweep. Processes
// that wait for I/O of the dead one must not stay.
func TestKilledSANLabLeavesNothing(t *testing.T) {
	if err := realSupported(); err != nil {
		t.Skip(err)
	}
	t.Parallel()
	root := shortTempDir(t)
	dead := filepath.Join(root, "dead")
	argv, env, err := host.ChildCommand("sanlab", dead)
	must(t, err)
	c := osexec.Command(argv[0], argv[1:]...)
	c.Env = env
	o := newOutput()
	c.Stdout, c.Stderr = o.w, o.w
	c.WaitDelay = time.Second
	must(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill() })
	o.wait(t, "ready")
	if n := len(markedBelow(dead)); n < 2 {
		t.Errorf("%d processes of the lab: relay and shell are not found", n)
	}
	loops := loopsOf(c.Process.Pid)
	if len(loops) != 3 {
		t.Errorf("the lab holds loop devices %v, want two paths and a map", loops)
	}
	must(t, c.Process.Kill())
	_ = c.Wait()
	if removed, err := host.Sweep(root); err != nil || len(removed) != 1 {
		t.Errorf("swept %v %v", removed, err)
	}
	eventually(t, "no process of the dead lab", func() bool { return len(markedBelow(dead)) == 0 })
	for _, l := range loops {
		eventually(t, l+" is free", func() bool {
			b, err := os.ReadFile("/sys/block/" + filepath.Base(l) + "/loop/backing_file")
			return err != nil || !strings.Contains(string(b), "/lun/")
		})
	}
}

// loopsOf lists the loop devices that a process has open.
func loopsOf(pid int) (out []string) {
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range fds {
		if l, err := os.Readlink(fd); err == nil && strings.HasPrefix(l, "/dev/loop") && !slices.Contains(out, l) {
			out = append(out, l)
		}
	}
	return out
}

// TestRealLocalAndSANDisks: disks that are plugged in and disks that a scan
// finds share the names, also when they come at the same time.
func TestRealLocalAndSANDisks(t *testing.T) {
	w, n, r := realSANNode(t, host.FC, nil)
	t.Parallel()
	local := &world{kind: "real", store: w.san.Store, dir: w.dir}
	local.disk(t, "a", 1<<20)
	local.disk(t, "b", 1<<20)
	local.attach(t, r, "a")
	scanned := make(chan error, 1)
	go func() {
		_, err := n.Exec().Command("rescan-scsi-bus.sh").CombinedOutput()
		scanned <- err
	}()
	local.attach(t, r, "b")
	must(t, <-scanned)
	seen := map[string]bool{}
	for _, p := range []string{"/dev/disk/by-id/wwn-0x" + wwn("a"), "/dev/disk/by-id/wwn-0x" + wwn("b"), "/dev/mapper/mpatha",
		"/dev/disk/by-path/pci-0000:00:04.0-fc-0x20210002ac012345-lun-5", "/dev/disk/by-path/pci-0000:00:04.0-fc-0x21210002ac012345-lun-5"} {
		at := must1(n.EvalSymlinks(p))(t)
		if seen[at] {
			t.Errorf("%s is at %s, as another is", p, at)
		}
		seen[at] = true
	}
	if out := n.run(t, 0, "lsblk", "-nlo", "NAME"); strings.Count(out, "sd") != 5 {
		t.Errorf("lsblk: %q", out)
	}
	// What is pulled while it is mounted keeps its name.
	supports(t, n, "ext4")
	local.disk(t, "c", 32<<20)
	formatAndMount(t, r, local.attach(t, r, "c"), staging, "ext4")
	name := must1(n.EvalSymlinks("/dev/disk/by-id/wwn-0x" + wwn("c")))(t)
	must(t, r.DetachDisk(context.Background(), wwn("c")))
	must(t, w.san.Volume("late", 1<<20))
	must(t, w.san.Export("late", n.initiator, 6))
	n.scan(t, "6")
	if at := must1(n.EvalSymlinks("/dev/disk/by-path/pci-0000:00:04.0-fc-0x20210002ac012345-lun-6"))(t); at == name {
		t.Errorf("%s is given away while it is mounted", at)
	}
	must(t, n.Mounter().Unmount(staging))
}

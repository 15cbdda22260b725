package host_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"k8s.io/klog/v2"
	"k8s.io/mount-utils"
	"k8s.io/utils/exec"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host"
)

func TestMain(m *testing.M) {
	host.Main()
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func must1[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// world is a store and nodes of one kind.
type world struct {
	kind  string
	store disk.Store
	dir   string
	n     int
}

func (w *world) node(t testing.TB) host.Host {
	t.Helper()
	w.n++
	name := fmt.Sprintf("node-%d", w.n)
	var h host.Host
	if w.kind == "memory" {
		h = host.NewMemory(host.MemoryConfig{Name: name, Seed: 1})
	} else {
		h = newReal(t, name, filepath.Join(w.dir, name))
	}
	t.Cleanup(func() { must(t, h.Close()) })
	return h
}

// disk makes an image and gives its wwn.
func (w *world) disk(t testing.TB, id string, size int64) string {
	t.Helper()
	must(t, w.store.Create(id, size))
	return wwn(id)
}

// wwn is made from an image's id.
func wwn(id string) string {
	return fmt.Sprintf("6000c29%025x", []byte(id))[:32]
}

func (w *world) attach(t testing.TB, h host.Host, id string) string {
	t.Helper()
	img := must1(w.store.Open(id))(t)
	t.Cleanup(func() { img.Close() })
	must(t, h.AttachDisk(context.Background(), wwn(id), img))
	return "/dev/disk/by-id/wwn-0x" + wwn(id)
}

// each runs a test over both kinds of node.
func each(t *testing.T, f func(t *testing.T, w *world)) {
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		s := disk.NewMemory()
		t.Cleanup(func() { s.Close() })
		f(t, &world{kind: "memory", store: s})
	})
	t.Run("real", func(t *testing.T) {
		if err := realSupported(); err != nil {
			t.Skip(err)
		}
		t.Parallel()
		dir := shortTempDir(t)
		s := must1(disk.NewFiles(filepath.Join(dir, "disks")))(t)
		t.Cleanup(func() { s.Close() })
		f(t, &world{kind: "real", store: s, dir: dir})
	})
}

// supports skips a test where the machine can't do a thing.
func supports(t *testing.T, h host.Host, feature string) {
	t.Helper()
	if err := h.Supports(feature); err != nil {
		t.Skip(err)
	}
}

func formatAndMount(t testing.TB, h host.Host, dev, target, fstype string, opts ...string) {
	t.Helper()
	must(t, h.MkdirAll(target, 0o750))
	must(t, tryFormatAndMount(h, dev, target, fstype, opts...))
}

// tryFormatAndMount is mount-utils' way on Linux. Elsewhere mount-utils has
// none, and the same commands are run by hand.
func tryFormatAndMount(h host.Host, dev, target, fstype string, opts ...string) error {
	if runtime.GOOS == "linux" {
		return mount.NewSafeFormatAndMount(h.Mounter(), h.Exec()).FormatAndMount(dev, target, fstype, opts)
	}
	found, err := diskFormat(h, dev)
	if err != nil {
		return err
	}
	ro := slices.Contains(opts, "ro")
	switch {
	case found == "" && ro:
		return mount.NewMountError(mount.UnformattedReadOnly, "unformatted")
	case found == "":
		if err := h.Exec().Command("mkfs."+fstype, dev).Run(); err != nil {
			return err
		}
	case !ro:
		if out, err := h.Exec().Command("fsck", "-a", dev).CombinedOutput(); err != nil {
			return mount.NewMountError(mount.HasFilesystemErrors, "%v: %s", err, out)
		}
	}
	if err := h.Mounter().Mount(dev, target, fstype, append(opts, "defaults")); err != nil {
		return mount.NewMountError(mount.FilesystemMismatch, "%v", err)
	}
	return nil
}

// diskFormat is mount-utils' GetDiskFormat.
func diskFormat(h host.Host, dev string) (string, error) {
	out, err := h.Exec().Command("blkid", "-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", dev).CombinedOutput()
	if exit, ok := err.(exec.ExitError); ok && exit.ExitStatus() == 2 {
		return "", nil
	}
	_, format, _ := strings.Cut(strings.TrimSpace(string(out)), "TYPE=")
	return format, err
}

// sizes that each filesystem takes.
var sizes = map[string]int64{"ext4": 32 << 20, "ext3": 32 << 20, "xfs": 320 << 20}

const staging = "/var/lib/kubelet/plugins/kubernetes.io/csi/x/globalmount"

func isMount(t testing.TB, h host.Host, p string) bool {
	t.Helper()
	a := must1(h.Mounter().IsMountPoint(p))(t)
	b := must1(h.Mounter().IsLikelyNotMountPoint(p))(t)
	if a == b {
		t.Errorf("%s: IsMountPoint %v, IsLikelyNotMountPoint %v", p, a, b)
	}
	return a
}

func listed(t testing.TB, h host.Host, p string) (mount.MountPoint, bool) {
	t.Helper()
	for _, m := range must1(h.Mounter().List())(t) {
		if m.Path == p {
			return m, true
		}
	}
	return mount.MountPoint{}, false
}

func wantErrno(t testing.TB, err error, want syscall.Errno) {
	t.Helper()
	var pe *fs.PathError
	if !errors.As(err, &pe) || !errors.Is(err, want) {
		t.Errorf("got %v, want a PathError with %v", err, want)
	}
}

func TestLifeOfAVolume(t *testing.T) {
	for _, fstype := range []string{"ext4", "ext3", "xfs"} {
		t.Run(fstype, func(t *testing.T) {
			each(t, func(t *testing.T, w *world) {
				h := w.node(t)
				supports(t, h, fstype)
				w.disk(t, "v", sizes[fstype])
				dev := w.attach(t, h, "v")
				if got := must1(h.DeviceSize(dev))(t); got != sizes[fstype] {
					t.Errorf("device of %d bytes", got)
				}
				formatAndMount(t, h, dev, staging, fstype)
				if !isMount(t, h, staging) {
					t.Error("staging path is not a mount point")
				}
				m, ok := listed(t, h, staging)
				node := must1(h.EvalSymlinks(dev))(t)
				if !ok || m.Type != fstype || m.Device != node || !slices.Contains(m.Opts, "rw") {
					t.Errorf("mount %+v, want %s of %s", m, fstype, node)
				}
				pod := "/var/lib/kubelet/pods/1/volumes/kubernetes.io~csi/pv/mount"
				must(t, h.MkdirAll(pod, 0o750))
				must(t, h.Mounter().Mount(staging, pod, "", []string{"bind"}))
				if refs := must1(h.Mounter().GetMountRefs(staging))(t); !slices.Equal(refs, []string{pod}) {
					t.Errorf("refs of the staging path: %v", refs)
				}
				must(t, h.WriteAt(pod+"/data", 0, []byte("precious"), true))
				if got := must1(h.ReadFile(staging + "/data"))(t); string(got) != "precious" {
					t.Errorf("read %q through the staging path", got)
				}
				u := must1(h.Statfs(pod))(t)
				if u.TotalBytes <= 0 || u.TotalBytes > sizes[fstype] || u.AvailableBytes <= 0 || u.TotalInodes <= 0 {
					t.Errorf("usage %+v", u)
				}
				// A second pod, read-only.
				ro := "/var/lib/kubelet/pods/2/volumes/kubernetes.io~csi/pv/mount"
				must(t, h.MkdirAll(ro, 0o750))
				must(t, h.Mounter().Mount(staging, ro, "", []string{"bind", "ro"}))
				wantErrno(t, h.WriteFile(ro+"/data", []byte("x"), 0o600), syscall.EROFS)
				must(t, h.WriteFile(pod+"/other", []byte("x"), 0o600))
				for _, p := range []string{ro, pod, staging} {
					wantErrno(t, h.Remove(p), syscall.EBUSY)
					must(t, h.Mounter().Unmount(p))
					must(t, h.Mounter().Unmount(p)) // not mounted: no error
					if isMount(t, h, p) {
						t.Errorf("%s is still mounted", p)
					}
					must(t, h.Remove(p))
				}
				must(t, h.DetachDisk(context.Background(), wwn("v")))
				if _, err := h.Lstat(dev); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("link of a disk that was pulled: %v", err)
				}
				// Another node reads it.
				h2 := w.node(t)
				dev = w.attach(t, h2, "v")
				formatAndMount(t, h2, dev, staging, fstype, "ro")
				if got := must1(h2.ReadFile(staging + "/data"))(t); string(got) != "precious" {
					t.Errorf("read %q on another node", got)
				}
				wantErrno(t, h2.WriteAt(staging+"/data", 0, []byte("x"), true), syscall.EROFS)
				must(t, h2.Mounter().Unmount(staging))
			})
		})
	}
}

func TestAttach(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		h := w.node(t)
		w.disk(t, "a", 1<<20)
		w.disk(t, "b", 2<<20)
		a, b := w.attach(t, h, "a"), w.attach(t, h, "b")
		img := must1(w.store.Open("a"))(t)
		defer img.Close()
		ctx := context.Background()
		if err := h.AttachDisk(ctx, wwn("a"), img); !errors.Is(err, fs.ErrExist) {
			t.Errorf("attached twice: %v", err)
		}
		for _, bad := range []string{"", "xyz", strings.ToUpper(wwn("a")), wwn("a") + "0"} {
			if err := h.AttachDisk(ctx, bad, img); err == nil || !strings.Contains(err.Error(), "32 lower case hex digits") {
				t.Errorf("wwn %q: %v", bad, err)
			}
		}
		if err := h.DetachDisk(ctx, wwn("none")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("detached what is not there: %v", err)
		}
		if got := h.Disks(); len(got) != 2 {
			t.Errorf("disks %v", got)
		}
		if x := must1(h.EvalSymlinks(a))(t); x != "/dev/sdb" {
			t.Errorf("first disk is %s", x)
		}
		if x := must1(h.EvalSymlinks(b))(t); x != "/dev/sdc" {
			t.Errorf("second disk is %s", x)
		}
		fi := must1(h.Stat(a))(t)
		if fi.Mode()&fs.ModeDevice == 0 || fi.Mode()&fs.ModeCharDevice != 0 {
			t.Errorf("mode of a disk: %v", fi.Mode())
		}
		// A name is used again: who remembers /dev/sdb has another disk.
		must(t, h.DetachDisk(ctx, wwn("a")))
		if _, err := h.Stat("/dev/sdb"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a pulled disk's node: %v", err)
		}
		w.disk(t, "c", 3<<20)
		w.attach(t, h, "c")
		if got := must1(h.DeviceSize("/dev/sdb"))(t); got != 3<<20 {
			t.Errorf("/dev/sdb has %d bytes", got)
		}
		if _, err := h.DeviceSize("/tmp"); err == nil {
			t.Error("size of a directory")
		}
		// Each node sees its own disks only.
		h2 := w.node(t)
		if es := must1(h2.ReadDir("/dev/disk/by-id"))(t); len(es) != 0 {
			t.Errorf("another node's disks: %v", es)
		}
	})
}

func TestIdentity(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		h := w.node(t)
		serial := strings.TrimSpace(string(must1(h.ReadFile("/sys/class/dmi/id/product_serial"))(t)))
		if f := strings.Fields(serial); len(f) != 15 || !strings.HasPrefix(f[0], "VMware-") || len(f[7]) != 5 || f[7][2] != '-' {
			t.Errorf("serial %q", serial)
		}
		if h.Kind() != w.kind || h.Name() != "node-1" {
			t.Errorf("%s %s", h.Kind(), h.Name())
		}
		for feature, want := range map[string]bool{"time travel": false, "ext4": true, "block": true, "grow-online:nofs": false, "nofs": false} {
			if err := h.Supports(feature); (err == nil) != want || err != nil && err.Error() == "" {
				t.Errorf("supports %s: %v", feature, err)
			}
		}
	})
	serial, uuid := host.DMI("4237d5c8-1a2b-3c4d-5e6f-708192a3b4c5")
	if serial != "VMware-42 37 d5 c8 1a 2b 3c 4d-5e 6f 70 81 92 a3 b4 c5" || uuid != "c8d53742-2b1a-4d3c-5e6f-708192a3b4c5" {
		t.Errorf("%q %q", serial, uuid)
	}
}

func TestGrow(t *testing.T) {
	for _, fstype := range []string{"ext4", "xfs"} {
		t.Run(fstype, func(t *testing.T) {
			each(t, func(t *testing.T, w *world) {
				h := w.node(t)
				supports(t, h, fstype)
				supports(t, h, "grow-online:"+fstype)
				size := sizes[fstype]
				w.disk(t, "v", size)
				dev := w.attach(t, h, "v")
				formatAndMount(t, h, dev, staging, fstype)
				must(t, h.WriteAt(staging+"/data", 0, []byte("precious"), true))
				before := must1(h.Statfs(staging))(t)
				must(t, w.store.Grow("v", 2*size))
				if got := must1(h.DeviceSize(dev))(t); got != size {
					t.Errorf("the device has %d bytes before a rescan", got)
				}
				resize := func() {
					t.Helper()
					cmd := []string{"resize2fs", must1(h.EvalSymlinks(dev))(t)}
					if fstype == "xfs" {
						cmd = []string{"xfs_growfs", "-d", staging}
					}
					if out, err := h.Exec().Command(cmd[0], cmd[1:]...).CombinedOutput(); err != nil {
						t.Fatalf("%v: %v\n%s", cmd, err, out)
					}
				}
				must(t, h.ResizeDisk(context.Background(), wwn("v")))
				if got := must1(h.DeviceSize(dev))(t); got != 2*size {
					t.Errorf("the device has %d bytes after a rescan", got)
				}
				if got := must1(h.Statfs(staging))(t); got.TotalBytes != before.TotalBytes {
					t.Errorf("the filesystem grew by itself: %+v", got)
				}
				resize()
				resize() // again: nothing to do
				after := must1(h.Statfs(staging))(t)
				if after.TotalBytes < before.TotalBytes+size*8/10 {
					t.Errorf("filesystem of %d bytes, was %d", after.TotalBytes, before.TotalBytes)
				}
				if got := must1(h.ReadFile(staging + "/data"))(t); string(got) != "precious" {
					t.Errorf("read %q", got)
				}
				must(t, h.Mounter().Unmount(staging))
			})
		})
	}
}

// TestOfflineGrow: resize2fs wants a full check first.
func TestOfflineGrow(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		h := w.node(t)
		w.disk(t, "v", 32<<20)
		dev := w.attach(t, h, "v")
		formatAndMount(t, h, dev, staging, "ext4")
		must(t, h.WriteAt(staging+"/data", 0, []byte("precious"), true))
		must(t, h.Mounter().Unmount(staging))
		must(t, w.store.Grow("v", 64<<20))
		must(t, h.ResizeDisk(context.Background(), wwn("v")))
		// resize2fs compares times in seconds: what was made, mounted and
		// resized within one passes.
		if out, err := h.Exec().Command("resize2fs", dev).CombinedOutput(); w.kind == "memory" && (err == nil || !strings.Contains(string(out), "e2fsck -f")) {
			t.Errorf("without a check: %v\n%s", err, out)
		}
		for _, c := range [][]string{{"e2fsck", "-f", "-y", dev}, {"resize2fs", dev}} {
			if out, err := h.Exec().Command(c[0], c[1:]...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %v\n%s", c, err, out)
			}
		}
		formatAndMount(t, h, dev, staging, "ext4")
		if u := must1(h.Statfs(staging))(t); u.TotalBytes < 48<<20 {
			t.Errorf("%+v", u)
		}
		if got := must1(h.ReadFile(staging + "/data"))(t); string(got) != "precious" {
			t.Errorf("read %q", got)
		}
		must(t, h.Mounter().Unmount(staging))
	})
}

// TestSnapshotHoldsWhatWasSynced: a snapshot of the disk below a mounted
// filesystem, mounted on another node.
func TestSnapshotHoldsWhatWasSynced(t *testing.T) {
	for _, fstype := range []string{"ext4", "xfs"} {
		t.Run(fstype, func(t *testing.T) {
			each(t, func(t *testing.T, w *world) {
				h := w.node(t)
				supports(t, h, fstype)
				w.disk(t, "v", sizes[fstype])
				dev := w.attach(t, h, "v")
				formatAndMount(t, h, dev, staging, fstype)
				must(t, h.WriteAt(staging+"/data", 0, []byte("former"), true))
				must(t, w.store.Snapshot("v", "s"))
				must(t, h.WriteAt(staging+"/data", 0, []byte("latter"), true))
				must(t, w.store.Restore("v", "s", "r", 0))
				h2 := w.node(t)
				dev2 := w.attach(t, h2, "r")
				var opts []string
				if fstype == "xfs" {
					opts = append(opts, "nouuid")
				}
				formatAndMount(t, h2, dev2, staging, fstype, opts...)
				if got := must1(h2.ReadFile(staging + "/data"))(t); string(got) != "former" {
					t.Errorf("snapshot has %q", got)
				}
				must(t, h2.WriteAt(staging+"/data", 0, []byte("XXXXXX"), true))
				if got := must1(h.ReadFile(staging + "/data"))(t); string(got) != "latter" {
					t.Errorf("source has %q", got)
				}
				must(t, h2.Mounter().Unmount(staging))
				must(t, h.Mounter().Unmount(staging))
			})
		})
	}
}

func TestNeverFormatsData(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		h := w.node(t)
		must(t, h.MkdirAll(staging, 0o750))
		t.Run("another filesystem", func(t *testing.T) {
			w.disk(t, "v", 32<<20)
			dev := w.attach(t, h, "v")
			formatAndMount(t, h, dev, staging, "ext3")
			must(t, h.WriteAt(staging+"/data", 0, []byte("precious"), true))
			must(t, h.Mounter().Unmount(staging))
			var merr mount.MountError
			if err := tryFormatAndMount(h, dev, staging, "xfs"); !errors.As(err, &merr) || merr.Type != mount.FilesystemMismatch {
				t.Errorf("mounted as xfs: %v", err)
			}
			formatAndMount(t, h, dev, staging, "ext3")
			if got := must1(h.ReadFile(staging + "/data"))(t); string(got) != "precious" {
				t.Errorf("data is %q", got)
			}
			must(t, h.Mounter().Unmount(staging))
		})
		t.Run("partition table", func(t *testing.T) {
			w.disk(t, "p", 32<<20)
			dev := w.attach(t, h, "p")
			mbr := make([]byte, 512)
			mbr[446+4], mbr[446+8], mbr[446+12] = 0x83, 1, 100
			mbr[510], mbr[511] = 0x55, 0xaa
			must(t, h.WriteAt(dev, 0, mbr, true))
			if err := tryFormatAndMount(h, dev, staging, "ext4"); err == nil {
				t.Error("mounted a partition table")
			}
			if got := must1(h.ReadAt(dev, 0, 512))(t); !slices.Equal(got, mbr) {
				t.Error("partition table was overwritten")
			}
		})
		t.Run("read-only and empty", func(t *testing.T) {
			w.disk(t, "e", 32<<20)
			dev := w.attach(t, h, "e")
			var merr mount.MountError
			if err := tryFormatAndMount(h, dev, staging, "ext4", "ro"); !errors.As(err, &merr) || merr.Type != mount.UnformattedReadOnly {
				t.Errorf("%v", err)
			}
		})
	})
}

func TestRawBlock(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		h := w.node(t)
		w.disk(t, "v", 1<<20)
		dev := w.attach(t, h, "v")
		target := "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pv/pod"
		must(t, h.MkdirAll(filepath.ToSlash(filepath.Dir(target)), 0o750))
		must(t, h.WriteFile(target, nil, 0o660))
		must(t, h.Mounter().Mount(dev, target, "", []string{"bind"}))
		if !isMount(t, h, target) {
			t.Error("not a mount point")
		}
		if m, ok := listed(t, h, target); !ok || m.Device != "udev" && m.Device != "devtmpfs" {
			t.Errorf("a bind mount of a device node is one of /dev: %+v", m)
		}
		if fi := must1(h.Stat(target))(t); fi.Mode()&fs.ModeDevice == 0 {
			t.Errorf("mode %v", fi.Mode())
		}
		if got := must1(h.DeviceSize(target))(t); got != 1<<20 {
			t.Errorf("%d bytes", got)
		}
		must(t, h.WriteAt(target, 4000, []byte("across a page border or so, maybe not quite; "+strings.Repeat("y", 200)), true))
		got := must1(h.ReadAt(dev, 4000, 10))(t)
		if string(got) != "across a p" {
			t.Errorf("%q", got)
		}
		if _, err := h.ReadAt(target, 1<<20-4, 8); !errors.Is(err, io.EOF) {
			t.Errorf("read over the end: %v", err)
		}
		if err := h.WriteAt(target, 1<<20, []byte("x"), true); err == nil {
			t.Error("write past the end went through")
		}
		img := must1(w.store.Open("v"))(t)
		defer img.Close()
		b := make([]byte, 6)
		_, err := img.ReadAt(b, 4000)
		must(t, err)
		if string(b) != "across" {
			t.Errorf("the disk has %q", b)
		}
		must(t, h.Mounter().Unmount(target))
		must(t, h.Remove(target))
	})
}

func TestBusy(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		h := w.node(t)
		w.disk(t, "v", 32<<20)
		formatAndMount(t, h, w.attach(t, h, "v"), staging, "ext4")
		release := must1(h.Hold(staging))(t)
		if err := h.Mounter().Unmount(staging); err == nil || !strings.Contains(err.Error(), "busy") {
			t.Errorf("unmount of what is open: %v", err)
		}
		release()
		release()
		must(t, h.MkdirAll(staging+"/sub", 0o700))
		must(t, h.MkdirAll("/var/lib/kubelet/x", 0o700))
		must(t, h.Mounter().Mount("/var/lib/kubelet/x", staging+"/sub", "", []string{"bind"}))
		if err := h.Mounter().Unmount(staging); err == nil || !strings.Contains(err.Error(), "busy") {
			t.Errorf("unmount with a mount below: %v", err)
		}
		must(t, h.Mounter().Unmount(staging+"/sub"))
		// A bind mount elsewhere doesn't hold the first mount.
		must(t, h.Mounter().Mount(staging, "/var/lib/kubelet/x", "", []string{"bind"}))
		must(t, h.Mounter().Unmount(staging))
		must(t, h.WriteFile("/var/lib/kubelet/x/f", []byte("x"), 0o600))
		must(t, h.Mounter().Unmount("/var/lib/kubelet/x"))
	})
}

func TestMountErrors(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		h := w.node(t)
		w.disk(t, "e", 32<<20)
		w.disk(t, "v", 32<<20)
		empty, dev := w.attach(t, h, "e"), w.attach(t, h, "v")
		formatAndMount(t, h, dev, staging, "ext4")
		must(t, h.MkdirAll("/var/lib/kubelet/x", 0o700))
		must(t, h.WriteFile("/var/lib/kubelet/file", nil, 0o600))
		for _, c := range []struct {
			name, source, target, fstype string
			opts                         []string
			want                         string
		}{
			{"no filesystem", empty, "/var/lib/kubelet/x", "ext4", nil, "wrong fs type"},
			{"no such device", "/dev/sdz", "/var/lib/kubelet/x", "ext4", nil, "does not exist"},
			{"no target", dev, "/var/lib/kubelet/none", "ext4", nil, "mount point does not exist"},
			{"bind of nothing", "/var/lib/kubelet/none", "/var/lib/kubelet/x", "", []string{"bind"}, "does not exist"},
			{"unknown type", empty, "/var/lib/kubelet/x", "nofs", nil, ""},
			{"wrong type", dev, "/var/lib/kubelet/x", "xfs", nil, ""},
			{"at the same place", dev, staging, "ext4", nil, "already mounted"},
			{"directory on a file", "/var/lib/kubelet/x", "/var/lib/kubelet/file", "", []string{"bind"}, ""},
			{"read-only while read-write", dev, "/var/lib/kubelet/x", "ext4", []string{"ro"}, "already mounted"},
		} {
			err := h.Mounter().Mount(c.source, c.target, c.fstype, c.opts)
			if err == nil || !strings.Contains(err.Error(), "exit status 32") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: got %v, want status 32 and %q", c.name, err, c.want)
			}
		}
		if _, err := h.Mounter().IsLikelyNotMountPoint("/var/lib/kubelet/none"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("mount point check of nothing: %v", err)
		}
		if _, err := h.Mounter().IsMountPoint("/var/lib/kubelet/none"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("mount point check of nothing: %v", err)
		}
		if refs, err := h.Mounter().GetMountRefs("/var/lib/kubelet/none"); err != nil || len(refs) != 0 {
			t.Errorf("refs of nothing: %v %v", refs, err)
		}
		if err := h.Mounter().Unmount("/var/lib/kubelet/none"); err == nil {
			t.Error("unmounted a path that isn't there")
		}
		if out, err := h.Exec().Command("mkfs.ext4", "-F", dev).CombinedOutput(); err == nil {
			t.Errorf("mkfs of a mounted device: %s", out)
		}
		must(t, h.Mounter().Unmount(staging))
	})
}

func TestRemount(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		h := w.node(t)
		w.disk(t, "v", 32<<20)
		formatAndMount(t, h, w.attach(t, h, "v"), staging, "ext4")
		must(t, h.Mounter().Mount("", staging, "", []string{"remount", "ro"}))
		wantErrno(t, h.WriteFile(staging+"/f", []byte("x"), 0o600), syscall.EROFS)
		must(t, h.Mounter().Mount("", staging, "", []string{"remount", "rw"}))
		must(t, h.WriteFile(staging+"/f", []byte("x"), 0o600))
		must(t, h.Mounter().Unmount(staging))
	})
}

func TestFiles(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		h := w.node(t)
		const d = "/var/lib/kubelet"
		must(t, h.MkdirAll(d+"/a/b", 0o750))
		must(t, h.WriteFile(d+"/a/f", []byte("one"), 0o640))
		wantErrno(t, h.Remove(d+"/a"), syscall.ENOTEMPTY)
		wantErrno(t, h.MkdirAll(d+"/a/f/g", 0o750), syscall.ENOTDIR)
		wantErrno(t, h.WriteFile(d+"/a/b", nil, 0o600), syscall.EISDIR)
		_, err := h.ReadFile(d + "/none")
		wantErrno(t, err, syscall.ENOENT)
		wantErrno(t, h.WriteFile(d+"/none/f", nil, 0o600), syscall.ENOENT)
		must(t, h.Symlink("a", d+"/link"))
		if got := must1(h.EvalSymlinks(d + "/link/f"))(t); got != d+"/a/f" {
			t.Errorf("link leads to %s", got)
		}
		if got := must1(h.Readlink(d + "/link"))(t); got != "a" {
			t.Errorf("link holds %q", got)
		}
		if fi := must1(h.Lstat(d + "/link"))(t); fi.Mode()&fs.ModeSymlink == 0 {
			t.Errorf("mode of a link %v", fi.Mode())
		}
		must(t, h.Symlink("loop", d+"/loop"))
		_, err = h.Stat(d + "/loop")
		wantErrno(t, err, syscall.ELOOP)
		must(t, h.Rename(d+"/a/f", d+"/a/b/g"))
		if got := must1(h.ReadFile(d + "/link/b/g"))(t); string(got) != "one" {
			t.Errorf("%q", got)
		}
		must(t, h.Chmod(d+"/a", 0o770|fs.ModeSetgid))
		must(t, h.Lchown(d+"/a", 10, 1234))
		must(t, h.MkdirAll(d+"/a/n", 0o700))
		if uid, gid, err := h.Owner(d + "/a"); err != nil || uid != 10 || gid != 1234 {
			t.Errorf("owner %d:%d %v", uid, gid, err)
		}
		if _, gid, err := h.Owner(d + "/a/n"); err != nil || gid != 1234 {
			t.Errorf("setgid is not handed down: %d %v", gid, err)
		}
		if fi := must1(h.Stat(d + "/a"))(t); fi.Mode().Perm() != 0o770 || fi.Mode()&fs.ModeSetgid == 0 {
			t.Errorf("mode %v", fi.Mode())
		}
		var names []string
		for _, e := range must1(h.ReadDir(d + "/a"))(t) {
			names = append(names, e.Name())
			if !e.IsDir() {
				t.Errorf("%s is no directory", e.Name())
			}
		}
		if !slices.Equal(names, []string{"b", "n"}) {
			t.Errorf("%v", names)
		}
		must(t, h.WriteAt(d+"/sparse", 10000, []byte("end"), false))
		if fi := must1(h.Stat(d + "/sparse"))(t); fi.Size() != 10003 {
			t.Errorf("size %d", fi.Size())
		}
	})
}

func TestFull(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		h := w.node(t)
		w.disk(t, "v", 8<<20)
		formatAndMount(t, h, w.attach(t, h, "v"), staging, "ext4")
		mb := []byte(strings.Repeat("x", 1<<20))
		var err error
		for i := 0; i < 10 && err == nil; i++ {
			err = h.WriteAt(staging+"/f", int64(i)<<20, mb, true)
		}
		wantErrno(t, err, syscall.ENOSPC)
		must(t, h.Remove(staging+"/f"))
		must(t, h.WriteAt(staging+"/g", 0, mb, true))
		must(t, h.Mounter().Unmount(staging))
	})
}

func TestPower(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		h := w.node(t)
		w.disk(t, "v", 32<<20)
		dev := w.attach(t, h, "v")
		formatAndMount(t, h, dev, staging, "ext4")
		must(t, h.WriteAt(staging+"/synced", 0, []byte("kept"), true))
		must(t, h.WriteFile(staging+"/cached", []byte("lost"), 0o600))
		must(t, h.WriteFile("/var/lib/kubelet/own", []byte("kept"), 0o600))
		must(t, h.PowerOff())
		must(t, h.PowerOff())
		if _, err := h.Stat("/"); !errors.Is(err, host.ErrOff) {
			t.Errorf("a node that is off: %v", err)
		}
		if _, err := h.Exec().Command("blkid", dev).CombinedOutput(); !errors.Is(err, host.ErrOff) {
			t.Errorf("a node that is off: %v", err)
		}
		must(t, h.PowerOn())
		must(t, h.PowerOn())
		if isMount(t, h, staging) {
			t.Error("still mounted after a reboot")
		}
		if got := must1(h.ReadFile("/var/lib/kubelet/own"))(t); string(got) != "kept" {
			t.Errorf("the node's own disk has %q", got)
		}
		formatAndMount(t, h, dev, staging, "ext4")
		if got := must1(h.ReadFile(staging + "/synced"))(t); string(got) != "kept" {
			t.Errorf("synced data is %q", got)
		}
		if h.Supports("power-loss") == nil {
			if _, err := h.Stat(staging + "/cached"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("what was not synced is there: %v", err)
			}
		}
		must(t, h.Mounter().Unmount(staging))
		must(t, h.Close())
		must(t, h.Close())
		if err := h.PowerOn(); !errors.Is(err, host.ErrOff) {
			t.Errorf("power on after close: %v", err)
		}
	})
}

func TestPulledWhileMounted(t *testing.T) {
	for _, fstype := range []string{"ext4", "xfs"} {
		t.Run(fstype, func(t *testing.T) {
			each(t, func(t *testing.T, w *world) {
				h := w.node(t)
				supports(t, h, fstype)
				supports(t, h, "power-loss")
				w.disk(t, "v", sizes[fstype])
				dev := w.attach(t, h, "v")
				formatAndMount(t, h, dev, staging, fstype)
				must(t, h.WriteAt(staging+"/data", 0, []byte("x"), true))
				must(t, h.DetachDisk(context.Background(), wwn("v")))
				wantErrno(t, h.WriteAt(staging+"/data", 0, []byte("y"), true), syscall.EIO)
				_, err := h.ReadFile(staging + "/data")
				wantErrno(t, err, syscall.EIO)
				if _, err := h.Mounter().IsLikelyNotMountPoint(staging); err != nil && !mount.IsCorruptedMnt(err) {
					t.Errorf("mount-utils doesn't see a corrupted mount in %v", err)
				}
				// The name isn't free while the mount is there.
				w.disk(t, "o", 1<<20)
				if x := must1(h.EvalSymlinks(w.attach(t, h, "o")))(t); x != "/dev/sdc" {
					t.Errorf("next disk is %s", x)
				}
				must(t, h.Mounter().Unmount(staging))
				w.disk(t, "p", 1<<20)
				if x := must1(h.EvalSymlinks(w.attach(t, h, "p")))(t); x != "/dev/sdb" {
					t.Errorf("disk after the unmount is %s", x)
				}
			})
		})
	}
}

func TestRescanFile(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		h := w.node(t)
		w.disk(t, "v", 1<<20)
		w.attach(t, h, "v")
		must(t, w.store.Grow("v", 2<<20))
		if got := must1(h.DeviceSize("/dev/sdb"))(t); got != 1<<20 {
			t.Errorf("%d bytes before", got)
		}
		must(t, h.WriteFile("/sys/block/sdb/device/rescan", []byte("1"), 0))
		if got := must1(h.DeviceSize("/dev/sdb"))(t); got != 2<<20 {
			t.Errorf("%d bytes after", got)
		}
		if w.kind == "memory" { // as root a tmpfs takes everything
			if got := must1(h.ReadFile("/sys/block/sdb/size"))(t); string(got) != "4096\n" {
				t.Errorf("%q", got)
			}
			wantErrno(t, h.WriteFile("/sys/block/sdb/size", []byte("1"), 0), syscall.EACCES)
			wantErrno(t, h.WriteFile("/sys/block/sdb/new", []byte("1"), 0), syscall.EPERM)
		}
	})
}

func TestExec(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		h := w.node(t)
		e := h.Exec()
		if _, err := e.Command("no-such-tool").CombinedOutput(); err == nil || !strings.Contains(err.Error(), "executable file not found") {
			t.Errorf("%v", err)
		}
		if _, err := e.LookPath("no-such-tool"); err == nil {
			t.Error("found a tool that isn't there")
		}
		if _, err := e.LookPath("mkfs.ext4"); err != nil {
			t.Error(err)
		}
		w.disk(t, "v", 32<<20)
		dev := w.attach(t, h, "v")
		status := func(want int, cmd ...string) string {
			t.Helper()
			out, err := e.Command(cmd[0], cmd[1:]...).CombinedOutput()
			got := 0
			if err != nil {
				x, ok := err.(interface{ ExitStatus() int })
				if !ok {
					t.Fatalf("%v: %v", cmd, err)
				}
				got = x.ExitStatus()
			}
			if got != want {
				t.Errorf("%v: exit status %d, want %d\n%s", cmd, got, want, out)
			}
			return string(out)
		}
		status(2, "blkid", "-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", dev)
		status(2, "blkid", "-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", "/dev/sdz")
		status(8, "fsck", "-a", dev)
		status(0, "mkfs.ext4", "-F", "-m0", dev)
		if out := status(0, "blkid", "-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", dev); !strings.Contains(out, "\nTYPE=ext4\n") {
			t.Errorf("%q", out)
		}
		status(0, "fsck", "-a", dev)
		if out := status(0, "blockdev", "--getsize64", dev); strings.TrimSpace(out) != "33554432" {
			t.Errorf("%q", out)
		}
		if out := status(0, "blockdev", "--getro", dev); strings.TrimSpace(out) != "0" {
			t.Errorf("%q", out)
		}
		out := status(0, "dumpe2fs", "-h", dev)
		for _, want := range []string{"Block count:", "Block size:", "Filesystem state:"} {
			if !strings.Contains(out, want) {
				t.Errorf("dumpe2fs lacks %q", want)
			}
		}
		status(32, "umount", staging+"/none")
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := e.CommandContext(ctx, "blkid", dev).Run(); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	})
}

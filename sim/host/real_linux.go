package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/mount-utils"

	"github.com/csilab/csilab/sim/disk"
)

// Real is a node on this machine's kernel: a mount namespace with its own
// /var/lib/kubelet, /dev, /sys/block and /sys/class/dmi, in which disks are
// loop devices. It wants root on Linux.
//
// A disk that is pulled while it is mounted, and power loss, shut its
// filesystem down: I/O fails with EIO, and what was not synced is lost.
//
// Differences from a machine: of a raw device that is open when its disk is
// pulled or the power fails, I/O goes on and nothing is lost (fence the image,
// so that it goes nowhere); one kernel serves all nodes, so that an xfs and its
// clone can't be mounted on two nodes at once without nouuid; a bind mount of a
// device node leads to the loop device that has its number later; and of the
// file /sys/block/<dev>/device/rescan only a write through WriteFile has an
// effect: for a driver that is a process, call ResizeDisk when the backend has
// made an attached disk larger.
type Real struct {
	cfg RealConfig
	log *slog.Logger

	// life is held for reading by every operation, for writing by what ends or
	// begins the namespace.
	life   sync.RWMutex
	t      *threads // nil: powered off
	closed bool

	mu    sync.Mutex
	disks []*realDisk
	// leaving are disks that are being pulled: until it is done I/O may go on.
	leaving []*realDisk
	procs   map[*Process]struct{}

	calls net.Listener
	serve sync.WaitGroup

	san *realSAN // nil: no storage network
}

type realDisk struct {
	wwn  string
	img  disk.Image
	loop *loop
	name string // sdb
}

var _ Host = (*Real)(nil)

// RealSupported says why this machine can't have real nodes, or nil.
func RealSupported() error {
	if os.Geteuid() != 0 {
		return errors.New("host: real nodes want root")
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return fmt.Errorf("host: real nodes want loop devices: %w", err)
	}
	for _, tool := range []string{"mount", "umount", "blkid", "fsck", "mkfs.ext4", "resize2fs"} {
		if _, err := findTool(tool); err != nil {
			return fmt.Errorf("host: real nodes want %s (util-linux and e2fsprogs)", tool)
		}
	}
	return namespaces()
}

// namespaces tries once whether a mount namespace can be had.
var namespaces = sync.OnceValue(func() error {
	t, err := newThreads("csilab", func() error { return nil })
	if err == nil {
		t.close()
	}
	return err
})

// reserved are the trees that a node has its own view of.
var reserved = []string{"/dev", "/sys", "/proc", "/run", "/var/lib"}

// NewReal makes a node and powers it on. The node lives until Close; ctx
// bounds the making only.
func NewReal(ctx context.Context, cfg RealConfig) (*Real, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if err := RealSupported(); err != nil {
		return nil, err
	}
	if cfg.Name == "" {
		return nil, errors.New("host: RealConfig.Name: must not be empty")
	}
	if !filepath.IsAbs(cfg.Dir) || cfg.Dir != filepath.Clean(cfg.Dir) || cfg.Dir == "/" {
		return nil, fmt.Errorf("host: RealConfig.Dir %q: must be a clean absolute path", cfg.Dir)
	}
	for _, r := range reserved {
		if mount.PathWithinBase(cfg.Dir, r) {
			return nil, fmt.Errorf("host: RealConfig.Dir %q: must not be below %s, which a node has its own view of", cfg.Dir, r)
		}
	}
	if cfg.BIOSUUID == "" {
		cfg.BIOSUUID = UUIDOf(fmt.Sprintf("%d|host|%s|bios", cfg.Seed, cfg.Name))
	}
	if cfg.Component == "" {
		cfg.Component = "driver@" + cfg.Name
	}
	h := &Real{cfg: cfg, log: cfg.Log, procs: map[*Process]struct{}{}}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	dirs := []string{"kubelet", "dev", "sys", "bin"}
	if cfg.SAN != nil {
		if _, err := os.Stat("/dev/fuse"); err != nil {
			return nil, fmt.Errorf("host: real nodes on a storage network want FUSE: %w", err)
		}
		h.san = newRealSAN(h)
		dirs = append(dirs, "san", "machine", "log")
	}
	for _, d := range dirs {
		if err := os.MkdirAll(filepath.Join(cfg.Dir, d), 0o750); err != nil {
			return nil, fmt.Errorf("host: %w", err)
		}
	}
	err := h.installSAN()
	if err == nil {
		err = h.listenForCalls()
	}
	if err == nil {
		err = h.PowerOn()
	}
	if err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// boot makes the node's view of the file system. It runs in the namespace.
func (h *Real) boot() error {
	steps := []func() error{h.mountKubelet, h.mountDev, h.mountSys}
	if h.san != nil {
		steps = []func() error{h.mountKubelet, h.mountSAN, h.mountCommands, h.mountEtc, h.mountDev, h.mountSANSys}
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("host: node %s: %w", h.cfg.Name, err)
		}
	}
	return nil
}

const kubeletDir = "/var/lib/kubelet"

func (h *Real) mountKubelet() error {
	if _, err := os.Stat(kubeletDir); errors.Is(err, fs.ErrNotExist) {
		// Not made on the machine itself, where it would stay.
		if err := unix.Mount("csilab", "/var/lib", "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("tmpfs on /var/lib: %w", err)
		}
		if err := os.Mkdir(kubeletDir, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount(h.SocketRoot(), kubeletDir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", kubeletDir, err)
	}
	return nil
}

// mountDev gives the node a /dev with the usual nodes and its own disks only.
func (h *Real) mountDev() error {
	if err := unix.Mount("udev", "/dev", "tmpfs", unix.MS_NOSUID, "mode=755"); err != nil {
		return fmt.Errorf("tmpfs on /dev: %w", err)
	}
	for _, d := range []struct {
		name         string
		major, minor uint32
	}{{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}} {
		path := "/dev/" + d.name
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(d.major, d.minor))); err != nil {
			return fmt.Errorf("mknod %s: %w", path, err)
		}
		if err := os.Chmod(path, 0o666); err != nil {
			return err
		}
	}
	for link, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"} {
		if err := os.Symlink(target, "/dev/"+link); err != nil {
			return err
		}
	}
	for _, dir := range []string{"/dev/disk/by-id", "/dev/shm"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// mountSys gives the node the identity of its virtual machine, and /sys/block
// with its own disks. The rest of /sys/class leads to the kernel's.
func (h *Real) mountSys() error {
	sys := filepath.Join(h.cfg.Dir, "sys")
	if err := unix.Mount("/sys", sys, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind /sys: %w", err)
	}
	classes, err := os.ReadDir(filepath.Join(sys, "class"))
	if err != nil {
		return err
	}
	for _, dir := range []string{"/sys/class", "/sys/block"} {
		if err := unix.Mount("sysfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=755"); err != nil {
			return fmt.Errorf("tmpfs on %s: %w", dir, err)
		}
	}
	for _, c := range classes {
		if c.Name() == "dmi" {
			continue
		}
		if err := os.Symlink(filepath.Join(sys, "class", c.Name()), "/sys/class/"+c.Name()); err != nil {
			return err
		}
	}
	const dmi = "/sys/class/dmi/id"
	if err := os.MkdirAll(dmi, 0o755); err != nil {
		return err
	}
	for name, text := range dmiFiles(h.cfg.BIOSUUID, false) {
		if err := os.WriteFile(dmi+"/"+name, []byte(text+"\n"), 0o444); err != nil {
			return err
		}
	}
	return nil
}

// plug shows a disk in the node. It runs in the namespace.
func (h *Real) plug(d *realDisk) error {
	node := "/dev/" + d.name
	if err := unix.Mknod(node, unix.S_IFBLK|0o660, int(unix.Mkdev(loopMajor, d.loop.minor))); err != nil {
		return fmt.Errorf("host: mknod %s: %w", node, err)
	}
	for _, l := range links(d.wwn) {
		if err := os.Symlink("../../"+d.name, "/dev/disk/by-id/"+l); err != nil {
			return err
		}
	}
	if h.san != nil {
		h.san.plugDisk(d)
		return nil
	}
	dir := "/sys/block/" + d.name
	if err := os.MkdirAll(dir+"/device", 0o755); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(dir+"/device/rescan", nil, 0o644),
		os.WriteFile(dir+"/device/wwid", []byte("naa."+d.wwn+"\n"), 0o444))
}

func (h *Real) unplug(d *realDisk) error {
	var errs []error
	for _, l := range links(d.wwn) {
		errs = append(errs, os.Remove("/dev/disk/by-id/"+l))
	}
	errs = append(errs, os.Remove("/dev/"+d.name))
	if h.san != nil {
		h.san.unplugDisk(d)
	} else {
		errs = append(errs, os.RemoveAll("/sys/block/"+d.name))
	}
	return errors.Join(errs...)
}

// do runs f in the node's namespace.
func (h *Real) do(f func() error) error {
	h.life.RLock()
	defer h.life.RUnlock()
	if h.t == nil {
		return ErrOff
	}
	var err error
	if derr := h.t.do(func() { err = f() }); derr != nil {
		return derr
	}
	return err
}

// Name implements Host.
func (h *Real) Name() string { return h.cfg.Name }

// Kind implements Host.
func (h *Real) Kind() string { return "real" }

// SocketRoot is where this process sees the node's /var/lib/kubelet, without
// what is mounted in it: transport.Wall{From: "/var/lib/kubelet", To: SocketRoot()}.
func (h *Real) SocketRoot() string { return SocketRootOf(h.cfg.Dir) }

// AttachDisk implements Host. The image must have a file.
func (h *Real) AttachDisk(ctx context.Context, wwn string, img disk.Image) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if err := validWWN(wwn); err != nil {
		return err
	}
	if img.Path() == "" {
		return errors.New("host: a real node wants images in files (disk.NewFiles)")
	}
	h.life.RLock()
	defer h.life.RUnlock()
	if h.closed {
		return ErrOff
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	names := h.mountedNames()
	for _, d := range h.disks {
		if d.wwn == wwn {
			return fmt.Errorf("host: disk %s on %s: %w", wwn, h.cfg.Name, fs.ErrExist)
		}
		names[d.name] = true
	}
	l, err := attachLoop(img.Path(), h.cfg.Dir)
	if err != nil {
		return err
	}
	d := &realDisk{wwn: wwn, img: img, loop: l}
	for i := 1; d.name == "" || names[d.name] || h.san != nil && !h.san.reserve(d); i++ {
		d.name = diskName(i)
	}
	if h.t != nil {
		var perr error
		if err := h.t.do(func() {
			if perr = h.plug(d); perr != nil {
				_ = h.unplug(d) // what was made of it
			}
		}); err != nil {
			perr = err
		}
		if perr != nil {
			l.close()
			return perr
		}
	} else if h.san != nil {
		h.san.unplugDisk(d) // it gets a name at the boot
	}
	h.disks = append(h.disks, d)
	return nil
}

// mountedNames are the names of disks that something is mounted from, pulled
// or not: as on a machine they are not given to another disk meanwhile.
func (h *Real) mountedNames() map[string]bool {
	names := map[string]bool{}
	if h.t == nil {
		return names
	}
	_ = h.t.do(func() {
		mounts, err := mount.ListProcMounts("/proc/thread-self/mounts")
		if err != nil {
			return
		}
		for _, m := range mounts {
			if name, ok := strings.CutPrefix(m.Device, "/dev/"); ok {
				names[name] = true
			}
		}
	})
	return names
}

// take finds a disk; drop takes it from the list.
func (h *Real) take(wwn string, drop bool) (*realDisk, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := slices.IndexFunc(h.disks, func(d *realDisk) bool { return d.wwn == wwn })
	if i < 0 {
		return nil, fmt.Errorf("host: disk %s on %s: %w", wwn, h.cfg.Name, fs.ErrNotExist)
	}
	d := h.disks[i]
	if drop {
		h.disks = slices.Delete(h.disks, i, i+1)
		h.leaving = append(h.leaving, d)
	}
	return d, nil
}

// DetachDisk implements Host. What is mounted from the disk fails with EIO from
// then on; its loop device, and its name, stay until the unmount.
func (h *Real) DetachDisk(_ context.Context, wwn string) error {
	d, err := h.take(wwn, true)
	if err != nil {
		return err
	}
	defer func() {
		h.mu.Lock()
		h.leaving = slices.DeleteFunc(h.leaving, func(x *realDisk) bool { return x == d })
		h.mu.Unlock()
	}()
	err = h.do(func() error {
		if err := shutdownMounted("/dev/" + d.name); err != nil {
			h.log.Warn("I/O on a pulled disk goes on", "node", h.cfg.Name, "wwn", wwn, "error", err)
		}
		return h.unplug(d)
	})
	if errors.Is(err, ErrOff) {
		err = nil
	}
	return errors.Join(err, d.loop.close())
}

// ResizeDisk implements Host.
func (h *Real) ResizeDisk(_ context.Context, wwn string) error {
	d, err := h.take(wwn, false)
	if err != nil {
		return err
	}
	return d.loop.resize()
}

// rescan is ResizeDisk by the device's name.
func (h *Real) rescan(name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range h.disks {
		if d.name == name {
			return d.loop.resize()
		}
	}
	return unix.ENODEV
}

// Disks implements Host.
func (h *Real) Disks() []string {
	var out []string
	if h.san != nil {
		h.san.mu.Lock()
		for _, d := range h.san.stack.Disks() {
			out = append(out, d.WWN)
		}
		h.san.mu.Unlock()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range slices.Concat(h.disks, h.leaving) {
		out = append(out, d.wwn)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// PowerOff implements Host. All processes of the node are killed and its
// mounts go. What was not synced to a filesystem is lost: see Real.
func (h *Real) PowerOff() error {
	h.FailQueued() // what waits for a path can't be killed
	h.mu.Lock()
	procs := slices.Collect(maps.Keys(h.procs))
	h.mu.Unlock()
	for _, p := range procs {
		p.Kill()
	}
	for _, p := range procs {
		for ended := false; !ended; {
			// What they have started may hold their output open. One look can miss a
			// process that is between fork and exec and has no environment to read.
			killMarked(h.cfg.Dir)
			select {
			case <-p.done:
				ended = true
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	h.life.Lock()
	defer h.life.Unlock()
	if len(procs) > 0 {
		// What they have started at the last moment.
		killMarked(h.cfg.Dir)
	}
	return h.halt()
}

// halt unmounts everything and ends the namespace. life is held for writing.
func (h *Real) halt() error {
	if h.t == nil {
		return nil
	}
	var err, serr error
	if h.san != nil {
		serr = h.san.cut()
	}
	derr := h.t.do(func() {
		if err := shutdownMounted(""); err != nil {
			h.log.Warn("power off loses nothing", "node", h.cfg.Name, "error", err)
		}
		err = unmountAll()
		if h.san != nil {
			err = errors.Join(err, h.san.unmountAll())
		}
	})
	if h.san != nil {
		serr = errors.Join(serr, h.san.forget())
	}
	h.t.close()
	h.t = nil
	return errors.Join(err, derr, serr)
}

// unmountAll takes away, last first, what was mounted in the node.
func unmountAll() error {
	mounts, err := mount.ListProcMounts("/proc/thread-self/mounts")
	if err != nil {
		return fmt.Errorf("host: %w", err)
	}
	var errs []error
	for _, m := range slices.Backward(mounts) {
		if !mount.PathWithinBase(m.Path, kubeletDir) && !strings.HasPrefix(m.Device, "/dev/sd") {
			continue
		}
		// Detached, not merely unmounted: what a killed process still holds for
		// a moment doesn't keep it.
		if err := unix.Unmount(m.Path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, fmt.Errorf("host: unmount %s: %w", m.Path, err))
		}
	}
	return errors.Join(errs...)
}

// PowerOn implements Host.
func (h *Real) PowerOn() error {
	h.life.Lock()
	defer h.life.Unlock()
	if h.closed {
		return ErrOff
	}
	if h.t != nil {
		return nil
	}
	t, err := newThreads(h.cfg.Name, h.boot)
	if err != nil {
		if h.san != nil {
			err = errors.Join(err, h.san.cut())
		}
		return err
	}
	h.t = t
	if h.san != nil {
		if err := h.san.boot(t); err != nil {
			return errors.Join(err, h.halt())
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, d := range h.disks {
		d.name = ""
		for j := i + 1; d.name == "" || h.san != nil && !h.san.reserve(d); j++ {
			d.name = diskName(j)
		}
		var perr error
		if err := t.do(func() { perr = h.plug(d) }); err != nil || perr != nil {
			return errors.Join(err, perr, h.halt())
		}
	}
	return nil
}

// Close implements Host.
func (h *Real) Close() error {
	err := h.PowerOff()
	h.life.Lock()
	if h.closed {
		h.life.Unlock()
		return nil
	}
	h.closed = true
	h.life.Unlock()
	h.mu.Lock()
	disks := h.disks
	h.disks = nil
	h.mu.Unlock()
	for _, d := range disks {
		err = errors.Join(err, d.loop.close())
	}
	if h.calls != nil {
		h.calls.Close()
		h.serve.Wait()
	}
	if rerr := removeTree(h.cfg.Dir); rerr != nil {
		err = errors.Join(err, fmt.Errorf("host: %w", rerr))
	}
	return err
}

// removeTree removes a directory tree that ought to have no mounts in it, and
// doesn't leave the file system that it starts on: never a volume's content.
func removeTree(dir string) error {
	var st syscall.Stat_t
	if err := syscall.Lstat(dir, &st); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return err
		}
		var in syscall.Stat_t
		if err := syscall.Lstat(p, &in); err != nil {
			return err
		}
		if in.Dev != st.Dev {
			return fmt.Errorf("%s is still mounted", p)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

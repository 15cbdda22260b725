package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csilab/csilab/sim/host/shim"
)

// What a node on a storage network has in its own view of the file system.

func (h *Real) etcDir() string     { return filepath.Join(h.cfg.Dir, "etc") }
func (h *Real) machineDir() string { return filepath.Join(h.cfg.Dir, "machine") }

// ownEtc are directories below /etc that the node has to itself, for what node
// plugins write there.
var ownEtc = []string{"iscsi", "multipath", "hpe-storage", "nvme"}

// installSAN makes the node's /etc: the machine's, by links, apart from what
// belongs to the storage network.
func (h *Real) installSAN() error {
	if h.san == nil {
		return nil
	}
	for _, d := range ownEtc {
		if err := os.MkdirAll(filepath.Join(h.etcDir(), d), 0o755); err != nil {
			return fmt.Errorf("host: %w", err)
		}
	}
	for rel, text := range sanFiles(h.cfg.Seed, h.cfg.Name, h.cfg.Adapters, h.cfg.RecheckWWID, h.cfg.NoPathRetry) {
		if err := os.WriteFile(filepath.Join(h.etcDir(), rel), []byte(text), 0o644); err != nil {
			return fmt.Errorf("host: %w", err)
		}
	}
	entries, err := os.ReadDir("/etc")
	if err != nil {
		return fmt.Errorf("host: %w", err)
	}
	for _, e := range entries {
		p := filepath.Join(h.etcDir(), e.Name())
		if _, err := os.Lstat(p); err == nil {
			continue
		}
		target := filepath.Join(h.machineDir(), e.Name())
		if e.Type()&fs.ModeSymlink != 0 { // relative to where it is
			if target, err = os.Readlink(filepath.Join("/etc", e.Name())); err != nil {
				continue
			}
		}
		if err := os.Symlink(target, p); err != nil {
			return fmt.Errorf("host: %w", err)
		}
	}
	return nil
}

// mountSAN mounts the filesystem that leads to the node's stack.
func (h *Real) mountSAN() error {
	dev, err := os.OpenFile("/dev/fuse", os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return h.san.mount(dev)
}

// mountCommands puts the node's commands in the place of the machine's where a
// program may call them by their path. What the machine lacks has no path.
func (h *Real) mountCommands() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, name := range shim.Emulated {
		p, err := findTool(name)
		if err == nil {
			p, err = filepath.EvalSymlinks(p)
		}
		// Links to a binary with several names are left alone.
		if err != nil || filepath.Base(p) != name {
			continue
		}
		if err := unix.Mount(self, p, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s: %w", p, err)
		}
	}
	return nil
}

// mountEtc gives the node its /etc and its /var/log.
func (h *Real) mountEtc() error {
	if err := unix.Mount("/etc", h.machineDir(), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind /etc: %w", err)
	}
	if err := unix.Mount("", h.machineDir(), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("read-only %s: %w", h.machineDir(), err)
	}
	binds := map[string]string{"/etc": h.etcDir(), "/var/log": filepath.Join(h.cfg.Dir, "log")}
	for at, from := range binds {
		err := unix.Mount(from, at, "", unix.MS_BIND, "")
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // no /var/log: none for the node
			return fmt.Errorf("bind %s: %w", at, err)
		}
	}
	return nil
}

// Directories of /sys that the node has its own view of.
var (
	ownSys = []string{"block", "bus", "class", "dev", "devices"}
	// mixedSys are those that hold things of the stack beside the kernel's.
	mixedSys = []string{"bus", "class", "dev", "devices", "devices/pci0000:00", "devices/platform", "devices/virtual"}
	// hiddenSys are the machine's own disks, adapters and cards.
	hiddenSys = []string{"bus/scsi", "class/block", "class/dmi", "class/net", "class/nvme*", "class/scsi_*", "class/iscsi_*", "class/fc_*", "class/bdi",
		"dev/block", "devices/pci0000:00/0000:*", "devices/virtual/block", "devices/virtual/dmi", "devices/virtual/net"}
)

// mountSANSys gives the node its /sys: the stack's disks and adapters, a
// server's identity, and links to the rest of the machine's.
func (h *Real) mountSANSys() error {
	sys := filepath.Join(h.cfg.Dir, "sys")
	if err := unix.Mount("/sys", sys, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind /sys: %w", err)
	}
	x := h.san
	x.mu.Lock()
	x.sys.root.dmi(h.cfg.BIOSUUID, true)
	x.cards().show(x.sys.root)
	x.sys.root.file("class/scsi_host/host0/scan", nil, func([]byte) error { return nil })
	for _, dir := range mixedSys {
		x.view.keep(dir)
		entries, err := os.ReadDir(filepath.Join(sys, dir))
		if err != nil {
			continue // the machine has none
		}
		at := x.sys.root.at(dir)
		for _, e := range entries {
			rel := path.Join(dir, e.Name())
			hidden := slices.ContainsFunc(hiddenSys, func(pattern string) bool {
				ok, _ := path.Match(pattern, rel)
				return ok
			})
			if hidden || slices.Contains(mixedSys, rel) || at.children[e.Name()] != nil {
				continue
			}
			at.add(e.Name(), fs.ModeSymlink|0o777).target = filepath.Join(sys, rel)
		}
	}
	x.mu.Unlock()
	for _, dir := range ownSys {
		if err := unix.Mount(filepath.Join(x.dir(), "sys", dir), "/sys/"+dir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind /sys/%s: %w", dir, err)
		}
	}
	return nil
}

// unmountAll takes away what is mounted from the node's disks and maps. It runs
// in the namespace.
func (x *realSAN) unmountAll() error {
	var errs []error
	numbers := x.mountedNumbers()
	for _, d := range append(slices.Clone(x.stale), x.all()...) {
		if d.loop == nil {
			continue
		}
		for _, p := range slices.Backward(numbers[loopNumber(d.loop.minor)]) {
			if err := unix.Unmount(p, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("host: unmount %s: %w", p, err))
			}
		}
	}
	return errors.Join(errs...)
}

// Disks that were plugged in (AttachDisk) show in the same /sys.

func (x *realSAN) plugDisk(d *realDisk) {
	x.mu.Lock()
	defer x.mu.Unlock()
	dir := "block/" + d.name
	x.sys.root.file(dir+"/device/rescan", nil, func([]byte) error { return d.loop.resize() })
	x.sys.root.file(dir+"/device/wwid", func() []byte { return []byte("naa." + d.wwn + "\n") }, nil)
	x.sys.root.file(dir+"/size", func() []byte { return fmt.Appendf(nil, "%d\n", d.img.Size()/512) }, nil)
}

func (x *realSAN) unplugDisk(d *realDisk) {
	defer x.forgetNames()
	x.mu.Lock()
	defer x.mu.Unlock()
	if slices.Contains(x.local, d) {
		x.local = slices.DeleteFunc(x.local, func(o *realDisk) bool { return o == d })
		x.pulled = append(x.pulled, d)
	}
	if n := x.sys.root.at("block").children[d.name]; n != nil {
		x.drop(n)
	}
}

// reserve takes the name that a disk has for it, unless a disk or map of the
// stack has it.
func (x *realSAN) reserve(d *realDisk) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.stack.Disk(d.name) != nil || slices.ContainsFunc(x.local, func(o *realDisk) bool { return o.name == d.name }) {
		return false
	}
	x.local = append(x.local, d)
	return true
}

// all are the devices that are there.
func (x *realSAN) all() []*realLUN {
	var out []*realLUN
	for _, d := range x.luns {
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b *realLUN) int { return strings.Compare(a.name, b.name) })
	return out
}

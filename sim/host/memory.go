package host

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/mount-utils"
	"k8s.io/utils/exec"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host/scsi"
)

// ErrOff is what a node that is powered off or closed answers with.
var ErrOff = errors.New("host: the node is off")

// MemoryConfig describes a node in memory.
type MemoryConfig struct {
	// Name of the node.
	Name string
	// Seed makes ids (filesystem UUIDs) a pure function of it.
	Seed uint64
	// BIOSUUID is the virtual machine's config.uuid, shown in
	// /sys/class/dmi/id. Empty: derived from Seed and Name.
	BIOSUUID string
	// Missing are the commands that the node lacks, e.g. "mkfs.xfs".
	Missing []string
	// BlkidHidesErrors makes blkid say "nothing found" (exit status 2) for a
	// device that can't be read, instead of failing.
	// Unverified: which releases of util-linux do so for a read error; for a
	// device that doesn't exist 2.38.1 does.
	BlkidHidesErrors bool
	// SAN is the storage network that the node is connected to with Adapters; nil:
	// none. A node that has one is no virtual machine of VMware's.
	SAN      SAN
	Adapters Adapters
	// RecheckWWID is recheck_wwid of /etc/multipath.conf; see scsi.Config.
	RecheckWWID bool
	// NoPathRetry is no_path_retry of /etc/multipath.conf: what I/O does that has
	// no path.
	NoPathRetry NoPathRetry
	// Files are the NFS servers that the node reaches, as the client that has the
	// addresses of Adapters; nil: none answers.
	Files *FileServers
	// Log receives debug messages; nil discards them.
	Log *slog.Logger
}

// Memory is a node in memory: a small kernel with files, mounts, SCSI disks
// and the storage commands. It needs no privileges, runs on any OS and within
// a synctest bubble: nothing in it waits but I/O without a path where NoPathRetry
// says so, and it has no goroutines.
//
// Not modelled: permissions (all run as root), hard links, extended
// attributes, write-back by age (what is not synced stays in the page cache
// until sync, unmount or power loss).
type Memory struct {
	cfg MemoryConfig
	log *slog.Logger

	mu      sync.Mutex
	off     bool
	closed  bool
	rootfs  *superblock // the node's own disk
	dev     *superblock
	sys     *superblock
	proc    *superblock
	ns      namespace
	disks   []*device // in the order they were plugged in
	devices map[devno]*device
	made    map[string]int // wwn -> filesystems made, for their UUIDs

	scsi *scsi.Stack // nil: no SAN
	view *stackView  // of it in /sys

	remotes  int                  // mounts of shares
	inFiles  bool                 // the operation that has the kernel keeps others out of the shares
	mounting map[string]time.Time // since when mount.nfs tries a server

	now     under // what the operation does that has the kernel
	waiting waiting
	leaving []*superblock // unmounted, and not written out
}

var _ Host = (*Memory)(nil)

// NewMemory returns a node that is powered on.
func NewMemory(cfg MemoryConfig) *Memory {
	if cfg.BIOSUUID == "" {
		cfg.BIOSUUID = UUIDOf(fmt.Sprintf("%d|host|%s|bios", cfg.Seed, cfg.Name))
	}
	h := &Memory{cfg: cfg, log: cfg.Log, made: map[string]int{}}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	h.rootfs = newSuperblock("ext4", "/dev/sda1", devno{scsiMajor, 1})
	for _, d := range []string{"/dev", "/sys", "/proc", "/tmp", "/run", "/var/lib/kubelet", "/mnt", "/etc"} {
		h.rootfs.root.at(d)
	}
	if cfg.SAN != nil {
		h.scsi = scsi.New(scsi.Config{Name: cfg.Name, SAN: cfg.SAN, Adapters: cfg.Adapters, FirstHost: 1,
			Node: memoryNode{h}, RecheckWWID: cfg.RecheckWWID, NoPathRetry: cfg.NoPathRetry})
		h.installSAN()
	}
	h.boot()
	return h
}

// boot makes the mount table and the kernel's own trees.
func (h *Memory) boot() {
	h.off, h.waiting.over = false, false
	h.ns = namespace{}
	h.devices = map[devno]*device{}
	clearMounts(h.rootfs.root)
	h.rootfs.refs = 0
	h.ns.attach(place{}, h.rootfs.root, h.rootfs.source, false, nil)
	h.dev = newSuperblock("devtmpfs", "udev", devno{0, 5})
	h.sys = newSuperblock("sysfs", "sysfs", devno{0, 21})
	proc := newSuperblock("proc", "proc", devno{0, 22})
	for _, m := range []struct {
		at string
		sb *superblock
	}{{"/sys", h.sys}, {"/proc", proc}, {"/dev", h.dev}, {"/run", newSuperblock("tmpfs", "tmpfs", devno{0, 23})}} {
		p, _ := h.ns.walk(m.at, true)
		h.ns.attach(p, m.sb.root, m.sb.source, false, nil)
	}
	h.proc = proc
	proc.root.file("mounts", h.ns.mounts, nil)
	proc.root.file("self/mountinfo", h.ns.info, nil)
	proc.root.file("self/mounts", h.ns.mounts, nil)
	h.sys.root.dmi(h.cfg.BIOSUUID, h.scsi != nil)
	h.sys.root.file("class/scsi_host/host0/scan", nil, func([]byte) error { return nil })
	h.dev.root.at("disk/by-id")
	for _, d := range h.disks {
		h.plug(d)
	}
	if h.scsi != nil {
		h.bootSAN()
	}
}

func clearMounts(n *inode) {
	n.mounts = 0
	for _, c := range n.children {
		clearMounts(c)
	}
}

// dmiFiles are the files of /sys/class/dmi/id, without their newlines: those of
// a virtual machine, or of a server.
func dmiFiles(biosUUID string, server bool) map[string]string {
	if server {
		return map[string]string{"product_serial": "CZ" + strings.ToUpper(strings.ReplaceAll(biosUUID, "-", ""))[:8], "product_uuid": biosUUID,
			"sys_vendor": "HPE", "product_name": "ProLiant DL360 Gen10"}
	}
	serial, uuid := DMI(biosUUID)
	return map[string]string{"product_serial": serial, "product_uuid": uuid, "sys_vendor": "VMware, Inc.", "product_name": "VMware Virtual Platform"}
}

// dmi puts them in a /sys.
func (n *inode) dmi(biosUUID string, server bool) {
	for name, text := range dmiFiles(biosUUID, server) {
		n.file("class/dmi/id/"+name, func() []byte { return []byte(text + "\n") }, nil)
	}
}

// DMI gives what a VM with this BIOS UUID (config.uuid) shows as
// product_serial and product_uuid: "VMware-" and the 16 bytes in hex, spaced,
// with a dash in the middle; and the UUID with its first three fields in the
// byte order of SMBIOS 2.6 and later.
// Unverified: that product_uuid is swapped at every hardware version.
func DMI(biosUUID string) (serial, uuid string) {
	b, err := hex.DecodeString(strings.ReplaceAll(biosUUID, "-", ""))
	if err != nil || len(b) != 16 {
		return "VMware-" + biosUUID, biosUUID
	}
	half := func(b []byte) string { return fmt.Sprintf("% x", b) }
	serial = "VMware-" + half(b[:8]) + "-" + half(b[8:])
	s := slices.Clone(b)
	slices.Reverse(s[0:4])
	slices.Reverse(s[4:6])
	slices.Reverse(s[6:8])
	return serial, formatUUID(s)
}

func pathError(op, p string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: p, Err: err}
}

// Each operation below locks the kernel for its short time.
func (h *Memory) enter(op, p string) (func(), error) {
	h.mu.Lock()
	if h.off || h.closed {
		h.mu.Unlock()
		return nil, pathError(op, p, ErrOff)
	}
	if h.remotes > 0 {
		h.lockFiles()
	}
	return h.leave, nil
}

// leave lets the next one in, once udev has shown what the operation changed: I/O
// may have found that a path is another unit's (recheck_wwid).
func (h *Memory) leave() {
	if h.scsi != nil && !h.off && !h.closed {
		h.udev()
	}
	h.leaveFiles()
	h.mu.Unlock()
}

// Name implements Host.
func (h *Memory) Name() string { return h.cfg.Name }

// Kind implements Host.
func (h *Memory) Kind() string { return "memory" }

// Supports implements Host.
func (h *Memory) Supports(feature string) error {
	fstype := strings.TrimPrefix(feature, "grow-online:")
	switch fstype {
	case "ext3", "ext4", "xfs":
		if tool := "mkfs." + fstype; slices.Contains(h.cfg.Missing, tool) {
			return fmt.Errorf("host: %s has no %s", h.cfg.Name, tool)
		}
		return nil
	case "block", "power-loss":
		return nil
	case "nfs":
		if h.cfg.Files == nil {
			return fmt.Errorf("host: %s reaches no NFS server", h.cfg.Name)
		}
		return nil
	}
	return fmt.Errorf("host: memory hosts do not know %q (known: ext3, ext4, xfs, grow-online:<fs>, block, power-loss, nfs)", feature)
}

func (h *Memory) stat(op, p string, follow bool) (fs.FileInfo, error) {
	return during(h, op, p, func() (fs.FileInfo, error) { return h.statAt(op, p, follow) })
}

func (h *Memory) statAt(op, p string, follow bool) (fs.FileInfo, error) {
	at, err := h.ns.walk(p, follow)
	if err == nil {
		err = at.alive()
	}
	if err != nil {
		return nil, pathError(op, p, err)
	}
	return at.n.info(path.Base(p)), nil
}

// alive fails where the disk below a mount is gone, or its xfs has shut down: the
// corrupted mount of mount-utils (IsCorruptedMnt knows EIO). Of a share it asks the
// server.
func (p place) alive() error {
	if p.m.remote != nil {
		if _, err := p.m.remote.access(p); err != nil {
			return err
		}
	}
	if v := p.n.sb.vol; v != nil && (v.dev.gone || v.aborted && v.head.Type == "xfs") {
		return syscall.EIO
	}
	return nil
}

// Stat implements Files.
func (h *Memory) Stat(p string) (fs.FileInfo, error) { return h.stat("stat", p, true) }

// Lstat implements Files.
func (h *Memory) Lstat(p string) (fs.FileInfo, error) { return h.stat("lstat", p, false) }

// ReadDir implements Files.
func (h *Memory) ReadDir(p string) ([]fs.DirEntry, error) {
	return during(h, "open", p, func() ([]fs.DirEntry, error) { return h.readDir(p) })
}

func (h *Memory) readDir(p string) ([]fs.DirEntry, error) {
	at, err := h.ns.walk(p, true)
	if err == nil {
		err = at.alive()
	}
	if err == nil && !at.n.mode.IsDir() {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return nil, pathError("open", p, err)
	}
	out := []fs.DirEntry{}
	for _, name := range at.n.names() {
		out = append(out, fs.FileInfoToDirEntry(h.ns.top(place{at.m, at.n.children[name]}).n.info(name)))
	}
	return out, nil
}

// regular refuses what has no content of its own.
func regular(n *inode) error {
	switch {
	case n.mode.IsDir():
		return syscall.EISDIR
	case !n.mode.IsRegular():
		return syscall.EINVAL
	}
	return nil
}

// ReadFile implements Files.
func (h *Memory) ReadFile(p string) ([]byte, error) {
	return during(h, "open", p, func() ([]byte, error) { return h.readFile(p) })
}

func (h *Memory) readFile(p string) ([]byte, error) {
	at, err := h.ns.walk(p, true)
	if err == nil {
		err = regular(at.n)
	}
	if err == nil {
		err = at.alive()
	}
	if err != nil {
		return nil, pathError("open", p, err)
	}
	if at.n.gen != nil {
		b, err := at.n.gen()
		return b, pathError("read", p, err)
	}
	h.now.mount = at.m
	b := make([]byte, at.n.length())
	if _, err := at.n.readAt(0, b); err != nil {
		return nil, pathError("read", p, err)
	}
	return b, nil
}

// create finds a file to write to, and makes it when missing.
func (h *Memory) create(p string, perm fs.FileMode) (place, error) {
	at, err := h.ns.walk(p, true)
	if errors.Is(err, syscall.ENOENT) {
		dir, name, perr := h.ns.parent(p)
		if perr != nil {
			return place{}, perr
		}
		if dir.n.children[name] != nil {
			return place{}, err // a link to nowhere
		}
		if err := h.writable(dir); err != nil {
			return place{}, err
		}
		if dir.n.sb == h.sys {
			return place{}, syscall.EPERM
		}
		if err := dir.n.sb.room(); err != nil {
			return place{}, err
		}
		return place{dir.m, dir.n.add(name, perm.Perm())}, nil
	}
	if err != nil {
		return place{}, err
	}
	if at.n.mode.IsDir() {
		return place{}, syscall.EISDIR
	}
	if at.n.mode&fs.ModeDevice == 0 {
		if err := h.writable(at); err != nil {
			return place{}, err
		}
	}
	return at, nil
}

func (h *Memory) writable(p place) error {
	if p.m.readOnly() {
		return syscall.EROFS
	}
	if r := p.m.remote; r != nil {
		if e, err := r.access(p); err != nil {
			return err
		} else if e.ReadOnly {
			return syscall.EROFS
		}
	}
	return p.alive()
}

// WriteFile implements Files. As with os.WriteFile nothing is synced.
func (h *Memory) WriteFile(p string, data []byte, perm fs.FileMode) error {
	_, err := during(h, "open", p, func() (struct{}, error) { return struct{}{}, h.writeFile(p, data, perm) })
	return err
}

func (h *Memory) writeFile(p string, data []byte, perm fs.FileMode) error {
	at, err := h.create(p, perm)
	if err != nil {
		return pathError("open", p, err)
	}
	if at.n.mode&fs.ModeDevice != 0 {
		return pathError("write", p, h.writeDevice(at.n, 0, data, false))
	}
	if err := regular(at.n); err != nil {
		return pathError("open", p, err)
	}
	h.now.mount = at.m
	if at.n.set == nil && at.n.gen == nil {
		at.n.truncate()
	} else {
		defer h.waiting.wake() // what is asked of the kernel may end a wait
	}
	return pathError("write", p, at.n.writeAt(0, data))
}

// MkdirAll implements Files.
func (h *Memory) MkdirAll(p string, perm fs.FileMode) error {
	return h.act("mkdir", p, func() error { return h.mkdirAll(p, perm) })
}

func (h *Memory) mkdirAll(p string, perm fs.FileMode) error {
	if !path.IsAbs(p) {
		return pathError("mkdir", p, syscall.ENOENT)
	}
	at := h.ns.root()
	sofar := ""
	for _, name := range splitPath(p) {
		sofar += "/" + name
		next, err := h.ns.walk(sofar, true)
		if errors.Is(err, syscall.ENOENT) {
			if at.n.children[name] != nil {
				return pathError("mkdir", sofar, syscall.EEXIST) // a link to nowhere
			}
			if err := h.writable(at); err != nil {
				return pathError("mkdir", sofar, err)
			}
			if err := at.n.sb.room(); err != nil {
				return pathError("mkdir", sofar, err)
			}
			next = place{at.m, at.n.add(name, fs.ModeDir|perm.Perm())}
		} else if err != nil {
			return pathError("mkdir", sofar, err)
		}
		if !next.n.mode.IsDir() {
			return pathError("mkdir", sofar, syscall.ENOTDIR)
		}
		at = next
	}
	return nil
}

// entry resolves a name that is to be removed or renamed.
func (h *Memory) entry(p string) (place, *inode, error) {
	dir, name, err := h.ns.parent(p)
	if err != nil {
		return place{}, nil, err
	}
	if err := dir.alive(); err != nil {
		return place{}, nil, err
	}
	n := dir.n.children[name]
	if n == nil {
		return dir, nil, syscall.ENOENT
	}
	if n.mounts > 0 {
		return dir, n, syscall.EBUSY
	}
	return dir, n, h.writable(dir)
}

// Remove implements Files.
func (h *Memory) Remove(p string) error {
	return h.act("remove", p, func() error { return h.remove(p) })
}

func (h *Memory) remove(p string) error {
	_, n, err := h.entry(p)
	if err == nil && len(n.children) > 0 {
		err = syscall.ENOTEMPTY
	}
	if err != nil {
		return pathError("remove", p, err)
	}
	n.drop()
	return nil
}

// Rename implements Files.
func (h *Memory) Rename(from, to string) error {
	return h.act("rename", from, func() error { return h.rename(from, to) })
}

func (h *Memory) rename(from, to string) error {
	fail := func(p string, err error) error { return pathError("rename", p, err) }
	src, n, err := h.entry(from)
	if err != nil {
		return fail(from, err)
	}
	dst, old, err := h.entry(to)
	if err != nil && !(errors.Is(err, syscall.ENOENT) && dst.n != nil) {
		return fail(to, err)
	}
	if old == nil {
		if err := h.writable(dst); err != nil {
			return fail(to, err)
		}
	}
	for up := dst.n; up != nil; up = up.parent {
		if up == n {
			return fail(to, syscall.EINVAL)
		}
	}
	switch {
	case src.m != dst.m:
		return fail(to, syscall.EXDEV)
	case old == n:
		return nil
	case old != nil && old.mode.IsDir() && !n.mode.IsDir():
		return fail(to, syscall.EISDIR)
	case old != nil && !old.mode.IsDir() && n.mode.IsDir():
		return fail(to, syscall.ENOTDIR)
	case old != nil && len(old.children) > 0:
		return fail(to, syscall.ENOTEMPTY)
	}
	if old != nil {
		old.drop()
	}
	delete(n.parent.children, n.name)
	n.parent.touch()
	n.parent, n.name = dst.n, path.Base(path.Clean(to))
	dst.n.children[n.name] = n
	dst.n.touch()
	return nil
}

// Symlink implements Files.
func (h *Memory) Symlink(target, p string) error {
	return h.act("symlink", p, func() error { return h.symlink(target, p) })
}

func (h *Memory) symlink(target, p string) error {
	dir, name, err := h.ns.parent(p)
	if err == nil && dir.n.children[name] != nil {
		err = syscall.EEXIST
	}
	if err == nil {
		err = h.writable(dir)
	}
	if err == nil {
		err = dir.n.sb.room()
	}
	if err != nil {
		return pathError("symlink", p, err)
	}
	dir.n.add(name, fs.ModeSymlink|0o777).target = target
	return nil
}

// Readlink implements Files.
func (h *Memory) Readlink(p string) (string, error) {
	leave, err := h.enter("readlink", p)
	if err != nil {
		return "", err
	}
	defer leave()
	at, err := h.ns.walk(p, false)
	if err == nil && at.n.mode&fs.ModeSymlink == 0 {
		err = syscall.EINVAL
	}
	if err != nil {
		return "", pathError("readlink", p, err)
	}
	return at.n.target, nil
}

// EvalSymlinks implements Files.
func (h *Memory) EvalSymlinks(p string) (string, error) {
	leave, err := h.enter("lstat", p)
	if err != nil {
		return "", err
	}
	defer leave()
	at, err := h.ns.walk(p, true)
	if err != nil {
		return "", pathError("lstat", p, err)
	}
	return h.ns.path(at), nil
}

// change alters the attributes of a file.
func (h *Memory) change(op, p string, follow bool, do func(*inode)) error {
	return h.act(op, p, func() error { return h.changeAt(op, p, follow, do) })
}

func (h *Memory) changeAt(op, p string, follow bool, do func(*inode)) error {
	at, err := h.ns.walk(p, follow)
	if err == nil {
		err = h.writable(at)
	}
	if err != nil {
		return pathError(op, p, err)
	}
	do(at.n)
	if v := at.n.sb.vol; v != nil {
		v.changed = true
	}
	return nil
}

// Chmod implements Files.
func (h *Memory) Chmod(p string, mode fs.FileMode) error {
	const bits = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky
	return h.change("chmod", p, true, func(n *inode) { n.mode = n.mode&^bits | mode&bits })
}

// Lchown implements Files. An id of -1 stays as it is.
func (h *Memory) Lchown(p string, uid, gid int) error {
	return h.change("lchown", p, false, func(n *inode) {
		if uid >= 0 {
			n.uid = uid
		}
		if gid >= 0 {
			n.gid = gid
		}
	})
}

// Owner implements Files.
func (h *Memory) Owner(p string) (uid, gid int, err error) {
	err = h.act("lstat", p, func() error {
		at, err := h.ns.walk(p, false)
		if err == nil {
			err = at.alive()
		}
		if err == nil {
			uid, gid = at.n.uid, at.n.gid
		}
		return pathError("lstat", p, err)
	})
	return uid, gid, err
}

// Statfs implements Files.
func (h *Memory) Statfs(p string) (Usage, error) {
	return during(h, "statfs", p, func() (Usage, error) { return h.statfs(p) })
}

func (h *Memory) statfs(p string) (Usage, error) {
	at, err := h.ns.walk(p, true)
	if err == nil {
		err = at.alive()
	}
	if err != nil {
		return Usage{}, pathError("statfs", p, err)
	}
	if v := at.n.sb.vol; v != nil {
		return v.usage(), nil
	}
	const own = 64 << 30 // the node's own disk and memory are roomy
	return Usage{own, own / 2, own / 2, 1 << 22, 1<<22 - at.n.sb.count}, nil
}

// DeviceSize implements Files.
func (h *Memory) DeviceSize(p string) (int64, error) {
	leave, err := h.enter("open", p)
	if err != nil {
		return 0, err
	}
	defer leave()
	d, err := h.device(p)
	if err != nil {
		return 0, pathError("open", p, err)
	}
	return d.size, nil
}

// device finds the disk that a path leads to.
func (h *Memory) device(p string) (*device, error) {
	at, err := h.ns.walk(p, true)
	if err != nil {
		return nil, err
	}
	return h.open(at.n)
}

// ReadAt implements IO. A short read at the end comes with io.EOF.
func (h *Memory) ReadAt(p string, off int64, n int) ([]byte, error) {
	return during(h, "open", p, func() ([]byte, error) { return h.readAt(p, off, n) })
}

func (h *Memory) readAt(p string, off int64, n int) ([]byte, error) {
	if off < 0 || n < 0 {
		return nil, pathError("read", p, syscall.EINVAL)
	}
	at, err := h.ns.walk(p, true)
	if err != nil {
		return nil, pathError("open", p, err)
	}
	if at.n.mode&fs.ModeDevice != 0 {
		d, err := h.open(at.n)
		if err != nil {
			return nil, pathError("open", p, err)
		}
		b := make([]byte, max(0, min(int64(n), d.size-off)))
		if err := d.read(b, off); err != nil && len(b) > 0 {
			return nil, pathError("read", p, err)
		}
		return b, eof(len(b), n)
	}
	if err := regular(at.n); err != nil {
		return nil, pathError("read", p, err)
	}
	if err := at.alive(); err != nil {
		return nil, pathError("read", p, err)
	}
	h.now.mount = at.m
	b := make([]byte, max(0, min(int64(n), at.n.length()-off)))
	got, err := at.n.readAt(off, b)
	if err != nil {
		return nil, pathError("read", p, err)
	}
	return b[:got], eof(got, n)
}

func eof(got, wanted int) error {
	if got < wanted {
		return io.EOF
	}
	return nil
}

// WriteAt implements IO.
func (h *Memory) WriteAt(p string, off int64, data []byte, sync bool) error {
	_, err := during(h, "open", p, func() (struct{}, error) { return struct{}{}, h.writeAt(p, off, data, sync) })
	return err
}

func (h *Memory) writeAt(p string, off int64, data []byte, sync bool) error {
	if off < 0 {
		return pathError("write", p, syscall.EINVAL)
	}
	at, err := h.create(p, 0o644)
	if err != nil {
		return pathError("open", p, err)
	}
	if at.n.mode&fs.ModeDevice != 0 {
		return pathError("write", p, h.writeDevice(at.n, off, data, sync))
	}
	if err := regular(at.n); err != nil {
		return pathError("write", p, err)
	}
	h.now.mount = at.m
	if err := at.n.writeAt(off, data); err != nil {
		return pathError("write", p, err)
	}
	if sync || at.m.remote != nil { // a client writes to its server when it closes
		return pathError("fsync", p, at.n.sb.sync())
	}
	return nil
}

func (h *Memory) writeDevice(n *inode, off int64, data []byte, sync bool) error {
	d, err := h.open(n)
	if err != nil {
		return err
	}
	if err := d.write(data, off); err != nil {
		return err
	}
	if sync {
		return d.flush()
	}
	return nil
}

// Hold implements IO.
func (h *Memory) Hold(p string) (release func(), err error) {
	leave, err := h.enter("open", p)
	if err != nil {
		return nil, err
	}
	defer leave()
	at, err := h.ns.walk(p, true)
	if err != nil {
		return nil, pathError("open", p, err)
	}
	var d *device
	if at.n.mode&fs.ModeDevice != 0 {
		if d, err = h.open(at.n); err != nil {
			return nil, pathError("open", p, err)
		}
		d.opens++
	}
	at.m.busy++
	return sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		at.m.busy--
		if d != nil {
			d.opens--
			h.settle(d)
		}
	}), nil
}

// Sync brings everything to the disks (sync(2)).
func (h *Memory) Sync() error {
	_, err := during(h, "sync", "/", func() (struct{}, error) { return struct{}{}, h.syncAll() })
	return err
}

func (h *Memory) syncAll() error {
	var errs []error
	for _, m := range h.ns.table {
		if m.remote == nil { // what is on a server is written
			errs = append(errs, m.sb.sync())
		}
	}
	for _, d := range h.sortedDevices() {
		errs = append(errs, d.flush())
	}
	return errors.Join(errs...)
}

func validWWN(wwn string) error {
	if b, err := hex.DecodeString(wwn); err != nil || len(b) != 16 || strings.ToLower(wwn) != wwn {
		return fmt.Errorf("host: wwn %q: must be 32 lower case hex digits", wwn)
	}
	return nil
}

// AttachDisk implements Host. It works while the node is off too.
func (h *Memory) AttachDisk(ctx context.Context, wwn string, img disk.Image) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if err := validWWN(wwn); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return ErrOff
	}
	if h.disk(wwn) != nil {
		return fmt.Errorf("host: disk %s on %s: %w", wwn, h.cfg.Name, fs.ErrExist)
	}
	d := &device{wwn: wwn, img: img}
	h.disks = append(h.disks, d)
	if !h.off {
		h.plug(d)
	}
	return nil
}

func (h *Memory) disk(wwn string) *device {
	for _, d := range h.disks {
		if d.wwn == wwn {
			return d
		}
	}
	return nil
}

// DetachDisk implements Host. What the cache held is lost.
func (h *Memory) DetachDisk(_ context.Context, wwn string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.disk(wwn)
	if d == nil {
		return fmt.Errorf("host: disk %s on %s: %w", wwn, h.cfg.Name, fs.ErrNotExist)
	}
	h.disks = slices.DeleteFunc(h.disks, func(x *device) bool { return x == d })
	if !h.off {
		h.unplug(d)
	}
	d.gone = true
	return nil
}

// ResizeDisk implements Host.
func (h *Memory) ResizeDisk(_ context.Context, wwn string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.disk(wwn)
	if d == nil {
		return fmt.Errorf("host: disk %s on %s: %w", wwn, h.cfg.Name, fs.ErrNotExist)
	}
	return d.rescan()
}

// Disks implements Host.
func (h *Memory) Disks() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for _, d := range h.disks {
		out = append(out, d.wwn)
	}
	if h.scsi != nil {
		for _, d := range h.scsi.Disks() {
			out = append(out, d.WWN)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// PowerOff implements Host: what was not synced is lost, also of the raw devices.
func (h *Memory) PowerOff() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.powerOff()
	return nil
}

func (h *Memory) powerOff() {
	h.off = true
	h.forgetShares()
	h.ns = namespace{}
	for _, d := range h.devices {
		d.dirty, d.refs, d.opens = nil, 0, 0
	}
	h.devices, h.leaving = nil, nil
	h.waiting.wake()
	if h.scsi != nil {
		h.scsi.Halt()
	}
}

// PowerOn implements Host. The disks get their names anew, in the order they
// were plugged in.
func (h *Memory) PowerOn() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return ErrOff
	}
	if h.off {
		h.boot()
	}
	return nil
}

// Close implements Host. Nothing is synced: shut down in order first where
// the data is wanted.
func (h *Memory) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.powerOff()
		h.closed, h.disks = true, nil
	}
	return nil
}

// Mounter implements Host.
func (h *Memory) Mounter() mount.Interface { return memoryMounter{mountCommands{h.Exec()}, h} }

// Exec implements Host.
func (h *Memory) Exec() exec.Interface { return memoryExec{h} }

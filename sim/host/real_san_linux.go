package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/csilab/csilab/sim/host/scsi"
)

// realSAN is the SCSI side of a real node: the stack, its /sys, and its disks
// and maps as loop devices over files that lead to the stack, all of them in one
// FUSE filesystem.
type realSAN struct {
	h *Real

	// commands is held by what may change the stack: commands, writes to /sys,
	// boot. They come one at a time.
	commands sync.Mutex
	// mu guards the stack and /sys. I/O of the node's devices wants it too, so
	// that it must not be held over anything that may wait for such I/O.
	mu    sync.Mutex
	stack *scsi.Stack

	// Since the boot:
	sys  *superblock
	view *stackView
	luns map[string]*realLUN // by the kernel's name
	byID map[uint64]*realLUN
	lost []fuseName // names of /sys that went and that the kernel may still have
	last uint64
	// stale are devices that went and may still be mounted.
	stale []*realLUN
	// local are the disks that were plugged in (AttachDisk), as far as /sys shows
	// them; pulled are those that went and may still be mounted. The node's own
	// list is not for here: its lock is held while mu is wanted.
	local, pulled []*realDisk
	// in is a thread in the namespace for what the stack does: those for the
	// operations of the node may all wait for it.
	in *threads
	ns string // the namespace, as /proc shows it
	// waiting is I/O that has no path, under mu.
	waiting waiting
	fuse    *fuseConnection
}

// realLUN is a disk or map of the stack as a block device.
type realLUN struct {
	id   uint64
	name string
	loop *loop
	back *os.File
	// claim keeps a path of a map from being mounted, as device-mapper does.
	claim *os.File
	gone  bool
}

func newRealSAN(h *Real) *realSAN {
	x := &realSAN{h: h}
	x.stack = scsi.New(scsi.Config{Name: h.cfg.Name, SAN: h.cfg.SAN, Adapters: h.cfg.Adapters, FirstHost: 1,
		Node: realNode{x}, RecheckWWID: h.cfg.RecheckWWID, NoPathRetry: h.cfg.NoPathRetry})
	return x
}

// SetAdapters gives a node that is off other initiator names: those in the files
// below /etc, and of its FC ports. Its addresses stay.
func (h *Real) SetAdapters(a Adapters) error {
	h.life.Lock()
	defer h.life.Unlock()
	if h.san == nil {
		return errors.New("host: the node has no storage network")
	}
	h.san.mu.Lock()
	defer h.san.mu.Unlock()
	if err := h.san.stack.SetAdapters(a); err != nil {
		return err
	}
	h.cfg.Adapters.IQN, h.cfg.Adapters.WWPNs = a.IQN, a.WWPNs
	if a.IQN == "" {
		return nil
	}
	return os.WriteFile(filepath.Join(h.etcDir(), "iscsi/initiatorname.iscsi"), initiatorFile(a.IQN), 0o644)
}

func (x *realSAN) cards() cards {
	return cards{x.h.cfg.Seed, x.h.cfg.Name, x.h.cfg.Adapters.Networks}
}

func (x *realSAN) dir() string { return filepath.Join(x.h.cfg.Dir, "san") }

// mount makes the filesystem of a node that boots. It runs in the namespace.
func (x *realSAN) mount(dev *os.File) error {
	x.sys = newSuperblock("sysfs", "sysfs", devno{})
	x.view = newStackView(x.stack, x.sys.root, func() {})
	x.view.dropped = x.dropping
	x.luns, x.byID, x.stale = map[string]*realLUN{}, map[uint64]*realLUN{}, nil
	x.local, x.pulled = nil, nil
	x.waiting.over = false
	var err error
	x.fuse, err = mountFUSE(dev, x.dir(), x.h.cfg.Dir, newNodeFS(x))
	return err
}

// boot lets the stack look for its disks.
func (x *realSAN) boot(t *threads) error {
	in, err := t.another()
	if err != nil {
		return err
	}
	x.in = in
	err = in.do(func() { x.ns, err = os.Readlink("/proc/thread-self/ns/mnt") })
	if err != nil {
		return err
	}
	x.commands.Lock()
	defer x.commands.Unlock()
	x.mu.Lock()
	x.stack.Boot()
	x.mu.Unlock()
	x.udev()
	return nil
}

// cut is the loss of power: targets see the log-ins end, and no I/O of the node
// gets anywhere any more.
func (x *realSAN) cut() error {
	x.mu.Lock()
	x.stack.Halt()
	x.waiting.wake()
	x.mu.Unlock()
	if x.fuse == nil {
		return nil
	}
	err := x.fuse.close()
	x.fuse = nil
	return err
}

// forget lets go of the devices, once nothing is mounted.
func (x *realSAN) forget() error {
	x.commands.Lock()
	defer x.commands.Unlock()
	var errs []error
	for _, d := range x.luns {
		errs = append(errs, x.let(d))
	}
	x.luns, x.stale = nil, nil
	if x.in != nil {
		x.in.close()
		x.in = nil
	}
	return errors.Join(errs...)
}

// run runs a command of the node to its end.
func (x *realSAN) run(out, errs io.Writer, name string, args []string) (int, error) {
	x.h.life.RLock()
	defer x.h.life.RUnlock()
	if x.h.t == nil {
		return 0, ErrOff
	}
	x.commands.Lock()
	defer x.commands.Unlock()
	if name == "ip" {
		return x.cards().ip(out, errs, args), nil
	}
	x.mu.Lock()
	code := x.stack.Run(out, errs, name, args)
	x.waiting.wake() // it may have ended a wait
	x.mu.Unlock()
	x.udev()
	return code, nil
}

// writeSys is a write to a file of /sys.
func (x *realSAN) writeSys(n *inode, data []byte) error {
	x.commands.Lock()
	defer x.commands.Unlock()
	x.mu.Lock()
	err := error(unix.ENODEV)
	if attached(n) {
		err = n.set(data)
	}
	x.waiting.wake()
	x.mu.Unlock()
	x.udev()
	return err
}

// udev shows in /dev and /sys what happened to the stack. It runs after
// everything that may have changed it; commands is held.
func (x *realSAN) udev() {
	x.mu.Lock()
	events := x.stack.Uevents()
	x.mu.Unlock()
	if len(events) == 0 {
		return
	}
	for _, e := range events {
		if err := x.event(e); err != nil {
			x.h.log.Error("device of a storage network", "node", x.h.cfg.Name, "device", e.Name, "action", e.Action, "error", err)
		}
	}
	x.claim()
	x.mu.Lock()
	bindings := x.stack.Bindings()
	x.mu.Unlock()
	if err := os.WriteFile(filepath.Join(x.h.etcDir(), "multipath", "bindings"), bindings, 0o600); err != nil {
		x.h.log.Error("bindings of multipath", "node", x.h.cfg.Name, "error", err)
	}
}

func (x *realSAN) event(e scsi.Uevent) error {
	if e.Kind == scsi.KindLink {
		x.mu.Lock()
		target, ok := x.stack.Link(e.Name)
		x.mu.Unlock()
		return x.inside(func() error { return relink("/dev/"+e.Name, target, ok) })
	}
	x.mu.Lock()
	x.view.update(e.Object)
	dev, block := x.stack.Node(e.Object)
	x.mu.Unlock()
	x.forgetNames()
	if e.Action == scsi.Remove {
		return x.unplug(e.Object)
	}
	if !block {
		return nil
	}
	return x.plug(dev, e.Action == scsi.Add)
}

// dropping notes a name of /sys that goes; drop lets it go. mu is held.
func (x *realSAN) dropping(n *inode) {
	x.lost = append(x.lost, fuseName{fsInode + uint64(n.parent.ino), n.name})
}

func (x *realSAN) drop(n *inode) {
	x.dropping(n)
	n.drop()
}

// forgetNames tells the kernel what went of /sys.
func (x *realSAN) forgetNames() {
	x.mu.Lock()
	lost := x.lost
	x.lost = nil
	x.mu.Unlock()
	if len(lost) > 0 && x.fuse != nil {
		x.fuse.forget(lost)
	}
}

// relink makes a link lead somewhere, or takes it away.
func relink(p, target string, ok bool) error {
	if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if !ok {
		return nil
	}
	if err := os.MkdirAll(path.Dir(p), 0o755); err != nil {
		return err
	}
	return os.Symlink(target, p)
}

// inside runs f in the node's namespace.
func (x *realSAN) inside(f func() error) error {
	var err error
	if derr := x.in.do(func() { err = f() }); derr != nil {
		return derr
	}
	return err
}

// plug makes the block device of a disk or map, or takes over its size and
// whether it is read-only.
func (x *realSAN) plug(dev scsi.Device, fresh bool) error {
	d := x.luns[dev.Name]
	if d == nil {
		if !fresh {
			return nil
		}
		x.mu.Lock()
		x.last++
		d = &realLUN{id: x.last, name: dev.Name}
		x.luns[d.name], x.byID[d.id] = d, d
		x.mu.Unlock()
		if err := x.attach(d); err != nil {
			return errors.Join(err, x.unplug(scsi.Object{Kind: scsi.KindDisk, Name: dev.Name}))
		}
	}
	// The kernel asks for the size of the file when the loop device does.
	if _, err := d.back.Stat(); err != nil {
		return err
	}
	if err := d.loop.resize(); err != nil {
		return err
	}
	x.mu.Lock()
	_, ro := x.stack.Identity(d.name)
	x.mu.Unlock()
	return d.loop.readOnly(ro)
}

// attach gives a device its loop device and the node for it.
func (x *realSAN) attach(d *realLUN) error {
	err := x.inside(func() (err error) {
		d.back, err = os.OpenFile(filepath.Join(x.dir(), "lun", fmt.Sprint(d.id)), os.O_RDWR|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return err
	}
	if d.loop, err = configureLoop(d.back, d.back.Name(), x.h.cfg.Dir); err != nil {
		return err
	}
	x.mu.Lock()
	if block := x.sys.root.at("block").children[d.name]; block != nil {
		// By the number that programs find on the node.
		link := x.sys.root.at("dev/block").add(fmt.Sprintf("%d:%d", loopMajor, d.loop.minor), fs.ModeSymlink|0o777)
		link.target = "../" + block.target
	}
	x.mu.Unlock()
	return x.inside(func() error {
		return unix.Mknod("/dev/"+d.name, unix.S_IFBLK|0o660, int(unix.Mkdev(loopMajor, d.loop.minor)))
	})
}

// unplug takes away what went. While it is mounted the loop device stays, and
// its I/O fails.
func (x *realSAN) unplug(o scsi.Object) error {
	if o.Kind != scsi.KindDisk && o.Kind != scsi.KindMap {
		return nil
	}
	d := x.luns[o.Name]
	if d == nil {
		return nil
	}
	x.mu.Lock()
	delete(x.luns, o.Name)
	if d.loop != nil {
		if n := x.sys.root.at("dev/block").children[fmt.Sprintf("%d:%d", loopMajor, d.loop.minor)]; n != nil {
			x.drop(n)
		}
		x.stale = append(x.stale, d)
	}
	x.mu.Unlock()
	x.forgetNames()
	err := x.inside(func() error { return os.Remove("/dev/" + d.name) })
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, x.let(d))
}

// let lets go of a device.
func (x *realSAN) let(d *realLUN) error {
	x.mu.Lock()
	d.gone = true
	delete(x.byID, d.id)
	x.waiting.wake()
	x.mu.Unlock()
	var errs []error
	for _, f := range []*os.File{d.claim, d.back} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	d.claim = nil
	if d.loop != nil {
		errs = append(errs, d.loop.close())
	}
	return errors.Join(errs...)
}

// claim takes the paths of maps for itself, and gives back what left one.
func (x *realSAN) claim() {
	for _, d := range x.luns {
		x.mu.Lock()
		disk := x.stack.Disk(d.name)
		held := disk != nil && disk.Map() != nil
		x.mu.Unlock()
		switch {
		case held && d.claim == nil:
			// It is refused when somebody has it mounted already.
			d.claim, _ = openLoop(int(d.loop.minor), x.h.cfg.Dir, unix.O_EXCL)
		case !held && d.claim != nil:
			d.claim.Close()
			d.claim = nil
		}
	}
}

// unmounting is called before an unmount; what it returns, after it. It does
// what closing a block device does that nobody uses any more: its page cache
// goes. That doesn't happen by itself, since this process keeps the loop device
// open.
func (x *realSAN) unmounting() (done func()) {
	if x == nil {
		return func() {}
	}
	x.commands.Lock()
	before := x.mountedNumbers()
	x.commands.Unlock()
	return func() { x.dropCaches(before) }
}

// dropCaches drops the page cache of devices that were mounted and aren't now.
func (x *realSAN) dropCaches(before map[string][]string) {
	x.commands.Lock()
	defer x.commands.Unlock()
	numbers := x.mountedNumbers()
	for _, d := range x.luns {
		if d.loop == nil {
			continue
		}
		if no := loopNumber(d.loop.minor); before[no] != nil && numbers[no] == nil {
			_ = unix.IoctlSetInt(int(d.loop.f.Fd()), unix.BLKFLSBUF, 0)
		}
	}
}

// I/O of the devices, which the kernel asks for through their files.

func (x *realSAN) lunInfo(id uint64) (size int64, readOnly, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	d := x.byID[id]
	if d == nil {
		return 0, false, false
	}
	size, _ = x.stack.Capacity(d.name)
	_, readOnly = x.stack.Identity(d.name)
	return size, readOnly, true
}

// onLUN runs an operation of the stack on a device that is still there, again
// for as long as it has to wait for a path.
func (x *realSAN) onLUN(id uint64, f func(name string) error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	for {
		d := x.byID[id]
		if d == nil {
			return unix.EIO
		}
		err := f(d.name)
		if !errors.Is(err, scsi.ErrQueued) {
			return err
		}
		if x.waiting.over {
			return unix.EIO
		}
		woken := x.waiting.line(x.turn)
		x.mu.Unlock()
		<-woken
		x.mu.Lock()
	}
}

// FailQueued ends all waits for paths with EIO, now and until the next boot:
// whoever takes the power from a node that is in use does this first.
func (h *Real) FailQueued() {
	if x := h.san; x != nil {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.waiting.end()
	}
}

// turn is the path checker's.
func (x *realSAN) turn() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.stack.Turn()
	x.waiting.wake()
}

func (x *realSAN) readLUN(id uint64, b []byte, off int64) (n int, err error) {
	err = x.onLUN(id, func(name string) error {
		size, _ := x.stack.Capacity(name)
		n = int(max(0, min(int64(len(b)), size-off)))
		return x.stack.ReadAt(name, b[:n], off)
	})
	return n, err
}

func (x *realSAN) writeLUN(id uint64, b []byte, off int64) error {
	return x.onLUN(id, func(name string) error { return x.stack.WriteAt(name, b, off) })
}

func (x *realSAN) syncLUN(id uint64) error {
	return x.onLUN(id, func(name string) error { return x.stack.Sync(name) })
}

// command is a command of the node that the stack answers, as Exec runs it.
func (x *realSAN) command(ctx context.Context, name string, args []string) *innerCmd {
	return &innerCmd{ctx: ctx, run: func(ctx context.Context, out, errs io.Writer) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if out == nil {
			out = io.Discard
		}
		if errs == nil {
			errs = io.Discard
		}
		code, err := x.run(out, errs, name, args)
		return exit(code, err)
	}}
}

// emulates says whether the node answers a command itself.
func (h *Real) emulates(cmd string) bool {
	name := emulatedName(cmd)
	return h.san != nil && (scsi.IsCommand(name) || name == "ip")
}

// emulatedName is the name of a command given by its path, where it may be.
func emulatedName(cmd string) string {
	for _, dir := range []string{"/usr/local/sbin/", "/usr/sbin/", "/sbin/", "/usr/bin/", "/bin/", "/lib/udev/", "/usr/lib/udev/"} {
		if name, ok := strings.CutPrefix(cmd, dir); ok {
			return name
		}
	}
	return cmd
}

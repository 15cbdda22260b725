package host

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/csilab/csilab/sim/host/scsi"
)

// installSAN puts the files of the storage network's software on the node's disk.
func (h *Memory) installSAN() {
	for rel, text := range sanFiles(h.cfg.Seed, h.cfg.Name, h.cfg.Adapters, h.cfg.RecheckWWID, h.cfg.NoPathRetry) {
		dir, name := path.Split(rel)
		h.rootfs.root.at("etc/"+dir).add(name, 0o644).data = []byte(text)
	}
	bindings := h.rootfs.root.at("etc/multipath").add("bindings", 0o600)
	bindings.gen = func() ([]byte, error) { return h.scsi.Bindings(), nil }
}

// bootSAN lets the stack look for its disks.
func (h *Memory) bootSAN() {
	h.view = newStackView(h.scsi, h.sys.root, h.udev)
	for _, d := range []string{"disk/by-path", "mapper"} {
		h.dev.root.at(d)
	}
	control := h.dev.root.at("mapper").add("control", fs.ModeDevice|fs.ModeCharDevice|0o600)
	control.dev = devno{10, 236}
	h.cards().show(h.sys.root)
	h.proc.root.file("scsi/scsi", func() []byte { return h.scsi.ProcSCSI() }, nil)
	h.scsi.Boot()
	h.udev()
}

// udev shows in /dev and /sys what happened to the stack. It runs after
// everything that may have changed it.
func (h *Memory) udev() {
	for _, e := range h.scsi.Uevents() {
		if e.Kind == scsi.KindLink {
			h.relink(e.Name)
			continue
		}
		h.view.update(e.Object)
		node, block := h.scsi.Node(e.Object)
		if e.Action == scsi.Remove {
			h.unplugSAN(e.Object)
			continue
		}
		if block {
			h.plugSAN(node, e.Action == scsi.Add)
		}
	}
}

// relink makes a link below /dev lead where the stack says.
func (h *Memory) relink(p string) {
	dir, name := path.Split(p)
	at := h.dev.root.at(dir)
	if n := at.children[name]; n != nil {
		n.drop()
	}
	if target, ok := h.scsi.Link(p); ok {
		at.add(name, fs.ModeSymlink|0o777).target = target
	}
}

// plugSAN makes the block device of a disk or map, or takes over its size.
func (h *Memory) plugSAN(n scsi.Device, fresh bool) {
	no := devno{n.No.Major, n.No.Minor}
	d := h.devices[no]
	if d == nil && fresh {
		d = &device{name: n.Name, no: no, dirty: map[int64][]byte{}, img: lunImage{h, n.Name}}
		h.devices[no] = d
		h.dev.root.add(d.name, fs.ModeDevice|0o660).dev = no
	}
	if d != nil && !d.gone {
		d.wwn, d.ro = h.scsi.Identity(n.Name)
		_ = d.rescan()
	}
}

// unplugSAN takes away what went.
func (h *Memory) unplugSAN(o scsi.Object) {
	if o.Kind != scsi.KindDisk && o.Kind != scsi.KindMap {
		return
	}
	n := h.dev.root.children[o.Name]
	if n == nil {
		return
	}
	d := h.devices[n.dev]
	n.drop()
	if d != nil {
		d.gone = true
		clear(d.dirty)
		h.settle(d)
	}
}

// sortedDevices are the block devices by number.
func (h *Memory) sortedDevices() []*device {
	return slices.SortedFunc(maps.Values(h.devices), func(a, b *device) int {
		return cmp.Or(cmp.Compare(a.no.major, b.no.major), cmp.Compare(a.no.minor, b.no.minor))
	})
}

// byName finds a block device that is there.
func (h *Memory) byName(name string) *device {
	n := h.dev.root.children[name]
	if n == nil {
		return nil
	}
	return h.devices[n.dev]
}

// Waits says whether I/O to a block device would wait for a path now.
func (h *Memory) Waits(device string) bool {
	p, err := h.EvalSymlinks(device)
	if err != nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.scsi != nil && h.scsi.Waits(path.Base(p))
}

// heldByMap says whether a disk is a path of a multipath map, which has claimed it.
func (h *Memory) heldByMap(d *device) bool {
	if h.scsi == nil || d.gone {
		return false
	}
	x := h.scsi.Disk(d.name)
	return x != nil && x.Map() != nil
}

// lunImage is what a disk or map of the stack leads to.
type lunImage struct {
	h    *Memory
	name string
}

func (i lunImage) ReadAt(b []byte, off int64) (int, error) {
	if err := i.h.queues(i.h.scsi.ReadAt(i.name, b, off)); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (i lunImage) WriteAt(b []byte, off int64) (int, error) {
	if err := i.h.queues(i.h.scsi.WriteAt(i.name, b, off)); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (i lunImage) Sync() error { return i.h.queues(i.h.scsi.Sync(i.name)) }

func (i lunImage) Size() int64 {
	n, _ := i.h.scsi.Capacity(i.name)
	return n
}

func (lunImage) Path() string { return "" }
func (lunImage) Close() error { return nil }

// memoryNode is what the stack asks its node. The kernel is locked.
type memoryNode struct{ h *Memory }

func (n memoryNode) Taken(name string) bool {
	if i, ok := scsi.DiskIndex(name); ok {
		return n.h.devices[diskNo(i)] != nil
	}
	minor := 0
	if _, err := fmt.Sscanf(name, "dm-%d", &minor); err == nil {
		return n.h.devices[devno{scsi.DMMajor, minor}] != nil
	}
	return false
}

func (n memoryNode) InUse(name string) bool {
	d := n.h.byName(name)
	return d != nil && d.refs+d.opens > 0
}

func (n memoryNode) Flush(name string) error {
	if d := n.h.byName(name); d != nil && len(d.dirty) > 0 {
		return d.flush()
	}
	return nil
}

func (n memoryNode) Content(name string) scsi.Content {
	d := n.h.byName(name)
	if d == nil {
		return scsi.Content{}
	}
	var c scsi.Content
	if n.h.scsi.Waits(name) {
		return c // udev, which lsblk asks, is stuck itself
	}
	if token, err := probe(d); err == nil {
		c.Type, _ = strings.CutPrefix(token, "TYPE=")
	}
	if head, err := readHeader(d); err == nil {
		c.UUID = head.UUID
	}
	for _, m := range n.h.ns.table {
		if m.sb.vol != nil && m.sb.vol.dev == d {
			c.Mounts = append(c.Mounts, n.h.ns.where(m))
		}
	}
	return c
}

func (n memoryNode) Others() []scsi.Block {
	out := []scsi.Block{{Name: "sda", Type: "disk", No: scsi.Devno{Major: scsiMajor}, Bytes: 64 << 30, Vendor: "HPE", Model: "LOGICAL VOLUME"}}
	for _, d := range n.h.disks {
		out = append(out, scsi.Block{Name: d.name, Type: "disk", No: scsi.Devno{Major: d.no.major, Minor: d.no.minor}, Bytes: d.size,
			WWN: d.wwn, Vendor: "VMware", Model: "Virtual disk"})
	}
	return out
}

// SetAdapters gives a node that is off other initiator names: those in the files
// below /etc, and of its FC ports. Its addresses stay.
func (h *Memory) SetAdapters(a Adapters) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.scsi == nil {
		return errors.New("host: the node has no storage network")
	}
	if err := h.scsi.SetAdapters(a); err != nil {
		return err
	}
	h.cfg.Adapters.IQN, h.cfg.Adapters.WWPNs = a.IQN, a.WWPNs
	if a.IQN != "" {
		h.rootfs.root.at("etc/iscsi").add("initiatorname.iscsi", 0o644).data = initiatorFile(a.IQN)
	}
	return nil
}

package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/san"
)

// Faults of data and devices. Volumes are named by their CSI id. What is done
// to what a node sees acts on that node, or with node "" on all.

// nodesNamed are a node, or all.
func (l *Lab) nodesNamed(node string) ([]*Node, error) {
	if node == "" {
		return l.nodes, nil
	}
	if n := l.node(node); n != nil {
		return []*Node{n}, nil
	}
	return nil, l.noNode(node)
}

func (l *Lab) noNode(node string) error {
	return fmt.Errorf("node %q: there is none; allowed are %s", node, strings.Join(l.Nodes(), ", "))
}

// spoilable refuses nodes whose disks the lab can't stand before: a loop device
// reads its file by itself.
func (l *Lab) spoilable(nodes []*Node) error {
	for _, n := range nodes {
		if n.host.Kind() == "real" && n.units == nil {
			return Skip("what real nodes on vSphere read can't be spoiled: their disks are loop devices on files")
		}
	}
	return nil
}

// spoil lets do spoil a volume's image on the nodes, and returns what heals all
// damage of the volume there.
func (l *Lab) spoil(volume, node string, do func(d *disk.Damage, image string) error) (heal func(), err error) {
	nodes, err := l.nodesNamed(node)
	if err == nil {
		err = l.spoilable(nodes)
	}
	if err != nil {
		return nil, err
	}
	if b, ok := l.backend.(*hpe); ok && b.shareSource(volume) != "" {
		return nil, Skip("what nodes read of a share can't be spoiled: its server reads the disk")
	}
	image, err := l.backend.image(volume)
	if err != nil {
		return nil, err
	}
	heal = func() {
		for _, n := range nodes {
			n.damage.Heal(image)
		}
	}
	for _, n := range nodes {
		if err := do(n.damage, image); err != nil {
			heal()
			return nil, err
		}
	}
	return heal, nil
}

// FlipBits changes a byte of a volume on its medium, for whoever reads it. The
// second flip with the same mask undoes it. Errors: no such volume, and an
// offset beyond its end.
func (l *Lab) FlipBits(volume string, offset int64, mask byte) error {
	img, err := l.backend.open(volume)
	if err != nil {
		return err
	}
	defer img.Close()
	if err := disk.Flip(img, offset, mask); err != nil {
		return fmt.Errorf("volume %s: %w", volume, err)
	}
	return nil
}

// FailIO makes a node's I/O to a range of a volume fail, in bytes; length 0 is
// to its end.
func (l *Lab) FailIO(volume, node string, offset, length int64, dir disk.Direction) (heal func(), err error) {
	if offset < 0 || length < 0 {
		return nil, fmt.Errorf("offset %d, length %d: allowed are 0 and more", offset, length)
	}
	if length == 0 {
		length = 1<<62 - offset
	}
	return l.spoil(volume, node, func(d *disk.Damage, image string) error {
		d.FailRange(image, disk.Extent{Start: offset, Length: length}, dir)
		return nil
	})
}

// BlankDevice makes a volume read as zeros on a node although it holds data.
func (l *Lab) BlankDevice(volume, node string) (heal func(), err error) {
	return l.spoil(volume, node, func(d *disk.Damage, image string) error { d.Blank(image); return nil })
}

// SilentDevice makes reads of a volume return nothing on a node: the device
// says that it has no size.
func (l *Lab) SilentDevice(volume, node string) (heal func(), err error) {
	mend, err := l.spoil(volume, node, func(d *disk.Damage, image string) error { d.Silence(image); return nil })
	if err != nil {
		return nil, err
	}
	l.rescan(volume, node)
	return func() {
		mend()
		l.rescan(volume, node)
	}, nil
}

// rescan makes nodes look at the size of a volume's disk again, where they have
// it plugged in.
func (l *Lab) rescan(volume, node string) {
	nodes, _ := l.nodesNamed(node)
	for _, n := range nodes {
		n.mu.Lock()
		var wwns []string
		for wwn, p := range n.images {
			if p.id == volume && p.late == nil {
				wwns = append(wwns, wwn)
			}
		}
		n.mu.Unlock()
		for _, wwn := range wwns {
			if err := n.host.ResizeDisk(l.ctx, wwn); err != nil {
				l.log.Debug("rescan", "node", n.Name, "disk", wwn, "err", err)
			}
		}
	}
}

// LateDevices makes disks show up on a node only so long after the storage has
// attached them; 0 ends that.
func (l *Lab) LateDevices(node string, by time.Duration) (heal func(), err error) {
	nodes, err := l.nodesNamed(node)
	if err != nil {
		return nil, err
	}
	if by < 0 {
		return nil, fmt.Errorf("device late by %v: allowed are 0 and more", by)
	}
	set := func(by time.Duration) {
		for _, n := range nodes {
			n.mu.Lock()
			n.late = by
			n.mu.Unlock()
			if n.units != nil {
				n.units.Late(by)
			}
		}
	}
	set(by)
	return func() { set(0) }, nil
}

// CutStorage takes a node's path to the storage away: its I/O fails. Calls
// between components go on. On arrays the paths go down; on vSphere the disks
// fail (as after all paths are down for good: what hangs before is not
// modelled).
func (l *Lab) CutStorage(node string) (heal func(), err error) {
	nodes, err := l.nodesNamed(node)
	if err == nil && l.SAN() == nil {
		err = l.spoilable(nodes)
	}
	if err != nil {
		return nil, err
	}
	set := func(cut bool) {
		for _, n := range nodes {
			if s := l.SAN(); s != nil {
				s.NodeCut(n.Name, cut || n.poweredOff())
			} else {
				n.damage.Cut(cut)
			}
		}
	}
	set(true)
	return func() { set(false) }, nil
}

// serialOf is the serial of a volume's disk on a node. Errors: it has none.
func (l *Lab) serialOf(volume string, n *Node) (string, error) {
	for _, x := range l.backend.exports() {
		if x.VolumeID == volume && x.Node == n.Name {
			return x.Serial, nil
		}
	}
	return "", fmt.Errorf("volume %s is not attached to %s", volume, n.Name)
}

// MakeReadOnly makes what is mounted from a volume on a node read-only, as a
// kernel does after an error. It heals by an unmount and a new mount; heal does
// it in place.
func (l *Lab) MakeReadOnly(volume, node string) (heal func(), err error) {
	n := l.node(node)
	if n == nil {
		return nil, l.noNode(node)
	}
	serial, err := l.serialOf(volume, n)
	if err != nil {
		return nil, err
	}
	if m, ok := n.host.(*host.Memory); ok {
		if k, err := m.AbortFilesystem(serial); err != nil || k == 0 {
			return nil, errors.Join(err, notMounted(volume, node, k))
		}
	} else if err := n.remount(serial, "ro"); err != nil {
		return nil, err
	}
	return func() {
		if err := n.remount(serial, "rw"); err != nil {
			l.log.Debug("remount", "node", node, "volume", volume, "err", err)
		}
	}, nil
}

func notMounted(volume, node string, mounts int) error {
	if mounts > 0 {
		return nil
	}
	return fmt.Errorf("volume %s is not mounted on %s", volume, node)
}

// remount changes a filesystem, by the first of its mounts.
func (n *Node) remount(serial, mode string) error {
	ms, err := n.host.Mounter().List()
	if err != nil {
		return err
	}
	of := n.serials()
	for _, m := range ms {
		if of(m.Device) != serial {
			continue
		}
		if out, err := n.host.Exec().Command("mount", "-o", "remount,"+mode, m.Path).CombinedOutput(); err != nil {
			return fmt.Errorf("remount %s on %s: %w: %s", m.Path, n.Name, err, out)
		}
		return nil
	}
	return fmt.Errorf("nothing of disk %s is mounted on %s", serial, n.Name)
}

// WrongDevice makes a node find another volume where it looks for one: on
// vSphere, and on any node without a storage network, the names of the two
// disks are exchanged; on arrays their LUNs, while the node keeps its devices.
// Both must be attached to the node.
func (l *Lab) WrongDevice(ctx context.Context, volume, other, node string) (heal func(), err error) {
	n := l.node(node)
	if n == nil {
		return nil, l.noNode(node)
	}
	a, err := l.serialOf(volume, n)
	if err != nil {
		return nil, err
	}
	b, err := l.serialOf(other, n)
	if err != nil {
		return nil, err
	}
	var swap func() error
	if on, ok := l.backend.(*hpe); ok {
		swap = func() error { return on.swapLUNs(n, volume, other) }
	} else if m, ok := n.host.(*host.Memory); ok {
		swap = func() error { return m.SwapNames(a, b) }
	} else {
		return nil, Skip("names of devices can't be exchanged on real nodes on vSphere")
	}
	if err := swap(); err != nil {
		return nil, err
	}
	var once sync.Once
	return func() {
		once.Do(func() {
			if err := swap(); err != nil { // one of them may be gone
				l.log.Debug("exchange back", "node", node, "err", err)
			}
		})
	}, nil
}

// ReuseLUN takes a volume's export to a node away and gives its LUN to another
// volume that is exported there, while the node keeps the devices that it has:
// they are stale, and answer for the other. There is no way back.
func (l *Lab) ReuseLUN(volume, by, node string) error {
	b, err := l.onArrays()
	if err != nil {
		return err
	}
	n := l.node(node)
	if n == nil {
		return l.noNode(node)
	}
	a, from, err := b.exported(n, volume)
	if err != nil {
		return err
	}
	if _, _, err := b.exported(n, by); err != nil {
		return err
	}
	_, v, err := b.find(by)
	if err != nil {
		return err
	}
	if err := a.RemoveVLUN(from.Volume, from.Host); err != nil {
		return err
	}
	return a.RenumberLUN(v.Name, from.Host, from.LUN)
}

// exported is the export of a volume to a node.
func (b *hpe) exported(n *Node, id string) (*san.Array, array.VLUN, error) {
	a, v, err := b.find(id)
	if err != nil {
		return nil, array.VLUN{}, err
	}
	hosts := a.Hosts()
	for _, x := range a.Exports() {
		i := slices.IndexFunc(hosts, func(h array.Host) bool { return h.Name == x.Host })
		if x.Volume == v.Name && i >= 0 && b.nodeOf(hosts[i]) == n.Name {
			return a, x, nil
		}
	}
	return nil, array.VLUN{}, fmt.Errorf("volume %s is not exported to %s", id, n.Name)
}

// swapLUNs exchanges the LUNs of two volumes at a node.
func (b *hpe) swapLUNs(n *Node, one, other string) error {
	a, x, err := b.exported(n, one)
	if err != nil {
		return err
	}
	c, y, err := b.exported(n, other)
	if err != nil {
		return err
	}
	if a != c {
		return fmt.Errorf("volumes %s and %s are on two arrays, %s and %s", one, other, a.Name(), c.Name())
	}
	free := 0
	for _, e := range a.Exports() {
		free = max(free, e.LUN+1)
	}
	for _, step := range []struct {
		volume string
		lun    int
	}{{x.Volume, free}, {y.Volume, x.LUN}, {x.Volume, y.LUN}} {
		if err := a.RenumberLUN(step.volume, x.Host, step.lun); err != nil {
			return err
		}
	}
	return nil
}

// image and open implement backend.
func (b *vsphere) image(volume string) (string, error) {
	if b.siteOf(volume) == nil {
		return "", fmt.Errorf("no vCenter has volume %s", volume)
	}
	return volume, nil // an image has its volume's id
}

func (b *vsphere) open(volume string) (disk.Image, error) { return b.l.disks.Open(volume) }

func (b *hpe) image(volume string) (string, error) {
	_, v, err := b.find(volume)
	return v.Image, err
}

func (b *hpe) open(volume string) (disk.Image, error) {
	a, v, err := b.find(volume)
	if err != nil {
		return nil, err
	}
	return a.Open(v.Name)
}

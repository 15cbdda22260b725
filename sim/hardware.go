package sim

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host"
)

// hardware plugs the vCenter's virtual disks into the nodes.
type hardware struct{ l *Lab }

func (h hardware) node(vmUUID string) *Node { return h.l.nodeByUUID(vmUUID) }

func (l *Lab) nodeByUUID(uuid string) *Node {
	for _, n := range l.nodes {
		if n.uuid == uuid {
			return n
		}
	}
	return nil
}

// Attach implements vcenter's Hardware.
func (h hardware) Attach(ctx context.Context, vmUUID, diskUUID, image string) error {
	n := h.node(vmUUID)
	if n == nil {
		return nil // a VM that an administrator made: nobody looks into it
	}
	img, err := h.l.disks.Open(image)
	if err != nil {
		return err
	}
	n.mu.Lock()
	late := n.late
	n.mu.Unlock()
	if late > 0 {
		// The task ends, and the guest sees the disk only then.
		ctx, cancel := context.WithCancel(h.l.ctx)
		n.mu.Lock()
		n.images[diskUUID] = plugged{image, img, cancel}
		n.mu.Unlock()
		h.l.wg.Go(func() { n.plugLate(ctx, late, diskUUID, image, img) })
		return nil
	}
	if err := n.hardware().AttachDisk(ctx, diskUUID, n.damage.Wrap(image, img)); err != nil {
		// Told to have failed, it may be in all the same.
		_ = n.host.DetachDisk(context.WithoutCancel(ctx), diskUUID)
		img.Close()
		return err
	}
	n.mu.Lock()
	n.images[diskUUID] = plugged{image, img, nil}
	n.mu.Unlock()
	return nil
}

// hardware is the node as what it runs on changes its disks: a hypervisor's
// calls pass the hop host too.
func (n *Node) hardware() host.Host { return host.Intercept(n.host, n.lab.in, "vcenter") }

// plugLate plugs a disk in after a while, unless ctx ends before.
func (n *Node) plugLate(ctx context.Context, after time.Duration, diskUUID, image string, img disk.Image) {
	t := time.NewTimer(after)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock() // a detach waits
	p, ok := n.images[diskUUID]
	if !ok || ctx.Err() != nil {
		return
	}
	if err := n.host.AttachDisk(ctx, diskUUID, n.damage.Wrap(image, img)); err != nil {
		n.lab.log.Error("late disk", "node", n.Name, "disk", diskUUID, "err", err)
		return
	}
	p.late = nil
	n.images[diskUUID] = p
}

// Detach implements vcenter's Hardware. A disk that is pulled under a mount is
// cut off from its image, so that what the node still writes goes nowhere.
func (h hardware) Detach(ctx context.Context, vmUUID, diskUUID string) error {
	n := h.node(vmUUID)
	if n == nil {
		return nil // the VM is gone, and its node with it
	}
	n.mu.Lock()
	p, ok := n.images[diskUUID]
	if ok && p.late != nil { // it never showed up
		delete(n.images, diskUUID)
		n.mu.Unlock()
		p.late()
		return p.img.Close()
	}
	n.mu.Unlock()
	if !ok && !slices.Contains(n.host.Disks(), diskUUID) {
		return nil // out already, and told to have failed
	}
	err := n.hardware().DetachDisk(ctx, diskUUID)
	if err != nil && slices.Contains(n.host.Disks(), diskUUID) {
		return err
	}
	n.mu.Lock()
	delete(n.images, diskUUID)
	n.mu.Unlock()
	if ok {
		if n.usesDisk(diskUUID) {
			if ferr := h.l.disks.Fence(p.id); err == nil {
				err = ferr
			}
		}
		p.img.Close()
	}
	return err
}

// Resize implements vcenter's Hardware.
func (h hardware) Resize(ctx context.Context, vmUUID, diskUUID string) error {
	n := h.node(vmUUID)
	if n == nil {
		return nil
	}
	n.mu.Lock()
	late := n.images[diskUUID].late != nil
	n.mu.Unlock()
	if late { // it will show up with its new size
		return nil
	}
	return n.hardware().ResizeDisk(ctx, diskUUID)
}

type plugged struct {
	id   string
	img  disk.Image
	late context.CancelFunc // it does not show up yet; nil: it does
}

// mutableDisks is a disk store that mutants can make lie.
type mutableDisks struct {
	disk.Store

	mu            sync.Mutex
	liveSnapshots bool
}

// Restore implements disk.Store.
func (m *mutableDisks) Restore(id, snap, newID string, size int64) error {
	m.mu.Lock()
	live := m.liveSnapshots
	m.mu.Unlock()
	if live {
		return m.Clone(id, newID, size)
	}
	return m.Store.Restore(id, snap, newID, size)
}

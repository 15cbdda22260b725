package sim

import (
	"context"
	"sync"

	"github.com/csilab/csilab/sim/disk"
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
	if err := n.host.AttachDisk(ctx, diskUUID, img); err != nil {
		img.Close()
		return err
	}
	n.mu.Lock()
	n.images[diskUUID] = plugged{image, img}
	n.mu.Unlock()
	return nil
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
	delete(n.images, diskUUID)
	n.mu.Unlock()
	err := n.host.DetachDisk(ctx, diskUUID)
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
	return n.host.ResizeDisk(ctx, diskUUID)
}

type plugged struct {
	id  string
	img disk.Image
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

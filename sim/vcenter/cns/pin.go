package cns

import "slices"

// Snapshots of a VM take in its dependent disks, first class ones too. As long
// as such a snapshot is there, its disks can't leave the VM, be deleted, grow,
// move or have snapshots of their own: the writable end of their chain is a
// file of the VM ("snapshot will lock volume to that node",
// kubernetes-sigs/vsphere-csi-driver#478). Unverified: that CNS refuses
// snapshots and relocation then.

// Pin says which disks the snapshots of a VM hold now. Ids that are of no
// first class disk are left out.
func (c *Core) Pin(vm string, disks []string) {
	for _, id := range c.pinsOf[vm] {
		c.pins[id] = slices.DeleteFunc(c.pins[id], func(s string) bool { return s == vm })
		if len(c.pins[id]) == 0 {
			delete(c.pins, id)
		}
	}
	delete(c.pinsOf, vm)
	var held []string
	for _, id := range disks {
		if _, ok := c.disk(id); !ok || slices.Contains(held, id) {
			continue
		}
		held = append(held, id)
		c.pins[id] = append(c.pins[id], vm)
	}
	if held != nil {
		c.pinsOf[vm] = held
	}
}

// Pinned returns the ids of the VMs whose snapshots hold a disk.
func (c *Core) Pinned(disk string) []string { return slices.Clone(c.pins[disk]) }

// unpinned refuses a disk that a snapshot of a VM holds.
func (c *Core) unpinned(id string) error {
	if vms := c.pins[id]; len(vms) > 0 {
		return pinnedBy(id, vms[0])
	}
	return nil
}

func pinnedBy(id, vm string) *Error {
	return &Error{Kind: Pinned, Field: "volumeId", Value: id, Holder: vm, Reason: "a snapshot of the VM holds the disk"}
}

// unpin forgets a disk that is gone.
func (c *Core) unpin(id string) {
	for _, vm := range c.pins[id] {
		c.pinsOf[vm] = slices.DeleteFunc(c.pinsOf[vm], func(s string) bool { return s == id })
		if len(c.pinsOf[vm]) == 0 {
			delete(c.pinsOf, vm)
		}
	}
	delete(c.pins, id)
}

package cns

import (
	"fmt"
	"slices"
	"strings"
)

// AttachSpec says which disk of which VM a volume shall become.
type AttachSpec struct {
	Volume   string
	VM       VM // as the inventory has it now
	DiskUUID string
	Slot     *Slot // nil: any; see pick
	Mode     DiskMode
	Sharing  Sharing
	// Disk plugs in any first class disk, as VirtualMachine.AttachDisk does.
	Disk bool
}

// DiskMode is what becomes of writes to a disk and whether snapshots of its VM
// take it in, spelled as vim25 does; empty means Persistent: CNS attaches
// dependent disks (CNS API reference, CnsVolumeAttachDetachSpec.diskMode;
// kubernetes-sigs/vsphere-csi-driver#1714).
type DiskMode string

// The disk modes.
const (
	Persistent               DiskMode = "persistent"
	NonPersistent            DiskMode = "nonpersistent"
	Undoable                 DiskMode = "undoable"
	Append                   DiskMode = "append"
	IndependentPersistent    DiskMode = "independent_persistent"
	IndependentNonPersistent DiskMode = "independent_nonpersistent"
)

var diskModes = []DiskMode{Persistent, NonPersistent, Undoable, Append, IndependentPersistent, IndependentNonPersistent}

// Independent says whether snapshots of a VM leave a disk of this mode out.
func (m DiskMode) Independent() bool {
	return m == IndependentPersistent || m == IndependentNonPersistent
}

// Sharing says whether several VMs may hold a disk, spelled as vim25 does;
// empty means SharingNone.
type Sharing string

// The kinds of sharing.
const (
	SharingNone        Sharing = "sharingNone"
	SharingMultiWriter Sharing = "sharingMultiWriter"
)

// PlanAttach checks whether Attach would succeed, and says where the disk
// goes and whether a controller has to be added for it.
func (c *Core) PlanAttach(s AttachSpec) (a Attachment, addController bool, err error) {
	v, ok := c.live(s.Volume)
	if s.Disk {
		v, ok = c.disk(s.Volume)
	}
	if !ok {
		return Attachment{}, false, c.unknown(s.Volume)
	}
	if s.Mode != "" && !slices.Contains(diskModes, s.Mode) {
		return Attachment{}, false, &Error{Kind: InvalidArgument, Field: "diskMode", Value: string(s.Mode), Reason: fmt.Sprintf("allowed are %q", diskModes)}
	}
	if s.Sharing != "" && s.Sharing != SharingNone && s.Sharing != SharingMultiWriter {
		return Attachment{}, false, &Error{Kind: InvalidArgument, Field: "sharing", Value: string(s.Sharing),
			Reason: fmt.Sprintf("allowed are %q and %q", SharingNone, SharingMultiWriter)}
	}
	// The same VM again is in use as well: that is how a client whose reply was
	// lost learns of it (kubernetes-sigs/vsphere-csi-driver#570, #1175).
	a = Attachment{Volume: s.Volume, VM: s.VM.ID, DiskUUID: s.DiskUUID, Mode: s.Mode, Sharing: s.Sharing, SharedBus: s.VM.sharedBus(s.Slot)}
	if old := c.against(a); old != nil {
		return Attachment{}, false, &Error{Kind: InUse, Field: "volumeId", Value: s.Volume, Holder: old.VM, Reason: "a VM holds the volume"}
	}
	if vms := slices.DeleteFunc(c.Pinned(s.Volume), func(vm string) bool { return vm == s.VM.ID }); len(vms) > 0 {
		return Attachment{}, false, pinnedBy(s.Volume, vms[0])
	}
	// A VM that is off takes disks as one that runs does: VMware's own test
	// (govmomi cns/client_test.go, TestClient) attaches to one that it has just
	// created. One that sleeps does not (kubernetes-sigs/vsphere-csi-driver#1590).
	if err := s.VM.changeable(); err != nil {
		return Attachment{}, false, err
	}
	// An encrypted disk needs an encrypted VM (vSphere Security, "Virtual
	// Machine Encryption"). Unverified: that CNS leaves it at that.
	if v.Key != (Key{}) && !s.VM.Encrypted {
		return Attachment{}, false, &Error{Kind: Incompatible, Field: "vm", Value: s.VM.ID, Holder: s.VM.Name, Reason: "the disk is encrypted, the VM is not"}
	}
	ds := c.datastores[v.Datastore]
	if ds.Inaccessible || !ds.Mounts(s.VM.Host) {
		return Attachment{}, false, &Error{Kind: Inaccessible, Field: "vm", Value: s.VM.ID, Holder: ds.Name,
			Reason: "the host of the VM doesn't reach the datastore of the volume"}
	}
	// A disk that a backup tool left with tracking on can't be attached to a VM
	// without it (vmware-samples/cloud-native-storage-self-service-manager#12,
	// kubernetes-sigs/vsphere-csi-driver#1416, #1621).
	if v.Flags.ChangedBlockTracking && !s.VM.Tracks {
		return Attachment{}, false, &Error{Kind: Untracked, Field: "vm", Value: s.VM.ID, Holder: s.VM.Name,
			Reason: "changed blocks of the disk are tracked, and the VM has no change tracking"}
	}
	if a.Slot, addController, err = pick(s.VM, s.Slot); err != nil {
		return Attachment{}, false, err
	}
	return a, addController, nil
}

// against finds the attachment that stands against another one of a VM: its
// own, or one that does not share the disk or that the other would not share
// it with.
func (c *Core) against(want Attachment) *Attachment {
	for i, a := range c.attachments[want.Volume] {
		if a.VM == want.VM || a.share() == "" || a.share() != want.share() {
			return &c.attachments[want.Volume][i]
		}
	}
	return nil
}

// Attach gives a volume to a VM. Errors: NotFound, InUse (held by this VM, or
// by another and not shared by both), Pinned (by a snapshot of another VM),
// HostDown, Busy, InvalidState, Inaccessible, NoSlot,
// InvalidArgument (slot, disk mode, sharing).
func (c *Core) Attach(s AttachSpec) (Attachment, error) {
	a, _, err := c.PlanAttach(s)
	if err != nil {
		return Attachment{}, err
	}
	c.hold(a)
	return a, nil
}

func (c *Core) hold(a Attachment) {
	all := c.attachments[a.Volume]
	i, _ := slices.BinarySearchFunc(all, a.VM, func(b Attachment, vm string) int { return strings.Compare(b.VM, vm) })
	c.attachments[a.Volume] = slices.Insert(all, i, a)
	v, _ := c.disk(a.Volume)
	add(c.byVM, a.VM, v)
}

// PlanDetach checks whether Detach would succeed; held says whether there is
// anything to do. A volume that no VM holds passes, one that another VM holds
// is the caller's mistake.
func (c *Core) PlanDetach(id string, vm VM) (a Attachment, held bool, err error) {
	if _, ok := c.live(id); !ok {
		return Attachment{}, false, c.unknown(id)
	}
	return c.planDetach(id, vm)
}

func (c *Core) planDetach(id string, vm VM) (a Attachment, held bool, err error) {
	others := c.attachments[id]
	if len(others) == 0 {
		return Attachment{}, false, nil
	}
	a, held = c.AttachmentAt(id, vm.ID)
	if !held {
		return Attachment{}, false, &Error{Kind: InvalidArgument, Field: "vm", Value: vm.ID, Holder: others[0].VM, Reason: "another VM holds the volume"}
	}
	// Unverified: the disks of a suspended VM can't be changed.
	if err := vm.changeable(); err != nil {
		return Attachment{}, false, err
	}
	if err := c.unpinned(id); err != nil {
		return Attachment{}, false, err
	}
	return a, true, nil
}

// Detach takes a volume from a VM. Errors: NotFound, InvalidArgument (another
// VM holds it), HostDown, Busy, InvalidState, Pinned.
func (c *Core) Detach(id string, vm VM) (a Attachment, held bool, err error) {
	a, held, err = c.PlanDetach(id, vm)
	if err == nil && held {
		c.release(id, vm.ID)
	}
	return a, held, err
}

// PlanDetachDisk checks whether DetachDisk would succeed. Unlike CNS, a VM
// refuses to let go of what it doesn't hold.
func (c *Core) PlanDetachDisk(id string, vm VM) (Attachment, error) {
	if _, ok := c.disk(id); !ok {
		return Attachment{}, noDisk(id)
	}
	a, held, err := c.planDetach(id, vm)
	if err == nil && !held {
		err = &Error{Kind: InvalidArgument, Field: "diskId", Value: id, Reason: "the VM doesn't hold the disk"}
	}
	return a, err
}

// DetachDisk takes any first class disk from a VM. Errors: NotFound,
// InvalidArgument (the VM doesn't hold it), InvalidState.
func (c *Core) DetachDisk(id string, vm VM) (Attachment, error) {
	a, err := c.PlanDetachDisk(id, vm)
	if err == nil {
		c.release(id, vm.ID)
	}
	return a, err
}

func (c *Core) release(id, vm string) {
	v, _ := c.disk(id)
	drop(c.byVM, vm, v)
	left := slices.DeleteFunc(slices.Clone(c.attachments[id]), func(a Attachment) bool { return a.VM == vm })
	if len(left) == 0 {
		delete(c.attachments, id)
		return
	}
	c.attachments[id] = left
}

// PlanHold says whether a VM on a host could have a disk by other means than
// CNS. Errors: NotFound, InUse, Pinned, Inaccessible.
func (c *Core) PlanHold(a Attachment, host string) error {
	if err := c.PlanClaim(a); err != nil {
		return err
	}
	v, _ := c.disk(a.Volume)
	ds := c.datastores[v.Datastore]
	if ds.Inaccessible || !ds.Mounts(host) {
		return &Error{Kind: Inaccessible, Field: "id", Value: a.Volume, Holder: ds.Name, Reason: "the host of the VM doesn't reach the datastore of the disk"}
	}
	return nil
}

// PlanClaim says whether Sync would take up a disk that is in the hardware of a
// VM. Errors: NotFound, InUse, Pinned.
func (c *Core) PlanClaim(a Attachment) error {
	if _, ok := c.disk(a.Volume); !ok {
		return noDisk(a.Volume)
	}
	if old := c.against(a); old != nil {
		return &Error{Kind: InUse, Field: "id", Value: a.Volume, Holder: old.VM, Reason: "a VM holds the disk"}
	}
	if vms := slices.DeleteFunc(c.Pinned(a.Volume), func(vm string) bool { return vm == a.VM }); len(vms) > 0 {
		return pinnedBy(a.Volume, vms[0])
	}
	return nil
}

// Sync makes the attachments of a VM agree with its hardware, which is the
// truth: what is in hw and free is taken up, what is not in hw is let go, and
// what changed (slot, mode, sharing) is noted. It returns what was let go and
// what was taken up.
// Disks in hw that are no first class disks, or that another VM holds by the
// core's account and does not share, or a snapshot of one, are passed over.
func (c *Core) Sync(vm string, hw []Attachment) (lost, taken []Attachment) {
	there := make(map[string]bool, len(hw))
	for _, a := range hw {
		there[a.Volume] = true
	}
	for _, a := range c.AttachedTo(vm) {
		if !there[a.Volume] {
			c.release(a.Volume, vm)
			lost = append(lost, a)
		}
	}
	for _, a := range hw {
		if _, known := c.disk(a.Volume); !known {
			continue
		}
		a.VM = vm
		all := c.attachments[a.Volume]
		if i := slices.IndexFunc(all, func(b Attachment) bool { return b.VM == vm }); i >= 0 {
			if there[a.Volume] { // the first disk counts, should there be two
				if len(all) > 1 { // what others hold as well stays shared
					a.Sharing, a.SharedBus = all[i].Sharing, all[i].SharedBus
				}
				all[i] = a
			}
		} else if c.PlanClaim(a) == nil {
			c.hold(a)
			taken = append(taken, a)
		}
		there[a.Volume] = false
	}
	return lost, taken
}

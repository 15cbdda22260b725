package vcenter

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/types"
)

// Disks reads the disks of CNS from the hardware of all VMs, by BIOS uuid.
// VMs without one are in the map too.
func (v *VCenter) Disks() map[string][]AttachedDisk {
	v.mu.Lock()
	vms := make([]*simulator.VirtualMachine, 0, len(v.inv.vms))
	for _, vm := range v.inv.vms {
		vms = append(vms, vm)
	}
	v.mu.Unlock()
	out := make(map[string][]AttachedDisk, len(vms))
	for _, vm := range vms {
		ctx := v.internal()
		ctx.WithLock(vm, func() {
			ds := []AttachedDisk{}
			for _, d := range vm.Config.Hardware.Device {
				disk, ok := d.(*types.VirtualDisk)
				if !ok || disk.VDiskId == nil {
					continue
				}
				a := AttachedDisk{VolumeID: disk.VDiskId.Id, ControllerKey: disk.ControllerKey}
				if disk.UnitNumber != nil {
					a.Unit = *disk.UnitNumber
				}
				if b, ok := disk.Backing.(*types.VirtualDiskFlatVer2BackingInfo); ok {
					a.DiskUUID = strings.ToLower(strings.ReplaceAll(b.Uuid, "-", ""))
				}
				ds = append(ds, a)
			}
			out[vm.Config.Uuid] = ds
		})
	}
	return out
}

// PullDisk takes a volume's disk out of the hardware of a node's VM as an
// administrator does who edits the VM: neither the driver nor Kubernetes is
// asked.
func (v *VCenter) PullDisk(node, volume string) error {
	m, err := v.machineOf(node)
	if err != nil {
		return err
	}
	ctx := v.internal()
	found := false
	ctx.WithLock(m.VirtualMachine, func() {
		hw := m.Config.Hardware
		device := func(d types.BaseVirtualDevice) bool {
			disk, ok := d.(*types.VirtualDisk)
			return ok && disk.VDiskId != nil && disk.VDiskId.Id == volume
		}
		i := slices.IndexFunc(hw.Device, device)
		if i < 0 {
			return
		}
		found = true
		gone := hw.Device[i].GetVirtualDevice()
		// Others may hold the old list and the old controller: both are replaced.
		left := slices.Delete(slices.Clone(hw.Device), i, i+1)
		for j, d := range left {
			c, ok := d.(*types.ParaVirtualSCSIController)
			if !ok || c.Key != gone.ControllerKey {
				continue
			}
			n := *c
			n.Device = slices.DeleteFunc(slices.Clone(c.Device), func(k int32) bool { return k == gone.Key })
			left[j] = &n
		}
		ctx.Update(m.VirtualMachine, []types.PropertyChange{{Name: "config.hardware.device", Val: left}})
	})
	if !found {
		return fmt.Errorf("vcenter: the VM of node %q has no disk of volume %q", node, volume)
	}
	return nil
}

// LoseDisk deletes the first class disk of a volume behind CNS's back, as who
// deletes its files in the datastore browser: CNS has the volume on record and
// its disk is gone. It must not be in a VM: a host locks what its VMs use.
// Errors: no such disk.
func (v *VCenter) LoseDisk(id string) error { return v.face.LoseDisk(v.ctx, id) }

package vcenter

import (
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

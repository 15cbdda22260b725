package vcenter

import (
	"fmt"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/types"
)

// withOtherDisks adds n disks that are no volumes to the hardware of a fresh
// VM, each in the next free slot, with controllers as needed.
func (v *VCenter) withOtherDisks(n Node, ds *simulator.Datastore, devices []types.BaseVirtualDevice) []types.BaseVirtualDevice {
	yes := true
	var controller *types.ParaVirtualSCSIController
	for _, d := range devices {
		if c, ok := d.(*types.ParaVirtualSCSIController); ok {
			controller = c
		}
	}
	unit := int32(1) // behind the boot disk
	for i := range int32(n.OtherDisks) {
		if unit == controller.ScsiCtlrUnitNumber {
			unit++
		}
		if unit > 15 {
			bus := controller.BusNumber + 1
			label := fmt.Sprintf("SCSI controller %d", bus)
			slot := 3 + bus
			controller = &types.ParaVirtualSCSIController{VirtualSCSIController: types.VirtualSCSIController{
				VirtualController: types.VirtualController{VirtualDevice: types.VirtualDevice{
					Key: scsiController + bus, DeviceInfo: &types.Description{Label: label, Summary: label}, ControllerKey: pciController, UnitNumber: &slot,
				}, BusNumber: bus},
				HotAddRemove: &yes, SharedBus: types.VirtualSCSISharingNoSharing, ScsiCtlrUnitNumber: 7,
			}}
			devices = append(devices, controller)
			unit = 0
		}
		at, key := unit, firstDisk+1+i
		label := fmt.Sprintf("Hard disk %d", i+2)
		controller.Device = append(controller.Device, key)
		devices = append(devices, &types.VirtualDisk{
			VirtualDevice: types.VirtualDevice{
				Key: key, DeviceInfo: &types.Description{Label: label, Summary: label}, ControllerKey: controller.Key, UnitNumber: &at,
				Backing: &types.VirtualDiskFlatVer2BackingInfo{
					VirtualDeviceFileBackingInfo: types.VirtualDeviceFileBackingInfo{FileName: fmt.Sprintf("[%s] %s/%s_%d.vmdk", ds.Name, n.Name, n.Name, i+1), Datastore: &ds.Self},
					DiskMode:                     string(types.VirtualDiskModePersistent), ThinProvisioned: &yes, Uuid: pageUUID(identity(v.cfg.Seed, "other disk", fmt.Sprintf("%s/%d", n.Name, i))),
				},
			},
			CapacityInKB: 1 << 20, CapacityInBytes: 1 << 30,
		})
		unit++
	}
	return devices
}

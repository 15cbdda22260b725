package copied

import (
	"reflect"
	"testing"
	"time"

	"github.com/vmware/govmomi/vim25/types"
)

// A copy is equal, and stays as it is when all that the original points to changes.
func TestCopyIsEqualAndApart(t *testing.T) {
	now := time.Now()
	disk := &types.VirtualDisk{VirtualDevice: types.VirtualDevice{Key: 2000, UnitNumber: types.NewInt32(1),
		DeviceInfo: &types.Description{Label: "Hard disk 1"},
		Backing:    &types.VirtualDiskFlatVer2BackingInfo{Uuid: "u", ThinProvisioned: types.NewBool(true)}},
		VDiskId: &types.ID{Id: "v"}, Iofilter: []string{"a", "b"}}
	in := types.VirtualMachineConfigInfo{Name: "vm", CreateDate: &now, Hardware: types.VirtualHardware{Device: []types.BaseVirtualDevice{disk, nil}}}
	out := Of(reflect.ValueOf(in)).(types.VirtualMachineConfigInfo)
	if !reflect.DeepEqual(in, out) {
		t.Fatalf("got %+v, want %+v", out, in)
	}
	got := out.Hardware.Device[0].(*types.VirtualDisk)
	disk.Key, *disk.UnitNumber, disk.VDiskId.Id, disk.Iofilter[0] = 1, 2, "w", "c"
	disk.Backing.(*types.VirtualDiskFlatVer2BackingInfo).Uuid = "x"
	disk.DeviceInfo.(*types.Description).Label = "?"
	in.Hardware.Device[1] = disk
	if got.Key != 2000 || *got.UnitNumber != 1 || got.VDiskId.Id != "v" || got.Iofilter[0] != "a" || out.Hardware.Device[1] != nil ||
		got.Backing.(*types.VirtualDiskFlatVer2BackingInfo).Uuid != "u" || got.DeviceInfo.(*types.Description).Label != "Hard disk 1" {
		t.Errorf("the copy changed with the original: %+v", got)
	}
}

package vcenter

import (
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

// vmSnapshot is a point in the life of a VM.
type vmSnapshot struct {
	mo.VirtualMachineSnapshot
	v *VCenter
}

// snapshotsOf lists all snapshots of a VM.
func snapshotsOf(info *types.VirtualMachineSnapshotInfo) (out []ref) {
	if info == nil {
		return nil
	}
	var walk func([]types.VirtualMachineSnapshotTree)
	walk = func(list []types.VirtualMachineSnapshotTree) {
		for _, s := range list {
			out = append(out, s.Snapshot)
			walk(s.ChildSnapshotList)
		}
	}
	walk(info.RootSnapshotList)
	return out
}

// pinned says whether a snapshot of the VM holds a disk. The VM is locked.
func (m *machine) pinned(d *types.VirtualDisk) bool { return false }

func (v *VCenter) restoreSnapshots(c *simulator.Context, vm *simulator.VirtualMachine, s shelved) {}

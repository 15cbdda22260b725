package vcenter_test

import (
	"fmt"
	"testing"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter"
)

// snapshotOf takes a snapshot of a VM.
func (r *rig) snapshotOf(vm *object.VirtualMachine, name string) types.ManagedObjectReference {
	r.t.Helper()
	task, err := vm.CreateSnapshot(r.ctx, name, "", false, false)
	r.ok(err)
	info, err := task.WaitForResultEx(r.ctx)
	r.ok(err)
	return info.Result.(types.ManagedObjectReference)
}

// TestVMSnapshotPinsVolumes: what a snapshot of the VM holds stays where and
// as it is (vsphere-csi-driver#478).
func TestVMSnapshotPinsVolumes(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	vm, other := r.node("node-1"), r.node("node-2")
	held, free, later := r.volume("held"), r.volume("independent"), r.volume("later")
	r.plugged(held, vm)
	r.ok(r.with(attachSpecIndependent, free, vm))
	r.snapshotOf(vm, "backup")
	r.plugged(later, vm)

	r.refused(r.detach(r.ctx, held, vm.Reference()), "CnsFault", "InvalidDeviceSpec")
	r.refused(r.change(vm, types.VirtualDeviceConfigSpecOperationRemove, "", r.disk(held, vm)), "InvalidDeviceSpec")
	grown := *r.disk(held, vm)
	grown.CapacityInBytes, grown.CapacityInKB = grown.CapacityInBytes*2, grown.CapacityInKB*2
	r.refused(r.change(vm, types.VirtualDeviceConfigSpecOperationEdit, "", &grown), "InvalidDeviceSpec")
	r.ok(r.detach(r.ctx, free, vm.Reference()))
	r.ok(r.detach(r.ctx, later, vm.Reference()))
	r.refused(r.delete(r.ctx, held), "ResourceInUse")

	// Back at the snapshot, the volume that came later is gone from the VM, and
	// the independent one is there again.
	r.plugged(later, vm)
	r.ok(r.done(vm.RevertToSnapshot(r.ctx, "backup", true)))
	if r.disk(held, vm) == nil || r.disk(free, vm) == nil || r.disk(later, vm) != nil {
		t.Error("the VM does not have the disks of its snapshot")
	}
	r.plugged(later, other)
	if ds := r.v.Disks()[r.v.VMUUID("node-1")]; len(ds) != 2 {
		t.Errorf("disks %+v", ds)
	}
	// One that another VM took meanwhile stands against it.
	r.ok(r.detach(r.ctx, free, vm.Reference()))
	r.plugged(free, other)
	r.refused(r.done(vm.RevertToSnapshot(r.ctx, "backup", true)), "FileLocked")

	r.ok(r.done(vm.RemoveAllSnapshot(r.ctx, nil)))
	r.ok(r.detach(r.ctx, held, vm.Reference()))
	r.ok(r.delete(r.ctx, held))
	r.refused(r.v.RevertVM("node-1"), "NotFound")
}

// TestVMSnapshotTree: snapshots stand on each other.
func TestVMSnapshotTree(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	vm := r.node("node-1")
	a := r.snapshotOf(vm, "a")
	b := r.snapshotOf(vm, "b")
	r.ok(r.done(vm.RevertToSnapshot(r.ctx, "a", true)))
	c := r.snapshotOf(vm, "c")
	tree := func() string {
		m := r.props(vm)
		if m.Snapshot == nil {
			return fmt.Sprint("none ", len(m.RootSnapshot))
		}
		names := map[types.ManagedObjectReference]string{}
		var walk func([]types.VirtualMachineSnapshotTree) string
		walk = func(l []types.VirtualMachineSnapshotTree) (s string) {
			for _, x := range l {
				names[x.Snapshot] = x.Name
				s += x.Name
				if len(x.ChildSnapshotList) > 0 {
					s += "(" + walk(x.ChildSnapshotList) + ")"
				}
			}
			return s
		}
		s := walk(m.Snapshot.RootSnapshotList)
		return s + " at " + names[*m.Snapshot.CurrentSnapshot]
	}
	if got := tree(); got != "a(bc) at c" {
		t.Errorf("tree %s", got)
	}
	if m := r.props(vm); m.Runtime.PowerState != types.VirtualMachinePowerStatePoweredOff {
		t.Errorf("a snapshot without memory left the VM %s", m.Runtime.PowerState)
	}
	r.ok(r.done(vm.RemoveSnapshot(r.ctx, "a", false, nil)))
	if got := tree(); got != "bc at c" {
		t.Errorf("tree %s", got)
	}
	r.ok(r.done(vm.RemoveSnapshot(r.ctx, "c", true, nil)))
	r.ok(r.done(vm.RemoveSnapshot(r.ctx, "b", true, nil)))
	if got := tree(); got != "none 0" {
		t.Errorf("tree %s", got)
	}
	for _, s := range []types.ManagedObjectReference{a, b, c} {
		var m mo.VirtualMachineSnapshot
		r.refused(vm.Properties(r.ctx, s, []string{"config"}, &m), "deleted")
	}
	for i := range 32 {
		r.snapshotOf(vm, fmt.Sprint(i))
	}
	r.refused(r.done(vm.CreateSnapshot(r.ctx, "33", "", false, false)), "TooManySnapshotLevels")
	// They survive with the files of the VM, and pin again.
	r.ok(vm.Unregister(r.ctx))
	r.ok(r.v.RegisterVM("node-1"))
	vm = r.node("node-1")
	r.ok(r.done(vm.RemoveSnapshot(r.ctx, "31", false, nil)))
}

// TestMigrateVM: a VM goes where its host reaches all of its disks.
func TestMigrateVM(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{
		Nodes:      nodes(1),
		Datastores: []vcenter.Datastore{{Name: "shared"}, {Name: "local", Hosts: []string{"DC0_C0_H0"}}},
	})
	vm := r.node("node-1")
	if got := r.v.HostOf("node-1"); got != "DC0_C0_H0" {
		t.Fatalf("on %s", got)
	}
	f := r.finder()
	h0, err := f.HostSystem(r.ctx, "DC0_C0_H0")
	r.ok(err)
	h1, err := f.HostSystem(r.ctx, "DC0_C0_H1")
	r.ok(err)
	migrate := func(h *object.HostSystem) error {
		return r.done(vm.Migrate(r.ctx, nil, h, types.VirtualMachineMovePriorityDefaultPriority, ""))
	}
	on := func(h *object.HostSystem) []types.ManagedObjectReference {
		var m mo.HostSystem
		r.ok(h.Properties(r.ctx, h.Reference(), []string{"vm"}, &m))
		return m.Vm
	}
	id := r.volume("pvc-1") // on the emptier one: which is the first of two that are empty
	r.plugged(id, vm)
	uuid := r.disk(id, vm).Backing.(*types.VirtualDiskFlatVer2BackingInfo).Uuid
	r.ok(migrate(h1))
	if r.v.HostOf("node-1") != "DC0_C0_H1" || len(on(h0)) != 0 || len(on(h1)) != 1 {
		t.Errorf("on %s, lists %v %v", r.v.HostOf("node-1"), on(h0), on(h1))
	}
	if now := r.disk(id, vm); now == nil || now.Backing.(*types.VirtualDiskFlatVer2BackingInfo).Uuid != uuid {
		t.Errorf("the disk is %+v", now)
	}
	r.ok(r.detach(r.ctx, id, vm.Reference()))

	// A disk on local storage keeps the VM on its host.
	r.ok(migrate(h0))
	plain := &types.VirtualDisk{CapacityInKB: 1 << 20}
	plain.ControllerKey = 1000
	local, err := f.Datastore(r.ctx, "local")
	r.ok(err)
	ref := local.Reference()
	plain.Backing = &types.VirtualDiskFlatVer2BackingInfo{DiskMode: "persistent", VirtualDeviceFileBackingInfo: types.VirtualDeviceFileBackingInfo{Datastore: &ref}}
	r.ok(r.change(vm, types.VirtualDeviceConfigSpecOperationAdd, types.VirtualDeviceConfigSpecFileOperationCreate, plain))
	r.refused(migrate(h1), "CannotAccessVmDisk")
	// Its own files can go along.
	shared, err := f.Datastore(r.ctx, "shared")
	r.ok(err)
	to, host := shared.Reference(), h1.Reference()
	r.ok(r.done(vm.Relocate(r.ctx, types.VirtualMachineRelocateSpec{Datastore: &to, Host: &host}, "")))
	if m := r.props(vm); *m.Runtime.Host != host || len(m.Datastore) != 1 || m.Datastore[0] != to {
		t.Errorf("on %v, datastores %v", m.Runtime.Host, m.Datastore)
	}
	r.refused(r.v.MoveVM("node-1", "nope"), "no host")
	r.ok(r.v.MoveVM("node-1", "DC0_C0_H0"))
}

// TestRow39VMBusy: while a VM migrates, CNS can't change its disks.
func TestRow39VMBusy(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	vm := r.node("node-1")
	id, other := r.volume("pvc-1"), r.volume("pvc-2")
	r.plugged(id, vm)
	h, err := r.finder().HostSystem(r.ctx, "DC0_C0_H1")
	r.ok(err)
	hold := r.v.HoldTasks("MigrateVM_Task")
	task, err := vm.Migrate(r.ctx, nil, h, types.VirtualMachineMovePriorityDefaultPriority, "")
	r.ok(err)
	_, err = hold.Wait(r.ctx)
	r.ok(err)
	_, err = r.attach(r.ctx, other, vm.Reference())
	r.refused(err, "CnsFault", "TaskInProgress")
	r.refused(r.detach(r.ctx, id, vm.Reference()), "CnsFault", "TaskInProgress")
	r.refused(r.done(vm.CreateSnapshot(r.ctx, "s", "", false, false)), "TaskInProgress")
	r.refused(r.change(vm, types.VirtualDeviceConfigSpecOperationRemove, "", r.disk(id, vm)), "TaskInProgress")
	hold.Release()
	r.ok(task.WaitEx(r.ctx))
	r.plugged(other, vm)
	r.ok(r.detach(r.ctx, id, vm.Reference()))
	// One that is cancelled leaves the VM free.
	hold = r.v.HoldTasks("MigrateVM_Task")
	task, err = vm.Migrate(r.ctx, nil, h, types.VirtualMachineMovePriorityDefaultPriority, "")
	r.ok(err)
	_, err = hold.Wait(r.ctx)
	r.ok(err)
	r.ok(task.Cancel(r.ctx))
	r.refused(r.done(task, nil), "RequestCanceled")
	hold.Release()
	r.ok(r.detach(r.ctx, other, vm.Reference()))
}

// TestCloneVM: a copy of a VM shares nothing with it.
func TestCloneVM(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	vm, id := r.node("node-1"), r.volume("pvc-1")
	r.plugged(id, vm)
	folder, err := r.finder().DefaultFolder(r.ctx)
	r.ok(err)
	copied := r.newVM(vm.Clone(r.ctx, folder, "copy", types.VirtualMachineCloneSpec{PowerOn: true}))
	a, b := r.props(vm), r.props(copied)
	if a.Config.Uuid == b.Config.Uuid || a.Config.InstanceUuid == b.Config.InstanceUuid || b.Name != "copy" || b.Runtime.PowerState != types.VirtualMachinePowerStatePoweredOn {
		t.Errorf("the copy is %+v", b.Summary.Config)
	}
	seen := map[string]bool{}
	disks := func(m mo.VirtualMachine) (n int) {
		for _, d := range m.Config.Hardware.Device {
			if x, ok := d.(*types.VirtualDisk); ok {
				n++
				f := x.Backing.(*types.VirtualDiskFlatVer2BackingInfo)
				if seen[f.Uuid] || seen[f.FileName] {
					t.Errorf("%s %s is in both", f.FileName, f.Uuid)
				}
				seen[f.Uuid], seen[f.FileName] = true, true
				if m.Name == "copy" && x.VDiskId != nil {
					t.Errorf("the copy has the volume %s", x.VDiskId.Id)
				}
			}
		}
		return n
	}
	if n, k := disks(a), disks(b); n != 2 || k != 2 {
		t.Errorf("%d and %d disks", n, k)
	}
	r.refused(r.done(vm.Clone(r.ctx, folder, "copy", types.VirtualMachineCloneSpec{})), "DuplicateName")
	r.ok(r.v.CloneVM("node-1", "another"))
	r.ok(r.detach(r.ctx, id, vm.Reference()))
}

// TestGuestOperations: what the tools of a VM are asked to do.
func TestGuestOperations(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	vm := r.node("node-1")
	state := func() types.VirtualMachinePowerState { return r.props(vm).Runtime.PowerState }
	r.ok(vm.RebootGuest(r.ctx))
	r.ok(r.done(vm.Reset(r.ctx)))
	r.ok(vm.ShutdownGuest(r.ctx))
	if s := state(); s != types.VirtualMachinePowerStatePoweredOff {
		t.Errorf("shut down: %s", s)
	}
	r.refused(vm.RebootGuest(r.ctx), "current state")
	r.refused(r.done(vm.Reset(r.ctx)), "InvalidPowerState")
	r.ok(r.done(vm.PowerOn(r.ctx)))
	r.ok(vm.StandbyGuest(r.ctx))
	if s := state(); s != types.VirtualMachinePowerStateSuspended {
		t.Errorf("standby: %s", s)
	}
}

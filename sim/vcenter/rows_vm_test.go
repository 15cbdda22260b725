package vcenter_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter"
)

// rig is a vCenter with nodes, and a client of it. Its methods fail the test.
type rig struct {
	*client
	t   *testing.T
	ctx context.Context
	v   *vcenter.VCenter
}

// nodes are the VMs of a rig: node-1, node-2, ….
func nodes(n int) (out []vcenter.Node) {
	for i := range n {
		out = append(out, vcenter.Node{Name: fmt.Sprint("node-", i+1)})
	}
	return out
}

func newRig(t *testing.T, cfg vcenter.Config) *rig {
	t.Helper()
	if len(cfg.Nodes) == 0 {
		cfg.Nodes = nodes(2)
	}
	v := start(t, cfg)
	c, err := cnsClient(t.Context(), login(t, v))
	if err != nil {
		t.Fatal(err)
	}
	return &rig{c, t, t.Context(), v}
}

func (r *rig) node(name string) *object.VirtualMachine {
	r.t.Helper()
	ref, err := r.vm(r.ctx, r.v, name)
	if err != nil {
		r.t.Fatal(err)
	}
	return object.NewVirtualMachine(r.Client.Client, ref)
}

func (r *rig) volume(name string) string {
	r.t.Helper()
	id, err := r.create(r.ctx, name)
	if err != nil {
		r.t.Fatal(err)
	}
	return id
}

// with attaches a volume as a spec says; the spec's volume and VM are filled in.
func (r *rig) with(spec cnstypes.CnsVolumeAttachDetachSpec, volume string, vm *object.VirtualMachine) error {
	spec.VolumeId.Id, spec.Vm = volume, vm.Reference()
	t, err := r.cns.AttachVolume(r.ctx, []cnstypes.CnsVolumeAttachDetachSpec{spec})
	_, _, err = r.result(r.ctx, t, err)
	return err
}

func (r *rig) plugged(volume string, vm *object.VirtualMachine) {
	r.t.Helper()
	if _, err := r.attach(r.ctx, volume, vm.Reference()); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) ok(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// refused wants an error that says all of the words.
func (r *rig) refused(err error, words ...string) {
	r.t.Helper()
	if err == nil {
		r.t.Errorf("no error, want %q", words)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			r.t.Errorf("error %q, want %q", err, words)
		}
	}
}

// done waits for a task of vim25.
func (r *rig) done(task *object.Task, err error) error {
	r.t.Helper()
	if err == nil {
		err = task.WaitEx(r.ctx)
	}
	var te types.HasFault
	if errors.As(err, &te) {
		return fmt.Errorf("%T: %w", te.Fault(), err)
	}
	return err
}

func (r *rig) devices(vm *object.VirtualMachine) object.VirtualDeviceList {
	r.t.Helper()
	var m mo.VirtualMachine
	r.ok(vm.Properties(r.ctx, vm.Reference(), []string{"config.hardware"}, &m))
	return m.Config.Hardware.Device
}

// disk is the disk of a volume in the hardware of a VM, or nil.
func (r *rig) disk(volume string, vm *object.VirtualMachine) *types.VirtualDisk {
	r.t.Helper()
	for _, d := range r.devices(vm) {
		if x, ok := d.(*types.VirtualDisk); ok && x.VDiskId != nil && x.VDiskId.Id == volume {
			return x
		}
	}
	return nil
}

// TestRow33AllSlotsTaken: 59 volumes and the boot disk fill a VM, or 255 on a
// vCenter that uses all places of its paravirtual controllers.
func TestRow33AllSlotsTaken(t *testing.T) {
	for name, x := range map[string]struct {
		dense bool
		disks int
		more  int // what is still free
	}{"15 per controller": {false, 57, 2}, "64 per controller": {true, 59, 196}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, vcenter.Config{DenseSlots: x.dense, Nodes: []vcenter.Node{{Name: "node-1", OtherDisks: x.disks}}})
			vm := r.node("node-1")
			for i := range x.more {
				r.plugged(r.volume(fmt.Sprint("pvc-", i)), vm)
			}
			r.refused(r.with(cnstypes.CnsVolumeAttachDetachSpec{}, r.volume("last"), vm), "CnsFault", "CNS: Failed to attach disk because missing SCSI controller")
		})
	}
}

// TestRow36AttachToVMThatSleeps: InvalidState fails the task.
func TestRow36AttachToVMThatSleeps(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	vm, id := r.node("node-1"), r.volume("pvc-1")
	r.ok(r.done(vm.Suspend(r.ctx)))
	task, err := r.cns.AttachVolume(r.ctx, []cnstypes.CnsVolumeAttachDetachSpec{{VolumeId: cnstypes.CnsVolumeId{Id: id}, Vm: vm.Reference()}})
	r.ok(err)
	_, err = task.WaitForResultEx(r.ctx)
	r.refused(err, "not allowed in the current state")
	r.ok(r.done(vm.PowerOn(r.ctx)))
	r.plugged(id, vm)
	// One that is off takes disks: VMware's own test attaches to such a VM.
	r.ok(r.detach(r.ctx, id, vm.Reference()))
	r.ok(r.done(vm.PowerOff(r.ctx)))
	r.plugged(id, vm)
}

// TestSharedVolume: VMs hold a volume at the same time when all of them say so.
func TestSharedVolume(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{Nodes: nodes(3)})
	a, b, c := r.node("node-1"), r.node("node-2"), r.node("node-3")
	id := r.volume("shared")
	share := cnstypes.CnsVolumeAttachDetachSpec{
		DiskMode: string(types.VirtualDiskModeIndependent_persistent), Sharing: string(types.VirtualDiskSharingSharingMultiWriter),
		ControllerKey: types.NewInt32(1002), UnitNumber: types.NewInt32(23),
	}
	r.ok(r.with(share, id, a)) // the controller is added
	d := r.disk(id, a)
	if d == nil || d.ControllerKey != 1002 || *d.UnitNumber != 23 {
		t.Fatalf("the first VM has %+v", d)
	}
	backing := d.Backing.(*types.VirtualDiskFlatVer2BackingInfo)
	if backing.DiskMode != share.DiskMode || backing.Sharing != share.Sharing {
		t.Errorf("mode %q, sharing %q", backing.DiskMode, backing.Sharing)
	}
	r.ok(r.with(share, id, b))
	if other := r.disk(id, b).Backing.(*types.VirtualDiskFlatVer2BackingInfo); other.Uuid != backing.Uuid {
		t.Errorf("one disk, two ids: %s and %s", backing.Uuid, other.Uuid)
	}
	r.refused(r.with(share, id, b), "ResourceInUse")
	r.refused(r.with(cnstypes.CnsVolumeAttachDetachSpec{}, id, c), "ResourceInUse")
	r.refused(r.detach(r.ctx, id, c.Reference()), "InvalidArgument")
	r.refused(r.delete(r.ctx, id), "ResourceInUse")
	r.ok(r.detach(r.ctx, id, a.Reference()))
	if r.disk(id, a) != nil || r.disk(id, b) == nil {
		t.Error("detached from the wrong VM")
	}
	r.refused(r.delete(r.ctx, id), "ResourceInUse")
	r.ok(r.detach(r.ctx, id, b.Reference()))
	r.ok(r.delete(r.ctx, id))
}

// TestAttachSpec: what the fields of the spec allow.
func TestAttachSpec(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	vm, id := r.node("node-1"), r.volume("pvc-1")
	n := types.NewInt32
	for name, x := range map[string]struct {
		spec cnstypes.CnsVolumeAttachDetachSpec
		want []string
	}{
		"disk mode":                    {cnstypes.CnsVolumeAttachDetachSpec{DiskMode: "x"}, []string{"InvalidArgument", "diskMode"}},
		"sharing":                      {cnstypes.CnsVolumeAttachDetachSpec{Sharing: "x"}, []string{"InvalidArgument", "sharing"}},
		"a unit of no controller":      {cnstypes.CnsVolumeAttachDetachSpec{UnitNumber: n(3)}, []string{"InvalidArgument", "controllerKey"}},
		"a unit that is taken":         {cnstypes.CnsVolumeAttachDetachSpec{ControllerKey: n(1000), UnitNumber: n(0)}, []string{"InvalidArgument", "unitNumber"}},
		"the controller's own unit":    {cnstypes.CnsVolumeAttachDetachSpec{ControllerKey: n(1000), UnitNumber: n(7)}, []string{"InvalidArgument", "unitNumber"}},
		"a unit that there isn't":      {cnstypes.CnsVolumeAttachDetachSpec{ControllerKey: n(1000), UnitNumber: n(65)}, []string{"InvalidArgument", "unitNumber"}},
		"a unit below":                 {cnstypes.CnsVolumeAttachDetachSpec{ControllerKey: n(1000), UnitNumber: n(-1)}, []string{"InvalidArgument", "unitNumber"}},
		"a controller that can't be":   {cnstypes.CnsVolumeAttachDetachSpec{ControllerKey: n(1004)}, []string{"CnsFault", "InvalidController"}},
		"something that is no storage": {cnstypes.CnsVolumeAttachDetachSpec{ControllerKey: n(100), UnitNumber: n(1)}, []string{"CnsFault", "InvalidController"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := *r
			s.t = t
			s.refused(s.with(x.spec, id, vm), x.want...)
		})
	}
	r.ok(r.with(cnstypes.CnsVolumeAttachDetachSpec{ControllerKey: n(1001)}, id, vm))
	if d := r.disk(id, vm); d == nil || d.ControllerKey != 1001 || *d.UnitNumber != 0 || d.Backing.(*types.VirtualDiskFlatVer2BackingInfo).DiskMode != "persistent" {
		t.Errorf("disk %+v", d)
	}
}

// attachSpecIndependent leaves a disk out of snapshots of its VM.
var attachSpecIndependent = cnstypes.CnsVolumeAttachDetachSpec{DiskMode: string(types.VirtualDiskModeIndependent_persistent)}

// TestRow37AttachToVMThatIsGone, TestRow40DetachFromVMThatIsGone and
// TestRow42NodeRemoved: the reference is of nothing, and the uuid finds nothing.
func TestRow37AttachToVMThatIsGone(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	vm, id := r.node("node-1"), r.volume("pvc-1")
	r.ok(r.v.DeleteVM("node-1"))
	_, err := r.attach(r.ctx, id, vm.Reference())
	r.refused(err, "ManagedObjectNotFound")
}

func TestRow40DetachFromVMThatIsGone(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	vm, id := r.node("node-1"), r.volume("pvc-1")
	r.plugged(id, vm)
	r.ok(r.v.DeleteVM("node-1"))
	r.refused(r.detach(r.ctx, id, vm.Reference()), "ManagedObjectNotFound")
	r.plugged(id, r.node("node-2"))
}

func TestRow42NodeRemoved(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	uuid := r.v.VMUUID("node-1")
	r.ok(r.v.DeleteVM("node-1"))
	found, err := object.NewSearchIndex(r.Client.Client).FindByUuid(r.ctx, nil, uuid, true, nil)
	if err != nil || found != nil {
		t.Errorf("found %v, %v", found, err)
	}
}

// TestRow44DetachWhileHostIsDisconnected, and TestRow66HostDown: vCenter can do
// nothing to the VMs of a host that it has no connection to.
func TestRow44DetachWhileHostIsDisconnected(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	vm, id := r.node("node-1"), r.volume("pvc-1")
	r.plugged(id, vm)
	h, err := r.finder().HostSystem(r.ctx, r.v.HostOf("node-1"))
	r.ok(err)
	r.ok(r.done(h.Disconnect(r.ctx)))
	r.refused(r.detach(r.ctx, id, vm.Reference()), "CnsFault", "HostNotConnected")
	if s := r.props(vm).Runtime.ConnectionState; s != types.VirtualMachineConnectionStateDisconnected {
		t.Errorf("the VM is %s", s)
	}
	r.refused(r.done(vm.PowerOff(r.ctx)), "HostNotConnected")
	r.refused(r.done(h.Disconnect(r.ctx)), "InvalidState")
	r.ok(r.done(h.Reconnect(r.ctx, nil, nil)))
	r.ok(r.detach(r.ctx, id, vm.Reference()))
}

func TestRow66HostDown(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	a, b, id := r.node("node-1"), r.node("node-2"), r.volume("pvc-1")
	host := r.v.HostOf("node-1")
	if host == r.v.HostOf("node-2") {
		t.Fatal("the nodes are on one host")
	}
	r.ok(r.v.HostFail(host))
	_, err := r.attach(r.ctx, id, a.Reference())
	r.refused(err, "CnsFault", "HostNotConnected")
	r.plugged(id, b) // the other host is well
	r.refused(r.v.MoveVM("node-2", host), "HostNotConnected")
	// With the last host that mounts it, a datastore is out of reach.
	r.ok(r.v.HostFail(r.v.HostOf("node-2")))
	_, err = r.create(r.ctx, "pvc-2")
	if err == nil {
		t.Error("a volume on a datastore that nobody reaches")
	}
	for _, h := range r.v.Hosts() {
		r.ok(r.v.HostReconnect(h))
	}
	r.volume("pvc-3")
	r.ok(r.detach(r.ctx, id, b.Reference()))
}

// TestHostMaintenance: without DRS a host waits until its VMs are gone.
func TestHostMaintenance(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	f := r.finder()
	from, to := r.v.HostOf("node-1"), r.v.HostOf("node-2")
	h, err := f.HostSystem(r.ctx, from)
	r.ok(err)
	mode := func() bool {
		var m mo.HostSystem
		r.ok(h.Properties(r.ctx, h.Reference(), []string{"runtime.inMaintenanceMode"}, &m))
		return m.Runtime.InMaintenanceMode
	}
	r.refused(r.v.HostMaintenance(from, true), "InvalidState")
	task, err := h.EnterMaintenanceMode(r.ctx, 0, false, nil)
	r.ok(err)
	if mode() {
		t.Error("in maintenance mode with a VM that runs")
	}
	r.ok(r.v.MoveVM("node-1", to))
	r.ok(task.WaitEx(r.ctx))
	if !mode() {
		t.Error("not in maintenance mode")
	}
	r.refused(r.v.MoveVM("node-1", from), "InvalidHostState")
	r.ok(r.done(h.ExitMaintenanceMode(r.ctx, 0)))
	r.refused(r.done(h.ExitMaintenanceMode(r.ctx, 0)), "InvalidState")
	r.ok(r.v.MoveVM("node-1", from))
	// A VM that is off may stay, but not start there. The task can be cancelled.
	task, err = h.EnterMaintenanceMode(r.ctx, 0, false, nil)
	r.ok(err)
	r.ok(task.Cancel(r.ctx))
	r.refused(r.done(task, nil), "RequestCanceled")
	vm := r.node("node-1")
	r.ok(r.done(vm.PowerOff(r.ctx)))
	r.ok(r.v.HostMaintenance(from, true))
	r.refused(r.done(vm.PowerOn(r.ctx)), "InvalidHostState")
	r.ok(r.v.HostMaintenance(from, false))
	r.ok(r.done(vm.PowerOn(r.ctx)))
}

// TestRow36TrackedVolume: a backup tool turns changed block tracking on for a
// node with its volumes; those can't go to a node without it any more
// (vsphere-csi-driver#1416, #221).
func TestRow36TrackedVolume(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	a, b, id := r.node("node-1"), r.node("node-2"), r.volume("pvc-1")
	r.plugged(id, a)
	on := types.VirtualMachineConfigSpec{ChangeTrackingEnabled: types.NewBool(true)}
	r.ok(r.done(a.Reconfigure(r.ctx, on)))
	r.ok(r.detach(r.ctx, id, a.Reference()))
	r.refused(r.with(cnstypes.CnsVolumeAttachDetachSpec{}, id, b), "CNS: Failed to attach disk when calling AttachDisk:Fault cause: vim.fault.InvalidState")
	r.plugged(id, a)
	r.ok(r.detach(r.ctx, id, a.Reference()))
	r.ok(r.done(b.Reconfigure(r.ctx, on)))
	r.plugged(id, b)
}

// TestSharedBus: disks on a controller whose bus VMs share can be in several.
func TestSharedBus(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	a, b, id := r.node("node-1"), r.node("node-2"), r.volume("quorum")
	for _, vm := range []*object.VirtualMachine{a, b} {
		c := &types.ParaVirtualSCSIController{}
		c.Key, c.BusNumber, c.SharedBus = -1, 1, types.VirtualSCSISharingPhysicalSharing
		r.ok(r.change(vm, types.VirtualDeviceConfigSpecOperationAdd, "", c))
	}
	bus := cnstypes.CnsVolumeAttachDetachSpec{ControllerKey: types.NewInt32(1001), DiskMode: string(types.VirtualDiskModeIndependent_persistent)}
	r.ok(r.with(bus, id, a))
	r.refused(r.with(cnstypes.CnsVolumeAttachDetachSpec{}, id, b), "ResourceInUse")
	r.ok(r.with(bus, id, b))
	r.refused(r.done(a.CreateSnapshot(r.ctx, "s", "", false, false)), "SnapshotIncompatibleDeviceInVm")
	r.plugged(r.volume("own"), a)
	for _, d := range r.v.Disks()[r.v.VMUUID("node-1")] {
		if d.VolumeID != id && d.ControllerKey != 1000 {
			t.Errorf("CNS put a disk on the shared bus: %+v", d)
		}
	}
}

// TestRow34OldHardware: a VM older than hardware version 14 has 15 disks on any
// SCSI controller.
func TestRow34OldHardware(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	f := r.finder()
	folder, err := f.DefaultFolder(r.ctx)
	r.ok(err)
	pool, err := f.DefaultResourcePool(r.ctx)
	r.ok(err)
	for version, want := range map[string]string{"vmx-13": "InvalidArgument", "vmx-14": ""} {
		spec := bareSpec(version)
		spec.Version = version
		vm := r.newVM(folder.CreateVM(r.ctx, spec, pool, nil))
		err := r.with(cnstypes.CnsVolumeAttachDetachSpec{ControllerKey: types.NewInt32(1000), UnitNumber: types.NewInt32(23)}, r.volume(version), vm)
		if want == "" {
			r.ok(err)
		} else {
			r.refused(err, want, "unitNumber")
		}
	}
}

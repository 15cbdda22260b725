package vcenter_test

import (
	"strings"
	"testing"

	"github.com/vmware/govmomi/find"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter"
)

// finder looks in the first datacenter.
func (r *rig) finder() *find.Finder {
	r.t.Helper()
	f := find.NewFinder(r.Client.Client, false)
	dc, err := f.Datacenter(r.ctx, r.v.Datacenter())
	r.ok(err)
	return f.SetDatacenter(dc)
}

// newVM waits for a task that makes a VM.
func (r *rig) newVM(task *object.Task, err error) *object.VirtualMachine {
	r.t.Helper()
	r.ok(err)
	info, err := task.WaitForResultEx(r.ctx)
	r.ok(err)
	return object.NewVirtualMachine(r.Client.Client, info.Result.(types.ManagedObjectReference))
}

func (r *rig) props(vm *object.VirtualMachine) (m mo.VirtualMachine) {
	r.t.Helper()
	r.ok(vm.Properties(r.ctx, vm.Reference(), nil, &m))
	return m
}

// bareSpec is a VM with a SCSI controller.
func bareSpec(name string) types.VirtualMachineConfigSpec {
	return types.VirtualMachineConfigSpec{
		Name: name, NumCPUs: 1, MemoryMB: 4,
		Files: &types.VirtualMachineFileInfo{VmPathName: "[datastore-1]"},
		DeviceChange: []types.BaseVirtualDeviceConfigSpec{&types.VirtualDeviceConfigSpec{
			Operation: types.VirtualDeviceConfigSpecOperationAdd,
			Device: &types.ParaVirtualSCSIController{VirtualSCSIController: types.VirtualSCSIController{
				SharedBus:         types.VirtualSCSISharingNoSharing,
				VirtualController: types.VirtualController{VirtualDevice: types.VirtualDevice{Key: 1000}},
			}},
		}},
	}
}

// TestCreateVM: an administrator makes a VM, which takes volumes as a node does.
func TestCreateVM(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	f := r.finder()
	folder, err := f.DefaultFolder(r.ctx)
	r.ok(err)
	pool, err := f.DefaultResourcePool(r.ctx)
	r.ok(err)
	vm := r.newVM(folder.CreateVM(r.ctx, bareSpec("admin-vm"), pool, nil))
	m := r.props(vm)
	if m.Name != "admin-vm" || m.Config.Files.VmPathName != "[datastore-1] admin-vm/admin-vm.vmx" || m.Runtime.PowerState != types.VirtualMachinePowerStatePoweredOff ||
		m.Config.Hardware.MemoryMB != 4 || m.Summary.Config.Uuid != m.Config.Uuid || m.Runtime.Host == nil || len(m.Datastore) != 1 {
		t.Errorf("the VM is %+v", m.Summary.Config)
	}
	again, err := object.NewSearchIndex(r.Client.Client).FindByUuid(r.ctx, nil, strings.ToUpper(m.Config.Uuid), true, nil)
	r.ok(err)
	if again == nil || again.Reference() != vm.Reference() {
		t.Errorf("found by its uuid: %v", again)
	}
	if byPath, err := f.VirtualMachine(r.ctx, "admin-vm"); err != nil || byPath.Reference() != vm.Reference() {
		t.Errorf("found by its path: %v, %v", byPath, err)
	}
	id := r.volume("pvc-1")
	r.plugged(id, vm)
	r.ok(r.done(vm.PowerOn(r.ctx)))
	r.refused(r.done(vm.Destroy(r.ctx)), "InvalidPowerState")
	r.ok(r.done(vm.PowerOff(r.ctx)))

	r.refused(r.done(folder.CreateVM(r.ctx, bareSpec("admin-vm"), pool, nil)), "DuplicateName")
	for name, x := range map[string]struct {
		change func(*types.VirtualMachineConfigSpec)
		want   string
	}{
		"no name":        {func(s *types.VirtualMachineConfigSpec) { s.Name = "" }, "InvalidName"},
		"no files":       {func(s *types.VirtualMachineConfigSpec) { s.Files = nil }, "vmPathName"},
		"no datastore":   {func(s *types.VirtualMachineConfigSpec) { s.Files.VmPathName = "[nope]" }, "InvalidDatastore"},
		"no such memory": {func(s *types.VirtualMachineConfigSpec) { s.MemoryMB = 3 }, "memoryMB"},
		"five controllers": {func(s *types.VirtualMachineConfigSpec) {
			for range 4 {
				s.DeviceChange = append(s.DeviceChange, s.DeviceChange[0])
			}
		}, "TooManyDevices"},
	} {
		t.Run(name, func(t *testing.T) {
			s := *r
			s.t = t
			spec := bareSpec("other")
			x.change(&spec)
			s.refused(s.done(folder.CreateVM(r.ctx, spec, pool, nil)), x.want)
		})
	}

	// The VM goes, the volume stays.
	r.ok(r.done(vm.Destroy(r.ctx)))
	r.plugged(id, r.node("node-1"))
}

// TestRow38VMRegisteredAgain: the VM of a node comes back under another
// reference, with its uuid and its volumes.
func TestRow38VMRegisteredAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	vm, id := r.node("node-1"), r.volume("pvc-1")
	r.plugged(id, vm)
	was := r.props(vm)
	_, err := r.attach(r.ctx, id, vm.Reference())
	r.refused(err, "ResourceInUse")
	r.refused(vm.Unregister(r.ctx), "current state")
	r.ok(r.done(vm.PowerOff(r.ctx)))
	r.ok(vm.Unregister(r.ctx))
	if found, err := object.NewSearchIndex(r.Client.Client).FindByUuid(r.ctx, nil, was.Config.Uuid, true, nil); err != nil || found != nil {
		t.Errorf("an unregistered VM is found: %v, %v", found, err)
	}
	_, err = r.attach(r.ctx, id, vm.Reference())
	r.refused(err, "ManagedObjectNotFound")

	f := r.finder()
	folder, err := f.DefaultFolder(r.ctx)
	r.ok(err)
	pool, err := f.DefaultResourcePool(r.ctx)
	r.ok(err)
	register := func(path string) (*object.Task, error) { return folder.RegisterVM(r.ctx, path, "", false, pool, nil) }
	r.refused(r.done(register("[datastore-1] nope/nope.vmx")), "NotFound")
	r.refused(r.done(register("nope")), "InvalidDatastorePath")
	path := was.Config.Files.VmPathName
	vm = r.newVM(register(path))
	now := r.props(vm)
	if vm.Reference() == was.Self || now.Config.Uuid != was.Config.Uuid || now.Config.InstanceUuid != was.Config.InstanceUuid || now.Name != was.Name {
		t.Errorf("the VM is %v %v, was %v %v", now.Self, now.Config.Uuid, was.Self, was.Config.Uuid)
	}
	r.refused(r.done(register(path)), "AlreadyExists")
	if r.node("node-1").Reference() != vm.Reference() || r.disk(id, vm) == nil {
		t.Error("the node's VM or its volume is not back")
	}
	if ds := r.v.Disks()[now.Config.Uuid]; len(ds) != 1 || ds[0].VolumeID != id {
		t.Errorf("disks %+v", ds)
	}
	_, err = r.attach(r.ctx, id, vm.Reference())
	r.refused(err, "ResourceInUse")
	r.ok(r.detach(r.ctx, id, vm.Reference()))
	r.ok(r.done(vm.PowerOn(r.ctx)))
}

// change reconfigures a VM by one device.
func (r *rig) change(vm *object.VirtualMachine, op types.VirtualDeviceConfigSpecOperation, file types.VirtualDeviceConfigSpecFileOperation, d types.BaseVirtualDevice) error {
	r.t.Helper()
	return r.done(vm.Reconfigure(r.ctx, types.VirtualMachineConfigSpec{DeviceChange: []types.BaseVirtualDeviceConfigSpec{
		&types.VirtualDeviceConfigSpec{Operation: op, FileOperation: file, Device: d},
	}}))
}

// TestReconfigureVM: an administrator edits the disks of a node.
func TestReconfigureVM(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	a, b := r.node("node-1"), r.node("node-2")
	id := r.volume("pvc-1")
	r.plugged(id, a)
	const add, remove, edit = types.VirtualDeviceConfigSpecOperationAdd, types.VirtualDeviceConfigSpecOperationRemove, types.VirtualDeviceConfigSpecOperationEdit
	disk := func(d types.VirtualDisk, backing types.VirtualDiskFlatVer2BackingInfo) *types.VirtualDisk {
		d.Key, d.ControllerKey = -1, 1000
		backing.DiskMode = string(types.VirtualDiskModePersistent)
		d.Backing = &backing
		return &d
	}
	d := r.disk(id, a)
	path := d.Backing.(*types.VirtualDiskFlatVer2BackingInfo).FileName

	// A volume that a VM holds is locked for others.
	r.refused(r.change(b, add, "", disk(types.VirtualDisk{VDiskId: &types.ID{Id: id}}, types.VirtualDiskFlatVer2BackingInfo{})), "FileLocked")
	// What is removed is free, behind CNS's back.
	r.ok(r.change(a, remove, "", d))
	r.ok(r.detach(r.ctx, id, a.Reference()))
	if ds := r.v.Disks()[r.v.VMUUID("node-1")]; len(ds) != 0 {
		t.Errorf("disks %+v", ds)
	}
	r.refused(r.change(a, remove, "", d), "InvalidDeviceSpec")
	// Added by its path it is a volume again, for CNS too.
	byPath := disk(types.VirtualDisk{}, types.VirtualDiskFlatVer2BackingInfo{VirtualDeviceFileBackingInfo: types.VirtualDeviceFileBackingInfo{FileName: path}})
	r.ok(r.change(b, add, "", byPath))
	d = r.disk(id, b)
	if d == nil || d.CapacityInBytes == 0 {
		t.Fatalf("disk %+v", d)
	}
	r.refused(r.delete(r.ctx, id), "ResourceInUse")
	r.refused(r.change(b, add, "", byPath), "FileLocked")
	// It grows when its VM is edited.
	grown := *d
	grown.CapacityInBytes, grown.CapacityInKB = d.CapacityInBytes*2, d.CapacityInKB*2
	r.ok(r.change(b, edit, "", &grown))
	if now := r.disk(id, b); now.CapacityInBytes != grown.CapacityInBytes {
		t.Errorf("%d bytes, want %d", now.CapacityInBytes, grown.CapacityInBytes)
	}
	if v := r.v.Volumes()[0]; v.CapacityMB != grown.CapacityInBytes>>20 {
		t.Errorf("the volume has %d MB", v.CapacityMB)
	}
	r.refused(r.change(b, edit, "", d), "InvalidDeviceSpec") // smaller
	// Its place and its file are not edited.
	for what, move := range map[string]func(*types.VirtualDisk){
		"unit":          func(d *types.VirtualDisk) { d.UnitNumber = types.NewInt32(*d.UnitNumber + 1) },
		"controller":    func(d *types.VirtualDisk) { d.ControllerKey = 200 },
		"no controller": func(d *types.VirtualDisk) { d.ControllerKey = 99 },
		"file": func(d *types.VirtualDisk) {
			f := *d.Backing.(*types.VirtualDiskFlatVer2BackingInfo)
			f.FileName = "[datastore-2] other.vmdk"
			d.Backing = &f
		},
	} {
		moved := *r.disk(id, b)
		move(&moved)
		want := "InvalidDeviceSpec"
		if what == "no controller" {
			want = "InvalidController"
		}
		r.refused(r.change(b, edit, "", &moved), want)
	}
	r.ok(r.change(b, edit, "", r.disk(id, b))) // as it is
	r.ok(r.detach(r.ctx, id, b.Reference()))

	// Plain disks are no volumes.
	r.ok(r.change(a, add, types.VirtualDeviceConfigSpecFileOperationCreate, disk(types.VirtualDisk{CapacityInKB: 1 << 20}, types.VirtualDiskFlatVer2BackingInfo{})))
	var plain *types.VirtualDisk
	for _, x := range r.devices(a) {
		if x, ok := x.(*types.VirtualDisk); ok {
			plain = x
		}
	}
	if plain.VDiskId != nil || plain.CapacityInBytes != 1<<30 || plain.Backing.(*types.VirtualDiskFlatVer2BackingInfo).Uuid == "" {
		t.Errorf("plain disk %+v", plain)
	}
	for name, x := range map[string]struct {
		op   types.VirtualDeviceConfigSpecOperation
		file types.VirtualDeviceConfigSpecFileOperation
		d    types.BaseVirtualDevice
		want string
	}{
		"no controller":  {add, "create", &types.VirtualDisk{VirtualDevice: types.VirtualDevice{ControllerKey: 99, Backing: plain.Backing}, CapacityInKB: 1}, "InvalidController"},
		"no size":        {add, "create", disk(types.VirtualDisk{}, types.VirtualDiskFlatVer2BackingInfo{}), "InvalidDeviceSpec"},
		"unknown volume": {add, "", disk(types.VirtualDisk{VDiskId: &types.ID{Id: "x"}}, types.VirtualDiskFlatVer2BackingInfo{}), "NotFound"},
		"unknown path":   {add, "", disk(types.VirtualDisk{}, types.VirtualDiskFlatVer2BackingInfo{VirtualDeviceFileBackingInfo: types.VirtualDeviceFileBackingInfo{FileName: "[datastore-1] x.vmdk"}}), "FileNotFound"},
		"full unit":      {add, "create", &types.VirtualDisk{VirtualDevice: types.VirtualDevice{ControllerKey: 1000, UnitNumber: types.NewInt32(0), Backing: plain.Backing}, CapacityInKB: 1}, "InvalidDeviceSpec"},
		"its controller": {remove, "", &types.ParaVirtualSCSIController{VirtualSCSIController: types.VirtualSCSIController{VirtualController: types.VirtualController{VirtualDevice: types.VirtualDevice{Key: 1000}}}}, "InvalidDeviceSpec"},
		"another kind":   {edit, "", &types.VirtualDisk{VirtualDevice: types.VirtualDevice{Key: 1000}}, "InvalidDeviceSpec"},
	} {
		t.Run(name, func(t *testing.T) {
			s := *r
			s.t = t
			s.refused(s.change(a, x.op, x.file, x.d), x.want)
		})
	}
	// Files that are deleted take the volume with them: CNS still has its record.
	r.plugged(id, a)
	r.ok(r.change(a, remove, types.VirtualDeviceConfigSpecFileOperationDestroy, r.disk(id, a)))
	_, err := r.attach(r.ctx, id, a.Reference())
	r.refused(err, "NotFound")
}

// TestReconfigureSettings: identity and settings of a VM.
func TestReconfigureSettings(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	vm := r.node("node-1")
	id := r.volume("pvc-1")
	r.plugged(id, vm)
	const uuid = "4201aaaa-bbbb-4ccc-8ddd-eeeeffff0000"
	set := func(s types.VirtualMachineConfigSpec) error { return r.done(vm.Reconfigure(r.ctx, s)) }
	r.refused(set(types.VirtualMachineConfigSpec{Uuid: uuid}), "current state")
	r.refused(set(types.VirtualMachineConfigSpec{Name: "node-2"}), "DuplicateName")
	r.refused(set(types.VirtualMachineConfigSpec{ChangeVersion: "0"}), "ConcurrentAccess")
	r.ok(set(types.VirtualMachineConfigSpec{Name: "worker", Annotation: "n", ExtraConfig: []types.BaseOptionValue{&types.OptionValue{Key: "k", Value: "v"}}}))
	r.ok(r.done(vm.PowerOff(r.ctx)))
	r.refused(set(types.VirtualMachineConfigSpec{Uuid: "x"}), "uuid")
	r.ok(set(types.VirtualMachineConfigSpec{Uuid: strings.ToUpper(uuid)}))
	m := r.props(vm)
	if m.Name != "worker" || m.Config.Name != "worker" || m.Config.Uuid != uuid || m.Summary.Config.Uuid != uuid || len(m.Config.ExtraConfig) != 2 {
		t.Errorf("the VM is %+v", m.Config)
	}
	if r.v.VMUUID("node-1") != uuid || r.node("node-1").Reference() != vm.Reference() {
		t.Error("the node is not found by its new uuid")
	}
	if ds := r.v.Disks()[uuid]; len(ds) != 1 {
		t.Errorf("disks %+v", ds)
	}
}

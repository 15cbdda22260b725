package vcenter

import (
	"context"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
	"github.com/csilab/csilab/sim/vcenter/cnsface"
)

// ReconfigVMTask implements ReconfigVM_Task: what an administrator does to a
// VM, and behind the driver's back to its disks.
func (m *machine) ReconfigVMTask(ctx *simulator.Context, req *types.ReconfigVM_Task) soap.HasFault {
	spec := req.Spec
	return &methods.ReconfigVM_TaskBody{Res: &types.ReconfigVM_TaskResponse{Returnval: m.start(ctx, "ReconfigVM_Task", func(ctx context.Context, c *simulator.Context, task ref) (types.AnyType, types.BaseMethodFault) {
		return nil, m.reconfigure(ctx, c, task, &spec)
	})}}
}

func (m *machine) reconfigure(ctx context.Context, c *simulator.Context, task ref, spec *types.VirtualMachineConfigSpec) types.BaseMethodFault {
	if fault := m.rename(c, spec.Name); fault != nil {
		return fault
	}
	var e *edit
	var was, is string
	if fault := m.grow(ctx, c, spec); fault != nil {
		return fault
	}
	fault := m.v.face.Reshape(ctx, c, m.Self, task, func(vm *mo.VirtualMachine) (cnsface.Shape, types.BaseMethodFault) {
		e = &edit{v: m.v, c: c, seed: vm.Config.InstanceUuid, pinned: m.pinned}
		if h, ok := m.v.vim.Get(*vm.Runtime.Host).(*simulator.HostSystem); ok {
			e.host = h
		}
		if vm.Runtime.ConnectionState != types.VirtualMachineConnectionStateConnected {
			return cnsface.Shape{}, &types.HostNotConnected{}
		}
		if spec.ChangeVersion != "" && spec.ChangeVersion != vm.Config.ChangeVersion {
			return cnsface.Shape{}, &types.ConcurrentAccess{}
		}
		was, is = vm.Config.Uuid, vm.Config.Uuid
		if spec.Uuid != "" {
			is = spec.Uuid
		}
		return e.plan(vm, spec)
	})
	if fault != nil {
		return fault
	}
	if !strings.EqualFold(was, is) {
		m.v.mu.Lock()
		node := m.v.unindex(m.VirtualMachine, was)
		m.v.index(m.VirtualMachine, node)
		m.v.mu.Unlock()
	}
	for _, id := range e.destroyed {
		m.v.face.Lose(ctx, c, id)
	}
	m.v.relist(c, m.VirtualMachine)
	return nil
}

// rename says what stands against a name. No lock is held: it looks at others.
func (m *machine) rename(c *simulator.Context, name string) types.BaseMethodFault {
	if name == "" {
		return nil
	}
	if other, taken := m.v.named(c, *m.Parent, name); taken && other != m.Self {
		return &types.DuplicateName{Name: name, Object: other}
	}
	return nil
}

// grow enlarges the first class disks that a spec gives a larger size: their
// size is the disk's, not the VM's.
func (m *machine) grow(ctx context.Context, c *simulator.Context, spec *types.VirtualMachineConfigSpec) (fault types.BaseMethodFault) {
	sizes := map[string]int64{}
	c.WithLock(m.VirtualMachine, func() {
		for _, b := range spec.DeviceChange {
			s := b.GetVirtualDeviceConfigSpec()
			d, ok := s.Device.(*types.VirtualDisk)
			if !ok || s.Operation != types.VirtualDeviceConfigSpecOperationEdit {
				continue
			}
			i := byKey(m.Config.Hardware.Device, d.Key)
			if i < 0 {
				continue
			}
			if old, ok := m.Config.Hardware.Device[i].(*types.VirtualDisk); ok && old.VDiskId != nil && capacity(d) > old.CapacityInBytes {
				sizes[old.VDiskId.Id] = capacity(d) >> 20
			}
		}
	})
	for id, mb := range sizes {
		if fault := m.v.face.Grow(ctx, c, id, mb); fault != nil {
			return fault
		}
	}
	return nil
}

// capacity of a disk in bytes: clients give it in either unit.
func capacity(d *types.VirtualDisk) int64 {
	if d.CapacityInBytes > 0 {
		return d.CapacityInBytes
	}
	if d.CapacityInKB < 0 || d.CapacityInKB > maxDiskBytes>>10 {
		return -1
	}
	return d.CapacityInKB << 10
}

// maxDiskBytes is the largest virtual disk, 62 TiB (vSphere configuration
// maximums).
const maxDiskBytes = 62 << 40

// edit applies a specification to a VM.
type edit struct {
	v    *VCenter
	c    *simulator.Context
	host *simulator.HostSystem
	seed string // of the identities of new disks
	// pinned says whether a snapshot of the VM holds a disk.
	pinned func(*types.VirtualDisk) bool

	vm        *mo.VirtualMachine
	devices   []types.BaseVirtualDevice
	keys      map[int32]int32 // of added devices: the client's, and what they became
	destroyed []string        // first class disks whose files are deleted
}

// plan says what the VM becomes. The VM is locked; only other objects may be
// locked here.
func (e *edit) plan(vm *mo.VirtualMachine, spec *types.VirtualMachineConfigSpec) (cnsface.Shape, types.BaseMethodFault) {
	e.vm, e.devices, e.keys, e.destroyed = vm, slices.Clone(vm.Config.Hardware.Device), map[int32]int32{}, nil
	if vm.Runtime.PowerState == types.VirtualMachinePowerStateSuspended {
		return cnsface.Shape{}, &types.InvalidPowerState{RequestedState: types.VirtualMachinePowerStatePoweredOff, ExistingState: vm.Runtime.PowerState}
	}
	changes, fault := e.settings(spec)
	if fault != nil {
		return cnsface.Shape{}, fault
	}
	for i, b := range spec.DeviceChange {
		if fault := e.device(int32(i), b.GetVirtualDeviceConfigSpec()); fault != nil {
			return cnsface.Shape{}, fault
		}
	}
	return cnsface.Shape{Devices: children(e.devices), Changes: changes}, nil
}

// settings are the properties that a specification changes beside devices.
func (e *edit) settings(spec *types.VirtualMachineConfigSpec) (out []types.PropertyChange, fault types.BaseMethodFault) {
	set := func(val any, names ...string) {
		for _, n := range names {
			out = append(out, types.PropertyChange{Name: n, Val: val})
		}
	}
	off := e.vm.Runtime.PowerState == types.VirtualMachinePowerStatePoweredOff
	cold := func(changed bool) {
		if changed && !off && fault == nil {
			fault = &types.InvalidPowerState{RequestedState: types.VirtualMachinePowerStatePoweredOff, ExistingState: e.vm.Runtime.PowerState}
		}
	}
	config := e.vm.Config
	if spec.Name != "" && spec.Name != config.Name {
		if fault := vmName(spec.Name); fault != nil {
			return nil, fault
		}
		set(spec.Name, "name", "config.name", "summary.config.name")
	}
	for _, u := range []struct{ val, old, a, b string }{
		{spec.Uuid, config.Uuid, "config.uuid", "summary.config.uuid"},
		{spec.InstanceUuid, config.InstanceUuid, "config.instanceUuid", "summary.config.instanceUuid"},
	} {
		if u.val == "" || strings.EqualFold(u.val, u.old) {
			continue
		}
		if !uuidForm(u.val) {
			return nil, &types.InvalidArgument{InvalidProperty: "configSpec." + strings.TrimPrefix(u.a, "config.")}
		}
		cold(u.a == "config.uuid")
		set(strings.ToLower(u.val), u.a, u.b)
	}
	if spec.Annotation != "" {
		set(spec.Annotation, "config.annotation", "summary.config.annotation")
	}
	if spec.GuestId != "" {
		set(spec.GuestId, "config.guestId", "summary.config.guestId")
	}
	if n := spec.NumCPUs; n != 0 {
		if n < 0 || n > 768 {
			return nil, &types.InvalidArgument{InvalidProperty: "configSpec.numCPUs"}
		}
		cold(n != config.Hardware.NumCPU)
		set(n, "config.hardware.numCPU", "summary.config.numCpu")
	}
	if n := spec.MemoryMB; n != 0 {
		if n < 4 || n > 24<<20 || n%4 != 0 {
			return nil, &types.InvalidArgument{InvalidProperty: "configSpec.memoryMB"}
		}
		cold(int32(n) != config.Hardware.MemoryMB)
		set(int32(n), "config.hardware.memoryMB", "summary.config.memorySizeMB")
	}
	if spec.ChangeTrackingEnabled != nil {
		set(*spec.ChangeTrackingEnabled, "config.changeTrackingEnabled")
	}
	if len(spec.ExtraConfig) > 0 {
		set(merged(config.ExtraConfig, spec.ExtraConfig), "config.extraConfig")
	}
	version, _ := strconv.Atoi(config.ChangeVersion)
	set(strconv.Itoa(version+1), "config.changeVersion")
	set(time.Now(), "config.modified")
	return out, fault
}

// uuidForm says whether s is a uuid with dashes, in any case.
func uuidForm(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i, c := range strings.ToLower(s) {
		dash := i == 8 || i == 13 || i == 18 || i == 23
		if dash != (c == '-') || !dash && !strings.ContainsRune("0123456789abcdef", c) {
			return false
		}
	}
	return true
}

// merged is the extra configuration with changes: an empty value drops a key.
func merged(old, changes []types.BaseOptionValue) []types.BaseOptionValue {
	out := slices.Clone(old)
	for _, c := range changes {
		key := c.GetOptionValue().Key
		out = slices.DeleteFunc(out, func(o types.BaseOptionValue) bool { return o.GetOptionValue().Key == key })
		if val := c.GetOptionValue().Value; val != nil && val != "" {
			out = append(out, c)
		}
	}
	return out
}

// device applies the change of one device; n is its index, which faults name.
func (e *edit) device(n int32, s *types.VirtualDeviceConfigSpec) types.BaseMethodFault {
	bad := &types.InvalidDeviceSpec{DeviceIndex: n}
	if s.Device == nil || reflect.ValueOf(s.Device).IsNil() {
		return bad
	}
	switch s.Operation {
	case types.VirtualDeviceConfigSpecOperationAdd:
		return e.add(n, s)
	case types.VirtualDeviceConfigSpecOperationRemove:
		return e.remove(n, s)
	case types.VirtualDeviceConfigSpecOperationEdit:
		return e.change(n, s)
	}
	bad.Property = "operation"
	return bad
}

func (e *edit) add(n int32, s *types.VirtualDeviceConfigSpec) types.BaseMethodFault {
	bad := &types.InvalidDeviceSpec{DeviceIndex: n}
	dev := copyOf(s.Device)
	d := dev.GetVirtualDevice()
	if k, ok := e.keys[d.ControllerKey]; ok {
		d.ControllerKey = k
	}
	asked := d.Key
	base := int32(12001)
	switch x := dev.(type) {
	case types.BaseVirtualSCSIController:
		c := x.GetVirtualSCSIController()
		if fault := e.bus(n, dev, 4, func(d types.BaseVirtualDevice) bool { _, ok := d.(types.BaseVirtualSCSIController); return ok }); fault != nil {
			return fault
		}
		base = scsiController + c.BusNumber
		c.ControllerKey, c.ScsiCtlrUnitNumber = pciController, 7
		c.HotAddRemove = types.NewBool(true)
		if c.SharedBus == "" {
			return &types.InvalidDeviceSpec{InvalidVmConfig: types.InvalidVmConfig{Property: "sharedBus"}, DeviceIndex: n}
		}
		d.DeviceInfo = &types.Description{Label: fmt.Sprintf("SCSI controller %d", c.BusNumber), Summary: scsiSummary(dev)}
	case types.BaseVirtualSATAController:
		if fault := e.bus(n, dev, 4, func(d types.BaseVirtualDevice) bool { _, ok := d.(types.BaseVirtualSATAController); return ok }); fault != nil {
			return fault
		}
		base = 15000 + x.GetVirtualSATAController().BusNumber
		d.ControllerKey = pciController
		d.DeviceInfo = &types.Description{Label: fmt.Sprintf("SATA controller %d", x.GetVirtualSATAController().BusNumber), Summary: "AHCI"}
	case *types.VirtualNVMEController:
		if fault := e.bus(n, dev, 4, func(d types.BaseVirtualDevice) bool { _, ok := d.(*types.VirtualNVMEController); return ok }); fault != nil {
			return fault
		}
		base = 31000 + x.BusNumber
		d.ControllerKey = pciController
		d.DeviceInfo = &types.Description{Label: fmt.Sprintf("NVME controller %d", x.BusNumber), Summary: "NVME"}
	case *types.VirtualDisk:
		return e.addDisk(n, s, x, asked)
	case types.BaseVirtualEthernetCard:
		card := x.GetVirtualEthernetCard()
		d.ControllerKey, base = pciController, firstNIC
		if card.MacAddress == "" {
			macOf(identity(e.v.cfg.Seed, "mac", fmt.Sprintf("%s/%d", e.seed, len(e.devices))), card)
		}
		if card.Connectable == nil {
			card.Connectable = &types.VirtualDeviceConnectInfo{StartConnected: true, AllowGuestControl: true, Connected: true}
		}
	case *types.VirtualIDEController, *types.VirtualPCIController, *types.VirtualPS2Controller, *types.VirtualSIOController,
		*types.VirtualKeyboard, *types.VirtualPointingDevice, *types.VirtualMachineVideoCard, *types.VirtualMachineVMCIDevice:
		return bad // each VM has them, and no more
	default:
		if d.ControllerKey != 0 && byKey(e.devices, d.ControllerKey) < 0 {
			return e.noController(n, d.ControllerKey)
		}
	}
	d.Key = e.freeKey(base)
	e.keys[asked] = d.Key
	if d.DeviceInfo == nil || reflect.ValueOf(d.DeviceInfo).IsNil() {
		label := fmt.Sprintf("%s %d", strings.TrimPrefix(reflect.TypeOf(dev).Elem().Name(), "Virtual"), d.Key-base+1)
		d.DeviceInfo = &types.Description{Label: label, Summary: label}
	}
	e.devices = append(e.devices, dev)
	return nil
}

func scsiSummary(d types.BaseVirtualDevice) string {
	switch d.(type) {
	case *types.ParaVirtualSCSIController:
		return "VMware paravirtual SCSI"
	case *types.VirtualLsiLogicSASController:
		return "LSI Logic SAS"
	case *types.VirtualLsiLogicController:
		return "LSI Logic"
	}
	return "BusLogic"
}

// bus gives a new controller its bus: what it asks for, or the next when that
// is taken and the client didn't choose (it left 0).
func (e *edit) bus(n int32, dev types.BaseVirtualDevice, most int32, kind func(types.BaseVirtualDevice) bool) types.BaseMethodFault {
	c := dev.(types.BaseVirtualController).GetVirtualController()
	taken := map[int32]bool{}
	for _, d := range e.devices {
		if kind(d) {
			taken[d.(types.BaseVirtualController).GetVirtualController().BusNumber] = true
		}
	}
	if int32(len(taken)) >= most {
		return &types.TooManyDevices{InvalidVmConfig: types.InvalidVmConfig{Property: fmt.Sprintf("deviceChange[%d]", n)}}
	}
	if c.BusNumber == 0 {
		for taken[c.BusNumber] {
			c.BusNumber++
		}
	}
	if c.BusNumber < 0 || c.BusNumber >= most || taken[c.BusNumber] {
		return &types.InvalidDeviceSpec{InvalidVmConfig: types.InvalidVmConfig{Property: "busNumber"}, DeviceIndex: n}
	}
	c.Device = nil
	return nil
}

func (e *edit) noController(n, key int32) types.BaseMethodFault {
	return &types.InvalidController{InvalidDeviceSpec: types.InvalidDeviceSpec{DeviceIndex: n}, ControllerKey: key}
}

// addDisk adds a virtual disk: a new one, or one that is there.
func (e *edit) addDisk(n int32, s *types.VirtualDeviceConfigSpec, d *types.VirtualDisk, asked int32) types.BaseMethodFault {
	bad := func(property string) types.BaseMethodFault {
		return &types.InvalidDeviceSpec{InvalidVmConfig: types.InvalidVmConfig{Property: property}, DeviceIndex: n}
	}
	i := byKey(e.devices, d.ControllerKey)
	if i < 0 {
		return e.noController(n, d.ControllerKey)
	}
	units, reserved, ok := unitsOf(e.devices[i])
	if !ok {
		return e.noController(n, d.ControllerKey)
	}
	if _, ide := e.devices[i].(*types.VirtualIDEController); ide && e.vm.Runtime.PowerState == types.VirtualMachinePowerStatePoweredOn {
		return &types.DeviceHotPlugNotSupported{InvalidDeviceSpec: types.InvalidDeviceSpec{DeviceIndex: n}}
	}
	used := map[int32]bool{reserved: true}
	for _, x := range e.devices {
		if b := x.GetVirtualDevice(); b.ControllerKey == d.ControllerKey && b.UnitNumber != nil {
			used[*b.UnitNumber] = true
		}
	}
	if d.UnitNumber == nil || *d.UnitNumber < 0 {
		at := int32(0)
		for used[at] {
			at++
		}
		d.UnitNumber = &at
	}
	if *d.UnitNumber >= units || used[*d.UnitNumber] {
		return bad("unitNumber")
	}
	b, ok := d.Backing.(*types.VirtualDiskFlatVer2BackingInfo)
	if !ok || b == nil {
		return bad("backing") // raw device mappings and older formats: not simulated
	}
	c := *b
	b, d.Backing = &c, &c
	if b.DiskMode == "" || !slices.Contains(diskModes, b.DiskMode) {
		return bad("backing.diskMode")
	}
	if b.Sharing == "" {
		b.Sharing = string(types.VirtualDiskSharingSharingNone)
	}
	var fault types.BaseMethodFault
	if s.FileOperation == types.VirtualDeviceConfigSpecFileOperationCreate {
		fault = e.freshDisk(n, d, b)
	} else {
		fault = e.knownDisk(n, d, b)
	}
	if fault != nil {
		return fault
	}
	disks := int32(1)
	for _, x := range e.devices {
		if _, ok := x.(*types.VirtualDisk); ok {
			disks++
		}
	}
	bus := e.devices[i].(types.BaseVirtualController).GetVirtualController().BusNumber
	d.Key = e.freeKey(firstDisk + bus*16 + *d.UnitNumber)
	e.keys[asked] = d.Key
	d.DeviceInfo = &types.Description{Label: fmt.Sprintf("Hard disk %d", disks), Summary: fmt.Sprintf("%d KB", d.CapacityInKB)}
	e.devices = append(e.devices, d)
	return nil
}

var diskModes = []string{
	string(types.VirtualDiskModePersistent), string(types.VirtualDiskModeNonpersistent), string(types.VirtualDiskModeUndoable), string(types.VirtualDiskModeAppend),
	string(types.VirtualDiskModeIndependent_persistent), string(types.VirtualDiskModeIndependent_nonpersistent),
}

// unitsOf is how many unit numbers a storage controller has, and which one it
// takes itself (-1: none).
func unitsOf(d types.BaseVirtualDevice) (units, reserved int32, ok bool) {
	switch d.(type) {
	case *types.ParaVirtualSCSIController:
		return cns.DenseDisksPerController + 1, 7, true
	case types.BaseVirtualSCSIController:
		return cns.DisksPerController + 1, 7, true
	case types.BaseVirtualSATAController:
		return 30, -1, true
	case *types.VirtualNVMEController:
		return 15, -1, true
	case *types.VirtualIDEController:
		return 2, -1, true
	}
	return 0, 0, false
}

// freshDisk is a new file. Its space is not accounted for.
func (e *edit) freshDisk(n int32, d *types.VirtualDisk, b *types.VirtualDiskFlatVer2BackingInfo) types.BaseMethodFault {
	size := capacity(d)
	if size <= 0 || size > maxDiskBytes {
		return &types.InvalidDeviceSpec{InvalidVmConfig: types.InvalidVmConfig{Property: "capacityInKB"}, DeviceIndex: n}
	}
	var vmx, p object.DatastorePath
	vmx.FromString(e.vm.Config.Files.VmPathName)
	if b.FileName != "" && !p.FromString(b.FileName) {
		return &types.InvalidDatastorePath{DatastorePath: b.FileName}
	}
	ds := e.v.datastoreNamed(p.Datastore, e.host)
	if b.FileName == "" {
		ds = e.v.datastoreNamed(vmx.Datastore, e.host)
		if b.Datastore != nil {
			ds, _ = e.v.vim.Get(*b.Datastore).(*simulator.Datastore)
		}
	}
	if ds == nil {
		return &types.InvalidDatastore{Datastore: b.Datastore, Name: p.Datastore}
	}
	taken := map[string]bool{}
	for _, x := range e.devices {
		if f, ok := x.GetVirtualDevice().Backing.(types.BaseVirtualDeviceFileBackingInfo); ok {
			taken[f.GetVirtualDeviceFileBackingInfo().FileName] = true
		}
	}
	busy := func() bool {
		_, disk := e.v.face.FindDisk("", p.String())
		return disk || taken[p.String()]
	}
	if strings.HasSuffix(p.Path, ".vmdk") {
		if busy() {
			return &types.FileAlreadyExists{FileFault: types.FileFault{File: p.String()}}
		}
	} else {
		stem := strings.TrimSuffix(path.Base(vmx.Path), ".vmx")
		dir := path.Dir(vmx.Path)
		p = object.DatastorePath{Datastore: ds.Name, Path: path.Join(dir, stem+".vmdk")}
		for i := 1; busy(); i++ {
			p.Path = path.Join(dir, fmt.Sprintf("%s_%d.vmdk", stem, i))
		}
	}
	b.FileName, b.Datastore = p.String(), &ds.Self
	b.Uuid = pageUUID(identity(e.v.cfg.Seed, "disk", e.seed+"/"+b.FileName))
	d.CapacityInBytes, d.CapacityInKB = size, size>>10
	d.VDiskId = nil
	return nil
}

// knownDisk is a file that is there: a first class disk, by its id or its path,
// or a disk of the VM's own that it had before.
func (e *edit) knownDisk(n int32, d *types.VirtualDisk, b *types.VirtualDiskFlatVer2BackingInfo) types.BaseMethodFault {
	id := ""
	if d.VDiskId != nil {
		id = d.VDiskId.Id
	}
	x, ok := e.v.face.FindDisk(id, b.FileName)
	if !ok {
		if id != "" {
			return &types.NotFound{}
		}
		return &types.FileNotFound{FileFault: types.FileFault{File: b.FileName}}
	}
	if size := capacity(d); size > 0 && size != x.CapacityMB<<20 {
		return &types.InvalidDeviceSpec{InvalidVmConfig: types.InvalidVmConfig{Property: "capacityInKB"}, DeviceIndex: n}
	}
	for _, o := range e.devices {
		if o, ok := o.(*types.VirtualDisk); ok && o.VDiskId != nil && o.VDiskId.Id == x.ID {
			return &types.FileLocked{FileFault: types.FileFault{File: x.DiskPath}}
		}
	}
	// Unverified: that a VM which gets a first class disk by its path shows its id.
	d.VDiskId = &types.ID{Id: x.ID}
	d.CapacityInBytes, d.CapacityInKB = x.CapacityMB<<20, x.CapacityMB<<10
	b.FileName, b.Uuid = x.DiskPath, e.v.face.DiskUUID(x.ID)
	b.Datastore = &ref{Type: "Datastore", Value: x.Datastore}
	b.BackingObjectId = &x.ID
	b.ThinProvisioned = types.NewBool(x.Provisioning == "" || x.Provisioning == cns.Thin)
	return nil
}

func (e *edit) remove(n int32, s *types.VirtualDeviceConfigSpec) types.BaseMethodFault {
	i := byKey(e.devices, s.Device.GetVirtualDevice().Key)
	if i < 0 {
		return &types.InvalidDeviceSpec{DeviceIndex: n}
	}
	switch d := e.devices[i].(type) {
	case *types.VirtualDisk:
		if s.FileOperation != "" && s.FileOperation != types.VirtualDeviceConfigSpecFileOperationDestroy {
			return &types.InvalidDeviceSpec{InvalidVmConfig: types.InvalidVmConfig{Property: "fileOperation"}, DeviceIndex: n}
		}
		// "snapshot will lock volume to that node", vsphere-csi-driver#478. A disk
		// that is the VM's own stays with the snapshot alone.
		if d.VDiskId != nil && e.pinned != nil && e.pinned(d) {
			return &types.InvalidDeviceSpec{DeviceIndex: n}
		}
		if d.VDiskId != nil && s.FileOperation != "" {
			e.destroyed = append(e.destroyed, d.VDiskId.Id)
		}
	case types.BaseVirtualController:
		key := e.devices[i].GetVirtualDevice().Key
		if slices.ContainsFunc(e.devices, func(o types.BaseVirtualDevice) bool { return o.GetVirtualDevice().ControllerKey == key }) {
			return &types.InvalidDeviceSpec{DeviceIndex: n}
		}
		if key < scsiController {
			return &types.InvalidDeviceSpec{DeviceIndex: n}
		}
	}
	e.devices = slices.Delete(e.devices, i, i+1)
	return nil
}

func (e *edit) change(n int32, s *types.VirtualDeviceConfigSpec) types.BaseMethodFault {
	bad := func(property string) types.BaseMethodFault {
		return &types.InvalidDeviceSpec{InvalidVmConfig: types.InvalidVmConfig{Property: property}, DeviceIndex: n}
	}
	i := byKey(e.devices, s.Device.GetVirtualDevice().Key)
	if i < 0 || reflect.TypeOf(e.devices[i]) != reflect.TypeOf(s.Device) {
		return bad("key")
	}
	off := e.vm.Runtime.PowerState == types.VirtualMachinePowerStatePoweredOff
	power := &types.InvalidPowerState{RequestedState: types.VirtualMachinePowerStatePoweredOff, ExistingState: e.vm.Runtime.PowerState}
	switch want := s.Device.(type) {
	case *types.VirtualDisk:
		d := *e.devices[i].(*types.VirtualDisk)
		// Unverified: that a disk which is edited can't change its place or its
		// file. To say yes and leave it where it is would be worse.
		if want.ControllerKey != 0 && want.ControllerKey != d.ControllerKey {
			if byKey(e.devices, want.ControllerKey) < 0 {
				return e.noController(n, want.ControllerKey)
			}
			return bad("controllerKey")
		}
		if u := want.UnitNumber; u != nil && *u >= 0 && (d.UnitNumber == nil || *u != *d.UnitNumber) {
			return bad("unitNumber")
		}
		if size := capacity(want); size != 0 && size != d.CapacityInBytes {
			if size < d.CapacityInBytes || size > maxDiskBytes || d.VDiskId != nil {
				return bad("capacityInKB") // a first class disk has grown before (grow)
			}
			if e.vm.Snapshot != nil && len(e.vm.Snapshot.RootSnapshotList) > 0 {
				return bad("capacityInKB")
			}
			d.CapacityInBytes, d.CapacityInKB = size, size>>10
		}
		old, is := d.Backing.(*types.VirtualDiskFlatVer2BackingInfo)
		b, ok := want.Backing.(*types.VirtualDiskFlatVer2BackingInfo)
		if is && ok && b != nil {
			c := *old
			if b.FileName != "" && b.FileName != c.FileName {
				return bad("backing.fileName")
			}
			if b.DiskMode != "" && b.DiskMode != c.DiskMode {
				if !slices.Contains(diskModes, b.DiskMode) {
					return bad("backing.diskMode")
				}
				// Unverified: a disk that a snapshot holds keeps its mode.
				if e.pinned != nil && e.pinned(&d) {
					return bad("backing.diskMode")
				}
				c.DiskMode = b.DiskMode
			}
			if b.Sharing != "" && b.Sharing != sharingOf(&c) {
				if !off {
					return power
				}
				if b.Sharing != string(types.VirtualDiskSharingSharingNone) && b.Sharing != string(types.VirtualDiskSharingSharingMultiWriter) {
					return bad("backing.sharing")
				}
				c.Sharing = b.Sharing
			}
			d.Backing = &c
		}
		e.devices[i] = &d
	case types.BaseVirtualSCSIController:
		c := copyOf(e.devices[i])
		x := c.(types.BaseVirtualSCSIController).GetVirtualSCSIController()
		if bus := want.GetVirtualSCSIController().SharedBus; bus != "" && bus != x.SharedBus {
			if !off {
				return power
			}
			x.SharedBus = bus
		}
		e.devices[i] = c
	}
	return nil // what else a client may edit has no effect here
}

func sharingOf(b *types.VirtualDiskFlatVer2BackingInfo) string {
	if b.Sharing == "" {
		return string(types.VirtualDiskSharingSharingNone)
	}
	return b.Sharing
}

// macOf gives a network card an address of VMware's range.
func macOf(id [16]byte, card *types.VirtualEthernetCard) {
	card.AddressType, card.MacAddress = "assigned", fmt.Sprintf("00:50:56:%02x:%02x:%02x", id[0]&0x3f|0x80, id[1], id[2])
}

// freeKey is the first key from base on that no device has.
func (e *edit) freeKey(base int32) int32 {
	for byKey(e.devices, base) >= 0 {
		base++
	}
	return base
}

func byKey(devices []types.BaseVirtualDevice, key int32) int {
	return slices.IndexFunc(devices, func(d types.BaseVirtualDevice) bool { return d.GetVirtualDevice().Key == key })
}

// copyOf copies a device, but not what it points to.
func copyOf(d types.BaseVirtualDevice) types.BaseVirtualDevice {
	c := reflect.New(reflect.TypeOf(d).Elem())
	c.Elem().Set(reflect.ValueOf(d).Elem())
	return c.Interface().(types.BaseVirtualDevice)
}

// children writes into each controller the keys of its devices. Controllers
// are copied: others may hold the old ones.
func children(devices []types.BaseVirtualDevice) []types.BaseVirtualDevice {
	of := map[int32][]int32{}
	for _, d := range devices {
		b := d.GetVirtualDevice()
		if b.ControllerKey != 0 {
			of[b.ControllerKey] = append(of[b.ControllerKey], b.Key)
		}
	}
	out := slices.Clone(devices)
	for i, d := range out {
		c, ok := d.(types.BaseVirtualController)
		if ok && !slices.Equal(c.GetVirtualController().Device, of[d.GetVirtualDevice().Key]) {
			n := copyOf(d)
			n.(types.BaseVirtualController).GetVirtualController().Device = of[d.GetVirtualDevice().Key]
			out[i] = n
		}
	}
	return out
}

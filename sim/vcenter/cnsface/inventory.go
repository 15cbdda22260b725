package cnsface

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/mo"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// inventory is the vim25 side of a vCenter: datastores and the hardware of
// VMs. It is the truth about both. It listens to the registry, so that what
// others do to VMs shows in the core at once.
type inventory struct {
	face *Face
	svc  *simulator.Service
	vim  *simulator.Registry
	root vim.ManagedObjectReference // folder
	vslm *simulator.Registry        // set before tasks are started

	// stale: something about datastores or hosts has changed since refresh last
	// looked at all of them.
	stale   atomic.Bool
	looking sync.Mutex // held while refresh looks; taken before locks of objects

	mu         sync.Mutex
	datastores []vim.ManagedObjectReference
	unplugging map[[2]string]bool // volumes, and VMs by id, whose disk the face itself is pulling
	plugging   map[[2]string]bool // volumes, and VMs by uuid, whose disk it has plugged in before the hardware shows it
}

// handlerRef names the listener among the registry's; no object has it.
var handlerRef = vim.ManagedObjectReference{Type: "CnsInventoryListener", Value: "csilab"}

func newInventory(f *Face, s *simulator.Service) *inventory {
	root := vim.ManagedObjectReference{Type: "Folder", Value: "group-d1"}
	if si, ok := s.Context.Map.Get(vim25.ServiceInstance).(interface{ ServiceContent() vim.ServiceContent }); ok {
		root = si.ServiceContent().RootFolder
	}
	return &inventory{face: f, svc: s, vim: s.Context.Map, root: root, unplugging: map[[2]string]bool{}, plugging: map[[2]string]bool{}}
}

// context is an identity under which objects of the registry are locked. Each
// task needs one of its own: locks are shared within one.
func (i *inventory) context() *simulator.Context {
	c := *i.svc.Context
	c.Context = i.face.ctx
	c.Map = i.vim
	return &c
}

// start takes over what there is and listens to what comes.
func (i *inventory) start() {
	i.vim.AddHandler(i)
	for _, o := range i.vim.AllReference("") {
		i.PutObject(nil, o)
	}
}

// Reference implements simulator.RegisterObject.
func (i *inventory) Reference() vim.ManagedObjectReference { return handlerRef }

// PutObject implements simulator.RegisterObject.
func (i *inventory) PutObject(_ *simulator.Context, o mo.Reference) {
	switch o := o.(type) {
	case *simulator.Datastore:
		i.mu.Lock()
		if ref := o.Reference(); !slices.Contains(i.datastores, ref) {
			i.datastores = append(i.datastores, ref)
		}
		i.mu.Unlock()
		i.stale.Store(true)
	case *simulator.HostSystem:
		i.stale.Store(true)
	case *simulator.VirtualMachine:
		if o.Config != nil {
			i.sync(&o.VirtualMachine)
		}
	}
}

// UpdateObject implements simulator.RegisterObject. The registry calls it with
// the object locked and already changed.
func (i *inventory) UpdateObject(_ *simulator.Context, o mo.Reference, changes []vim.PropertyChange) {
	switch o.(type) {
	case *mo.HostSystem:
		i.stale.Store(true)
	case *mo.Datastore:
		for _, c := range changes {
			if c.Name != "summary.freeSpace" && c.Name != "summary.uncommitted" && c.Name != "vm" {
				i.stale.Store(true)
			}
		}
	}
	vm, ok := o.(*mo.VirtualMachine)
	if !ok || vm.Config == nil {
		return
	}
	for _, c := range changes {
		if c.Name == "config" || c.Name == "config.changeTrackingEnabled" || strings.HasPrefix(c.Name, "config.hardware") {
			i.sync(vm)
			return
		}
	}
}

// RemoveObject implements simulator.RegisterObject. The disks of a VM that is
// deleted stay as volumes: CNS sets keepAfterDeleteVm
// (kubernetes-sigs/vsphere-csi-driver#221, PR #2129).
func (i *inventory) RemoveObject(_ *simulator.Context, ref vim.ManagedObjectReference) {
	switch ref.Type {
	case "VirtualMachine":
		uuid := ""
		if vm, ok := i.vm(ref); ok && vm.Config != nil {
			uuid = vm.Config.Uuid
		}
		i.hold(ref.Value, uuid, nil)
		i.face.Pin(ref, nil)
	case "Task":
		if i.vslm != nil {
			i.vslm.Remove(i.context(), vslmTaskRef(ref))
		}
	case "HostSystem":
		i.stale.Store(true)
	case "Datastore":
		i.mu.Lock()
		i.datastores = slices.DeleteFunc(i.datastores, func(r vim.ManagedObjectReference) bool { return r == ref })
		i.mu.Unlock()
		// What lay on it stays known, out of reach.
		i.face.mu.Lock()
		if d, _, ok := i.face.core.Datastore(ref.Value); ok {
			d.Inaccessible = true
			i.face.core.PutDatastore(d)
		}
		i.face.mu.Unlock()
	}
}

func (i *inventory) sync(vm *mo.VirtualMachine) {
	i.hold(vm.Self.Value, vm.Config.Uuid, hardware(vm))
	if !tracking(vm) {
		return
	}
	// A VM that tracks changed blocks does so for all its disks, and a disk keeps
	// that when it is detached
	// (vmware-samples/cloud-native-storage-self-service-manager#12).
	f := i.face
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.core.AttachedTo(vm.Self.Value) {
		if _, err := f.core.SetFlags(a.Volume, []string{"enableChangedBlockTracking"}, true); err != nil {
			f.log.Error("tracking of a disk", "disk", a.Volume, "err", err)
		}
	}
}

// tracking says whether a VM tracks changed blocks.
func tracking(vm *mo.VirtualMachine) bool {
	return vm.Config != nil && vm.Config.ChangeTrackingEnabled != nil && *vm.Config.ChangeTrackingEnabled
}

// hold makes the core agree with a VM's hardware, and pulls disks that are
// gone from it without the face's doing out of the node.
func (i *inventory) hold(vm, uuid string, hw []cns.Attachment) {
	uuid = strings.ToLower(uuid)
	f := i.face
	f.mu.Lock()
	lost, taken := f.core.Sync(vm, hw)
	f.mu.Unlock()
	if f.cfg.Hardware == nil {
		return
	}
	later := func(a cns.Attachment, held bool, do func() error) {
		f.spawn(func() {
			unlock, err := f.volumes.lock(f.ctx, a.Volume)
			if err != nil {
				return
			}
			defer unlock()
			f.mu.Lock()
			_, now := f.core.AttachmentAt(a.Volume, vm)
			f.mu.Unlock()
			if now != held {
				return // it changed again meanwhile
			}
			if err := do(); err != nil {
				f.log.Debug("follow a disk that others moved", "vm", vm, "volume", a.Volume, "plugged", held, "err", err)
			}
		})
	}
	for _, a := range lost {
		if !i.own(i.unplugging, a.Volume, vm) {
			later(a, false, func() error { return f.cfg.Hardware.Detach(f.ctx, uuid, undash(a.DiskUUID)) })
		}
	}
	for _, a := range taken {
		if !i.own(i.plugging, a.Volume, uuid) {
			later(a, true, func() error { return f.cfg.Hardware.Attach(f.ctx, uuid, undash(a.DiskUUID), a.Volume) })
		}
	}
}

func (i *inventory) own(marks map[[2]string]bool, volume, vm string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return marks[[2]string{volume, vm}]
}

// hardware lists the disks of a VM that carry the id of a first class disk.
func hardware(vm *mo.VirtualMachine) []cns.Attachment {
	return disksOf(vm.Self.Value, vm.Config.Hardware.Device)
}

func disksOf(vm string, devices []vim.BaseVirtualDevice) []cns.Attachment {
	var out []cns.Attachment
	bus, shared := map[int32]int32{}, map[int32]bool{}
	for _, d := range devices {
		if c, ok := d.(vim.BaseVirtualController); ok {
			bus[c.GetVirtualController().Key] = c.GetVirtualController().BusNumber
			shared[c.GetVirtualController().Key] = busShared(d)
		}
	}
	for _, d := range devices {
		disk, ok := d.(*vim.VirtualDisk)
		if !ok || disk.VDiskId == nil {
			continue
		}
		a := cns.Attachment{Volume: disk.VDiskId.Id, VM: vm}
		a.Controller, a.Bus, a.SharedBus = disk.ControllerKey, bus[disk.ControllerKey], shared[disk.ControllerKey]
		if disk.UnitNumber != nil {
			a.Unit = *disk.UnitNumber
		}
		if b, ok := disk.Backing.(*vim.VirtualDiskFlatVer2BackingInfo); ok {
			a.DiskUUID, a.Mode, a.Sharing = b.Uuid, cns.DiskMode(b.DiskMode), cns.Sharing(b.Sharing)
		}
		out = append(out, a)
	}
	return out
}

func (i *inventory) vm(ref vim.ManagedObjectReference) (*simulator.VirtualMachine, bool) {
	vm, ok := i.vim.Get(ref).(*simulator.VirtualMachine)
	return vm, ok
}

// machine is a VM as a command needs it.
type machine struct {
	cns.VM
	ref  vim.ManagedObjectReference
	obj  *simulator.VirtualMachine
	uuid string // BIOS uuid
	// lists are the first class disks in its hardware. It may not hold one that
	// another VM took while this one was not registered.
	lists []string
}

// look reads a VM. Errors: ManagedObjectNotFound.
func (i *inventory) look(c *simulator.Context, ref vim.ManagedObjectReference) (machine, error) {
	vm, ok := i.vm(ref)
	if !ok {
		return machine{}, &wireError{gone(ref)}
	}
	m := machine{ref: ref, obj: vm}
	built := false
	c.WithLock(vm, func() { // nothing in here may panic: the lock would stay
		m.ID, m.Name, m.State = ref.Value, vm.Name, cns.Power(vm.Runtime.PowerState)
		if vm.Runtime.Host != nil {
			m.Host = vm.Runtime.Host.Value
		}
		m.HostDown = vm.Runtime.ConnectionState != "" && vm.Runtime.ConnectionState != vim.VirtualMachineConnectionStateConnected
		if vm.Config == nil {
			return
		}
		built = true
		m.uuid = strings.ToLower(vm.Config.Uuid)
		m.Encrypted = vm.Config.KeyId != nil
		m.Dense = i.face.cfg.DenseSlots
		m.lists = volumesIn(hardware(&vm.VirtualMachine))
		// Unverified: that it is no condition since CNS has the flag itself.
		m.Tracks = tracking(&vm.VirtualMachine) || i.face.release.atLeast(release92)
		narrow := hardwareVersion(vm.Config.Version) < 14 // ESXi 6.7 brought 64 disks of a paravirtual controller
		at := map[int32]int{}
		for _, d := range vm.Config.Hardware.Device {
			if kind, ok := controllerKind(d); ok {
				b := d.(vim.BaseVirtualController).GetVirtualController()
				at[b.Key] = len(m.Controllers)
				m.Controllers = append(m.Controllers, cns.Controller{Key: b.Key, Bus: b.BusNumber, Kind: kind, Narrow: narrow, Shared: busShared(d)})
			}
		}
		for _, d := range vm.Config.Hardware.Device {
			b := d.GetVirtualDevice()
			if n, ok := at[b.ControllerKey]; ok && b.UnitNumber != nil && !slices.Contains(m.Controllers[n].Used, *b.UnitNumber) {
				m.Controllers[n].Used = append(m.Controllers[n].Used, *b.UnitNumber)
			}
		}
	})
	if !built {
		return machine{}, &wireError{gone(ref)}
	}
	m.Busy = i.face.occupant(ref.Value)
	return m, nil
}

// hardwareVersion is the number in e.g. vmx-20; a large one where there is none.
func hardwareVersion(s string) int {
	n, err := strconv.Atoi(strings.TrimPrefix(s, "vmx-"))
	if err != nil {
		return 1 << 20
	}
	return n
}

// busShared says whether a device is a SCSI controller whose bus VMs share.
func busShared(d vim.BaseVirtualDevice) bool {
	c, ok := d.(vim.BaseVirtualSCSIController)
	if !ok {
		return false
	}
	b := c.GetVirtualSCSIController().SharedBus
	return b == vim.VirtualSCSISharingPhysicalSharing || b == vim.VirtualSCSISharingVirtualSharing
}

// controllerKind says what a storage controller is; other devices are none.
func controllerKind(d vim.BaseVirtualDevice) (kind cns.ControllerKind, ok bool) {
	switch d.(type) {
	case *vim.ParaVirtualSCSIController:
		return cns.Paravirtual, true
	case vim.BaseVirtualSCSIController:
		return cns.OtherSCSI, true
	case vim.BaseVirtualSATAController:
		return cns.SATA, true
	case *vim.VirtualNVMEController:
		return cns.NVMe, true
	case *vim.VirtualIDEController:
		return cns.IDE, true
	}
	return "", false
}

// plug adds a disk to a VM's hardware, with a controller for it when asked to.
func (i *inventory) plug(c *simulator.Context, m machine, v cns.Disk, a cns.Attachment, addController bool) {
	defer i.giving(v.ID, m.uuid)()
	c.WithLock(m.obj, func() {
		devices := slices.Clone(m.obj.Config.Hardware.Device)
		keys := map[int32]bool{}
		for _, d := range devices {
			keys[d.GetVirtualDevice().Key] = true
		}
		free := func(key int32) int32 {
			for keys[key] {
				key++
			}
			keys[key] = true
			return key
		}
		if addController {
			a.Controller = free(a.Controller)
			s := &vim.ParaVirtualSCSIController{}
			s.Key = a.Controller
			s.BusNumber = a.Bus
			s.SharedBus = vim.VirtualSCSISharingNoSharing
			s.ScsiCtlrUnitNumber = 7
			s.HotAddRemove = vim.NewBool(true)
			s.DeviceInfo = &vim.Description{Label: "SCSI controller " + itoa(a.Bus), Summary: "VMware paravirtual SCSI"}
			devices = append(devices, s)
		}
		disk := &vim.VirtualDisk{
			CapacityInKB:    v.CapacityMB << 10,
			CapacityInBytes: v.CapacityMB << 20,
			VDiskId:         &vim.ID{Id: v.ID},
		}
		disk.Key = free(2000 + a.Bus*16 + a.Unit) // Unverified: beyond unit 15 the numbers of two buses meet
		disk.ControllerKey = a.Controller
		disk.UnitNumber = vim.NewInt32(a.Unit)
		disk.DeviceInfo = &vim.Description{Label: "Hard disk " + itoa(a.Bus*15+a.Unit+1), Summary: itoa(int32(v.CapacityMB)) + " MB"}
		mode := a.Mode
		if mode == "" {
			mode = cns.Persistent
		}
		sharing := a.Sharing
		if sharing == "" {
			sharing = cns.SharingNone
		}
		b := &vim.VirtualDiskFlatVer2BackingInfo{
			DiskMode:        string(mode),
			Sharing:         string(sharing),
			Uuid:            a.DiskUUID,
			ThinProvisioned: vim.NewBool(v.Provisioning == "" || v.Provisioning == cns.Thin),
		}
		b.FileName = v.DiskPath
		b.Datastore = &vim.ManagedObjectReference{Type: "Datastore", Value: v.Datastore}
		b.BackingObjectId = &v.ID
		disk.Backing = b
		i.setDevices(c, m.obj, append(devices, disk))
	})
}

// pulling says until done that the face itself takes a disk out of a VM.
func (i *inventory) pulling(volume, vm string) (done func()) {
	return i.mark(i.unplugging, volume, vm)
}

// giving says until done that the node has a disk which the VM of a uuid is
// about to show.
func (i *inventory) giving(volume, uuid string) (done func()) {
	return i.mark(i.plugging, volume, strings.ToLower(uuid))
}

func (i *inventory) mark(marks map[[2]string]bool, volume, vm string) (done func()) {
	key := [2]string{volume, vm}
	i.mu.Lock()
	defer i.mu.Unlock()
	marks[key] = true
	return func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		delete(marks, key)
	}
}

// unplug takes a volume's disk out of a VM's hardware.
func (i *inventory) unplug(c *simulator.Context, m machine, volume string) {
	defer i.pulling(volume, m.ID)()
	c.WithLock(m.obj, func() {
		devices := slices.DeleteFunc(slices.Clone(m.obj.Config.Hardware.Device), func(d vim.BaseVirtualDevice) bool {
			disk, ok := d.(*vim.VirtualDisk)
			return ok && disk.VDiskId != nil && disk.VDiskId.Id == volume
		})
		if len(devices) != len(m.obj.Config.Hardware.Device) {
			i.setDevices(c, m.obj, devices)
		}
	})
}

// resize sets the size of a volume's disk in a VM's hardware.
func (i *inventory) resize(c *simulator.Context, m machine, id string, capacityMB int64) {
	c.WithLock(m.obj, func() {
		devices := slices.Clone(m.obj.Config.Hardware.Device)
		for n, d := range devices {
			if disk, ok := d.(*vim.VirtualDisk); ok && disk.VDiskId != nil && disk.VDiskId.Id == id {
				grown := *disk // whoever reads the old one goes on undisturbed
				grown.CapacityInKB, grown.CapacityInBytes = capacityMB<<10, capacityMB<<20
				devices[n] = &grown
			}
		}
		i.setDevices(c, m.obj, devices)
	})
}

// move shows in a VM's hardware where the disk lies now.
func (i *inventory) move(c *simulator.Context, m machine, d cns.Disk) {
	c.WithLock(m.obj, func() {
		devices := slices.Clone(m.obj.Config.Hardware.Device)
		for n, x := range devices {
			disk, ok := x.(*vim.VirtualDisk)
			if !ok || disk.VDiskId == nil || disk.VDiskId.Id != d.ID {
				continue
			}
			b, ok := disk.Backing.(*vim.VirtualDiskFlatVer2BackingInfo)
			if !ok {
				continue
			}
			moved, backing := *disk, *b // whoever reads the old ones goes on undisturbed
			backing.FileName = d.DiskPath
			backing.Datastore = &vim.ManagedObjectReference{Type: "Datastore", Value: d.Datastore}
			moved.Backing = &backing
			devices[n] = &moved
		}
		i.setDevices(c, m.obj, devices)
	})
}

func (i *inventory) setDevices(c *simulator.Context, vm *simulator.VirtualMachine, devices []vim.BaseVirtualDevice) {
	var disks int32
	for _, d := range devices {
		if _, ok := d.(*vim.VirtualDisk); ok {
			disks++
		}
	}
	c.Update(vm, []vim.PropertyChange{
		{Name: "config.hardware.device", Val: devices},
		{Name: "summary.config.numVirtualDisks", Val: disks},
	})
}

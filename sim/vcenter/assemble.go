package vcenter

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

// place is where in the inventory a VM goes.
type place struct {
	folder, pool ref
	host         *simulator.HostSystem
}

// hardwareVersion is that of a VM which is made without one: ESXi 8.0's.
const hardwareVersion = "vmx-20"

// newConfig is the configuration of a fresh VM. vmx is the path of its file,
// e.g. "[datastore-1] node-1/node-1.vmx".
func newConfig(name, bios, instance, vmx string, devices []types.BaseVirtualDevice) *types.VirtualMachineConfigInfo {
	now := time.Now()
	dir := path.Dir(vmx)
	return &types.VirtualMachineConfigInfo{
		ChangeVersion: "1", Modified: now, Name: name, Uuid: bios, InstanceUuid: instance, Version: hardwareVersion,
		GuestId: "ubuntu64Guest", GuestFullName: "Ubuntu Linux (64-bit)", Firmware: "efi", CreateDate: &now,
		Files:                 types.VirtualMachineFileInfo{VmPathName: vmx, SnapshotDirectory: dir, SuspendDirectory: dir, LogDirectory: dir},
		Tools:                 &types.ToolsConfigInfo{},
		BootOptions:           &types.VirtualMachineBootOptions{},
		LatencySensitivity:    &types.LatencySensitivity{Level: types.LatencySensitivitySensitivityLevelNormal},
		ChangeTrackingEnabled: types.NewBool(false),
		Hardware:              types.VirtualHardware{NumCPU: 2, NumCoresPerSocket: types.NewInt32(1), MemoryMB: 4096, Device: devices},
	}
}

// assemble makes the object of a VM, which install puts into the inventory.
func (v *VCenter) assemble(config *types.VirtualMachineConfigInfo, at place, power types.VirtualMachinePowerState) *simulator.VirtualMachine {
	now := time.Now()
	vm := &simulator.VirtualMachine{DataSets: map[string]*simulator.DataSet{}}
	vm.Name = config.Name
	vm.Parent = &at.folder
	vm.Config = config
	vm.Layout = &types.VirtualMachineFileLayout{}
	vm.LayoutEx = &types.VirtualMachineFileLayoutEx{Timestamp: now}
	vm.Storage = &types.VirtualMachineStorageInfo{Timestamp: now}
	state, tools := "notRunning", "guestToolsNotRunning"
	if power == types.VirtualMachinePowerStatePoweredOn {
		state, tools = "running", "guestToolsRunning"
	}
	vm.Guest = &types.GuestInfo{HostName: config.Name, GuestState: state, ToolsRunningStatus: tools}
	vm.ResourcePool = &at.pool
	if c := v.computeOf(at.host); c != nil && c.EnvironmentBrowser != nil {
		vm.EnvironmentBrowser = *c.EnvironmentBrowser
	}
	vm.Runtime = types.VirtualMachineRuntimeInfo{Host: &at.host.Self, ConnectionState: types.VirtualMachineConnectionStateConnected, PowerState: power}
	if power == types.VirtualMachinePowerStatePoweredOn {
		vm.Runtime.BootTime = &now
	}
	vm.Datastore = v.datastoresOf(config)
	for _, c := range v.inv.centers {
		if c.network.Value != "" && v.datacenterOf(at.folder) == c.obj.Self {
			vm.Network = []ref{c.network}
		}
	}
	vm.GuestHeartbeatStatus = types.ManagedEntityStatusGreen
	disks, cards := count(config.Hardware.Device)
	vm.Summary = types.VirtualMachineSummary{
		Runtime: vm.Runtime,
		Guest:   &types.VirtualMachineGuestSummary{GuestId: config.GuestId, HostName: config.Name, ToolsRunningStatus: tools},
		Config: types.VirtualMachineConfigSummary{
			Name: config.Name, VmPathName: config.Files.VmPathName, Uuid: config.Uuid, InstanceUuid: config.InstanceUuid,
			GuestId: config.GuestId, GuestFullName: config.GuestFullName, Annotation: config.Annotation,
			MemorySizeMB: config.Hardware.MemoryMB, NumCpu: config.Hardware.NumCPU, NumVirtualDisks: disks, NumEthernetCards: cards, HwVersion: config.Version,
		},
		Storage:       &types.VirtualMachineStorageSummary{Timestamp: now},
		OverallStatus: types.ManagedEntityStatusGreen,
	}
	return vm
}

func count(devices []types.BaseVirtualDevice) (disks, cards int32) {
	for _, d := range devices {
		switch d.(type) {
		case *types.VirtualDisk:
			disks++
		case types.BaseVirtualEthernetCard:
			cards++
		}
	}
	return disks, cards
}

// install puts a VM into the inventory. node is the node that it is, or "".
func (v *VCenter) install(vm *simulator.VirtualMachine, node string) ref {
	ctx := v.internal()
	self := v.vim.Put(vm).Reference()
	ctx.WithLock(vm, func() { vm.Summary.Vm = &vm.Self })
	v.addChild(ctx, *vm.Parent, self)
	v.link(ctx, self, vm)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.index(vm, node)
	return self
}

// link enters a VM at its host, pool and datastores, unlink takes it out.
func (v *VCenter) link(ctx *simulator.Context, self ref, vm *simulator.VirtualMachine) {
	for _, o := range v.around(vm) {
		ctx.WithLock(o, func() { v.vim.AddReference(ctx, o, vmsAt(o), self) })
	}
}

func (v *VCenter) unlink(ctx *simulator.Context, self ref, vm *simulator.VirtualMachine) {
	for _, o := range v.around(vm) {
		ctx.WithLock(o, func() { v.vim.RemoveReference(ctx, o, vmsAt(o), self) })
	}
}

// around are the objects that list a VM, besides its folder.
func (v *VCenter) around(vm *simulator.VirtualMachine) (out []mo.Reference) {
	refs := slices.Clone(vm.Datastore)
	if vm.Runtime.Host != nil {
		refs = append(refs, *vm.Runtime.Host)
	}
	if vm.ResourcePool != nil {
		refs = append(refs, *vm.ResourcePool)
	}
	for _, r := range refs {
		if o := v.vim.Get(r); o != nil && vmsAt(o) != nil {
			out = append(out, o)
		}
	}
	return out
}

// vmsAt is the list of VMs of a host, a pool or a datastore; nil for others.
func vmsAt(o mo.Reference) *[]ref {
	switch o := o.(type) {
	case *simulator.HostSystem:
		return &o.Vm
	case *simulator.ResourcePool:
		return &o.Vm
	case *simulator.Datastore:
		return &o.Vm
	}
	return nil
}

// index makes a VM findable, under v.mu; unindex takes it out.
func (v *VCenter) index(vm *simulator.VirtualMachine, node string) {
	if node != "" {
		v.inv.vms[node] = vm
		v.inv.nodeOf[vm.Self] = node
	}
	uuid := strings.ToLower(vm.Config.Uuid)
	v.inv.byUUID[uuid] = append(v.inv.byUUID[uuid], vm)
}

// unindex says which node the VM was, or "". uuid is the BIOS uuid that it is
// indexed by.
func (v *VCenter) unindex(vm *simulator.VirtualMachine, uuid string) (node string) {
	node = v.inv.nodeOf[vm.Self]
	delete(v.inv.nodeOf, vm.Self)
	if node != "" && v.inv.vms[node] == vm {
		delete(v.inv.vms, node)
	}
	uuid = strings.ToLower(uuid)
	left := slices.DeleteFunc(v.inv.byUUID[uuid], func(o *simulator.VirtualMachine) bool { return o == vm })
	if len(left) == 0 {
		delete(v.inv.byUUID, uuid)
	} else {
		v.inv.byUUID[uuid] = left
	}
	return node
}

// relist makes a VM's list of datastores agree with its files.
func (v *VCenter) relist(c *simulator.Context, vm *simulator.VirtualMachine) {
	var was, is []ref
	c.WithLock(vm, func() {
		was, is = vm.Datastore, v.datastoresOf(vm.Config)
		if !slices.Equal(was, is) {
			c.Update(vm, []types.PropertyChange{{Name: "datastore", Val: is}})
		}
	})
	for _, r := range was {
		if d, ok := v.vim.Get(r).(*simulator.Datastore); ok && !slices.Contains(is, r) {
			c.WithLock(d, func() { v.vim.RemoveReference(c, d, &d.Vm, vm.Self) })
		}
	}
	for _, r := range is {
		if d, ok := v.vim.Get(r).(*simulator.Datastore); ok && !slices.Contains(was, r) {
			c.WithLock(d, func() { v.vim.AddReference(c, d, &d.Vm, vm.Self) })
		}
	}
}

// computeOf is the cluster of a host.
func (v *VCenter) computeOf(h *simulator.HostSystem) *simulator.ClusterComputeResource {
	if h == nil || h.Parent == nil {
		return nil
	}
	c, _ := v.vim.Get(*h.Parent).(*simulator.ClusterComputeResource)
	return c
}

// datastoresOf are the datastores of a VM's files.
func (v *VCenter) datastoresOf(config *types.VirtualMachineConfigInfo) (out []ref) {
	add := func(name string) {
		var p object.DatastorePath
		if !p.FromString(name) {
			return
		}
		if d := v.datastoreNamed(p.Datastore, nil); d != nil && !slices.Contains(out, d.Self) {
			out = append(out, d.Self)
		}
	}
	add(config.Files.VmPathName)
	for _, d := range config.Hardware.Device {
		b, ok := d.GetVirtualDevice().Backing.(types.BaseVirtualDeviceFileBackingInfo)
		if !ok {
			continue
		}
		if r := b.GetVirtualDeviceFileBackingInfo().Datastore; r != nil {
			if !slices.Contains(out, *r) && v.vim.Get(*r) != nil {
				out = append(out, *r)
			}
			continue
		}
		add(b.GetVirtualDeviceFileBackingInfo().FileName)
	}
	return out
}

// datastoreNamed finds a datastore by the name that paths have, among those
// of a host or, where that is nil, all.
func (v *VCenter) datastoreNamed(name string, at *simulator.HostSystem) *simulator.Datastore {
	for _, d := range v.inv.datastores {
		if d.Name == name && (at == nil || slices.Contains(at.Datastore, d.Self)) {
			return d
		}
	}
	return nil
}

// named finds a child of a folder.
func (v *VCenter) named(ctx *simulator.Context, folder ref, name string) (ref, bool) {
	f, ok := v.vim.Get(folder).(*simulator.Folder)
	if !ok {
		return ref{}, false
	}
	var children []ref
	ctx.WithLock(f, func() { children = slices.Clone(f.ChildEntity) })
	for _, r := range children {
		if e, ok := v.vim.Get(r).(mo.Entity); ok {
			is := ""
			ctx.WithLock(e, func() { is = e.Entity().Name })
			if is == name {
				return r, true
			}
		}
	}
	return ref{}, false
}

// nextID numbers what an administrator makes, so that its identities don't
// repeat, and are the same for the same sequence of calls.
func (v *VCenter) nextID(name string) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.inv.made++
	return fmt.Sprintf("%s#%d", name, v.inv.made)
}

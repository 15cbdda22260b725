package vcenter

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cnsface"
)

// MigrateVMTask implements MigrateVM_Task: the VM goes to another host.
func (m *machine) MigrateVMTask(ctx *simulator.Context, req *types.MigrateVM_Task) soap.HasFault {
	r := *req
	return &methods.MigrateVM_TaskBody{Res: &types.MigrateVM_TaskResponse{Returnval: m.occupied(ctx, "MigrateVM_Task", true, func(ctx context.Context, c *simulator.Context, task ref) (types.AnyType, types.BaseMethodFault) {
		if r.Host == nil && r.Pool == nil {
			return nil, &types.InvalidArgument{InvalidProperty: "host"}
		}
		return nil, m.move(ctx, c, task, move{host: r.Host, pool: r.Pool, state: r.State})
	})}}
}

// RelocateVMTask implements RelocateVM_Task: the VM and the files that are its
// own go elsewhere. Volumes stay where they are: their datastore is CNS's
// affair. Unverified: a vCenter can move them along.
func (m *machine) RelocateVMTask(ctx *simulator.Context, req *types.RelocateVM_Task) soap.HasFault {
	s := req.Spec
	return &methods.RelocateVM_TaskBody{Res: &types.RelocateVM_TaskResponse{Returnval: m.occupied(ctx, "RelocateVM_Task", true, func(ctx context.Context, c *simulator.Context, task ref) (types.AnyType, types.BaseMethodFault) {
		if s.Service != nil || len(s.DeviceChange) > 0 || s.Folder != nil && *s.Folder != *m.Parent {
			return nil, &types.NotSupported{}
		}
		return nil, m.move(ctx, c, task, move{host: s.Host, pool: s.Pool, datastore: s.Datastore, disks: s.Disk})
	})}}
}

// move says where a VM goes; what is nil stays.
type move struct {
	host, pool, datastore *ref
	disks                 []types.VirtualMachineRelocateSpecDiskLocator // that go to another datastore than the VM
	state                 types.VirtualMachinePowerState                // that the VM must be in; "": any
}

func (m *machine) move(ctx context.Context, c *simulator.Context, task ref, to move) types.BaseMethodFault {
	v := m.v
	if to.host == nil && to.pool == nil && to.datastore == nil && len(to.disks) == 0 {
		return &types.InvalidArgument{InvalidProperty: "spec"}
	}
	host, pool, fault := m.destination(c, to)
	if fault != nil {
		return fault
	}
	if to.datastore != nil && v.store(*to.datastore) == nil {
		return &types.InvalidArgument{InvalidProperty: "spec.datastore"}
	}
	if fault := v.takesVM(c, host, ""); fault != nil {
		return fault
	}
	var was *simulator.VirtualMachine
	fault = v.face.Reshape(ctx, c, m.Self, task, func(vm *mo.VirtualMachine) (cnsface.Shape, types.BaseMethodFault) {
		if fault := m.connected(); fault != nil {
			return cnsface.Shape{}, fault
		}
		if to.state != "" && to.state != vm.Runtime.PowerState {
			return cnsface.Shape{}, &types.InvalidPowerState{RequestedState: to.state, ExistingState: vm.Runtime.PowerState}
		}
		was = m.around()
		devices, vmx, fault := m.relocated(vm, to)
		if fault != nil {
			return cnsface.Shape{}, fault
		}
		moves := *vm.Runtime.Host != host.Self
		if fault := v.reaches(host, devices, vmx, moves && vm.Runtime.PowerState == types.VirtualMachinePowerStatePoweredOn); fault != nil {
			return cnsface.Shape{}, fault
		}
		return cnsface.Shape{Devices: devices, Changes: []types.PropertyChange{
			{Name: "runtime.host", Val: host.Self}, {Name: "summary.runtime.host", Val: host.Self}, {Name: "resourcePool", Val: pool},
			{Name: "config.files.vmPathName", Val: vmx}, {Name: "summary.config.vmPathName", Val: vmx},
		}}, nil
	})
	if fault != nil {
		return fault
	}
	v.unlink(c, m.Self, was)
	v.relist(c, m.VirtualMachine)
	var is *simulator.VirtualMachine
	c.WithLock(m.VirtualMachine, func() { is = m.around() })
	v.link(c, m.Self, is)
	v.stir.beat()
	return nil
}

// around is where the VM is now, for link and unlink; the VM is locked.
func (m *machine) around() *simulator.VirtualMachine {
	vm := &simulator.VirtualMachine{}
	vm.Datastore = slices.Clone(m.Datastore)
	if m.Runtime.Host != nil {
		h := *m.Runtime.Host
		vm.Runtime.Host = &h
	}
	if m.ResourcePool != nil {
		p := *m.ResourcePool
		vm.ResourcePool = &p
	}
	return vm
}

// destination is the host and the pool that a VM goes to. A host of another
// cluster needs a pool there.
func (m *machine) destination(c *simulator.Context, to move) (host *simulator.HostSystem, pool ref, fault types.BaseMethodFault) {
	v := m.v
	var at, in ref
	c.WithLock(m.VirtualMachine, func() { at, in = *m.Runtime.Host, *m.ResourcePool })
	if to.host != nil {
		at = *to.host
	}
	host, ok := v.vim.Get(at).(*simulator.HostSystem)
	if !ok {
		return nil, ref{}, &types.InvalidArgument{InvalidProperty: "host"}
	}
	if to.pool != nil {
		in = *to.pool
	}
	p, ok := v.vim.Get(in).(*simulator.ResourcePool)
	if !ok {
		return nil, ref{}, &types.InvalidArgument{InvalidProperty: "pool"}
	}
	if host.Parent != nil && p.Owner == *host.Parent {
		return host, in, nil
	}
	owner, ok := v.vim.Get(p.Owner).(*simulator.ClusterComputeResource)
	if to.host == nil && ok { // the pool says which cluster
		for _, r := range owner.Host {
			if h, ok := v.vim.Get(r).(*simulator.HostSystem); ok && v.takesVM(c, h, "") == nil {
				return h, in, nil
			}
		}
	}
	if to.pool == nil { // the host says which cluster
		if cluster := v.computeOf(host); cluster != nil && cluster.ResourcePool != nil {
			return host, *cluster.ResourcePool, nil
		}
	}
	return nil, ref{}, &types.InvalidArgument{InvalidProperty: "pool"}
}

func (v *VCenter) store(r ref) *simulator.Datastore {
	d, _ := v.vim.Get(r).(*simulator.Datastore)
	return d
}

// relocated is the hardware of a VM whose own files go to other datastores,
// and the path of its file then.
func (m *machine) relocated(vm *mo.VirtualMachine, to move) (devices []types.BaseVirtualDevice, vmx string, fault types.BaseMethodFault) {
	vmx = vm.Config.Files.VmPathName
	if to.datastore != nil {
		vmx = onto(vmx, m.v.store(*to.datastore))
	}
	devices = slices.Clone(vm.Config.Hardware.Device)
	for i, dev := range devices {
		d, ok := dev.(*types.VirtualDisk)
		if !ok {
			continue
		}
		target := to.datastore
		for _, l := range to.disks {
			if l.DiskId == d.Key {
				target = &l.Datastore
			}
		}
		b, ok := d.Backing.(*types.VirtualDiskFlatVer2BackingInfo)
		if target == nil || !ok || d.VDiskId != nil {
			continue
		}
		ds := m.v.store(*target)
		if ds == nil {
			return nil, "", &types.InvalidArgument{InvalidProperty: "spec.disk.datastore"}
		}
		n, c := *d, *b
		c.FileName, c.Datastore = onto(b.FileName, ds), &ds.Self
		n.Backing = &c
		devices[i] = &n
	}
	return devices, vmx, nil
}

// onto is a path on another datastore.
func onto(name string, ds *simulator.Datastore) string {
	var p object.DatastorePath
	if !p.FromString(name) {
		return name
	}
	p.Datastore = ds.Name
	return p.String()
}

// reaches says whether a host reaches all files of a VM. live: the VM moves
// while it runs.
func (v *VCenter) reaches(h *simulator.HostSystem, devices []types.BaseVirtualDevice, vmx string, live bool) types.BaseMethodFault {
	mounted := func(r *ref, name string) (missing string, ok bool) {
		if r != nil {
			if d := v.store(*r); d != nil {
				return d.Name, slices.Contains(h.Datastore, *r)
			}
		}
		var p object.DatastorePath
		p.FromString(name)
		return p.Datastore, v.datastoreNamed(p.Datastore, h) != nil
	}
	inaccessible := func(name string) types.LocalizedMethodFault {
		f := &types.InaccessibleDatastore{}
		f.Name = name
		return types.LocalizedMethodFault{Fault: f, LocalizedMessage: textOf(f)}
	}
	if name, ok := mounted(nil, vmx); !ok {
		return &types.CannotAccessVmConfig{Reason: inaccessible(name)}
	}
	for _, dev := range devices {
		switch d := dev.(type) {
		case *types.VirtualDisk:
			b, ok := d.Backing.(types.BaseVirtualDeviceFileBackingInfo)
			if !ok {
				continue
			}
			f := b.GetVirtualDeviceFileBackingInfo()
			if name, ok := mounted(f.Datastore, f.FileName); !ok {
				fault := &types.CannotAccessVmDisk{Fault: inaccessible(name)}
				fault.Device = "disk"
				if d.DeviceInfo != nil {
					fault.Device = d.DeviceInfo.GetDescription().Label
				}
				fault.Backing = f.FileName
				return fault
			}
		case types.BaseVirtualSCSIController:
			if live && d.GetVirtualSCSIController().SharedBus == types.VirtualSCSISharingVirtualSharing {
				return &types.SharedBusControllerNotSupported{}
			}
		}
	}
	return nil
}

// CloneVMTask implements CloneVM_Task.
func (m *machine) CloneVMTask(ctx *simulator.Context, req *types.CloneVM_Task) soap.HasFault {
	r := *req
	return &methods.CloneVM_TaskBody{Res: &types.CloneVM_TaskResponse{Returnval: m.occupied(ctx, "CloneVM_Task", true, func(ctx context.Context, c *simulator.Context, _ ref) (types.AnyType, types.BaseMethodFault) {
		return answer(m.clone(ctx, c, r))
	})}}
}

// clone copies the VM. Its volumes are copied as plain disks: a clone shares
// none, and CNS knows of none.
func (m *machine) clone(ctx context.Context, c *simulator.Context, req types.CloneVM_Task) (ref, types.BaseMethodFault) {
	v := m.v
	if req.Spec.Template || req.Spec.Location.Service != nil || len(req.Spec.Location.DeviceChange) > 0 {
		return ref{}, &types.NotSupported{}
	}
	if fault := vmName(req.Name); fault != nil {
		return ref{}, fault
	}
	var config types.VirtualMachineConfigInfo
	var home string
	var at move
	var fault types.BaseMethodFault
	c.WithLock(m.VirtualMachine, func() {
		fault = m.connected()
		config = *m.Config
		if req.Spec.Snapshot != nil {
			s, ok := v.vim.Get(*req.Spec.Snapshot).(*vmSnapshot)
			if !ok || s.Vm != m.Self {
				fault = &types.InvalidArgument{InvalidProperty: "spec.snapshot"}
				return
			}
			config = s.Config
		}
		home = config.Files.VmPathName
		host, pool := *m.Runtime.Host, *m.ResourcePool
		at = move{host: &host, pool: &pool}
	})
	if fault != nil {
		return ref{}, fault
	}
	l := req.Spec.Location
	if l.Host != nil {
		at.host = l.Host
	} else if l.Pool != nil {
		at.host = nil
	}
	if l.Pool != nil {
		at.pool = l.Pool
	}
	var p object.DatastorePath
	p.FromString(home)
	if l.Datastore != nil {
		ds := v.store(*l.Datastore)
		if ds == nil {
			return ref{}, &types.InvalidArgument{InvalidProperty: "spec.location.datastore"}
		}
		p.Datastore = ds.Name
	}
	place, fault := v.settle(c, req.Folder, at.pool, at.host, p.Datastore)
	if fault != nil {
		return ref{}, fault
	}
	if other, taken := v.named(c, place.folder, req.Name); taken {
		return ref{}, &types.DuplicateName{Name: req.Name, Object: other}
	}
	vmx, fault := v.vmxPath(c, object.DatastorePath{Datastore: p.Datastore}, req.Name)
	if fault != nil {
		return ref{}, fault
	}
	id := v.nextID(req.Name)
	fresh := newConfig(req.Name, biosUUID(v.cfg.Seed, id), instanceUUID(v.cfg.Seed, id), vmx, nil)
	config.Name, config.Uuid, config.InstanceUuid, config.Files = fresh.Name, fresh.Uuid, fresh.InstanceUuid, fresh.Files
	config.ChangeVersion, config.Modified, config.CreateDate = fresh.ChangeVersion, fresh.Modified, fresh.CreateDate
	config.ExtraConfig = slices.Clone(config.ExtraConfig)
	config.Hardware.Device = v.copied(config.Hardware.Device, vmx, v.datastoreNamed(p.Datastore, place.host), id)
	vm := v.assemble(&config, place, types.VirtualMachinePowerStatePoweredOff)
	if spec := req.Spec.Config; spec != nil {
		e := &edit{v: v, c: c, host: place.host, seed: id}
		s := *spec
		s.Name, s.ChangeVersion = "", ""
		shape, fault := e.plan(&vm.VirtualMachine, &s)
		if fault != nil {
			return ref{}, fault
		}
		vm.Self.Type = "VirtualMachine"
		config.Hardware.Device = shape.Devices
		mo.ApplyPropertyChange(&vm.VirtualMachine, shape.Changes)
	}
	vm.Datastore = v.datastoresOf(&config)
	vm.Summary.Config.NumVirtualDisks, vm.Summary.Config.NumEthernetCards = count(config.Hardware.Device)
	if ctx.Err() != nil {
		return ref{}, &types.RequestCanceled{}
	}
	var self ref
	if fault := v.face.Adopt(ctx, vm, func() { self = v.install(vm, "") }); fault != nil {
		return ref{}, fault
	}
	if req.Spec.PowerOn {
		k := &machine{VirtualMachine: vm, v: v}
		c.WithLock(vm, func() { fault = k.power(c, types.VirtualMachinePowerStatePoweredOn) })
	}
	return self, fault
}

// copied is the hardware of a copy: disks of its own, next to its own file.
func (v *VCenter) copied(devices []types.BaseVirtualDevice, vmx string, ds *simulator.Datastore, id string) (out []types.BaseVirtualDevice) {
	stem := strings.TrimSuffix(vmx, ".vmx")
	n := 0
	for _, dev := range devices {
		d := copyOf(dev)
		switch x := d.(type) {
		case *types.VirtualDisk:
			b, ok := x.Backing.(*types.VirtualDiskFlatVer2BackingInfo)
			if !ok {
				continue
			}
			c := *b
			c.FileName = stem + ".vmdk"
			if n > 0 {
				c.FileName = stem + "_" + strconv.Itoa(n) + ".vmdk"
			}
			n++
			c.Datastore, c.Parent, c.BackingObjectId, c.Sharing = &ds.Self, nil, nil, string(types.VirtualDiskSharingSharingNone)
			c.Uuid = pageUUID(identity(v.cfg.Seed, "disk", id+"/"+c.FileName))
			x.Backing, x.VDiskId = &c, nil
		case types.BaseVirtualEthernetCard:
			m := identity(v.cfg.Seed, "mac", id+"/"+strconv.Itoa(len(out)))
			macOf(m, x.GetVirtualEthernetCard())
		}
		out = append(out, d)
	}
	return out
}

package vcenter

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// shelved is what the files of a VM say that is not registered.
type shelved struct {
	config    *types.VirtualMachineConfigInfo
	node      string // that it was, or ""
	at        place
	snapshots *types.VirtualMachineSnapshotInfo
	points    map[ref]*vmSnapshot // the snapshots' own objects
}

// DestroyTask implements Destroy_Task. Disks that CNS attached stay as
// volumes: it sets keepAfterDeleteVm.
func (m *machine) DestroyTask(ctx *simulator.Context, _ *types.Destroy_Task) soap.HasFault {
	return &methods.Destroy_TaskBody{Res: &types.Destroy_TaskResponse{Returnval: m.start(ctx, "Destroy_Task", func(ctx context.Context, c *simulator.Context, _ ref) (types.AnyType, types.BaseMethodFault) {
		return nil, m.destroy(ctx, c)
	})}}
}

// destroy deletes the VM with its files: no lock of it is held. First class
// disks without keepAfterDeleteVm go with it
// (kubernetes-sigs/vsphere-csi-driver#221, PR #2129: CNS sets the flag).
func (m *machine) destroy(ctx context.Context, c *simulator.Context) (fault types.BaseMethodFault) {
	var devices []types.BaseVirtualDevice
	var points []*vmSnapshot
	c.WithLock(m.VirtualMachine, func() {
		devices = slices.Clone(m.Config.Hardware.Device)
		for _, r := range snapshotsOf(m.Snapshot) {
			if s, ok := m.v.vim.Get(r).(*vmSnapshot); ok {
				points = append(points, s)
			}
		}
		_, fault = m.remove(c)
	})
	if fault != nil {
		return fault
	}
	for _, s := range points {
		m.v.face.Unkeep(s.content(), dependents(&s.Config))
	}
	m.v.face.Bury(ctx, c, devices)
	return nil
}

// UnregisterVM implements the method of the API. The VM is locked by ctx.
func (m *machine) UnregisterVM(ctx *simulator.Context, _ *types.UnregisterVM) soap.HasFault {
	if f := m.unregister(ctx); f != nil {
		return &methods.UnregisterVMBody{Fault_: simulator.Fault("", f)}
	}
	return &methods.UnregisterVMBody{Res: &types.UnregisterVMResponse{}}
}

// unregister takes the VM out of the inventory; its files stay, and with them
// what disks it has. Unverified: that CNS takes the volumes of such a VM for
// detached.
func (m *machine) unregister(ctx *simulator.Context) types.BaseMethodFault {
	s := shelved{config: m.Config, snapshots: m.Snapshot, points: map[ref]*vmSnapshot{}}
	s.at = place{folder: *m.Parent, pool: *m.ResourcePool}
	s.at.host, _ = m.v.vim.Get(*m.Runtime.Host).(*simulator.HostSystem)
	for _, r := range snapshotsOf(m.Snapshot) {
		if p, ok := m.v.vim.Get(r).(*vmSnapshot); ok {
			s.points[r] = p
		}
	}
	pins := m.v.pinsOf(m.Snapshot)
	node, f := m.remove(ctx)
	if f != nil {
		return f
	}
	s.node = node
	m.v.face.Pin(onShelf(s.config.Files.VmPathName), pins) // the files still do
	m.v.mu.Lock()
	defer m.v.mu.Unlock()
	m.v.inv.shelf[s.config.Files.VmPathName] = s
	return nil
}

// onShelf names what pins the volumes of a VM that is not registered.
func onShelf(vmx string) ref { return ref{Type: "VirtualMachine", Value: "unregistered " + vmx} }

// vmFolder answers the methods of a folder that put VMs into it. vcsim's make
// and read files.
type vmFolder struct {
	*simulator.Folder
	v *VCenter
}

// Reference implements mo.Reference.
func (f *vmFolder) Reference() ref { return f.Self }

// RegisterVMTask implements RegisterVM_Task: a VM that was unregistered comes
// back, with its BIOS uuid and its disks but another reference.
func (f *vmFolder) RegisterVMTask(ctx *simulator.Context, req *types.RegisterVM_Task) soap.HasFault {
	r := *req
	return &methods.RegisterVM_TaskBody{Res: &types.RegisterVM_TaskResponse{Returnval: f.v.startTaskAt(ctx, "RegisterVM_Task", f.Self, f.Name, false, func(ctx context.Context, c *simulator.Context, _ ref) (types.AnyType, types.BaseMethodFault) {
		return answer(f.v.register(ctx, c, r))
	})}}
}

// answer is the result of a task, or none with a fault.
func answer(r ref, fault types.BaseMethodFault) (types.AnyType, types.BaseMethodFault) {
	if fault != nil {
		return nil, fault
	}
	return r, nil
}

func (v *VCenter) register(ctx context.Context, c *simulator.Context, req types.RegisterVM_Task) (ref, types.BaseMethodFault) {
	if req.AsTemplate {
		return ref{}, &types.NotSupported{}
	}
	var p object.DatastorePath
	if !p.FromString(req.Path) || !strings.HasSuffix(p.Path, ".vmx") {
		return ref{}, &types.InvalidDatastorePath{InvalidDatastore: types.InvalidDatastore{Name: p.Datastore}, DatastorePath: req.Path}
	}
	at, fault := v.settle(c, req.This, req.Pool, req.Host, p.Datastore)
	if fault != nil {
		return ref{}, fault
	}
	v.mu.Lock()
	s, ok := v.inv.shelf[req.Path]
	v.mu.Unlock()
	if !ok {
		for _, o := range v.vim.All("VirtualMachine") {
			if vm, is := o.(*simulator.VirtualMachine); is {
				taken := false
				c.WithLock(vm, func() { taken = vm.Config != nil && vm.Config.Files.VmPathName == req.Path })
				if taken {
					return ref{}, &types.AlreadyExists{Name: vm.Name}
				}
			}
		}
		return ref{}, &types.NotFound{}
	}
	config := *s.config
	if req.Name != "" {
		config.Name = req.Name
	}
	if other, taken := v.named(c, at.folder, config.Name); taken {
		return ref{}, &types.DuplicateName{Name: config.Name, Object: other}
	}
	vm := v.assemble(&config, at, types.VirtualMachinePowerStatePoweredOff)
	v.face.Pin(onShelf(req.Path), nil)
	var self ref
	taken := false
	fault = v.face.Adopt(ctx, vm, func() {
		v.mu.Lock()
		_, there := v.inv.shelf[req.Path]
		delete(v.inv.shelf, req.Path)
		v.mu.Unlock()
		if taken = !there; taken {
			return
		}
		self = v.install(vm, s.node)
	})
	if fault != nil {
		return ref{}, fault
	}
	if taken { // another call was faster
		return ref{}, &types.AlreadyExists{Name: config.Name}
	}
	v.restoreSnapshots(c, vm, s)
	return self, nil
}

// settle finds where a VM goes: its folder, pool and a host of the pool that
// takes VMs and reaches the datastore of its files.
func (v *VCenter) settle(c *simulator.Context, folder ref, pool, host *ref, datastore string) (place, types.BaseMethodFault) {
	at := place{folder: folder}
	f, ok := v.vim.Get(folder).(*simulator.Folder)
	if !ok || !slices.Contains(f.ChildType, "VirtualMachine") {
		return at, &types.NotSupported{}
	}
	if v.datastoreNamed(datastore, nil) == nil {
		return at, &types.InvalidDatastore{Name: datastore}
	}
	if host != nil {
		if at.host, ok = v.vim.Get(*host).(*simulator.HostSystem); !ok {
			return at, &types.InvalidArgument{InvalidProperty: "host"}
		}
	}
	cluster := v.computeOf(at.host)
	if pool != nil {
		p, ok := v.vim.Get(*pool).(*simulator.ResourcePool)
		if !ok {
			return at, &types.InvalidArgument{InvalidProperty: "pool"}
		}
		owner, _ := v.vim.Get(p.Owner).(*simulator.ClusterComputeResource)
		if owner == nil || cluster != nil && cluster != owner {
			return at, &types.InvalidArgument{InvalidProperty: "host"}
		}
		cluster, at.pool = owner, *pool
	}
	if cluster == nil || cluster.ResourcePool == nil {
		return at, &types.InvalidArgument{InvalidProperty: "pool"}
	}
	if pool == nil {
		at.pool = *cluster.ResourcePool
	}
	if at.host != nil {
		return at, v.takesVM(c, at.host, datastore)
	}
	var why types.BaseMethodFault = &types.InvalidArgument{InvalidProperty: "pool"}
	for _, r := range cluster.Host {
		h, ok := v.vim.Get(r).(*simulator.HostSystem)
		if !ok {
			continue
		}
		if why = v.takesVM(c, h, datastore); why == nil {
			at.host = h
			return at, nil
		}
	}
	return at, why
}

// takesVM says what stands against a VM on a host.
func (v *VCenter) takesVM(c *simulator.Context, h *simulator.HostSystem, datastore string) (fault types.BaseMethodFault) {
	c.WithLock(h, func() {
		switch {
		case h.Runtime.ConnectionState != types.HostSystemConnectionStateConnected:
			fault = &types.HostNotConnected{}
		case h.Runtime.InMaintenanceMode:
			fault = &types.InvalidHostState{Host: &h.Self}
		case datastore != "" && v.datastoreNamed(datastore, h) == nil:
			f := &types.InaccessibleDatastore{}
			f.Name = datastore
			fault = f
		}
	})
	return fault
}

// CreateVMTask implements CreateVM_Task.
func (f *vmFolder) CreateVMTask(ctx *simulator.Context, req *types.CreateVM_Task) soap.HasFault {
	r := *req
	return &methods.CreateVM_TaskBody{Res: &types.CreateVM_TaskResponse{Returnval: f.v.startTaskAt(ctx, "CreateVM_Task", f.Self, f.Name, false, func(ctx context.Context, c *simulator.Context, _ ref) (types.AnyType, types.BaseMethodFault) {
		return answer(f.v.create(ctx, c, r))
	})}}
}

func (v *VCenter) create(ctx context.Context, c *simulator.Context, req types.CreateVM_Task) (ref, types.BaseMethodFault) {
	spec := req.Config
	if fault := vmName(spec.Name); fault != nil {
		return ref{}, fault
	}
	var p object.DatastorePath
	if spec.Files == nil || !p.FromString(spec.Files.VmPathName) {
		return ref{}, &types.InvalidArgument{InvalidProperty: "configSpec.files.vmPathName"}
	}
	at, fault := v.settle(c, req.This, &req.Pool, req.Host, p.Datastore)
	if fault != nil {
		return ref{}, fault
	}
	if other, taken := v.named(c, at.folder, spec.Name); taken {
		return ref{}, &types.DuplicateName{Name: spec.Name, Object: other}
	}
	id := v.nextID(spec.Name)
	vmx, fault := v.vmxPath(c, p, spec.Name)
	if fault != nil {
		return ref{}, fault
	}
	config := newConfig(spec.Name, biosUUID(v.cfg.Seed, id), instanceUUID(v.cfg.Seed, id), vmx, bareDevices())
	config.GuestId, config.GuestFullName = "otherGuest", "Other (32-bit)"
	config.Hardware.NumCPU, config.Hardware.MemoryMB = 1, 32
	if spec.Version != "" {
		if _, ok := strings.CutPrefix(spec.Version, "vmx-"); !ok {
			return ref{}, &types.InvalidArgument{InvalidProperty: "configSpec.version"}
		}
		config.Version = spec.Version
	}
	vm := v.assemble(config, at, types.VirtualMachinePowerStatePoweredOff)
	e := &edit{v: v, c: c, host: at.host, seed: id}
	shape, fault := e.plan(&vm.VirtualMachine, &spec)
	if fault != nil {
		return ref{}, fault
	}
	config.Hardware.Device = shape.Devices
	vm.Self.Type = "VirtualMachine" // ApplyPropertyChange goes by it
	mo.ApplyPropertyChange(&vm.VirtualMachine, shape.Changes)
	vm.Datastore = v.datastoresOf(config)
	vm.Summary.Config.NumVirtualDisks, vm.Summary.Config.NumEthernetCards = count(shape.Devices)
	var self ref
	if fault := v.face.Adopt(ctx, vm, func() { self = v.install(vm, "") }); fault != nil {
		return ref{}, fault
	}
	return self, nil
}

// vmName checks the name of a VM: at most 80 characters.
func vmName(name string) types.BaseMethodFault {
	if name == "" || len(name) > 80 {
		return &types.InvalidName{Name: name}
	}
	return nil
}

// vmxPath is where the file of a new VM lies: what was asked for, or a
// directory of its name on the datastore.
func (v *VCenter) vmxPath(c *simulator.Context, p object.DatastorePath, name string) (string, types.BaseMethodFault) {
	taken := map[string]bool{}
	v.mu.Lock()
	for path := range v.inv.shelf {
		taken[path] = true
	}
	v.mu.Unlock()
	for _, o := range v.vim.All("VirtualMachine") {
		if vm, ok := o.(*simulator.VirtualMachine); ok {
			c.WithLock(vm, func() {
				if vm.Config != nil {
					taken[vm.Config.Files.VmPathName] = true
				}
			})
		}
	}
	if strings.HasSuffix(p.Path, ".vmx") {
		if taken[p.String()] {
			return "", &types.FileAlreadyExists{FileFault: types.FileFault{File: p.String()}}
		}
		return p.String(), nil
	}
	name = strings.NewReplacer("/", "%2f", "\\", "%5c", "[", "", "]", "").Replace(name)
	dir := p.Path
	if dir == "" {
		dir = name
	}
	for i := 0; ; i++ {
		d := dir
		if i > 0 {
			d = fmt.Sprintf("%s_%d", dir, i)
		}
		q := object.DatastorePath{Datastore: p.Datastore, Path: path.Join(d, name+".vmx")}
		if !taken[q.String()] {
			return q.String(), nil
		}
	}
}

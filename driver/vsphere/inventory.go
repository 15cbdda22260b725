package vsphere

import (
	"context"
	"path"
	"slices"
	"strings"

	"github.com/vmware/govmomi/find"
	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/view"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/driver/controller"
)

// datacenter is one that the configuration names, with a view of what is in
// it that lives as long as the session.
type datacenter struct {
	ref  types.ManagedObjectReference
	name string
	view *view.ContainerView
}

// datacenters returns the configured ones, or all.
func (b *Backend) datacenters(ctx context.Context, s *session) ([]datacenter, error) {
	s.mu.Lock()
	known := s.centers
	s.mu.Unlock()
	if known != nil {
		return known, nil
	}
	vm := view.NewManager(s.vim)
	all, err := vm.CreateContainerView(ctx, s.vim.ServiceContent.RootFolder, []string{"Datacenter"}, true)
	if err != nil {
		return nil, err
	}
	var dcs []mo.Datacenter
	err = all.Retrieve(ctx, []string{"Datacenter"}, []string{"name"}, &dcs)
	if derr := all.Destroy(ctx); err == nil && faultName(wire(derr)) != "ManagedObjectNotFound" {
		err = derr // a view that is gone is no sign of a dead session: its destruction may have come twice
	}
	if err != nil {
		return nil, err
	}
	var out []datacenter
	add := func(ref types.ManagedObjectReference, name string) error {
		if slices.ContainsFunc(out, func(d datacenter) bool { return d.ref == ref }) {
			return nil
		}
		v, err := vm.CreateContainerView(ctx, ref, []string{"VirtualMachine", "HostSystem", "Datastore"}, true)
		if err == nil {
			out = append(out, datacenter{ref, name, v})
		}
		return err
	}
	want := b.conf().VCenter.Datacenters
	if len(want) == 0 {
		for _, dc := range dcs {
			if err := add(dc.Self, dc.Name); err != nil {
				return nil, err
			}
		}
	}
	for _, name := range want {
		n := 0
		if strings.Contains(name, "/") {
			dc, err := find.NewFinder(s.vim).Datacenter(ctx, path.Clean(name))
			if err != nil {
				return nil, controller.Errorf(controller.Internal, "[VirtualCenter] datacenters: %q: %w", name, err)
			}
			n++
			if err := add(dc.Reference(), dc.Name()); err != nil {
				return nil, err
			}
		}
		for _, dc := range dcs {
			if dc.Name == name {
				n++
				if err := add(dc.Self, dc.Name); err != nil {
					return nil, err
				}
			}
		}
		if n == 0 {
			var have []string
			for _, dc := range dcs {
				have = append(have, dc.Name)
			}
			return nil, controller.Errorf(controller.Internal, "[VirtualCenter] datacenters: %q is not in the vCenter, it has %s", name, strings.Join(have, ", "))
		}
	}
	s.mu.Lock()
	s.centers = out
	s.mu.Unlock()
	return out, nil
}

// all retrieves the properties of all objects of a kind.
func (b *Backend) all(ctx context.Context, s *session, kind string, props []string) ([]types.ObjectContent, error) {
	dcs, err := b.datacenters(ctx, s)
	if err != nil {
		return nil, err
	}
	var out []types.ObjectContent
	for _, dc := range dcs {
		var part []types.ObjectContent
		if err := dc.view.Retrieve(ctx, []string{kind}, props, &part); err != nil {
			return nil, err
		}
		out = append(out, part...)
	}
	return out, nil
}

// machine is a virtual machine and the volumes in its hardware, which is the
// truth about attachments.
type machine struct {
	ref  types.ManagedObjectReference
	name string
	uuid string // BIOS uuid, lower case: the node id
	// disks are the disk uuids by volume id.
	disks map[string]string
	// slots are the free units of its SCSI controllers and of those that may
	// still be added.
	slots int
}

var machineProps = []string{"name", "config.uuid", "config.hardware.device"}

func newMachine(vm mo.VirtualMachine) *machine {
	m := &machine{ref: vm.Self, name: vm.Name, disks: map[string]string{}}
	if vm.Config == nil {
		return m
	}
	m.uuid = strings.ToLower(vm.Config.Uuid)
	const controllers = 4
	used, units := 0, 0
	for _, d := range vm.Config.Hardware.Device {
		switch d := d.(type) {
		case types.BaseVirtualSCSIController:
			used++
			units += 15
		case *types.VirtualDisk:
			units--
			if d.VDiskId == nil {
				continue
			}
			if uuid, ok := backingUUID(d.Backing); ok {
				m.disks[strings.ToLower(d.VDiskId.Id)] = diskUUID(uuid)
			}
		}
	}
	m.slots = units + 15*max(0, controllers-used)
	return m
}

// backingUUID reads the uuid of any kind of disk backing.
func backingUUID(b types.BaseVirtualDeviceBackingInfo) (string, bool) {
	switch b := b.(type) {
	case *types.VirtualDiskFlatVer2BackingInfo:
		return b.Uuid, true
	case *types.VirtualDiskSeSparseBackingInfo:
		return b.Uuid, true
	case *types.VirtualDiskSparseVer2BackingInfo:
		return b.Uuid, true
	case *types.VirtualDiskRawDiskMappingVer1BackingInfo:
		return b.Uuid, true
	}
	return "", false
}

// machine finds a VM by its BIOS uuid. nil without an error means that the
// vCenter has looked and there is none.
func (b *Backend) machine(ctx context.Context, uuid string) (m *machine, err error) {
	err = b.read(ctx, func(ctx context.Context, s *session) error {
		m = nil
		dcs, err := b.datacenters(ctx, s)
		if err != nil {
			return err
		}
		for _, dc := range dcs {
			res, err := methods.FindByUuid(ctx, s.vim, &types.FindByUuid{This: *s.vim.ServiceContent.SearchIndex, Datacenter: &dc.ref,
				Uuid: uuid, VmSearch: true, InstanceUuid: types.NewBool(false)})
			if err != nil {
				return err
			}
			if res.Returnval == nil {
				continue
			}
			var vm mo.VirtualMachine
			err = property.DefaultCollector(s.vim).RetrieveOne(ctx, *res.Returnval, machineProps, &vm)
			if f := wire(err); faultName(f) == "ManagedObjectNotFound" && !dead(f) {
				continue // deleted since
			}
			if err != nil {
				return err
			}
			m = newMachine(vm)
			return nil
		}
		return nil
	})
	if err != nil {
		return nil, failf(err, "look-up of node %s", uuid)
	}
	return m, nil
}

// machines lists all VMs. It is for lists and for naming who holds a volume:
// no operation that succeeds pays for it.
func (b *Backend) machines(ctx context.Context) (ms []*machine, err error) {
	err = b.read(ctx, func(ctx context.Context, s *session) error {
		ms = nil
		content, err := b.all(ctx, s, "VirtualMachine", machineProps)
		if err != nil {
			return err
		}
		var vms []mo.VirtualMachine
		if err := mo.LoadObjectContent(content, &vms); err != nil {
			return err
		}
		for _, vm := range vms {
			ms = append(ms, newMachine(vm))
		}
		return nil
	})
	if err != nil {
		return nil, failf(err, "list of virtual machines")
	}
	slices.SortFunc(ms, func(a, c *machine) int { return strings.Compare(a.uuid, c.uuid) })
	return ms, nil
}

// holders returns the VMs that have the volume.
func (b *Backend) holders(ctx context.Context, volume string) ([]*machine, error) {
	ms, err := b.machines(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(ms, func(m *machine) bool { _, ok := m.disks[strings.ToLower(volume)]; return !ok }), nil
}

// datastore is a datastore and the hosts that reach it.
type datastore struct {
	ref       types.ManagedObjectReference
	name, url string
	free      int64
	capacity  int64
	usable    string // why it isn't, or ""
	hosts     map[types.ManagedObjectReference]bool
}

// host is a host that can run nodes.
type host struct {
	ref    types.ManagedObjectReference
	parent types.ManagedObjectReference
	name   string
}

// suspended says whether a custom attribute of a datastore asks for no new
// volumes there: tools of CNS set one with this value while they move volumes
// away.
func suspended(v types.BaseCustomFieldValue) bool {
	s, ok := v.(*types.CustomFieldStringValue)
	return ok && s.Value == "cns.vmware.com/datastoreSuspended"
}

// storage lists the datastores, and the hosts that are connected and not in
// maintenance.
func (b *Backend) storage(ctx context.Context) (ds []datastore, hs []host, err error) {
	err = b.read(ctx, func(ctx context.Context, s *session) error {
		ds, hs = nil, nil
		content, err := b.all(ctx, s, "Datastore", []string{"name", "summary", "host", "customValue"})
		if err != nil {
			return err
		}
		var stores []mo.Datastore
		if err := mo.LoadObjectContent(content, &stores); err != nil {
			return err
		}
		for _, d := range stores {
			x := datastore{ref: d.Self, name: d.Name, url: d.Summary.Url, free: d.Summary.FreeSpace, capacity: d.Summary.Capacity,
				hosts: map[types.ManagedObjectReference]bool{}}
			switch {
			case !d.Summary.Accessible:
				x.usable = "not accessible"
			case d.Summary.MaintenanceMode != "" && d.Summary.MaintenanceMode != string(types.DatastoreSummaryMaintenanceModeStateNormal):
				x.usable = d.Summary.MaintenanceMode
			case slices.ContainsFunc(d.CustomValue, suspended):
				x.usable = "suspended"
			}
			for _, h := range d.Host {
				i := h.MountInfo
				ok := (i.Mounted == nil || *i.Mounted) && (i.Accessible == nil || *i.Accessible) && i.AccessMode != string(types.HostMountModeReadOnly)
				if ok {
					x.hosts[h.Key] = true
				}
			}
			ds = append(ds, x)
		}
		if content, err = b.all(ctx, s, "HostSystem", []string{"name", "parent", "runtime.connectionState", "runtime.inMaintenanceMode"}); err != nil {
			return err
		}
		var hosts []mo.HostSystem
		if err := mo.LoadObjectContent(content, &hosts); err != nil {
			return err
		}
		for _, h := range hosts {
			if h.Runtime.ConnectionState == types.HostSystemConnectionStateConnected && !h.Runtime.InMaintenanceMode && h.Parent != nil {
				hs = append(hs, host{h.Self, *h.Parent, h.Name})
			}
		}
		return nil
	})
	if err != nil {
		return nil, nil, failf(err, "list of datastores and hosts")
	}
	// The emptiest first; names decide between equals, so that the choice is
	// the same each time.
	slices.SortFunc(ds, func(a, c datastore) int {
		if a.free != c.free {
			if a.free > c.free {
				return -1
			}
			return 1
		}
		return strings.Compare(a.name, c.name)
	})
	return ds, hs, nil
}

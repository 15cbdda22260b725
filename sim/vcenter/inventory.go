package vcenter

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/simulator/esx"
	"github.com/vmware/govmomi/simulator/vpx"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

// datacenter is the name of the datacenter where the configuration names none.
const datacenter = "DC0"

// center is a datacenter.
type center struct {
	Datacenter
	obj     *simulator.Datacenter
	network ref
}

// zone is a cluster with its hosts.
type zone struct {
	Cluster
	center  *center
	cluster *simulator.ClusterComputeResource
	hosts   []*simulator.HostSystem // as in Cluster.Hosts
	vms     int                     // placed so far
}

// inventory is what build made. VMs come and go under VCenter.mu.
type inventory struct {
	centers    []*center
	zones      []*zone
	datastores []*simulator.Datastore
	labels     map[ref]string                         // of datastores
	vms        map[string]*simulator.VirtualMachine   // by node name
	nodeOf     map[ref]string                         // VMs of nodes
	byUUID     map[string][]*simulator.VirtualMachine // by BIOS uuid, which copies may share
	made       int                                    // VMs that administrators made so far
	points     int                                    // snapshots of VMs so far
	shelf      map[string]shelved                     // VMs that are not registered, by the path of their file
}

// licences guards vcsim's one package variable that a starting vCenter
// appends to (simulator.EvalLicense, in LicenseManager's init) and that each
// new host or cluster copies. features is what it holds at first: without
// putting that back it would grow with each vCenter of the process.
var (
	licences sync.RWMutex
	features = slices.Clone(simulator.EvalLicense.Properties)
)

// newService makes an empty vCenter. The managers of vcsim share templates
// between instances; what they change is copied.
func newService(cfg Config) (*simulator.Service, types.ServiceContent) {
	content := vpx.ServiceContent
	build := "24022515" // of 8.0 Update 3
	content.About.Version = cfg.Version
	content.About.ApiVersion = apiVersion(cfg.Version)
	content.About.Build = build
	content.About.FullName = fmt.Sprintf("VMware vCenter Server %s build-%s", cfg.Version, build)
	content.About.LicenseProductVersion = strings.Join(strings.Split(cfg.Version, ".")[:2], ".")
	ctx := simulator.NewContext()
	licences.Lock()
	simulator.EvalLicense.Properties = slices.Clone(features)
	ctx, si := simulator.NewServiceInstance(ctx, content, vpx.RootFolder)
	licences.Unlock()
	si.Content.About.InstanceUuid = uuidOf(cfg.Seed, "vcenter", "instance")
	settings := ctx.Map.OptionManager()
	own := make([]types.BaseOptionValue, len(settings.Setting))
	for i, s := range settings.Setting {
		c := *s.GetOptionValue()
		own[i] = &c
	}
	settings.Setting = own
	return simulator.New(ctx, si), si.Content
}

// apiVersion has four parts: 8.0.3 is API 8.0.3.0.
func apiVersion(version string) string {
	if strings.Count(version, ".") < 3 {
		return version + ".0"
	}
	return version
}

// build makes the inventory: in the same order each time, so that references
// are the same for the same configuration.
func (v *VCenter) build() error {
	licences.RLock()
	defer licences.RUnlock()
	for _, dc := range v.cfg.Datacenters {
		if err := v.addCenter(dc); err != nil {
			return err
		}
	}
	v.inv.labels = map[ref]string{}
	for _, d := range v.cfg.Datastores {
		v.addDatastore(d)
	}
	for _, n := range v.cfg.Nodes {
		if err := v.addVM(n); err != nil {
			return err
		}
	}
	return nil
}

// addCenter makes a datacenter with its clusters.
func (v *VCenter) addCenter(dc Datacenter) error {
	root := v.vim.Get(v.content.RootFolder).(*simulator.Folder)
	body := root.CreateDatacenter(v.internal(), &types.CreateDatacenter{This: root.Self, Name: dc.Name})
	if f := body.Fault(); f != nil {
		return fmt.Errorf("vcenter: datacenter %s: %s", dc.Name, f.String)
	}
	c := &center{Datacenter: dc, obj: v.vim.Get(body.(*methods.CreateDatacenterBody).Res.Returnval).(*simulator.Datacenter)}
	if len(c.obj.Network) > 0 {
		c.network = c.obj.Network[0]
	}
	v.inv.centers = append(v.inv.centers, c)
	for _, cl := range dc.Clusters {
		if err := v.addZone(c, cl); err != nil {
			return err
		}
	}
	return nil
}

// zonesOf lists the zones of the nodes in order of appearance; nodes without
// one make a zone of their own, "".
func zonesOf(nodes []Node) []string {
	var zs []string
	for _, n := range nodes {
		if !slices.Contains(zs, n.Zone) {
			zs = append(zs, n.Zone)
		}
	}
	if len(zs) == 0 {
		zs = []string{""}
	}
	return zs
}

func (v *VCenter) addZone(dc *center, cl Cluster) error {
	folder := v.vim.Get(dc.obj.HostFolder).(*simulator.Folder)
	body := folder.CreateClusterEx(v.internal(), &types.CreateClusterEx{This: folder.Self, Name: cl.Name})
	if f := body.Fault(); f != nil {
		return fmt.Errorf("vcenter: cluster %s: %s", cl.Name, f.String)
	}
	c := v.vim.Get(body.(*methods.CreateClusterExBody).Res.Returnval).(*simulator.ClusterComputeResource)
	z := &zone{Cluster: cl, center: dc, cluster: c}
	var names []string
	for _, x := range cl.Hosts {
		names = append(names, x.Name)
	}
	hosts, err := v.addHosts(c, names)
	if err != nil {
		return err
	}
	for _, h := range hosts {
		id := uuidOf(v.cfg.Seed, "host", h.Name)
		h.Summary.Hardware.Uuid, h.Hardware.SystemInfo.Uuid = id, id
		h.Datastore, h.Vm = nil, nil
	}
	z.hosts = hosts
	v.inv.zones = append(v.inv.zones, z)
	return nil
}

// addDatastore puts a datastore on the hosts of its zones.
func (v *VCenter) addDatastore(d Datastore) {
	ctx := v.internal()
	label := v.cfg.label(d)
	dc := v.inv.centers[slices.IndexFunc(v.inv.centers, func(c *center) bool { return c.Name == d.Datacenter })]
	url, id := datastoreURL(v.cfg.Seed, label, d.Type), datastoreID(v.cfg.Seed, label, d.Type)
	ds := &simulator.Datastore{}
	ds.Name = d.Name
	ds.Parent = &dc.obj.DatastoreFolder
	info := types.DatastoreInfo{Name: d.Name, Url: url, FreeSpace: d.CapacityBytes, MaxFileSize: 62 << 40, MaxVirtualDiskCapacity: 62 << 40, Timestamp: types.NewTime(time.Now())}
	volume := types.HostFileSystemVolume{Type: d.Type, Name: d.Name, Capacity: d.CapacityBytes}
	switch d.Type {
	case "VMFS":
		ds.Info = &types.VmfsDatastoreInfo{DatastoreInfo: info, Vmfs: &types.HostVmfsVolume{
			HostFileSystemVolume: volume, BlockSizeMb: 1, BlockSize: 1024, MajorVersion: 6, Version: "6.82", Uuid: id,
			Extent: []types.HostScsiDiskPartition{{DiskName: "naa." + strings.ReplaceAll(id, "-", ""), Partition: 1}},
		}}
	case "NFS", "NFS41":
		nas := &types.HostNasVolume{HostFileSystemVolume: volume, RemoteHost: "nfs.csilab.invalid", RemotePath: "/" + d.Name, RemoteHostNames: []string{"nfs.csilab.invalid"}}
		if d.Type == "NFS41" {
			nas.SecurityType = string(types.HostNasVolumeSecurityTypeAUTH_SYS)
		}
		ds.Info = &types.NasDatastoreInfo{DatastoreInfo: info, Nas: nas}
	case "vsan":
		ds.Info = &types.VsanDatastoreInfo{DatastoreInfo: info, MembershipUuid: uuidOf(v.cfg.Seed, "vsan cluster", label)}
	case "VVOL":
		ds.Info = &types.VvolDatastoreInfo{DatastoreInfo: info, VvolDS: &types.HostVvolVolume{HostFileSystemVolume: volume, ScId: id}}
	}
	yes := true
	ds.Summary = types.DatastoreSummary{
		Name: d.Name, Url: url, Capacity: d.CapacityBytes, FreeSpace: d.CapacityBytes,
		Accessible: true, MultipleHostAccess: &yes, Type: d.Type,
		MaintenanceMode: string(types.DatastoreSummaryMaintenanceModeStateNormal),
	}
	ds.Capability = types.DatastoreCapability{
		DirectoryHierarchySupported: true, PerFileThinProvisioningSupported: true,
		RawDiskMappingsSupported: d.Type == "VMFS", StorageIORMSupported: true,
		SeSparseSupported: &yes, TopLevelDirectoryCreateSupported: types.NewBool(d.Type != "vsan"),
		VmfsSparseSupported: types.NewBool(d.Type == "VMFS"), VsanSparseSupported: types.NewBool(d.Type == "vsan"),
	}
	self := v.vim.Put(ds).Reference()
	ds.Summary.Datastore = &ds.Self
	for _, z := range v.inv.zones {
		mounted := false
		for i, h := range z.hosts {
			if !d.mountedOn(z.center.Name, z.Name, h.Name, z.zoneOf(i)) {
				continue
			}
			mounted = true
			ds.Host = append(ds.Host, types.DatastoreHostMount{Key: h.Self, MountInfo: types.HostMountInfo{
				Path: strings.TrimSuffix(strings.TrimPrefix(url, "ds://"), "/"), AccessMode: string(types.HostMountModeReadWrite), Mounted: &yes, Accessible: &yes,
			}})
			h.Datastore = append(h.Datastore, self)
			if dss, ok := v.vim.Get(*h.ConfigManager.DatastoreSystem).(*simulator.HostDatastoreSystem); ok {
				dss.Datastore = append(dss.Datastore, self)
			}
		}
		if mounted {
			z.cluster.Datastore = append(z.cluster.Datastore, self)
		}
	}
	browser := &simulator.HostDatastoreBrowser{}
	browser.Datastore = []ref{self}
	ds.Browser = v.vim.Put(browser).Reference()
	v.addChild(ctx, dc.obj.DatastoreFolder, self)
	dc.obj.Datastore = append(dc.obj.Datastore, self)
	v.inv.labels[self] = label
	v.inv.datastores = append(v.inv.datastores, ds)
}

func (v *VCenter) addChild(ctx *simulator.Context, folder, child ref) {
	f := v.vim.Get(folder).(*simulator.Folder)
	ctx.WithLock(f, func() {
		ctx.Update(f, []types.PropertyChange{{Name: "childEntity", Val: append(slices.Clone(f.ChildEntity), child)}})
	})
}

func (v *VCenter) dropChild(ctx *simulator.Context, folder, child ref) {
	f, ok := v.vim.Get(folder).(*simulator.Folder)
	if !ok {
		return
	}
	ctx.WithLock(f, func() {
		left := slices.DeleteFunc(slices.Clone(f.ChildEntity), func(r ref) bool { return r == child })
		ctx.Update(f, []types.PropertyChange{{Name: "childEntity", Val: left}})
	})
}

// zoneOf is the zone of a host.
func (z *zone) zoneOf(host int) string { return zoneIn(z.center.Datacenter, z.Cluster, z.Hosts[host]) }

// room finds the cluster for a node, and the next of its hosts that is in the
// node's zone.
func (v *VCenter) room(n Node) (*zone, *simulator.HostSystem, error) {
	for _, z := range v.inv.zones {
		if n.Datacenter != "" && z.center.Name != n.Datacenter || n.Cluster != "" && z.Name != n.Cluster {
			continue
		}
		for i := range z.hosts {
			at := (z.vms + i) % len(z.hosts)
			if n.Zone == "" || z.zoneOf(at) == n.Zone {
				z.vms += i + 1
				return z, z.hosts[at], nil
			}
		}
	}
	switch {
	case n.Datacenter == "" && n.Cluster == "":
		return nil, nil, fmt.Errorf("vcenter: node %q: zone %q is none of those that the vCenter was started with", n.Name, n.Zone)
	case n.Zone == "":
		return nil, nil, fmt.Errorf("vcenter: node %q: there is no cluster %q in datacenter %q", n.Name, n.Cluster, n.Datacenter)
	}
	return nil, nil, fmt.Errorf("vcenter: node %q: no host of zone %q in datacenter %q, cluster %q", n.Name, n.Zone, n.Datacenter, n.Cluster)
}

// addVM makes the VM of a node. vcsim's CreateVM would make files.
func (v *VCenter) addVM(n Node) error {
	v.mu.Lock()
	exists := v.inv.vms[n.Name] != nil
	z, host, err := v.room(n)
	v.mu.Unlock()
	if exists {
		return fmt.Errorf("vcenter: node %q exists", n.Name)
	}
	if err != nil {
		return err
	}
	var ds *simulator.Datastore
	for _, d := range v.inv.datastores {
		if slices.Contains(host.Datastore, d.Self) {
			ds = d
			break
		}
	}
	if ds == nil {
		return fmt.Errorf("vcenter: node %q: no datastore is accessible from zone %q, host %q", n.Name, n.Zone, host.Name)
	}
	vmx := fmt.Sprintf("[%s] %s/%s.vmx", ds.Name, n.Name, n.Name)
	config := newConfig(n.Name, biosUUID(v.cfg.Seed, n.Name), instanceUUID(v.cfg.Seed, n.Name), vmx, v.withOtherDisks(n, ds, v.devices(n.Name, ds)))
	// The driver needs the guest to see the ids of disks.
	config.ExtraConfig = []types.BaseOptionValue{&types.OptionValue{Key: "disk.EnableUUID", Value: "TRUE"}}
	if n.Encrypted {
		config.KeyId = &types.CryptoKeyId{KeyId: uuidOf(v.cfg.Seed, "vm key", n.Name), ProviderId: &types.KeyProviderId{Id: "csilab"}}
	}
	power := types.VirtualMachinePowerStatePoweredOn
	if n.PoweredOff {
		power = types.VirtualMachinePowerStatePoweredOff
	}
	v.install(v.assemble(config, place{z.center.obj.VmFolder, *z.cluster.ResourcePool, host}, power), n.Name)
	return nil
}

// Keys of devices, as vCenter numbers them.
const (
	pciController  = 100
	scsiController = 1000
	firstDisk      = 2000
	firstNIC       = 4000
)

// bareDevices is the hardware that every VM has.
func bareDevices() []types.BaseVirtualDevice {
	label := func(s string) *types.Description { return &types.Description{Label: s, Summary: s} }
	unit := func(n int32) *int32 { return &n }
	return []types.BaseVirtualDevice{
		&types.VirtualIDEController{VirtualController: types.VirtualController{VirtualDevice: types.VirtualDevice{Key: 200, DeviceInfo: label("IDE 0")}}},
		&types.VirtualIDEController{VirtualController: types.VirtualController{VirtualDevice: types.VirtualDevice{Key: 201, DeviceInfo: label("IDE 1")}, BusNumber: 1}},
		&types.VirtualPS2Controller{VirtualController: types.VirtualController{VirtualDevice: types.VirtualDevice{Key: esx.VirtualMachineDefaultDevicePS2ControllerKey, DeviceInfo: label("PS2 controller 0")}, Device: []int32{600, 700}}},
		&types.VirtualPCIController{VirtualController: types.VirtualController{VirtualDevice: types.VirtualDevice{Key: pciController, DeviceInfo: label("PCI controller 0")}, Device: []int32{500, 12000}}},
		&types.VirtualSIOController{VirtualController: types.VirtualController{VirtualDevice: types.VirtualDevice{Key: 400, DeviceInfo: label("SIO controller 0")}}},
		&types.VirtualKeyboard{VirtualDevice: types.VirtualDevice{Key: 600, DeviceInfo: label("Keyboard "), ControllerKey: 300, UnitNumber: unit(0)}},
		&types.VirtualPointingDevice{VirtualDevice: types.VirtualDevice{Key: 700, DeviceInfo: label("Pointing device"), ControllerKey: 300, UnitNumber: unit(1)}},
		&types.VirtualMachineVideoCard{VirtualDevice: types.VirtualDevice{Key: 500, DeviceInfo: label("Video card "), ControllerKey: pciController, UnitNumber: unit(0)}, VideoRamSizeInKB: 4096, NumDisplays: 1},
		&types.VirtualMachineVMCIDevice{VirtualDevice: types.VirtualDevice{Key: 12000, DeviceInfo: label("VMCI device"), ControllerKey: pciController, UnitNumber: unit(17)}},
	}
}

// devices is the hardware of a node's VM: one paravirtual SCSI controller with
// the boot disk in its first slot, and a network card.
func (v *VCenter) devices(node string, ds *simulator.Datastore) []types.BaseVirtualDevice {
	label := func(s string) *types.Description { return &types.Description{Label: s, Summary: s} }
	unit := func(n int32) *int32 { return &n }
	yes := true
	disk := identity(v.cfg.Seed, "boot disk", node)
	mac := identity(v.cfg.Seed, "mac", node)
	const capacity = 20 << 30
	return children(append(bareDevices(),
		&types.ParaVirtualSCSIController{VirtualSCSIController: types.VirtualSCSIController{
			VirtualController: types.VirtualController{VirtualDevice: types.VirtualDevice{
				Key: scsiController, DeviceInfo: label("SCSI controller 0"), ControllerKey: pciController, UnitNumber: unit(3),
			}, Device: []int32{firstDisk}},
			HotAddRemove: &yes, SharedBus: types.VirtualSCSISharingNoSharing, ScsiCtlrUnitNumber: 7,
		}},
		&types.VirtualDisk{
			VirtualDevice: types.VirtualDevice{
				Key: firstDisk, DeviceInfo: label("Hard disk 1"), ControllerKey: scsiController, UnitNumber: unit(0),
				Backing: &types.VirtualDiskFlatVer2BackingInfo{
					VirtualDeviceFileBackingInfo: types.VirtualDeviceFileBackingInfo{FileName: fmt.Sprintf("[%s] %s/%s.vmdk", ds.Name, node, node), Datastore: &ds.Self},
					DiskMode:                     string(types.VirtualDiskModePersistent), ThinProvisioned: &yes, Uuid: pageUUID(disk),
				},
			},
			CapacityInKB: capacity >> 10, CapacityInBytes: capacity,
		},
		&types.VirtualVmxnet3{VirtualVmxnet: types.VirtualVmxnet{VirtualEthernetCard: types.VirtualEthernetCard{
			VirtualDevice: types.VirtualDevice{
				Key: firstNIC, DeviceInfo: label("Network adapter 1"), ControllerKey: pciController, UnitNumber: unit(7),
				Backing:     &types.VirtualEthernetCardNetworkBackingInfo{VirtualDeviceDeviceBackingInfo: types.VirtualDeviceDeviceBackingInfo{DeviceName: "VM Network"}},
				Connectable: &types.VirtualDeviceConnectInfo{StartConnected: true, AllowGuestControl: true, Connected: true},
			},
			AddressType: "assigned", MacAddress: fmt.Sprintf("00:50:56:%02x:%02x:%02x", mac[0]&0x3f|0x80, mac[1], mac[2]),
		}}},
	))
}

// pageUUID formats the page 83 id of a virtual disk: VMware's start with 6000c29.
func pageUUID(id [16]byte) string {
	id[0], id[1], id[2], id[3] = 0x60, 0x00, 0xc2, 0x90|id[3]&0x0f
	return dashed(id)
}

// sweepBuild forgets the tasks by which vcsim built the inventory.
func (v *VCenter) sweepBuild() {
	ctx := v.internal()
	for _, t := range v.vim.AllReference("Task") {
		v.vim.Remove(ctx, t.Reference())
	}
	for _, e := range v.vim.All("") {
		e.Entity().RecentTask = nil
	}
}

// finished waits until a task of vcsim has ended. Only build uses it: what
// vcsim does there needs no time.
func (v *VCenter) finished(task ref) (types.TaskInfo, error) {
	t, ok := v.vim.Get(task).(*simulator.Task)
	if !ok {
		return types.TaskInfo{}, fmt.Errorf("no task %s", task.Value)
	}
	w := &taskWatch{task: task, changed: make(chan struct{}, 1)}
	w.Self = ref{Type: "Task", Value: "csilab-wait-" + task.Value}
	v.vim.AddHandler(w)
	defer v.vim.RemoveHandler(w)
	for {
		var info types.TaskInfo
		ctx := v.internal()
		ctx.WithLock(t, func() { info = t.Info })
		switch info.State {
		case types.TaskInfoStateSuccess:
			return info, nil
		case types.TaskInfoStateError:
			return info, &Fault{Fault: info.Error.Fault, Message: info.Error.LocalizedMessage}
		}
		select {
		case <-w.changed:
		case <-v.ctx.Done():
			return info, v.ctx.Err()
		}
	}
}

type taskWatch struct {
	mo.Task
	task    ref
	changed chan struct{}
}

func (w *taskWatch) PutObject(*simulator.Context, mo.Reference) {}
func (w *taskWatch) RemoveObject(*simulator.Context, ref)       {}
func (w *taskWatch) UpdateObject(_ *simulator.Context, o mo.Reference, _ []types.PropertyChange) {
	if o.Reference() == w.task {
		select {
		case w.changed <- struct{}{}:
		default:
		}
	}
}

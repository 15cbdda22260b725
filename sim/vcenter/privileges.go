package vcenter

import (
	"reflect"
	"strings"

	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

// rule is what a method takes. Sources: the "Required privileges" of the vSphere
// API reference; for CNS the documented roles of the CSI driver (vSphere
// Storage, "Cloud Native Storage roles and privileges") and what users met
// where one was missing (vsphere-csi-driver#114, #215, #265, #292, #530).
type rule struct {
	root       string // a privilege on the root of the inventory
	this       string // on the receiver
	datastores string // on each datastore that the request names, by itself or by a volume
	vms        string // on each VM that the request names
	also       func(v *VCenter, p principal, m *simulator.Method) []need
}

// rules by method. A method on an object of the inventory that has none takes
// System.View on the object; other methods without one take a session.
var rules = map[string]rule{
	// Unverified: what CNS asks for besides the documented roles.
	"CnsCreateVolume":                            {datastores: "Datastore.FileManagement", also: createNeeds},
	"CnsDeleteVolume":                            {datastores: "Datastore.FileManagement"},
	"CnsExtendVolume":                            {datastores: "Datastore.FileManagement"},
	"CnsCreateSnapshots":                         {datastores: "Datastore.FileManagement"},
	"CnsDeleteSnapshots":                         {datastores: "Datastore.FileManagement"},
	"CnsRelocateVolume":                          {datastores: "Datastore.FileManagement"},
	"CnsReconfigVolumePolicy":                    {datastores: "Datastore.FileManagement", root: "StorageProfile.View"},
	"CnsSetVolumeControlFlags":                   {datastores: "Datastore.FileManagement"},
	"CnsClearVolumeControlFlags":                 {datastores: "Datastore.FileManagement"},
	"CnsUnregisterVolume":                        {datastores: "Datastore.FileManagement"},
	"CnsUpdateVolumeCrypto":                      {datastores: "Datastore.FileManagement"},
	"CnsSyncDatastore":                           {datastores: "Datastore.FileManagement"},
	"CnsSyncVolume":                              {datastores: "Datastore.FileManagement"},
	"CnsUpdateVolumeMetadata":                    {root: "Cns.Searchable"},
	"CnsQueryVolume":                             {root: "Cns.Searchable"},
	"CnsQueryAllVolume":                          {root: "Cns.Searchable"},
	"CnsQueryAsync":                              {root: "Cns.Searchable"},
	"CnsQueryVolumeInfo":                         {root: "Cns.Searchable"},
	"CnsQuerySnapshots":                          {root: "Cns.Searchable"},
	"CnsAttachVolume":                            {vms: "VirtualMachine.Config.AddExistingDisk"},
	"CnsDetachVolume":                            {vms: "VirtualMachine.Config.AddRemoveDevice"},
	"CnsConfigureVolumeACLs":                     {also: fileNeeds},
	"VslmRegisterDisk":                           {also: pathNeeds},
	"VslmCreateDisk_Task":                        {datastores: "Datastore.FileManagement"},
	"VslmDeleteVStorageObject_Task":              {datastores: "Datastore.FileManagement"},
	"VslmExtendDisk_Task":                        {datastores: "Datastore.FileManagement"},
	"VslmInflateDisk_Task":                       {datastores: "Datastore.FileManagement"},
	"VslmCloneVStorageObject_Task":               {datastores: "Datastore.FileManagement"},
	"VslmRelocateVStorageObject_Task":            {datastores: "Datastore.FileManagement"},
	"VslmRenameVStorageObject":                   {datastores: "Datastore.FileManagement"},
	"VslmCreateSnapshot_Task":                    {datastores: "Datastore.FileManagement"},
	"VslmDeleteSnapshot_Task":                    {datastores: "Datastore.FileManagement"},
	"VslmRevertVStorageObject_Task":              {datastores: "Datastore.FileManagement"},
	"VslmAttachDisk_Task":                        {vms: "VirtualMachine.Config.AddExistingDisk", datastores: "Datastore.FileManagement"},
	"CreateDisk_Task":                            {datastores: "Datastore.FileManagement"},
	"RegisterDisk":                               {also: pathNeeds},
	"DeleteVStorageObject_Task":                  {datastores: "Datastore.FileManagement"},
	"ExtendDisk_Task":                            {datastores: "Datastore.FileManagement"},
	"InflateDisk_Task":                           {datastores: "Datastore.FileManagement"},
	"CloneVStorageObject_Task":                   {datastores: "Datastore.FileManagement"},
	"RelocateVStorageObject_Task":                {datastores: "Datastore.FileManagement"},
	"RenameVStorageObject":                       {datastores: "Datastore.FileManagement"},
	"VStorageObjectCreateSnapshot_Task":          {datastores: "Datastore.FileManagement"},
	"DeleteSnapshot_Task":                        {datastores: "Datastore.FileManagement"},
	"RevertVStorageObject_Task":                  {datastores: "Datastore.FileManagement"},
	"VslmCreateDiskFromSnapshot_Task":            {datastores: "Datastore.FileManagement"},
	"VslmUpdateVStorageObjectMetadata_Task":      {datastores: "Datastore.FileManagement"},
	"VslmSetVStorageObjectControlFlags":          {datastores: "Datastore.FileManagement"},
	"VslmClearVStorageObjectControlFlags":        {datastores: "Datastore.FileManagement"},
	"VslmUpdateVstorageObjectPolicy_Task":        {datastores: "Datastore.FileManagement"},
	"VslmUpdateVstorageObjectCrypto_Task":        {datastores: "Datastore.FileManagement"},
	"VslmReconcileDatastoreInventory_Task":       {datastores: "Datastore.FileManagement"},
	"VslmScheduleReconcileDatastoreInventory":    {datastores: "Datastore.FileManagement"},
	"CreateDiskFromSnapshot_Task":                {datastores: "Datastore.FileManagement"},
	"VCenterUpdateVStorageObjectMetadataEx_Task": {datastores: "Datastore.FileManagement"},
	"SetVStorageObjectControlFlags":              {datastores: "Datastore.FileManagement"},
	"ClearVStorageObjectControlFlags":            {datastores: "Datastore.FileManagement"},
	"UpdateVStorageObjectPolicy_Task":            {datastores: "Datastore.FileManagement"},
	"UpdateVStorageObjectCrypto_Task":            {datastores: "Datastore.FileManagement"},
	"ReconcileDatastoreInventory_Task":           {datastores: "Datastore.FileManagement"},
	"ScheduleReconcileDatastoreInventory":        {datastores: "Datastore.FileManagement"},
	"DeleteVStorageObjectEx_Task":                {datastores: "Datastore.FileManagement"},
	"RenameVStorageObjectEx":                     {datastores: "Datastore.FileManagement"},
	"RevertVStorageObjectEx_Task":                {datastores: "Datastore.FileManagement"},
	"VStorageObjectCreateSnapshotEx_Task":        {datastores: "Datastore.FileManagement"},
	"VStorageObjectDeleteSnapshotEx_Task":        {datastores: "Datastore.FileManagement"},
	"VStorageObjectExtendDiskEx_Task":            {datastores: "Datastore.FileManagement"},
	"CreateVirtualDisk_Task":                     {also: pathNeeds},
	"DeleteVirtualDisk_Task":                     {also: pathNeeds},
	"MoveVirtualDisk_Task":                       {also: pathNeeds},
	"CopyVirtualDisk_Task":                       {also: pathNeeds},
	"ExtendVirtualDisk_Task":                     {also: pathNeeds},
	"QueryVirtualDiskUuid":                       {also: pathNeeds},
	"AttachDisk_Task":                            {this: "VirtualMachine.Config.AddExistingDisk", datastores: "Datastore.FileManagement"},
	"DetachDisk_Task":                            {this: "VirtualMachine.Config.RemoveDisk"},
	"PowerOnVM_Task":                             {this: "VirtualMachine.Interact.PowerOn"},
	"PowerOffVM_Task":                            {this: "VirtualMachine.Interact.PowerOff"},
	"SuspendVM_Task":                             {this: "VirtualMachine.Interact.Suspend"},
	"ResetVM_Task":                               {this: "VirtualMachine.Interact.Reset"},
	"ReconfigVM_Task":                            {this: "System.View", also: reconfigureNeeds},
	"MigrateVM_Task":                             {also: moveNeeds},
	"RelocateVM_Task":                            {also: moveNeeds},
	"CloneVM_Task":                               {this: "VirtualMachine.Provisioning.Clone", datastores: "Datastore.AllocateSpace"},
	"CreateSnapshot_Task":                        {this: "VirtualMachine.State.CreateSnapshot"},
	"CreateSnapshotEx_Task":                      {this: "VirtualMachine.State.CreateSnapshot"},
	"RemoveAllSnapshots_Task":                    {this: "VirtualMachine.State.RemoveSnapshot"},
	"RevertToCurrentSnapshot_Task":               {this: "VirtualMachine.State.RevertToSnapshot"},
	"Rename_Task":                                {also: renameNeeds},
	"RenameDatastore":                            {this: "Datastore.Rename"},
	"VsanClusterGetConfig":                       {also: clusterNeeds("System.Read")},
	"VsanClusterReconfig":                        {also: clusterNeeds("Host.Inventory.EditCluster")},
	"UnregisterVM":                               {this: "VirtualMachine.Inventory.Unregister"},
	"RegisterVM_Task":                            {this: "VirtualMachine.Inventory.Register"},
	"CreateVM_Task":                              {this: "VirtualMachine.Inventory.Create"},
	"Destroy_Task":                               {also: destroyNeeds},
	"EnterMaintenanceMode_Task":                  {this: "Host.Config.Maintenance"},
	"ExitMaintenanceMode_Task":                   {this: "Host.Config.Maintenance"},
	"DisconnectHost_Task":                        {this: "Host.Config.Connection"},
	"ReconnectHost_Task":                         {this: "Host.Config.Connection"},
	"DatastoreEnterMaintenanceMode":              {this: "Datastore.Config"},
	"DatastoreExitMaintenanceMode_Task":          {this: "Datastore.Config"},
	"SetCustomValue":                             {this: "Global.SetCustomField"},
	"setCustomValue":                             {this: "Global.SetCustomField"},
	"RemoveSnapshot_Task":                        {also: snapshotNeeds},
	"RevertToSnapshot_Task":                      {also: snapshotNeeds},
	"RenameSnapshot":                             {also: snapshotNeeds},
	"ShutdownGuest":                              {this: "VirtualMachine.Interact.PowerOff"},
	"RebootGuest":                                {this: "VirtualMachine.Interact.Reset"},
	"StandbyGuest":                               {this: "VirtualMachine.Interact.Suspend"},
	"SetField": {also: func(_ *VCenter, _ principal, m *simulator.Method) []need {
		return entityNeed(m, "Global.SetCustomField")
	}},
	"AddCustomFieldDef":       {root: "Global.ManageCustomFields"},
	"RemoveCustomFieldDef":    {root: "Global.ManageCustomFields"},
	"RenameCustomFieldDef":    {root: "Global.ManageCustomFields"},
	"CancelTask":              {this: "Global.CancelTask"},
	"CreateTask":              {root: "Task.Create"},
	"TerminateSession":        {root: "Sessions.TerminateSession"},
	"SessionIsActive":         {root: "Sessions.ValidateSession"},
	"ImpersonateUser":         {root: "Sessions.ImpersonateUser"},
	"UpdateServiceMessage":    {root: "Sessions.GlobalMessage"},
	"AddAuthorizationRole":    {root: "Authorization.ModifyRoles"},
	"UpdateAuthorizationRole": {root: "Authorization.ModifyRoles"},
	"RemoveAuthorizationRole": {root: "Authorization.ModifyRoles"},
	"MergePermissions":        {root: "Authorization.ReassignRolePermissions"},
	"SetEntityPermissions":    {also: permissionNeeds},
	"ResetEntityPermissions":  {also: permissionNeeds},
	"RemoveEntityPermission":  {also: permissionNeeds},
	"PbmQueryProfile":         {root: "StorageProfile.View"},
	"PbmCreate":               {root: "StorageProfile.Update"},
	"PbmUpdate":               {root: "StorageProfile.Update"},
	"PbmDelete":               {root: "StorageProfile.Update"},
}

// needs lists what a call takes of its caller.
func (v *VCenter) needs(p principal, m *simulator.Method) []need {
	r, ok := rules[m.Name]
	if !ok && ownDisks[m.This.Type] {
		// Also to look at a disk (VcenterVStorageObjectManager API reference).
		r, ok = rule{datastores: "Datastore.FileManagement"}, true
	}
	if !ok && strings.HasPrefix(m.Name, "Pbm") && m.This.Type != "PbmServiceInstance" {
		r, ok = rule{root: "StorageProfile.View"}, true
		if strings.HasPrefix(m.Name, "PbmAssign") || strings.HasPrefix(m.Name, "PbmReset") || strings.HasPrefix(m.Name, "PbmUpdate") || strings.HasPrefix(m.Name, "PbmResolve") {
			r.root = "StorageProfile.Update"
		}
	}
	if !ok {
		if _, entity := v.vim.Get(m.This).(mo.Entity); entity {
			return []need{{m.This, "System.View"}}
		}
		return nil
	}
	var out []need
	if r.root != "" {
		out = append(out, need{v.content.RootFolder, r.root})
	}
	if r.this != "" {
		out = append(out, need{m.This, r.this})
	}
	if r.datastores != "" || r.vms != "" {
		n := named{v: v}
		n.walk(reflect.ValueOf(m.Body), 0)
		if r.datastores != "" {
			for _, d := range n.datastores {
				out = append(out, need{d, r.datastores})
			}
		}
		if r.vms != "" {
			for _, vm := range n.vms {
				out = append(out, need{vm, r.vms})
			}
		}
	}
	if r.also != nil {
		out = append(out, r.also(v, p, m)...)
	}
	return out
}

// named collects the datastores and VMs that a request is about.
type named struct {
	v          *VCenter
	datastores []ref
	vms        []ref
}

func (n *named) walk(x reflect.Value, depth int) {
	if depth > 16 {
		return
	}
	switch x.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !x.IsNil() {
			n.walk(x.Elem(), depth+1)
		}
	case reflect.Slice:
		for i := range x.Len() {
			n.walk(x.Index(i), depth+1)
		}
	case reflect.Struct:
		switch t := x.Interface().(type) {
		case ref:
			switch t.Type {
			case "Datastore":
				n.datastores = append(n.datastores, t)
			case "VirtualMachine":
				n.vms = append(n.vms, t)
			}
			return
		case cnstypes.CnsVolumeId:
			n.volume(t.Id)
			return
		case types.ID:
			n.volume(t.Id)
			return
		}
		for i := range x.NumField() {
			if x.Type().Field(i).IsExported() {
				n.walk(x.Field(i), depth+1)
			}
		}
	}
}

// volume adds the datastore of a volume or disk. One that does not exist is
// for the method to refuse.
func (n *named) volume(id string) {
	if ds := n.v.face.DatastoreOf(id); ds != "" {
		n.datastores = append(n.datastores, ref{Type: "Datastore", Value: ds})
	}
}

// createNeeds: a create that leaves the datastore to CNS takes one that the
// user may use; file volumes take the configuration of the vSAN cluster's
// storage too.
func createNeeds(v *VCenter, p principal, m *simulator.Method) (out []need) {
	req, ok := m.Body.(*cnstypes.CnsCreateVolume)
	if !ok {
		return nil
	}
	for _, s := range req.CreateSpecs {
		if s.VolumeType == string(cnstypes.CnsVolumeTypeFile) {
			out = append(out, fileNeeds(v, p, m)...)
		}
		if len(s.Datastores) > 0 || len(v.inv.datastores) == 0 {
			continue
		}
		may := false
		for _, d := range v.inv.datastores {
			may = may || v.access.allowed(p, d.Self, "Datastore.FileManagement")
		}
		if !may {
			out = append(out, need{v.inv.datastores[0].Self, "Datastore.FileManagement"})
		}
	}
	return out
}

// pathNeeds: virtual disks go by path, which names the datastore; all that is
// done to them takes Datastore.FileManagement (vSphere API reference,
// VirtualDiskManager).
func pathNeeds(v *VCenter, _ principal, m *simulator.Method) (out []need) {
	x := reflect.Indirect(reflect.ValueOf(m.Body))
	for _, field := range []string{"Name", "SourceName", "DestName", "Path"} {
		f := x.FieldByName(field)
		if field == "Name" && x.FieldByName("Path").IsValid() { // RegisterDisk: what the disk is called
			continue
		}
		if !f.IsValid() || f.Kind() != reflect.String {
			continue
		}
		if ds := v.face.DatastoreAt(f.String()); ds != "" {
			out = append(out, need{ref{Type: "Datastore", Value: ds}, "Datastore.FileManagement"})
		}
	}
	return out
}

// fileNeeds: some cluster's storage must be the user's to configure.
func fileNeeds(v *VCenter, p principal, _ *simulator.Method) []need {
	for _, z := range v.inv.zones {
		if v.access.allowed(p, z.cluster.Self, "Host.Config.Storage") {
			return nil
		}
	}
	return []need{{v.inv.zones[0].cluster.Self, "Host.Config.Storage"}}
}

// reconfigureNeeds: each part of a VM has its privilege.
func reconfigureNeeds(_ *VCenter, _ principal, m *simulator.Method) (out []need) {
	req, ok := m.Body.(*types.ReconfigVM_Task)
	if !ok {
		return nil
	}
	add := func(on bool, privilege string) {
		if on {
			out = append(out, need{m.This, "VirtualMachine.Config." + privilege})
		}
	}
	s := req.Spec
	add(s.Name != "", "Rename")
	add(s.Uuid != "" || s.InstanceUuid != "" || s.GuestId != "", "Settings")
	add(s.NumCPUs != 0, "CPUCount")
	add(s.MemoryMB != 0, "Memory")
	add(s.Annotation != "", "Annotation")
	add(len(s.ExtraConfig) > 0, "AdvancedConfig")
	add(s.ChangeTrackingEnabled != nil, "ChangeTracking")
	for _, c := range s.DeviceChange {
		d := c.GetVirtualDeviceConfigSpec()
		_, disk := d.Device.(*types.VirtualDisk)
		switch {
		case disk && d.Operation == types.VirtualDeviceConfigSpecOperationAdd && d.FileOperation == "":
			add(true, "AddExistingDisk")
		case disk && d.Operation == types.VirtualDeviceConfigSpecOperationAdd:
			add(true, "AddNewDisk")
		case disk && d.Operation == types.VirtualDeviceConfigSpecOperationRemove:
			add(true, "RemoveDisk")
		case disk:
			add(true, "DiskExtend")
		case d.Operation == types.VirtualDeviceConfigSpecOperationEdit:
			add(true, "EditDevice")
		default:
			add(true, "AddRemoveDevice")
		}
	}
	return out
}

// snapshotNeeds are on the VM: a snapshot is no object of the inventory's tree.
func snapshotNeeds(v *VCenter, _ principal, m *simulator.Method) []need {
	s, ok := v.vim.Get(m.This).(*vmSnapshot)
	if !ok {
		return nil
	}
	privilege := map[string]string{
		"RemoveSnapshot_Task": "RemoveSnapshot", "RevertToSnapshot_Task": "RevertToSnapshot", "RenameSnapshot": "RenameSnapshot",
	}[m.Name]
	return []need{{s.Vm, "VirtualMachine.State." + privilege}}
}

func moveNeeds(v *VCenter, _ principal, m *simulator.Method) []need {
	privilege := "Resource.ColdMigrate"
	if vm, ok := v.vim.Get(m.This).(*simulator.VirtualMachine); ok {
		ctx := v.internal()
		ctx.WithLock(vm, func() {
			if vm.Runtime.PowerState == types.VirtualMachinePowerStatePoweredOn {
				privilege = "Resource.HotMigrate"
			}
		})
	}
	return []need{{m.This, privilege}}
}

// destroys are what deleting an object takes.
var destroys = map[string]string{
	"VirtualMachine": "VirtualMachine.Inventory.Delete", "Folder": "Folder.Delete", "Datacenter": "Datacenter.Delete",
	"ClusterComputeResource": "Host.Inventory.DeleteCluster", "Datastore": "Datastore.Delete", "ResourcePool": "Resource.DeletePool",
	"HostSystem": "Host.Inventory.RemoveHostFromCluster",
}

func destroyNeeds(_ *VCenter, _ principal, m *simulator.Method) []need {
	p := destroys[m.This.Type]
	if p == "" {
		p = "System.View"
	}
	return []need{{m.This, p}}
}

var renames = map[string]string{
	"VirtualMachine": "VirtualMachine.Config.Rename", "Folder": "Folder.Rename", "Datacenter": "Datacenter.Rename",
	"ClusterComputeResource": "Host.Inventory.RenameCluster", "Datastore": "Datastore.Rename", "ResourcePool": "Resource.RenamePool",
}

func renameNeeds(_ *VCenter, _ principal, m *simulator.Method) []need {
	p := renames[m.This.Type]
	if p == "" {
		p = "System.View"
	}
	return []need{{m.This, p}}
}

// clusterNeeds: a privilege on the cluster that the request names.
func clusterNeeds(privilege string) func(*VCenter, principal, *simulator.Method) []need {
	return func(_ *VCenter, _ principal, m *simulator.Method) []need {
		f := reflect.Indirect(reflect.ValueOf(m.Body)).FieldByName("Cluster")
		if f.IsValid() {
			if e, ok := f.Interface().(ref); ok {
				return []need{{e, privilege}}
			}
		}
		return nil
	}
}

func permissionNeeds(_ *VCenter, _ principal, m *simulator.Method) []need {
	return entityNeed(m, "Authorization.ModifyPermissions")
}

// entityNeed is a privilege on the object that the request calls its entity.
func entityNeed(m *simulator.Method, privilege string) []need {
	f := reflect.Indirect(reflect.ValueOf(m.Body)).FieldByName("Entity")
	if !f.IsValid() {
		return nil
	}
	if e, ok := f.Interface().(ref); ok {
		return []need{{e, privilege}}
	}
	return nil
}

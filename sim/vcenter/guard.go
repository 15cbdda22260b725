package vcenter

import (
	"reflect"
	"strings"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/types"
)

// vcsim trusts requests: an unknown reference, one of the wrong type or a
// missing element is a nil dereference or a failed type assertion, often in the
// goroutine of a task, where it takes the process down. A vCenter checks
// requests against the schema and resolves references before a method runs;
// so does the guard.

// unguarded are receivers that answer unknown references themselves: the
// property collector and views report what is missing, CNS has a fault per
// result.
var unguarded = map[string]bool{
	"PropertyCollector": true, "ListView": true, "ViewManager": true, "ContainerView": true,
	"CnsVolumeManager": true, "AuthorizationManager": true,
}

// fileBacked are receivers of vcsim whose methods act on a directory of this
// machine that stands for a datastore. Datastores have no directory here.
var fileBacked = map[string]bool{
	"FileManager": true, "VirtualDiskManager": true, "HostDatastoreBrowser": true,
	"VcenterVStorageObjectManager": true, "VslmVStorageObjectManager": true, "VslmStorageLifecycleManager": true,
	"DatastoreNamespaceManager": true, "OvfManager": true, "HttpNfcLease": true, "HostDatastoreSystem": true,
	"GuestFileManager": true, "GuestProcessManager": true, "GuestOperationsManager": true,
	"VirtualMachineSnapshot": true, "HostFirewallSystem": true, "HostNetworkSystem": true,
}

// notSimulated are further methods that vcsim implements with files or that
// rebuild the inventory below the lab.
var notSimulated = map[string]bool{
	"CreateVM_Task": true, "RegisterVM_Task": true, "CloneVM_Task": true, "InstantClone_Task": true,
	"CreateChildVM_Task": true, "RegisterChildVM_Task": true, "ImportVApp": true, "CreateVApp": true,
	"CloneVApp_Task": true, "RelocateVM_Task": true, "MigrateVM_Task": true, "CreateSnapshot_Task": true,
	"RevertToCurrentSnapshot_Task": true, "RemoveAllSnapshots_Task": true, "AttachDisk_Task": true, "DetachDisk_Task": true,
	"ReconfigVM_Task": true, "CustomizeVM_Task": true, "MarkAsTemplate": true, "MarkAsVirtualMachine": true,
	"ExportVm": true, "UpgradeVM_Task": true, "PromoteDisks_Task": true, "ConsolidateVMDisks_Task": true,
	"RebootGuest": true, "ShutdownGuest": true, "StandbyGuest": true, "DropConnections": true,
	"AddHost_Task": true, "AddStandaloneHost_Task": true, "MoveInto_Task": true, "MoveIntoFolder_Task": true,
	"CreateCluster": true, "CreateClusterEx": true, "CreateDatacenter": true, "CreateFolder": true, "CreateStoragePod": true,
	"CreateDVS_Task": true, "ReconfigureComputeResource_Task": true, "PlaceVm": true, "PlaceVmsXCluster": true,
	"RecommendDatastores": true, "Rename_Task": true, "Destroy_Task": true, "UnregisterAndDestroy_Task": true,
	"EnterMaintenanceMode_Task": true, "ExitMaintenanceMode_Task": true, "DisconnectHost_Task": true, "ReconnectHost_Task": true,
	"PowerOnMultiVM_Task": true, "DatastoreEnterMaintenanceMode": true, "DatastoreExitMaintenanceMode_Task": true,
	"DestroyDatastore": true, "RefreshDatastore": true, "RefreshDatastoreStorageInfo": true,
}

// readOnly says whether a file-backed receiver's method only looks at state
// that vcsim keeps in memory.
func readOnly(receiver, method string) bool {
	switch receiver {
	case "HostFirewallSystem", "HostNetworkSystem":
		return strings.HasPrefix(method, "Query")
	}
	return false
}

func (v *VCenter) guard(ctx *simulator.Context, m *simulator.Method) types.BaseMethodFault {
	if unguarded[m.This.Type] {
		return nil
	}
	if fileBacked[m.This.Type] && !readOnly(m.This.Type, m.Name) {
		return &types.NotSupported{}
	}
	if notSimulated[m.Name] && !(m.Name == "Destroy_Task" && m.This.Type == "VirtualMachine") {
		return &types.NotSupported{}
	}
	return v.check(ctx, m, reflect.ValueOf(m.Body), "", 0)
}

// referents are the types that a reference in an element of that name has.
var referents = map[string][]string{
	"Vm": {"VirtualMachine"}, "Host": {"HostSystem"}, "Datastore": {"Datastore"}, "Ds": {"Datastore"},
	"Datacenter": {"Datacenter"}, "Pool": {"ResourcePool", "VirtualApp"}, "ResourcePool": {"ResourcePool", "VirtualApp"},
	"Folder": {"Folder"}, "Network": {"Network", "DistributedVirtualPortgroup", "OpaqueNetwork"},
}

// check refuses what the schema or the inventory refuses.
func (v *VCenter) check(ctx *simulator.Context, m *simulator.Method, x reflect.Value, field string, depth int) types.BaseMethodFault {
	if depth > 64 {
		return &types.InvalidRequest{}
	}
	switch x.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !x.IsNil() {
			return v.check(ctx, m, x.Elem(), field, depth+1)
		}
	case reflect.Slice:
		for i := range x.Len() {
			e := x.Index(i)
			if (e.Kind() == reflect.Pointer || e.Kind() == reflect.Interface) && e.IsNil() {
				return &types.InvalidArgument{InvalidProperty: field}
			}
			if f := v.check(ctx, m, e, field, depth+1); f != nil {
				return f
			}
		}
	case reflect.Struct:
		if ref, ok := x.Interface().(types.ManagedObjectReference); ok {
			return v.resolve(ctx, ref, field)
		}
		t := x.Type()
		for i := range t.NumField() {
			f, tag := t.Field(i), t.Field(i).Tag.Get("xml")
			if !f.IsExported() || tag == "-" {
				continue
			}
			val := x.Field(i)
			if !f.Anonymous && !strings.Contains(tag, "omitempty") && required(val) && val.IsNil() {
				return &types.InvalidArgument{InvalidProperty: lower(f.Name)}
			}
			if fl := v.check(ctx, m, val, f.Name, depth+1); fl != nil {
				return fl
			}
		}
	}
	return nil
}

// required says whether an element without omitempty has to be there: govmomi
// leaves the tag out for optional booleans and numbers too, which are pointers.
func required(x reflect.Value) bool {
	return x.Kind() == reflect.Interface || x.Kind() == reflect.Pointer && x.Type().Elem().Kind() == reflect.Struct
}

func (v *VCenter) resolve(ctx *simulator.Context, ref types.ManagedObjectReference, field string) types.BaseMethodFault {
	if ref == (types.ManagedObjectReference{}) {
		return &types.InvalidArgument{InvalidProperty: lower(field)}
	}
	if want := referents[field]; want != nil {
		ok := false
		for _, k := range want {
			ok = ok || k == ref.Type
		}
		if !ok {
			return &types.InvalidArgument{InvalidProperty: lower(field)}
		}
	}
	if ctx.Map.Get(ref) != nil || v.vim.Get(ref) != nil || ctx.Session != nil && ctx.Session.Get(ref) != nil {
		return nil
	}
	return &types.ManagedObjectNotFound{Obj: ref}
}

func lower(s string) string {
	if s == "" {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}

package vcenter

import (
	"reflect"
	"strings"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/types"
)

// vcsim trusts requests: an unknown reference, one of the wrong type or a
// missing element is a nil dereference or a failed type assertion, often in the
// goroutine of a task, where it takes the process down. A vCenter checks
// requests against the schema and resolves references before a method runs;
// so does the guard.

// unguarded are receivers that answer unknown references themselves: the
// property collector and views report what is missing. (CNS checks all of its
// requests itself, for it has a fault per result.)
var unguarded = map[string]bool{
	"PropertyCollector": true, "ListView": true, "ViewManager": true, "ContainerView": true,
}

// fileBacked are receivers of vcsim whose methods act on a directory of this
// machine that stands for a datastore. Datastores have no directory here.
var fileBacked = map[string]bool{
	"FileManager": true, "HostDatastoreBrowser": true,
	"DatastoreNamespaceManager": true, "OvfManager": true, "HttpNfcLease": true, "HostDatastoreSystem": true,
	"GuestFileManager": true, "GuestProcessManager": true, "GuestOperationsManager": true,
	"HostFirewallSystem": true, "HostNetworkSystem": true,
}

// notSimulated are further methods that vcsim implements with files or that
// rebuild the inventory below the lab.
var notSimulated = map[string]bool{
	"ImportVApp": true, "CreateVApp": true, "ExportVm": true, "DropConnections": true,
	"MarkAsTemplate": true, "MarkAsVirtualMachine": true,
	"CreateCluster": true, "CreateClusterEx": true, "CreateDatacenter": true, "CreateFolder": true, "CreateStoragePod": true,
	"PlaceVm": true, "PlaceVmsXCluster": true, "RecommendDatastores": true,
	"DestroyDatastore": true, "UpdateOptions": true,
}

// ownDisks are the managers of disks that are not vcsim's but cnsface's. Their
// requests are checked against the schema and the inventory like any others.
var ownDisks = map[string]bool{
	"VcenterVStorageObjectManager": true, "VirtualDiskManager": true,
	"VslmVStorageObjectManager": true, "VslmStorageLifecycleManager": true, "VslmSessionManager": true, "VslmTask": true,
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
	if m.This.Type == "CnsVolumeManager" || m.This.Type == "CnsDebugManager" {
		if !v.face.Offers(m.Name) {
			return &types.MethodNotFound{Receiver: m.This, Method: m.Name}
		}
		return nil
	}
	if ownDisks[m.This.Type] && !v.face.Offers(m.Name) {
		return &types.MethodNotFound{Receiver: m.This, Method: m.Name}
	}
	if fileBacked[m.This.Type] && !readOnly(m.This.Type, m.Name) {
		return &types.NotSupported{}
	}
	if notSimulated[m.Name] || strings.HasSuffix(m.Name, "_Task") && !ownMethods[m.This.Type][m.Name] && !ownDisks[m.This.Type] {
		return &types.NotSupported{}
	}
	if q, ok := m.Body.(*types.QueryPerf); ok {
		if f := boundedPerf(q); f != nil {
			return f
		}
	}
	c := check{v, ctx, !unguarded[m.This.Type]}
	return c.value(reflect.ValueOf(m.Body), "", 0)
}

var entities = []string{"ClusterComputeResource", "ComputeResource", "Datacenter", "Datastore", "DistributedVirtualPortgroup",
	"DistributedVirtualSwitch", "Folder", "HostSystem", "Network", "OpaqueNetwork", "ResourcePool", "StoragePod", "VirtualApp", "VirtualMachine", "VmwareDistributedVirtualSwitch"}

// referents are the types that a reference in an element of that name has.
var referents = map[string][]string{
	"Vm": {"VirtualMachine"}, "Host": {"HostSystem"}, "Datastore": {"Datastore"}, "Ds": {"Datastore"},
	"Datacenter": {"Datacenter"}, "Pool": {"ResourcePool", "VirtualApp"}, "ResourcePool": {"ResourcePool", "VirtualApp"},
	"Entity": entities, "Folder": {"Folder"}, "Network": {"Network", "DistributedVirtualPortgroup", "OpaqueNetwork"},
}

// check refuses what the schema or the inventory refuses.
type check struct {
	v       *VCenter
	ctx     *simulator.Context
	resolve bool // references must be of something
}

func (c check) value(x reflect.Value, field string, depth int) types.BaseMethodFault {
	if depth > 64 {
		return &types.InvalidRequest{}
	}
	switch x.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !x.IsNil() {
			return c.value(x.Elem(), field, depth+1)
		}
	case reflect.Slice:
		for i := range x.Len() {
			e := x.Index(i)
			if (e.Kind() == reflect.Pointer || e.Kind() == reflect.Interface) && e.IsNil() {
				return &types.InvalidArgument{InvalidProperty: field}
			}
			if f := c.value(e, field, depth+1); f != nil {
				return f
			}
		}
	case reflect.Struct:
		if ref, ok := x.Interface().(types.ManagedObjectReference); ok {
			if !c.resolve {
				return nil
			}
			return c.v.resolve(c.ctx, ref, field)
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
			if fl := c.value(val, f.Name, depth+1); fl != nil {
				return fl
			}
		}
	}
	return nil
}

// required says whether an element without omitempty has to be there: govmomi
// leaves the tag out for optional booleans, numbers and times too, which are pointers.
func required(x reflect.Value) bool {
	return x.Kind() == reflect.Interface || x.Kind() == reflect.Pointer && x.Type().Elem().Kind() == reflect.Struct && x.Type().Elem() != reflect.TypeFor[time.Time]()
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

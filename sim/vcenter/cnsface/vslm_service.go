package cnsface

import (
	"context"
	"slices"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	vim "github.com/vmware/govmomi/vim25/types"
	govslm "github.com/vmware/govmomi/vslm"
	"github.com/vmware/govmomi/vslm/methods"
	vslm "github.com/vmware/govmomi/vslm/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// References of the VSLM endpoint.
var (
	vslmSessions  = vim.ManagedObjectReference{Type: "VslmSessionManager", Value: "SessionManager"}
	vslmManager   = vim.ManagedObjectReference{Type: "VslmVStorageObjectManager", Value: "VStorageObjectManager"}
	vslmLifecycle = vim.ManagedObjectReference{Type: "VslmStorageLifecycleManager", Value: "StorageLifecycleManager"}
)

// vslmRegistry is the endpoint of VSLM. Its clients show their session of
// vim25 in a SOAP header.
func (f *Face) vslmRegistry() *simulator.Registry {
	r := simulator.NewRegistry()
	r.Namespace = govslm.Namespace
	r.Path = govslm.Path
	r.Cookie = simulator.SOAPCookie
	r.Put(&vslmService{govslm.ServiceInstance, f})
	r.Put(&vslmSession{vslmSessions})
	r.Put(&vslmObjects{vslmManager, f, r})
	r.Put(&vslmLifecycleManager{vslmLifecycle, f})
	return r
}

type vslmService struct {
	vim.ManagedObjectReference
	f *Face
}

func (*vslmService) Lock()   {}
func (*vslmService) Unlock() {}

// RetrieveContent implements the method of the API.
func (s *vslmService) RetrieveContent(*simulator.Context, *vslm.RetrieveContent) soap.HasFault {
	id := uuid(s.f.ids.digest("vslm"))
	return &methods.RetrieveContentBody{Res: &vslm.RetrieveContentResponse{Returnval: vslm.VslmServiceInstanceContent{
		AboutInfo: vslm.VslmAboutInfo{
			Name: "VMware Virtual Storage Lifecycle Manager Service", FullName: "VMware Virtual Storage Lifecycle Manager Service 1.0.0",
			Vendor: "VMware, Inc.", ApiVersion: "1.0.0", InstanceUuid: id,
		},
		SessionManager: vslmSessions, VStorageObjectManager: vslmManager, StorageLifecycleManager: vslmLifecycle,
	}}}
}

// vslmSession logs clients in that hand over a token. Whoever gets here has a
// session of vim25 already, so there is nothing left to do.
type vslmSession struct{ vim.ManagedObjectReference }

func (*vslmSession) Lock()   {}
func (*vslmSession) Unlock() {}

// VslmLoginByToken implements the method of the API.
func (*vslmSession) VslmLoginByToken(_ *simulator.Context, req *vslm.VslmLoginByToken) soap.HasFault {
	body := &methods.VslmLoginByTokenBody{}
	if req.DelegatedTokenXml == "" {
		f := local(&vim.InvalidLogin{}, "Cannot complete login due to an incorrect user name or password.")
		body.Fault_ = simulator.Fault(f.LocalizedMessage, f.Fault)
		return body
	}
	body.Res = &vslm.VslmLoginByTokenResponse{}
	return body
}

// VslmLogout implements the method of the API. The session of vim25 stays.
func (*vslmSession) VslmLogout(*simulator.Context, *vslm.VslmLogout) soap.HasFault {
	return &methods.VslmLogoutBody{Res: &vslm.VslmLogoutResponse{}}
}

type vslmLifecycleManager struct {
	vim.ManagedObjectReference
	f *Face
}

func (*vslmLifecycleManager) Lock()   {}
func (*vslmLifecycleManager) Unlock() {}

// datastores are all datastores that the inventory has, by reference.
func (i *inventory) list() []*simulator.Datastore {
	i.mu.Lock()
	refs := slices.Clone(i.datastores)
	i.mu.Unlock()
	var out []*simulator.Datastore
	for _, ref := range refs {
		if ds, ok := i.vim.Get(ref).(*simulator.Datastore); ok {
			out = append(out, ds)
		}
	}
	return out
}

// withURL finds a datastore by its URL. Errors: NotFound.
func (i *inventory) withURL(c *simulator.Context, url string) (*simulator.Datastore, error) {
	for _, ds := range i.list() {
		has := ""
		c.WithLock(ds, func() { has = ds.Summary.Url })
		if has == url {
			return ds, nil
		}
	}
	return nil, &cns.Error{Kind: cns.NotFound, Field: "datastoreUrl", Value: url, Reason: "no such datastore"}
}

// VslmSyncDatastore implements the method of the API. The catalogue always
// agrees with its datastores here. Records of CNS whose disks are gone are
// CNS's own, which has a sync of its own.
func (m *vslmLifecycleManager) VslmSyncDatastore(_ *simulator.Context, req *vslm.VslmSyncDatastore) soap.HasFault {
	body := &methods.VslmSyncDatastoreBody{}
	if _, err := m.f.inv.withURL(m.f.inv.context(), req.DatastoreUrl); err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vslm.VslmSyncDatastoreResponse{}
	return body
}

// VslmQueryDatastoreInfo says in which datacenter a datastore is.
func (m *vslmLifecycleManager) VslmQueryDatastoreInfo(_ *simulator.Context, req *vslm.VslmQueryDatastoreInfo) soap.HasFault {
	body := &methods.VslmQueryDatastoreInfoBody{}
	ds, err := m.f.inv.withURL(m.f.inv.context(), req.DatastoreUrl)
	if err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vslm.VslmQueryDatastoreInfoResponse{}
	for up := ds.Parent; up != nil; {
		if up.Type == "Datacenter" {
			body.Res.Returnval = []vslm.VslmQueryDatastoreInfoResult{{Datacenter: *up, Datastore: ds.Self}}
			break
		}
		f, ok := m.f.inv.vim.Get(*up).(*simulator.Folder)
		if !ok {
			break
		}
		up = f.Parent
	}
	return body
}

// syncStatus says that the catalogue agrees with a datastore.
func (f *Face) syncStatus(url string) vslm.VslmDatastoreSyncStatus {
	now, n := time.Now(), f.vclock().VClockTime
	return vslm.VslmDatastoreSyncStatus{DatastoreURL: url, ObjectVClock: n, SyncVClock: n, SyncTime: &now}
}

// VslmQueryGlobalCatalogSyncStatus implements the method of the API.
func (m *vslmObjects) VslmQueryGlobalCatalogSyncStatus(*simulator.Context, *vslm.VslmQueryGlobalCatalogSyncStatus) soap.HasFault {
	res := &vslm.VslmQueryGlobalCatalogSyncStatusResponse{}
	c := m.f.inv.context()
	for _, ds := range m.f.inv.list() {
		url := ""
		c.WithLock(ds, func() { url = ds.Summary.Url })
		res.Returnval = append(res.Returnval, m.f.syncStatus(url))
	}
	return &methods.VslmQueryGlobalCatalogSyncStatusBody{Res: res}
}

// VslmQueryGlobalCatalogSyncStatusForDatastore implements the method of the API.
func (m *vslmObjects) VslmQueryGlobalCatalogSyncStatusForDatastore(_ *simulator.Context, req *vslm.VslmQueryGlobalCatalogSyncStatusForDatastore) soap.HasFault {
	body := &methods.VslmQueryGlobalCatalogSyncStatusForDatastoreBody{}
	if _, err := m.f.inv.withURL(m.f.inv.context(), req.DatastoreURL); err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	s := m.f.syncStatus(req.DatastoreURL)
	body.Res = &vslm.VslmQueryGlobalCatalogSyncStatusForDatastoreResponse{Returnval: &s}
	return body
}

// VslmReconcileDatastoreInventoryTask implements
// VslmReconcileDatastoreInventory_Task: there is nothing to do.
func (m *vslmObjects) VslmReconcileDatastoreInventoryTask(ctx *simulator.Context, _ *vslm.VslmReconcileDatastoreInventory_Task) soap.HasFault {
	return &methods.VslmReconcileDatastoreInventory_TaskBody{Res: &vslm.VslmReconcileDatastoreInventory_TaskResponse{
		Returnval: m.task(ctx, TaskCall{Op: "VslmReconcileDatastoreInventory_Task"}, func(context.Context, *simulator.Context) (vim.AnyType, error) { return nil, nil }),
	}}
}

// VslmScheduleReconcileDatastoreInventory implements the method of the API.
func (m *vslmObjects) VslmScheduleReconcileDatastoreInventory(*simulator.Context, *vslm.VslmScheduleReconcileDatastoreInventory) soap.HasFault {
	return &methods.VslmScheduleReconcileDatastoreInventoryBody{Res: &vslm.VslmScheduleReconcileDatastoreInventoryResponse{}}
}

// VslmRetrieveVStorageInfrastructureObjectPolicy lists the policies of what the
// service itself keeps on a datastore: nothing here.
func (m *vslmObjects) VslmRetrieveVStorageInfrastructureObjectPolicy(*simulator.Context, *vslm.VslmRetrieveVStorageInfrastructureObjectPolicy) soap.HasFault {
	return &methods.VslmRetrieveVStorageInfrastructureObjectPolicyBody{Res: &vslm.VslmRetrieveVStorageInfrastructureObjectPolicyResponse{}}
}

// VslmUpdateVStorageInfrastructureObjectPolicyTask implements
// VslmUpdateVStorageInfrastructureObjectPolicy_Task.
func (m *vslmObjects) VslmUpdateVStorageInfrastructureObjectPolicyTask(*simulator.Context, *vslm.VslmUpdateVStorageInfrastructureObjectPolicy_Task) soap.HasFault {
	return &methods.VslmUpdateVStorageInfrastructureObjectPolicy_TaskBody{Fault_: simulator.Fault(textNotSupported, &vim.NotSupported{})}
}

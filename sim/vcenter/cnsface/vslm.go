package cnsface

import (
	"context"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	vim "github.com/vmware/govmomi/vim25/types"
	"github.com/vmware/govmomi/vslm/methods"
	vslm "github.com/vmware/govmomi/vslm/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// vslmObjects is the VStorageObjectManager of VSLM: it finds a disk by its id
// alone.
type vslmObjects struct {
	vim.ManagedObjectReference
	f   *Face
	reg *simulator.Registry
}

// Lock and Unlock opt out of vcsim's lock around every call.
func (*vslmObjects) Lock()   {}
func (*vslmObjects) Unlock() {}

// task starts a task, which has a VslmTask at this endpoint.
func (m *vslmObjects) task(rc *simulator.Context, call TaskCall, do work) vim.ManagedObjectReference {
	return m.f.putVslmTask(m.reg, m.f.fcdTask(rc, call, fcdRef, do))
}

// profiles are the profiles of a request. govmomi v0.56.0 reads them as their
// base type and loses which policy they name.
func profiles(in []vim.VirtualMachineProfileSpec) []vim.BaseVirtualMachineProfileSpec {
	var out []vim.BaseVirtualMachineProfileSpec
	for i := range in {
		out = append(out, &in[i])
	}
	return out
}

func objectResult(f *Face, d cns.Disk) vslm.VslmVsoVStorageObjectResult {
	r := vslm.VslmVsoVStorageObjectResult{
		Id: vim.ID{Id: d.ID}, Name: d.Name, CapacityInMB: d.CapacityMB, CreateTime: &d.Created, DiskPath: d.DiskPath,
		UsedCapacityInMB: d.CapacityMB + d.SnapshotMB(), BackingObjectId: &vim.ID{Id: d.ID}, Metadata: keyValues(d.Values),
	}
	f.mu.Lock()
	if ds, _, ok := f.core.Datastore(d.Datastore); ok {
		r.DatastoreUrl = ds.URL
	}
	f.mu.Unlock()
	for _, s := range d.Snapshots {
		r.SnapshotInfo = append(r.SnapshotInfo, vslm.VslmVsoVStorageObjectSnapshotResult{
			BackingObjectId: vim.ID{Id: s.ID}, Description: s.Description, SnapshotId: &vim.ID{Id: s.ID}, DiskPath: snapshotPath(d, s.ID),
		})
	}
	return r
}

// VslmCreateDiskTask implements VslmCreateDisk_Task.
func (m *vslmObjects) VslmCreateDiskTask(ctx *simulator.Context, req *vslm.VslmCreateDisk_Task) soap.HasFault {
	return &methods.VslmCreateDisk_TaskBody{Res: &vslm.VslmCreateDisk_TaskResponse{Returnval: m.task(ctx, TaskCall{Op: "VslmCreateDisk_Task", Volume: req.Spec.Name}, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		s, err := m.f.diskSpec(req.Spec)
		if err != nil {
			return nil, err
		}
		return m.f.createDisk(ctx, c, s)
	})}}
}

// VslmRegisterDisk implements the method of the API.
func (m *vslmObjects) VslmRegisterDisk(_ *simulator.Context, req *vslm.VslmRegisterDisk) soap.HasFault {
	body := &methods.VslmRegisterDiskBody{}
	r, err := m.f.registerDisk(m.f.inv.context(), req.Path, req.Name)
	if err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vslm.VslmRegisterDiskResponse{Returnval: r}
	return body
}

// VslmExtendDiskTask implements VslmExtendDisk_Task.
func (m *vslmObjects) VslmExtendDiskTask(ctx *simulator.Context, req *vslm.VslmExtendDisk_Task) soap.HasFault {
	return &methods.VslmExtendDisk_TaskBody{Res: &vslm.VslmExtendDisk_TaskResponse{Returnval: m.task(ctx, TaskCall{Op: "VslmExtendDisk_Task", Volume: req.Id.Id}, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		return m.f.extendDisk(ctx, c, req.Id.Id, "", req.NewCapacityInMB)
	})}}
}

// VslmInflateDiskTask implements VslmInflateDisk_Task.
func (m *vslmObjects) VslmInflateDiskTask(ctx *simulator.Context, req *vslm.VslmInflateDisk_Task) soap.HasFault {
	return &methods.VslmInflateDisk_TaskBody{Res: &vslm.VslmInflateDisk_TaskResponse{Returnval: m.task(ctx, TaskCall{Op: "VslmInflateDisk_Task", Volume: req.Id.Id}, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		return m.f.changeDisk(ctx, req.Id.Id, "", func() (cns.Disk, error) { return m.f.core.Inflate(req.Id.Id) })
	})}}
}

// VslmRenameVStorageObject implements the method of the API.
func (m *vslmObjects) VslmRenameVStorageObject(_ *simulator.Context, req *vslm.VslmRenameVStorageObject) soap.HasFault {
	body := &methods.VslmRenameVStorageObjectBody{}
	if err := m.f.rename(req.Id.Id, "", req.Name); err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vslm.VslmRenameVStorageObjectResponse{}
	return body
}

// VslmUpdateVstorageObjectPolicyTask implements VslmUpdateVstorageObjectPolicy_Task.
func (m *vslmObjects) VslmUpdateVstorageObjectPolicyTask(ctx *simulator.Context, req *vslm.VslmUpdateVstorageObjectPolicy_Task) soap.HasFault {
	return &methods.VslmUpdateVstorageObjectPolicy_TaskBody{Res: &vslm.VslmUpdateVstorageObjectPolicy_TaskResponse{Returnval: m.task(ctx, TaskCall{Op: "VslmUpdateVstorageObjectPolicy_Task", Volume: req.Id.Id}, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		return m.f.setPolicy(ctx, req.Id.Id, "", profiles(req.Profile))
	})}}
}

// VslmUpdateVstorageObjectCryptoTask implements VslmUpdateVstorageObjectCrypto_Task.
func (m *vslmObjects) VslmUpdateVstorageObjectCryptoTask(ctx *simulator.Context, req *vslm.VslmUpdateVstorageObjectCrypto_Task) soap.HasFault {
	return &methods.VslmUpdateVstorageObjectCrypto_TaskBody{Res: &vslm.VslmUpdateVstorageObjectCrypto_TaskResponse{Returnval: m.task(ctx, TaskCall{Op: "VslmUpdateVstorageObjectCrypto_Task", Volume: req.Id.Id}, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		return m.f.setCrypto(ctx, req.Id.Id, "", profiles(req.Profile), req.DisksCrypto)
	})}}
}

// VslmDeleteVStorageObjectTask implements VslmDeleteVStorageObject_Task.
func (m *vslmObjects) VslmDeleteVStorageObjectTask(ctx *simulator.Context, req *vslm.VslmDeleteVStorageObject_Task) soap.HasFault {
	return &methods.VslmDeleteVStorageObject_TaskBody{Res: &vslm.VslmDeleteVStorageObject_TaskResponse{Returnval: m.task(ctx, TaskCall{Op: "VslmDeleteVStorageObject_Task", Volume: req.Id.Id}, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		return m.f.deleteDisk(ctx, c, req.Id.Id, "")
	})}}
}

// VslmRetrieveVStorageObject implements the method of the API.
// Unverified: NotFound, as documented; vcsim answers InvalidArgument.
func (m *vslmObjects) VslmRetrieveVStorageObject(_ *simulator.Context, req *vslm.VslmRetrieveVStorageObject) soap.HasFault {
	body := &methods.VslmRetrieveVStorageObjectBody{}
	r, err := m.f.object(m.f.inv.context(), req.Id.Id, "")
	if err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vslm.VslmRetrieveVStorageObjectResponse{Returnval: r}
	return body
}

// VslmRetrieveVStorageObjectState implements the method of the API.
func (m *vslmObjects) VslmRetrieveVStorageObjectState(_ *simulator.Context, req *vslm.VslmRetrieveVStorageObjectState) soap.HasFault {
	body := &methods.VslmRetrieveVStorageObjectStateBody{}
	r, err := m.f.state(req.Id.Id, "")
	if err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vslm.VslmRetrieveVStorageObjectStateResponse{Returnval: r}
	return body
}

// VslmCloneVStorageObjectTask implements VslmCloneVStorageObject_Task.
func (m *vslmObjects) VslmCloneVStorageObjectTask(ctx *simulator.Context, req *vslm.VslmCloneVStorageObject_Task) soap.HasFault {
	return &methods.VslmCloneVStorageObject_TaskBody{Res: &vslm.VslmCloneVStorageObject_TaskResponse{Returnval: m.task(ctx, TaskCall{Op: "VslmCloneVStorageObject_Task", Volume: req.Id.Id}, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		s, err := m.f.cloneSpec(req.Id.Id, req.Spec)
		if err != nil {
			return nil, err
		}
		return m.f.createDisk(ctx, c, s)
	})}}
}

// VslmRelocateVStorageObjectTask implements VslmRelocateVStorageObject_Task.
func (m *vslmObjects) VslmRelocateVStorageObjectTask(ctx *simulator.Context, req *vslm.VslmRelocateVStorageObject_Task) soap.HasFault {
	return &methods.VslmRelocateVStorageObject_TaskBody{Res: &vslm.VslmRelocateVStorageObject_TaskResponse{Returnval: m.task(ctx, TaskCall{Op: "VslmRelocateVStorageObject_Task", Volume: req.Id.Id}, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		return m.f.relocateDisk(ctx, c, req.Id.Id, "", req.Spec.VslmMigrateSpec)
	})}}
}

// VslmSetVStorageObjectControlFlags implements the method of the API.
func (m *vslmObjects) VslmSetVStorageObjectControlFlags(_ *simulator.Context, req *vslm.VslmSetVStorageObjectControlFlags) soap.HasFault {
	body := &methods.VslmSetVStorageObjectControlFlagsBody{}
	if err := m.f.flags(req.Id.Id, "", req.ControlFlags, true); err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vslm.VslmSetVStorageObjectControlFlagsResponse{}
	return body
}

// VslmClearVStorageObjectControlFlags implements the method of the API.
func (m *vslmObjects) VslmClearVStorageObjectControlFlags(_ *simulator.Context, req *vslm.VslmClearVStorageObjectControlFlags) soap.HasFault {
	body := &methods.VslmClearVStorageObjectControlFlagsBody{}
	if err := m.f.flags(req.Id.Id, "", cleared(req.ControlFlags), false); err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vslm.VslmClearVStorageObjectControlFlagsResponse{}
	return body
}

// VslmAttachTagToVStorageObject implements the method of the API.
func (m *vslmObjects) VslmAttachTagToVStorageObject(_ *simulator.Context, req *vslm.VslmAttachTagToVStorageObject) soap.HasFault {
	body := &methods.VslmAttachTagToVStorageObjectBody{}
	if err := m.f.attachTag(req.Id.Id, req.Category, req.Tag); err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vslm.VslmAttachTagToVStorageObjectResponse{}
	return body
}

// VslmDetachTagFromVStorageObject implements the method of the API.
func (m *vslmObjects) VslmDetachTagFromVStorageObject(_ *simulator.Context, req *vslm.VslmDetachTagFromVStorageObject) soap.HasFault {
	body := &methods.VslmDetachTagFromVStorageObjectBody{}
	if err := m.f.detachTag(req.Id.Id, req.Category, req.Tag); err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vslm.VslmDetachTagFromVStorageObjectResponse{}
	return body
}

// VslmListVStorageObjectsAttachedToTag implements the method of the API.
func (m *vslmObjects) VslmListVStorageObjectsAttachedToTag(_ *simulator.Context, req *vslm.VslmListVStorageObjectsAttachedToTag) soap.HasFault {
	body := &methods.VslmListVStorageObjectsAttachedToTagBody{}
	r, err := m.f.tagged(req.Category, req.Tag)
	if err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vslm.VslmListVStorageObjectsAttachedToTagResponse{Returnval: r}
	return body
}

// VslmListTagsAttachedToVStorageObject implements the method of the API.
func (m *vslmObjects) VslmListTagsAttachedToVStorageObject(_ *simulator.Context, req *vslm.VslmListTagsAttachedToVStorageObject) soap.HasFault {
	body := &methods.VslmListTagsAttachedToVStorageObjectBody{}
	r, err := m.f.tagsOf(req.Id.Id)
	if err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vslm.VslmListTagsAttachedToVStorageObjectResponse{Returnval: r}
	return body
}

// VslmCreateSnapshotTask implements VslmCreateSnapshot_Task. The result is the id of the snapshot.
func (m *vslmObjects) VslmCreateSnapshotTask(ctx *simulator.Context, req *vslm.VslmCreateSnapshot_Task) soap.HasFault {
	return &methods.VslmCreateSnapshot_TaskBody{Res: &vslm.VslmCreateSnapshot_TaskResponse{Returnval: m.task(ctx, TaskCall{Op: "VslmCreateSnapshot_Task", Volume: req.Id.Id}, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		s, err := m.f.snapshotDisk(ctx, req.Id.Id, "", req.Description)
		if err != nil {
			return nil, err
		}
		return vim.ID{Id: s.ID}, nil
	})}}
}

// VslmDeleteSnapshotTask implements VslmDeleteSnapshot_Task.
func (m *vslmObjects) VslmDeleteSnapshotTask(ctx *simulator.Context, req *vslm.VslmDeleteSnapshot_Task) soap.HasFault {
	return &methods.VslmDeleteSnapshot_TaskBody{Res: &vslm.VslmDeleteSnapshot_TaskResponse{Returnval: m.task(ctx, TaskCall{Op: "VslmDeleteSnapshot_Task", Volume: req.Id.Id, Snapshot: req.SnapshotId.Id}, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		return m.f.deleteDiskSnapshot(ctx, req.Id.Id, "", req.SnapshotId.Id)
	})}}
}

// VslmRetrieveSnapshotInfo implements the method of the API.
func (m *vslmObjects) VslmRetrieveSnapshotInfo(_ *simulator.Context, req *vslm.VslmRetrieveSnapshotInfo) soap.HasFault {
	body := &methods.VslmRetrieveSnapshotInfoBody{}
	r, err := m.f.snapshotsOf(req.Id.Id, "")
	if err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vslm.VslmRetrieveSnapshotInfoResponse{Returnval: r}
	return body
}

// VslmRetrieveSnapshotDetails implements the method of the API.
func (m *vslmObjects) VslmRetrieveSnapshotDetails(_ *simulator.Context, req *vslm.VslmRetrieveSnapshotDetails) soap.HasFault {
	body := &methods.VslmRetrieveSnapshotDetailsBody{}
	r, err := m.f.snapshotDetails(req.Id.Id, "", req.SnapshotId.Id)
	if err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vslm.VslmRetrieveSnapshotDetailsResponse{Returnval: r}
	return body
}

// VslmCreateDiskFromSnapshotTask implements VslmCreateDiskFromSnapshot_Task.
// The new disk has the key of the old one: govmomi v0.56.0 reads a crypto
// specification here as its base type.
func (m *vslmObjects) VslmCreateDiskFromSnapshotTask(ctx *simulator.Context, req *vslm.VslmCreateDiskFromSnapshot_Task) soap.HasFault {
	return &methods.VslmCreateDiskFromSnapshot_TaskBody{Res: &vslm.VslmCreateDiskFromSnapshot_TaskResponse{Returnval: m.task(ctx, TaskCall{Op: "VslmCreateDiskFromSnapshot_Task", Volume: req.Id.Id, Snapshot: req.SnapshotId.Id}, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		s, err := m.f.snapshotSpec(req.Id.Id, req.SnapshotId.Id, req.Name, profiles(req.Profile), nil, req.Path, false)
		if err != nil {
			return nil, err
		}
		return m.f.createDisk(ctx, c, s)
	})}}
}

// VslmRevertVStorageObjectTask implements VslmRevertVStorageObject_Task.
func (m *vslmObjects) VslmRevertVStorageObjectTask(ctx *simulator.Context, req *vslm.VslmRevertVStorageObject_Task) soap.HasFault {
	return &methods.VslmRevertVStorageObject_TaskBody{Res: &vslm.VslmRevertVStorageObject_TaskResponse{Returnval: m.task(ctx, TaskCall{Op: "VslmRevertVStorageObject_Task", Volume: req.Id.Id, Snapshot: req.SnapshotId.Id}, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		return m.f.revertDisk(ctx, req.Id.Id, "", req.SnapshotId.Id)
	})}}
}

// VslmQueryChangedDiskAreas implements the method of the API.
func (m *vslmObjects) VslmQueryChangedDiskAreas(_ *simulator.Context, req *vslm.VslmQueryChangedDiskAreas) soap.HasFault {
	body := &methods.VslmQueryChangedDiskAreasBody{}
	r, err := m.f.changedAreas(req.Id.Id, "", req.SnapshotId.Id, req.StartOffset, req.ChangeId)
	if err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vslm.VslmQueryChangedDiskAreasResponse{Returnval: r}
	return body
}

// VslmUpdateVStorageObjectMetadataTask implements VslmUpdateVStorageObjectMetadata_Task.
func (m *vslmObjects) VslmUpdateVStorageObjectMetadataTask(ctx *simulator.Context, req *vslm.VslmUpdateVStorageObjectMetadata_Task) soap.HasFault {
	return &methods.VslmUpdateVStorageObjectMetadata_TaskBody{Res: &vslm.VslmUpdateVStorageObjectMetadata_TaskResponse{Returnval: m.task(ctx, TaskCall{Op: "VslmUpdateVStorageObjectMetadata_Task", Volume: req.Id.Id}, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		return m.f.changeDisk(ctx, req.Id.Id, "", func() (cns.Disk, error) {
			return m.f.core.UpdateValues(req.Id.Id, labels(req.Metadata), req.DeleteKeys)
		})
	})}}
}

// VslmAttachDiskTask implements VslmAttachDisk_Task.
func (m *vslmObjects) VslmAttachDiskTask(ctx *simulator.Context, req *vslm.VslmAttachDisk_Task) soap.HasFault {
	return &methods.VslmAttachDisk_TaskBody{Res: &vslm.VslmAttachDisk_TaskResponse{Returnval: m.task(ctx, TaskCall{Op: "VslmAttachDisk_Task", Volume: req.Id.Id, VM: req.Vm.Value}, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		return m.f.attachDisk(ctx, c, req.Vm, req.Id.Id, "", req.ControllerKey, req.UnitNumber)
	})}}
}

// VslmRetrieveVStorageObjectMetadata implements the method of the API.
func (m *vslmObjects) VslmRetrieveVStorageObjectMetadata(_ *simulator.Context, req *vslm.VslmRetrieveVStorageObjectMetadata) soap.HasFault {
	body := &methods.VslmRetrieveVStorageObjectMetadataBody{}
	r, err := m.f.values(req.Id.Id, req.SnapshotId, req.Prefix)
	if err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vslm.VslmRetrieveVStorageObjectMetadataResponse{Returnval: r}
	return body
}

// VslmRetrieveVStorageObjectMetadataValue implements the method of the API.
func (m *vslmObjects) VslmRetrieveVStorageObjectMetadataValue(_ *simulator.Context, req *vslm.VslmRetrieveVStorageObjectMetadataValue) soap.HasFault {
	body := &methods.VslmRetrieveVStorageObjectMetadataValueBody{}
	r, err := m.f.value(req.Id.Id, req.SnapshotId, req.Key)
	if err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vslm.VslmRetrieveVStorageObjectMetadataValueResponse{Returnval: r}
	return body
}

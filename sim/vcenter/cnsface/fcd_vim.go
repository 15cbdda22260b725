package cnsface

import (
	"context"
	"fmt"
	"strings"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// storageObjects is the VStorageObjectManager of vim25: it finds a disk by its
// id and its datastore.
type storageObjects struct {
	mo.VcenterVStorageObjectManager
	f *Face
}

// Lock and Unlock opt out of vcsim's lock around every call.
func (*storageObjects) Lock()   {}
func (*storageObjects) Unlock() {}

// task starts a task about a disk ("" for one that is to be made).
func (m *storageObjects) task(rc *simulator.Context, op, id string, do work) vim.ManagedObjectReference {
	return m.f.fcdTask(rc, TaskCall{Op: op, Volume: id}, fcdRef, do)
}

// flags sets control flags of a disk, or clears them.
func (f *Face) flags(id, on string, names []string, set bool) error {
	if _, _, err := f.disk(id, on); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.core.SetFlags(id, names, set)
	return err
}

func (f *Face) rename(id, on, name string) error {
	if _, _, err := f.disk(id, on); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.core.RenameDisk(id, name)
	return err
}

// vclock is the logical time of the catalogue: it grows with everything that
// may have changed it.
func (f *Face) vclock() vim.VslmVClockInfo {
	return vim.VslmVClockInfo{VClockTime: f.tasks.Issued() + 1}
}

// snapshots of a disk as the API lists them.
func snapshotInfo(d cns.Disk) vim.VStorageObjectSnapshotInfo {
	var out vim.VStorageObjectSnapshotInfo
	for _, s := range d.Snapshots {
		out.Snapshots = append(out.Snapshots, vim.VStorageObjectSnapshotInfoVStorageObjectSnapshot{
			Id: &vim.ID{Id: s.ID}, BackingObjectId: s.ID, CreateTime: s.Created, Description: s.Description,
		})
	}
	return out
}

// snapshotDetails are the path of a snapshot and its change id, where it has
// one. Unverified: the path; a snapshot is the backing that was written to
// before it, so the first one is the disk's first file.
func (f *Face) snapshotDetails(id, on, snap string) (vim.VStorageObjectSnapshotDetails, error) {
	d, _, err := f.disk(id, on)
	if err != nil {
		return vim.VStorageObjectSnapshotDetails{}, err
	}
	f.mu.Lock()
	s, err := f.core.DiskSnapshot(id, snap)
	f.mu.Unlock()
	if err != nil {
		return vim.VStorageObjectSnapshotDetails{}, err
	}
	out := vim.VStorageObjectSnapshotDetails{Path: snapshotPath(d, snap)}
	if s.Tracked() {
		out.ChangedBlockTrackingId = f.ids.changeID(s)
	}
	return out, nil
}

// tag names a tag that must exist to be attached. Errors: NotFound.
func (f *Face) tag(category, name string) (cns.Tag, error) {
	t := cns.Tag{Category: category, Name: name}
	if f.cfg.HasTag != nil && !f.cfg.HasTag(category, name) {
		return t, &cns.Error{Kind: cns.NotFound, Field: "tag", Value: category + "/" + name, Reason: "no such tag"}
	}
	return t, nil
}

func (f *Face) attachTag(id, category, name string) error {
	t, err := f.tag(category, name)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.core.AttachTag(id, t)
}

func (f *Face) detachTag(id, category, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.core.DetachTag(id, cns.Tag{Category: category, Name: name})
}

func (f *Face) tagged(category, name string) ([]vim.ID, error) {
	t, err := f.tag(category, name)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return idList(f.core.Tagged(t)), nil
}

// tagsOf are the tags of a disk that there still are in the tagging service.
func (f *Face) tagsOf(id string) ([]vim.VslmTagEntry, error) {
	d, _, err := f.disk(id, "")
	if err != nil {
		return nil, err
	}
	var out []vim.VslmTagEntry
	for _, t := range d.Tags {
		if f.cfg.HasTag != nil && !f.cfg.HasTag(t.Category, t.Name) {
			continue
		}
		out = append(out, vim.VslmTagEntry{ParentCategoryName: t.Category, TagName: t.Name})
	}
	return out, nil
}

// diskKey is the device key of a disk in a VM's hardware.
func (f *Face) diskKey(c *simulator.Context, id, vm string) int32 {
	m, err := f.inv.look(c, vim.ManagedObjectReference{Type: "VirtualMachine", Value: vm})
	if err != nil {
		return 0
	}
	var key int32
	c.WithLock(m.obj, func() {
		for _, d := range m.obj.Config.Hardware.Device {
			if x, ok := d.(*vim.VirtualDisk); ok && x.VDiskId != nil && x.VDiskId.Id == id {
				key = x.Key
			}
		}
	})
	return key
}

// CreateDiskTask implements CreateDisk_Task.
func (m *storageObjects) CreateDiskTask(ctx *simulator.Context, req *vim.CreateDisk_Task) soap.HasFault {
	return &methods.CreateDisk_TaskBody{Res: &vim.CreateDisk_TaskResponse{Returnval: m.task(ctx, "CreateDisk_Task", req.Spec.Name, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		s, err := m.f.diskSpec(req.Spec)
		if err != nil {
			return nil, err
		}
		return m.f.createDisk(ctx, c, s)
	})}}
}

// RegisterDisk implements the method of the API.
func (m *storageObjects) RegisterDisk(_ *simulator.Context, req *vim.RegisterDisk) soap.HasFault {
	body := &methods.RegisterDiskBody{}
	r, err := m.f.registerDisk(m.f.inv.context(), req.Path, req.Name)
	if err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vim.RegisterDiskResponse{Returnval: r}
	return body
}

// ExtendDiskTask implements ExtendDisk_Task.
func (m *storageObjects) ExtendDiskTask(ctx *simulator.Context, req *vim.ExtendDisk_Task) soap.HasFault {
	return &methods.ExtendDisk_TaskBody{Res: &vim.ExtendDisk_TaskResponse{Returnval: m.task(ctx, "ExtendDisk_Task", req.Id.Id, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		return m.f.extendDisk(ctx, c, req.Id.Id, req.Datastore.Value, req.NewCapacityInMB)
	})}}
}

// VStorageObjectExtendDiskExTask implements VStorageObjectExtendDiskEx_Task.
func (m *storageObjects) VStorageObjectExtendDiskExTask(ctx *simulator.Context, req *vim.VStorageObjectExtendDiskEx_Task) soap.HasFault {
	return &methods.VStorageObjectExtendDiskEx_TaskBody{Res: &vim.VStorageObjectExtendDiskEx_TaskResponse{Returnval: m.task(ctx, "VStorageObjectExtendDiskEx_Task", req.Id.Id, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		if _, err := m.f.extendDisk(ctx, c, req.Id.Id, req.Datastore.Value, req.NewCapacityInMB); err != nil {
			return nil, err
		}
		return m.f.vclock(), nil
	})}}
}

// InflateDiskTask implements InflateDisk_Task.
func (m *storageObjects) InflateDiskTask(ctx *simulator.Context, req *vim.InflateDisk_Task) soap.HasFault {
	return &methods.InflateDisk_TaskBody{Res: &vim.InflateDisk_TaskResponse{Returnval: m.task(ctx, "InflateDisk_Task", req.Id.Id, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		return m.f.changeDisk(ctx, req.Id.Id, req.Datastore.Value, func() (cns.Disk, error) { return m.f.core.Inflate(req.Id.Id) })
	})}}
}

// RenameVStorageObject implements the method of the API.
func (m *storageObjects) RenameVStorageObject(_ *simulator.Context, req *vim.RenameVStorageObject) soap.HasFault {
	body := &methods.RenameVStorageObjectBody{}
	if err := m.f.rename(req.Id.Id, req.Datastore.Value, req.Name); err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vim.RenameVStorageObjectResponse{}
	return body
}

// RenameVStorageObjectEx implements the method of the API.
func (m *storageObjects) RenameVStorageObjectEx(_ *simulator.Context, req *vim.RenameVStorageObjectEx) soap.HasFault {
	body := &methods.RenameVStorageObjectExBody{}
	r, err := m.f.vclock(), m.f.rename(req.Id.Id, req.Datastore.Value, req.Name)
	if err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vim.RenameVStorageObjectExResponse{Returnval: r}
	return body
}

// UpdateVStorageObjectPolicyTask implements UpdateVStorageObjectPolicy_Task.
func (m *storageObjects) UpdateVStorageObjectPolicyTask(ctx *simulator.Context, req *vim.UpdateVStorageObjectPolicy_Task) soap.HasFault {
	return &methods.UpdateVStorageObjectPolicy_TaskBody{Res: &vim.UpdateVStorageObjectPolicy_TaskResponse{Returnval: m.task(ctx, "UpdateVStorageObjectPolicy_Task", req.Id.Id, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		return m.f.setPolicy(ctx, req.Id.Id, req.Datastore.Value, req.Profile)
	})}}
}

// UpdateVStorageObjectCryptoTask implements UpdateVStorageObjectCrypto_Task.
func (m *storageObjects) UpdateVStorageObjectCryptoTask(ctx *simulator.Context, req *vim.UpdateVStorageObjectCrypto_Task) soap.HasFault {
	return &methods.UpdateVStorageObjectCrypto_TaskBody{Res: &vim.UpdateVStorageObjectCrypto_TaskResponse{Returnval: m.task(ctx, "UpdateVStorageObjectCrypto_Task", req.Id.Id, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		return m.f.setCrypto(ctx, req.Id.Id, req.Datastore.Value, req.Profile, req.DisksCrypto)
	})}}
}

// DeleteVStorageObjectTask implements DeleteVStorageObject_Task.
func (m *storageObjects) DeleteVStorageObjectTask(ctx *simulator.Context, req *vim.DeleteVStorageObject_Task) soap.HasFault {
	return &methods.DeleteVStorageObject_TaskBody{Res: &vim.DeleteVStorageObject_TaskResponse{Returnval: m.task(ctx, "DeleteVStorageObject_Task", req.Id.Id, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		return m.f.deleteDisk(ctx, c, req.Id.Id, req.Datastore.Value)
	})}}
}

// DeleteVStorageObjectExTask implements DeleteVStorageObjectEx_Task.
func (m *storageObjects) DeleteVStorageObjectExTask(ctx *simulator.Context, req *vim.DeleteVStorageObjectEx_Task) soap.HasFault {
	return &methods.DeleteVStorageObjectEx_TaskBody{Res: &vim.DeleteVStorageObjectEx_TaskResponse{Returnval: m.task(ctx, "DeleteVStorageObjectEx_Task", req.Id.Id, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		if _, err := m.f.deleteDisk(ctx, c, req.Id.Id, req.Datastore.Value); err != nil {
			return nil, err
		}
		return m.f.vclock(), nil
	})}}
}

// RetrieveVStorageObject implements the method of the API.
func (m *storageObjects) RetrieveVStorageObject(_ *simulator.Context, req *vim.RetrieveVStorageObject) soap.HasFault {
	body := &methods.RetrieveVStorageObjectBody{}
	r, err := m.f.object(m.f.inv.context(), req.Id.Id, req.Datastore.Value)
	if err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vim.RetrieveVStorageObjectResponse{Returnval: r}
	return body
}

// RetrieveVStorageObjectState implements the method of the API.
func (m *storageObjects) RetrieveVStorageObjectState(_ *simulator.Context, req *vim.RetrieveVStorageObjectState) soap.HasFault {
	body := &methods.RetrieveVStorageObjectStateBody{}
	r, err := m.f.state(req.Id.Id, req.Datastore.Value)
	if err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vim.RetrieveVStorageObjectStateResponse{Returnval: r}
	return body
}

// CloneVStorageObjectTask implements CloneVStorageObject_Task.
func (m *storageObjects) CloneVStorageObjectTask(ctx *simulator.Context, req *vim.CloneVStorageObject_Task) soap.HasFault {
	return &methods.CloneVStorageObject_TaskBody{Res: &vim.CloneVStorageObject_TaskResponse{Returnval: m.task(ctx, "CloneVStorageObject_Task", req.Id.Id, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		if _, _, err := m.f.disk(req.Id.Id, req.Datastore.Value); err != nil {
			return nil, err
		}
		s, err := m.f.cloneSpec(req.Id.Id, req.Spec)
		if err != nil {
			return nil, err
		}
		return m.f.createDisk(ctx, c, s)
	})}}
}

// RelocateVStorageObjectTask implements RelocateVStorageObject_Task.
func (m *storageObjects) RelocateVStorageObjectTask(ctx *simulator.Context, req *vim.RelocateVStorageObject_Task) soap.HasFault {
	return &methods.RelocateVStorageObject_TaskBody{Res: &vim.RelocateVStorageObject_TaskResponse{Returnval: m.task(ctx, "RelocateVStorageObject_Task", req.Id.Id, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		return m.f.relocateDisk(ctx, c, req.Id.Id, req.Datastore.Value, req.Spec.VslmMigrateSpec)
	})}}
}

// SetVStorageObjectControlFlags implements the method of the API.
func (m *storageObjects) SetVStorageObjectControlFlags(_ *simulator.Context, req *vim.SetVStorageObjectControlFlags) soap.HasFault {
	body := &methods.SetVStorageObjectControlFlagsBody{}
	if err := m.f.flags(req.Id.Id, req.Datastore.Value, req.ControlFlags, true); err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vim.SetVStorageObjectControlFlagsResponse{}
	return body
}

// ClearVStorageObjectControlFlags implements the method of the API.
func (m *storageObjects) ClearVStorageObjectControlFlags(_ *simulator.Context, req *vim.ClearVStorageObjectControlFlags) soap.HasFault {
	body := &methods.ClearVStorageObjectControlFlagsBody{}
	if err := m.f.flags(req.Id.Id, req.Datastore.Value, req.ControlFlags, false); err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vim.ClearVStorageObjectControlFlagsResponse{}
	return body
}

// AttachTagToVStorageObject implements the method of the API.
func (m *storageObjects) AttachTagToVStorageObject(_ *simulator.Context, req *vim.AttachTagToVStorageObject) soap.HasFault {
	body := &methods.AttachTagToVStorageObjectBody{}
	if err := m.f.attachTag(req.Id.Id, req.Category, req.Tag); err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vim.AttachTagToVStorageObjectResponse{}
	return body
}

// DetachTagFromVStorageObject implements the method of the API.
func (m *storageObjects) DetachTagFromVStorageObject(_ *simulator.Context, req *vim.DetachTagFromVStorageObject) soap.HasFault {
	body := &methods.DetachTagFromVStorageObjectBody{}
	if err := m.f.detachTag(req.Id.Id, req.Category, req.Tag); err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vim.DetachTagFromVStorageObjectResponse{}
	return body
}

// ListVStorageObjectsAttachedToTag implements the method of the API.
func (m *storageObjects) ListVStorageObjectsAttachedToTag(_ *simulator.Context, req *vim.ListVStorageObjectsAttachedToTag) soap.HasFault {
	body := &methods.ListVStorageObjectsAttachedToTagBody{}
	r, err := m.f.tagged(req.Category, req.Tag)
	if err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vim.ListVStorageObjectsAttachedToTagResponse{Returnval: r}
	return body
}

// ListTagsAttachedToVStorageObject implements the method of the API.
func (m *storageObjects) ListTagsAttachedToVStorageObject(_ *simulator.Context, req *vim.ListTagsAttachedToVStorageObject) soap.HasFault {
	body := &methods.ListTagsAttachedToVStorageObjectBody{}
	r, err := m.f.tagsOf(req.Id.Id)
	if err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vim.ListTagsAttachedToVStorageObjectResponse{Returnval: r}
	return body
}

// VStorageObjectCreateSnapshotTask implements VStorageObjectCreateSnapshot_Task. The result is the
// id of the snapshot.
func (m *storageObjects) VStorageObjectCreateSnapshotTask(ctx *simulator.Context, req *vim.VStorageObjectCreateSnapshot_Task) soap.HasFault {
	return &methods.VStorageObjectCreateSnapshot_TaskBody{Res: &vim.VStorageObjectCreateSnapshot_TaskResponse{Returnval: m.task(ctx, "VStorageObjectCreateSnapshot_Task", req.Id.Id, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		s, err := m.f.snapshotDisk(ctx, req.Id.Id, req.Datastore.Value, req.Description)
		if err != nil {
			return nil, err
		}
		return vim.ID{Id: s.ID}, nil
	})}}
}

// VStorageObjectCreateSnapshotExTask implements VStorageObjectCreateSnapshotEx_Task.
func (m *storageObjects) VStorageObjectCreateSnapshotExTask(ctx *simulator.Context, req *vim.VStorageObjectCreateSnapshotEx_Task) soap.HasFault {
	return &methods.VStorageObjectCreateSnapshotEx_TaskBody{Res: &vim.VStorageObjectCreateSnapshotEx_TaskResponse{Returnval: m.task(ctx, "VStorageObjectCreateSnapshotEx_Task", req.Id.Id, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		s, err := m.f.snapshotDisk(ctx, req.Id.Id, req.Datastore.Value, req.Description)
		if err != nil {
			return nil, err
		}
		return vim.VStorageObjectSnapshot{Id: vim.ID{Id: s.ID}, Vclock: m.f.vclock()}, nil
	})}}
}

// DeleteSnapshotTask implements DeleteSnapshot_Task.
func (m *storageObjects) DeleteSnapshotTask(ctx *simulator.Context, req *vim.DeleteSnapshot_Task) soap.HasFault {
	return &methods.DeleteSnapshot_TaskBody{Res: &vim.DeleteSnapshot_TaskResponse{Returnval: m.task(ctx, "DeleteSnapshot_Task", req.Id.Id, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		return m.f.deleteDiskSnapshot(ctx, req.Id.Id, req.Datastore.Value, req.SnapshotId.Id)
	})}}
}

// VStorageObjectDeleteSnapshotExTask implements VStorageObjectDeleteSnapshotEx_Task.
func (m *storageObjects) VStorageObjectDeleteSnapshotExTask(ctx *simulator.Context, req *vim.VStorageObjectDeleteSnapshotEx_Task) soap.HasFault {
	return &methods.VStorageObjectDeleteSnapshotEx_TaskBody{Res: &vim.VStorageObjectDeleteSnapshotEx_TaskResponse{Returnval: m.task(ctx, "VStorageObjectDeleteSnapshotEx_Task", req.Id.Id, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		if _, err := m.f.deleteDiskSnapshot(ctx, req.Id.Id, req.Datastore.Value, req.SnapshotId.Id); err != nil {
			return nil, err
		}
		return m.f.vclock(), nil
	})}}
}

// RetrieveSnapshotInfo implements the method of the API.
func (m *storageObjects) RetrieveSnapshotInfo(_ *simulator.Context, req *vim.RetrieveSnapshotInfo) soap.HasFault {
	body := &methods.RetrieveSnapshotInfoBody{}
	r, err := m.f.snapshotsOf(req.Id.Id, req.Datastore.Value)
	if err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vim.RetrieveSnapshotInfoResponse{Returnval: r}
	return body
}

// RetrieveSnapshotDetails implements the method of the API.
func (m *storageObjects) RetrieveSnapshotDetails(_ *simulator.Context, req *vim.RetrieveSnapshotDetails) soap.HasFault {
	body := &methods.RetrieveSnapshotDetailsBody{}
	r, err := m.f.snapshotDetails(req.Id.Id, req.Datastore.Value, req.SnapshotId.Id)
	if err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vim.RetrieveSnapshotDetailsResponse{Returnval: r}
	return body
}

// CreateDiskFromSnapshotTask implements CreateDiskFromSnapshot_Task.
func (m *storageObjects) CreateDiskFromSnapshotTask(ctx *simulator.Context, req *vim.CreateDiskFromSnapshot_Task) soap.HasFault {
	return &methods.CreateDiskFromSnapshot_TaskBody{Res: &vim.CreateDiskFromSnapshot_TaskResponse{Returnval: m.task(ctx, "CreateDiskFromSnapshot_Task", req.Id.Id, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		if _, _, err := m.f.disk(req.Id.Id, req.Datastore.Value); err != nil {
			return nil, err
		}
		s, err := m.f.snapshotSpec(req.Id.Id, req.SnapshotId.Id, req.Name, req.Profile, req.Crypto, req.Path, req.IsLinkedClone != nil && *req.IsLinkedClone)
		if err != nil {
			return nil, err
		}
		return m.f.createDisk(ctx, c, s)
	})}}
}

// RevertVStorageObjectTask implements RevertVStorageObject_Task.
func (m *storageObjects) RevertVStorageObjectTask(ctx *simulator.Context, req *vim.RevertVStorageObject_Task) soap.HasFault {
	return &methods.RevertVStorageObject_TaskBody{Res: &vim.RevertVStorageObject_TaskResponse{Returnval: m.task(ctx, "RevertVStorageObject_Task", req.Id.Id, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		return m.f.revertDisk(ctx, req.Id.Id, req.Datastore.Value, req.SnapshotId.Id)
	})}}
}

// RevertVStorageObjectExTask implements RevertVStorageObjectEx_Task.
func (m *storageObjects) RevertVStorageObjectExTask(ctx *simulator.Context, req *vim.RevertVStorageObjectEx_Task) soap.HasFault {
	return &methods.RevertVStorageObjectEx_TaskBody{Res: &vim.RevertVStorageObjectEx_TaskResponse{Returnval: m.task(ctx, "RevertVStorageObjectEx_Task", req.Id.Id, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		if _, err := m.f.revertDisk(ctx, req.Id.Id, req.Datastore.Value, req.SnapshotId.Id); err != nil {
			return nil, err
		}
		return m.f.vclock(), nil
	})}}
}

// VstorageObjectVCenterQueryChangedDiskAreas implements the method of the API.
func (m *storageObjects) VstorageObjectVCenterQueryChangedDiskAreas(_ *simulator.Context, req *vim.VstorageObjectVCenterQueryChangedDiskAreas) soap.HasFault {
	body := &methods.VstorageObjectVCenterQueryChangedDiskAreasBody{}
	r, err := m.f.changedAreas(req.Id.Id, req.Datastore.Value, req.SnapshotId.Id, req.StartOffset, req.ChangeId)
	if err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vim.VstorageObjectVCenterQueryChangedDiskAreasResponse{Returnval: r}
	return body
}

// VCenterUpdateVStorageObjectMetadataExTask implements VCenterUpdateVStorageObjectMetadataEx_Task.
func (m *storageObjects) VCenterUpdateVStorageObjectMetadataExTask(ctx *simulator.Context, req *vim.VCenterUpdateVStorageObjectMetadataEx_Task) soap.HasFault {
	return &methods.VCenterUpdateVStorageObjectMetadataEx_TaskBody{Res: &vim.VCenterUpdateVStorageObjectMetadataEx_TaskResponse{Returnval: m.task(ctx, "VCenterUpdateVStorageObjectMetadataEx_Task", req.Id.Id, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		return m.f.changeDisk(ctx, req.Id.Id, req.Datastore.Value, func() (cns.Disk, error) {
			return m.f.core.UpdateValues(req.Id.Id, labels(req.Metadata), req.DeleteKeys)
		})
	})}}
}

// ListVStorageObject lists the disks of a datastore.
func (m *storageObjects) ListVStorageObject(_ *simulator.Context, req *vim.ListVStorageObject) soap.HasFault {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	return &methods.ListVStorageObjectBody{Res: &vim.ListVStorageObjectResponse{Returnval: idList(m.f.core.DisksOn(req.Datastore.Value))}}
}

// RetrieveVStorageObjectAssociations says which VMs hold disks; what is not
// found has a fault of its own. Unverified: that a VM goes by its managed
// object id here.
func (m *storageObjects) RetrieveVStorageObjectAssociations(_ *simulator.Context, req *vim.RetrieveVStorageObjectAssociations) soap.HasFault {
	res := &vim.RetrieveVStorageObjectAssociationsResponse{}
	for _, s := range req.Ids {
		a := vim.VStorageObjectAssociations{Id: s.Id}
		_, holders, err := m.f.disk(s.Id.Id, s.Datastore.Value)
		if err != nil {
			a.Fault = fcdFault(err)
		}
		for _, h := range holders {
			a.VmDiskAssociations = append(a.VmDiskAssociations, vim.VStorageObjectAssociationsVmDiskAssociations{VmId: h.VM, DiskKey: m.f.diskKey(m.f.inv.context(), s.Id.Id, h.VM)})
		}
		res.Returnval = append(res.Returnval, a)
	}
	return &methods.RetrieveVStorageObjectAssociationsBody{Res: res}
}

// ReconcileDatastoreInventoryTask implements ReconcileDatastoreInventory_Task.
// The catalogue always agrees with the datastore here; CNS's record of a disk
// that is gone is CNS's own matter.
func (m *storageObjects) ReconcileDatastoreInventoryTask(ctx *simulator.Context, _ *vim.ReconcileDatastoreInventory_Task) soap.HasFault {
	return &methods.ReconcileDatastoreInventory_TaskBody{Res: &vim.ReconcileDatastoreInventory_TaskResponse{
		Returnval: m.task(ctx, "ReconcileDatastoreInventory_Task", "", func(context.Context, *simulator.Context) (vim.AnyType, error) { return nil, nil }),
	}}
}

// ReconcileDatastoreInventoryExTask implements
// ReconcileDatastoreInventoryEx_Task.
func (m *storageObjects) ReconcileDatastoreInventoryExTask(ctx *simulator.Context, _ *vim.ReconcileDatastoreInventoryEx_Task) soap.HasFault {
	return &methods.ReconcileDatastoreInventoryEx_TaskBody{Res: &vim.ReconcileDatastoreInventoryEx_TaskResponse{
		Returnval: m.task(ctx, "ReconcileDatastoreInventoryEx_Task", "", func(context.Context, *simulator.Context) (vim.AnyType, error) { return nil, nil }),
	}}
}

// ScheduleReconcileDatastoreInventory implements the method of the API.
func (m *storageObjects) ScheduleReconcileDatastoreInventory(*simulator.Context, *vim.ScheduleReconcileDatastoreInventory) soap.HasFault {
	return &methods.ScheduleReconcileDatastoreInventoryBody{Res: &vim.ScheduleReconcileDatastoreInventoryResponse{}}
}

// RetrieveVStorageInfrastructureObjectPolicy lists the policies of what the
// service itself keeps on a datastore: nothing here.
func (m *storageObjects) RetrieveVStorageInfrastructureObjectPolicy(*simulator.Context, *vim.RetrieveVStorageInfrastructureObjectPolicy) soap.HasFault {
	return &methods.RetrieveVStorageInfrastructureObjectPolicyBody{Res: &vim.RetrieveVStorageInfrastructureObjectPolicyResponse{}}
}

// UpdateVStorageInfrastructureObjectPolicyTask implements
// UpdateVStorageInfrastructureObjectPolicy_Task.
func (m *storageObjects) UpdateVStorageInfrastructureObjectPolicyTask(*simulator.Context, *vim.UpdateVStorageInfrastructureObjectPolicy_Task) soap.HasFault {
	return &methods.UpdateVStorageInfrastructureObjectPolicy_TaskBody{Fault_: simulator.Fault(textNotSupported, &vim.NotSupported{})}
}

// state of a disk: never tentative, for it is made before it can be seen.
func (f *Face) state(id, on string) (vim.VStorageObjectStateInfo, error) {
	_, _, err := f.disk(id, on)
	return vim.VStorageObjectStateInfo{Tentative: vim.NewBool(false)}, err
}

func (f *Face) snapshotsOf(id, on string) (vim.VStorageObjectSnapshotInfo, error) {
	d, _, err := f.disk(id, on)
	return snapshotInfo(d), err
}

// snapshotPath is the file that a snapshot ended.
func snapshotPath(d cns.Disk, snap string) string {
	for n, s := range d.Snapshots {
		if s.ID == snap && n > 0 {
			return fmt.Sprintf("%s-%06d.vmdk", strings.TrimSuffix(d.DiskPath, ".vmdk"), n)
		}
	}
	return d.DiskPath
}

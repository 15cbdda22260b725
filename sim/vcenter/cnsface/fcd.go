package cnsface

import (
	"context"
	"strings"
	"time"

	"github.com/vmware/govmomi/simulator"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
	"github.com/csilab/csilab/sim/vcenter/task"
)

// What can be done to first class disks, apart from the endpoint that it is
// asked at: the VStorageObjectManager of vim25 (fcd_vim.go) or that of VSLM
// (vslm.go). Both take the same locks as CNS does, for a volume is such a disk.

// fcdRef is the VStorageObjectManager of vim25, the entity of its tasks.
var fcdRef = vim.ManagedObjectReference{Type: "VcenterVStorageObjectManager", Value: "VStorageObjectManager"}

// fcdTask starts a task about a first class disk. Unlike with CNS, what is
// refused fails the task. Unverified: the description ids; those that are seen
// are "com.vmware.vslm.tasks.…" or "vslm.vcenter.VStorageObjectManager.…".
func (f *Face) fcdTask(rc *simulator.Context, call TaskCall, entity vim.ManagedObjectReference, do work) vim.ManagedObjectReference {
	what := strings.TrimPrefix(strings.TrimSuffix(call.Op, "_Task"), "Vslm")
	return f.tasks.Start(rc, task.Job{
		Call: call, Entity: entity, EntityName: entity.Value, Name: call.Op,
		DescriptionID: "com.vmware.vslm.tasks." + strings.ToLower(what[:1]) + what[1:],
		Work: func(ctx context.Context, _ *simulator.Context) (vim.AnyType, error) {
			r, err := do(ctx, f.inv.context())
			if err != nil {
				return nil, &task.Error{Fault: fcdFault(err)}
			}
			return r, nil
		},
	})
}

// lockDisks locks disks. Errors: RequestCanceled.
func (f *Face) lockDisks(ctx context.Context, ids ...string) (unlock func(), err error) {
	unlock, err = f.volumes.lockAll(ctx, ids...)
	if err != nil {
		return nil, &taskError{local(&vim.RequestCanceled{}, err.Error())}
	}
	return unlock, nil
}

// changeDisk runs a command of the core on a disk that must lie on a datastore ("":
// anywhere), with the disk locked.
func (f *Face) changeDisk(ctx context.Context, id, on string, command func() (cns.Disk, error)) (vim.AnyType, error) {
	unlock, err := f.lockDisks(ctx, id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if _, _, err := f.disk(id, on); err != nil {
		return nil, err
	}
	f.mu.Lock()
	_, err = command()
	f.mu.Unlock()
	return nil, err
}

// createDisk makes a disk, new or from another one, with its content first, so
// that no disk is ever without.
func (f *Face) createDisk(ctx context.Context, c *simulator.Context, s cns.DiskSpec) (vim.AnyType, error) {
	f.inv.refresh(c)
	keys := []string{s.ID}
	if s.From != nil {
		keys = append(keys, s.From.Volume)
	}
	unlock, err := f.lockDisks(ctx, keys...)
	if err != nil {
		return nil, err
	}
	defer unlock()
	f.mu.Lock()
	d, err := f.core.PlanCreateDisk(s)
	f.mu.Unlock()
	switch {
	case err != nil:
	case s.PolicyID != "":
		err = f.satisfies(s.PolicyID, d.Datastore)
	case d.PolicyID == "" && f.cfg.DefaultPolicy != nil:
		s.PolicyID = f.cfg.DefaultPolicy(d.Datastore)
	}
	if err == nil && s.Path != "" {
		err = f.inv.freePath(c, d.DiskPath)
	}
	if err != nil {
		return nil, err
	}
	if f.cfg.Disks != nil {
		size := d.CapacityMB << 20
		switch {
		case s.From == nil:
			err = f.cfg.Disks.Create(d.ID, size)
		case s.From.Snapshot == "":
			err = f.cfg.Disks.Clone(s.From.Volume, d.ID, size)
		default:
			err = f.cfg.Disks.Restore(s.From.Volume, s.From.Snapshot, d.ID, size)
		}
		if err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	d, err = f.core.CreateDisk(time.Now(), s)
	f.mu.Unlock()
	if err != nil { // the space or the path went to another disk meanwhile
		f.dropImage(s.ID)
		return nil, err
	}
	f.inv.account(c, d.Datastore)
	return f.storageObject(c, d, nil), nil
}

// dropImage undoes the making of an image.
func (f *Face) dropImage(id string) {
	if f.cfg.Disks == nil {
		return
	}
	if err := f.cfg.Disks.Delete(id); err != nil {
		f.log.Error("undo an image", "disk", id, "err", err)
	}
}

// deleteDisk deletes a disk. CNS is not told.
func (f *Face) deleteDisk(ctx context.Context, c *simulator.Context, id, on string) (vim.AnyType, error) {
	unlock, err := f.lockDisks(ctx, id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if _, _, err := f.disk(id, on); err != nil {
		return nil, err
	}
	f.mu.Lock()
	_, err = f.core.PlanDeleteDisk(id)
	f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if f.cfg.Disks != nil {
		if err := f.cfg.Disks.Delete(id); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	d, err := f.core.DeleteDisk(id)
	f.mu.Unlock()
	if err != nil { // can't be: the disk is locked since it was looked at
		return nil, err
	}
	f.ids.forget(id)
	f.inv.account(c, d.Datastore)
	return nil, nil
}

// loseDisk deletes a disk and its snapshots whatever stands against it; the
// disk is locked. It says whether there was one.
func (f *Face) loseDisk(c *simulator.Context, id string) bool {
	f.mu.Lock()
	lost := f.core.LoseDisk(id)
	f.mu.Unlock()
	f.lost(c, lost)
	return len(lost) > 0
}

// LoseDisk deletes a first class disk with its snapshots behind CNS's back, as
// an administrator does who deletes its files, or the deletion of a VM that
// held it where the disk lacks keepAfterDeleteVm. A volume stays on record
// without its disk until CNS syncs. Errors: NotFound.
func (f *Face) LoseDisk(ctx context.Context, id string) error {
	unlock, err := f.lockDisks(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	if !f.loseDisk(f.inv.context(), id) {
		return &cns.Error{Kind: cns.NotFound, Field: "id", Value: id, Reason: "no such first class disk"}
	}
	return nil
}

// extendDisk enlarges a disk, attached or not.
func (f *Face) extendDisk(ctx context.Context, c *simulator.Context, id, on string, capacityMB int64) (vim.AnyType, error) {
	unlock, err := f.lockDisks(ctx, id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	old, holders, err := f.disk(id, on)
	if err != nil {
		return nil, err
	}
	// The core first: it holds the space, and an image can't shrink again.
	f.mu.Lock()
	d, err := f.core.ExtendDisk(id, capacityMB)
	f.mu.Unlock()
	if err != nil || d.CapacityMB == old.CapacityMB {
		return nil, err
	}
	if f.cfg.Disks != nil {
		if err := f.cfg.Disks.Grow(id, capacityMB<<20); err != nil {
			f.mu.Lock()
			f.core.UndoExtendDisk(old)
			f.mu.Unlock()
			return nil, err
		}
	}
	f.inv.account(c, d.Datastore)
	f.grown(ctx, c, id, capacityMB, holders)
	return nil, nil
}

// relocateDisk moves a detached disk. Unverified: that one which a VM holds is
// refused; VSLM has a migrate of VMs for that.
func (f *Face) relocateDisk(ctx context.Context, c *simulator.Context, id, on string, s vim.VslmMigrateSpec) (vim.AnyType, error) {
	b, err := backingOf(s.BackingSpec, id)
	if err != nil {
		return nil, err
	}
	policy, err := f.policyOf(s.Profile)
	if err != nil {
		return nil, err
	}
	if s.Service != nil {
		return nil, &cns.Error{Kind: cns.NotSupported, Field: "spec.service", Value: s.Service.Url, Reason: "moves to another vCenter are not simulated"}
	}
	f.inv.refresh(c)
	unlock, err := f.lockDisks(ctx, id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	old, holders, err := f.disk(id, on)
	if err != nil {
		return nil, err
	}
	if len(holders) > 0 {
		return nil, &cns.Error{Kind: cns.Attached, Field: "id", Value: id, Holder: holders[0].VM, Reason: "a VM holds the disk"}
	}
	f.mu.Lock()
	pins := f.core.Pinned(id)
	f.mu.Unlock()
	if len(pins) > 0 {
		return nil, &cns.Error{Kind: cns.Pinned, Field: "id", Value: id, Holder: pins[0], Reason: "a snapshot of a VM holds the disk"}
	}
	if err := f.satisfies(policy, b.datastore); err != nil {
		return nil, err
	}
	f.mu.Lock()
	d, err := f.core.Relocate(cns.RelocateSpec{Disk: id, Datastore: b.datastore, PolicyID: policy})
	f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	f.inv.account(c, old.Datastore)
	f.inv.account(c, d.Datastore)
	return f.storageObject(c, d, nil), nil
}

// registerDisk makes a first class disk of the virtual disk at a URL.
func (f *Face) registerDisk(c *simulator.Context, urlPath, name string) (vim.VStorageObject, error) {
	_, diskPath, err := f.inv.diskPathOfURL(c, urlPath)
	if err != nil {
		return vim.VStorageObject{}, err
	}
	if _, held := f.inv.vmFile(c, diskPath); held {
		return vim.VStorageObject{}, &cns.Error{Kind: cns.NotSupported, Field: "path", Value: urlPath, Reason: "the disk of a VM has no content here"}
	}
	f.mu.Lock()
	d, err := f.core.RegisterDisk(diskPath, name)
	f.mu.Unlock()
	if err != nil {
		return vim.VStorageObject{}, err
	}
	return f.storageObject(c, d, nil), nil
}

// snapshotDisk takes a snapshot of a disk; the result is its id.
func (f *Face) snapshotDisk(ctx context.Context, id, on, description string) (cns.Snapshot, error) {
	unlock, err := f.lockDisks(ctx, id)
	if err != nil {
		return cns.Snapshot{}, err
	}
	defer unlock()
	if _, _, err := f.disk(id, on); err != nil {
		return cns.Snapshot{}, err
	}
	snap := ""
	for snap == "" {
		snap = f.ids.snapshot(id, description)
		f.mu.Lock()
		if _, err := f.core.DiskSnapshot(id, snap); err == nil {
			snap = "" // after a restart the count starts anew
		}
		f.mu.Unlock()
	}
	f.mu.Lock()
	_, err = f.core.PlanSnapshotDisk(id, snap, description)
	f.mu.Unlock()
	if err != nil {
		return cns.Snapshot{}, err
	}
	if f.cfg.Disks != nil {
		if err := f.cfg.Disks.Snapshot(id, snap); err != nil {
			return cns.Snapshot{}, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.core.SnapshotDisk(time.Now(), id, snap, description)
}

func (f *Face) deleteDiskSnapshot(ctx context.Context, id, on, snap string) (vim.AnyType, error) {
	unlock, err := f.lockDisks(ctx, id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if _, _, err := f.disk(id, on); err != nil {
		return nil, err
	}
	f.mu.Lock()
	_, err = f.core.PlanDeleteDiskSnapshot(id, snap)
	f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if f.cfg.Disks != nil {
		if err := f.cfg.Disks.DeleteSnapshot(id, snap); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	_, err = f.core.DeleteDiskSnapshot(id, snap)
	f.mu.Unlock()
	return nil, err
}

// revertDisk gives a detached disk the content of a snapshot; later snapshots
// are deleted.
func (f *Face) revertDisk(ctx context.Context, id, on, snap string) (vim.AnyType, error) {
	unlock, err := f.lockDisks(ctx, id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if _, _, err := f.disk(id, on); err != nil {
		return nil, err
	}
	f.mu.Lock()
	dropped, err := f.core.PlanRevert(id, snap)
	f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if f.cfg.Disks != nil {
		if err := f.cfg.Disks.Revert(id, snap); err != nil {
			return nil, err
		}
		for _, s := range dropped {
			// Nobody can reach it any more: at worst it takes space.
			if err := f.cfg.Disks.DeleteSnapshot(id, s.ID); err != nil {
				f.log.Error("delete a snapshot that a revert dropped", "disk", id, "snapshot", s.ID, "err", err)
			}
		}
	}
	f.mu.Lock()
	_, err = f.core.Revert(id, snap)
	f.mu.Unlock()
	return nil, err
}

// diskSpec is the specification of a new disk.
func (f *Face) diskSpec(s vim.VslmCreateSpec) (cns.DiskSpec, error) {
	d := cns.DiskSpec{Name: s.Name, CapacityMB: s.CapacityInMB, Values: labels(s.Metadata), Keep: s.KeepAfterDeleteVm != nil && *s.KeepAfterDeleteVm}
	d.ID = f.newVolumeID(s.Name, false)
	b, err := backingOf(s.BackingSpec, d.ID)
	if err != nil {
		return d, err
	}
	d.Datastore, d.Path, d.Provisioning = b.datastore, b.path, b.provisioning
	if d.PolicyID, err = f.policyOf(s.Profile); err != nil {
		return d, err
	}
	d.Key, err = newKey(s.Crypto)
	return d, err
}

// cloneSpec is the specification of a copy of a disk.
func (f *Face) cloneSpec(id string, s vim.VslmCloneSpec) (cns.DiskSpec, error) {
	d, err := f.diskSpec(vim.VslmCreateSpec{Name: s.Name, KeepAfterDeleteVm: s.KeepAfterDeleteVm, BackingSpec: s.BackingSpec, Profile: s.Profile, Metadata: s.Metadata})
	if err != nil {
		return d, err
	}
	if s.Service != nil {
		return d, &cns.Error{Kind: cns.NotSupported, Field: "spec.service", Value: s.Service.Url, Reason: "copies to another vCenter are not simulated"}
	}
	if s.DisksCrypto != nil {
		if d.Key, err = newKey(s.DisksCrypto.Crypto); err != nil {
			return d, err
		}
	}
	d.From = &cns.Source{Volume: id}
	return d, nil
}

// snapshotSpec is the specification of a disk that is made from a snapshot.
func (f *Face) snapshotSpec(id, snap, name string, profile []vim.BaseVirtualMachineProfileSpec, crypto vim.BaseCryptoSpec, path string, linked bool) (cns.DiskSpec, error) {
	d := cns.DiskSpec{ID: f.newVolumeID(name, false), Name: name, From: &cns.Source{Volume: id, Snapshot: snap}, Linked: linked}
	d.Path = filePath(path, d.ID)
	if linked && !f.release.atLeast(release91) {
		return d, &cns.Error{Kind: cns.NotSupported, Field: "isLinkedClone", Value: "true", Reason: "linked clones came with 9.1"}
	}
	if snap == "" { // that would be a copy of the disk as it is
		return d, &cns.Error{Kind: cns.InvalidArgument, Field: "snapshotId", Reason: "empty"}
	}
	var err error
	if d.PolicyID, err = f.policyOf(profile); err != nil {
		return d, err
	}
	d.Key, err = newKey(crypto)
	return d, err
}

// setPolicy gives a disk another policy, which its datastore must satisfy;
// profiles that name none leave it.
func (f *Face) setPolicy(ctx context.Context, id, on string, profiles []vim.BaseVirtualMachineProfileSpec) (vim.AnyType, error) {
	return f.setCrypto(ctx, id, on, profiles, nil)
}

// setCrypto encrypts a disk, gives it another key or decrypts it, and may give
// it another policy.
func (f *Face) setCrypto(ctx context.Context, id, on string, profiles []vim.BaseVirtualMachineProfileSpec, s *vim.DiskCryptoSpec) (vim.AnyType, error) {
	var what cns.Crypt
	var key cns.Key
	policy, err := f.policyOf(profiles)
	if err == nil && s != nil {
		what, key, err = cryptOf(s.Crypto)
	}
	if err != nil {
		return nil, err
	}
	unlock, err := f.lockDisks(ctx, id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	d, _, err := f.disk(id, on)
	if err == nil {
		err = f.satisfies(policy, d.Datastore)
	}
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if what != "" {
		_, err = f.core.Crypt(id, what, key)
	}
	if err == nil && policy != "" {
		_, err = f.core.SetPolicy(id, policy)
	}
	return nil, err
}

// attachDisk plugs a disk into a VM.
func (f *Face) attachDisk(ctx context.Context, c *simulator.Context, vm vim.ManagedObjectReference, id, on string, controller int32, unit *int32) (vim.AnyType, error) {
	if _, _, err := f.disk(id, on); err != nil {
		return nil, err
	}
	spec := cns.AttachSpec{Volume: id, Disk: true}
	if controller != 0 || unit != nil {
		spec.Slot = &cns.Slot{Controller: controller, Unit: cns.AnyUnit}
		if unit != nil {
			if *unit < 0 {
				return nil, &cns.Error{Kind: cns.InvalidArgument, Field: "unitNumber", Reason: "allowed are 0 and more"}
			}
			spec.Slot.Unit = *unit
		}
	}
	_, err := f.plugIn(ctx, c, vm, spec)
	return nil, err
}

// AttachDisk starts the task of VirtualMachine.AttachDisk.
func (f *Face) AttachDisk(rc *simulator.Context, req *vim.AttachDisk_Task) vim.ManagedObjectReference {
	return f.fcdTask(rc, TaskCall{Op: "AttachDisk_Task", Volume: req.DiskId.Id, VM: req.This.Value}, req.This, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		return f.attachDisk(ctx, c, req.This, req.DiskId.Id, req.Datastore.Value, req.ControllerKey, req.UnitNumber)
	})
}

// DetachDisk starts the task of VirtualMachine.DetachDisk.
func (f *Face) DetachDisk(rc *simulator.Context, req *vim.DetachDisk_Task) vim.ManagedObjectReference {
	return f.fcdTask(rc, TaskCall{Op: "DetachDisk_Task", Volume: req.DiskId.Id, VM: req.This.Value}, req.This, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		return nil, f.pullOut(ctx, c, req.DiskId.Id, req.This, func(id string, vm cns.VM) (cns.Attachment, bool, error) {
			a, err := f.core.PlanDetachDisk(id, vm)
			return a, true, err
		})
	})
}

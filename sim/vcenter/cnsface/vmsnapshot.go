package cnsface

import (
	"context"
	"strings"

	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// A snapshot of a VM holds the content of the VM's dependent disks too. The
// store of images has it under a name that CNS knows nothing of.

// Keep takes the content of disks for a snapshot of a VM that holds them.
func (f *Face) Keep(ctx context.Context, name string, disks []string) vim.BaseMethodFault {
	if f.cfg.Disks == nil {
		return nil
	}
	unlock, err := f.volumes.lockAll(ctx, append([]string(nil), disks...)...)
	if err != nil {
		return &vim.RequestCanceled{}
	}
	defer unlock()
	for i, id := range disks {
		if err := f.cfg.Disks.Snapshot(id, name); err != nil {
			f.Unkeep(name, disks[:i])
			return &vim.SystemError{Reason: err.Error()}
		}
	}
	return nil
}

// Unkeep drops what Keep took.
func (f *Face) Unkeep(name string, disks []string) {
	if f.cfg.Disks == nil {
		return
	}
	for _, id := range disks {
		f.mu.Lock()
		_, _, err := f.core.Disk(id)
		f.mu.Unlock()
		if err != nil {
			continue // the disk is gone, and its content with it
		}
		if err := f.cfg.Disks.DeleteSnapshot(id, name); err != nil {
			f.log.Warn("the content of a snapshot of a VM stays", "disk", id, "snapshot", name, "err", err)
		}
	}
}

// Rewind gives disks of a VM the content that Keep took. The node loses them
// meanwhile: what it has in its caches is not what they hold then.
func (f *Face) Rewind(ctx context.Context, vm vim.ManagedObjectReference, name string, disks []string) vim.BaseMethodFault {
	if f.cfg.Disks == nil {
		return nil
	}
	unlock, err := f.volumes.lockAll(ctx, append([]string(nil), disks...)...)
	if err != nil {
		return &vim.RequestCanceled{}
	}
	defer unlock()
	m, err := f.inv.look(f.inv.context(), vm)
	if err != nil {
		return &vim.ManagedObjectNotFound{Obj: vm}
	}
	uuid := strings.ToLower(m.uuid)
	for _, id := range disks {
		f.mu.Lock()
		a, held := f.core.AttachmentAt(id, m.ID)
		f.mu.Unlock()
		if !held {
			continue
		}
		f.take(ctx, uuid, []cns.Attachment{a})
		err := f.cfg.Disks.Revert(id, name)
		if fault := f.give(ctx, uuid, []cns.Attachment{a}); fault != nil {
			return fault
		}
		if err != nil {
			return &vim.SystemError{Reason: err.Error()}
		}
	}
	return nil
}

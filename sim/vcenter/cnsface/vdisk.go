package cnsface

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// virtualDisks is the VirtualDiskManager of vim25: virtual disks as files of
// datastores, by path. Registering makes first class disks of them.
type virtualDisks struct {
	mo.VirtualDiskManager
	f *Face
}

// Lock and Unlock opt out of vcsim's lock around every call.
func (*virtualDisks) Lock()   {}
func (*virtualDisks) Unlock() {}

// installDisks puts the VSLM endpoint beside that of CNS.
func (f *Face) installDisks(s *simulator.Service) {
	f.inv.vslm = f.vslmRegistry()
	s.RegisterSDK(f.inv.vslm)
}

// DiskManager is our manager of disks in place of vcsim's: the
// VStorageObjectManager or the VirtualDiskManager of vim25; nil for any other
// reference. Vcsim's objects stay in the inventory, for its VMs know them by
// their Go types.
func (f *Face) DiskManager(ref vim.ManagedObjectReference) mo.Reference {
	switch ref.Type {
	case fcdRef.Type:
		if ref == fcdRef {
			m := &storageObjects{f: f}
			m.Self = ref
			return m
		}
	case "VirtualDiskManager":
		if f.inv.vim.Get(ref) != nil {
			m := &virtualDisks{f: f}
			m.Self = ref
			return m
		}
	}
	return nil
}

// file resolves the name of a virtual disk: "[ds] dir/a.vmdk" in a datacenter,
// or a URL. Errors: InvalidPath, InvalidArgument.
func (m *virtualDisks) file(c *simulator.Context, name string, dc *vim.ManagedObjectReference) (datastore, path string, err error) {
	if strings.Contains(name, "://") {
		return m.f.inv.diskPathOfURL(c, name)
	}
	ds, rel, err := splitPath(name)
	if err != nil {
		return "", "", err
	}
	in := ""
	if dc != nil {
		x, ok := m.f.inv.vim.Get(*dc).(*simulator.Datacenter)
		if !ok {
			return "", "", &wireError{gone(*dc)}
		}
		in = m.f.inv.pathOf(x)
	}
	id, ok := m.f.inv.datastoreNamed(c, in, ds)
	if !ok {
		return "", "", &cns.Error{Kind: cns.InvalidPath, Field: "name", Value: name, Reason: "no such datastore"}
	}
	return id, "[" + ds + "] " + rel, nil
}

func (m *virtualDisks) task(rc *simulator.Context, op string, do work) vim.ManagedObjectReference {
	return m.f.fcdTask(rc, TaskCall{Op: op}, m.Self, do)
}

// newFile is a virtual disk to make, of a size in KB (rounded up to MB).
func (m *virtualDisks) newFile(datastore, path string, kb int64, diskType string) (cns.File, error) {
	f := cns.File{ID: m.f.newVolumeID(path, false), Datastore: datastore, Path: path, CapacityMB: (kb + 1023) >> 10}
	if kb < 0 || f.CapacityMB < 0 {
		f.CapacityMB = 0
	}
	switch vim.VirtualDiskType(diskType) {
	case "", vim.VirtualDiskTypeThin:
		f.Provisioning = cns.Thin
	case vim.VirtualDiskTypePreallocated, vim.VirtualDiskTypeThick:
		f.Provisioning = cns.LazyZeroedThick
	case vim.VirtualDiskTypeEagerZeroedThick:
		f.Provisioning = cns.EagerZeroedThick
	default:
		return f, &cns.Error{Kind: cns.NotSupported, Field: "spec.diskType", Value: diskType, Reason: "allowed are thin, preallocated, thick and eagerZeroedThick"}
	}
	return f, nil
}

// make makes a virtual disk with its content. of is what it is a copy of; ""
// makes zeros.
func (m *virtualDisks) make(ctx context.Context, c *simulator.Context, x cns.File, of string) error {
	f := m.f
	f.inv.refresh(c)
	keys := []string{x.ID}
	if of != "" {
		keys = append(keys, of)
	}
	unlock, err := f.lockDisks(ctx, keys...)
	if err != nil {
		return err
	}
	defer unlock()
	f.mu.Lock()
	err = f.core.PlanCreateFile(x)
	f.mu.Unlock()
	if err == nil {
		err = f.inv.freePath(c, x.Path)
	}
	if err != nil {
		return err
	}
	if f.cfg.Disks != nil {
		if of == "" {
			err = f.cfg.Disks.Create(x.ID, x.CapacityMB<<20)
		} else {
			err = f.cfg.Disks.Clone(of, x.ID, x.CapacityMB<<20)
		}
		if err != nil {
			return err
		}
	}
	f.mu.Lock()
	_, err = f.core.CreateFile(time.Now(), x)
	f.mu.Unlock()
	if err != nil {
		f.dropImage(x.ID)
		return err
	}
	f.inv.account(c, x.Datastore)
	return nil
}

// CreateVirtualDiskTask implements CreateVirtualDisk_Task. The result is the
// path.
func (m *virtualDisks) CreateVirtualDiskTask(ctx *simulator.Context, req *vim.CreateVirtualDisk_Task) soap.HasFault {
	return &methods.CreateVirtualDisk_TaskBody{Res: &vim.CreateVirtualDisk_TaskResponse{Returnval: m.task(ctx, "CreateVirtualDisk_Task", func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		s, ok := req.Spec.(*vim.FileBackedVirtualDiskSpec)
		if !ok {
			return nil, &cns.Error{Kind: cns.NotSupported, Field: "spec", Value: fmt.Sprintf("%T", req.Spec), Reason: "allowed is FileBackedVirtualDiskSpec"}
		}
		ds, path, err := m.file(c, req.Name, req.Datacenter)
		if err != nil {
			return nil, err
		}
		x, err := m.newFile(ds, path, s.CapacityKb, s.DiskType)
		if err != nil {
			return nil, err
		}
		return path, m.make(ctx, c, x, "")
	})}}
}

// DeleteVirtualDiskTask implements DeleteVirtualDisk_Task. The files of a first
// class disk go like any others, behind the back of whoever keeps a catalogue;
// what a VM holds is locked.
func (m *virtualDisks) DeleteVirtualDiskTask(ctx *simulator.Context, req *vim.DeleteVirtualDisk_Task) soap.HasFault {
	return &methods.DeleteVirtualDisk_TaskBody{Res: &vim.DeleteVirtualDisk_TaskResponse{Returnval: m.task(ctx, "DeleteVirtualDisk_Task", func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		_, path, err := m.file(c, req.Name, req.Datacenter)
		if err != nil {
			return nil, err
		}
		return nil, m.remove(ctx, c, path)
	})}}
}

func (m *virtualDisks) remove(ctx context.Context, c *simulator.Context, path string) error {
	f := m.f
	if _, held := f.inv.vmFile(c, path); held {
		return &wireError{locked(path)}
	}
	d, fcd, id, err := m.at(path)
	if err != nil {
		return err
	}
	unlock, err := f.lockDisks(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	if fcd {
		if _, holders, err := f.disk(id, ""); err != nil {
			return err
		} else if len(holders) > 0 {
			return &wireError{locked(d.Path)}
		}
		f.mu.Lock()
		home, _, _ := f.core.Datastore(d.Datastore)
		f.mu.Unlock()
		if home.Inaccessible {
			return &cns.Error{Kind: cns.Inaccessible, Field: "name", Value: path, Holder: home.Name, Reason: "no host reaches the datastore"}
		}
		f.loseDisk(c, id)
		return nil
	}
	f.mu.Lock()
	err = f.core.PlanDeleteFile(path)
	f.mu.Unlock()
	if err != nil {
		return err
	}
	if f.cfg.Disks != nil {
		if err := f.cfg.Disks.Delete(id); err != nil {
			return err
		}
	}
	f.mu.Lock()
	_, err = f.core.DeleteFile(path)
	f.mu.Unlock()
	f.inv.account(c, d.Datastore)
	return err
}

// at finds what lies at a path: a file, or a first class disk. Errors:
// FileNotFound.
func (m *virtualDisks) at(path string) (x cns.File, fcd bool, id string, err error) {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	if d, ok := m.f.core.DiskAt(path); ok {
		return cns.File{ID: d.ID, Path: path, Datastore: d.Datastore, CapacityMB: d.CapacityMB, Provisioning: d.Provisioning}, true, d.ID, nil
	}
	x, err = m.f.core.File(path)
	return x, false, x.ID, err
}

func locked(path string) *vim.LocalizedMethodFault {
	f := &vim.FileLocked{}
	f.File = path
	return local(f, "Unable to access file since it is locked")
}

// ExtendVirtualDiskTask implements ExtendVirtualDisk_Task.
func (m *virtualDisks) ExtendVirtualDiskTask(ctx *simulator.Context, req *vim.ExtendVirtualDisk_Task) soap.HasFault {
	return &methods.ExtendVirtualDisk_TaskBody{Res: &vim.ExtendVirtualDisk_TaskResponse{Returnval: m.task(ctx, "ExtendVirtualDisk_Task", func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		_, path, err := m.file(c, req.Name, req.Datacenter)
		if err != nil {
			return nil, err
		}
		return nil, m.extend(ctx, c, path, (req.NewCapacityKb+1023)>>10)
	})}}
}

func (m *virtualDisks) extend(ctx context.Context, c *simulator.Context, path string, mb int64) error {
	f := m.f
	if _, held := f.inv.vmFile(c, path); held {
		return &wireError{locked(path)}
	}
	_, fcd, id, err := m.at(path)
	if err != nil {
		return err
	}
	if fcd {
		// What a VM holds is extended by it, not by path
		// (hashicorp/terraform-provider-vsphere#2275).
		if _, holders, err := f.disk(id, ""); err == nil && len(holders) > 0 {
			return &wireError{locked(path)}
		}
		_, err := f.extendDisk(ctx, c, id, "", mb)
		return err
	}
	unlock, err := f.lockDisks(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	f.mu.Lock()
	x, err := f.core.PlanExtendFile(path, mb)
	f.mu.Unlock()
	if err != nil {
		return err
	}
	if f.cfg.Disks != nil {
		if err := f.cfg.Disks.Grow(id, mb<<20); err != nil {
			return err
		}
	}
	f.mu.Lock()
	_, err = f.core.ExtendFile(path, mb)
	f.mu.Unlock()
	f.inv.account(c, x.Datastore)
	return err
}

// ends are the two paths of a copy or a move, and the datastore of the second.
// A target without a datacenter is in that of its source.
func (m *virtualDisks) ends(c *simulator.Context, source string, sourceDC *vim.ManagedObjectReference, dest string, destDC *vim.ManagedObjectReference) (from, ds, to string, err error) {
	if _, from, err = m.file(c, source, sourceDC); err != nil {
		return "", "", "", err
	}
	if destDC == nil {
		destDC = sourceDC
	}
	ds, to, err = m.file(c, dest, destDC)
	return from, ds, to, err
}

// CopyVirtualDiskTask implements CopyVirtualDisk_Task.
func (m *virtualDisks) CopyVirtualDiskTask(ctx *simulator.Context, req *vim.CopyVirtualDisk_Task) soap.HasFault {
	return &methods.CopyVirtualDisk_TaskBody{Res: &vim.CopyVirtualDisk_TaskResponse{Returnval: m.task(ctx, "CopyVirtualDisk_Task", func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		from, ds, to, err := m.ends(c, req.SourceName, req.SourceDatacenter, req.DestName, req.DestDatacenter)
		if err != nil {
			return nil, err
		}
		src, _, id, err := m.at(from)
		if err != nil {
			return nil, err
		}
		kind := string(src.Provisioning)
		if kind == string(cns.LazyZeroedThick) {
			kind = string(vim.VirtualDiskTypeThick)
		}
		if req.DestSpec != nil && req.DestSpec.GetVirtualDiskSpec().DiskType != "" {
			kind = req.DestSpec.GetVirtualDiskSpec().DiskType
		}
		x, err := m.newFile(ds, to, src.CapacityMB<<10, kind)
		if err != nil {
			return nil, err
		}
		if req.Force != nil && *req.Force {
			if _, fcd, _, err := m.at(to); err == nil && !fcd && to != from {
				if err := m.remove(ctx, c, to); err != nil {
					return nil, err
				}
			}
		}
		return nil, m.make(ctx, c, x, id)
	})}}
}

// MoveVirtualDiskTask implements MoveVirtualDisk_Task. A first class disk is
// refused: its catalogue would lose it.
func (m *virtualDisks) MoveVirtualDiskTask(ctx *simulator.Context, req *vim.MoveVirtualDisk_Task) soap.HasFault {
	return &methods.MoveVirtualDisk_TaskBody{Res: &vim.MoveVirtualDisk_TaskResponse{Returnval: m.task(ctx, "MoveVirtualDisk_Task", func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		from, ds, to, err := m.ends(c, req.SourceName, req.SourceDatacenter, req.DestName, req.DestDatacenter)
		if err != nil {
			return nil, err
		}
		return nil, m.move(ctx, c, from, ds, to)
	})}}
}

func (m *virtualDisks) move(ctx context.Context, c *simulator.Context, from, datastore, to string) error {
	f := m.f
	f.inv.refresh(c)
	if _, held := f.inv.vmFile(c, from); held {
		return &wireError{locked(from)}
	}
	src, fcd, id, err := m.at(from)
	if err == nil {
		err = f.inv.freePath(c, to)
	}
	if err != nil {
		return err
	}
	if fcd {
		return &cns.Error{Kind: cns.NotSupported, Field: "sourceName", Value: from, Holder: id, Reason: "a first class disk is relocated"}
	}
	unlock, err := f.lockDisks(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	f.mu.Lock()
	_, err = f.core.MoveFile(from, datastore, to)
	f.mu.Unlock()
	f.inv.account(c, src.Datastore)
	f.inv.account(c, datastore)
	return err
}

// QueryVirtualDiskUuid answers with the page 83 id that the disk has in a VM.
func (m *virtualDisks) QueryVirtualDiskUuid(_ *simulator.Context, req *vim.QueryVirtualDiskUuid) soap.HasFault {
	body := &methods.QueryVirtualDiskUuidBody{}
	c := m.f.inv.context()
	_, path, err := m.file(c, req.Name, req.Datacenter)
	uuid := ""
	if err == nil {
		var held bool
		if uuid, held = m.f.inv.vmFile(c, path); !held {
			var id string
			_, _, id, err = m.at(path)
			uuid = m.f.ids.disk(id)
		}
	}
	if err != nil {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	body.Res = &vim.QueryVirtualDiskUuidResponse{Returnval: spaced(uuid)}
	return body
}

// spaced writes a uuid as the VirtualDiskManager does: "60 00 c2 9… -…".
func spaced(id string) string {
	b, err := hex.DecodeString(undash(id))
	if err != nil || len(b) != 16 {
		return id
	}
	s := fmt.Sprintf("% x", b)
	return s[:23] + "-" + s[24:]
}

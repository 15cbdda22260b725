package cnsface

import (
	"strings"

	"github.com/vmware/govmomi/simulator"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// Disks of VMs that are no first class disks are files of datastores too, but
// they have no content here: they stand in the way of others, and their VM has
// them locked.

// vmFile finds the disk of a VM, other than a first class disk, whose file lies
// at a path. It looks at all VMs: only who goes by path asks.
func (i *inventory) vmFile(c *simulator.Context, path string) (uuid string, ok bool) {
	for _, o := range i.vim.All("VirtualMachine") {
		vm, is := o.(*simulator.VirtualMachine)
		if !is {
			continue
		}
		c.WithLock(vm, func() {
			if vm.Config == nil {
				return
			}
			for _, d := range vm.Config.Hardware.Device {
				disk, is := d.(*vim.VirtualDisk)
				if !is || disk.VDiskId != nil {
					continue
				}
				if b, is := disk.Backing.(*vim.VirtualDiskFlatVer2BackingInfo); is && b.FileName == path {
					uuid, ok = b.Uuid, true
				}
			}
		})
		if ok {
			return uuid, true
		}
	}
	return "", false
}

// filesOf are the paths of a VM's disks below their datastores.
func (i *inventory) filesOf(c *simulator.Context, m machine) (out []string) {
	c.WithLock(m.obj, func() {
		for _, d := range m.obj.Config.Hardware.Device {
			if b, ok := d.GetVirtualDevice().Backing.(*vim.VirtualDiskFlatVer2BackingInfo); ok {
				_, rel, _ := strings.Cut(b.FileName, "] ")
				out = append(out, rel)
			}
		}
	})
	return out
}

// freePath refuses a path at which a VM has a disk. Errors: FileExists.
func (i *inventory) freePath(c *simulator.Context, path string) error {
	if _, taken := i.vmFile(c, path); taken {
		return &cns.Error{Kind: cns.FileExists, Field: "path", Value: path, Reason: "a VM has a disk there"}
	}
	return nil
}

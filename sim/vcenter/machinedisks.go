package vcenter

import (
	"reflect"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/fault"
)

// AttachDiskTask implements AttachDisk_Task: a first class disk is plugged in,
// the node and CNS see it.
func (m *machine) AttachDiskTask(ctx *simulator.Context, req *types.AttachDisk_Task) soap.HasFault {
	return &methods.AttachDisk_TaskBody{Res: &types.AttachDisk_TaskResponse{Returnval: m.v.face.AttachDisk(ctx, req)}}
}

// DetachDiskTask implements DetachDisk_Task.
func (m *machine) DetachDiskTask(ctx *simulator.Context, req *types.DetachDisk_Task) soap.HasFault {
	return &methods.DetachDisk_TaskBody{Res: &types.DetachDisk_TaskResponse{Returnval: m.v.face.DetachDisk(ctx, req)}}
}

// hasTag asks the tagging service for a tag.
func (v *VCenter) hasTag(category, name string) bool {
	v.tagging.mu.Lock()
	defer v.tagging.mu.Unlock()
	_, ok := v.tagging.core.Find(category, name)
	return ok
}

// diskSubjects finds the disk, the snapshot and the VM of a request about
// first class disks. One that is to be made has no id yet: its name is the
// subject. There is no digest: the requests may hold credentials and keys.
func (v *VCenter) diskSubjects(body any, c *fault.Call) {
	x := reflect.Indirect(reflect.ValueOf(body))
	if x.Kind() != reflect.Struct {
		return
	}
	id := func(field string) string {
		f := x.FieldByName(field)
		if !f.IsValid() {
			return ""
		}
		switch t := f.Interface().(type) {
		case types.ID:
			return t.Id
		case *types.ID:
			if t != nil {
				return t.Id
			}
		case types.VslmCreateSpec:
			return t.Name
		}
		return ""
	}
	for _, field := range []string{"Id", "DiskId", "Spec"} {
		if c.Volume == "" {
			c.Volume = id(field)
		}
	}
	c.Snapshot = id("SnapshotId")
	if f := x.FieldByName("Vm"); f.IsValid() && c.Node == "" {
		if r, ok := f.Interface().(ref); ok {
			c.Node = v.nodeName(r)
		}
	}
}

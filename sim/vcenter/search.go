package vcenter

import (
	"slices"
	"strings"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// searchIndex finds VMs by BIOS uuid, what a driver does at each publish,
// without a walk over the inventory. The rest of the SearchIndex is vcsim's.
type searchIndex struct {
	*simulator.SearchIndex
	optOut
	v *VCenter
}

// FindByUuid implements the method of the API. No VM of that uuid is no error:
// the reply is empty.
func (s *searchIndex) FindByUuid(ctx *simulator.Context, req *types.FindByUuid) soap.HasFault {
	if !req.VmSearch || req.InstanceUuid != nil && *req.InstanceUuid {
		return s.SearchIndex.FindByUuid(ctx, req)
	}
	res := &types.FindByUuidResponse{}
	for _, vm := range s.v.byUUID(req.Uuid) {
		if req.Datacenter == nil || *req.Datacenter == s.v.datacenterOf(vm.Self) {
			self := vm.Self
			res.Returnval = &self
			break
		}
	}
	return &methods.FindByUuidBody{Res: res}
}

// datacenterOf is the datacenter that an object lies in; the zero reference
// when it lies in none.
func (v *VCenter) datacenterOf(r ref) ref {
	for r.Type != "Datacenter" {
		o := v.vim.Get(r)
		e, ok := o.(mo.Entity)
		if !ok {
			return ref{}
		}
		r = ref{}
		v.internal().WithLock(o, func() {
			if p := e.Entity().Parent; p != nil {
				r = *p
			}
		})
	}
	return r
}

// byUUID finds VMs by BIOS uuid, in any case: more than one where a VM was
// registered twice.
func (v *VCenter) byUUID(uuid string) []*simulator.VirtualMachine {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.inv.byUUID[strings.ToLower(uuid)])
}

package vcenter

import (
	"maps"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"

	core "github.com/csilab/csilab/sim/vcenter/cns"
)

// Watched counts what filters hold on to.
func Watched(v *VCenter) int {
	v.watch.mu.Lock()
	defer v.watch.mu.Unlock()
	return len(v.watch.byRef) + len(v.watch.deep)
}

// Held are the attachments that CNS knows of, when no disk is on its way out of
// a node.
func Held(v *VCenter) []core.Attachment {
	v.face.Quiet()
	return v.face.Attachments()
}

// NodeVM is the VM of a node as the inventory has it.
type NodeVM struct {
	Node, ID, UUID string
	On             bool
	Devices        []types.BaseVirtualDevice
}

// NodeVMs reads the VMs of all nodes without a client.
func NodeVMs(v *VCenter) (out []NodeVM) {
	v.mu.Lock()
	nodes := maps.Clone(v.inv.vms)
	v.mu.Unlock()
	for node, vm := range nodes {
		v.internal().WithLock(vm, func() {
			out = append(out, NodeVM{
				Node: node, ID: vm.Self.Value, UUID: vm.Config.Uuid, Devices: vm.Config.Hardware.Device,
				On: vm.Runtime.PowerState == types.VirtualMachinePowerStatePoweredOn,
			})
		})
	}
	return out
}

// OnRemove calls do for each object that the inventory is about to forget.
func OnRemove(v *VCenter, do func(types.ManagedObjectReference)) {
	r := &removals{do: do}
	r.Self = types.ManagedObjectReference{Type: "PropertyCollector", Value: "csilab-removals"}
	v.vim.AddHandler(r)
}

type removals struct {
	mo.PropertyCollector
	do func(types.ManagedObjectReference)
}

func (r *removals) Reference() types.ManagedObjectReference { return r.Self }

func (*removals) PutObject(*simulator.Context, mo.Reference) {}
func (*removals) UpdateObject(*simulator.Context, mo.Reference, []types.PropertyChange) {
}
func (r *removals) RemoveObject(_ *simulator.Context, o types.ManagedObjectReference) { r.do(o) }

package cns

import (
	"fmt"
	"slices"
)

// What the SCSI buses of a VM take. Fifteen disks on each of four controllers
// are 60; with the boot disk on one of them a node takes 59 volumes, the
// upstream driver's limit (kubernetes-sigs/vsphere-csi-driver#468, #847).
const (
	MaxControllers = 4
	// DisksPerController is how many devices CNS puts on a controller.
	DisksPerController = 15
	// DenseDisksPerController is how many it puts there when the vCenter is told
	// to use all that a paravirtual controller takes: 256 disks of a VM, 255
	// volumes. A vCenter isn't by itself (pvscsiCtrlr256DiskSupportEnabled in
	// VsanVcMgmtConfig.xml; kubernetes-sigs/vsphere-csi-driver#1696, and its e2e
	// tests, which set it over SSH).
	DenseDisksPerController = 64

	reservedUnit = 7 // the controller's own id on a SCSI bus
)

// Slot is a place on a bus of a VM.
type Slot struct {
	// Controller is a device key. In a request 0 means any; a key of a SCSI
	// controller (1000 to 1003) that the VM doesn't have yet is added.
	Controller int32 `json:"controller"`
	Bus        int32 `json:"bus"`
	Unit       int32 `json:"unit"` // in a request AnyUnit means any that is free
}

// AnyUnit in a request leaves the unit to CNS.
const AnyUnit int32 = -1

// ControllerKind is the kind of a storage controller. The zero value is the
// one that CNS adds.
type ControllerKind string

// The kinds of controllers, and how many units they have.
const (
	Paravirtual ControllerKind = ""     // PVSCSI: 64 disks, units 0 to 64 without 7
	OtherSCSI   ControllerKind = "scsi" // LSI Logic, BusLogic: 15 disks, units 0 to 15 without 7
	SATA        ControllerKind = "sata" // 30
	NVMe        ControllerKind = "nvme" // 15; Unverified: 64 from hardware version 21 on
	IDE         ControllerKind = "ide"  // 2
)

func (k ControllerKind) scsi() bool { return k == Paravirtual || k == OtherSCSI }

// units is how many unit numbers a controller has, with the one that a SCSI
// controller takes itself.
func (k ControllerKind) units() int32 {
	switch k {
	case Paravirtual:
		return DenseDisksPerController + 1
	case SATA:
		return 30
	case NVMe:
		return 15
	case IDE:
		return 2
	}
	return DisksPerController + 1
}

// Controller is a storage controller of a VM.
type Controller struct {
	Key  int32
	Bus  int32
	Kind ControllerKind
	// Narrow: one of a VM older than hardware version 14, with 15 disks whatever
	// its kind.
	Narrow bool
	// Shared: other VMs use the bus too. CNS puts nothing there by itself
	// (unverified).
	Shared bool
	Used   []int32 // units that are taken, by disks of CNS or others; each once
}

// VM is a virtual machine as the inventory has it at the time of a command:
// the inventory is the truth, the core keeps no copy of it.
type VM struct {
	ID    string // managed object id
	Name  string
	Host  string // managed object id of the host it runs on
	State Power
	// Controllers are its storage controllers.
	Controllers []Controller
	// Dense: CNS uses DenseDisksPerController.
	Dense bool
	// Encrypted: its files are, so that it may hold encrypted disks.
	Encrypted bool
	// Busy is the task that has the VM for itself, e.g. its migration, or "".
	Busy string
	// HostDown: vCenter has no connection to its host.
	HostDown bool
	// Tracks: it takes disks whose changed blocks are tracked.
	Tracks bool
}

// changeable says whether the disks of a VM can be changed now.
func (vm VM) changeable() error {
	switch {
	case vm.HostDown:
		return &Error{Kind: HostDown, Field: "vm", Value: vm.ID, Holder: vm.Host, Reason: "the host of the VM is not connected"}
	case vm.Busy != "":
		return &Error{Kind: Busy, Field: "vm", Value: vm.ID, Holder: vm.Busy, Reason: "another task has the VM"}
	case vm.State == Suspended:
		return &Error{Kind: InvalidState, Field: "vm", Value: vm.ID, Holder: vm.Name, Reason: "the VM is suspended"}
	}
	return nil
}

// Power is the power state of a VM, spelled as vim25 does.
type Power string

// The power states.
const (
	PoweredOn  Power = "poweredOn"
	PoweredOff Power = "poweredOff"
	Suspended  Power = "suspended"
)

// firstControllerKey is the device key of SCSI controller 0, as VMs have it.
const firstControllerKey = 1000

// pick finds a free slot: the lowest free unit of the paravirtual controllers
// in bus order, else unit 0 of one that is to be added. CNS uses no other kind
// by itself (kubernetes-sigs/vsphere-csi-driver#1723, #230). The second result
// says that the controller has to be added.
func pick(vm VM, want *Slot) (Slot, bool, error) {
	if want != nil {
		return pickWanted(vm, *want)
	}
	limit := DisksPerController
	if vm.Dense {
		limit = DenseDisksPerController
	}
	var best *Slot
	for _, c := range vm.Controllers {
		if c.Kind != Paravirtual || c.Shared || len(c.Used) >= limit || best != nil && best.Bus <= c.Bus {
			continue
		}
		if u, ok := c.free(); ok {
			best = &Slot{Controller: c.Key, Bus: c.Bus, Unit: u}
		}
	}
	if best != nil {
		return *best, false, nil
	}
	for bus := range int32(MaxControllers) {
		if !vm.takes(bus) {
			continue
		}
		return Slot{Controller: firstControllerKey + bus, Bus: bus}, true, nil
	}
	return Slot{}, false, &Error{Kind: NoSlot, Field: "vm", Value: vm.ID, Holder: vm.Name,
		Reason: fmt.Sprintf("all %d SCSI controllers of the VM are full or of another kind than CNS uses", MaxControllers)}
}

// takes says whether a SCSI controller can be added for a bus.
func (vm VM) takes(bus int32) bool {
	return !slices.ContainsFunc(vm.Controllers, func(c Controller) bool { return c.Kind.scsi() && c.Bus == bus })
}

func pickWanted(vm VM, want Slot) (Slot, bool, error) {
	if want.Controller == 0 {
		return Slot{}, false, &Error{Kind: InvalidArgument, Field: "controllerKey", Reason: "a unit number needs the key of its controller"}
	}
	c := Controller{Key: want.Controller, Bus: want.Controller - firstControllerKey}
	i := slices.IndexFunc(vm.Controllers, func(c Controller) bool { return c.Key == want.Controller })
	add := i < 0
	switch {
	case !add:
		c = vm.Controllers[i]
	case c.Bus < 0 || c.Bus >= MaxControllers || !vm.takes(c.Bus):
		return Slot{}, false, &Error{Kind: NoController, Field: "controllerKey", Value: fmt.Sprint(want.Controller), Holder: vm.Name,
			Reason: "the VM has no such storage controller, and none can be added with this key"}
	}
	if want.Unit == AnyUnit {
		u, ok := c.free()
		if !ok {
			return Slot{}, false, &Error{Kind: NoController, Field: "controllerKey", Value: fmt.Sprint(want.Controller), Holder: vm.Name, Reason: "the controller is full"}
		}
		return Slot{Controller: c.Key, Bus: c.Bus, Unit: u}, add, nil
	}
	if want.Unit < 0 || want.Unit >= c.units() || c.Kind.scsi() && want.Unit == reservedUnit || slices.Contains(c.Used, want.Unit) {
		without := ""
		if c.Kind.scsi() {
			without = fmt.Sprintf(" without %d", reservedUnit)
		}
		return Slot{}, false, &Error{Kind: InvalidArgument, Field: "unitNumber", Value: fmt.Sprint(want.Unit),
			Reason: fmt.Sprintf("allowed are the free units of 0 to %d%s", c.units()-1, without)}
	}
	return Slot{Controller: c.Key, Bus: c.Bus, Unit: want.Unit}, add, nil
}

func (c Controller) units() int32 {
	if c.Narrow {
		return min(c.Kind.units(), DisksPerController+1)
	}
	return c.Kind.units()
}

// sharedBus says whether a slot is on a bus that VMs share.
func (vm VM) sharedBus(s *Slot) bool {
	return s != nil && slices.ContainsFunc(vm.Controllers, func(c Controller) bool { return c.Shared && c.Key == s.Controller })
}

// free is the lowest free unit of a controller.
func (c Controller) free() (int32, bool) {
	for u := range c.units() {
		if (!c.Kind.scsi() || u != reservedUnit) && !slices.Contains(c.Used, u) {
			return u, true
		}
	}
	return 0, false
}

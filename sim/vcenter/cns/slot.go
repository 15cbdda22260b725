package cns

import "fmt"

// What the SCSI buses of a VM take. Fifteen disks on each of four controllers
// are 60; with the boot disk on one of them a node takes 59 volumes, the
// upstream driver's limit (kubernetes-sigs/vsphere-csi-driver#468, #847).
const (
	MaxControllers = 4
	unitsPerBus    = 16
	reservedUnit   = 7 // the controller's own id on the bus
)

// Slot is a place on a SCSI bus of a VM.
type Slot struct {
	Controller int32 `json:"controller"` // device key; 0 in a request: any
	Bus        int32 `json:"bus"`
	Unit       int32 `json:"unit"`
}

// Controller is a SCSI controller of a VM.
type Controller struct {
	Key  int32
	Bus  int32
	Used []int32 // units that are taken, by disks of CNS or others
}

// VM is a virtual machine as the inventory has it at the time of a command:
// the inventory is the truth, the core keeps no copy of it.
type VM struct {
	ID    string // managed object id
	Name  string
	Host  string // managed object id of the host it runs on
	State Power
	// Controllers are its SCSI controllers.
	Controllers []Controller
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

// pick finds a free slot: the lowest free unit of the controllers in bus
// order, else unit 0 of a controller that is to be added. The second result
// says that it has to be added.
func pick(vm VM, want *Slot) (Slot, bool, error) {
	if want != nil {
		return pickWanted(vm, *want)
	}
	taken := map[int32]bool{}
	var best *Slot
	for _, c := range vm.Controllers {
		taken[c.Bus] = true
		if best != nil && best.Bus <= c.Bus {
			continue
		}
		if u, ok := freeUnit(c); ok {
			best = &Slot{Controller: c.Key, Bus: c.Bus, Unit: u}
		}
	}
	if best != nil {
		return *best, false, nil
	}
	for bus := int32(0); bus < MaxControllers; bus++ {
		if !taken[bus] {
			return Slot{Controller: firstControllerKey + bus, Bus: bus}, true, nil
		}
	}
	return Slot{}, false, &Error{Kind: NoSlot, Field: "vm", Value: vm.ID, Holder: vm.Name,
		Reason: fmt.Sprintf("all %d SCSI controllers of the VM are full", MaxControllers)}
}

func pickWanted(vm VM, want Slot) (Slot, bool, error) {
	for _, c := range vm.Controllers {
		if c.Key != want.Controller {
			continue
		}
		if want.Unit < 0 || want.Unit >= unitsPerBus || want.Unit == reservedUnit || used(c, want.Unit) {
			return Slot{}, false, &Error{Kind: InvalidArgument, Field: "unitNumber", Value: fmt.Sprint(want.Unit),
				Reason: "allowed are the free units of 0 to 15 without 7"}
		}
		return Slot{Controller: c.Key, Bus: c.Bus, Unit: want.Unit}, false, nil
	}
	return Slot{}, false, &Error{Kind: NoSlot, Field: "controllerKey", Value: fmt.Sprint(want.Controller),
		Reason: "the VM has no such SCSI controller"}
}

func freeUnit(c Controller) (int32, bool) {
	for u := int32(0); u < unitsPerBus; u++ {
		if u != reservedUnit && !used(c, u) {
			return u, true
		}
	}
	return 0, false
}

func used(c Controller, unit int32) bool {
	for _, u := range c.Used {
		if u == unit {
			return true
		}
	}
	return false
}

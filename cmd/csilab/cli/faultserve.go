package cli

import (
	"github.com/csilab/csilab/sim/control"
	"github.com/csilab/csilab/sim/fault/faultfile"
	"github.com/csilab/csilab/sim/labfile"
	"github.com/csilab/csilab/sim/ledger"
)

// planSeed is the seed of draws of faults.
func (f serveFlags) planSeed(arrays *labfile.Storage) uint64 {
	if f.seed == 0 && arrays != nil {
		return arrays.SAN.Seed
	}
	return max(1, f.seed)
}

// faultsServed is the fault plan and what its rules are checked against.
func (r *serving) faultsServed() control.Faults {
	lab := faultfile.Lab{World: r.faults.World}
	if len(r.vcenters) > 0 {
		lab.Hops = append(lab.Hops, string(ledger.VCenter))
	}
	if r.san == nil {
		lab.Nodes = r.vms // hosts of arrays have the names that clients give them
	} else {
		lab.Hops = append(lab.Hops, string(ledger.CSP), string(ledger.WSAPI))
	}
	return control.Faults{Plan: r.faults.Plan, Lab: lab}
}

package cnsface

import (
	cnstypes "github.com/vmware/govmomi/cns/types"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// Placement results carry faults of their own (CNS API reference,
// CnsPlacementResult: "set with appropriate CnsPlacementFault only").
// govmomi v0.56.0 has no types for them: its clients get nil as the fault and
// the message, and so do ours.

// CnsPlacementFault is the base of the faults of a placement.
type CnsPlacementFault struct{ cnstypes.CnsFault }

// CnsRankedLowerFault: another datastore was selected.
type CnsRankedLowerFault struct{ CnsPlacementFault }

// CnsInCompatibleFault: the datastore can't take the volume.
type CnsInCompatibleFault struct {
	CnsPlacementFault
	Errors []*vim.LocalizedMethodFault `xml:"errors,omitempty"`
}

// placements are the results for the datastores that were considered.
// Unverified: that whatever a datastore refuses for makes it incompatible.
func placements(op string, ps []cns.Placement) []cnstypes.CnsPlacementResult {
	var out []cnstypes.CnsPlacementResult
	for _, p := range ps {
		r := cnstypes.CnsPlacementResult{Datastore: vim.ManagedObjectReference{Type: "Datastore", Value: p.Datastore}}
		switch {
		case p.Err == nil:
		case p.Err.Kind == cns.RankedLower:
			f := &CnsRankedLowerFault{}
			f.Reason = p.Err.Reason
			r.PlacementFaults = []*vim.LocalizedMethodFault{local(f, "CnsRankedLowerFault error: "+f.Reason)}
		default:
			f := &CnsInCompatibleFault{}
			f.Reason = p.Err.Reason
			text := f.Reason
			if why := wire(op, p.Err); why != nil {
				if x, ok := why.Fault.(*cnstypes.CnsFault); ok && x.FaultCause != nil {
					why = x.FaultCause
				}
				f.Errors = []*vim.LocalizedMethodFault{why}
				text = why.LocalizedMessage
			}
			r.PlacementFaults = []*vim.LocalizedMethodFault{local(f, "CnsInCompatibleFault error: "+text)}
		}
		out = append(out, r)
	}
	return out
}

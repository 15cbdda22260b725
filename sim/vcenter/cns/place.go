package cns

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Placement is what came of considering a datastore: Err is nil for the one
// that holds the volume.
type Placement struct {
	Datastore string
	Err       *Error
}

// need is what a datastore has to have for a new volume.
type need struct {
	capacityMB int64
	// policy is why the volume's storage policy can't be met, by datastore.
	policy map[string]string
	// only, where set, is the datastore that it must be: the source's.
	only string
	// share: it is a file volume.
	share bool
}

// place chooses among datastores, or among all when none is named: of those
// that can take the volume, the one with the most free space
// (kubernetes-sigs/vsphere-csi-driver#122), the earlier one of equals. There
// is a placement for each that was named, in that order (CNS API reference,
// CnsVolumeCreateResult.placementResults).
func (c *Core) place(named []string, n need) (*store, []Placement, error) {
	ids := named
	if len(ids) == 0 && n.only != "" {
		ids = []string{n.only}
	} else if len(ids) == 0 {
		// Unverified: whether CNS considers datastores that not all hosts mount.
		for id, s := range c.datastores {
			if s.open(n.share) == nil {
				ids = append(ids, id)
			}
		}
		slices.SortFunc(ids, func(a, b string) int {
			return cmp.Or(cmp.Compare(c.datastores[b].freeMB(), c.datastores[a].freeMB()), strings.Compare(a, b))
		})
	} else {
		// A reference to what isn't there spoils the whole call, whatever else
		// is in the list (kubernetes-sigs/vsphere-csi-driver#229).
		for _, id := range ids {
			if _, ok := c.datastores[id]; !ok {
				return nil, nil, &Error{Kind: NotFoundObject, Field: "datastores", Value: id, Reason: "no such datastore"}
			}
		}
	}
	tried := make([]Placement, len(ids))
	best := -1
	for i, id := range ids {
		s := c.datastores[id]
		tried[i] = Placement{Datastore: id, Err: s.takes(n)}
		if tried[i].Err == nil && (best < 0 || s.freeMB() > c.datastores[ids[best]].freeMB()) {
			best = i
		}
	}
	if best < 0 {
		if len(tried) == 0 {
			return nil, nil, &Error{Kind: InvalidArgument, Field: "datastores", Reason: "no datastore can take a volume"}
		}
		// With several that refuse, the first says why.
		first := *tried[0].Err
		first.Placement = tried
		return nil, nil, &first
	}
	s := c.datastores[ids[best]]
	if len(named) == 0 {
		return s, []Placement{{Datastore: s.ID}}, nil
	}
	for i := range tried {
		if i != best && tried[i].Err == nil {
			tried[i].Err = &Error{Kind: RankedLower, Field: "datastores", Value: ids[i], Holder: s.Name,
				Reason: fmt.Sprintf("the datastore %s was selected", s.Name)}
		}
	}
	return s, tried, nil
}

// takes says whether a new volume can go there. Its whole capacity has to be
// free at that time, thin or not. Unverified: CNS's own rule for a thin disk
// that is larger than what is free; later ones may overcommit in any case.
func (s *store) takes(n need) *Error {
	if err := s.open(n.share); err != nil {
		return err
	}
	switch {
	case n.policy[s.ID] != "":
		return s.refuse(Incompatible, n.policy[s.ID])
	case n.only != "" && n.only != s.ID:
		return s.refuse(Incompatible, "the source of the volume lies on "+n.only)
	case n.capacityMB > s.freeMB():
		return s.refuse(NoSpace, fmt.Sprintf("%d MB are free, %d are needed", s.freeMB(), n.capacityMB))
	}
	return nil
}

// roomFor is takes for what CNS has no say in: a disk beside it (fcd), or a
// plain file. That CNS makes no more volumes on a datastore doesn't matter
// there.
func (s *store) roomFor(capacityMB int64, fcd bool) *Error {
	x := *s
	x.Suspended, x.NoDisks = false, x.NoDisks && fcd
	return x.takes(need{capacityMB: capacityMB})
}

// open says whether the datastore takes new volumes of a kind at all.
func (s *store) open(share bool) *Error {
	switch {
	case s.Inaccessible:
		return s.refuse(Inaccessible, "the datastore is not accessible")
	case s.Maintenance:
		return s.refuse(Maintenance, "the datastore is in maintenance mode")
	case s.Suspended:
		return s.refuse(OnHold, "provisioning on the datastore is suspended")
	case share && len(s.FileServers) == 0:
		return s.refuse(NotSupported, "the datastore has no vSAN file service")
	case !share && s.NoDisks:
		return s.refuse(NotSupported, "the datastore takes no first class disks")
	}
	return nil
}

// reachable refuses what has to change a backing that no host reaches.
// Unverified: the fault; that vCenter only forgets volumes meanwhile.
func (c *Core) reachable(v *volume) error {
	s := c.datastores[v.Datastore]
	if !s.Inaccessible {
		return nil
	}
	return &Error{Kind: Inaccessible, Field: "volumeId", Value: v.ID, Holder: s.Name, Reason: "no host reaches the datastore of the volume"}
}

func (s *store) refuse(k Kind, reason string) *Error {
	return &Error{Kind: k, Field: "datastores", Value: s.ID, Holder: s.Name, Reason: reason}
}

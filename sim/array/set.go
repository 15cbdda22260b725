package array

import (
	"fmt"
	"slices"
	"time"
)

// Set is a set of volumes, or of hosts.
type Set struct {
	ID      int64  `json:"id"`
	Name    string `json:"name"`
	UUID    string `json:"uuid"`
	Domain  string `json:"domain,omitempty"`
	Comment string `json:"comment,omitempty"`
	// Flash is for a set of volumes whether the flash cache keeps them, 0 where it
	// was never said.
	Flash   FlashPolicy `json:"flash,omitempty"`
	Members []string    `json:"members,omitempty"` // in the order in which they came
}

type volumeSet struct {
	Set
	members []*volume
}

type hostSet struct {
	Set
	members []*host
}

func (s *volumeSet) out() Set {
	o := s.Set
	o.Members = nil
	for _, m := range s.members {
		o.Members = append(o.Members, m.Name)
	}
	return o
}

func (s *hostSet) out() Set {
	o := s.Set
	o.Members = nil
	for _, m := range s.members {
		o.Members = append(o.Members, m.Name)
	}
	return o
}

// SetSpec says what set to make.
type SetSpec struct {
	Name, Domain, Comment string // Domain: default that of the first member
	Members               []string
	Flash                 FlashPolicy // of a set of volumes
}

// SetChange says what to change. Adding and removing members goes with nothing
// else.
type SetChange struct {
	NewName, Comment *string
	Add, Remove      []string
	Flash            *FlashPolicy // of a set of volumes
}

func (ch SetChange) check() error {
	members := len(ch.Add)+len(ch.Remove) > 0
	switch {
	case len(ch.Add) > 0 && len(ch.Remove) > 0:
		return &Error{Kind: ParamConflict, Field: "action", Reason: "members are added or removed, not both"}
	case members && (ch.NewName != nil || ch.Comment != nil || ch.Flash != nil):
		return &Error{Kind: ParamConflict, Field: "setmembers", Reason: "not with newName, comment or flashCachePolicy"}
	case !members && ch.NewName == nil && ch.Comment == nil && ch.Flash == nil:
		return &Error{Kind: MissingRequired, Field: "action", Reason: "nothing to change"}
	}
	return nil
}

// distinct refuses a member that is named twice.
func distinct(names []string) error {
	seen := map[string]bool{}
	for _, n := range names {
		if seen[n] {
			return &Error{Kind: DuplicateName, Field: "setmembers", Value: n, Reason: "named twice"}
		}
		seen[n] = true
	}
	return nil
}

func (a *Array) newSet(s SetSpec, taken bool) error {
	if err := checkName("name", s.Name, MaxSetName); err != nil {
		return err
	}
	if taken {
		return &Error{Kind: ExistentSet, Field: "name", Value: s.Name, Reason: "a set has this name"}
	}
	if err := checkText("comment", s.Comment, MaxComment); err != nil {
		return err
	}
	if err := a.checkDomain(s.Domain); err != nil {
		return err
	}
	if s.Flash != 0 {
		if err := s.Flash.check(); err != nil {
			return err
		}
	}
	return distinct(s.Members)
}

// fresh fills in what a new set is known by.
func (a *Array) fresh(s SetSpec, domain, what string) Set {
	a.setSeq++
	return Set{ID: a.setSeq, Name: s.Name, UUID: uuid(a.cfg.Seed, what, uint64(a.setSeq)), Domain: domain, Comment: s.Comment, Flash: s.Flash}
}

// inDomain refuses a member of another domain than the set is in; the first
// one of a set that is in none takes it to its own.
func inDomain(name, has string, want *string, first bool) error {
	if *want == "" && first {
		*want = has
	}
	if has != *want {
		return &Error{Kind: OtherDomain, Field: "setmembers", Value: name, Reason: fmt.Sprintf("it is in domain %q, the set in %q", has, *want)}
	}
	return nil
}

func (a *Array) volumeSet(name string) (*volumeSet, error) {
	if s, ok := a.volumeSets.get(name); ok {
		return s, nil
	}
	if err := checkName("name", name, MaxSetName); err != nil {
		return nil, err
	}
	return nil, &Error{Kind: NonExistentSet, Field: "name", Value: name, Reason: "no such volume set"}
}

// CreateVolumeSet makes a set of volumes. Errors: names, EXISTENT_SET,
// NON_EXISTENT_DOMAIN, NON_EXISTENT_VOL, MEMBER_NOT_IN_SAME_DOMAIN,
// INV_INPUT_DUP_NAME.
func (a *Array) CreateVolumeSet(now time.Time, s SetSpec) (Set, error) {
	if err := a.newSet(s, a.volumeSets.has(s.Name)); err != nil {
		return Set{}, err
	}
	var members []*volume
	domain := s.Domain
	for i, n := range s.Members {
		v, err := a.volume("setmembers", n)
		if err != nil {
			return Set{}, err
		}
		if err := inDomain(n, v.Domain, &domain, i == 0); err != nil {
			return Set{}, err
		}
		members = append(members, v)
	}
	set := &volumeSet{Set: a.fresh(s, domain, "volumeset"), members: members}
	a.volumeSets.put(set.Name, set)
	for _, v := range members {
		a.setsOf.add(v, set)
	}
	a.log(now, Added, "set", set.Name)
	return set.out(), nil
}

// ModifyVolumeSet changes a set. Where the set is exported a volume that joins
// is exported, and one that leaves is no more. Errors: those of CreateVLUN, EXPORTED_VLUN (the last volume of an exported set), NON_EXISTENT_SET, EXISTENT_SET, names,
// NON_EXISTENT_VOL, MEMBER_IN_SET, MEMBER_NOT_IN_SET,
// MEMBER_NOT_IN_SAME_DOMAIN, INV_INPUT_DUP_NAME, INV_INPUT_PARAM_CONFLICT,
// INV_INPUT_MISSING_REQUIRED (nothing to change).
func (a *Array) ModifyVolumeSet(now time.Time, name string, ch SetChange) (Set, error) {
	set, err := a.volumeSet(name)
	if err != nil {
		return Set{}, err
	}
	n, err := changeSet(set.Set, ch, a.volumeSets.has)
	if err != nil {
		return Set{}, err
	}
	var members []*volume
	for i, m := range append(slices.Clone(ch.Add), ch.Remove...) {
		v, err := a.volume("setmembers", m)
		if err != nil {
			return Set{}, err
		}
		if err := membership(set.Name, m, slices.Contains(set.members, v), len(ch.Add) > 0); err != nil {
			return Set{}, err
		}
		if len(ch.Add) > 0 {
			if err := inDomain(m, v.Domain, &n.Domain, len(set.members) == 0 && i == 0); err != nil {
				return Set{}, err
			}
		}
		members = append(members, v)
	}
	if len(ch.Add) > 0 {
		if err := a.joining(set, members); err != nil {
			return Set{}, err
		}
	} else if x := a.setVLUNsOf(set); len(x) > 0 && len(members) == len(set.members) {
		// Unverified: that an exported set keeps a volume.
		return Set{}, &Error{Kind: Exported, Field: "setmembers", Value: members[0].Name, Reason: "it is the last volume of an exported set", Holder: x[0].shell().target()}
	}
	if n.Name != name {
		a.volumeSets.rename(name, n.Name)
	}
	set.Set = n
	for _, v := range members {
		if len(ch.Add) > 0 {
			set.members = append(set.members, v)
			a.setsOf.add(v, set)
		} else {
			a.leave(a.partsOf(set, v))
			set.members = slices.DeleteFunc(set.members, func(w *volume) bool { return w == v })
			a.setsOf.drop(v, set)
		}
	}
	a.log(now, Changed, "set", n.Name)
	return set.out(), nil
}

func changeSet(s Set, ch SetChange, taken func(string) bool) (Set, error) {
	if err := ch.check(); err != nil {
		return s, err
	}
	if err := distinct(append(slices.Clone(ch.Add), ch.Remove...)); err != nil {
		return s, err
	}
	if ch.NewName != nil && *ch.NewName != s.Name {
		if err := checkName("newName", *ch.NewName, MaxSetName); err != nil {
			return s, err
		}
		if taken(*ch.NewName) {
			return s, &Error{Kind: ExistentSet, Field: "newName", Value: *ch.NewName, Reason: "a set has this name"}
		}
		s.Name = *ch.NewName
	}
	if ch.Comment != nil {
		if err := checkText("comment", *ch.Comment, MaxComment); err != nil {
			return s, err
		}
		s.Comment = *ch.Comment
	}
	if ch.Flash != nil {
		if err := ch.Flash.check(); err != nil {
			return s, err
		}
		s.Flash = *ch.Flash
	}
	return s, nil
}

func membership(set, name string, is, add bool) error {
	if is && add {
		return &Error{Kind: MemberInSet, Field: "setmembers", Value: name, Reason: "it is in the set", Holder: set}
	}
	if !is && !add {
		return &Error{Kind: MemberNotInSet, Field: "setmembers", Value: name, Reason: "it is not in the set", Holder: set}
	}
	return nil
}

// DeleteVolumeSet drops a set; its volumes stay. Errors: NON_EXISTENT_SET,
// VVSET_QOS_TARGET, EXPORTED_VLUN.
func (a *Array) DeleteVolumeSet(now time.Time, name string) error {
	set, err := a.volumeSet(name)
	if err != nil {
		return err
	}
	if a.rules.has(set) {
		return &Error{Kind: SetHasQoS, Field: "name", Value: name, Reason: "the set has a QoS rule"}
	}
	if x := a.setVLUNsOf(set); len(x) > 0 {
		return &Error{Kind: Exported, Field: "name", Value: name, Reason: "the set is exported", Holder: x[0].shell().target()}
	}
	for _, v := range set.members {
		a.setsOf.drop(v, set)
	}
	a.volumeSets.drop(name)
	a.log(now, Removed, "set", name)
	return nil
}

// VolumeSet returns a set of volumes. Errors: NON_EXISTENT_SET.
func (a *Array) VolumeSet(name string) (Set, error) {
	s, err := a.volumeSet(name)
	if err != nil {
		return Set{}, err
	}
	return s.out(), nil
}

// VolumeSets returns all sets of volumes, oldest first.
func (a *Array) VolumeSets() []Set {
	out := make([]Set, 0, a.volumeSets.len())
	for s := range a.volumeSets.all() {
		out = append(out, s.out())
	}
	return out
}

func (a *Array) hostSet(name string) (*hostSet, error) {
	if s, ok := a.hostSets.get(name); ok {
		return s, nil
	}
	if err := checkName("name", name, MaxSetName); err != nil {
		return nil, err
	}
	return nil, &Error{Kind: NonExistentSet, Field: "name", Value: name, Reason: "no such host set"}
}

// CreateHostSet makes a set of hosts. Errors: names, EXISTENT_SET,
// NON_EXISTENT_DOMAIN, NON_EXISTENT_HOST, MEMBER_NOT_IN_SAME_DOMAIN,
// INV_INPUT_DUP_NAME.
func (a *Array) CreateHostSet(now time.Time, s SetSpec) (Set, error) {
	if err := a.newSet(s, a.hostSets.has(s.Name)); err != nil {
		return Set{}, err
	}
	var members []*host
	domain := s.Domain
	for i, n := range s.Members {
		h, err := a.host("setmembers", n)
		if err != nil {
			return Set{}, err
		}
		if err := inDomain(n, h.Domain, &domain, i == 0); err != nil {
			return Set{}, err
		}
		members = append(members, h)
	}
	set := &hostSet{Set: a.fresh(s, domain, "hostset"), members: members}
	a.hostSets.put(set.Name, set)
	for _, h := range members {
		a.hostSetsOf.add(h, set)
	}
	a.log(now, Added, "set", set.Name)
	return set.out(), nil
}

// ModifyHostSet changes a set. What is exported to the set is exported to a
// host that joins, and no more to one that leaves. Errors: as ModifyVolumeSet,
// NON_EXISTENT_HOST, LUN_ID_CONFLICT (the host has another volume at a LUN of
// the set).
func (a *Array) ModifyHostSet(now time.Time, name string, ch SetChange) (Set, error) {
	set, err := a.hostSet(name)
	if err != nil {
		return Set{}, err
	}
	n, err := changeSet(set.Set, ch, a.hostSets.has)
	if err != nil {
		return Set{}, err
	}
	var members []*host
	for i, m := range append(slices.Clone(ch.Add), ch.Remove...) {
		h, err := a.host("setmembers", m)
		if err != nil {
			return Set{}, err
		}
		if err := membership(set.Name, m, slices.Contains(set.members, h), len(ch.Add) > 0); err != nil {
			return Set{}, err
		}
		if len(ch.Add) > 0 {
			if err := inDomain(m, h.Domain, &n.Domain, len(set.members) == 0 && i == 0); err != nil {
				return Set{}, err
			}
			for _, x := range inOrder(a.exportsSet[set]) {
				if err := h.takes(x.vol, x.LUN); err != nil {
					return Set{}, &Error{Kind: LUNConflict, Field: "setmembers", Value: m, Reason: fmt.Sprintf("it has another volume at LUN %d, or %s at another", x.LUN, x.vol.Name), Holder: set.Name}
				}
			}
		}
		members = append(members, h)
	}
	if n.Name != name {
		a.hostSets.rename(name, n.Name)
	}
	set.Set = n
	for _, h := range members {
		if len(ch.Add) > 0 {
			set.members = append(set.members, h)
			a.hostSetsOf.add(h, set)
			for x := range a.exportsSet[set] {
				h.luns.take(x.vol, x.LUN)
			}
		} else {
			set.members = slices.DeleteFunc(set.members, func(k *host) bool { return k == h })
			a.hostSetsOf.drop(h, set)
			for x := range a.exportsSet[set] {
				h.luns.release(x.vol)
			}
		}
	}
	a.log(now, Changed, "set", n.Name)
	return set.out(), nil
}

// DeleteHostSet drops a set; its hosts stay. Errors: NON_EXISTENT_SET,
// EXPORTED_VLUN.
func (a *Array) DeleteHostSet(now time.Time, name string) error {
	set, err := a.hostSet(name)
	if err != nil {
		return err
	}
	if x, some := least(a.exportsSet[set], (*vlun).volume); some {
		return &Error{Kind: Exported, Field: "name", Value: name, Reason: "a volume is exported to the set", Holder: x.vol.Name}
	}
	for _, h := range set.members {
		a.hostSetsOf.drop(h, set)
	}
	a.hostSets.drop(name)
	a.log(now, Removed, "set", name)
	return nil
}

// HostSet returns a set of hosts. Errors: NON_EXISTENT_SET.
func (a *Array) HostSet(name string) (Set, error) {
	s, err := a.hostSet(name)
	if err != nil {
		return Set{}, err
	}
	return s.out(), nil
}

// HostSets returns all sets of hosts, oldest first.
func (a *Array) HostSets() []Set {
	out := make([]Set, 0, a.hostSets.len())
	for s := range a.hostSets.all() {
		out = append(out, s.out())
	}
	return out
}

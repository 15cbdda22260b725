package array

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// SetVLUN is an export of a set of volumes (set:NAME where the name of one
// stands): each volume of the set appears at a LUN of its own, also one that
// joins later, and one that leaves is gone.
type SetVLUN struct {
	VLUN         // Volume is set:NAME, LUN where the LUNs of its volumes begin
	Parts []Part `json:"parts,omitempty"` // in the order of the set
}

// Part is the export of one volume of a set.
type Part struct {
	Volume string `json:"volume"`
	LUN    int    `json:"lun"`
}

// setVLUN is one, whose parts are exports like others: they hold LUNs and keep
// volumes from being deleted.
type setVLUN struct {
	VLUN
	vols  *volumeSet
	host  *host
	set   *hostSet
	parts []*vlun
}

// setVLUNKey is what a set has at most one export for.
type setVLUNKey struct {
	vols *volumeSet
	host *host
	set  *hostSet
	port PortPos
}

func (s *setVLUN) key() setVLUNKey {
	k := setVLUNKey{vols: s.vols, host: s.host, set: s.set}
	if s.Port != nil {
		k.port = *s.Port
	}
	return k
}

func (s *setVLUN) volume() string { return setPrefix + s.vols.Name }

// shell is an export without a volume that says to whom the set goes.
func (s *setVLUN) shell() *vlun { return &vlun{VLUN: s.VLUN, host: s.host, set: s.set} }

func (s *setVLUN) out() SetVLUN {
	o := SetVLUN{VLUN: s.VLUN}
	o.Volume, o.Host = s.volume(), ""
	if s.host != nil || s.set != nil {
		o.Host = s.shell().target()
	}
	if s.Port != nil {
		p := *s.Port
		o.Port = &p
	}
	for _, x := range s.parts {
		o.Parts = append(o.Parts, Part{x.vol.Name, x.LUN})
	}
	return o
}

// createSetVLUN exports a set of volumes, or nothing of it. Unverified: which
// LUNs the volumes get; here the first one of the set has the LUN that is asked
// for and each other the next, with Auto each the lowest that is free from
// there on.
func (a *Array) createSetVLUN(now time.Time, spec VLUNSpec) (*setVLUN, error) {
	vols, err := a.volumeSet(strings.TrimPrefix(spec.Volume, setPrefix))
	if err != nil {
		if e := (*Error)(nil); errors.As(err, &e) {
			e.Field = "volumeName"
		}
		return nil, err
	}
	if len(vols.members) == 0 {
		return nil, &Error{Kind: EmptySet, Field: "volumeName", Value: spec.Volume, Reason: "the set has no volumes"}
	}
	s := &setVLUN{VLUN: VLUN{LUN: spec.LUN, Created: now}, vols: vols}
	for i, v := range vols.members {
		one := spec
		one.Volume = v.Name
		if !spec.Auto {
			one.LUN += i
		}
		x, err := a.planVLUN(one)
		if err != nil {
			a.withdraw(s)
			return nil, err
		}
		if i == 0 {
			s.Type, s.Port, s.host, s.set, s.LUN = x.Type, x.Port, x.host, x.set, x.LUN
			if old, ok := a.setVLUNs.get(s.key()); ok {
				return nil, &Error{Kind: ExistentLUN, Field: "volumeName", Value: spec.Volume, Reason: fmt.Sprintf("the set is exported there from LUN %d on", old.LUN), Holder: old.shell().target()}
			}
		}
		x.Created, x.via = now, s
		s.parts = append(s.parts, x)
		a.export(x)
	}
	return s, nil
}

// withdraw takes the parts of a set's export away again.
func (a *Array) withdraw(s *setVLUN) {
	for _, x := range s.parts {
		a.unexport(x)
	}
}

// keepSetVLUN makes an export of a set known that createSetVLUN made.
func (a *Array) keepSetVLUN(s *setVLUN) {
	a.setVLUNs.put(s.key(), s)
	a.exportsOf.add(s.vols, s)
}

func (a *Array) deleteSetVLUN(now time.Time, k VLUNKey) (VLUN, error) {
	s, err := a.setVLUN(k)
	if err != nil {
		return VLUN{}, err
	}
	o := s.out().VLUN
	a.withdraw(s)
	a.setVLUNs.drop(s.key())
	a.exportsOf.drop(s.vols, s)
	a.log(now, Removed, "vlun", o.Volume)
	return o, nil
}

// setVLUN finds one.
func (a *Array) setVLUN(k VLUNKey) (*setVLUN, error) {
	h, hs, err := a.hostOrSet(k.Host)
	if err != nil {
		return nil, err
	}
	key := setVLUNKey{host: h, set: hs}
	if k.Port != nil {
		key.port = *k.Port
	}
	key.vols, _ = a.volumeSets.get(strings.TrimPrefix(k.Volume, setPrefix))
	if s, ok := a.setVLUNs.get(key); ok && s.LUN == k.LUN {
		return s, nil
	}
	return nil, noVLUN(k)
}

// joining exports volumes that join a set to whom the set is exported, at the
// lowest LUN that is free from its first one on: all of it or nothing.
func (a *Array) joining(set *volumeSet, vols []*volume) error {
	var made []*vlun
	for _, s := range a.setVLUNsOf(set) {
		for _, v := range vols {
			spec := VLUNSpec{Volume: v.Name, LUN: s.LUN, Port: s.Port, Auto: true}
			if s.host != nil || s.set != nil {
				spec.Host = s.shell().target()
			}
			x, err := a.planVLUN(spec)
			if err != nil {
				a.leave(made)
				return err
			}
			x.Created, x.via = s.Created, s
			a.export(x)
			s.parts = append(s.parts, x)
			made = append(made, x)
		}
	}
	return nil
}

// leave ends parts of exports of sets.
func (a *Array) leave(parts []*vlun) {
	for _, x := range parts {
		a.unexport(x)
		x.via.parts = slices.DeleteFunc(slices.Clone(x.via.parts), func(y *vlun) bool { return y == x })
	}
}

// partsOf are the exports of a volume by way of a set.
func (a *Array) partsOf(set *volumeSet, v *volume) (out []*vlun) {
	for _, s := range a.setVLUNsOf(set) {
		for _, x := range s.parts {
			if x.vol == v {
				out = append(out, x)
			}
		}
	}
	return out
}

// setVLUNsOf are the exports of a set, by LUN and to whom they go.
func (a *Array) setVLUNsOf(set *volumeSet) []*setVLUN {
	var out []*setVLUN
	for s := range a.exportsOf[set] {
		out = append(out, s)
	}
	slices.SortFunc(out, func(s, t *setVLUN) int {
		return cmp.Or(cmp.Compare(s.LUN, t.LUN), cmp.Compare(s.shell().target(), t.shell().target()), s.key().port.compare(t.key().port))
	})
	return out
}

// SetVLUNs returns all exports of sets of volumes, oldest first.
func (a *Array) SetVLUNs() []SetVLUN {
	out := make([]SetVLUN, 0, a.setVLUNs.len())
	for s := range a.setVLUNs.all() {
		out = append(out, s.out())
	}
	return out
}

func (a *Array) restoreSetVLUNs(s *Stored) error {
	for _, o := range s.SetVLUNs {
		vols, ok := a.volumeSets.get(strings.TrimPrefix(o.Volume, setPrefix))
		if !ok || len(o.Parts) == 0 || len(o.Parts) != len(vols.members) {
			return unknown("export", o.Volume, "volume set", o.Volume)
		}
		x := &setVLUN{VLUN: o.VLUN, vols: vols}
		for i, p := range o.Parts {
			y, err := a.restoreVLUN(VLUN{Volume: p.Volume, LUN: p.LUN, Host: o.Host, Port: o.Port, Created: o.Created})
			if err != nil {
				return err
			}
			if !slices.Contains(vols.members, y.vol) {
				return unknown("export", o.Volume, "volume", p.Volume)
			}
			if i == 0 {
				x.Type, x.Port, x.host, x.set = y.Type, y.Port, y.host, y.set
			}
			y.via = x
			x.parts = append(x.parts, y)
			a.export(y)
		}
		if a.setVLUNs.has(x.key()) || o.Host == "" && o.Port == nil {
			return fmt.Errorf("export of %q: given twice, or to nobody", o.Volume)
		}
		a.keepSetVLUN(x)
	}
	return nil
}

package array

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// CopySpec says what virtual copy (snapshot) to make.
type CopySpec struct {
	Of       string // a volume, or a virtual copy
	Name     string
	ID       *int64
	ReadOnly bool
	Comment  string
	// Hours from now, up to MaxHours; 0 and less is none.
	ExpirationHours, RetentionHours int64
}

// whole refuses a volume whose content is not complete.
func (v *volume) whole() error {
	if v.State == FailedState {
		return &Error{Kind: StaleState, Field: "name", Value: v.Name, Reason: "a copy to the volume was not completed"}
	}
	return nil
}

func (a *Array) planCopy(s CopySpec) (*volume, error) {
	p, err := a.volume("name", s.Of)
	if err != nil {
		return nil, err
	}
	if err := a.newName("name", s.Name); err != nil {
		return nil, err
	}
	if err := checkText("comment", s.Comment, MaxComment); err != nil {
		return nil, err
	}
	if err := checkHours(s.ExpirationHours, s.RetentionHours); err != nil {
		return nil, err
	}
	if p.ReadOnly && s.ReadOnly {
		return nil, &Error{Kind: ReadOnlyToReadOnly, Field: "readOnly", Value: "true", Reason: "the parent is read-only", Holder: p.Name}
	}
	if err := p.whole(); err != nil {
		return nil, err
	}
	if t := p.busy; t != nil && (t.to == p || t.Type == PromoteTask) {
		return nil, p.idle()
	}
	snap := p.base().snap
	if snap == nil {
		return nil, &Error{Kind: NoSnapCPG, Field: "name", Value: s.Of, Reason: "the volume has no CPG for snapshots"}
	}
	if a.snapshots >= a.cfg.MaxSnapshots {
		return nil, &Error{Kind: SnapshotLimit, Field: "name", Value: s.Name, Reason: fmt.Sprintf("the array has %d snapshots, as many as it may", a.snapshots)}
	}
	id, err := a.newID(s.ID)
	if err != nil {
		return nil, err
	}
	if a.freeMiB(snap) < UnitMiB {
		return nil, &Error{Kind: NoSpace, Field: "name", Value: s.Name, Reason: "the CPG for snapshots is full", Holder: snap.Name}
	}
	v := &volume{parent: p, snap: snap, Volume: Volume{ID: id, Name: s.Name, Domain: p.Domain, SizeMiB: p.SizeMiB,
		Provisioning: Snapshot, CopyType: Virtual, ReadOnly: s.ReadOnly, Comment: s.Comment, State: Normal}}
	a.identify(v)
	return v, nil
}

func copyOps(v *volume) []ContentOp {
	return []ContentOp{{Do: CopyImage, Image: v.Image, From: v.parent.Image, SizeMiB: v.SizeMiB}}
}

// PlanCreateCopy checks whether CreateCopy would succeed.
func (a *Array) PlanCreateCopy(s CopySpec) (Plan, error) {
	v, err := a.planCopy(s)
	if err != nil {
		return Plan{}, err
	}
	return Plan{v.out(), copyOps(v)}, nil
}

// CreateCopy makes a virtual copy. Errors: NON_EXISTENT_VOL, EXISTENT_VOL,
// EXISTENT_ID, names, times, NO_SNAP_CPG, NO_SPACE, VV_LIMIT_REACHED,
// SNAPSHOT_LIMIT_REACHED, VV_IN_STALE_STATE,
// INV_OPERATION_VV_READONLY_TO_READONLY_SNAP, and what a running copy or
// promotion stands against.
func (a *Array) CreateCopy(now time.Time, s CopySpec) (Volume, error) {
	v, err := a.planCopy(s)
	if err != nil {
		return Volume{}, err
	}
	v.setHours(now, s.ExpirationHours, s.RetentionHours)
	a.appear(now, v)
	return v.out(), nil
}

// setCopies are the copies that a set of volumes gets: all of one moment, or
// none. The name is a pattern: @vvname@ stands for the volume, @count@ for its
// number in the set.
func (a *Array) setCopies(s CopySpec) ([]*volume, error) {
	set, err := a.volumeSet(s.Of)
	if err != nil {
		return nil, err
	}
	if len(set.members) == 0 {
		return nil, &Error{Kind: EmptySet, Field: "name", Value: s.Of, Reason: "the set has no volumes"}
	}
	if s.ID != nil {
		return nil, &Error{Kind: InvalidInput, Field: "id", Value: fmt.Sprint(*s.ID), Reason: "not with a set"}
	}
	if len(set.members) > 1 && !strings.Contains(s.Name, "@vvname@") && !strings.Contains(s.Name, "@count@") {
		return nil, &Error{Kind: NamePattern, Field: "name", Value: s.Name, Reason: "@vvname@ or @count@ is required"}
	}
	if a.snapshots+len(set.members) > a.cfg.MaxSnapshots {
		return nil, &Error{Kind: SnapshotLimit, Field: "name", Value: s.Name, Reason: fmt.Sprintf("the array has %d snapshots, %d are allowed", a.snapshots, a.cfg.MaxSnapshots)}
	}
	if a.volumes.len()+len(set.members) > a.cfg.MaxVolumes {
		return nil, &Error{Kind: VolumeLimit, Field: "name", Value: s.Name, Reason: fmt.Sprintf("the array has %d volumes, %d are allowed", a.volumes.len(), a.cfg.MaxVolumes)}
	}
	var all []*volume
	names, bases := map[string]bool{}, map[*volume]bool{}
	for i, m := range set.members {
		if bases[m.base()] {
			return nil, &Error{Kind: SameBase, Field: "name", Value: s.Of, Reason: "two volumes of the set have one base", Holder: m.base().Name}
		}
		bases[m.base()] = true
		if c := m.base().snap; c != nil && c.WarningMiB > 0 && c.UsedMiB() > c.WarningMiB {
			return nil, &Error{Kind: AllocationWarning, Field: "name", Value: m.Name, Reason: fmt.Sprintf("the CPG has its warning at %d MiB", c.WarningMiB), Holder: c.Name}
		}
		x := s
		x.Of = m.Name
		x.Name = strings.NewReplacer("@vvname@", m.Name, "@count@", fmt.Sprint(i)).Replace(s.Name)
		v, err := a.planCopy(x)
		if err != nil {
			return nil, err
		}
		if names[v.Name] {
			return nil, &Error{Kind: DuplicateName, Field: "name", Value: v.Name, Reason: "two copies would have this name"}
		}
		names[v.Name] = true
		v.Seq += uint64(i)
		v.UUID, v.WWN, v.Image = uuid(a.cfg.Seed, "volume", v.Seq), a.newWWN(v.Seq), a.imageName(v.Seq, 0)
		all = append(all, v)
	}
	return all, nil
}

// PlanCopySet checks whether CopySet would succeed.
func (a *Array) PlanCopySet(s CopySpec) ([]Plan, error) {
	all, err := a.setCopies(s)
	if err != nil {
		return nil, err
	}
	var out []Plan
	for _, v := range all {
		out = append(out, Plan{v.out(), copyOps(v)})
	}
	return out, nil
}

// CopySet makes virtual copies of all volumes of a set, of one moment. Errors:
// NON_EXISTENT_SET, EMPTY_SET, INVALID_INPUT_VV_PATTERN, INV_INPUT_DUP_NAME,
// INV_OPERATION_VV_SNAP_PARENT_SAME_BASE, CPG_ALLOCATION_WARNING_REACHED, and
// those of CreateCopy.
func (a *Array) CopySet(now time.Time, s CopySpec) ([]Volume, error) {
	all, err := a.setCopies(s)
	if err != nil {
		return nil, err
	}
	var out []Volume
	for _, v := range all {
		v.ID, _ = a.newID(nil)
		v.setHours(now, s.ExpirationHours, s.RetentionHours)
		a.appear(now, v)
		out = append(out, v.out())
	}
	slices.SortFunc(out, func(v, w Volume) int { return cmp.Compare(v.Seq, w.Seq) })
	return out, nil
}

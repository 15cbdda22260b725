package array

import (
	"fmt"
	"time"
)

// RAIDType of a CPG, numbered as the WSAPI does.
type RAIDType int

// The RAID types.
const (
	RAID0 RAIDType = iota + 1
	RAID1
	RAID5
	RAID6
)

// Availability is the failure that the layout of a CPG survives, numbered as
// the WSAPI does: 1 a port, 2 a cage, 3 a magazine.
type Availability int

// CPG is a common provisioning group: where volumes take their space from.
type CPG struct {
	ID     int64  `json:"id"`
	Name   string `json:"name"`
	UUID   string `json:"uuid"`
	Domain string `json:"domain,omitempty"`
	// GrowthIncrementMiB is what the real array grows logical disks by; here it
	// is only told.
	GrowthIncrementMiB int64 `json:"growthIncrementMiB,omitempty"`
	// GrowthLimitMiB is what it takes at most, 0 what the array has.
	GrowthLimitMiB int64 `json:"growthLimitMiB,omitempty"`
	// WarningMiB: beyond it a warning is logged and sets of volumes get no
	// snapshots any more; 0 is none.
	WarningMiB   int64        `json:"warningMiB,omitempty"`
	RAID         RAIDType     `json:"raid,omitempty"`
	HA           Availability `json:"ha,omitempty"`
	SetSize      int          `json:"setSize,omitempty"`
	UserMiB      int64        `json:"-"` // taken by volumes
	SnapshotMiB  int64        `json:"-"` // taken by their snapshots
	Volumes      int          `json:"-"` // that take their own space from it
	SnapshotsFor int          `json:"-"` // volumes that take that of snapshots from it
}

// UsedMiB is what volumes and snapshots take of the CPG.
func (c CPG) UsedMiB() int64 { return c.UserMiB + c.SnapshotMiB }

type cpg struct {
	CPG
	warned bool
}

// CPGSpec says what CPG to make.
type CPGSpec struct {
	Name, Domain                                   string
	GrowthIncrementMiB, GrowthLimitMiB, WarningMiB int64
	RAID                                           RAIDType
	HA                                             Availability
	SetSize                                        int
}

// CPGChange says what to change; nil leaves a thing as it is.
type CPGChange struct {
	NewName                                        *string
	GrowthIncrementMiB, GrowthLimitMiB, WarningMiB *int64
}

func checkCPG(incrementMiB, limitMiB, warningMiB int64) error {
	for _, x := range []struct {
		field string
		mib   int64
	}{{"growthIncrementMiB", incrementMiB}, {"growthLimitMiB", limitMiB}, {"usedLDWarningAlertMiB", warningMiB}} {
		if x.mib < 0 || x.mib > 1<<40 {
			return &Error{Kind: ExceedsRange, Field: x.field, Value: fmt.Sprint(x.mib), Reason: fmt.Sprintf("allowed are 0 to %d", int64(1)<<40)}
		}
	}
	if limitMiB > 0 && warningMiB > limitMiB {
		return &Error{Kind: WarnBeyondLimit, Field: "usedLDWarningAlertMiB", Value: fmt.Sprint(warningMiB), Reason: fmt.Sprintf("the limit is %d", limitMiB)}
	}
	return nil
}

// CreateCPG makes a CPG. Errors: names, EXISTENT_CPG, NON_EXISTENT_DOMAIN,
// INV_INPUT_EXCEEDS_RANGE, INV_INPUT_BAD_ENUM_VALUE, INV_INPUT_WARN_GT_LIMIT.
func (a *Array) CreateCPG(now time.Time, s CPGSpec) (CPG, error) {
	if err := checkName("name", s.Name, MaxName); err != nil {
		return CPG{}, err
	}
	if a.cpgs.has(s.Name) {
		return CPG{}, &Error{Kind: ExistentCPG, Field: "name", Value: s.Name, Reason: "a CPG has this name"}
	}
	if err := a.checkDomain(s.Domain); err != nil {
		return CPG{}, err
	}
	if err := checkCPG(s.GrowthIncrementMiB, s.GrowthLimitMiB, s.WarningMiB); err != nil {
		return CPG{}, err
	}
	if s.RAID < 0 || s.RAID > RAID6 {
		return CPG{}, &Error{Kind: BadEnum, Field: "RAIDType", Value: fmt.Sprint(s.RAID), Reason: "allowed are 1 to 4"}
	}
	if s.HA < 0 || s.HA > 3 {
		return CPG{}, &Error{Kind: BadEnum, Field: "HA", Value: fmt.Sprint(s.HA), Reason: "allowed are 1 to 3"}
	}
	id := a.nextID
	a.nextID++
	c := &cpg{CPG: CPG{ID: id, Name: s.Name, UUID: uuid(a.cfg.Seed, "cpg", uint64(id)), Domain: s.Domain,
		GrowthIncrementMiB: s.GrowthIncrementMiB, GrowthLimitMiB: s.GrowthLimitMiB, WarningMiB: s.WarningMiB,
		RAID: s.RAID, HA: s.HA, SetSize: s.SetSize}}
	a.cpgs.put(c.Name, c)
	a.log(now, Added, "cpg", c.Name)
	return c.CPG, nil
}

// ModifyCPG changes a CPG. Errors: NON_EXISTENT_CPG, EXISTENT_CPG, names,
// ranges, INV_INPUT_MISSING_REQUIRED (nothing to change).
func (a *Array) ModifyCPG(now time.Time, name string, ch CPGChange) (CPG, error) {
	c, err := a.cpg("name", name)
	if err != nil {
		return CPG{}, err
	}
	if ch == (CPGChange{}) {
		return CPG{}, &Error{Kind: MissingRequired, Field: "newName", Reason: "nothing to change"}
	}
	n := c.CPG
	if ch.NewName != nil {
		n.Name = *ch.NewName
		if err := checkName("newName", n.Name, MaxName); err != nil {
			return CPG{}, err
		}
		if n.Name != name && a.cpgs.has(n.Name) {
			return CPG{}, &Error{Kind: ExistentCPG, Field: "newName", Value: n.Name, Reason: "a CPG has this name"}
		}
	}
	for _, x := range []struct{ to, from *int64 }{{&n.GrowthIncrementMiB, ch.GrowthIncrementMiB}, {&n.GrowthLimitMiB, ch.GrowthLimitMiB}, {&n.WarningMiB, ch.WarningMiB}} {
		if x.from != nil {
			*x.to = *x.from
		}
	}
	if err := checkCPG(n.GrowthIncrementMiB, n.GrowthLimitMiB, n.WarningMiB); err != nil {
		return CPG{}, err
	}
	c.CPG = n
	if n.Name != name {
		a.cpgs.rename(name, n.Name)
		for g := range a.groups.all() {
			for _, of := range []*string{&g.UserCPG, &g.SnapCPG} {
				if *of == name {
					*of = n.Name
				}
			}
		}
	}
	a.warn(now, c)
	a.log(now, Changed, "cpg", n.Name)
	return c.CPG, nil
}

// DeleteCPG drops a CPG. Errors: NON_EXISTENT_CPG, IN_USE.
func (a *Array) DeleteCPG(now time.Time, name string) error {
	c, err := a.cpg("name", name)
	if err != nil {
		return err
	}
	if c.Volumes+c.SnapshotsFor > 0 {
		return &Error{Kind: InUse, Field: "name", Value: name, Reason: fmt.Sprintf("%d volumes use the CPG", max(c.Volumes, c.SnapshotsFor))}
	}
	if g := a.groupOn(c); g != "" {
		return &Error{Kind: InUse, Field: "name", Value: name, Reason: "a remote copy group makes volumes in the CPG", Holder: g}
	}
	a.cpgs.drop(name)
	a.log(now, Removed, "cpg", name)
	return nil
}

func (a *Array) cpg(field, name string) (*cpg, error) {
	if c, ok := a.cpgs.get(name); ok {
		return c, nil
	}
	if err := checkName(field, name, MaxName); err != nil {
		return nil, err
	}
	return nil, &Error{Kind: NonExistentCPG, Field: field, Value: name, Reason: "no such CPG"}
}

// CPG returns a CPG. Errors: NON_EXISTENT_CPG.
func (a *Array) CPG(name string) (CPG, error) {
	c, err := a.cpg("name", name)
	if err != nil {
		return CPG{}, err
	}
	return c.CPG, nil
}

// CPGs returns all CPGs, oldest first.
func (a *Array) CPGs() []CPG {
	out := make([]CPG, 0, a.cpgs.len())
	for c := range a.cpgs.all() {
		out = append(out, c.CPG)
	}
	return out
}

package array

import (
	"fmt"
	"time"
)

// What volumes take. A full volume takes its size when it is made. A thin or
// reduced one takes what was written to it, in whole units (256 MiB; the real
// one books smaller pages, but takes the space for them in such steps); a new one takes
// nothing (unverified: the real one has some hundred MiB at once). Snapshots
// share blocks with their parent; what is written on either side since takes
// space of the CPG for snapshots. Reduction does not save anything here: no
// content is looked at.

// userMiB is what the content of a volume takes of its CPG.
func (v *volume) userMiB() int64 {
	switch {
	case v.CopyType == Virtual:
		return 0
	case v.Provisioning == Full:
		return v.SizeMiB
	}
	return roundMiB(v.WrittenMiB)
}

// snapMiB is what a volume and its snapshots differ by takes of the CPG for
// snapshots.
func (v *volume) snapMiB() int64 { return roundMiB(v.SnapshotMiB) }

// charge books a volume on its CPGs. Whatever changes its size, content or
// CPGs discharges it before and charges it afterwards.
func (a *Array) charge(now time.Time, v *volume) {
	if v.user != nil {
		v.user.UserMiB += v.userMiB()
		a.usedMiB += v.userMiB()
		a.warn(now, v.user)
	}
	if v.snap != nil {
		v.snap.SnapshotMiB += v.snapMiB()
		a.usedMiB += v.snapMiB()
		a.warn(now, v.snap)
	}
}

func (a *Array) discharge(v *volume) {
	if v.user != nil {
		v.user.UserMiB -= v.userMiB()
		a.usedMiB -= v.userMiB()
	}
	if v.snap != nil {
		v.snap.SnapshotMiB -= v.snapMiB()
		a.usedMiB -= v.snapMiB()
	}
}

// warn logs that a CPG passed its warning, once until it is below again.
func (a *Array) warn(now time.Time, c *cpg) {
	over := c.WarningMiB > 0 && c.UsedMiB() > c.WarningMiB
	if over && !c.warned {
		a.log(now, Warning, "cpg", c.Name)
	}
	c.warned = over
}

// freeMiB is what can still be taken from a CPG.
func (a *Array) freeMiB(c *cpg) int64 {
	free := a.cfg.CapacityMiB - a.usedMiB
	if c.GrowthLimitMiB > 0 {
		free = min(free, c.GrowthLimitMiB-c.UsedMiB())
	}
	return max(0, free)
}

// room refuses to take more of a CPG than it has.
func (a *Array) room(field string, c *cpg, mib int64) error {
	if free := a.freeMiB(c); mib > free {
		return &Error{Kind: NoSpace, Field: field, Value: fmt.Sprint(mib), Reason: fmt.Sprintf("%d MiB are free", free), Holder: c.Name}
	}
	return nil
}

// Space is what can be taken, in MiB.
type Space struct{ TotalMiB, FreeMiB int64 }

// FreeSpace is what a CPG can still take. Errors: NON_EXISTENT_CPG.
func (a *Array) FreeSpace(name string) (Space, error) {
	c, err := a.cpg("cpg", name)
	if err != nil {
		return Space{}, err
	}
	free := a.freeMiB(c)
	return Space{c.UsedMiB() + free, free}, nil
}

// Capacity is that of the whole array.
func (a *Array) Capacity() Space {
	return Space{a.cfg.CapacityMiB, max(0, a.cfg.CapacityMiB-a.usedMiB)}
}

// Wrote books what hosts wrote to an image: firstMiB where nothing had been
// written before, againMiB where something had been, for the first time since
// the last copy was made of it. It refuses what finds no space: then the write
// fails on the host. An image that no volume has is let pass. What a snapshot
// keeps is given back with the last one. Errors: NO_SPACE.
func (a *Array) Wrote(now time.Time, image string, firstMiB, againMiB int64) error {
	v := a.byImage[image]
	if v == nil {
		return nil
	}
	user, snap := min(v.WrittenMiB+firstMiB, v.SizeMiB), v.SnapshotMiB
	switch {
	case v.CopyType == Virtual: // all of it differs from its parent
		snap += firstMiB + againMiB
	case v.snap != nil && a.hasSnapshots(v):
		snap += againMiB
	}
	return a.Written(now, v.Name, user, min(snap, MaxSizeMiB))
}

// hasSnapshots says whether there are virtual copies of a volume itself.
func (a *Array) hasSnapshots(v *volume) bool {
	for c := range a.children[v] {
		if c.CopyType == Virtual {
			return true
		}
	}
	return false
}

// Written says how much content a volume has, and how much snapshots keep of
// what was written over, in MiB. It refuses what finds no space: then the
// write fails on the host. Errors: NON_EXISTENT_VOL, NO_SPACE,
// INV_INPUT_EXCEEDS_RANGE.
func (a *Array) Written(now time.Time, name string, userMiB, snapshotMiB int64) error {
	v, err := a.volume("name", name)
	if err != nil {
		return err
	}
	if userMiB < 0 || userMiB > v.SizeMiB || snapshotMiB < 0 || snapshotMiB > MaxSizeMiB {
		return &Error{Kind: ExceedsRange, Field: "userMiB", Value: fmt.Sprint(userMiB), Reason: fmt.Sprintf("the volume has %d MiB", v.SizeMiB)}
	}
	if snapshotMiB > 0 && v.snap == nil {
		return &Error{Kind: NoSnapCPG, Field: "name", Value: name, Reason: "the volume has no CPG for snapshots"}
	}
	n := *v
	n.WrittenMiB, n.SnapshotMiB = userMiB, snapshotMiB
	if v.user != nil {
		if more := n.userMiB() - v.userMiB(); more > 0 {
			if err := a.room("userMiB", v.user, more); err != nil {
				return err
			}
		}
	}
	if v.snap != nil {
		more := n.snapMiB() - v.snapMiB()
		if v.snap == v.user {
			more += n.userMiB() - v.userMiB()
		}
		if more > 0 {
			if err := a.room("snapshotMiB", v.snap, more); err != nil {
				return err
			}
		}
		both := n.userMiB() - v.userMiB() + n.snapMiB() - v.snapMiB()
		if both > a.cfg.CapacityMiB-a.usedMiB {
			return &Error{Kind: NoSpace, Field: "snapshotMiB", Value: fmt.Sprint(both), Reason: "the array is full", Holder: v.snap.Name}
		}
	}
	a.discharge(v)
	v.WrittenMiB, v.SnapshotMiB = userMiB, snapshotMiB
	a.charge(now, v)
	return nil
}

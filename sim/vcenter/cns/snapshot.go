package cns

import (
	"fmt"
	"slices"
	"time"
)

func (c *Core) snapshot(volume, id string) (Snapshot, error) {
	v, ok := c.live(volume)
	if !ok {
		return Snapshot{}, c.unknown(volume)
	}
	if i := v.find(id); i >= 0 {
		return v.Snapshots[i], nil
	}
	return Snapshot{}, &Error{Kind: SnapshotNotFound, Field: "snapshotId", Value: id, Holder: volume, Reason: "the volume has no such snapshot"}
}

func (v *volume) find(snapshot string) int {
	return slices.IndexFunc(v.Snapshots, func(s Snapshot) bool { return s.ID == snapshot })
}

// Snapshot returns a snapshot. Errors: NotFound, SnapshotNotFound.
func (c *Core) Snapshot(volume, id string) (Snapshot, error) { return c.snapshot(volume, id) }

// PlanSnapshot checks whether CreateSnapshot would succeed.
func (c *Core) PlanSnapshot(volume, id, description string) (Snapshot, error) {
	v, ok := c.live(volume)
	if !ok {
		return Snapshot{}, c.unknown(volume)
	}
	return c.planSnapshot(v, id, description)
}

func (c *Core) planSnapshot(v *volume, id, description string) (Snapshot, error) {
	if err := c.unpinned(v.ID); err != nil {
		return Snapshot{}, err
	}
	if n := len(v.Snapshots); n >= c.snapshotLimit {
		return Snapshot{}, &Error{Kind: Limit, Field: "volumeId", Value: v.ID, Reason: fmt.Sprintf("the volume has %d snapshots, as many as it may", n)}
	}
	if id == "" || v.find(id) >= 0 {
		return Snapshot{}, &Error{Kind: InvalidArgument, Field: "snapshotId", Value: id, Reason: "empty, or a snapshot of the volume has this id"}
	}
	if err := c.reachable(v); err != nil {
		return Snapshot{}, err
	}
	s := Snapshot{ID: id, Volume: v.ID, Description: description, CapacityMB: v.CapacityMB}
	if n := len(v.Snapshots); n > 0 {
		s.Parent = v.Snapshots[n-1].ID
	}
	return s, nil
}

// PlanDeleteSnapshot checks whether DeleteSnapshot would succeed.
func (c *Core) PlanDeleteSnapshot(volume, id string) (Snapshot, error) {
	s, err := c.snapshot(volume, id)
	if err != nil {
		return Snapshot{}, err
	}
	if err := c.reachable(c.volumes[volume]); err != nil {
		return Snapshot{}, err
	}
	return s, c.unlinked(s)
}

// unlinked refuses a snapshot that linked clones read from. Unverified: the
// fault.
func (c *Core) unlinked(s Snapshot) error {
	for v := range c.clones[s.Volume] {
		if v.LinkedTo.Snapshot == s.ID {
			return &Error{Kind: InUse, Field: "snapshotId", Value: s.ID, Holder: v.ID, Reason: "a linked clone shares blocks with the snapshot"}
		}
	}
	return nil
}

// CreateSnapshot takes a snapshot. Descriptions need not be unique.
// Errors: NotFound, Limit, InvalidArgument (id).
func (c *Core) CreateSnapshot(now time.Time, volume, id, description string) (Snapshot, error) {
	s, err := c.PlanSnapshot(volume, id, description)
	if err != nil {
		return Snapshot{}, err
	}
	return c.takeSnapshot(c.volumes[volume], now, s), nil
}

func (c *Core) takeSnapshot(v *volume, now time.Time, s Snapshot) Snapshot {
	s.Created = now
	v.Taken++
	if v.Flags.ChangedBlockTracking {
		s.Change = v.Taken
	}
	s.Values = slices.Clone(v.Values)
	v.Snapshots = append(v.Snapshots, s)
	return s
}

// DeleteSnapshot drops a snapshot; the one after it gets its parent.
// Errors: NotFound, SnapshotNotFound, InUse (has linked clones).
func (c *Core) DeleteSnapshot(volume, id string) (Snapshot, error) {
	s, err := c.PlanDeleteSnapshot(volume, id)
	if err != nil {
		return Snapshot{}, err
	}
	c.volumes[volume].dropSnapshot(id)
	return s, nil
}

// remember keeps the change id of a snapshot that goes.
func (v *volume) remember(s Snapshot) {
	if s.Tracked() {
		v.Past = append(v.Past, PastSnapshot{s.ID, s.Change})
		v.Past = slices.Clone(v.Past[max(0, len(v.Past)-MaxPast):])
	}
}

// dropSnapshot takes a snapshot that is there out of the chain.
func (v *volume) dropSnapshot(id string) {
	i := v.find(id)
	if i+1 < len(v.Snapshots) {
		v.Snapshots[i+1].Parent = v.Snapshots[i].Parent
	}
	v.remember(v.Snapshots[i])
	v.Snapshots = slices.Delete(v.Snapshots, i, i+1)
}

// SnapshotMB is what the snapshots of a volume take.
// Unverified: the real CNS sums the sizes of the delta files; this is their
// upper bound, the sum of the sizes of the volume when they were taken.
func (d Disk) SnapshotMB() int64 {
	var sum int64
	for _, s := range d.Snapshots {
		sum += s.CapacityMB
	}
	return sum
}

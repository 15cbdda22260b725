package cns

import "time"

func noSnapshot(disk, id string) *Error {
	return &Error{Kind: SnapshotNotFound, Field: "snapshotId", Value: id, Holder: disk, Reason: "the disk has no such snapshot"}
}

// DiskSnapshot returns a snapshot of a first class disk. Errors: NotFound,
// SnapshotNotFound.
func (c *Core) DiskSnapshot(disk, id string) (Snapshot, error) {
	v, ok := c.disk(disk)
	if !ok {
		return Snapshot{}, noDisk(disk)
	}
	i := v.find(id)
	if i < 0 {
		return Snapshot{}, noSnapshot(disk, id)
	}
	return v.Snapshots[i], nil
}

// PlanSnapshotDisk checks whether SnapshotDisk would succeed.
func (c *Core) PlanSnapshotDisk(disk, id, description string) (Snapshot, error) {
	v, ok := c.disk(disk)
	if !ok {
		return Snapshot{}, noDisk(disk)
	}
	return c.planSnapshot(v, id, description)
}

// SnapshotDisk is CreateSnapshot for any first class disk. Errors: NotFound,
// Limit, InvalidArgument (id).
func (c *Core) SnapshotDisk(now time.Time, disk, id, description string) (Snapshot, error) {
	s, err := c.PlanSnapshotDisk(disk, id, description)
	if err != nil {
		return Snapshot{}, err
	}
	v, _ := c.disk(disk)
	return c.takeSnapshot(v, now, s), nil
}

// PlanDeleteDiskSnapshot checks whether DeleteDiskSnapshot would succeed.
func (c *Core) PlanDeleteDiskSnapshot(disk, id string) (Snapshot, error) {
	s, err := c.DiskSnapshot(disk, id)
	if err != nil {
		return Snapshot{}, err
	}
	v, _ := c.disk(disk)
	if err := c.reachable(v); err != nil {
		return Snapshot{}, err
	}
	return s, c.unlinked(s)
}

// DeleteDiskSnapshot is DeleteSnapshot for any first class disk. Errors:
// NotFound, SnapshotNotFound, InUse (has linked clones).
func (c *Core) DeleteDiskSnapshot(disk, id string) (Snapshot, error) {
	s, err := c.PlanDeleteDiskSnapshot(disk, id)
	if err != nil {
		return Snapshot{}, err
	}
	v, _ := c.disk(disk)
	v.dropSnapshot(id)
	return s, nil
}

// PlanRevert checks whether Revert would succeed and lists the snapshots that
// it would delete, newest first.
func (c *Core) PlanRevert(disk, id string) (dropped []Snapshot, err error) {
	v, ok := c.disk(disk)
	if !ok {
		return nil, noDisk(disk)
	}
	i := v.find(id)
	if i < 0 {
		return nil, noSnapshot(disk, id)
	}
	// "This operation is supported on detached VirtualDisks" (VSLM API
	// reference, VslmRevertVStorageObject_Task).
	if err := c.detached(v); err != nil {
		return nil, err
	}
	if err := c.reachable(v); err != nil {
		return nil, err
	}
	if err := c.unpinned(disk); err != nil {
		return nil, err
	}
	for j := len(v.Snapshots) - 1; j > i; j-- {
		if err := c.unlinked(v.Snapshots[j]); err != nil {
			return nil, err
		}
		dropped = append(dropped, v.Snapshots[j])
	}
	return dropped, nil
}

// Revert gives a disk the content that it had at a snapshot. The snapshots
// after it are deleted. The size stays: a disk with snapshots can't have grown
// since. Errors: NotFound, SnapshotNotFound, Attached, Pinned, InUse (a snapshot after it
// has linked clones).
func (c *Core) Revert(disk, id string) (Disk, error) {
	if _, err := c.PlanRevert(disk, id); err != nil {
		return Disk{}, err
	}
	v, _ := c.disk(disk)
	i := v.find(id)
	for _, s := range v.Snapshots[i+1:] {
		v.remember(s)
	}
	v.Snapshots = v.Snapshots[: i+1 : i+1]
	return v.Disk.clone(), nil
}

// SnapshotOfChange finds the snapshot with a change number, or one that is
// gone, by id.
func (d Disk) SnapshotOfChange(n int64) (id string, ok bool) {
	for _, s := range d.Snapshots {
		if n > 0 && s.Change == n {
			return s.ID, true
		}
	}
	for _, p := range d.Past {
		if p.Change == n {
			return p.ID, true
		}
	}
	return "", false
}

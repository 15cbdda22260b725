package cnsface

import (
	"fmt"
	"strconv"
	"strings"

	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/vcenter/cns"
)

// maxChanges is how many areas one answer has: a client asks again for what
// follows. Unverified: the real number; that there is one is known (a client
// has to go on at startOffset + length, yavijava-samples#10).
const maxChanges = 2000

// changedAreas tells what of a snapshot was written since the point in time
// that a change id stands for; "*" means all that was ever written. Errors:
// NotFound, InvalidArgument (changeId, startOffset), InvalidState (no tracking).
func (f *Face) changedAreas(id, on, snap string, start int64, changeID string) (vim.DiskChangeInfo, error) {
	d, _, err := f.disk(id, on)
	if err != nil {
		return vim.DiskChangeInfo{}, err
	}
	f.mu.Lock()
	s, err := f.core.DiskSnapshot(id, snap)
	f.mu.Unlock()
	if err != nil {
		return vim.DiskChangeInfo{}, err
	}
	size := s.CapacityMB << 20
	if start < 0 || start > size {
		return vim.DiskChangeInfo{}, &cns.Error{Kind: cns.InvalidArgument, Field: "startOffset", Value: fmt.Sprint(start), Reason: fmt.Sprintf("allowed are 0 to %d", size)}
	}
	// Unverified: the fault where blocks were not tracked.
	if !s.Tracked() {
		return vim.DiskChangeInfo{}, &cns.Error{Kind: cns.InvalidState, Field: "snapshotId", Value: snap, Reason: "changed blocks were not tracked when the snapshot was taken"}
	}
	since := ""
	if changeID != "*" {
		if since, err = f.sinceOf(d, s, changeID); err != nil {
			return vim.DiskChangeInfo{}, err
		}
	}
	areas := []disk.Extent{{Length: size}} // no content: all may have changed
	if f.cfg.Disks != nil {
		if areas, err = f.cfg.Disks.Changed(id, since, snap); err != nil {
			return vim.DiskChangeInfo{}, err
		}
	}
	info := vim.DiskChangeInfo{StartOffset: start, Length: size - start}
	for _, a := range areas {
		if cut := start - a.Start; cut > 0 {
			a.Start, a.Length = a.Start+cut, a.Length-cut
		}
		if a.Length <= 0 {
			continue
		}
		if len(info.ChangedArea) == maxChanges {
			info.Length = a.Start - start // up to what the next answer begins with
			break
		}
		info.ChangedArea = append(info.ChangedArea, vim.DiskChangeExtent{Start: a.Start, Length: a.Length})
	}
	return info, nil
}

// sinceOf finds the snapshot that a change id was given for. It must be of
// this disk and not younger than s. Errors: InvalidArgument.
func (f *Face) sinceOf(d cns.Disk, s cns.Snapshot, changeID string) (string, error) {
	bad := func(reason string) error {
		return &cns.Error{Kind: cns.InvalidArgument, Field: "changeId", Value: changeID, Reason: reason}
	}
	i := strings.LastIndexByte(changeID, '/')
	if i < 0 {
		return "", bad("allowed are * and the change id of a snapshot")
	}
	n, err := strconv.ParseInt(changeID[i+1:], 10, 64)
	if err != nil || f.ids.changeID(cns.Snapshot{Volume: d.ID, Change: n}) != changeID {
		return "", bad("not of this disk")
	}
	if n < 1 || n > s.Change {
		return "", bad("not of a point in time before the snapshot")
	}
	id, ok := d.SnapshotOfChange(n)
	if !ok {
		return "", bad("the point in time is too long ago")
	}
	return id, nil
}

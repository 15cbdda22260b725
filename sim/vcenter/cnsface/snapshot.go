package cnsface

import (
	"context"
	"time"

	"github.com/vmware/govmomi/cns/methods"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// CnsCreateSnapshots takes a snapshot of a volume.
func (m *manager) CnsCreateSnapshots(ctx *simulator.Context, req *cnstypes.CnsCreateSnapshots) soap.HasFault {
	var s cnstypes.CnsSnapshotCreateSpec
	if len(req.SnapshotSpecs) == 1 {
		s = req.SnapshotSpecs[0]
	}
	j := job1("CnsCreateSnapshots", s.VolumeId.Id, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		if err := oneSpec(len(req.SnapshotSpecs)); err != nil {
			return nil, err
		}
		return m.f.createSnapshot(ctx, s)
	})
	j.failed = func(f *vim.LocalizedMethodFault) vim.AnyType {
		r := &cnstypes.CnsSnapshotCreateResult{}
		r.VolumeId, r.Fault = s.VolumeId, f
		return batch(r)
	}
	return &methods.CnsCreateSnapshotsBody{Res: &cnstypes.CnsCreateSnapshotsResponse{Returnval: m.f.start(ctx, j)}}
}

func (f *Face) createSnapshot(ctx context.Context, s cnstypes.CnsSnapshotCreateSpec) (vim.AnyType, error) {
	r := &cnstypes.CnsSnapshotCreateResult{}
	r.VolumeId = s.VolumeId
	refuse := func(err error) (vim.AnyType, error) {
		r.Fault = wire("CnsCreateSnapshots", err)
		return batch(r), err
	}
	id := s.VolumeId.Id
	unlock, err := f.volumes.lock(ctx, id)
	if err != nil {
		return nil, &taskError{local(&vim.RequestCanceled{}, err.Error())}
	}
	defer unlock()
	f.mu.Lock()
	_, err = f.core.Volume(id)
	f.mu.Unlock()
	if err != nil {
		return refuse(err)
	}
	snap := ""
	switch {
	case s.SnapshotId == nil || s.SnapshotId.Id == "":
		snap = f.newSnapshotID(id, s.Description)
	case !isUUID(s.SnapshotId.Id):
		return refuse(&cns.Error{Kind: cns.InvalidArgument, Field: "snapshotId", Value: s.SnapshotId.Id, Reason: "allowed is a uuid in lower case"})
	default:
		snap = s.SnapshotId.Id
	}
	f.mu.Lock()
	_, err = f.core.PlanSnapshot(id, snap, s.Description)
	f.mu.Unlock()
	if err != nil {
		return refuse(err)
	}
	if f.cfg.Disks != nil {
		if err := f.cfg.Disks.Snapshot(id, snap); err != nil {
			return refuse(err)
		}
	}
	f.mu.Lock()
	made, err := f.core.CreateSnapshot(time.Now(), id, snap, s.Description)
	v, _ := f.core.Volume(id)
	f.mu.Unlock()
	if err != nil { // can't be: the volume is locked since it was looked at
		return refuse(err)
	}
	r.Snapshot = f.snapshotWire(made)
	r.AggregatedSnapshotCapacityInMb = v.SnapshotMB()
	return batch(r), nil
}

func (f *Face) newSnapshotID(volume, description string) string {
	for {
		id := f.ids.snapshot(volume, description)
		f.mu.Lock()
		_, err := f.core.Snapshot(volume, id)
		f.mu.Unlock()
		if err != nil {
			return id
		}
	}
}

func (f *Face) snapshotWire(s cns.Snapshot) cnstypes.CnsSnapshot {
	w := cnstypes.CnsSnapshot{
		SnapshotId:  cnstypes.CnsSnapshotId{Id: s.ID},
		VolumeId:    volumeID(s.Volume),
		Description: s.Description,
		CreateTime:  s.Created,
	}
	if s.Change > 0 {
		w.ChangedBlockTrackingId = f.ids.changeID(s)
	}
	return w
}

// CnsDeleteSnapshots drops a snapshot.
func (m *manager) CnsDeleteSnapshots(ctx *simulator.Context, req *cnstypes.CnsDeleteSnapshots) soap.HasFault {
	var s cnstypes.CnsSnapshotDeleteSpec
	if len(req.SnapshotDeleteSpecs) == 1 {
		s = req.SnapshotDeleteSpecs[0]
	}
	j := job1("CnsDeleteSnapshots", s.VolumeId.Id, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		if err := oneSpec(len(req.SnapshotDeleteSpecs)); err != nil {
			return nil, err
		}
		return m.f.deleteSnapshot(ctx, s)
	})
	j.Snapshot = s.SnapshotId.Id
	j.failed = func(f *vim.LocalizedMethodFault) vim.AnyType {
		r := &cnstypes.CnsSnapshotDeleteResult{SnapshotId: s.SnapshotId}
		r.VolumeId, r.Fault = s.VolumeId, f
		return batch(r)
	}
	return &methods.CnsDeleteSnapshotBody{Res: &cnstypes.CnsDeleteSnapshotsResponse{Returnval: m.f.start(ctx, j)}}
}

func (f *Face) deleteSnapshot(ctx context.Context, s cnstypes.CnsSnapshotDeleteSpec) (vim.AnyType, error) {
	r := &cnstypes.CnsSnapshotDeleteResult{SnapshotId: s.SnapshotId}
	r.VolumeId = s.VolumeId
	refuse := func(err error) (vim.AnyType, error) {
		r.Fault = wire("CnsDeleteSnapshots", err)
		return batch(r), err
	}
	id := s.VolumeId.Id
	unlock, err := f.volumes.lock(ctx, id)
	if err != nil {
		return nil, &taskError{local(&vim.RequestCanceled{}, err.Error())}
	}
	defer unlock()
	f.mu.Lock()
	_, err = f.core.PlanDeleteSnapshot(id, s.SnapshotId.Id)
	f.mu.Unlock()
	if err != nil {
		return refuse(err)
	}
	if f.cfg.Disks != nil {
		if err := f.cfg.Disks.DeleteSnapshot(id, s.SnapshotId.Id); err != nil {
			return refuse(err)
		}
	}
	f.mu.Lock()
	_, err = f.core.DeleteSnapshot(id, s.SnapshotId.Id)
	v, _ := f.core.Volume(id)
	f.mu.Unlock()
	if err != nil { // can't be: the volume is locked since it was looked at
		return refuse(err)
	}
	r.AggregatedSnapshotCapacityInMb = v.SnapshotMB()
	return batch(r), nil
}

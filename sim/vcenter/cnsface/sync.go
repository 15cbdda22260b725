package cnsface

import (
	"context"
	"slices"

	govcns "github.com/vmware/govmomi/cns"
	"github.com/vmware/govmomi/cns/methods"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// debugManager is the CnsDebugManager object.
type debugManager struct {
	vim.ManagedObjectReference
	f *Face
}

// Lock and Unlock opt out of vcsim's lock around every call.
func (*debugManager) Lock()   {}
func (*debugManager) Unlock() {}

// CnsSyncDatastore makes what CNS knows of the disks of a datastore agree with
// what is there. Without a URL it does so for all.
func (m *debugManager) CnsSyncDatastore(ctx *simulator.Context, req *cnstypes.CnsSyncDatastore) soap.HasFault {
	j := job{
		TaskCall: TaskCall{Op: "CnsSyncDatastore"},
		entity:   govcns.CnsDebugManagerInstance,
		do: func(_ context.Context, c *simulator.Context) (vim.AnyType, error) {
			m.f.inv.refresh(c)
			ids := m.f.datastoresOf(req.DatastoreUrl)
			if len(ids) == 0 {
				// Unverified: the fault of a URL that no datastore has.
				return nil, &taskError{invalid("datastoreUrl")}
			}
			for _, id := range ids {
				m.f.mu.Lock()
				for _, lost := range m.f.core.LostOn(id) {
					m.f.core.Forget(lost)
				}
				m.f.mu.Unlock()
				m.f.inv.account(c, id)
			}
			return nil, nil
		},
	}
	return &methods.CnsSyncDatastoreBody{Res: &cnstypes.CnsSyncDatastoreResponse{Returnval: m.f.start(ctx, j)}}
}

// datastoresOf are the datastores with a URL; "" means all.
func (f *Face) datastoresOf(url string) (ids []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.core.Datastores() {
		if url == "" || d.URL == url {
			ids = append(ids, d.ID)
		}
	}
	return ids
}

// CnsSyncVolume makes what CNS knows of volumes agree with their disks. It
// takes several, and each has a result of its own.
func (m *manager) CnsSyncVolume(ctx *simulator.Context, req *cnstypes.CnsSyncVolume) soap.HasFault {
	volume := ""
	if len(req.SyncSpecs) > 0 {
		volume = req.SyncSpecs[0].VolumeId.Id
	}
	j := job1("CnsSyncVolume", volume, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		if len(req.SyncSpecs) == 0 {
			return nil, &taskError{invalid("InputSpec")}
		}
		out := &cnstypes.CnsVolumeOperationBatchResult{}
		var refused error
		for _, s := range req.SyncSpecs {
			r := &cnstypes.CnsVolumeOperationResult{VolumeId: s.VolumeId}
			if err := m.f.syncVolume(ctx, c, s); err != nil {
				r.Fault = wire("CnsSyncVolume", err)
				refused = err
			}
			out.VolumeResults = append(out.VolumeResults, r)
		}
		return out, refused
	})
	return &methods.CnsSyncVolumeBody{Res: &cnstypes.CnsSyncVolumeResponse{Returnval: m.f.start(ctx, j)}}
}

func (f *Face) syncVolume(ctx context.Context, c *simulator.Context, s cnstypes.CnsSyncVolumeSpec) error {
	for _, mode := range s.SyncMode {
		if mode != string(cnstypes.CnsSyncVolumeModeSPACE_USAGE) {
			return &cns.Error{Kind: cns.InvalidArgument, Field: "syncMode", Value: mode, Reason: "allowed is " + string(cnstypes.CnsSyncVolumeModeSPACE_USAGE)}
		}
	}
	unlock, err := f.volumes.lock(ctx, s.VolumeId.Id)
	if err != nil {
		return err
	}
	defer unlock()
	f.mu.Lock()
	v, err := f.core.Volume(s.VolumeId.Id)
	f.mu.Unlock()
	if err != nil {
		return err
	}
	if s.Datastore != nil && s.Datastore.Value != v.Datastore {
		// Unverified.
		return &cns.Error{Kind: cns.InvalidArgument, Field: "datastore", Value: s.Datastore.Value, Holder: v.Datastore, Reason: "the volume lies on another datastore"}
	}
	if v.Lost {
		// Its disk was deleted behind CNS's back: the record goes too.
		// Unverified: that the result of this sync is no fault.
		f.mu.Lock()
		f.core.Forget(v.ID)
		f.mu.Unlock()
	}
	if slices.Contains(s.SyncMode, string(cnstypes.CnsSyncVolumeModeSPACE_USAGE)) {
		f.measure(v.ID)
	}
	f.inv.account(c, v.Datastore)
	return nil
}

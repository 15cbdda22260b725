package cnsface

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	govcns "github.com/vmware/govmomi/cns"
	"github.com/vmware/govmomi/cns/methods"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// oneSpec is the batch size that CNS takes for what changes a volume; another
// one fails the task.
func oneSpec(n int) error {
	if n != 1 {
		return &taskError{invalid("InputSpec")}
	}
	return nil
}

// CnsCreateVolume makes a volume: new, from a snapshot, or of a disk that is
// there. A datastore that doesn't exist fails the call
// (kubernetes-sigs/vsphere-csi-driver#229), the rest the result.
func (m *manager) CnsCreateVolume(ctx *simulator.Context, req *cnstypes.CnsCreateVolume) soap.HasFault {
	body := &methods.CnsCreateVolumeBody{}
	j := job{
		TaskCall: TaskCall{Op: "CnsCreateVolume"},
		entity:   govcns.CnsVolumeManagerInstance,
		do: func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
			if err := oneSpec(len(req.CreateSpecs)); err != nil {
				return nil, err
			}
			return m.f.create(ctx, c, req.CreateSpecs[0])
		},
	}
	if len(req.CreateSpecs) == 1 {
		s := req.CreateSpecs[0]
		for _, ds := range s.Datastores {
			if _, ok := m.f.inv.vim.Get(ds).(*simulator.Datastore); !ok {
				fault := gone(ds)
				body.Fault_ = simulator.Fault(fault.LocalizedMessage, fault.Fault)
				return body
			}
		}
		j.Volume = s.Name
		j.failed = func(f *vim.LocalizedMethodFault) vim.AnyType {
			r := &cnstypes.CnsVolumeCreateResult{Name: s.Name}
			r.Fault = f
			return batch(r)
		}
	}
	body.Res = &cnstypes.CnsCreateVolumeResponse{Returnval: m.f.start(ctx, j)}
	return body
}

func (f *Face) create(ctx context.Context, c *simulator.Context, s cnstypes.CnsVolumeCreateSpec) (vim.AnyType, error) {
	const op = "CnsCreateVolume"
	r := &cnstypes.CnsVolumeCreateResult{Name: s.Name}
	refuse := func(err error) (vim.AnyType, error) {
		r.Fault = wire(op, err)
		var e *cns.Error
		if errors.As(err, &e) {
			r.PlacementResults = placements(op, e.Placement)
		}
		return batch(r), err
	}
	spec, err := f.createSpec(s)
	if err != nil {
		return refuse(err)
	}
	from, err := f.reachOf(c, s)
	if err != nil {
		return refuse(err)
	}
	f.inv.refresh(c)
	spec.Incompatible = f.incompatible(spec.PolicyID)
	spec.Defaults = f.defaults(spec.PolicyID)
	if err := f.limit(&spec, from); err != nil {
		return refuse(err)
	}
	file := spec.Share != nil
	if spec.DiskID == "" && spec.DiskPath == "" && !spec.CallerID {
		spec.ID = f.newVolumeID(spec.Name, file)
	}
	id := spec.ID
	switch {
	case spec.DiskID != "":
		id = spec.DiskID
	case file && spec.Share.Existing != "":
		id = spec.Share.Existing
	}
	if spec.DiskPath != "" {
		return f.createOf(ctx, c, spec, r, refuse)
	}
	keys := []string{id}
	if spec.Source != nil {
		keys = append(keys, spec.Source.Volume)
		if err := f.moves.check(spec.Source.Volume); err != nil {
			return refuse(err)
		}
	}
	unlock, err := f.volumes.lockAll(ctx, keys...)
	if err != nil {
		return nil, &taskError{local(&vim.RequestCanceled{}, err.Error())}
	}
	defer unlock()

	// The content comes first, so that no volume is ever without.
	f.mu.Lock()
	plan, err := f.core.PlanCreate(spec)
	f.mu.Unlock()
	if err != nil {
		return refuse(err)
	}
	made := false
	if f.cfg.Disks != nil && spec.DiskID == "" && !file {
		size := plan.Volume.CapacityMB << 20
		if spec.Source != nil {
			err = f.cfg.Disks.Restore(spec.Source.Volume, spec.Source.Snapshot, id, size)
		} else {
			err = f.cfg.Disks.Create(id, size)
		}
		if err != nil {
			return refuse(err)
		}
		made = true
	}
	f.mu.Lock()
	plan, err = f.core.Create(time.Now(), spec)
	f.mu.Unlock()
	if err != nil { // the space went to another volume meanwhile
		if made {
			if derr := f.cfg.Disks.Delete(id); derr != nil {
				f.log.Error("undo an image", "volume", id, "err", derr)
			}
		}
		return refuse(err)
	}
	f.inv.account(c, plan.Volume.Datastore)
	r.VolumeId = volumeID(plan.Volume.ID)
	r.PlacementResults = f.tell(placements(op, plan.Placements), from, len(s.Datastores) > 0)
	return batch(r), nil
}

// newVolumeID mints an id that neither volume nor disk has: after a restart
// the count of names starts anew.
func (f *Face) newVolumeID(name string, file bool) string {
	for {
		id := f.ids.volume(name)
		if file {
			id = cns.SharePrefix + id
		}
		f.mu.Lock()
		taken := f.core.Taken(id)
		f.mu.Unlock()
		if !taken {
			return id
		}
	}
}

// incompatible asks which datastores can't meet a storage policy, and why.
func (f *Face) incompatible(policy string) map[string]string {
	if policy == "" || f.cfg.Compatible == nil {
		return nil
	}
	f.inv.mu.Lock()
	refs := slices.Clone(f.inv.datastores)
	f.inv.mu.Unlock()
	out := map[string]string{}
	for _, ds := range refs {
		if why := f.cfg.Compatible(policy, ds.Value); why != "" {
			out[ds.Value] = why
		}
	}
	return out
}

// defaults are the storage policies that datastores give to volumes without
// one: "volume eventually using the default vSAN datastore policy"
// (kubernetes-sigs/vsphere-csi-driver#2180).
func (f *Face) defaults(policy string) map[string]string {
	if policy != "" || f.cfg.DefaultPolicy == nil {
		return nil
	}
	f.inv.mu.Lock()
	refs := slices.Clone(f.inv.datastores)
	f.inv.mu.Unlock()
	out := map[string]string{}
	for _, ds := range refs {
		if id := f.cfg.DefaultPolicy(ds.Value); id != "" {
			out[ds.Value] = id
		}
	}
	return out
}

func (f *Face) createSpec(s cnstypes.CnsVolumeCreateSpec) (cns.CreateSpec, error) {
	spec := cns.CreateSpec{Name: s.Name}
	switch s.VolumeType {
	case string(cnstypes.CnsVolumeTypeBlock):
	case string(cnstypes.CnsVolumeTypeFile):
		return f.fileSpec(s)
	default:
		return spec, &cns.Error{Kind: cns.InvalidArgument, Field: "volumeType", Value: s.VolumeType, Reason: "allowed are BLOCK and FILE"}
	}
	details, ok := s.BackingObjectDetails.(*cnstypes.CnsBlockBackingDetails)
	if !ok || details == nil {
		return spec, &cns.Error{Kind: cns.InvalidArgument, Field: "backingObjectDetails", Reason: "a block volume needs CnsBlockBackingDetails"}
	}
	spec.CapacityMB = details.CapacityInMb
	switch {
	case details.BackingDiskId != "" && details.BackingDiskUrlPath != "":
		// kubernetes-sigs/vsphere-csi-driver#4210.
		return spec, &cns.Error{Kind: cns.InvalidArgument, Field: "backingDiskId", Value: details.BackingDiskId, Reason: "can't go with backingDiskUrlPath"}
	case details.BackingDiskId != "":
		spec.DiskID, spec.Again = details.BackingDiskId, f.release.atLeast(release91)
	case details.BackingDiskUrlPath != "":
		path, err := f.backingPath(details.BackingDiskUrlPath)
		if err != nil {
			return spec, err
		}
		spec.DiskPath = path
	}
	for _, ds := range s.Datastores {
		spec.Datastores = append(spec.Datastores, ds.Value)
	}
	policy, err := f.policyOf(s.Profile)
	if err != nil {
		return spec, err
	}
	spec.PolicyID = policy
	switch x := s.CreateSpec.(type) {
	case nil:
	case *cnstypes.CnsBlockCreateSpec:
		if x == nil || x.CryptoSpec == nil {
			break
		}
		what, key, err := cryptOf(x.CryptoSpec)
		if err == nil && what != "" && (what != cns.Encrypt || key.ID == "") {
			err = &cns.Error{Kind: cns.InvalidArgument, Field: "cryptoSpec", Value: string(what), Reason: "a new volume can only be encrypted, with a key"}
		}
		if err != nil {
			return spec, err
		}
		spec.Key = key
	default:
		return spec, &cns.Error{Kind: cns.InvalidArgument, Field: "createSpec", Value: fmt.Sprintf("%T", x), Reason: "a block volume takes CnsBlockCreateSpec"}
	}
	if s.VolumeId != nil && s.VolumeId.Id != "" {
		if !isUUID(s.VolumeId.Id) {
			return spec, &cns.Error{Kind: cns.InvalidArgument, Field: "volumeId", Value: s.VolumeId.Id, Reason: "allowed is a uuid in lower case"}
		}
		spec.ID, spec.CallerID = s.VolumeId.Id, true
	}
	switch src := s.VolumeSource.(type) {
	case nil:
	case *cnstypes.CnsSnapshotVolumeSource:
		spec.Linked = src.LinkedClone
		spec.Source = &cns.Source{Volume: src.VolumeId.Id, Snapshot: src.SnapshotId.Id}
	default:
		return spec, &cns.Error{Kind: cns.InvalidArgument, Field: "volumeSource", Reason: "allowed is CnsSnapshotVolumeSource"}
	}
	spec.Metadata, err = metadata(s.Metadata)
	return spec, err
}

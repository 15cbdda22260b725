package cnsface

import (
	"context"
	"errors"
	"time"

	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/simulator"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// backingPath is the datastore path that a backingDiskUrlPath means. Errors:
// InvalidArgument.
func (f *Face) backingPath(url string) (string, error) {
	_, path, err := f.inv.diskPathOfURL(f.inv.context(), url)
	var e *cns.Error
	if errors.As(err, &e) && e.Kind == cns.InvalidArgument {
		e.Field = "backingDiskUrlPath"
	}
	return path, err
}

// createOf makes a volume of the disk that lies at a path: a first class disk
// or a virtual disk, which may get an id of the client's choice
// (kubernetes-sigs/vsphere-csi-driver#4210).
func (f *Face) createOf(ctx context.Context, c *simulator.Context, spec cns.CreateSpec, r *cnstypes.CnsVolumeCreateResult, refuse func(error) (vim.AnyType, error)) (vim.AnyType, error) {
	f.mu.Lock()
	image, _ := f.core.Backing(spec.DiskPath)
	f.mu.Unlock()
	keys := []string{image}
	if spec.CallerID {
		keys = append(keys, spec.ID)
	}
	unlock, err := f.volumes.lockAll(ctx, keys...)
	if err != nil {
		return nil, &taskError{local(&vim.RequestCanceled{}, err.Error())}
	}
	defer unlock()
	f.mu.Lock()
	plan, err := f.core.PlanCreate(spec)
	again, _ := f.core.Backing(spec.DiskPath)
	f.mu.Unlock()
	if err == nil && again != image { // another disk came to lie there meanwhile
		err = &cns.Error{Kind: cns.FileNotFound, Field: "backingDiskUrlPath", Value: spec.DiskPath, Reason: "the disk was replaced"}
	}
	if err != nil {
		return refuse(err)
	}
	// Images go by the id of their disk: another id is another image.
	id := plan.Volume.ID
	moved := f.cfg.Disks != nil && id != image
	if moved {
		if err := f.cfg.Disks.Clone(image, id, plan.Volume.CapacityMB<<20); err != nil {
			return refuse(err)
		}
	}
	f.mu.Lock()
	plan, err = f.core.Create(time.Now(), spec)
	f.mu.Unlock()
	if moved {
		left := image
		if err != nil {
			left = id
		}
		if derr := f.cfg.Disks.Delete(left); derr != nil {
			f.log.Error("delete an image that has another id now", "image", left, "err", derr)
		}
	}
	if err != nil {
		return refuse(err)
	}
	f.inv.account(c, plan.Volume.Datastore)
	r.VolumeId = volumeID(plan.Volume.ID)
	return batch(r), nil
}

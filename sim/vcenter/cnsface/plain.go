package cnsface

import (
	"context"

	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/simulator"
	vim "github.com/vmware/govmomi/vim25/types"
)

// plain starts a task about one volume whose result says no more than whether
// it was done. do runs with the volume locked; its error is the result's fault,
// unless it is a *taskError.
func plain[S any](f *Face, rc *simulator.Context, op string, specs []S, volume func(S) string, do func(S) error) vim.ManagedObjectReference {
	var s S
	id := ""
	if len(specs) == 1 {
		s = specs[0]
		id = volume(s)
	}
	return f.start(rc, job1(op, id, func(ctx context.Context, _ *simulator.Context) (vim.AnyType, error) {
		if err := oneSpec(len(specs)); err != nil {
			return nil, err
		}
		unlock, err := f.volumes.lock(ctx, id)
		if err != nil {
			return nil, &taskError{local(&vim.RequestCanceled{}, err.Error())}
		}
		defer unlock()
		r := &cnstypes.CnsVolumeOperationResult{VolumeId: volumeID(id)}
		if err := do(s); err != nil {
			r.Fault = wire(op, err)
			return batch(r), err
		}
		return batch(r), nil
	}))
}

package cnsface

import (
	"context"
	"errors"
	"strconv"
	"strings"

	govcns "github.com/vmware/govmomi/cns"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/simulator"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/task"
)

// work is what a task does: the result of the task, and the error that the
// core or a disk refused the volume with (result then tells it).
type work func(ctx context.Context, c *simulator.Context) (result vim.AnyType, refused error)

// job is a task to start.
type job struct {
	TaskCall
	// entity that the task is for. None, or CNS itself, means the root folder,
	// which CNS names for tasks that are about no VM
	// (kubernetes-sigs/vsphere-csi-driver#2776: Folder:group-d1, "Datacenters").
	entity vim.ManagedObjectReference
	do     work
	// failed makes the result of a volume that a fault was found for.
	failed func(*vim.LocalizedMethodFault) vim.AnyType
	// after, where set, is called when the task is over, whatever came of it.
	after func()
}

// taskError makes the task itself fail, instead of reporting per volume.
type taskError struct{ fault *vim.LocalizedMethodFault }

func (e *taskError) Error() string {
	return faultName(e.fault.Fault) + ": " + e.fault.LocalizedMessage
}

// start puts a task into the inventory and runs it. CNS's tasks have no name
// and can't be cancelled.
func (f *Face) start(rc *simulator.Context, j job) vim.ManagedObjectReference {
	t := task.Job{
		Call: j.TaskCall, Entity: j.entity,
		// As in the log of kubernetes-sigs/vsphere-csi-driver#3320.
		DescriptionID: "com.vmware.cns.tasks." + strings.ToLower(strings.TrimPrefix(j.Op, "Cns")),
		Failed:        j.failed, After: j.after,
		Work: func(ctx context.Context, _ *simulator.Context) (vim.AnyType, error) {
			if err := f.moves.check(j.Volume); err != nil && changesDisk[j.Op] && j.failed != nil {
				return j.failed(wire(j.Op, err)), &task.Refused{Err: err}
			}
			result, err := j.do(ctx, f.inv.context())
			var te *taskError
			switch {
			case err == nil:
			case errors.As(err, &te):
				err = &task.Error{Fault: te.fault}
			default:
				err = &task.Refused{Err: err}
			}
			return result, err
		},
	}
	if t.Entity.Type == "" || t.Entity.Type == govcns.CnsVolumeManagerInstance.Type {
		t.Entity, t.EntityName = f.inv.root, "Datacenters"
	}
	return f.tasks.Start(rc, t)
}

// spawn runs fn in a goroutine that Close waits for; after Close nothing runs.
func (f *Face) spawn(fn func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx.Err() != nil {
		return
	}
	f.wg.Go(fn)
}

// batch is the result of a task with one volume. One that CNS doesn't know has
// no id in it besides that of the fault (log of govmomi#3920).
func batch(r cnstypes.BaseCnsVolumeOperationResult) *cnstypes.CnsVolumeOperationBatchResult {
	if x := r.GetCnsVolumeOperationResult(); x.Fault != nil {
		if _, unknown := x.Fault.Fault.(*cnstypes.CnsNotRegisteredFault); unknown {
			x.VolumeId = cnstypes.CnsVolumeId{}
		}
	}
	return &cnstypes.CnsVolumeOperationBatchResult{VolumeResults: []cnstypes.BaseCnsVolumeOperationResult{r}}
}

func itoa(n int32) string { return strconv.Itoa(int(n)) }

func undash(s string) string { return strings.ReplaceAll(s, "-", "") }

package vsphere

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/driver/controller"
	"github.com/csilab/csilab/driver/record"
)

// operation is one change on one subject. See the package comment for the
// order of things.
type operation struct {
	// subject is the key of its record: what must not be worked on twice.
	subject string
	// name is the metric's optype, e.g. attach-volume.
	name   string
	params map[string]string
	// look finds on the backend whether the operation has been done, and
	// whether it may be. prior is the end of an earlier attempt's task, or nil.
	look func(ctx context.Context, prior *outcome) (done bool, err error)
	// start begins the task.
	start func(ctx context.Context, s *session) (types.ManagedObjectReference, error)
	// end takes the result of a task that succeeded.
	end func(ctx context.Context, r cnstypes.BaseCnsVolumeOperationResult) error
	// explain makes the error for the user from a fault; nil takes the usual.
	explain func(ctx context.Context, f *fault) error
	// lasting says that the record of what is done stays, as end and look write it.
	lasting bool
}

// outcome is how a task ended.
type outcome struct {
	op     string
	params map[string]string
	result cnstypes.BaseCnsVolumeOperationResult
	fault  *fault
}

const maxStarts = 3

// do runs an operation to its end. Its record stays until it is known what is
// there now: by the end of its task, or by a look that was answered. Until then a
// later call begins with it, and so does one that asks which vCenter it is on.
func (b *Backend) do(ctx context.Context, o operation) error {
	// The first login looks for tasks of an earlier process; nothing may be
	// begun before.
	if _, err := b.session(ctx); err != nil {
		return failf(err, "%s", o.name)
	}
	release, err := b.inFlight.Claim(o.subject, o.name)
	if err != nil {
		return err
	}
	defer release()
	prior, err := b.settle(ctx, o.subject, true)
	if err != nil {
		return failf(err, "%s: outcome of an earlier operation", o.name)
	}
	for try := 1; ; try++ {
		done, err := o.look(ctx, prior)
		if err != nil {
			return err
		}
		if done {
			b.ended(ctx, o)
			return nil
		}
		out, err := b.run(ctx, o)
		var f *fault
		var l *lost
		var own *controller.Error
		switch {
		case err == nil && out.fault == nil:
			if err := o.end(ctx, out.result); err != nil {
				return err
			}
			b.ended(ctx, o)
			return nil
		case errors.As(err, &own):
			return err
		case err == nil:
			f = out.fault
		case errors.Is(err, errTaskGone):
		case dead(err):
		case errors.As(err, &f):
		case errors.As(err, &l):
		default:
			return failf(err, "%s", o.name)
		}
		// However it failed, what counts is what is there now.
		if err != nil {
			settled, serr := b.settle(ctx, o.subject, f == nil && l != nil)
			if serr != nil {
				return failf(serr, "%s: outcome not known", o.name)
			}
			if settled != nil {
				out = settled
			}
		}
		done, lerr := o.look(ctx, out)
		if lerr != nil {
			return lerr
		}
		if done {
			b.ended(ctx, o)
			return nil
		}
		b.begunNothing(ctx, o.subject)
		if f != nil && !dead(f) {
			if o.explain != nil {
				return o.explain(ctx, f)
			}
			return failf(f, "%s", o.name)
		}
		if try == maxStarts {
			if err == nil {
				err = f
			}
			return controller.Errorf(controller.Unavailable, "%s: %w", o.name, err)
		}
		prior = nil
	}
}

// ended removes the record of an operation that is done.
func (b *Backend) ended(ctx context.Context, o operation) {
	if !o.lasting {
		b.begunNothing(ctx, o.subject)
	}
}

// begunNothing removes the record of a subject on which nothing runs.
func (b *Backend) begunNothing(ctx context.Context, subject string) {
	if err := b.records.Delete(ctx, subject); err != nil {
		b.log.Error("operation record not removed", "subject", subject, "error", err)
	}
}

// run starts the task and waits for its end. An error says that the outcome
// isn't known, unless it is a *fault that refused the start; the record then
// stays.
func (b *Backend) run(ctx context.Context, o operation) (out *outcome, err error) {
	began := time.Now()
	defer func() {
		failed := err
		if err == nil && out.fault != nil {
			failed = out.fault
		}
		b.metrics.observeCNS(o.name, began, &failed)
	}()
	s, err := b.session(ctx)
	if err != nil {
		return nil, err
	}
	c := b.conf()
	rec := record.Record{Key: o.subject, Op: o.name, Backend: c.VCenter.Host, OpID: b.opID(o.subject, o.name, began),
		Began: began, Params: o.params}
	if err := b.records.Put(ctx, rec); err != nil {
		return nil, recordError(err)
	}
	// The start doesn't end with the caller: its reply names the task.
	sctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(b.life, cancel)
	defer stop()
	sctx = context.WithValue(sctx, types.ID{}, rec.OpID)
	var ref types.ManagedObjectReference
	err = within(sctx, b.opt.CallTimeout, func(ctx context.Context) (err error) {
		ref, err = o.start(ctx, s)
		return err
	})
	if err != nil {
		if dead(err) {
			b.drop(s)
		}
		return nil, err
	}
	rec.Task = ref.Value
	if err := b.records.Put(sctx, rec); err != nil {
		// The operation id still leads to the task.
		b.log.Error("operation record without its task", "operation", o.name, "subject", o.subject, "task", ref.Value, "error", err)
	}
	return b.finish(ctx, rec)
}

// recordError is for a store that fails. Nothing is begun without a record.
func recordError(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("operation record: %w", err)
	}
	return controller.Errorf(controller.Unavailable, "operation record: %w", err)
}

// finish waits for the task of a record. The record stays.
func (b *Backend) finish(ctx context.Context, rec record.Record) (*outcome, error) {
	info, err := b.waitTask(ctx, rec.Task, rec.OpID)
	if err != nil {
		return nil, err
	}
	out := &outcome{op: rec.Op, params: rec.Params}
	if info.Error != nil || info.State == types.TaskInfoStateError {
		out.fault = localized(info.Error)
		if out.fault == nil {
			out.fault = &fault{text: "the task failed without a reason"}
		}
		return out, nil
	}
	if rec.Op == detachDisk {
		return out, nil // a virtual machine's task, without a result of CNS
	}
	out.result = firstResult(info.Result)
	if out.result == nil {
		out.fault = &fault{text: fmt.Sprintf("the task has no result (%T)", info.Result)}
		return out, nil
	}
	out.fault = localized(out.result.GetCnsVolumeOperationResult().Fault)
	return out, nil
}

func firstResult(v types.AnyType) cnstypes.BaseCnsVolumeOperationResult {
	batch, ok := v.(cnstypes.CnsVolumeOperationBatchResult)
	if !ok || len(batch.VolumeResults) == 0 {
		return nil
	}
	return batch.VolumeResults[0]
}

// settle waits for what an earlier attempt on the subject left running, and
// returns how it ended: nil when nothing ran, or it isn't known any more. patient
// says to allow for a request that is still on its way to the vCenter.
func (b *Backend) settle(ctx context.Context, subject string, patient bool) (*outcome, error) {
	rec, err := b.records.Get(ctx, subject)
	switch {
	case errors.Is(err, record.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, recordError(err)
	case rec.Done:
		return nil, nil
	}
	if host := b.conf().VCenter.Host; rec.Backend != host {
		b.log.Warn("operation record of another vCenter dropped", "subject", subject, "vcenter", rec.Backend)
		return nil, b.records.Delete(ctx, subject)
	}
	if rec.Task == "" {
		if rec.Task, err = b.findTask(ctx, rec.OpID); err != nil {
			return nil, err
		}
		if wait := time.Until(rec.Began.Add(b.opt.Settle)); rec.Task == "" && patient && wait > 0 {
			if err := sleep(ctx, wait); err != nil {
				return nil, err
			}
			if rec.Task, err = b.findTask(ctx, rec.OpID); err != nil {
				return nil, err
			}
		}
		if rec.Task == "" {
			return nil, nil
		}
		if err := b.records.Put(ctx, rec); err != nil {
			return nil, recordError(err)
		}
	}
	out, err := b.finish(ctx, rec)
	if errors.Is(err, errTaskGone) {
		return nil, nil
	}
	return out, err
}

// findTask returns the id of the task that carries the operation id, or "".
func (b *Backend) findTask(ctx context.Context, opID string) (id string, err error) {
	err = b.read(ctx, func(ctx context.Context, s *session) error {
		ts, err := ownTasks(ctx, s, func(id string) bool { return id == opID })
		if err == nil && len(ts) > 0 {
			id = ts[0].Task.Value
		}
		return err
	})
	return id, err
}

// opID names an operation on the vCenter: it shows in the task's ActivationId
// and in the logs there.
func (b *Backend) opID(subject, op string, began time.Time) string {
	return fmt.Sprintf("%s%s/%s/%x", b.opPrefix(), subject, op, began.UnixNano())
}

func (b *Backend) opPrefix() string { return "csi/" + b.conf().ClusterID + "/" }

// adopt writes records for tasks of this cluster that run and have none, for
// the case that the records of an earlier process were lost. It runs before
// the first session serves anyone.
func (b *Backend) adopt(ctx context.Context, s *session) error {
	prefix := b.opPrefix()
	ts, err := ownTasks(ctx, s, func(id string) bool { return strings.HasPrefix(id, prefix) })
	if err != nil {
		return wire(err)
	}
	for _, t := range ts {
		parts := strings.Split(strings.TrimPrefix(t.ActivationId, prefix), "/")
		if n := len(parts); n < 3 || t.State != types.TaskInfoStateRunning && t.State != types.TaskInfoStateQueued {
			continue
		}
		n := len(parts)
		r := record.Record{Key: strings.Join(parts[:n-2], "/"), Op: parts[n-2], Backend: b.conf().VCenter.Host,
			OpID: t.ActivationId, Task: t.Task.Value, Began: t.QueueTime}
		old, err := b.records.Get(ctx, r.Key)
		if errors.Is(err, record.ErrNotFound) || err == nil && (old.Done || old.Task == "") {
			b.log.Info("task of an earlier process found", "subject", r.Key, "operation", r.Op, "task", r.Task)
			err = b.records.Put(ctx, r)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

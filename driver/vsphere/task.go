package vsphere

import (
	"context"
	"errors"
	"time"

	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/driver/apart"
)

// errTaskGone is a task that the vCenter no longer knows: purged, or from
// before a restore. What it did is for the caller to find.
var errTaskGone = errors.New("the task is gone")

const (
	waitSeconds = 20 // one WaitForUpdatesEx; bounds how long a half-dead connection goes unnoticed
	waitTries   = 5
)

func taskRef(id string) types.ManagedObjectReference {
	return types.ManagedObjectReference{Type: "Task", Value: id}
}

// waitTask returns the info of a task once it has ended. It survives the end
// of sessions and connections, for a task does. opID, when not empty, is the
// operation that the task must carry: after a restore of the vCenter a task
// id may be another task's.
func (b *Backend) waitTask(ctx context.Context, id, opID string) (*types.TaskInfo, error) {
	pause := 100 * time.Millisecond
	for try := 1; ; try++ {
		s, err := b.session(ctx)
		if err != nil {
			return nil, err
		}
		info, err := b.waitOn(ctx, s, taskRef(id))
		var l *lost
		switch {
		case err == nil:
			if info.ActivationId != "" && opID != "" && info.ActivationId != opID {
				return nil, errTaskGone
			}
			return info, nil
		case ctx.Err() != nil:
			return nil, ended(ctx)
		case dead(err):
			b.drop(s)
		case faultName(err) == "ManagedObjectNotFound":
			return nil, errTaskGone
		case !errors.As(err, &l):
			return nil, err
		}
		if try == waitTries {
			return nil, err
		}
		if err := sleep(ctx, pause+apart.By(id)); err != nil {
			return nil, err
		}
		pause *= 2
	}
}

// waitOn waits on one session. A property collector serves one wait at a time
// and is kept for the next.
func (b *Backend) waitOn(ctx context.Context, s *session, task types.ManagedObjectReference) (_ *types.TaskInfo, err error) {
	pc, err := b.collector(ctx, s)
	if err != nil {
		return nil, err
	}
	clean := false
	defer func() {
		switch {
		case clean:
			s.mu.Lock()
			s.collectors = append(s.collectors, pc)
			s.mu.Unlock()
		case !dead(err):
			b.spawn(func() { b.destroy(s, pc) })
		}
	}()
	var filter types.ManagedObjectReference
	err = within(ctx, b.opt.CallTimeout, func(ctx context.Context) error {
		res, err := methods.CreateFilter(ctx, s.tasks, &types.CreateFilter{This: pc, Spec: types.PropertyFilterSpec{
			ObjectSet: []types.ObjectSpec{{Obj: task}},
			PropSet:   []types.PropertySpec{{Type: "Task", PathSet: []string{"info"}}},
		}})
		if err == nil {
			filter = res.Returnval
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	version := ""
	for {
		var set *types.UpdateSet
		err = within(ctx, waitSeconds*time.Second+b.opt.CallTimeout, func(ctx context.Context) error {
			res, err := methods.WaitForUpdatesEx(ctx, s.tasks, &types.WaitForUpdatesEx{This: pc, Version: version,
				Options: &types.WaitOptions{MaxWaitSeconds: types.NewInt32(waitSeconds)}})
			if err == nil {
				set = res.Returnval
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		if set == nil {
			continue
		}
		version = set.Version
		info, err := taskInfo(set, task)
		if err != nil {
			return nil, err
		}
		if info == nil {
			continue
		}
		// The outcome is known; a failure here only makes the collector unfit
		// for reuse.
		clean = within(ctx, b.opt.CallTimeout, func(ctx context.Context) error {
			_, err := methods.DestroyPropertyFilter(ctx, s.tasks, &types.DestroyPropertyFilter{This: filter})
			return err
		}) == nil
		return info, nil
	}
}

// taskInfo returns the info of a task that has ended, or nil.
func taskInfo(set *types.UpdateSet, task types.ManagedObjectReference) (*types.TaskInfo, error) {
	for _, fs := range set.FilterSet {
		for _, o := range fs.ObjectSet {
			if o.Obj != task {
				continue
			}
			if o.Kind == types.ObjectUpdateKindLeave {
				return nil, newFault(types.ManagedObjectNotFound{Obj: task}, "")
			}
			for _, m := range o.MissingSet {
				return nil, localized(&m.Fault)
			}
			for _, c := range o.ChangeSet {
				info, ok := c.Val.(types.TaskInfo)
				if c.Name == "info" && ok && (info.State == types.TaskInfoStateSuccess || info.State == types.TaskInfoStateError) {
					return &info, nil
				}
			}
		}
		for range fs.MissingSet {
			return nil, newFault(types.ManagedObjectNotFound{Obj: task}, "")
		}
	}
	return nil, nil
}

func (b *Backend) collector(ctx context.Context, s *session) (types.ManagedObjectReference, error) {
	s.mu.Lock()
	if n := len(s.collectors); n > 0 {
		pc := s.collectors[n-1]
		s.collectors = s.collectors[:n-1]
		s.mu.Unlock()
		return pc, nil
	}
	s.mu.Unlock()
	var pc types.ManagedObjectReference
	err := within(ctx, b.opt.CallTimeout, func(ctx context.Context) error {
		res, err := methods.CreatePropertyCollector(ctx, s.tasks, &types.CreatePropertyCollector{This: property.DefaultCollector(s.vim).Reference()})
		if err == nil {
			pc = res.Returnval
		}
		return err
	})
	return pc, err
}

// destroy removes a collector whose wait broke off, so that a long session
// doesn't fill up with them.
func (b *Backend) destroy(s *session, pc types.ManagedObjectReference) {
	ctx, cancel := context.WithTimeout(b.life, b.opt.CallTimeout)
	defer cancel()
	if _, err := methods.DestroyPropertyCollector(ctx, s.tasks, &types.DestroyPropertyCollector{This: pc}); err != nil {
		b.log.Debug("property collector not destroyed", "error", err)
	}
}

// ownTasks lists tasks that carry an operation id with the prefix. The task
// manager knows all that wait or run, and those that ended lately.
func ownTasks(ctx context.Context, s *session, match func(opID string) bool) ([]types.TaskInfo, error) {
	tm := s.vim.ServiceContent.TaskManager
	if tm == nil {
		return nil, nil
	}
	res, err := methods.RetrievePropertiesEx(ctx, s.vim, &types.RetrievePropertiesEx{
		This: s.vim.ServiceContent.PropertyCollector,
		SpecSet: []types.PropertyFilterSpec{{
			ObjectSet: []types.ObjectSpec{{Obj: *tm, Skip: types.NewBool(true),
				SelectSet: []types.BaseSelectionSpec{&types.TraversalSpec{Type: "TaskManager", Path: "recentTask"}}}},
			PropSet: []types.PropertySpec{{Type: "Task", PathSet: []string{"info"}}},
		}},
	})
	if err != nil {
		return nil, err
	}
	var out []types.TaskInfo
	for r := res.Returnval; r != nil; {
		for _, o := range r.Objects {
			for _, p := range o.PropSet {
				if info, ok := p.Val.(types.TaskInfo); ok && match(info.ActivationId) {
					out = append(out, info)
				}
			}
		}
		if r.Token == "" {
			break
		}
		next, err := methods.ContinueRetrievePropertiesEx(ctx, s.vim, &types.ContinueRetrievePropertiesEx{This: s.vim.ServiceContent.PropertyCollector, Token: r.Token})
		if err != nil {
			return nil, err
		}
		r = &next.Returnval
	}
	return out, nil
}

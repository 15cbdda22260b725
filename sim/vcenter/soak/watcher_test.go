package soak

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/vmware/govmomi"
	"github.com/vmware/govmomi/cns"
	"github.com/vmware/govmomi/fault"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/view"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter"
)

// watcher waits for tasks as upstream's driver does (vsphere-csi-driver
// pkg/common/cns-lib/volume/listview.go): one ListView that all tasks go into
// and come out of, watched by one property collector; both are made anew when
// the session is lost, and tasks that were waited for are joined again by id.
type watcher struct {
	v *vcenter.VCenter
	// bound is how long an operation may take, whatever becomes of sessions.
	bound time.Duration
	// slack is between the time that a task says it was over and the time when
	// watchers can know.
	slack time.Duration

	mu      sync.Mutex
	now     *connection
	changed chan struct{} // closed and replaced when now is another
	waiting map[types.ManagedObjectReference]chan types.TaskInfo
	late    []time.Duration // between the end of a task and its report
	old     []*connection
	renewed int
	// deaf to the end of one task; for the test of this watcher.
	deaf types.ManagedObjectReference
}

// connection is a session with its view.
type connection struct {
	vim  *govmomi.Client
	cns  *cns.Client
	view *view.ListView
	lost chan struct{} // closed when its wait for updates has failed
	told time.Time     // latest end of a task that was reported; under watcher.mu
}

func newWatcher(v *vcenter.VCenter, bound, slack time.Duration) *watcher {
	return &watcher{v: v, bound: bound, slack: slack, changed: make(chan struct{}), waiting: map[types.ManagedObjectReference]chan types.TaskInfo{}}
}

// listen keeps a connection until ctx ends.
func (w *watcher) listen(ctx context.Context) error {
	for ctx.Err() == nil {
		err := w.session(ctx)
		switch {
		case ctx.Err() != nil, fault.Is(err, &types.NotAuthenticated{}), fault.Is(err, &types.ManagedObjectNotFound{}):
			// The session ended before or while it was used.
		default:
			return err
		}
	}
	return nil
}

// session logs in, watches a view until that fails, and says what failed.
func (w *watcher) session(ctx context.Context) error {
	vc, err := govmomi.NewClient(ctx, w.v.URL(), true)
	if err != nil {
		return err
	}
	defer vc.CloseIdleConnections()
	c := &connection{vim: vc, lost: make(chan struct{})}
	defer close(c.lost)
	if c.cns, err = cns.NewClient(ctx, vc.Client); err != nil {
		return err
	}
	defer c.cns.CloseIdleConnections()
	if c.view, err = view.NewManager(vc.Client).CreateListView(ctx, nil); err != nil {
		return err
	}
	pc, err := property.DefaultCollector(vc.Client).Create(ctx)
	if err != nil {
		return err
	}
	w.mu.Lock()
	if w.now != nil {
		w.old = append(w.old, w.now)
	}
	w.now = c
	w.renewed++
	close(w.changed)
	w.changed = make(chan struct{})
	w.mu.Unlock()
	filter := new(property.WaitFilter).Add(c.view.Reference(), "Task", []string{"info"}, c.view.TraversalSpec())
	return property.WaitForUpdatesEx(ctx, pc, filter, func(us []types.ObjectUpdate) bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, u := range us {
			for _, p := range u.ChangeSet {
				if info, ok := p.Val.(types.TaskInfo); ok {
					w.report(c, info)
				}
			}
		}
		return false
	})
}

// report passes the end of a task on; w.mu is held.
func (w *watcher) report(c *connection, info types.TaskInfo) {
	if info.State != types.TaskInfoStateSuccess && info.State != types.TaskInfoStateError || info.Task == w.deaf {
		return
	}
	if info.CompleteTime.After(c.told) {
		c.told = *info.CompleteTime
	}
	if ch := w.waiting[info.Task]; ch != nil {
		delete(w.waiting, info.Task)
		ch <- info
	}
}

// connection returns one that is alive, other than old.
func (w *watcher) connection(ctx context.Context, old *connection) (*connection, error) {
	for {
		w.mu.Lock()
		c, changed := w.now, w.changed
		w.mu.Unlock()
		if c != nil && c != old {
			return c, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("no new connection: %w", context.Cause(ctx))
		}
	}
}

// span is a time in which a task was in the view of one session.
type span struct {
	c           *connection
	from, until time.Time
}

// since is when the task was both over and in view.
func (s span) since(over time.Time) time.Time {
	if s.from.After(over) {
		return s.from
	}
	return over
}

// do starts a task and waits for its end, whatever becomes of the session.
func (w *watcher) do(ctx context.Context, start func(*connection) (*object.Task, error)) (types.TaskInfo, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, w.bound, fmt.Errorf("stalled for %v", w.bound))
	defer cancel()
	c, err := w.connection(ctx, nil)
	if err != nil {
		return types.TaskInfo{}, err
	}
	task, err := start(c)
	for fault.Is(err, &types.NotAuthenticated{}) { // it was not done
		if c, err = w.connection(ctx, c); err != nil {
			return types.TaskInfo{}, err
		}
		task, err = start(c)
	}
	if err != nil {
		return types.TaskInfo{}, err
	}
	ref := task.Reference()
	ch := make(chan types.TaskInfo, 1)
	w.mu.Lock()
	w.waiting[ref] = ch
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		delete(w.waiting, ref)
		w.mu.Unlock()
	}()
	var spans []span
	for {
		added := time.Now()
		unresolved, err := c.view.Add(ctx, []types.ManagedObjectReference{ref})
		switch {
		case fault.Is(err, &types.NotAuthenticated{}):
			if c, err = w.connection(ctx, c); err != nil {
				return types.TaskInfo{}, err
			}
			continue
		case err != nil:
			return types.TaskInfo{}, err
		case len(unresolved) > 0:
			return types.TaskInfo{}, errors.New(ref.Value + " is not known")
		}
		select {
		case info := <-ch:
			// What counts is the time in which the task was both over and in view.
			over := *info.CompleteTime
			late := time.Since(span{from: added}.since(over))
			for _, s := range spans {
				late = max(late, s.until.Sub(s.since(over)))
			}
			w.mu.Lock()
			w.late = append(w.late, late)
			for _, s := range spans {
				// Its session has ended without a report, which may be the end's
				// fault. Not if a later end was told in it: joining the task again
				// would hide that this one was lost.
				if ahead := s.c.told.Sub(s.since(over)); ahead > w.slack {
					err = fmt.Errorf("the end of %s was not reported, one %v later was", ref.Value, ahead)
				}
			}
			w.mu.Unlock()
			if err != nil {
				return info, err
			}
			_, err := c.view.Remove(ctx, []types.ManagedObjectReference{ref})
			if fault.Is(err, &types.NotAuthenticated{}) || fault.Is(err, &types.ManagedObjectNotFound{}) {
				err = nil // the view is gone as a whole
			}
			return info, err
		case <-c.lost:
			spans = append(spans, span{c, added, time.Now()})
			if c, err = w.connection(ctx, c); err != nil {
				return types.TaskInfo{}, err
			}
		case <-ctx.Done():
			return types.TaskInfo{}, fmt.Errorf("the end of %s was not reported: %w", ref.Value, context.Cause(ctx))
		}
	}
}

// hangUp closes what sessions that are over left open: calls that were under
// way then have put their connections back since.
func (w *watcher) hangUp() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.old {
		c.vim.CloseIdleConnections()
		c.cns.CloseIdleConnections()
	}
	w.old = nil
}

// lateness returns the median, the 99th percentile and the maximum of the
// times between a task's end and its report.
func (w *watcher) lateness() (p50, p99, most time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := slices.Sorted(slices.Values(w.late))
	if len(all) == 0 {
		return 0, 0, 0
	}
	return all[len(all)/2], all[len(all)*99/100], all[len(all)-1]
}

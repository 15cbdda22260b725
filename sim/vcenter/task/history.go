package task

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	vim "github.com/vmware/govmomi/vim25/types"
)

// Limits of a page of the history (vSphere API, HistoryCollector).
const (
	defaultPage = 10
	maxPage     = 1000
)

// collector is a TaskHistoryCollector: a filter on the history and a position
// between two tasks of it. It lives as long as the session that made it.
type collector struct {
	mo.TaskHistoryCollector
	m    *Manager
	spec vim.TaskFilterSpec

	mu   sync.Mutex
	page int
	at   int32 // number of the last task before the position
}

// Reference implements mo.Reference. The promoted one copies the whole object,
// which may be changing.
func (c *collector) Reference() vim.ManagedObjectReference { return c.Self }

// Lock and Unlock take the object out of vcsim's lock per object.
func (*collector) Lock()   {}
func (*collector) Unlock() {}

// CreateCollectorForTasks makes a collector that starts at the oldest task.
func (tm *taskManager) CreateCollectorForTasks(ctx *simulator.Context, req *vim.CreateCollectorForTasks) soap.HasFault {
	body := &methods.CreateCollectorForTasksBody{}
	if ctx.Session == nil {
		body.Fault_ = refuse("", &vim.NotAuthenticated{})
		return body
	}
	c := &collector{m: tm.m, page: defaultPage}
	c.TaskHistoryCollector.Filter = req.Filter
	c.spec = req.Filter
	m := tm.m
	m.mu.Lock()
	if len(m.readers) >= maxCollectors {
		m.mu.Unlock()
		body.Fault_ = refuse("", &vim.InvalidState{})
		return body
	}
	m.readers[c] = struct{}{}
	m.collectors++
	c.Self = vim.ManagedObjectReference{Type: "TaskHistoryCollector", Value: fmt.Sprintf("session[%s]task-history-%d", ctx.Session.Key, m.collectors)}
	m.mu.Unlock()
	body.Res = &vim.CreateCollectorForTasksResponse{Returnval: ctx.Session.Put(c).Reference()}
	return body
}

// SessionEnded is called when the session that made the collector has ended.
func (c *collector) SessionEnded() {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	delete(c.m.readers, c)
}

// DestroyCollector implements the method of the API.
func (c *collector) DestroyCollector(ctx *simulator.Context, _ *vim.DestroyCollector) soap.HasFault {
	c.SessionEnded()
	ctx.Session.Remove(ctx, c.Self)
	return &methods.DestroyCollectorBody{Res: &vim.DestroyCollectorResponse{}}
}

// SetCollectorPageSize sets how many tasks latestPage has at most.
func (c *collector) SetCollectorPageSize(_ *simulator.Context, req *vim.SetCollectorPageSize) soap.HasFault {
	if req.MaxCount < 0 || req.MaxCount > maxPage {
		return &methods.SetCollectorPageSizeBody{Fault_: refuse("", &vim.InvalidArgument{InvalidProperty: "maxCount"})}
	}
	c.mu.Lock()
	c.page = int(req.MaxCount)
	if c.page == 0 {
		c.page = defaultPage
	}
	c.mu.Unlock()
	return &methods.SetCollectorPageSizeBody{Res: &vim.SetCollectorPageSizeResponse{}}
}

// RewindCollector moves the position before the oldest task.
func (c *collector) RewindCollector(*simulator.Context, *vim.RewindCollector) soap.HasFault {
	c.move(0)
	return &methods.RewindCollectorBody{Res: &vim.RewindCollectorResponse{}}
}

// ResetCollector moves the position behind the newest task.
func (c *collector) ResetCollector(*simulator.Context, *vim.ResetCollector) soap.HasFault {
	last := int32(0)
	if all := c.matching(); len(all) > 0 {
		last = all[len(all)-1].EventChainId
	}
	c.move(last)
	return &methods.ResetCollectorBody{Res: &vim.ResetCollectorResponse{}}
}

func (c *collector) move(to int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = to
}

// ReadNextTasks reads from the position to newer tasks.
func (c *collector) ReadNextTasks(_ *simulator.Context, req *vim.ReadNextTasks) soap.HasFault {
	if req.MaxCount <= 0 {
		return &methods.ReadNextTasksBody{Fault_: refuse("", &vim.InvalidArgument{InvalidProperty: "maxCount"})}
	}
	all := c.matching()
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(all, func(t vim.TaskInfo) bool { return t.EventChainId > c.at })
	if i < 0 {
		i = len(all)
	}
	page := all[i:min(len(all), i+int(req.MaxCount))]
	if n := len(page); n > 0 {
		c.at = page[n-1].EventChainId
	}
	return &methods.ReadNextTasksBody{Res: &vim.ReadNextTasksResponse{Returnval: page}}
}

// ReadPreviousTasks reads from the position to older tasks.
func (c *collector) ReadPreviousTasks(_ *simulator.Context, req *vim.ReadPreviousTasks) soap.HasFault {
	if req.MaxCount <= 0 {
		return &methods.ReadPreviousTasksBody{Fault_: refuse("", &vim.InvalidArgument{InvalidProperty: "maxCount"})}
	}
	all := c.matching()
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(all, func(t vim.TaskInfo) bool { return t.EventChainId > c.at })
	if i < 0 {
		i = len(all)
	}
	page := slices.Clone(all[max(0, i-int(req.MaxCount)):i])
	if len(page) > 0 {
		c.at = page[0].EventChainId - 1
	}
	slices.Reverse(page)
	return &methods.ReadPreviousTasksBody{Res: &vim.ReadPreviousTasksResponse{Returnval: page}}
}

// Get implements the interface by which vcsim's property collector asks for an
// object whose properties are made on demand.
func (c *collector) Get() mo.Reference {
	c.mu.Lock()
	page := c.page
	c.mu.Unlock()
	all := c.matching()
	latest := slices.Clone(all[max(0, len(all)-page):])
	slices.Reverse(latest)
	o := &mo.TaskHistoryCollector{LatestPage: latest}
	o.Self, o.Filter = c.Self, c.TaskHistoryCollector.Filter
	return o
}

// changed tells watchers that a task was started or has changed its state
// (progress does not count): of the list of recent tasks and of collectors
// whose filter it passes. The lock of t may be held.
func (m *Manager) changed(t *object) {
	m.mu.Lock()
	readers := make([]*collector, 0, len(m.readers))
	for c := range m.readers {
		readers = append(readers, c)
	}
	m.mu.Unlock()
	m.api.changed()
	for _, c := range readers {
		n := &pageNotice{}
		n.Self = c.Self
		m.context(m.ctx).Update(n, []vim.PropertyChange{{Name: "latestPage", Val: []vim.TaskInfo(nil)}})
	}
}

// pageNotice stands for a collector in what handlers of the registry are told.
type pageNotice struct{ mo.TaskHistoryCollector }

// matching lists the tasks that pass the filter, oldest first.
func (c *collector) matching() []vim.TaskInfo {
	c.m.mu.Lock()
	all := slices.Clone(c.m.history)
	c.m.mu.Unlock()
	var out []vim.TaskInfo
	for _, t := range all {
		if i := t.info(); c.matches(i) {
			out = append(out, i)
		}
	}
	return out
}

func (c *collector) matches(t vim.TaskInfo) bool {
	s := &c.spec
	in := func(have string, allowed []string) bool { return len(allowed) == 0 || slices.Contains(allowed, have) }
	switch {
	case len(s.State) > 0 && !slices.Contains(s.State, t.State),
		len(s.EventChainId) > 0 && !slices.Contains(s.EventChainId, t.EventChainId),
		!in(t.ActivationId, s.ActivationId), !in(t.ChangeTag, s.Tag),
		!in(t.ParentTaskKey, s.ParentTaskKey), !in(t.RootTaskKey, s.RootTaskKey),
		s.Alarm != nil, s.ScheduledTask != nil: // none is started by one
		return false
	}
	return c.byUser(t) && c.inTime(t) && c.ofEntity(t)
}

func (c *collector) byUser(t vim.TaskInfo) bool {
	u := c.spec.UserName
	if u == nil {
		return true
	}
	name := ""
	if r, ok := t.Reason.(*vim.TaskReasonUser); ok {
		name = r.UserName
	}
	return u.SystemUser && name == "" || slices.Contains(u.UserList, name) || !u.SystemUser && len(u.UserList) == 0
}

func (c *collector) inTime(t vim.TaskInfo) bool {
	s := c.spec.Time
	if s == nil {
		return true
	}
	at := &t.QueueTime
	switch s.TimeType {
	case vim.TaskFilterSpecTimeOptionStartedTime:
		at = t.StartTime
	case vim.TaskFilterSpecTimeOptionCompletedTime:
		at = t.CompleteTime
	}
	in := func(bound *time.Time, late bool) bool {
		return bound == nil || at != nil && (late && !at.After(*bound) || !late && !at.Before(*bound))
	}
	return in(s.BeginTime, false) && in(s.EndTime, true)
}

// ofEntity follows the inventory up from the entity of the task.
func (c *collector) ofEntity(t vim.TaskInfo) bool {
	e := c.spec.Entity
	if e == nil {
		return true
	}
	if t.Entity == nil {
		return false
	}
	self := *t.Entity == e.Entity
	if self || e.Recursion == vim.TaskFilterSpecRecursionOptionSelf {
		return self && e.Recursion != vim.TaskFilterSpecRecursionOptionChildren
	}
	ctx := c.m.context(c.m.ctx)
	at := t.Entity
	for range 64 {
		o, ok := c.m.vim.Get(*at).(mo.Entity)
		if !ok {
			return false
		}
		var up *vim.ManagedObjectReference
		c.m.vim.WithLock(ctx, o, func() {
			if p := o.Entity().Parent; p != nil {
				r := *p
				up = &r
			}
		})
		if up == nil {
			return false
		}
		if *up == e.Entity {
			return true
		}
		at = up
	}
	return false
}

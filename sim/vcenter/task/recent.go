package task

import (
	"slices"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	vim "github.com/vmware/govmomi/vim25/types"
)

// retire notes the end of a task and takes those out of the inventory that
// clients need not see any longer. The lock of t may be held.
func (m *Manager) retire(t *object) {
	m.mu.Lock()
	if m.live[t.Self.Value] != t {
		m.mu.Unlock()
		return // purged meanwhile
	}
	t.finished = true
	m.finished = append(m.finished, t)
	old := m.expired(time.Now())
	m.mu.Unlock()
	m.remove(old)
}

// expired takes out of finished what is too old or too much, and arms the
// timer for the next; mu is held.
func (m *Manager) expired(now time.Time) []*object {
	n := max(0, len(m.finished)-m.cfg.Keep)
	if m.cfg.KeepFor > 0 {
		for n < len(m.finished) && now.Sub(m.finished[n].ended) >= m.cfg.KeepFor {
			n++
		}
	}
	old := slices.Clone(m.finished[:n])
	for _, t := range old {
		delete(m.live, t.Self.Value)
	}
	clear(m.finished[:n])
	m.finished = m.finished[n:]
	if m.cfg.KeepFor > 0 && m.expiry == nil && len(m.finished) > 0 && m.ctx.Err() == nil {
		m.expiry = time.AfterFunc(m.cfg.KeepFor-now.Sub(m.finished[0].ended), func() {
			m.mu.Lock()
			m.expiry = nil
			old := m.expired(time.Now())
			m.mu.Unlock()
			m.remove(old)
		})
	}
	return old
}

func (m *Manager) remove(old []*object) {
	if len(old) == 0 {
		return
	}
	c := m.context(m.ctx)
	for _, t := range old {
		m.vim.Remove(c, t.Self)
	}
	m.api.changed()
}

// Purge takes tasks out of the inventory and the history, as a vCenter does
// when it is restored or its database is cleaned: whoever asks for them gets
// ManagedObjectNotFound. A task that is at work goes on, but nobody can see its
// end. Without ids it takes all finished ones. It returns how many there were.
func (m *Manager) Purge(ids ...string) int {
	m.mu.Lock()
	goes := func(t *object) bool {
		return len(ids) == 0 && t.finished || slices.Contains(ids, t.Self.Value)
	}
	var old []*object
	for id, t := range m.live {
		if goes(t) {
			delete(m.live, id)
			old = append(old, t)
		}
	}
	m.finished = slices.DeleteFunc(m.finished, goes)
	m.history = slices.DeleteFunc(m.history, goes)
	m.mu.Unlock()
	m.remove(old)
	return len(old)
}

// Status describes a task for people.
type Status struct {
	Call
	Info vim.TaskInfo
}

// List returns the tasks that are in the inventory, oldest first.
func (m *Manager) List() []Status {
	m.mu.Lock()
	all := make([]*object, 0, len(m.live))
	for _, t := range m.live {
		all = append(all, t)
	}
	m.mu.Unlock()
	out := make([]Status, len(all))
	for i, t := range all {
		out[i] = Status{t.job.Call, t.info()}
	}
	slices.SortFunc(out, func(a, b Status) int { return int(a.Info.EventChainId) - int(b.Info.EventChainId) })
	return out
}

// recent is TaskManager.recentTask: what runs, and the last that finished.
func (m *Manager) recent() []vim.ManagedObjectReference {
	m.mu.Lock()
	defer m.mu.Unlock()
	last := m.finished[max(0, len(m.finished)-recentMax):]
	out := make([]vim.ManagedObjectReference, 0, len(m.live)-len(m.finished)+len(last))
	for _, t := range last {
		out = append(out, t.Self)
	}
	for _, t := range m.live {
		if !t.finished {
			out = append(out, t.Self)
		}
	}
	slices.SortFunc(out, func(a, b vim.ManagedObjectReference) int {
		if len(a.Value) != len(b.Value) {
			return len(a.Value) - len(b.Value)
		}
		return compare(a.Value, b.Value)
	})
	return out
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// note writes a task into its entity's recentTask and the entity's name into
// the task. Watchers are not told: since vSphere 5 a vCenter need not either
// (ManagedEntity.recentTask).
func (m *Manager) note(rc *simulator.Context, t *object) {
	e, ok := m.vim.Get(t.job.Entity).(mo.Entity)
	if !ok {
		if t.Info.EntityName == "" {
			t.Info.EntityName = t.job.Entity.Value
		}
		return
	}
	m.vim.WithLock(rc, e, func() {
		self := e.Entity()
		if t.Info.EntityName == "" {
			t.Info.EntityName = self.Name
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		// Readers may still have the old list: it is only ever added to.
		list := self.RecentTask
		for len(list) > 0 && (m.live[list[0].Value] == nil || len(list) >= recentMax) {
			list = list[1:]
		}
		self.RecentTask = append(list, t.Self)
	})
}

// Info describes a task that is in the inventory.
func (m *Manager) Info(id string) (vim.TaskInfo, bool) {
	m.mu.Lock()
	t := m.live[id]
	m.mu.Unlock()
	if t == nil {
		return vim.TaskInfo{}, false
	}
	return t.info(), true
}

// InfoOf is the description of an object that is a task of a manager's. What it
// holds is never changed in place.
func InfoOf(o mo.Reference) (vim.TaskInfo, bool) {
	if t, ok := o.(*object); ok {
		return t.info(), true
	}
	return vim.TaskInfo{}, false
}

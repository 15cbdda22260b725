package array

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// TaskType is what a task does, numbered as the WSAPI does.
type TaskType int

// The types of tasks.
const (
	CopyTask       TaskType = 1 // vv_copy
	ResyncTask     TaskType = 2 // phys_copy_resync
	PromoteTask    TaskType = 4 // promote_sv
	SyncTask       TaskType = 6 // remote_copy_sync (unverified: the number)
	OnlineCopyTask TaskType = 18
	TuneTask       TaskType = 19 // convert_vv
)

// TaskStatus is how far a task is, numbered as the WSAPI does.
type TaskStatus int

// The states of a task.
const (
	TaskDone      TaskStatus = 1
	TaskActive    TaskStatus = 2
	TaskCancelled TaskStatus = 3
	TaskFailed    TaskStatus = 4
)

// MaxTasks is how many ended tasks are kept, the newest ones.
const MaxTasks = 1000

// Task is work that goes on while commands come and go.
type Task struct {
	ID       int64      `json:"id"` // from 1
	Type     TaskType   `json:"type"`
	Name     string     `json:"name"` // of the volume or group that it works on
	Status   TaskStatus `json:"status"`
	Started  time.Time  `json:"started"`
	Finished time.Time  `json:"finished,omitzero"`
	// DoneMiB of TotalMiB are copied.
	DoneMiB  int64  `json:"doneMiB"`
	TotalMiB int64  `json:"totalMiB"`
	Reason   string `json:"reason,omitempty"` // why it failed
	Priority int    `json:"priority,omitempty"`
}

// Percent of the work that is done, 0 to 100.
func (t Task) Percent() int {
	if t.TotalMiB == 0 {
		return 100
	}
	return int(t.DoneMiB * 100 / t.TotalMiB)
}

type task struct {
	Task
	from, to *volume // a copy, a promotion; to is what is tuned
	keep     bool    // a copy can be brought up to date afterwards
	group    *group
	user     *cpg // where what is tuned goes
	convert  Provisioning
	ops      []ContentOp // when it is done
	undo     []ContentOp // when it is not
}

// start begins a task, which Tick advances.
func (a *Array) start(now time.Time, t *task) *task {
	a.taskSeq++
	t.ID, t.Status, t.Started = a.taskSeq, TaskActive, now
	a.tasks.put(t.ID, t)
	a.active[t] = struct{}{}
	for _, v := range []*volume{t.from, t.to} {
		if v != nil {
			v.busy = t
		}
	}
	a.log(now, Added, "task", t.label())
	return t
}

func (t *task) label() string { return fmt.Sprintf("%d %s", t.ID, t.Name) }

// end takes a task off what it worked on.
func (a *Array) end(now time.Time, t *task, s TaskStatus) {
	t.Status, t.Finished = s, now
	delete(a.active, t)
	for _, v := range []*volume{t.from, t.to} {
		if v != nil && v.busy == t {
			v.busy = nil
		}
	}
	if t.group != nil && t.group.busy == t {
		t.group.busy = nil
	}
	t.from, t.to, t.group, t.user = nil, nil, nil, nil
	a.finished = append(a.finished, t.ID)
	if len(a.finished) > MaxTasks {
		a.tasks.drop(a.finished[0])
		a.finished = a.finished[1:]
	}
	if s == TaskDone {
		a.log(now, Finished, "task", t.label())
	} else {
		a.log(now, Failed, "task", t.label())
	}
}

// Tick lets time pass: tasks advance and end, volumes expire, sessions idle
// out. What it returns has to be done with content, in order.
func (a *Array) Tick(now time.Time) []ContentOp {
	var ops []ContentOp
	for _, t := range a.running() {
		if t.Status != TaskActive { // an earlier one ended it
			continue
		}
		t.DoneMiB = min(t.TotalMiB, int64(now.Sub(t.Started)/time.Millisecond)*a.cfg.CopyMiBs/1000)
		if t.DoneMiB >= t.TotalMiB {
			ops = append(ops, a.finish(now, t)...)
		}
	}
	ops = append(ops, a.periods(now)...)
	ops = append(ops, a.expire(now)...)
	a.idleOut(now)
	return ops
}

// SetCopyRate changes how fast content is copied, in MiB per second. What runs
// counts as copied at that rate from its start.
func (a *Array) SetCopyRate(mibs int64) { a.cfg.CopyMiBs = max(1, mibs) }

// running are the active tasks, oldest first.
func (a *Array) running() []*task {
	var out []*task
	for t := range a.active {
		out = append(out, t)
	}
	slices.SortFunc(out, func(t, u *task) int { return cmp.Compare(t.ID, u.ID) })
	return out
}

// finish ends a task whose work is done.
func (a *Array) finish(now time.Time, t *task) []ContentOp {
	ops := t.ops
	switch t.Type {
	case CopyTask, ResyncTask, OnlineCopyTask:
		t.to.State = Normal
		if !t.keep && t.to.parent != nil {
			a.children.drop(t.to.parent, t.to)
			t.to.parent, t.to.CopyType = nil, Base
		}
	case TuneTask:
		if reason := a.tuned(now, t); reason != "" {
			t.Reason = reason
			a.end(now, t, TaskFailed)
			return nil
		}
	case SyncTask:
		if _, _, err := a.both(t.group); err != nil {
			return a.cancel(now, t)
		}
		ops = append(ops, a.synced(now, t)...)
	}
	a.end(now, t, TaskDone)
	return ops
}

// CancelTask stops a task. Of a copy that is stopped the target stays, with
// content that is not complete; a promotion can't be stopped half way, what is
// promoted stays stale likewise. Errors: INV_INPUT_BELOW_RANGE,
// INV_INPUT_EXCEEDS_RANGE, NON_EXISTENT_TASK, TASK_NOT_ACTIVE (unverified: what
// the real one says of a task that has ended).
func (a *Array) CancelTask(now time.Time, id int64) (Task, []ContentOp, error) {
	t, err := a.task(id)
	if err != nil {
		return Task{}, nil, err
	}
	if t.Status != TaskActive {
		return Task{}, nil, &Error{Kind: TaskNotActive, Field: "id", Value: fmt.Sprint(id), Reason: "the task has ended"}
	}
	return t.Task, a.cancel(now, t), nil
}

func (a *Array) cancel(now time.Time, t *task) []ContentOp {
	switch t.Type {
	case CopyTask, ResyncTask, OnlineCopyTask:
		t.to.State = FailedState
		if !t.keep && t.to.parent != nil {
			a.children.drop(t.to.parent, t.to)
			t.to.parent, t.to.CopyType = nil, Base
		}
	case PromoteTask:
		t.to.State = FailedState
	case SyncTask:
		t.group.unsynced()
		if _, p := a.peer(t.group); p != nil {
			p.unsynced()
		}
	}
	undo := t.undo
	a.end(now, t, TaskCancelled)
	return undo
}

func (a *Array) task(id int64) (*task, error) {
	if id <= 0 {
		return nil, &Error{Kind: BelowRange, Field: "id", Value: fmt.Sprint(id), Reason: "allowed is what is positive"}
	}
	if id > 1<<31-1 {
		return nil, &Error{Kind: ExceedsRange, Field: "id", Value: fmt.Sprint(id), Reason: "allowed are 1 to 2147483647"}
	}
	t, ok := a.tasks.get(id)
	if !ok {
		return nil, &Error{Kind: NonExistentTask, Field: "id", Value: fmt.Sprint(id), Reason: "no such task"}
	}
	return t, nil
}

// Task returns a task as of the last Tick. Errors: as CancelTask.
func (a *Array) Task(id int64) (Task, error) {
	t, err := a.task(id)
	if err != nil {
		return Task{}, err
	}
	return t.Task, nil
}

// Tasks returns the active tasks and the newest of those that ended, by id.
func (a *Array) Tasks() []Task {
	out := make([]Task, 0, a.tasks.len())
	for t := range a.tasks.all() {
		out = append(out, t.Task)
	}
	return out
}

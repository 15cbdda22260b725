// Package task runs and keeps the tasks of a vCenter: of CNS, of first class
// disks and of VMs alike. A task is an object of the vim25 inventory from the
// call that starts it until a while after its end; its history stays longer.
//
// vcsim's own tasks hold the lock of their entity while they run, poll for the
// end of others, and are kept for ever.
package task

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/vmware/govmomi/simulator"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/fault"
)

// Limits of a vCenter's lists of tasks (vSphere API, TaskManager.recentTask).
const (
	// DefaultKeepFor is how long a finished task can be seen.
	DefaultKeepFor = 10 * time.Minute
	// recentMax is how many finished tasks TaskManager.recentTask lists.
	recentMax = 200
)

// firstNumber keeps the numbers of these tasks apart from those that vcsim
// gives its own, which count every object of the inventory from 1.
const firstNumber = 1_000_000

// Call is a task that is about to do its work.
type Call struct {
	Op       string // API method, e.g. CnsAttachVolume or PowerOffVM_Task
	Task     string // task id, e.g. task-1000001; set by Start
	Volume   string // volume id, or the name for CnsCreateVolume; "" when the request names none
	VM       string // managed object id of the VM, where there is one
	Snapshot string
	// Cause is the ledger's number of the call that started the task; set by Start.
	Cause uint64
}

// Work is what a task does. It must return when ctx ends. c is an identity
// under which objects of the inventory are locked; no lock is held when Work is
// called. An error fails the task: an *Error with its fault, any other with
// SystemError, unless it is a *Refused.
type Work func(ctx context.Context, c *simulator.Context) (result vim.AnyType, err error)

// Job is a task to start.
type Job struct {
	Call
	// Entity that the task is for.
	Entity vim.ManagedObjectReference
	// EntityName; empty means the entity's name in the inventory.
	EntityName string
	// Name of the method as TaskInfo.name has it; tasks of CNS have none.
	Name string
	// DescriptionID is TaskInfo.descriptionId, e.g. VirtualMachine.powerOff.
	DescriptionID string
	// Cancelable tasks end when a client cancels them: the context of Work ends.
	Cancelable bool
	// Before, where set, is called first, before holds and latency: it takes what
	// the task needs for itself all the time that it runs. An error ends the task.
	Before func(ctx context.Context) error
	// Release, where set, gives that back, whatever came of Before: it is called
	// before clients see the end of the task.
	Release func()
	Work    Work
	// Failed makes the result of a task that succeeds although a fault was found
	// for what it was about, as CNS reports most refusals; nil: there is none.
	Failed func(*vim.LocalizedMethodFault) vim.AnyType
	// After, where set, is called when the task is over, whatever came of it.
	After func()
}

// Hook wraps the work of a task: it must call commit to have it done, and may
// return another error than commit's: a *Fault, ErrLost, or any other, which
// fails the task. commit's error is what the work was refused with, or nil.
type Hook func(ctx context.Context, c Call, commit func(context.Context) error) error

// Config of a manager. The zero value keeps tasks for ten minutes.
type Config struct {
	// First is the number of the first task less one, so that a lab that is
	// restarted goes on where it was (see Manager.Issued). 0 starts anew.
	First int64
	// Keep is how many finished tasks clients can see at most, and how many
	// tasks a collector of the history finds; 0 means 1000, the most that a page
	// of the history has (a vCenter keeps tasks for 30 days in its database).
	Keep int
	// KeepFor is how long a finished task can be seen; 0 means DefaultKeepFor,
	// below 0 for ever (up to Keep).
	KeepFor time.Duration
	// Latency of a task by API method, e.g. "CnsCreateVolume"; "" is for all
	// others. None by default.
	Latency map[string]time.Duration
	// OnTask wraps the work of a task. Nil just commits.
	OnTask Hook
	// Log for what goes wrong inside; nil drops it.
	Log *slog.Logger
}

// Manager keeps the tasks of one vCenter. It is safe for concurrent use.
type Manager struct {
	cfg Config
	log *slog.Logger
	svc *simulator.Service
	vim *simulator.Registry
	api *taskManager

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	// mu may be taken with the lock of a task held, never the other way round.
	mu       sync.Mutex
	life     context.Context // until the service is restarted; see Restart
	endLife  context.CancelCauseFunc
	last     int64
	live     map[string]*object // in the inventory
	finished []*object          // of those, in the order of their end
	history  []*object          // in the order of their start
	latency  map[string]time.Duration
	holds    []*Hold
	expiry   *time.Timer
	readers  map[*collector]struct{}
	// collectors counts those ever made.
	collectors int
}

// New makes the manager of a service's vim25 inventory and puts it in the place
// of vcsim's TaskManager. Errors name the field of the configuration.
func New(svc *simulator.Service, cfg Config) (*Manager, error) {
	if cfg.First < 0 {
		return nil, fmt.Errorf("task: First is %d, allowed are 0 and more", cfg.First)
	}
	if cfg.Keep < 0 {
		return nil, fmt.Errorf("task: Keep is %d, allowed are 0 and more", cfg.Keep)
	}
	for op, d := range cfg.Latency {
		if d < 0 {
			return nil, fmt.Errorf("task: Latency of %q is %v, allowed are 0 and more", op, d)
		}
	}
	if cfg.Keep == 0 {
		cfg.Keep = 1000
	}
	if cfg.KeepFor == 0 {
		cfg.KeepFor = DefaultKeepFor
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	m := &Manager{cfg: cfg, log: cfg.Log, svc: svc, vim: svc.Context.Map, last: firstNumber + cfg.First,
		live: map[string]*object{}, latency: map[string]time.Duration{}, readers: map[*collector]struct{}{}}
	for op, d := range cfg.Latency {
		m.latency[op] = d
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.life, m.endLife = context.WithCancelCause(m.ctx)
	m.install()
	return m, nil
}

// Close ends all tasks that still run and waits for them; their end is not
// reported. It may be called more than once.
func (m *Manager) Close() {
	m.mu.Lock() // after this nothing is started
	m.cancel()
	if m.expiry != nil {
		m.expiry.Stop()
	}
	m.mu.Unlock()
	m.wg.Wait()
}

// Wait returns when no task is at work.
func (m *Manager) Wait() { m.wg.Wait() }

// Issued is how many numbers are used up: what Config.First has to be for a
// manager that goes on from here.
func (m *Manager) Issued() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last - firstNumber
}

// context is an identity under which objects of the registry are locked. Each
// task needs one of its own: locks are shared within one.
func (m *Manager) context(ctx context.Context) *simulator.Context {
	c := *m.svc.Context
	c.Context = ctx
	c.Map = m.vim
	return &c
}

// Start puts a task into the inventory, where the caller rc finds it when Start
// returns, and runs it in a goroutine of its own. rc may hold the lock of the
// entity; it may be nil for what the lab does itself.
func (m *Manager) Start(rc *simulator.Context, j Job) vim.ManagedObjectReference {
	t := m.enter(rc, j, false)
	return t.Self
}

// enter puts a task into the inventory. own is for one that a client made and
// reports on itself: nothing is run for it.
func (m *Manager) enter(rc *simulator.Context, j Job, own bool) *object {
	t := &object{m: m, job: j, own: own, canceled: make(chan struct{})}
	m.mu.Lock()
	m.last++
	n := m.last
	m.mu.Unlock()
	t.Self = vim.ManagedObjectReference{Type: "Task", Value: "task-" + strconv.FormatInt(n, 10)}
	t.job.Task = t.Self.Value
	now := time.Now()
	entity := j.Entity
	user := ""
	t.Info = vim.TaskInfo{
		Key: t.Self.Value, Task: t.Self,
		Name: j.Name, DescriptionId: j.DescriptionID,
		Entity: &entity, EntityName: j.EntityName,
		State: vim.TaskInfoStateRunning, Cancelable: j.Cancelable,
		QueueTime: now, StartTime: &now,
		EventChainId: int32(n), // Unverified: a vCenter's own is that of the task's first event
		ActivationId: operationID(n),
	}
	if rc != nil {
		if rc.Header.ID != "" {
			t.Info.ActivationId = rc.Header.ID
		}
		if rc.Session != nil {
			user = rc.Session.UserName
		}
		if rc.Context != nil {
			t.job.Cause = fault.CauseOf(rc)
		}
	} else {
		rc = m.context(m.ctx)
	}
	t.Info.Reason = &vim.TaskReasonUser{UserName: user}

	m.mu.Lock()
	if m.ctx.Err() != nil {
		m.mu.Unlock()
		return t // nobody will ever look
	}
	m.live[t.Self.Value], t.life = t, m.life
	m.history = append(m.history, t)
	if n := len(m.history) - m.cfg.Keep; n > 0 {
		m.history = slices.Delete(m.history, 0, n)
	}
	m.mu.Unlock()
	m.note(rc, t)
	if own {
		t.Info.State, t.Info.StartTime = vim.TaskInfoStateQueued, nil
	}
	m.vim.Put(t)
	m.mu.Lock()
	purged := m.live[t.Self.Value] != t
	m.mu.Unlock()
	if purged { // while it was not there yet
		m.remove([]*object{t})
	}
	m.changed(t)
	if own {
		return t
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ctx.Err() == nil { // Close waits for what is started before it
		m.wg.Go(func() { m.run(t) })
	}
	return t
}

// operationID is what TaskInfo.activationId says when the caller gave none: a
// vCenter then makes one of eight hex digits up.
func operationID(n int64) string {
	h := fnv.New32a()
	fmt.Fprint(h, n)
	return fmt.Sprintf("%08x", h.Sum32())
}

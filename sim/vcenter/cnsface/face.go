// Package cnsface serves the core of cloud native storage (package cns) at the
// CNS endpoint of a vCenter that vcsim simulates: SOAP at /vsanHealth, tasks in
// the vim25 inventory, disks in the hardware of its VMs. It stands in place of
// govmomi's cns/simulator.
package cnsface

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/vmware/govmomi/simulator"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/vcenter/cns"
	"github.com/csilab/csilab/sim/vcenter/task"
)

// Disks holds the content of volumes. Image ids are volume ids, snapshot ids
// are CNS's. sim/disk.Store is one.
type Disks interface {
	Create(id string, size int64) error
	Delete(id string) error
	Grow(id string, size int64) error
	Snapshot(id, snap string) error
	DeleteSnapshot(id, snap string) error
	Restore(id, snap, newID string, size int64) error
	Clone(id, newID string, size int64) error
	Revert(id, snap string) error
	Changed(id, since, snap string) ([]disk.Extent, error)
}

// Hardware plugs disks into nodes. VMs go by their BIOS uuid (lower case,
// dashed), disks by their page 83 id (32 lower case hex digits).
type Hardware interface {
	Attach(ctx context.Context, vmUUID, diskUUID, image string) error
	Detach(ctx context.Context, vmUUID, diskUUID string) error
	Resize(ctx context.Context, vmUUID, diskUUID string) error
}

// TaskCall is a task that is about to do its work.
type TaskCall = task.Call

// ErrLost, returned by Config.OnTask, leaves the task running for ever: its
// end is never reported.
var ErrLost = task.ErrLost

// TaskFault, returned by Config.OnTask, ends the task with a fault. With Result
// it is put on the result of the volume, in a task that succeeds.
type TaskFault = task.Fault

// Config of a face. The zero value serves CNS without content or nodes.
type Config struct {
	// Seed of all ids.
	Seed uint64
	// Disks holds content; nil keeps none.
	Disks Disks
	// Hardware plugs disks into nodes; nil plugs none.
	Hardware Hardware
	// Tasks runs the tasks. Nil: the face has a manager of its own, made of
	// the four fields below.
	Tasks *task.Manager
	// FirstTask, KeepTasks, Latency and OnTask are First, Keep, Latency and
	// OnTask of task.Config.
	FirstTask int64
	KeepTasks int
	Latency   map[string]time.Duration
	OnTask    task.Hook
	// SnapshotLimit per volume; 0 means cns.DefaultSnapshotLimit.
	SnapshotLimit int
	// DenseSlots has CNS use all 64 places of a paravirtual SCSI controller
	// instead of 15: 256 disks of a VM.
	DenseSlots bool
	// Version of the vCenter, which decides what CNS offers and how it answers;
	// empty means 8.0.3.
	Version string
	// Policies are the storage policy ids that exist; nil accepts all.
	Policies func(id string) bool
	// Compatible says why a datastore can't meet a storage policy, "" when it
	// can; nil: all can.
	Compatible func(policy, datastore string) string
	// DefaultPolicy is the storage policy that a datastore gives to what is made
	// on it without one, "" for none; nil: none has any.
	DefaultPolicy func(datastore string) string
	// Storage tells what the inventory doesn't about a datastore, by managed
	// object id; nil: nothing.
	Storage func(datastore string) Storage
	// HasTag says whether a tag exists in a category; nil takes all for there.
	HasTag func(category, name string) bool
	// State to start from (see Face.State), for a lab that is restarted.
	State *cns.State
	// Log for what goes wrong inside; nil drops it.
	Log *slog.Logger
}

// Face is a CNS endpoint. It is safe for concurrent use.
type Face struct {
	cfg Config
	log *slog.Logger
	ids ids

	release release

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	inv *inventory

	mu   sync.Mutex // guards core, never held across a wait
	core *cns.Core
	// occupied are the VMs that a task has, by managed object id; also under mu.
	occupied map[string]vim.ManagedObjectReference

	volumes keyed // one task at a time per volume
	vms     keyed // and one reconfiguration at a time per VM
	deletes deletes
	moves   moves
	tasks   *task.Manager
}

// New makes a face. Errors name the field of the configuration.
func New(cfg Config) (*Face, error) {
	if cfg.FirstTask < 0 {
		return nil, fmt.Errorf("cnsface: FirstTask is %d, allowed are 0 and more", cfg.FirstTask)
	}
	if cfg.KeepTasks < 0 {
		return nil, fmt.Errorf("cnsface: KeepTasks is %d, allowed are 0 and more", cfg.KeepTasks)
	}
	if cfg.SnapshotLimit < 0 {
		return nil, fmt.Errorf("cnsface: SnapshotLimit is %d, allowed are 0 and more", cfg.SnapshotLimit)
	}
	if cfg.Version == "" {
		cfg.Version = "8.0.3"
	}
	r, err := releaseOf(cfg.Version)
	if err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	f := &Face{cfg: cfg, log: cfg.Log, core: cns.New(cfg.SnapshotLimit), release: r}
	f.ids.seed = cfg.Seed
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f, nil
}

// Install puts the endpoint into a vCenter. Call it once, before requests are
// served and after the inventory (datastores, VMs) has been built; datastores
// and VMs that come later are found too.
func (f *Face) Install(s *simulator.Service) error {
	return f.install(s)
}

// Close ends all tasks that still run and waits for them.
func (f *Face) Close() {
	f.mu.Lock() // after this nothing is spawned
	f.cancel()
	f.mu.Unlock()
	if f.tasks != nil {
		f.tasks.Close()
	}
	f.wg.Wait()
}

// NextTask is what FirstTask has to be for a face that goes on from here.
func (f *Face) NextTask() int64 { return f.tasks.Issued() }

// State is a copy of everything that a face needs to go on after a restart.
func (f *Face) State() *cns.State {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.core.State()
}

// Volumes returns copies of all volumes, oldest first.
func (f *Face) Volumes() []cns.Volume {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.core.Volumes()
}

// Attachments returns all attachments, by volume id.
func (f *Face) Attachments() []cns.Attachment {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.core.Attachments()
}

// Snapshots returns all snapshots.
func (f *Face) Snapshots() []cns.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.core.Snapshots()
}

package vcenter_test

import (
	"context"
	"slices"
	"testing"

	cnstypes "github.com/vmware/govmomi/cns/types"
	vimfault "github.com/vmware/govmomi/fault"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter"
)

// ---- Tasks and how they are waited for. A driver keeps the id of its task and
// joins it again after a crash, a lost session or a deadline.

// again is a client with a session of its own.
func (r *rig) again() *client {
	r.t.Helper()
	c, err := cnsClient(r.ctx, login(r.t, r.v))
	r.ok(err)
	return c
}

// startOf starts a create and leaves it held.
func (r *rig) startOf(name string) (*object.Task, func()) {
	r.t.Helper()
	hold := r.v.HoldTasks("CnsCreateVolume")
	task, err := r.cns.CreateVolume(r.ctx, []cnstypes.CnsVolumeCreateSpec{volumeSpec(name)})
	r.ok(err)
	_, err = hold.Wait(r.ctx)
	r.ok(err)
	return task, hold.Release
}

// joined waits for a task that another client started.
func (r *rig) joined(c *client, task *object.Task) error {
	r.t.Helper()
	_, _, err := c.result(r.ctx, object.NewTask(c.Client.Client, task.Reference()), nil)
	return err
}

func Test2bTaskTellsItsOperation(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	ctx := context.WithValue(r.ctx, types.ID{}, "op-4711")
	task, err := r.cns.CreateVolume(ctx, []cnstypes.CnsVolumeCreateSpec{volumeSpec("pvc-1")})
	r.ok(err)
	info, err := task.WaitForResultEx(r.ctx)
	r.ok(err)
	if info.ActivationId != "op-4711" || info.Cancelable || info.EventChainId == 0 {
		t.Errorf("task %+v", info)
	}
	if err := task.Cancel(r.ctx); !vimfault.Is(err, &types.NotSupported{}) {
		t.Errorf("cancel: %v", err)
	}
}

func Test2bTaskNumbersCountUp(t *testing.T) {
	t.Parallel()
	dir, last := t.TempDir(), ""
	for range 3 {
		r := newRig(t, vcenter.Config{StateDir: dir})
		for range 2 {
			task, err := r.cns.CreateVolume(r.ctx, []cnstypes.CnsVolumeCreateSpec{volumeSpec("pvc-1")})
			r.ok(err)
			if id := task.Reference().Value; id <= last { // all have the same length
				t.Errorf("%s came after %s", id, last)
			} else {
				last = id
			}
		}
		r.v.Close()
	}
}

func Test2bCallsDoNotWaitForTasks(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	id := r.volume("pvc-0")
	_, release := r.startOf("pvc-1")
	defer release()
	vm, err := r.vm(r.ctx, r.v, "node-1")
	r.ok(err)
	_, err = r.attach(r.ctx, id, vm)
	r.ok(err)
	if n := len(r.matching(cnstypes.CnsQueryFilter{}).Volumes); n != 1 {
		t.Errorf("%d volumes while one is being made", n)
	}
}

func TestRow11PurgedCreateIsFoundByName(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	task, release := r.startOf("pvc-1")
	release()
	r.ok(r.joined(r.client, task))
	r.v.PurgeTasks()
	if err := r.joined(r.client, task); !vimfault.Is(err, &types.ManagedObjectNotFound{}) {
		t.Errorf("a purged task: %v", err)
	}
	if got := r.matching(cnstypes.CnsQueryFilter{Names: []string{"pvc-1"}, ContainerClusterIds: []string{"cluster-1"}}).Volumes; len(got) != 1 {
		t.Errorf("found by name: %v", got)
	}
}

func TestRow12DeadlineOfTheWait(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	task, release := r.startOf("pvc-1")
	short, cancel := context.WithCancel(r.ctx)
	cancel()
	if _, err := task.WaitForResultEx(short); err == nil {
		t.Error("a held task has ended")
	}
	release()
	r.ok(r.joined(r.client, task))
	if n := len(r.v.Volumes()); n != 1 {
		t.Errorf("%d volumes", n)
	}
}

func TestRow13SessionKilledWhileItWaits(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	task, release := r.startOf("pvc-1")
	ended := make(chan error, 1)
	go func() { _, err := task.WaitForResultEx(r.ctx); ended <- err }()
	r.v.KillSessions()
	if err := <-ended; !vimfault.Is(err, &types.NotAuthenticated{}) {
		t.Errorf("the wait: %v", err)
	}
	// The task goes on. Who starts anew instead of joining it makes a second
	// volume of that name.
	release()
	c := r.again()
	r.ok(r.joined(c, task))
	_, err := c.create(r.ctx, "pvc-1")
	r.ok(err)
	if n := len(r.v.Volumes()); n != 2 {
		t.Errorf("%d volumes", n)
	}
}

func TestRow14DriverDiesWhileItWaits(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	task, release := r.startOf("pvc-1")
	r.CloseIdleConnections()
	release()
	r.ok(r.joined(r.again(), task))
	if n := len(r.v.Volumes()); n != 1 {
		t.Errorf("%d volumes", n)
	}
}

func TestRow15ViewOfAKilledSession(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	lv := listOf(r.ctx, t, r.Client.Client, nil)
	task, release := r.startOf("pvc-1")
	defer release()
	r.v.KillSessions()
	if _, err := lv.Add(r.ctx, []moref{task.Reference()}); !vimfault.Is(err, &types.NotAuthenticated{}) {
		t.Errorf("the old view: %v", err)
	}
	c := r.again()
	if un, err := listOf(r.ctx, t, c.Client.Client, nil).Add(r.ctx, []moref{task.Reference()}); err != nil || len(un) != 0 {
		t.Errorf("a new view: %v, %v", un, err)
	}
}

func TestRow26PurgedDelete(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	id := r.volume("pvc-1")
	task, err := r.cns.DeleteVolume(r.ctx, []cnstypes.CnsVolumeId{volumeID(id)}, true)
	r.ok(r.outcome(task, err))
	r.v.PurgeTasks(task.Reference().Value)
	if err := r.joined(r.client, task); !vimfault.Is(err, &types.ManagedObjectNotFound{}) {
		t.Errorf("a purged task: %v", err)
	}
	r.refused(r.delete(r.ctx, id), "NotFound")
}

func TestRow47PurgedExtend(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	id := r.volume("pvc-1")
	task, err := r.cns.ExtendVolume(r.ctx, []cnstypes.CnsVolumeExtendSpec{{VolumeId: volumeID(id), CapacityInMb: 5000}})
	r.ok(r.outcome(task, err))
	r.v.PurgeTasks(task.Reference().Value)
	if err := r.joined(r.client, task); !vimfault.Is(err, &types.ManagedObjectNotFound{}) {
		t.Errorf("a purged task: %v", err)
	}
	got := r.matching(cnstypes.CnsQueryFilter{VolumeIds: []cnstypes.CnsVolumeId{volumeID(id)}}).Volumes
	if mb := got[0].BackingObjectDetails.GetCnsBackingObjectDetails().CapacityInMb; mb != 5000 {
		t.Errorf("capacity %d", mb)
	}
}

func TestRow61UnresolvedInAView(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	task, release := r.startOf("pvc-1")
	lv := listOf(r.ctx, t, r.Client.Client, []moref{task.Reference()})
	r.v.PurgeTasks(task.Reference().Value)
	release()
	if un, err := lv.Add(r.ctx, []moref{task.Reference()}); err != nil || !slices.Equal(un, []moref{task.Reference()}) {
		t.Errorf("unresolved %v, %v", un, err)
	}
}

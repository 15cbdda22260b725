package cnsface_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/vmware/govmomi/cns/methods"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cnsface"
)

func (l *lab) task(t *object.Task) vim.TaskInfo {
	l.t.Helper()
	var m mo.Task
	if err := l.vc.RetrieveOne(l.ctx, t.Reference(), []string{"info"}, &m); err != nil {
		l.t.Fatal(err)
	}
	return m.Info
}

func TestTaskInfo(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	id := l.create("a", 1)
	ctx := context.WithValue(l.ctx, vim.ID{}, "op-4711")
	task, err := l.cns.AttachVolume(ctx, attachSpec(id, l.vms[0].Reference()))
	if err != nil {
		t.Fatal(err)
	}
	l.ok(l.wait(task, nil))
	info := l.task(task)
	if info.Name != "" || info.DescriptionId != "com.vmware.cns.tasks.attachvolume" || info.EntityName != l.vms[0].Name() || info.ActivationId != "op-4711" || *info.Entity != l.vms[0].Reference() ||
		info.State != vim.TaskInfoStateSuccess || info.CompleteTime == nil || info.StartTime == nil || info.Reason.(*vim.TaskReasonUser).UserName == "" {
		t.Errorf("task %+v", info)
	}
	if err := task.Cancel(l.ctx); err == nil || !strings.Contains(err.Error(), "not supported") {
		t.Errorf("cancel: %v", err)
	}
}

func TestTasksArePruned(t *testing.T) {
	t.Parallel()
	l := newLab(t, func(c *cnsface.Config) { c.KeepTasks = 3 })
	var tasks []*object.Task
	for i := range 5 {
		task, err := l.cns.CreateVolume(l.ctx, []cnstypes.CnsVolumeCreateSpec{l.spec(fmt.Sprint("pvc-", i), 1)})
		l.ok(l.wait(task, err))
		tasks = append(tasks, task)
	}
	var m mo.Task
	err := l.vc.RetrieveOne(l.ctx, tasks[0].Reference(), []string{"info"}, &m)
	if _, ok := soapFaultOf(err).(vim.ManagedObjectNotFound); !ok {
		t.Errorf("the oldest task: %v", err)
	}
	l.task(tasks[4])
}

// TestSideBySide: many clients at once, and each volume attached at most once.
func TestSideBySide(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	id := l.create("contended", 1)
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := 0
	for i := range 8 {
		wg.Go(func() {
			own := l.tryCreate(l.spec(fmt.Sprint("own-", i), 1))
			if k, text := own.fault(); k != "" {
				t.Errorf("create: %s %s", k, text)
				return
			}
			mine := own.r.GetCnsVolumeOperationResult().VolumeId.Id
			vm := l.vms[i%len(l.vms)]
			for _, o := range []outcome{l.attach(mine, vm), l.snapshot(mine, "s"), l.detach(mine, vm)} {
				if k, text := o.fault(); k != "" {
					t.Errorf("%s %s", k, text)
				}
			}
			switch k, _ := l.attach(id, vm).fault(); k {
			case "":
				mu.Lock()
				won++
				mu.Unlock()
			case inUse:
			default:
				t.Errorf("attach: %s", k)
			}
		})
	}
	wg.Wait()
	holders := 0
	for _, vm := range l.vms {
		holders += len(l.disksOf(vm))
	}
	if won != 1 || holders != 1 || len(l.face.Attachments()) != 1 || len(l.nodes.list()) != 1 {
		t.Errorf("%d won, %d disks in VMs, %d attachments, %d disks in nodes", won, holders, len(l.face.Attachments()), len(l.nodes.list()))
	}
}

// TestSecondDelete: a delete that comes while another runs is no fault; one
// that comes later is.
func TestSecondDelete(t *testing.T) {
	t.Parallel()
	gate := make(chan struct{})
	l := newLab(t, func(c *cnsface.Config) {
		c.OnTask = func(ctx context.Context, c cnsface.TaskCall, commit func(context.Context) error) error {
			if c.Op == "CnsDeleteVolume" {
				<-gate
			}
			return commit(ctx)
		}
	})
	id := l.create("a", 1)
	var tasks []*object.Task
	for range 2 {
		task, err := l.cns.DeleteVolume(l.ctx, []cnstypes.CnsVolumeId{{Id: id}}, true)
		if err != nil {
			t.Fatal(err)
		}
		tasks = append(tasks, task)
	}
	close(gate)
	for _, task := range tasks {
		l.ok(l.wait(task, nil))
	}
	l.refused(notFound, l.delete(id))
}

func TestOnTask(t *testing.T) {
	t.Parallel()
	var do func(ctx context.Context, c cnsface.TaskCall, commit func(context.Context) error) error
	var calls []cnsface.TaskCall
	l := newLab(t, func(c *cnsface.Config) {
		c.OnTask = func(ctx context.Context, c cnsface.TaskCall, commit func(context.Context) error) error {
			calls = append(calls, c)
			return do(ctx, c, commit)
		}
	})
	pass := func(ctx context.Context, _ cnsface.TaskCall, commit func(context.Context) error) error {
		return commit(ctx)
	}
	fail := &cnsface.TaskFault{Fault: &vim.HostNotConnected{}, Message: "The host is not connected."}

	do = func(context.Context, cnsface.TaskCall, func(context.Context) error) error { return fail }
	if text := l.refused("task *types.HostNotConnected", l.tryCreate(l.spec("a", 1))); !strings.Contains(text, "host is not connected") || len(l.face.Volumes()) != 0 {
		t.Errorf("before: %q, %d volumes", text, len(l.face.Volumes()))
	}
	do = func(ctx context.Context, _ cnsface.TaskCall, commit func(context.Context) error) error {
		if err := commit(ctx); err != nil {
			return err
		}
		return fail
	}
	l.refused("task *types.HostNotConnected", l.tryCreate(l.spec("a", 1)))
	vs := l.face.Volumes()
	if len(vs) != 1 {
		t.Fatalf("after: %d volumes", len(vs))
	}
	result := *fail
	result.Result = true
	do = func(context.Context, cnsface.TaskCall, func(context.Context) error) error { return &result }
	l.refused("types.HostNotConnected", l.attach(vs[0].ID, l.vms[0]))
	// Some faults of real CNS are nothing but a text (kubernetes-csi/external-attacher#460).
	bare := cnsface.TaskFault{Message: "fault.CnsNotRegisteredFault.summary", Result: true}
	do = func(context.Context, cnsface.TaskCall, func(context.Context) error) error { return &bare }
	if text := l.refused("<nil>", l.attach(vs[0].ID, l.vms[0])); text != bare.Message {
		t.Errorf("text %q", text)
	}
	do = func(context.Context, cnsface.TaskCall, func(context.Context) error) error { return errors.New("other") }
	l.refused("task *types.SystemError", l.delete(vs[0].ID))
	do = func(context.Context, cnsface.TaskCall, func(context.Context) error) error { return nil }
	l.refused("task *types.SystemError", l.delete(vs[0].ID))

	do = func(ctx context.Context, _ cnsface.TaskCall, commit func(context.Context) error) error {
		_ = commit(ctx)
		return fmt.Errorf("gone: %w", cnsface.ErrLost)
	}
	task, err := l.cns.DeleteVolume(l.ctx, []cnstypes.CnsVolumeId{{Id: vs[0].ID}}, true)
	if err != nil {
		t.Fatal(err)
	}
	poll(t, "the delete to happen", func() bool { return len(l.face.Volumes()) == 0 })
	if s := l.task(task).State; s != vim.TaskInfoStateRunning {
		t.Errorf("the lost task is %s", s)
	}
	// A refusal reaches the hook as an error, and the client as it is.
	var seen error
	do = func(ctx context.Context, _ cnsface.TaskCall, commit func(context.Context) error) error {
		seen = commit(ctx)
		return seen
	}
	// The delete before may be running still: beside it this one passes.
	poll(t, "a refusal", func() bool {
		kind, _ := l.delete(vs[0].ID).fault()
		return kind == notFound
	})
	if seen == nil {
		t.Error("the hook saw no error")
	}
	do = pass
	if c := calls[2]; c.Op != "CnsAttachVolume" || c.Volume != vs[0].ID || c.VM != l.vms[0].Reference().Value || c.Task == "" {
		t.Errorf("call %+v", c)
	}
}

// TestPanic: no request, and nothing behind the face, ends the process.
func TestPanic(t *testing.T) {
	t.Parallel()
	l := newLab(t, func(c *cnsface.Config) {
		c.OnTask = func(context.Context, cnsface.TaskCall, func(context.Context) error) error { panic("in a task") }
	})
	l.refused("task *types.SystemError", l.tryCreate(l.spec("a", 1)))

	l = newLab(t)
	cns := []soap.HasFault{
		&methods.CnsCreateVolumeBody{Req: &cnstypes.CnsCreateVolume{CreateSpecs: []cnstypes.CnsVolumeCreateSpec{{}}}},
		&methods.CnsAttachVolumeBody{Req: &cnstypes.CnsAttachVolume{AttachSpecs: []cnstypes.CnsVolumeAttachDetachSpec{{}}}},
		&methods.CnsDetachVolumeBody{Req: &cnstypes.CnsDetachVolume{DetachSpecs: []cnstypes.CnsVolumeAttachDetachSpec{{}}}},
		&methods.CnsDeleteVolumeBody{Req: &cnstypes.CnsDeleteVolume{VolumeIds: []cnstypes.CnsVolumeId{{}}}},
		&methods.CnsExtendVolumeBody{Req: &cnstypes.CnsExtendVolume{ExtendSpecs: []cnstypes.CnsVolumeExtendSpec{{}}}},
		&methods.CnsUpdateVolumeBody{Req: &cnstypes.CnsUpdateVolumeMetadata{UpdateSpecs: []cnstypes.CnsVolumeMetadataUpdateSpec{{}}}},
		&methods.CnsQueryVolumeBody{Req: &cnstypes.CnsQueryVolume{}},
		&methods.CnsQueryAllVolumeBody{Req: &cnstypes.CnsQueryAllVolume{}},
		&methods.CnsQueryAsyncBody{Req: &cnstypes.CnsQueryAsync{}},
		&methods.CnsQueryVolumeInfoBody{Req: &cnstypes.CnsQueryVolumeInfo{}},
		&methods.CnsCreateSnapshotsBody{Req: &cnstypes.CnsCreateSnapshots{}},
		&methods.CnsDeleteSnapshotBody{Req: &cnstypes.CnsDeleteSnapshots{}},
		&methods.CnsQuerySnapshotsBody{Req: &cnstypes.CnsQuerySnapshots{}},
	}
	for _, req := range cns {
		err := l.call(req)
		if err != nil && !soap.IsSoapFault(err) {
			t.Errorf("%T: %v", req, err)
		}
	}
	l.create("still here", 1)
}

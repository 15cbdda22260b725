package vsphere_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/vmware/govmomi"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csilab/csilab/driver/record"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/vcenter"
)

// calls counts those of the driver to an API method.
func (r *rig) calls(op string) int {
	return len(r.led.Entries(ledger.OnHop(ledger.VCenter, op), func(e ledger.Entry) bool { return e.Component == "driver-controller" }))
}

func slow(op string, d time.Duration) vcenter.Config {
	return vcenter.Config{Seed: 5, TaskLatency: map[string]time.Duration{op: d}}
}

// needRecentTasks skips where the lab's vCenter doesn't list tasks of CNS in
// TaskManager.recentTask, as a real one does: without it a task whose name was
// lost can't be found before it ends.
func (r *rig) needRecentTasks() {
	r.t.Helper()
	r.create("probe")
	c, err := govmomi.NewClient(r.ctx, r.vc.URL(), true)
	if err != nil {
		r.t.Fatal(err)
	}
	defer c.Logout(r.ctx)
	var tm mo.TaskManager
	if err := c.RetrieveOne(r.ctx, *c.ServiceContent.TaskManager, []string{"recentTask"}, &tm); err != nil {
		r.t.Fatal(err)
	}
	if err := r.delete(r.vc.Volumes()[0].ID); err != nil {
		r.t.Fatal(err)
	}
	for _, ref := range tm.RecentTask {
		var task mo.Task
		if err := c.RetrieveOne(r.ctx, ref, []string{"info"}, &task); err == nil && strings.HasPrefix(task.Info.ActivationId, "csi/cluster-1/create/probe/") {
			return
		}
	}
	r.t.Skip("tasks of CNS are not in TaskManager.recentTask")
}

func (r *rig) wantVolumes(n, creates int) {
	r.t.Helper()
	if got := len(r.vc.Volumes()); got != n {
		r.t.Errorf("%d volumes, want %d", got, n)
	}
	if got := r.calls("CnsCreateVolume"); got != creates {
		r.t.Errorf("%d calls of CnsCreateVolume, want %d", got, creates)
	}
}

// waitCalls waits until the method has answered n times.
func (r *rig) waitCalls(op string, n int) {
	r.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		es := r.led.Entries(ledger.OnHop(ledger.VCenter, op))
		if len(es) >= n && es[n-1].Outcome != ledger.Pending {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("%s was not called", op)
		}
		time.Sleep(time.Millisecond)
	}
}

// A caller that gives up leaves the task; the next one joins it.
// kubernetes-sigs/vsphere-csi-driver PR #4258
func TestCreateOutlivesCaller(t *testing.T) {
	r := newRig(t, slow("CnsCreateVolume", 400*time.Millisecond), nil)
	ctx, cancel := context.WithTimeout(r.ctx, 200*time.Millisecond)
	defer cancel()
	_, err := r.CreateVolume(ctx, createRequest("pvc-1", 1<<30))
	want(t, err, codes.DeadlineExceeded)
	r.create("pvc-1")
	r.wantVolumes(1, 1)
}

// Upstream makes a second volume here.
func TestCreateOutlivesSession(t *testing.T) {
	r := newRig(t, slow("CnsCreateVolume", 300*time.Millisecond), nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.waitCalls("CnsCreateVolume", 1)
		r.vc.KillSessions()
	}()
	r.create("pvc-1")
	<-done
	r.wantVolumes(1, 1)
}

// The driver is killed while the task runs, and its records are lost too.
func TestCreateOutlivesDriverAndRecords(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("records lost %v", lost), func(t *testing.T) {
			r := newRig(t, slow("CnsCreateVolume", 500*time.Millisecond), nil)
			if lost {
				r.needRecentTasks()
			}
			before := r.calls("CnsCreateVolume")
			done := make(chan error)
			go func() {
				_, err := r.CreateVolume(r.ctx, createRequest("pvc-1", 1<<30))
				done <- err
			}()
			r.waitCalls("CnsCreateVolume", before+1)
			r.kill()
			want(t, <-done, codes.Canceled)
			if lost {
				r.records = record.NewMemory()
			}
			r.restart()
			r.create("pvc-1")
			r.wantVolumes(1, before+1)
		})
	}
}

// The reply that names the task is lost while the task runs on.
func TestStartReplyLost(t *testing.T) {
	r := newRig(t, slow("CnsCreateVolume", 300*time.Millisecond), nil)
	r.needRecentTasks()
	r.plan.Arm(fault.Rule{Hop: ledger.VCenter, Op: "CnsCreateVolume", Phase: fault.After, First: 1, Do: fault.Drop()})
	r.create("pvc-1")
	r.wantVolumes(1, 2)
}

// A vCenter that restarts marks its tasks as failed, whatever they did.
// kubernetes-sigs/vsphere-csi-driver PR #2571
func TestTaskFailsAfterCommit(t *testing.T) {
	r := newRig(t, vcenter.Config{Seed: 6}, nil)
	boom := fault.Error(&vcenter.Fault{Fault: &types.SystemError{Reason: "vCenter restarted"}, Message: "A general system error occurred"})
	for _, op := range []string{"CnsCreateVolume", "CnsAttachVolume", "CnsCreateSnapshots", "CnsDeleteSnapshots", "CnsExtendVolume", "CnsDetachVolume", "CnsDeleteVolume"} {
		r.plan.Arm(fault.Rule{Hop: ledger.VCenter, Op: "task:" + op, Phase: fault.After, First: 1, Do: boom})
	}
	if err := r.lifecycle("pvc-1"); err != nil {
		t.Fatal(err)
	}
	// Each is called once for the volume; the clone and the second node add theirs.
	for op, n := range map[string]int{"CnsCreateVolume": 2, "CnsAttachVolume": 2, "CnsCreateSnapshots": 1, "CnsExtendVolume": 1} {
		if got := r.calls(op); got != n {
			t.Errorf("%s called %d times, want %d", op, got, n)
		}
	}
}

// A task that the vCenter has purged says nothing; the backend does.
func TestTaskPurged(t *testing.T) {
	for _, done := range []bool{true, false} {
		t.Run(fmt.Sprintf("done %v", done), func(t *testing.T) {
			r := newRig(t, vcenter.Config{Seed: 8}, nil)
			vol := r.create("pvc-1")
			if done {
				if _, err := r.publish(vol, r.vc.VMUUID("node-1")); err != nil {
					t.Fatal(err)
				}
			}
			err := r.records.Put(r.ctx, record.Record{Key: "volume/" + vol, Op: "attach-volume", Backend: "127.0.0.1", Task: "task-77", Began: time.Now()})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.publish(vol, r.vc.VMUUID("node-1")); err != nil {
				t.Fatal(err)
			}
			if n := r.calls("CnsAttachVolume"); n != 1 {
				t.Errorf("%d attaches, want 1", n)
			}
		})
	}
}

// The snapshot is cut, a later step fails, and the fault names it.
// kubernetes-sigs/vsphere-csi-driver PR #2720
func TestSnapshotCreatedFault(t *testing.T) {
	r := newRig(t, vcenter.Config{Seed: 9}, nil)
	vol := r.create("pvc-1")
	r.plan.Arm(fault.Rule{Hop: ledger.VCenter, Op: "task:CnsCreateSnapshots", Phase: fault.After, First: 1,
		Do: fault.Func("created fault", func(context.Context, fault.Call) error {
			id := r.vc.Snapshots()[0].ID
			return &vcenter.Fault{Result: true, Fault: &cnstypes.CnsSnapshotCreatedFault{VolumeId: cnstypes.CnsVolumeId{Id: vol}, SnapshotId: cnstypes.CnsSnapshotId{Id: id},
				Datastore: types.ManagedObjectReference{Type: "Datastore", Value: "datastore-1"}}}
		})})
	snap, err := r.snapshot("snap-1", vol)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(r.vc.Snapshots()); n != 1 || snap.GetSnapshotId() != vol+"+"+r.vc.Snapshots()[0].ID {
		t.Errorf("%d snapshots, got %s", n, snap.GetSnapshotId())
	}
}

// Faults of results and tasks become the codes of the specification, and keep
// the backend's reason.
func TestFaultCodes(t *testing.T) {
	cns := func(reason string, cause types.BaseMethodFault) *cnstypes.CnsFault {
		f := &cnstypes.CnsFault{Reason: reason}
		if cause != nil {
			f.FaultCause = &types.LocalizedMethodFault{Fault: cause}
		}
		return f
	}
	r := newRig(t, vcenter.Config{Seed: 10}, nil)
	vol := r.create("pvc-0")
	node := r.vc.VMUUID("node-1")
	create := func() error {
		_, err := r.CreateVolume(r.ctx, createRequest("pvc-fails", 1<<30))
		return err
	}
	attach := func() error { _, err := r.publish(vol, node); return err }
	detach := func() error { return r.unpublish(vol, node) }
	expand := func() error {
		_, err := r.ControllerExpandVolume(r.ctx, &csi.ControllerExpandVolumeRequest{VolumeId: vol, CapacityRange: &csi.CapacityRange{RequiredBytes: 9 << 30}})
		return err
	}
	for _, x := range []struct {
		op     string
		call   func() error
		fault  types.BaseMethodFault
		result bool
		code   codes.Code
		says   string
	}{
		{"CnsCreateVolume", create, &types.NoDiskSpace{Datastore: "datastore-1"}, true, codes.ResourceExhausted, "NoDiskSpace"},
		{"CnsCreateVolume", create, cns("VSLM task failed", nil), true, codes.Internal, "VSLM task failed"},
		{"CnsCreateVolume", create, cns("no room", &types.NoDiskSpace{Datastore: "datastore-1"}), true, codes.ResourceExhausted, "no room"},
		{"CnsCreateVolume", create, &types.NoPermission{PrivilegeId: "Datastore.FileManagement"}, false, codes.PermissionDenied, "NoPermission"},
		{"CnsCreateVolume", create, &types.ManagedObjectNotFound{}, true, codes.Internal, "ManagedObjectNotFound"},
		{"CnsAttachVolume", attach, &types.InvalidState{}, false, codes.FailedPrecondition, "InvalidState"},
		{"CnsAttachVolume", attach, cns("missing SCSI controller", nil), true, codes.ResourceExhausted, "missing SCSI controller"},
		{"CnsAttachVolume", attach, cns("", &types.NotSupported{}), true, codes.Internal, "NotSupported"},
		{"CnsAttachVolume", attach, &types.TaskInProgress{}, true, codes.Unavailable, "TaskInProgress"},
		{"CnsAttachVolume", attach, &types.HostNotConnected{}, true, codes.Unavailable, "HostNotConnected"},
		{"CnsExtendVolume", expand, cns("no room", &types.NoDiskSpace{}), true, codes.ResourceExhausted, "no room"},
		{"CnsDetachVolume", detach, cns("device busy", nil), true, codes.Internal, "device busy"},
		{"CnsDetachVolume", detach, &types.NotFound{}, true, codes.Internal, "node-1"},
	} {
		name := fmt.Sprintf("%s %T", x.op, x.fault)
		t.Run(name, func(t *testing.T) {
			if x.op == "CnsDetachVolume" {
				if err := attach(); err != nil {
					t.Fatal(err)
				}
			}
			r.plan.Arm(fault.Rule{Name: name, Hop: ledger.VCenter, Op: "task:" + x.op, First: 1, Do: fault.Error(&vcenter.Fault{Fault: x.fault, Result: x.result})})
			want(t, x.call(), x.code, x.says)
			if x.op == "CnsDetachVolume" {
				if err := detach(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	r.wantVolumes(1, 6)
}

// Calls at once for one name make one volume; who comes second is told to come
// again.
func TestConcurrentCreate(t *testing.T) {
	r := newRig(t, slow("CnsCreateVolume", 20*time.Millisecond), nil)
	ids := make([]string, 16)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			for {
				res, err := r.CreateVolume(r.ctx, createRequest("pvc-1", 1<<30))
				if status.Code(err) == codes.Aborted {
					time.Sleep(time.Millisecond)
					continue
				}
				if err != nil {
					t.Error(err)
				}
				ids[i] = res.GetVolume().GetVolumeId()
				return
			}
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id == "" || id != ids[0] {
			t.Errorf("ids %v", ids)
			break
		}
	}
	r.wantVolumes(1, 1)
}

package task_test

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/task"
)

// bare is a manager on an inventory without a server.
func bare(t *testing.T, cfg task.Config) (*task.Manager, *simulator.Service) {
	t.Helper()
	m := simulator.VPX()
	m.Datacenter, m.Cluster, m.Host, m.Machine = 1, 0, 0, 0
	if err := m.Create(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Remove)
	tm, err := task.New(m.Service, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tm.Close)
	return tm, m.Service
}

var root = vim.ManagedObjectReference{Type: "Folder", Value: "group-d1"}

// api is what clients call on a task.
type api interface {
	CancelTask(*simulator.Context, *vim.CancelTask) soap.HasFault
	SetTaskState(*simulator.Context, *vim.SetTaskState) soap.HasFault
	UpdateProgress(*simulator.Context, *vim.UpdateProgress) soap.HasFault
	Lock()
	Unlock()
}

func faultOf(res soap.HasFault) any {
	if f := res.Fault(); f != nil {
		return f.Detail.Fault
	}
	return nil
}

func (c call) cancel() any {
	c.Lock()
	defer c.Unlock()
	return faultOf(c.CancelTask(nil, &vim.CancelTask{}))
}

type call struct{ api }

func objectOf(svc *simulator.Service, ref vim.ManagedObjectReference) call {
	return call{svc.Context.Map.Get(ref).(api)}
}

// TestCancel: a task that can be cancelled ends with RequestCanceled, whether
// it is held, waits for its time or is at work.
func TestCancel(t *testing.T) {
	work := func(ctx context.Context, _ *simulator.Context) (vim.AnyType, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for name, prepare := range map[string]func(*task.Manager){
		"at work": func(*task.Manager) {},
		"held":    func(m *task.Manager) { m.Hold("CloneVM_Task") },
		"delayed": func(m *task.Manager) { m.SetLatency("CloneVM_Task", time.Hour) },
	} {
		m, svc := bare(t, task.Config{})
		prepare(m)
		ref := m.Start(nil, task.Job{Call: task.Call{Op: "CloneVM_Task"}, Entity: root, Cancelable: true, Work: work})
		o := objectOf(svc, ref)
		if f := o.cancel(); f != nil {
			t.Errorf("%s: %T", name, f)
		}
		m.Wait()
		info, _ := m.Info(ref.Value)
		if info.Error == nil || !info.Cancelled || info.State != vim.TaskInfoStateError {
			t.Fatalf("%s: %+v", name, info)
		}
		if _, ok := info.Error.Fault.(*vim.RequestCanceled); !ok {
			t.Errorf("%s: %T", name, info.Error.Fault)
		}
		if _, ok := o.cancel().(*vim.InvalidState); !ok {
			t.Errorf("%s: cancelled twice: %T", name, o.cancel())
		}
	}
	m, svc := bare(t, task.Config{})
	hold := m.Hold()
	ref := m.Start(nil, task.Job{Call: task.Call{Op: "CnsCreateVolume"}, Entity: root, Work: work})
	if _, ok := objectOf(svc, ref).cancel().(*vim.NotSupported); !ok {
		t.Error("a task that can't be cancelled was")
	}
	_ = hold
}

// TestOutcomes: how a task ends.
func TestOutcomes(t *testing.T) {
	fault := &vim.LocalizedMethodFault{Fault: &vim.HostNotConnected{}, LocalizedMessage: "gone"}
	for name, row := range map[string]struct {
		work  task.Work
		fault any
	}{
		"done": {func(context.Context, *simulator.Context) (vim.AnyType, error) { return "x", nil }, nil},
		"refused": {func(context.Context, *simulator.Context) (vim.AnyType, error) {
			return "x", &task.Refused{Err: errors.New("no")}
		}, nil},
		"fault": {func(context.Context, *simulator.Context) (vim.AnyType, error) { return nil, &task.Error{Fault: fault} }, &vim.HostNotConnected{}},
		"error": {func(context.Context, *simulator.Context) (vim.AnyType, error) { return nil, errors.New("x") }, &vim.SystemError{Reason: "x"}},
		"panic": {func(context.Context, *simulator.Context) (vim.AnyType, error) { panic("x") }, &vim.SystemError{Reason: "x"}},
	} {
		m, _ := bare(t, task.Config{})
		after := false
		ref := m.Start(nil, task.Job{Entity: root, Work: row.work, After: func() { after = true }})
		m.Wait()
		info, _ := m.Info(ref.Value)
		switch {
		case !after:
			t.Errorf("%s: After was not called", name)
		case row.fault == nil:
			if info.State != vim.TaskInfoStateSuccess || info.Result != "x" || info.CompleteTime == nil {
				t.Errorf("%s: %+v", name, info)
			}
		case info.State != vim.TaskInfoStateError || info.Error == nil:
			t.Errorf("%s: %+v", name, info)
		default:
			if got, want := typeOf(info.Error.Fault), typeOf(row.fault); got != want {
				t.Errorf("%s: %s, want %s", name, got, want)
			}
		}
	}
}

// TestNothingPilesUp: what is over is forgotten, by number and by age.
func TestNothingPilesUp(t *testing.T) {
	m, svc := bare(t, task.Config{Keep: 10, KeepFor: time.Minute})
	nothing := func(context.Context, *simulator.Context) (vim.AnyType, error) { return nil, nil }
	for range 100 {
		m.Start(nil, task.Job{Entity: root, Work: nothing})
	}
	m.Wait()
	if n := len(m.List()); n != 10 {
		t.Errorf("%d tasks", n)
	}
	n := 0
	for _, o := range svc.Context.Map.AllReference("Task") {
		if _, ok := task.InfoOf(o); ok {
			n++
		}
	}
	if n != 10 || m.Issued() != 100 {
		t.Errorf("%d in the inventory, %d issued", n, m.Issued())
	}
	f := svc.Context.Map.Get(root).(*simulator.Folder)
	if n := len(f.RecentTask); n > 200 {
		t.Errorf("%d recent tasks of the root folder", n)
	}
	for name, cfg := range map[string]task.Config{"First": {First: -1}, "Keep": {Keep: -1}, "Latency": {Latency: map[string]time.Duration{"x": -1}}} {
		if _, err := task.New(svc, cfg); err == nil {
			t.Errorf("%s below 0", name)
		}
	}
}

// TestAge: the timer that forgets, in virtual time.
func TestAge(t *testing.T) {
	model := simulator.VPX()
	model.Datacenter, model.Cluster, model.Host, model.Machine = 1, 0, 0, 0
	if err := model.Create(); err != nil { // its goroutines stay outside
		t.Fatal(err)
	}
	defer model.Remove()
	synctest.Test(t, func(t *testing.T) {
		m, err := task.New(model.Service, task.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		nothing := func(context.Context, *simulator.Context) (vim.AnyType, error) { return nil, nil }
		for range 3 {
			m.Start(nil, task.Job{Entity: root, Work: nothing})
			time.Sleep(4 * time.Minute)
		}
		// They ended at 0, 4 and 8 minutes; it is 12.
		if n := len(m.List()); n != 2 {
			t.Errorf("%d tasks", n)
		}
		time.Sleep(7 * time.Minute)
		if n := len(m.List()); n != 0 {
			t.Errorf("%d tasks", n)
		}
	})
}

func typeOf(f any) string { return reflect.TypeOf(f).String() }

package vcenter_test

import (
	"slices"
	"strings"
	"testing"

	cnstypes "github.com/vmware/govmomi/cns/types"
	vimfault "github.com/vmware/govmomi/fault"
	"github.com/vmware/govmomi/vapi/rest"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	vctask "github.com/csilab/csilab/sim/vcenter/task"
)

// kindOf makes a rule of a kind, for the next call.
func kindOf(t *testing.T, kind string, at fault.Rule, params any) fault.Rule {
	t.Helper()
	k, ok := fault.Lookup(kind)
	if !ok {
		t.Fatalf("no kind %s", kind)
	}
	at.Name, at.Hop, at.Nth = kind, ledger.VCenter, 1
	r, err := k.Rule(at, params)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A duplicate is a request of its own: of a create there are two tasks, and the
// caller waits for that of the reply that it got.
func TestDuplicateDeliveries(t *testing.T) {
	for _, reply := range []string{"first", "second"} {
		t.Run(reply, func(t *testing.T) {
			v, c, in := lab(t)
			in.Plan.Arm(kindOf(t, "duplicate", fault.Rule{Op: "CnsCreateVolume"}, &fault.DuplicateParams{Reply: reply}))
			if _, err := c.create(t.Context(), "a"); err != nil {
				t.Error(err)
			}
			eventually(t, func() bool { return len(v.Volumes()) == 2 }, "two volumes of one name")
			if es := entries(in, "CnsCreateVolume"); len(es) != 2 || es[1].Cause != es[0].Seq || es[0].Fault != "duplicate" {
				t.Errorf("%+v", es)
			}
			if _, err := c.create(t.Context(), "b"); err != nil || len(v.Volumes()) != 3 {
				t.Errorf("cleared: %v, %d volumes", err, len(v.Volumes()))
			}
		})
	}
	t.Run("REST", func(t *testing.T) {
		v, c, in := lab(t)
		in.Plan.Arm(kindOf(t, "duplicate", fault.Rule{Op: "POST /rest/*"}, &fault.DuplicateParams{}))
		r := rest.NewClient(c.Client.Client)
		if err := r.Login(t.Context(), v.URL().User); err != nil {
			t.Fatal(err)
		}
		if s, err := r.Session(t.Context()); err != nil || s == nil {
			t.Errorf("the session of the second reply: %v, %v", s, err)
		}
		n := 0
		for _, s := range v.SessionList() {
			if s.Kind == "REST" {
				n++
			}
		}
		if n != 2 {
			t.Errorf("%d sessions of REST", n)
		}
	})
}

func TestErrorsByName(t *testing.T) {
	for _, tc := range []struct {
		code, want string
	}{
		{"HTTP503", "503"},
		{"EmptyFault", ""},
		{"CnsVolumeNotFoundFault", "CnsVolumeNotFoundFault"},
		{"ResourceInUse", "in use"},
		{"VslmFault", ""},
	} {
		_, c, in := lab(t)
		in.Plan.Arm(kindOf(t, "error", fault.Rule{Op: "CnsCreateVolume"}, &fault.ErrorParams{Code: tc.code}))
		_, err := c.create(t.Context(), "a")
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", tc.code, err)
		}
		if tc.code == "EmptyFault" && (!soap.IsSoapFault(err) || soap.ToSoapFault(err).VimFault() != nil) {
			t.Errorf("empty fault: %v", err)
		}
		if _, err := c.create(t.Context(), "b"); err != nil {
			t.Errorf("%s, cleared: %v", tc.code, err)
		}
	}
}

// A client that comes to wait for a task that was purged is told at once that
// there is none.
func TestTaskThatIsPurged(t *testing.T) {
	for _, phase := range []fault.Phase{fault.Task, fault.After} {
		v, c, in := lab(t)
		in.Plan.Arm(kindOf(t, "task-purged", fault.Rule{Op: "CnsCreateVolume", Phase: phase}, nil))
		task, err := c.cns.CreateVolume(t.Context(), []cnstypes.CnsVolumeCreateSpec{volumeSpec("a")})
		if err != nil {
			t.Fatal(err)
		}
		known := func() bool {
			return slices.ContainsFunc(v.Tasks(), func(x vctask.Status) bool { return x.Call.Task == task.Reference().Value })
		}
		eventually(t, func() bool { return !known() }, "the task is purged")
		if _, err := task.WaitForResultEx(t.Context()); !vimfault.Is(err, &types.ManagedObjectNotFound{}) {
			t.Errorf("%s: %v", phase, err)
		}
		want := 0
		if phase == fault.After {
			want = 1
		}
		if n := len(v.Volumes()); n != want {
			t.Errorf("%s: %d volumes, want %d", phase, n, want)
		}
		if _, err := c.create(t.Context(), "b"); err != nil {
			t.Errorf("cleared: %v", err)
		}
	}
}

// A client that has seen the task run is told that it has left, however it
// watches: the update has no properties, and govmomi's Task.Wait, which looks at
// nothing else, waits on.
func TestTaskThatIsPurgedWhileItIsWatched(t *testing.T) {
	for _, phase := range []fault.Phase{fault.Task, fault.After} {
		v, c, in := lab(t)
		ctx, vc := t.Context(), c.Client.Client
		in.Plan.Arm(kindOf(t, "task-purged", fault.Rule{Op: "CnsCreateVolume", Phase: phase}, nil))
		hold := v.HoldTasks("CnsCreateVolume")
		task := startCreate(ctx, t, c, 1)[0]
		view, err := watchOf(ctx, vc, listOf(ctx, t, vc, []moref{task}))
		if err != nil {
			t.Fatal(err)
		}
		alone, err := watchTask(ctx, vc, task)
		if err != nil {
			t.Fatal(err)
		}
		for name, w := range map[string]*watched{"in a view": view, "alone": alone} {
			if got, _, err := w.next(ctx, vc, 10, 0); err != nil || got[task.Value] != types.TaskInfoStateRunning {
				t.Fatalf("%s, %s: first %v, %v", phase, name, got, err)
			}
		}
		hold.Release()
		for name, w := range map[string]*watched{"in a view": view, "alone": alone} {
			got, _, err := w.next(ctx, vc, 10, 0)
			if state, told := got[task.Value]; err != nil || !told || state != "" {
				t.Errorf("%s, %s: then %v, %v", phase, name, got, err)
			}
		}
	}
}

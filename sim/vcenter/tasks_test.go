package vcenter_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vmware/govmomi"
	cnstypes "github.com/vmware/govmomi/cns/types"
	vimfault "github.com/vmware/govmomi/fault"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/task"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter"
)

func infoOf(ctx context.Context, c *govmomi.Client, task moref) (types.TaskInfo, error) {
	var m mo.Task
	err := property.DefaultCollector(c.Client).RetrieveOne(ctx, task, []string{"info"}, &m)
	return m.Info, err
}

// TestHeldTask: a task runs until the test lets it go, says how far it is, and
// can be waited for.
func TestHeldTask(t *testing.T) {
	v := start(t, vcenter.Config{})
	c := login(t, v)
	ctx := t.Context()
	cc, err := cnsClient(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	hold := v.HoldTasks("CnsCreateVolume")
	created, err := cc.cns.CreateVolume(ctx, []cnstypes.CnsVolumeCreateSpec{volumeSpec("a")})
	if err != nil {
		t.Fatal(err)
	}
	held, err := hold.Wait(ctx)
	if err != nil || held.Task != created.Reference().Value || held.Volume != "a" {
		t.Fatalf("held %+v, %v", held, err)
	}
	held.Progress(40)
	info, err := infoOf(ctx, c, created.Reference())
	if err != nil || info.State != types.TaskInfoStateRunning || info.Progress != 40 || info.CompleteTime != nil {
		t.Errorf("held task %+v, %v", info, err)
	}
	if info.EntityName != "Datacenters" || *info.Entity != c.ServiceContent.RootFolder || info.Name != "" ||
		info.DescriptionId != "com.vmware.cns.tasks.createvolume" || len(info.ActivationId) != 8 || info.EventChainId == 0 || info.Cancelable {
		t.Errorf("task of CNS %+v", info)
	}
	if len(v.Volumes()) != 0 {
		t.Error("a held task has done its work")
	}
	// Other methods are not held.
	if _, err := cc.cns.QueryVolumeInfo(ctx, nil); err != nil {
		t.Error(err)
	}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if h, err := hold.Wait(short); err == nil {
		t.Errorf("held %+v", h)
	}
	held.Release()
	done, err := created.WaitForResult(ctx)
	if err != nil || done.Progress != 0 || done.CompleteTime == nil || len(v.Volumes()) != 1 {
		t.Errorf("released %+v, %v", done, err)
	}
	// The end of a hold lets all go.
	next, err := cc.cns.CreateVolume(ctx, []cnstypes.CnsVolumeCreateSpec{volumeSpec("b")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hold.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	if n := len(hold.Held()); n != 1 {
		t.Errorf("%d held", n)
	}
	hold.Release()
	if _, err := next.WaitForResult(ctx); err != nil {
		t.Error(err)
	}
	if _, err := hold.Wait(ctx); err == nil {
		t.Error("a hold that was released holds")
	}
}

// TestLatencyOfTasks: in virtual time, with progress at each quarter.
func TestLatencyOfTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		v, c := bubble(ctx, t, vcenter.Config{TaskLatency: map[string]time.Duration{"": time.Minute, "CnsDeleteVolume": 0}})
		defer v.Close()
		defer c.CloseIdleConnections()
		cc, err := cnsClient(ctx, c)
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		task, err := cc.cns.CreateVolume(ctx, []cnstypes.CnsVolumeCreateSpec{volumeSpec("a")})
		if err != nil {
			t.Fatal(err)
		}
		var seen []int32
		if err := property.Wait(ctx, property.DefaultCollector(c.Client), task.Reference(), []string{"info.progress", "info.state"}, func(pc []types.PropertyChange) bool {
			for _, p := range pc {
				if n, ok := p.Val.(int32); ok {
					seen = append(seen, n)
				}
				if p.Val == types.TaskInfoStateSuccess {
					return true
				}
			}
			return false
		}); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begin); d != time.Minute || !slices.Equal(seen, []int32{0, 25, 50, 75, 0}) {
			t.Errorf("took %v, progress %v", d, seen)
		}
		v.SetTaskLatency("CnsCreateVolume", time.Hour)
		begin = time.Now()
		id, err := cc.create(ctx, "b")
		if err != nil || time.Since(begin) != time.Hour {
			t.Errorf("took %v, %v", time.Since(begin), err)
		}
		begin = time.Now()
		if err := cc.delete(ctx, id); err != nil || time.Since(begin) != 0 {
			t.Errorf("delete took %v, %v", time.Since(begin), err)
		}
		// Finished tasks can be seen for ten minutes.
		old := v.Tasks()
		time.Sleep(9 * time.Minute)
		if n := len(v.Tasks()); n != len(old) || n == 0 {
			t.Errorf("%d tasks of %d after 9 minutes", n, len(old))
		}
		time.Sleep(2 * time.Minute)
		if n := len(v.Tasks()); n != 0 {
			t.Errorf("%d tasks after 11 minutes", n)
		}
		_ = gone(ctx, t, c, old[0].Info.Task)
		cancel()
		synctest.Wait()
	})
}

// gone wants ManagedObjectNotFound of a task.
func gone(ctx context.Context, t *testing.T, c *govmomi.Client, task moref) error {
	t.Helper()
	_, err := infoOf(ctx, c, task)
	if !vimfault.Is(err, &types.ManagedObjectNotFound{}) {
		t.Errorf("%s: %v", task.Value, err)
	}
	return err
}

func TestRecentTasks(t *testing.T) {
	v := start(t, vcenter.Config{})
	c := login(t, v)
	ctx := t.Context()
	cc, err := cnsClient(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	lists := func(of moref) []moref {
		var o []types.ObjectContent
		if err := property.DefaultCollector(c.Client).RetrieveOne(ctx, of, []string{"recentTask"}, &o); err != nil {
			t.Fatal(err)
		}
		for _, p := range o[0].PropSet {
			return p.Val.(types.ArrayOfManagedObjectReference).ManagedObjectReference
		}
		return nil
	}
	manager := *c.ServiceContent.TaskManager
	if n := len(lists(manager)); n != 0 {
		t.Errorf("%d tasks at the start", n)
	}
	if _, err := cc.create(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	r, err := object.NewSearchIndex(c.Client).FindByUuid(ctx, nil, v.VMUUID("node-1"), true, nil)
	if err != nil {
		t.Fatal(err)
	}
	vm := object.NewVirtualMachine(c.Client, r.Reference())
	off, err := vm.PowerOff(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := off.WaitEx(ctx); err != nil {
		t.Fatal(err)
	}
	info, err := infoOf(ctx, c, off.Reference())
	if err != nil || info.Name != "PowerOffVM_Task" || info.DescriptionId != "VirtualMachine.powerOff" || info.EntityName != "node-1" {
		t.Errorf("task of a VM %+v, %v", info, err)
	}
	if got := lists(manager); len(got) != 2 || got[1] != off.Reference() {
		t.Errorf("recent tasks %v", got)
	}
	if got := lists(vm.Reference()); len(got) != 1 || got[0] != off.Reference() {
		t.Errorf("recent tasks of the VM %v", got)
	}
	// The second is refused in its task, not by the call.
	off, err = vm.PowerOff(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := off.WaitEx(ctx); !vimfault.Is(err, &types.InvalidPowerState{}) {
		t.Errorf("off twice: %v", err)
	}
	if n := v.PurgeTasks(off.Reference().Value); n != 1 {
		t.Errorf("%d purged", n)
	}
	_ = gone(ctx, t, c, off.Reference())
	if n := v.PurgeTasks(); n != 2 || len(lists(manager)) != 0 {
		t.Errorf("%d purged, %d left", n, len(lists(manager)))
	}
}

func TestHistoryOfTasks(t *testing.T) {
	v := start(t, vcenter.Config{})
	c := login(t, v)
	ctx := t.Context()
	cc, err := cnsClient(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, name := range []string{"a", "b", "c"} {
		id, err := cc.create(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	r, err := object.NewSearchIndex(c.Client).FindByUuid(ctx, nil, v.VMUUID("node-1"), true, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cc.attach(ctx, ids[0], r.Reference()); err != nil {
		t.Fatal(err)
	}
	us, err := c.SessionManager.UserSession(ctx)
	if err != nil {
		t.Fatal(err)
	}
	m := task.NewManager(c.Client)
	read := func(f types.TaskFilterSpec) string {
		t.Helper()
		h, err := m.CreateCollectorForTasks(ctx, f)
		if err != nil {
			t.Fatal(err)
		}
		defer h.Destroy(ctx)
		var out []string
		for {
			page, err := h.ReadNextTasks(ctx, 2)
			if err != nil {
				t.Fatal(err)
			}
			if len(page) == 0 {
				return strings.Join(out, " ")
			}
			for _, i := range page {
				out = append(out, strings.TrimPrefix(i.DescriptionId, "com.vmware.cns.tasks."))
			}
		}
	}
	entity := func(r moref, how types.TaskFilterSpecRecursionOption) types.TaskFilterSpec {
		return types.TaskFilterSpec{Entity: &types.TaskFilterSpecByEntity{Entity: r, Recursion: how}}
	}
	past, future := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	for name, row := range map[string]struct {
		filter types.TaskFilterSpec
		want   string
	}{
		"all":           {types.TaskFilterSpec{}, "createvolume createvolume createvolume attachvolume"},
		"of a VM":       {entity(r.Reference(), types.TaskFilterSpecRecursionOptionSelf), "attachvolume"},
		"below a VM":    {entity(r.Reference(), types.TaskFilterSpecRecursionOptionChildren), ""},
		"of the root":   {entity(c.ServiceContent.RootFolder, types.TaskFilterSpecRecursionOptionSelf), "createvolume createvolume createvolume"},
		"below":         {entity(c.ServiceContent.RootFolder, types.TaskFilterSpecRecursionOptionChildren), "attachvolume"},
		"all of it":     {entity(c.ServiceContent.RootFolder, types.TaskFilterSpecRecursionOptionAll), "createvolume createvolume createvolume attachvolume"},
		"failed":        {types.TaskFilterSpec{State: []types.TaskInfoState{types.TaskInfoStateError}}, ""},
		"by us":         {types.TaskFilterSpec{UserName: &types.TaskFilterSpecByUsername{UserList: []string{us.UserName}}, State: []types.TaskInfoState{types.TaskInfoStateSuccess}}, "createvolume createvolume createvolume attachvolume"},
		"by another":    {types.TaskFilterSpec{UserName: &types.TaskFilterSpecByUsername{UserList: []string{"x"}}}, ""},
		"since":         {types.TaskFilterSpec{Time: &types.TaskFilterSpecByTime{TimeType: types.TaskFilterSpecTimeOptionCompletedTime, BeginTime: &past, EndTime: &future}}, "createvolume createvolume createvolume attachvolume"},
		"in future":     {types.TaskFilterSpec{Time: &types.TaskFilterSpecByTime{TimeType: types.TaskFilterSpecTimeOptionQueuedTime, BeginTime: &future}}, ""},
		"of an opId":    {types.TaskFilterSpec{ActivationId: []string{"nope"}}, ""},
		"of a parent":   {types.TaskFilterSpec{ParentTaskKey: []string{"task-1"}}, ""},
		"of a chain":    {types.TaskFilterSpec{EventChainId: []int32{-1}}, ""},
		"by a tag":      {types.TaskFilterSpec{Tag: []string{"x"}}, ""},
		"by the system": {types.TaskFilterSpec{UserName: &types.TaskFilterSpecByUsername{SystemUser: true}}, ""},
	} {
		if got := read(row.filter); got != row.want {
			t.Errorf("%s: %q, want %q", name, got, row.want)
		}
	}

	h, err := m.CreateCollectorForTasks(ctx, types.TaskFilterSpec{})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.SetPageSize(ctx, 2); err != nil {
		t.Fatal(err)
	}
	if page, err := h.LatestPage(ctx); err != nil || len(page) != 2 || !strings.HasSuffix(page[0].DescriptionId, "attachvolume") {
		t.Errorf("latest page %v, %v", page, err)
	}
	if err := h.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	if page, err := h.ReadNextTasks(ctx, 10); err != nil || len(page) != 0 {
		t.Errorf("after the newest: %v, %v", page, err)
	}
	if page, err := h.ReadPreviousTasks(ctx, 3); err != nil || len(page) != 3 || page[0].EventChainId <= page[1].EventChainId {
		t.Errorf("previous %v, %v", page, err)
	}
	if page, err := h.ReadPreviousTasks(ctx, 3); err != nil || len(page) != 1 {
		t.Errorf("first %v, %v", page, err)
	}
	if err := h.Rewind(ctx); err != nil {
		t.Fatal(err)
	}
	if page, err := h.ReadNextTasks(ctx, 10); err != nil || len(page) != 4 {
		t.Errorf("from the start: %v, %v", page, err)
	}
	if _, err := h.ReadNextTasks(ctx, 0); !vimfault.Is(err, &types.InvalidArgument{}) {
		t.Errorf("a page of nothing: %v", err)
	}
	// 32 collectors are what a client may have; they end with its session.
	for range 31 {
		if _, err := m.CreateCollectorForTasks(ctx, types.TaskFilterSpec{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.CreateCollectorForTasks(ctx, types.TaskFilterSpec{}); !vimfault.Is(err, &types.InvalidState{}) {
		t.Errorf("the 33rd collector: %v", err)
	}
	v.KillSessions()
	if err := c.Login(ctx, v.URL().User); err != nil {
		t.Fatal(err)
	}
	if _, err := m.CreateCollectorForTasks(ctx, types.TaskFilterSpec{}); err != nil {
		t.Error(err)
	}
}

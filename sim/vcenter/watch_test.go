package vcenter_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	cnstypes "github.com/vmware/govmomi/cns/types"
	vimfault "github.com/vmware/govmomi/fault"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/view"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter"
)

// watched is a view of tasks with a collector on it.
type watched struct {
	view    *view.ListView
	pc      *property.Collector
	ref     moref // of pc, which has none once it is destroyed
	filter  moref
	version string
}

func watchOf(ctx context.Context, c *vim25.Client, lv *view.ListView) (*watched, error) {
	pc, err := property.DefaultCollector(c).Create(ctx)
	if err != nil {
		return nil, err
	}
	skip := true
	res, err := methods.CreateFilter(ctx, c, &types.CreateFilter{This: pc.Reference(), Spec: types.PropertyFilterSpec{
		PropSet:   []types.PropertySpec{{Type: "Task", PathSet: []string{"info.state"}}},
		ObjectSet: []types.ObjectSpec{{Obj: lv.Reference(), Skip: &skip, SelectSet: []types.BaseSelectionSpec{lv.TraversalSpec()}}},
	}})
	if err != nil {
		return nil, err
	}
	return &watched{view: lv, pc: pc, ref: pc.Reference(), filter: res.Returnval}, nil
}

// watchTask watches one task.
func watchTask(ctx context.Context, c *vim25.Client, task moref) (*watched, error) {
	pc, err := property.DefaultCollector(c).Create(ctx)
	if err != nil {
		return nil, err
	}
	res, err := methods.CreateFilter(ctx, c, &types.CreateFilter{This: pc.Reference(), Spec: types.PropertyFilterSpec{
		PropSet:   []types.PropertySpec{{Type: "Task", PathSet: []string{"info.state"}}},
		ObjectSet: []types.ObjectSpec{{Obj: task}},
	}})
	if err != nil {
		return nil, err
	}
	return &watched{pc: pc, ref: pc.Reference(), filter: res.Returnval}, nil
}

// next waits for updates, at most seconds and limit objects, and returns the
// state of each task that was told of ("" for one that left).
func (w *watched) next(ctx context.Context, c *vim25.Client, seconds, limit int32) (map[string]types.TaskInfoState, bool, error) {
	res, err := methods.WaitForUpdatesEx(ctx, c, &types.WaitForUpdatesEx{This: w.ref, Version: w.version,
		Options: &types.WaitOptions{MaxWaitSeconds: &seconds, MaxObjectUpdates: limit}})
	if err != nil || res.Returnval == nil {
		return nil, false, err
	}
	w.version = res.Returnval.Version
	out := map[string]types.TaskInfoState{}
	for _, f := range res.Returnval.FilterSet {
		for _, u := range f.ObjectSet {
			if u.Kind == types.ObjectUpdateKindLeave {
				out[u.Obj.Value] = ""
			}
			for _, p := range u.ChangeSet {
				out[u.Obj.Value], _ = p.Val.(types.TaskInfoState)
			}
		}
	}
	return out, res.Returnval.Truncated != nil && *res.Returnval.Truncated, nil
}

// startCreate starts n creates and returns their tasks.
func startCreate(ctx context.Context, t *testing.T, c *client, n int) []moref {
	t.Helper()
	var out []moref
	for i := range n {
		task, err := c.cns.CreateVolume(ctx, []cnstypes.CnsVolumeCreateSpec{volumeSpec(fmt.Sprintf("pvc-%d", i))})
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, task.Reference())
	}
	return out
}

func listOf(ctx context.Context, t *testing.T, c *vim25.Client, refs []moref) *view.ListView {
	t.Helper()
	lv, err := view.NewManager(c).CreateListView(ctx, refs)
	if err != nil {
		t.Fatal(err)
	}
	return lv
}

// TestSeveralCollectorsOfOneSession: each is told of everything, at its pace,
// page by page.
func TestSeveralCollectorsOfOneSession(t *testing.T) {
	v := start(t, vcenter.Config{})
	ctx := t.Context()
	c, err := cnsClient(ctx, login(t, v))
	if err != nil {
		t.Fatal(err)
	}
	hold := v.HoldTasks()
	tasks := startCreate(ctx, t, c, 9)
	lv := listOf(ctx, t, c.Client.Client, tasks)
	var ws []*watched
	for range 3 {
		w, err := watchOf(ctx, c.Client.Client, lv)
		if err != nil {
			t.Fatal(err)
		}
		if got, _, err := w.next(ctx, c.Client.Client, 0, 0); err != nil || len(got) != 9 {
			t.Fatalf("first %v, %v", got, err)
		}
		ws = append(ws, w)
	}
	hold.Release()
	for i, w := range ws {
		limit, done, pages := int32(i*2), map[string]bool{}, 0
		for len(done) < 9 {
			got, _, err := w.next(ctx, c.Client.Client, 10, limit)
			if err != nil || len(got) == 0 || limit > 0 && len(got) > int(limit) {
				t.Fatalf("collector %d: %v, %v", i, got, err)
			}
			for id, s := range got {
				if s != types.TaskInfoStateSuccess || done[id] {
					t.Errorf("collector %d: %s is %s, told before: %v", i, id, s, done[id])
				}
				done[id] = true
			}
			pages++
		}
		if limit > 0 && pages < 9/int(limit) {
			t.Errorf("collector %d: %d pages of %d", i, pages, limit)
		}
		if got, _, err := w.next(ctx, c.Client.Client, 0, 0); err != nil || got != nil {
			t.Errorf("collector %d: more: %v, %v", i, got, err)
		}
	}
}

// TestViewsAndFiltersThatGo: what is destroyed while it is watched is told, and
// does not stop what else the collector watches.
func TestViewsAndFiltersThatGo(t *testing.T) {
	v := start(t, vcenter.Config{})
	ctx := t.Context()
	c, err := cnsClient(ctx, login(t, v))
	if err != nil {
		t.Fatal(err)
	}
	vc := c.Client.Client
	hold := v.HoldTasks()
	tasks := startCreate(ctx, t, c, 3)
	a, b := listOf(ctx, t, vc, tasks[:1]), listOf(ctx, t, vc, tasks[1:])
	w, err := watchOf(ctx, vc, a)
	if err != nil {
		t.Fatal(err)
	}
	skip := true
	second, err := methods.CreateFilter(ctx, vc, &types.CreateFilter{This: w.pc.Reference(), Spec: types.PropertyFilterSpec{
		PropSet:   []types.PropertySpec{{Type: "Task", PathSet: []string{"info.state"}}},
		ObjectSet: []types.ObjectSpec{{Obj: b.Reference(), Skip: &skip, SelectSet: []types.BaseSelectionSpec{b.TraversalSpec()}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if got, _, err := w.next(ctx, vc, 0, 0); err != nil || len(got) != 3 {
		t.Fatalf("first %v, %v", got, err)
	}
	// A wait is under way when the view goes.
	type reply struct {
		got map[string]types.TaskInfoState
		err error
	}
	replies := make(chan reply, 1)
	wait := func() {
		go func() {
			got, _, err := w.next(ctx, vc, 10, 0)
			replies <- reply{got, err}
		}()
	}
	wait()
	if err := a.Destroy(ctx); err != nil {
		t.Fatal(err)
	}
	if r := <-replies; r.err != nil || len(r.got) != 1 || r.got[tasks[0].Value] != "" {
		t.Errorf("a view went: %v, %v", r.got, r.err)
	}
	if _, err := a.Add(ctx, tasks); !vimfault.Is(err, &types.ManagedObjectNotFound{}) {
		t.Errorf("a view that is gone: %v", err)
	}
	wait()
	if _, err := methods.DestroyPropertyFilter(ctx, vc, &types.DestroyPropertyFilter{This: w.filter}); err != nil {
		t.Fatal(err)
	}
	// A purged task leaves the view that it is in, and can't come back.
	if n := v.PurgeTasks(tasks[1].Value); n != 1 {
		t.Errorf("%d purged", n)
	}
	if r := <-replies; r.err != nil || len(r.got) != 1 || r.got[tasks[1].Value] != "" {
		t.Errorf("a task went: %v, %v", r.got, r.err)
	}
	if un, err := b.Add(ctx, tasks[1:2]); err != nil || !slices.Equal(un, tasks[1:2]) {
		t.Errorf("a task that is gone: unresolved %v, %v", un, err)
	}
	// It has left once; the view that still names it changes, and it does not
	// leave again.
	if got, _, err := w.next(ctx, vc, 0, 0); err != nil || len(got) != 0 {
		t.Errorf("after the task went: %v, %v", got, err)
	}
	wait()
	hold.Release()
	if r := <-replies; r.err != nil || r.got[tasks[2].Value] != types.TaskInfoStateSuccess {
		t.Errorf("the other filter: %v, %v", r.got, r.err)
	}
	if _, err := methods.DestroyPropertyFilter(ctx, vc, &types.DestroyPropertyFilter{This: second.Returnval}); err != nil {
		t.Fatal(err)
	}
	if _, err := methods.DestroyPropertyFilter(ctx, vc, &types.DestroyPropertyFilter{This: second.Returnval}); !vimfault.Is(err, &types.ManagedObjectNotFound{}) {
		t.Errorf("a filter that is gone: %v", err)
	}
}

// TestPurgeDuringALook: a task that a client begins to watch while the inventory
// is forgetting it is either not there, or seen and then told to have left.
func TestPurgeDuringALook(t *testing.T) {
	v := start(t, vcenter.Config{})
	ctx := t.Context()
	c, err := cnsClient(ctx, login(t, v))
	if err != nil {
		t.Fatal(err)
	}
	vc := c.Client.Client
	looks := map[string]func(task moref) (*watched, error){
		"alone": func(task moref) (*watched, error) { return watchTask(ctx, vc, task) },
		"in a view": func(task moref) (*watched, error) {
			lv, err := view.NewManager(vc).CreateListView(ctx, []moref{task})
			if err != nil {
				return nil, err
			}
			return watchOf(ctx, vc, lv)
		},
	}
	seen, refused := 0, 0
	// The registry tells its handlers in any order: until both have come.
	for i := 0; i < 4 || min(seen, refused) == 0 && i < 100; i++ {
		for name, look := range looks {
			hold := v.HoldTasks()
			task := startCreate(ctx, t, c, 1)[0]
			removing, forget, purged := make(chan struct{}), make(chan struct{}), make(chan struct{})
			vcenter.OnRemove(v, func(r moref) {
				if r == task {
					close(removing)
					<-forget
				}
			})
			go func() {
				defer close(purged)
				v.PurgeTasks(task.Value)
			}()
			<-removing
			var first map[string]types.TaskInfoState
			w, err := look(task)
			if err == nil {
				first, _, err = w.next(ctx, vc, 10, 0)
			}
			close(forget)
			<-purged
			defer hold.Release() // its end would be another reason to look
			if vimfault.Is(err, &types.ManagedObjectNotFound{}) {
				refused++
				continue
			}
			if err != nil || first[task.Value] != types.TaskInfoStateRunning {
				t.Fatalf("%s, %d: %v, %v", name, i, first, err)
			}
			seen++
			got, _, err := w.next(ctx, vc, 10, 0)
			if state, told := got[task.Value]; err != nil || !told || state != "" {
				t.Fatalf("%s, %d: seen, then %v, %v", name, i, got, err)
			}
		}
	}
	if seen == 0 || refused == 0 {
		t.Errorf("%d seen, %d refused: one order of handlers was not tried", seen, refused)
	}
}

// TestWaitsEnd: in virtual time, so that "at once" is no time at all.
func TestWaitsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		v, gc := bubble(ctx, t, vcenter.Config{})
		defer v.Close()
		defer gc.CloseIdleConnections()
		c, err := cnsClient(ctx, gc)
		if err != nil {
			t.Fatal(err)
		}
		hold := v.HoldTasks()
		tasks := startCreate(ctx, t, c, 2)
		lv := listOf(ctx, t, gc.Client, tasks)
		w, err := watchOf(ctx, gc.Client, lv)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := w.next(ctx, gc.Client, 0, 0); err != nil {
			t.Fatal(err)
		}
		took := func(f func()) time.Duration {
			begin := time.Now()
			f()
			return time.Since(begin)
		}
		if d := took(func() {
			if got, _, err := w.next(ctx, gc.Client, 30, 0); got != nil || err != nil {
				t.Errorf("nothing happened: %v, %v", got, err)
			}
		}); d != 30*time.Second {
			t.Errorf("maxWaitSeconds 30: %v", d)
		}
		// What happens between two waits is told by the next at once.
		held, err := hold.Wait(ctx)
		if err != nil {
			t.Fatal(err)
		}
		held.Release()
		synctest.Wait()
		if d := took(func() {
			if got, _, err := w.next(ctx, gc.Client, 30, 0); err != nil || got[held.Task] != types.TaskInfoStateSuccess {
				t.Errorf("between waits: %v, %v", got, err)
			}
		}); d != 0 {
			t.Errorf("between waits: %v", d)
		}
		// A killed session: all its waits end at once with NotAuthenticated, the
		// collectors' and those of govmomi's helpers.
		var wg sync.WaitGroup
		ends := make(chan error, 4)
		wg.Go(func() { _, _, err := w.next(ctx, gc.Client, 3600, 0); ends <- err })
		wg.Go(func() {
			filter := new(property.WaitFilter).Add(lv.Reference(), "Task", []string{"info"}, lv.TraversalSpec())
			ends <- property.WaitForUpdatesEx(ctx, property.DefaultCollector(gc.Client), filter, func([]types.ObjectUpdate) bool { return false })
		})
		for range 2 {
			wg.Go(func() {
				_, err := object.NewTask(gc.Client, tasks[1]).WaitForResult(ctx)
				ends <- err
			})
		}
		time.Sleep(time.Minute)
		if d := took(func() {
			v.KillSessions()
			wg.Wait()
		}); d != 0 {
			t.Errorf("waits of a killed session end after %v", d)
		}
		for range 4 {
			if err := <-ends; !vimfault.Is(err, &types.NotAuthenticated{}) {
				t.Errorf("a wait of a killed session: %v", err)
			}
		}
		hold.Release()
		cancel()
		synctest.Wait()
	})
}

// TestTaskViewFollows: govmomi's TaskView learns of tasks from recentTask.
func TestTaskViewFollows(t *testing.T) {
	v := start(t, vcenter.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c, err := cnsClient(ctx, login(t, v))
	if err != nil {
		t.Fatal(err)
	}
	tv, err := view.NewManager(c.Client.Client).CreateTaskView(ctx, c.ServiceContent.TaskManager)
	if err != nil {
		t.Fatal(err)
	}
	tv.Follow = true
	seen := make(chan types.TaskInfo, 100)
	ended := make(chan error, 1)
	go func() {
		ended <- tv.Collect(ctx, func(infos []types.TaskInfo) {
			for _, i := range infos {
				seen <- i
			}
		})
	}()
	for i := range 3 {
		if _, err := c.create(ctx, fmt.Sprintf("pvc-%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	done := map[string]bool{}
	for len(done) < 3 {
		select {
		case i := <-seen:
			if i.State == types.TaskInfoStateSuccess {
				done[i.Key] = true
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("only %v were seen", done)
		}
	}
	cancel()
	<-ended
}

// TestChurn: views, filters and collectors come and go in all orders while
// tasks end and waits are cancelled; nothing may get stuck (govmomi PR #4109).
func TestChurn(t *testing.T) {
	v := start(t, vcenter.Config{})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c, err := cnsClient(ctx, login(t, v))
	if err != nil {
		t.Fatal(err)
	}
	vc := c.Client.Client
	until := time.Now().Add(300 * time.Millisecond)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := 0; time.Now().Before(until) || n == 0; n++ {
				if err := churn(ctx, c, vc, i, n); err != nil {
					t.Errorf("%d.%d: %v", i, n, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		t.Error("stuck")
	}
	v.KillSessions()
	if n := vcenter.Watched(v); n != 0 {
		t.Errorf("%d objects are still watched", n)
	}
}

func churn(ctx context.Context, c *client, vc *vim25.Client, i, n int) error {
	tk, err := c.cns.CreateVolume(ctx, []cnstypes.CnsVolumeCreateSpec{volumeSpec(fmt.Sprintf("pvc-%d-%d", i, n))})
	if err != nil {
		return err
	}
	lv, err := view.NewManager(vc).CreateListView(ctx, []moref{tk.Reference()})
	if err != nil {
		return err
	}
	w, err := watchOf(ctx, vc, lv)
	if err != nil {
		return err
	}
	for over := false; !over; {
		got, _, err := w.next(ctx, vc, 10, 0)
		if err != nil {
			return err
		}
		over = got[tk.Reference().Value] == types.TaskInfoStateSuccess
	}
	waits := make(chan error, 1)
	go func() { _, _, err := w.next(ctx, vc, 10, 0); waits <- err }()
	switch n % 4 {
	case 0:
		err = w.pc.CancelWaitForUpdates(ctx)
	case 1:
		_, err = methods.DestroyPropertyFilter(ctx, vc, &types.DestroyPropertyFilter{This: w.filter})
	case 2:
		err = lv.Destroy(ctx)
	}
	if err != nil {
		return err
	}
	if err := w.pc.Destroy(ctx); err != nil {
		return err
	}
	if n%4 != 2 {
		if err := lv.Destroy(ctx); err != nil {
			return err
		}
	}
	// Told, cancelled, or too late to be either.
	if err := <-waits; err != nil && !vimfault.Is(err, &types.RequestCanceled{}) && !vimfault.Is(err, &types.ManagedObjectNotFound{}) {
		return err
	}
	return nil
}

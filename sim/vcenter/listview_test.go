package vcenter_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vmware/govmomi/cns"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/view"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter"
)

// tasksInView waits for tasks as upstream's driver does (vsphere-csi-driver
// pkg/common/cns-lib/volume/listview.go): one view that all tasks go into, one
// collector that watches it.
type tasksInView struct {
	c    *vim25.Client
	view *view.ListView

	mu      sync.Mutex
	waiting map[types.ManagedObjectReference]chan types.TaskInfo
}

func watchTasks(ctx context.Context, c *vim25.Client) (*tasksInView, func() error, error) {
	lv, err := view.NewManager(c).CreateListView(ctx, nil)
	if err != nil {
		return nil, nil, err
	}
	w := &tasksInView{c: c, view: lv, waiting: map[types.ManagedObjectReference]chan types.TaskInfo{}}
	pc, err := property.DefaultCollector(c).Create(ctx)
	if err != nil {
		return nil, nil, err
	}
	filter := new(property.WaitFilter).Add(lv.Reference(), "Task", []string{"info"}, lv.TraversalSpec())
	run := func() error {
		return property.WaitForUpdatesEx(ctx, pc, filter, func(us []types.ObjectUpdate) bool {
			for _, u := range us {
				for _, p := range u.ChangeSet {
					info, ok := p.Val.(types.TaskInfo)
					if !ok || info.State != types.TaskInfoStateSuccess && info.State != types.TaskInfoStateError {
						continue
					}
					w.mu.Lock()
					ch := w.waiting[u.Obj]
					delete(w.waiting, u.Obj)
					w.mu.Unlock()
					if ch != nil {
						ch <- info
					}
				}
			}
			return false
		})
	}
	return w, run, nil
}

func (w *tasksInView) wait(ctx context.Context, task types.ManagedObjectReference) (types.TaskInfo, error) {
	ch := make(chan types.TaskInfo, 1)
	w.mu.Lock()
	w.waiting[task] = ch
	w.mu.Unlock()
	if _, err := w.view.Add(ctx, []types.ManagedObjectReference{task}); err != nil {
		return types.TaskInfo{}, err
	}
	select {
	case info := <-ch:
		_, err := w.view.Remove(ctx, []types.ManagedObjectReference{task})
		return info, err
	case <-time.After(5 * time.Second):
		return types.TaskInfo{}, fmt.Errorf("the end of %s was not reported within 5 s", task.Value)
	}
}

// TestManyTasksInOneView does what hangs stock vcsim v0.56.0 for good
// (govmomi PR #4109): creators whose tasks go through one ListView, and others
// that keep changing the view. Every finished task must be reported.
func TestManyTasksInOneView(t *testing.T) {
	v := start(t, vcenter.Config{TLS: true})
	c := login(t, v)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w, run, err := watchTasks(ctx, c.Client)
	if err != nil {
		t.Fatal(err)
	}
	ran := make(chan error, 1)
	go func() { ran <- run() }()
	cc, err := cns.NewClient(ctx, c.Client)
	if err != nil {
		t.Fatal(err)
	}
	until := time.Now().Add(2 * time.Second)
	if testing.Short() {
		until = time.Now().Add(500 * time.Millisecond)
	}
	var reported atomic.Int64
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := 0; time.Now().Before(until); n++ {
				task, err := cc.CreateVolume(ctx, []cnstypes.CnsVolumeCreateSpec{volumeSpec(fmt.Sprintf("pvc-%d-%d", i, n))})
				if err != nil {
					t.Error(err)
					return
				}
				info, err := w.wait(ctx, task.Reference())
				if err != nil || info.State != types.TaskInfoStateSuccess {
					t.Errorf("%+v %v", info.Error, err)
					return
				}
				reported.Add(1)
			}
		})
	}
	for range 2 {
		wg.Go(func() {
			vm := c.ServiceContent.RootFolder
			for time.Now().Before(until) {
				if _, err := w.view.Add(ctx, []types.ManagedObjectReference{vm}); err != nil {
					t.Error(err)
					return
				}
				if _, err := w.view.Remove(ctx, []types.ManagedObjectReference{vm}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	cancel()
	<-ran
	t.Logf("%d tasks reported", reported.Load())
	if reported.Load() < 8 {
		t.Errorf("only %d tasks were reported", reported.Load())
	}
}

func volumeSpec(name string) cnstypes.CnsVolumeCreateSpec {
	return cnstypes.CnsVolumeCreateSpec{
		Name: name, VolumeType: string(cnstypes.CnsVolumeTypeBlock),
		Metadata: cnstypes.CnsVolumeMetadata{ContainerCluster: cnstypes.CnsContainerCluster{
			ClusterType: string(cnstypes.CnsClusterTypeKubernetes), ClusterId: "cluster-1", VSphereUser: "administrator@vsphere.local", ClusterFlavor: string(cnstypes.CnsClusterFlavorVanilla),
		}},
		BackingObjectDetails: &cnstypes.CnsBlockBackingDetails{CnsBackingObjectDetails: cnstypes.CnsBackingObjectDetails{CapacityInMb: 100}},
	}
}

// TestUnknownTaskIsNotKept: a reference that a view could not resolve is
// reported and does not turn up when an object of that name comes to be.
func TestUnknownTaskIsNotKept(t *testing.T) {
	v := start(t, vcenter.Config{})
	c := login(t, v)
	lv, err := view.NewManager(c.Client).CreateListView(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	unknown := types.ManagedObjectReference{Type: "Task", Value: "task-87"}
	un, err := lv.Add(t.Context(), []types.ManagedObjectReference{unknown, c.ServiceContent.RootFolder})
	if err != nil || len(un) != 1 || un[0] != unknown {
		t.Fatalf("unresolved %v, %v", un, err)
	}
	var refs []types.ManagedObjectReference
	var content []types.ObjectContent
	if err := property.DefaultCollector(c.Client).RetrieveOne(t.Context(), lv.Reference(), []string{"view"}, &content); err != nil {
		t.Fatal(err)
	}
	for _, p := range content[0].PropSet {
		refs = p.Val.(types.ArrayOfManagedObjectReference).ManagedObjectReference
	}
	if len(refs) != 1 || refs[0] != c.ServiceContent.RootFolder {
		t.Errorf("view holds %v", refs)
	}
}

// Package soak runs a vCenter for long: eight workers take volumes through
// their lives and wait for tasks as upstream's driver does, while sessions are
// killed. Nothing may stall, get lost or grow.
package soak

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter"
)

const workers = 8

// kills are the times between two ends of all sessions: most are short, one is
// long enough for others to be told when a completion was lost.
func kills(length time.Duration) []time.Duration {
	return []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, min(12*time.Second, length/3)}
}

// duration of the soak: CSILAB_SOAK, or what a test run can afford.
func duration(t *testing.T) time.Duration {
	s := os.Getenv("CSILAB_SOAK")
	switch {
	case s != "":
		d, err := time.ParseDuration(s)
		if err != nil || d <= 0 {
			t.Fatalf("CSILAB_SOAK is %q, allowed are durations like 10m", s)
		}
		return d
	case testing.Short():
		return 2 * time.Second
	}
	return 15 * time.Second
}

// sample is what must not grow.
type sample struct {
	at         time.Duration
	cycles     int64
	heap       uint64 // bytes that are in use after a collection
	goroutines int
	tasks      int
}

func (s sample) String() string {
	return fmt.Sprintf("%7.1fs  %7d cycles  heap %6.2f MiB  %3d goroutines  %4d tasks", s.at.Seconds(), s.cycles, float64(s.heap)/(1<<20), s.goroutines, s.tasks)
}

// TestSoak is `make soak-vcenter`, and a short form of it.
func TestSoak(t *testing.T) {
	length := duration(t)
	const keep = 100 // so that what is bounded is full early
	v, err := vcenter.New(context.Background(), vcenter.Config{TLS: true, KeepTasks: keep,
		Nodes: []vcenter.Node{{Name: "node-1"}, {Name: "node-2"}, {Name: "node-3"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w := newWatcher(v, 30*time.Second, 2*time.Second)
	listening := make(chan error, 1)
	go func() { listening <- w.listen(ctx) }()

	begin := time.Now()
	deadline := begin.Add(length)
	var cycles atomic.Int64
	var busy sync.RWMutex // held by cycles; a sample is taken between them
	var failed atomic.Bool
	measure := func() sample {
		busy.Lock()
		defer busy.Unlock()
		w.hangUp()
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		w.mu.Lock()
		w.late = w.late[:len(w.late):len(w.late)]
		held := uint64(cap(w.late)) * 8 // ours, not the vCenter's
		w.mu.Unlock()
		return sample{time.Since(begin), cycles.Load(), m.HeapAlloc - held, runtime.NumGoroutine(), len(v.Tasks())}
	}

	var vms []types.ManagedObjectReference
	c, err := w.connection(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"node-1", "node-2", "node-3"} {
		r, err := object.NewSearchIndex(c.vim.Client).FindByUuid(ctx, nil, v.VMUUID(n), true, nil)
		if err != nil || r == nil {
			t.Fatalf("%s: %v, %v", n, r, err)
		}
		vms = append(vms, r.Reference())
	}

	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			for n := 0; time.Now().Before(deadline) && !failed.Load(); n++ {
				busy.RLock()
				err := cycle(ctx, w, fmt.Sprintf("pvc-%d-%d", i, n), vms[(i+n)%len(vms)])
				busy.RUnlock()
				if err != nil {
					failed.Store(true)
					t.Errorf("after %v: worker %d: %v", time.Since(begin).Round(time.Millisecond), i, err)
					return
				}
				cycles.Add(1)
			}
		})
	}
	stop := make(chan struct{})
	var beside sync.WaitGroup
	beside.Go(func() { // sessions die
		every := kills(length)
		for i := 0; ; i++ {
			select {
			case <-time.After(every[i%len(every)]):
				v.KillSessions()
			case <-stop:
				return
			}
		}
	})
	var samples []sample
	beside.Go(func() {
		for { // a sample stops the workers: they get the time between two of them
			select {
			case <-time.After(max(length/20, time.Second)):
				samples = append(samples, measure())
			case <-stop:
				return
			}
		}
	})
	wg.Wait()
	close(stop)
	beside.Wait()
	samples = append(samples, measure())
	p50, p99, most := w.lateness()
	renewed := w.renewed
	cancel()
	if err := <-listening; err != nil {
		t.Error(err)
	}
	for _, s := range samples {
		t.Log(s)
	}
	last := samples[len(samples)-1]
	t.Logf("%d cycles of 6 tasks in %v, %d sessions, reported after p50 %v, p99 %v, at most %v", last.cycles, last.at.Round(time.Millisecond), renewed, p50, p99, most)
	if vs, ss := v.Volumes(), v.Snapshots(); !failed.Load() && len(vs)+len(ss) > 0 {
		t.Errorf("left over: %d volumes, %d snapshots", len(vs), len(ss))
	}
	grown(t, samples, keep)
}

// TestLostCompletion: the soak sees a completion that is lost, although the task
// is joined again when the session has ended.
func TestLostCompletion(t *testing.T) {
	v, err := vcenter.New(context.Background(), vcenter.Config{Nodes: []vcenter.Node{{Name: "node-1"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	const slack = 50 * time.Millisecond
	w := newWatcher(v, 30*time.Second, slack)
	listening := make(chan error, 1)
	go func() { listening <- w.listen(ctx) }()
	query := func(started func(types.ManagedObjectReference)) error {
		_, err := w.do(ctx, func(c *connection) (*object.Task, error) {
			task, err := c.cns.QueryVolumeAsync(ctx, cnstypes.CnsQueryFilter{}, nil)
			if err == nil {
				started(task.Reference())
			}
			return task, err
		})
		return err
	}
	deaf := func(to types.ManagedObjectReference) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.deaf = to
	}
	begun, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- query(func(task types.ManagedObjectReference) {
			deaf(task)
			close(begun)
		})
	}()
	<-begun
	// Others are told meanwhile, the last one later than can be by chance.
	nothing := func(types.ManagedObjectReference) {}
	for begin := time.Now(); time.Since(begin) < 2*slack; {
		if err := query(nothing); err != nil {
			t.Error(err)
		}
	}
	if err := query(nothing); err != nil {
		t.Error(err)
	}
	deaf(types.ManagedObjectReference{})
	v.KillSessions()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "was not reported, one") {
		t.Errorf("a completion was lost, and found after the session's end: %v", err)
	}
	cancel()
	if err := <-listening; err != nil {
		t.Error(err)
	}
}

// grown compares the end with the first sample for which all that is bounded
// was full.
func grown(t *testing.T, samples []sample, keep int) {
	last := samples[len(samples)-1]
	first := last
	for _, s := range samples {
		if s.cycles*6 >= int64(2*keep) {
			first = s
			break
		}
	}
	if last.cycles < 2*first.cycles {
		t.Logf("growth is not judged: only %d cycles, %d of them before all lists were full", last.cycles, first.cycles)
		return
	}
	if last.tasks > keep+workers || last.goroutines > first.goroutines+10 {
		t.Errorf("it grows: %v, then %v", first, last)
	}
	if last.heap > first.heap+max(first.heap/4, 1<<20) {
		t.Errorf("the heap grows: %v, then %v", first, last)
	}
}

// cycle is the life of a volume.
func cycle(ctx context.Context, w *watcher, name string, vm types.ManagedObjectReference) error {
	result := func(what string, info types.TaskInfo, err error) (cnstypes.BaseCnsVolumeOperationResult, error) {
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", what, name, err)
		}
		if info.Error != nil {
			return nil, fmt.Errorf("%s %s: %T %s", what, name, info.Error.Fault, info.Error.LocalizedMessage)
		}
		b, ok := info.Result.(cnstypes.CnsVolumeOperationBatchResult)
		if !ok || len(b.VolumeResults) != 1 {
			return nil, fmt.Errorf("%s %s: result %T", what, name, info.Result)
		}
		if f := b.VolumeResults[0].GetCnsVolumeOperationResult().Fault; f != nil {
			return nil, fmt.Errorf("%s %s: %T %s", what, name, f.Fault, f.LocalizedMessage)
		}
		return b.VolumeResults[0], nil
	}
	do := func(what string, start func(*connection) (*object.Task, error)) (cnstypes.BaseCnsVolumeOperationResult, error) {
		info, err := w.do(ctx, start)
		return result(what, info, err)
	}
	r, err := do("create", func(c *connection) (*object.Task, error) {
		return c.cns.CreateVolume(ctx, []cnstypes.CnsVolumeCreateSpec{{
			Name: name, VolumeType: string(cnstypes.CnsVolumeTypeBlock),
			Metadata: cnstypes.CnsVolumeMetadata{ContainerCluster: cnstypes.CnsContainerCluster{
				ClusterType: string(cnstypes.CnsClusterTypeKubernetes), ClusterId: "soak", VSphereUser: "administrator@vsphere.local", ClusterFlavor: string(cnstypes.CnsClusterFlavorVanilla)}},
			BackingObjectDetails: &cnstypes.CnsBlockBackingDetails{CnsBackingObjectDetails: cnstypes.CnsBackingObjectDetails{CapacityInMb: 1024}},
		}})
	})
	if err != nil {
		return err
	}
	id := r.GetCnsVolumeOperationResult().VolumeId
	at := []cnstypes.CnsVolumeAttachDetachSpec{{VolumeId: id, Vm: vm}}
	if _, err := do("attach", func(c *connection) (*object.Task, error) { return c.cns.AttachVolume(ctx, at) }); err != nil {
		return err
	}
	r, err = do("snapshot", func(c *connection) (*object.Task, error) {
		return c.cns.CreateSnapshots(ctx, []cnstypes.CnsSnapshotCreateSpec{{VolumeId: id, Description: name}})
	})
	if err != nil {
		return err
	}
	snap, ok := r.(*cnstypes.CnsSnapshotCreateResult)
	if !ok {
		return fmt.Errorf("snapshot %s: result %T", name, r)
	}
	if _, err := do("detach", func(c *connection) (*object.Task, error) { return c.cns.DetachVolume(ctx, at) }); err != nil {
		return err
	}
	if _, err := do("delete snapshot", func(c *connection) (*object.Task, error) {
		return c.cns.DeleteSnapshots(ctx, []cnstypes.CnsSnapshotDeleteSpec{{VolumeId: id, SnapshotId: snap.Snapshot.SnapshotId}})
	}); err != nil {
		return err
	}
	_, err = do("delete", func(c *connection) (*object.Task, error) {
		return c.cns.DeleteVolume(ctx, []cnstypes.CnsVolumeId{id}, true)
	})
	return err
}

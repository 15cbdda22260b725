package bench

import (
	"context"
	"flag"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/vmware/govmomi/cns"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/vim25/types"
)

// full are servers that were filled, by side and number of volumes: filling
// takes long.
var full = map[string]*server{}

func key(side string, n int) string { return fmt.Sprint(side, "/", n) }

// TestFill fills the servers of BenchmarkVolumes; it runs before benchmarks do,
// in `make bench-vcenter`.
func TestFill(t *testing.T) {
	if f := flag.Lookup("test.bench"); f == nil || f.Value.String() == "" {
		t.Skip("only with -bench")
	}
	for _, n := range []int{100, 10_000} {
		ours, err := fillOurs(n)
		if err != nil {
			t.Fatal(err)
		}
		full[key("csilab", n)] = ours
		stock, err := fillStock(n)
		if err != nil {
			t.Fatal(err)
		}
		full[key("stock", n)] = stock
		if n == 10_000 {
			t.Logf("%d volumes: heap per volume %d B, stock %d B", n, ours.perVolume, stock.perVolume)
		}
	}
}

func fillOurs(n int) (*server, error) {
	ctx := context.Background()
	s, err := startOurs(ctx)
	if err != nil {
		return nil, err
	}
	// The lists of tasks are full before it counts.
	if err := s.pairs(ctx, 8, 510); err != nil {
		return nil, err
	}
	before := heap()
	var left atomic.Int64
	left.Store(int64(n))
	errs := make(chan error, 16)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := left.Add(-1); i >= 0; i = left.Add(-1) {
				t, err := s.cns.CreateVolume(ctx, []cnstypes.CnsVolumeCreateSpec{spec(fmt.Sprint("vol-", i), nil)})
				if i%100 == 0 { // now and then; to wait for each takes five times as long
					_, err = result(ctx, t, err)
				}
				if err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for len(s.ours.Volumes()) < n && len(errs) == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	for err := range errs {
		return nil, err
	}
	s.perVolume = (int64(heap()) - int64(before)) / int64(n)
	s.volumes = n
	return s, nil
}

// fillStock makes 100 volumes and copies one of them into the table that
// stock's queries read until there are n: ten thousand creates would take four
// minutes.
func fillStock(n int) (*server, error) {
	ctx := context.Background()
	s, err := startStock(ctx)
	if err != nil {
		return nil, err
	}
	ds := s.datastore()
	if _, err := s.create(ctx, "vol-0", ds); err != nil {
		return nil, err
	}
	before := heap()
	const real = 100
	for i := 1; i < real; i++ {
		if _, err := s.create(ctx, fmt.Sprint("vol-", i), ds); err != nil {
			return nil, err
		}
	}
	s.perVolume = (int64(heap()) - int64(before)) / (real - 1)
	manager := s.stock.Service.Context.For(cns.Path).Map.Get(cns.CnsVolumeManagerInstance)
	private := reflect.ValueOf(manager).Elem().FieldByName("volumes")
	table := reflect.NewAt(private.Type(), unsafe.Pointer(private.UnsafeAddr())).Elem().Interface().(map[types.ManagedObjectReference]map[cnstypes.CnsVolumeId]*cnstypes.CnsVolume)
	volumes := table[*ds]
	var one cnstypes.CnsVolume
	for _, v := range volumes {
		one = *v
		break
	}
	for i := real; i < n; i++ {
		v := one
		v.Name, v.VolumeId.Id = fmt.Sprint("vol-", i), fmt.Sprintf("00000000-0000-4000-8000-%012d", i)
		volumes[v.VolumeId] = &v
	}
	s.volumes = n
	return s, nil
}

func filled(b *testing.B, side string, n int) *server {
	s := full[key(side, n)]
	if s == nil {
		b.Skip("run with -run TestFill, as make bench-vcenter does")
	}
	return s
}

// someID is that of a volume in the middle.
func (s *server) someID(b *testing.B) string {
	q, err := s.cns.QueryVolume(b.Context(), &cnstypes.CnsQueryFilter{Names: []string{fmt.Sprint("vol-", s.volumes/2)}})
	if err != nil || len(q.Volumes) != 1 {
		b.Fatal(q, err)
	}
	return q.Volumes[0].VolumeId.Id
}

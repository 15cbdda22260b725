package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	cnstypes "github.com/vmware/govmomi/cns/types"

	core "github.com/csilab/csilab/sim/vcenter/cns"
)

// BenchmarkStart: from nothing to the first volume.
func BenchmarkStart(b *testing.B) {
	of := map[string]float64{}
	for _, side := range sides {
		b.Run(side.name, func(b *testing.B) {
			cpu := cpuTime()
			for range b.N {
				s, err := side.start(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				if _, err := s.create(b.Context(), "first", s.datastore()); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				s.stop()
				b.StartTimer()
			}
			b.ReportMetric((cpuTime()-cpu).Seconds()*1e3/float64(b.N), "cpu-ms/op")
			of[side.name] = b.Elapsed().Seconds() / float64(b.N)
		})
	}
	ratio(b, of["stock"]/of["csilab"], "x-stock")
}

// BenchmarkPairs: a create and a delete, each with a wait for its task. A
// client of govmomi keeps two connections; with more workers, most of what it
// does is to shake hands. "kept" is a client that keeps one for each worker.
func BenchmarkPairs(b *testing.B) {
	for _, row := range []struct {
		name    string
		workers int
		keep    bool
	}{{"1-worker", 1, false}, {"64-workers", 64, false}, {"64-workers-kept", 64, true}} {
		b.Run(row.name, func(b *testing.B) {
			compare(b, func(b *testing.B, s *server) {
				if row.keep {
					s.soap.DefaultTransport().MaxIdleConnsPerHost = row.workers
					s.cns.DefaultTransport().MaxIdleConnsPerHost = row.workers
				}
				if err := s.pairs(b.Context(), row.workers, b.N); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}

var names atomic.Int64

// pairs makes and deletes n volumes with some workers.
func (s *server) pairs(ctx context.Context, workers, n int) error {
	ds := s.datastore()
	var left atomic.Int64
	left.Store(int64(n))
	errs := make(chan error, workers)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				id, err := s.create(ctx, fmt.Sprint("pvc-", names.Add(1)), ds)
				if err == nil {
					err = s.delete(ctx, id)
				}
				if err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

// BenchmarkCore: create and delete in the core alone, without tasks, inventory
// or wire, beside 100 and 10,000 volumes. There is nothing like it in stock.
func BenchmarkCore(b *testing.B) {
	at := map[int]float64{}
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := core.New(0)
			c.PutDatastore(core.Datastore{ID: "ds", Name: "ds", CapacityMB: 1 << 40})
			now := time.Now()
			make := func(id string) {
				if _, err := c.Create(now, core.CreateSpec{ID: id, Name: id, CapacityMB: 1, Metadata: core.Metadata{Cluster: core.Cluster{ID: "k"}}}); err != nil {
					b.Fatal(err)
				}
			}
			for i := range n {
				make(fmt.Sprint("old-", i))
			}
			b.ResetTimer()
			for range b.N {
				make("new")
				if _, err := c.Delete("new", false); err != nil {
					b.Fatal(err)
				}
			}
			at[n] = b.Elapsed().Seconds() / float64(b.N)
			b.ReportMetric(1/at[n], "pairs/s")
		})
	}
	if at[100] > 0 {
		ratio(b, at[10_000]/at[100], "x-at-100")
	}
}

// BenchmarkGrowth: what a pair leaves behind, in bytes of heap, once all that
// is bounded is full.
func BenchmarkGrowth(b *testing.B) {
	for _, side := range sides {
		b.Run(side.name, func(b *testing.B) {
			s, err := side.start(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			defer s.stop()
			warm := 700 // 1400 tasks: more than ours keeps
			if s.stock != nil {
				warm = 20
			}
			if err := s.pairs(b.Context(), 8, warm); err != nil {
				b.Fatal(err)
			}
			n := max(b.N, 50)
			if s.ours != nil {
				n = max(n, 500)
			}
			before := heap()
			b.ResetTimer()
			if err := s.pairs(b.Context(), 8, n); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			b.ReportMetric(0, "ns/op")
			b.ReportMetric((float64(heap())-float64(before))/float64(n), "heap-B/pair")
		})
	}
}

// BenchmarkVolumes: what there is costs, with 100 and with 10,000 volumes.
func BenchmarkVolumes(b *testing.B) {
	byID := map[string]float64{} // by side and number
	all, chosen := map[string]float64{}, map[string]float64{}
	for _, side := range sides {
		for _, n := range []int{100, 10_000} {
			b.Run(fmt.Sprintf("%s/%d", side.name, n), func(b *testing.B) {
				s := filled(b, side.name, n)
				id := s.someID(b)
				b.Run("query-id", func(b *testing.B) {
					defer reportCPU(b)()
					f := &cnstypes.CnsQueryFilter{VolumeIds: []cnstypes.CnsVolumeId{{Id: id}}}
					for range b.N {
						q, err := s.cns.QueryVolume(b.Context(), f)
						if err != nil || len(q.Volumes) != 1 {
							b.Fatal(q, err)
						}
					}
					byID[key(side.name, n)] = b.Elapsed().Seconds() / float64(b.N)
				})
				if n < 10_000 {
					return
				}
				b.Run("query-all", func(b *testing.B) {
					defer reportCPU(b)()
					for range b.N {
						if got := s.readAll(b); got != n {
							b.Fatalf("%d volumes, want %d", got, n)
						}
					}
					all[side.name] = b.Elapsed().Seconds() / float64(b.N)
				})
				// As a full sync reads them; stock sends everything all the same.
				b.Run("query-all-names", func(b *testing.B) {
					defer reportCPU(b)()
					for range b.N {
						if got := s.readAll(b, string(cnstypes.QuerySelectionNameTypeVolumeName)); got != n {
							b.Fatalf("%d volumes, want %d", got, n)
						}
					}
					chosen[side.name] = b.Elapsed().Seconds() / float64(b.N)
				})
			})
		}
	}
	for _, side := range sides {
		if few := byID[key(side.name, 100)]; few > 0 {
			b.Run(side.name, func(b *testing.B) { ratio(b, byID[key(side.name, 10_000)]/few, "x-at-100") })
		}
	}
	b.Run("query-all", func(b *testing.B) { ratio(b, all["stock"]/all["csilab"], "x-stock") })
	b.Run("query-all-names", func(b *testing.B) { ratio(b, chosen["stock"]/chosen["csilab"], "x-stock") })
}

// readAll reads all volumes as each side offers it: ours a thousand at a time.
func (s *server) readAll(b *testing.B, names ...string) int {
	f, selection := cnstypes.CnsQueryFilter{}, cnstypes.CnsQuerySelection{Names: names}
	if s.ours == nil {
		q, err := s.cns.QueryAllVolume(b.Context(), f, selection)
		if err != nil {
			b.Fatal(err)
		}
		return len(q.Volumes)
	}
	n := 0
	f.Cursor = &cnstypes.CnsCursor{Limit: 1000}
	for {
		q, err := s.cns.QueryAllVolume(b.Context(), f, selection)
		if err != nil {
			b.Fatal(err)
		}
		n += len(q.Volumes)
		if len(q.Volumes) == 0 || q.Cursor.Offset >= q.Cursor.TotalRecords {
			return n
		}
		f.Cursor = &q.Cursor
	}
}

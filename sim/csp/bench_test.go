package csp_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/csp"
)

func onTheWall(s *setup) { s.wall = true }

// BenchmarkPublishing publishes and unpublishes over HTTP with 8 workers, each
// with a volume and a node of its own, which has another one all the time, on an array with as many volumes as the
// name says. An operation is a pair.
func BenchmarkPublishing(b *testing.B) {
	for _, n := range []int{8, 10_000} {
		for _, sees := range []bool{false, true} {
			b.Run(fmt.Sprintf("volumes=%d/hostsees=%v", n, sees), func(b *testing.B) {
				r := newRig(b, onTheWall, withCSP(func(c *csp.Config) { c.In = nil; c.Sessions = 8 }))
				r.in.Ledger = nil
				r.faulty = true // nothing is checked by the contract
				r.login()
				const workers = 8
				r.volume("stays", `{"cpg":"cpg1","host_sees_vlun":"true"}`)
				for w := range workers {
					r.volume(fmt.Sprint("v", w), fmt.Sprintf(`{"cpg":"cpg1","access_protocol":"iscsi","host_sees_vlun":"%v"}`, sees))
					r.do(200, "POST", "/hosts", host(fmt.Sprint("n", w), fmt.Sprint("u", w), fmt.Sprint("iqn.a:", w)))
					r.do(200, "PUT", "/volumes/stays/actions/publish", fmt.Sprintf(`{"host_uuid":"u%d"}`, w))
				}
				r.arrays[0].fill(b, n)
				b.ResetTimer()
				var wg sync.WaitGroup
				next := make(chan struct{}, workers)
				for w := range workers {
					wg.Go(func() {
						path := fmt.Sprintf("/volumes/v%d/actions/", w)
						for range next {
							r.do(200, "PUT", path+"publish", fmt.Sprintf(`{"host_uuid":"u%d","access_protocol":"iscsi"}`, w))
							r.do(204, "PUT", path+"unpublish", fmt.Sprintf(`{"host_uuid":"u%d"}`, w))
						}
					})
				}
				for range b.N {
					next <- struct{}{}
				}
				close(next)
				wg.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
			})
		}
	}
}

// fill makes volumes that are in the way.
func (a *arrayRig) fill(b *testing.B, n int) {
	b.Helper()
	a.with(func(a *array.Array) {
		for i := range n {
			if _, err := a.CreateVolume(time.Now(), array.VolumeSpec{Name: fmt.Sprint("other", i), CPG: "cpg2", SizeMiB: 256}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkStart starts a provider and ends it.
func BenchmarkStart(b *testing.B) {
	r := newRig(b)
	cfg := r.cfg
	for b.Loop() {
		s, err := csp.New(context.Background(), cfg)
		if err != nil {
			b.Fatal(err)
		}
		s.Close()
	}
}

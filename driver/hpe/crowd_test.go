package hpe_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csilab/csilab/sim/csp"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

// Many callers at a few volumes, with replies that are lost now and then: no
// volume is ever for two nodes, and in the end everything can be taken away.
func TestCrowd(t *testing.T) {
	s := newSystem(t)
	rule := s.plan.Arm(fault.Rule{Name: "lost replies", Hop: ledger.CSP, Phase: fault.After, Do: fault.Drop(), Probability: 0.05})
	ctx := t.Context()
	holders := func(volume string) map[string]bool {
		out := map[string]bool{}
		a := s.san.Arrays()[0]
		names := map[string]string{}
		for _, v := range a.Volumes() {
			id, _ := csp.IDOf(v.Name, v.Comment)
			names[v.Name] = id
		}
		for _, e := range a.Exports() {
			if names[e.Volume] == volume {
				out[e.Host] = true
			}
		}
		return out
	}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(7, uint64(w)))
			for range 40 {
				v, node := fmt.Sprint("pvc-", r.IntN(3)), fmt.Sprint("uuid-", 1+r.IntN(2))
				var err error
				switch r.IntN(6) {
				case 0, 1:
					_, err = s.CreateVolume(ctx, s.createRequest(v, 1<<30))
				case 2, 3:
					_, err = s.publish(ctx, v, node)
				case 4:
					err = s.unpublish(ctx, v, node)
				case 5:
					err = s.delete(ctx, v)
				}
				switch status.Code(err) {
				case codes.OK, codes.Aborted, codes.NotFound, codes.FailedPrecondition, codes.Unavailable:
				default:
					t.Errorf("%v", err)
				}
				if h := holders(v); len(h) > 1 {
					t.Errorf("%s is for %v", v, h)
				}
			}
		})
	}
	wg.Wait()
	s.plan.Disarm(rule)
	for i := range 3 {
		v := fmt.Sprint("pvc-", i)
		for _, call := range []func(context.Context) error{
			func(ctx context.Context) error { return s.unpublish(ctx, v, "uuid-1") },
			func(ctx context.Context) error { return s.unpublish(ctx, v, "uuid-2") },
			func(ctx context.Context) error {
				_, err := s.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: v, Secrets: s.secrets})
				return err
			},
		} {
			if err := s.step(ctx, v, call); err != nil {
				t.Error(err)
			}
		}
	}
	if err := s.left(ctx); err != nil {
		t.Error(err)
	}
}

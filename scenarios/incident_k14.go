package scenarios

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
)

func init() {
	register(Scenario{
		Name:      "two-provisioners",
		Text:      "a provisioner has lost its lease and its call for a volume goes on, while the next leader asks for the same name: before the backend has made it, after, and all at once; whoever is answered with a volume is answered with the same one, and there is one",
		Labels:    []string{"provision", "idempotent", "crash"},
		Incidents: []string{"K14 weka/csi-wekafs#633"},
		Flow:      twoProvisioners,
		Mutation:  "provisioners that ask by a name of their own at each attempt",
		MutateOptions: func(o *sim.Options) {
			var n atomic.Int64
			o.AlterCSI = func(_ string, req any) any {
				r, ok := req.(*csi.CreateVolumeRequest)
				if !ok {
					return req
				}
				r = proto.CloneOf(r)
				r.Name += fmt.Sprintf("-%d", n.Add(1))
				return r
			}
		},
	})
}

func twoProvisioners(ctx context.Context, l *sim.Lab) error {
	const size = 256 << 20
	next := l.As("next-provisioner")
	var flows []func() error
	// The call of the first leader stands at the backend, before or after it is done.
	for _, phase := range []fault.Phase{fault.Before, fault.After} {
		name := fmt.Sprintf("%v", phase)
		c := claim(name, "fast", "256Mi")
		flows = append(flows,
			func() error {
				return midway(ctx, l, l.StorageHop(), l.Operations().Create, phase,
					func() error { return l.Create(ctx, c) },
					func() error {
						_, err := next.CreateVolume(ctx, "pvc-"+string(l.ClaimUID(name)), size, 0)
						if err := refusedWith(err, "the next leader, while the first one's call stands,", codes.Aborted); err != nil {
							return err
						}
						// The first leader's process ends; what it asked for goes on.
						l.Crash("csi-provisioner")
						return nil
					})
			},
			func() error { _, err := l.Bound(ctx, name); return err },
			func() error {
				v, err := next.CreateVolume(ctx, "pvc-"+string(l.ClaimUID(name)), size, 0)
				if err == nil && v.GetVolumeId() != l.VolumeID(name) {
					err = fmt.Errorf("the next leader got %s, the claim has %s: %w", v.GetVolumeId(), l.VolumeID(name), errUnexpected)
				}
				return err
			},
		)
	}
	return steps(append(flows,
		func() error { return backendVolumes(l, 2) },
		func() error { return atOnce(ctx, l, size) },
		func() error { return useBoth(ctx, l, "before", "after") },
		func() error { return l.Check(ctx) },
		func() error { return allGone(ctx, l, []string{"app"}, []string{"before", "after"}) },
	)...)
}

// atOnce lets four leaders ask for one name at a moment.
func atOnce(ctx context.Context, l *sim.Lab, size int64) error {
	const leaders = 4
	var wg sync.WaitGroup
	ids, errs := make([]string, leaders), make([]error, leaders)
	for i := range leaders {
		wg.Go(func() {
			var v *csi.Volume
			v, errs[i] = l.As(fmt.Sprintf("provisioner-%d", i+1)).CreateVolume(ctx, "pvc-asked-for-by-four", size, 0)
			ids[i] = v.GetVolumeId()
		})
	}
	wg.Wait()
	id := ""
	for i := range leaders {
		switch {
		case errs[i] != nil:
			if err := refusedWith(errs[i], "one of four leaders", codes.Aborted); err != nil {
				return err
			}
		case id == "":
			id = ids[i]
		case id != ids[i]:
			return fmt.Errorf("two leaders got %s and %s for one name: %w", id, ids[i], errUnexpected)
		}
	}
	if id == "" {
		return fmt.Errorf("of four leaders none got the volume: %v: %w", errs, errUnexpected)
	}
	return steps(
		func() error { return backendVolumes(l, 3) },
		func() error { return l.As("next-provisioner").DeleteVolume(ctx, id) },
		func() error { return backendVolumes(l, 2) },
	)
}

// useBoth runs one pod on two claims, and writes to each.
func useBoth(ctx context.Context, l *sim.Lab, one, two string) error {
	a := l.Nodes()[0]
	return steps(
		func() error {
			return l.Create(ctx, pod("app", a, claim(one, "fast", "256Mi"), claim(two, "fast", "256Mi")))
		},
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/"+one+"/a", one) },
		func() error { return l.Write(ctx, "app", "/"+two+"/a", two) },
	)
}

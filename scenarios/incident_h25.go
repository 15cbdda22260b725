package scenarios

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:      "odd-sizes",
		Text:      "claims ask for sizes that the backend has not: what is reported is what there is, a repeated call finds the same volume, growth too goes to what there is, and where the next size is above the limit nothing is made",
		Labels:    []string{"provision", "expand", "lost-reply"},
		Incidents: []string{"H25 hpe-storage/csi-driver release notes v2.1.0 (CON-2330), v3.2.0 (CON-4656)"},
		Flow:      oddSizes,
		Mutation:  "a provisioner that takes the size that it was told last for the one to ask for, and finds its own volume too small",
		MutateOptions: func(o *sim.Options) {
			var more atomic.Int64
			o.AlterCSI = func(_ string, req any) any {
				r, ok := req.(*csi.CreateVolumeRequest)
				if !ok {
					return req
				}
				r = proto.CloneOf(r)
				r.CapacityRange.RequiredBytes += more.Add(512 << 20)
				return r
			}
		},
	})
}

func oddSizes(ctx context.Context, l *sim.Lab) error {
	const odd = 1181116006 // 1.1 GiB
	c := claim("odd", "fast", fmt.Sprint(odd))
	tiny := claim("tiny", "fast", "1")
	// reported is what claim and volume say, and the backend has.
	reported := func(pvc string, least int64) error {
		pv, err := l.Volume(l.PVName(pvc))
		if err != nil {
			return err
		}
		have, err := l.SizeOnBackend(pvc)
		if err != nil {
			return err
		}
		if says := pv.Spec.Capacity.Storage().Value(); says != have || have < least {
			return fmt.Errorf("%s: PersistentVolume says %d bytes, the backend has %d, asked for were %d: %w", pvc, says, have, least, errUnexpected)
		}
		return nil
	}
	return steps(
		func() error {
			l.Inject(fault.Rule{Name: "the answer is lost", Hop: ledger.CSI, Op: "CreateVolume", Phase: fault.After, OnlySuccess: true, First: 2, Do: fault.Drop()})
			return l.Create(ctx, c, tiny)
		},
		func() error { _, err := l.Bound(ctx, "odd"); return err },
		func() error { _, err := l.Bound(ctx, "tiny"); return err },
		func() error { return backendVolumes(l, 2) },
		func() error { return reported("odd", odd) },
		func() error { return reported("tiny", l.Smallest()) },
		func() error {
			_, err := l.As("user").CreateVolume(ctx, "between-two-sizes", odd, odd+1)
			if status.Code(err) != codes.OutOfRange {
				return fmt.Errorf("a volume of %d to %d bytes gives %v, must be OutOfRange: %w", odd, odd+1, err, errUnexpected)
			}
			l.Note("no size that fits: %v", err)
			return backendVolumes(l, 2)
		},
		func() error { return l.Create(ctx, pod("app", "", c, tiny)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/odd/a", "of an odd size") },
		func() error { return l.Write(ctx, "app", "/tiny/a", "of the smallest size") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Detached(ctx, l.PVName("odd")) },
		func() error { return l.Expand(ctx, "odd", fmt.Sprint(2*odd+7)) },
		func() error { return l.BackendSize(ctx, "odd", fmt.Sprint(2*odd+7)) },
		func() error { return l.Create(ctx, pod("app", "", c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Expanded(ctx, "odd", fmt.Sprint(2*odd+7)) },
		func() error { return reported("odd", 2*odd+7) },
		func() error { return l.Expect(ctx, "app", "/odd/a", "of an odd size") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePVC(ctx, "odd") },
		func() error { return l.DeletePVC(ctx, "tiny") },
		func() error { return l.Empty(ctx) },
	)
}

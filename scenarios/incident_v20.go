package scenarios

import (
	"context"
	"sync/atomic"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:      "expand-reply-lost",
		Text:      "a volume grows under a pod, and each answer on the way is lost once: backend, device and claim have just what was asked for, and the backend grows it once",
		Labels:    []string{"expand", "lost-reply", "block"},
		Incidents: []string{"V20 kubernetes-sigs/vsphere-csi-driver#162, kubernetes-sigs/vsphere-csi-driver#362, kubernetes-sigs/vsphere-csi-driver#1437"},
		Flow:      expandReplyLost,
		Mutation:  "a ControllerExpandVolume that adds to the size with each attempt",
		MutateOptions: func(o *sim.Options) {
			var n atomic.Int64
			o.AlterCSI = func(_ string, req any) any {
				r, ok := req.(*csi.ControllerExpandVolumeRequest)
				if !ok {
					return req
				}
				r = proto.CloneOf(r)
				r.CapacityRange.RequiredBytes += (n.Add(1) - 1) << 28
				return r
			}
		},
	})
}

func expandReplyLost(ctx context.Context, l *sim.Lab) error {
	a, on := l.Nodes()[0], l.Operations()
	c := claim("data", "fast", "256Mi", block)
	return steps(
		func() error { return l.Create(ctx, c) },
		func() error { _, err := l.Bound(ctx, "data"); return err },
		func() error { return l.Create(ctx, pod("app", a, c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/dev/data", "before it grew") },
		func() error {
			l.Inject(fault.Rule{Name: "the backend's answer is lost", Hop: l.StorageHop(), Op: on.Expand, Phase: fault.After, Nth: 1, Do: fault.Drop()})
			l.Inject(fault.Rule{Name: "the driver's answer is lost", Hop: ledger.CSI, Op: "ControllerExpandVolume", Phase: fault.After, Nth: 1, Do: fault.Drop()})
			l.Inject(fault.Rule{Name: "the node's answer is lost", Hop: ledger.CSI, Op: "NodeExpandVolume", Phase: fault.After, Nth: 1, Do: fault.Drop()})
			return l.Expand(ctx, "data", "512Mi")
		},
		func() error { return l.Expanded(ctx, "data", "512Mi") },
		func() error { return l.BackendSize(ctx, "data", "512Mi") },
		func() error {
			if l.Backend() != sim.VSphere {
				return nil // a storage provider is told the new size, which it may hear twice
			}
			return times(l, l.StorageHop(), on.Expand, 1)
		},
		func() error { return l.Expect(ctx, "app", "/dev/data", "before it grew") },
		func() error { return l.Check(ctx) },
		func() error { return l.BackendSize(ctx, "data", "512Mi") },
		func() error { return removed(ctx, l, []string{"app"}, []string{"data"}) },
	)
}

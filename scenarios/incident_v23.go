package scenarios

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:      "volume-off-the-records",
		Text:      "CNS loses its record of a volume that a node has: it is detached all the same, no other node gets it or anything in its place, nothing is deleted, and it is used again once it is on record",
		Labels:    []string{"detach", "attach", "behind-the-back"},
		Incidents: []string{"V23 kubernetes-sigs/vsphere-csi-driver#1274, kubernetes-sigs/vsphere-csi-driver#313, kubernetes-sigs/vsphere-csi-driver#2969"},
		Backends:  []string{sim.VSphere},
		Flow:      offTheRecords,
		Mutation:  "a driver that can't detach what CNS does not know",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "unknown to CNS", Hop: ledger.CSI, Op: "ControllerUnpublishVolume",
				Do: fault.Error(status.Error(codes.Internal, "the volume is not a CNS volume"))})
		},
	})
}

func offTheRecords(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	moved := pod("moved", l.OtherNode(a), claim("data", "fast", "256Mi"))
	var again func(context.Context) error
	id := ""
	return steps(
		func() error { return used(ctx, l, "data", "app", a, "on the disk all the time") },
		func() (err error) { id = l.VolumeID("data"); again, err = l.ForgetVolume(id); return err },
		// The pod notices nothing, and can leave.
		func() error { return l.Write(ctx, "app", "/data/b", "off the records") },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Detached(ctx, l.PVName("data")) },
		func() error { return exportedTo(ctx, l, "data") },
		// Once more, with nothing left to detach.
		func() error { return l.As(caller).UnpublishVolume(ctx, id, a) },
		func() error { return l.Create(ctx, moved) },
		func() error { return l.HasEvent(ctx, moved, "FailedAttachVolume", "NotFound") },
		func() error { return noteEvent(l, "off the records", moved, "FailedAttachVolume") },
		func() error { return exportedTo(ctx, l, "data") },
		func() error { return times(l, l.StorageHop(), l.Operations().Delete, 0) },
		func() error { return times(l, l.StorageHop(), l.Operations().Create, 1) },
		func() error { return again(ctx) },
		func() error { _, err := l.Running(ctx, "moved"); return err },
		func() error { return l.Expect(ctx, "moved", "/data/a", "on the disk all the time") },
		func() error { return l.Expect(ctx, "moved", "/data/b", "off the records") },
		func() error { return l.Check(ctx) },
		func() error { return removed(ctx, l, []string{"moved"}, []string{"data"}) },
	)
}

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
		Name:      "volume-of-another-cluster",
		Text:      "a cluster is built anew and takes over a volume that another one made: it is found, attached, moved and left as it is, and neither copied nor deleted",
		Labels:    []string{"static", "attach", "upgrade"},
		Incidents: []string{"V38 kubernetes-sigs/vsphere-csi-driver#2744"},
		Flow:      volumeOfAnotherCluster,
		Mutation:  "a driver that looks for volumes of its own cluster only",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "not of this cluster", Hop: ledger.CSI, Op: "ControllerPublishVolume",
				Do: fault.Error(status.Error(codes.NotFound, "volume not found"))})
		},
	})
}

func volumeOfAnotherCluster(ctx context.Context, l *sim.Lab) error {
	id, err := l.MakeVolume(ctx, "of-the-old-cluster", "256Mi")
	if err != nil {
		return err
	}
	a, on := l.Nodes()[0], l.Operations()
	c := claim("data", "", "256Mi", volumeNamed("taken-over"))
	driver := func(e ledger.Entry) bool { return e.Component == "driver-controller" }
	return steps(
		func() error { return l.Create(ctx, volume(l, "taken-over", id, "256Mi"), c, pod("app", a, c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/data/a", "in the old volume") },
		func() error { return exportedTo(ctx, l, "data", a) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Create(ctx, pod("app", l.OtherNode(a), c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Expect(ctx, "app", "/data/a", "in the old volume") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Detached(ctx, "taken-over") },
		func() error { return l.DeletePVC(ctx, "data") },
		func() error { return l.Delete(ctx, volume(l, "taken-over", id, "256Mi")) },
		func() error { return backendVolumes(l, 1) },
		func() error { return times(l, l.StorageHop(), on.Create, 0, driver) },
		func() error { return times(l, l.StorageHop(), on.Delete, 0, driver) },
		func() error { return stillThere(l, id) },
		func() error { return l.RemoveVolume(ctx, id) },
		func() error { return l.Empty(ctx) },
	)
}

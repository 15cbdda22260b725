package scenarios

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/vcenter"
)

func init() {
	register(Scenario{
		Name:      "vm-moved-to-another-zone",
		Text:      "a node's VM is moved to hosts of another zone, and its driver starts again: the node stays what it registered as, its pods run on, a volume that its hosts don't reach is not attached, with the reason, and is once they do",
		Labels:    []string{"topology", "registration", "attach", "vm"},
		Incidents: []string{"V43 kubernetes-sigs/vsphere-csi-driver#1906"},
		Backends:  []string{sim.VSphere},
		Options: func(o *sim.Options) {
			o.VCenters = []sim.VCenter{{Name: "vc-1", Config: vcenter.Config{
				Nodes:      []vcenter.Node{{Name: "node-1", Zone: "zone-a"}, {Name: "node-2", Zone: "zone-b"}},
				Datastores: []vcenter.Datastore{{Name: "shared"}, {Name: "only-a", Zones: []string{"zone-a"}}},
			}}}
		},
		Flow:     vmMovedToAnotherZone,
		Mutation: "a driver that registers the node anew and fails because its labels say otherwise",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "the topology has changed", Hop: ledger.CSI, Op: "NodeGetInfo", Component: "kubelet@node-1",
				Do: fault.Error(status.Error(codes.Internal, "topology labels of the node differ"))})
		},
	})
}

func vmMovedToAnotherZone(ctx context.Context, l *sim.Lab) error {
	vc, a := l.VCenter(), "node-1"
	home, away := vc.HostOf(a), vc.HostOf("node-2")
	// on makes a class for one datastore.
	on := func(name string) *storagev1.StorageClass {
		wait := storagev1.VolumeBindingWaitForFirstConsumer
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: l.DriverName(), VolumeBindingMode: &wait,
			Parameters: l.Parameters(map[string]string{"datastoreurl": vc.DatastoreURL(name), "csi.storage.k8s.io/fstype": "ext4"})}
	}
	onNode := func(p *corev1.Pod) *corev1.Pod { // through the scheduler
		p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: a}
		return p
	}
	zone := func() (string, error) {
		n, err := store.Get[corev1.Node](l.Client(), "", a)
		if err != nil {
			return "", err
		}
		return n.Labels["topology.csi.vmware.com/k8s-zone"], nil
	}
	data, near := claim("data", "shared", "256Mi"), claim("near", "only-a", "256Mi")
	user := onNode(pod("user", "", near))
	var since uint64
	return steps(
		func() error { return l.Create(ctx, on("shared"), on("only-a"), data, onNode(pod("app", "", data))) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/data/a", "before the move") },
		func() error { return vc.MoveVM(a, away) },
		func() error {
			since = uint64(l.Ledger.Len())
			l.Crash("driver@" + a)
			l.Crash("registrar@" + a)
			return registersAgain(ctx, l, a, since)
		},
		func() error { return l.NodesReady(ctx) },
		func() error {
			if z, err := zone(); err != nil || z != "zone-a" {
				return fmt.Errorf("the label of %s says zone %q (%v), it registered in zone-a: %w", a, z, err, errUnexpected)
			}
			return nil
		},
		func() error { return l.Expect(ctx, "app", "/data/a", "before the move") },
		func() error { return l.Write(ctx, "app", "/data/b", "after the move") },
		// Its zone says that it reaches this one.
		func() error { return l.Create(ctx, near, user) },
		func() error { return l.HasEvent(ctx, user, "FailedAttachVolume", "") },
		func() error { return noteEvent(l, "out of reach", user, "FailedAttachVolume") },
		func() error { return exportedTo(ctx, l, "near") },
		func() error { return vc.MoveVM(a, home) },
		func() error { _, err := l.Running(ctx, "user"); return err },
		func() error { return l.Write(ctx, "user", "/near/a", "in reach") },
		func() error { return l.Expect(ctx, "app", "/data/b", "after the move") },
		func() error { return l.Check(ctx) },
		func() error { return removed(ctx, l, []string{"app", "user"}, []string{"data", "near"}) },
	)
}

package flow

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/scenarios/object"
	"github.com/csilab/csilab/sim"
)

func init() {
	c := filesystem.claim("data")
	register(Flow{
		Name: "failover",
		Text: "a node loses power and is marked out of service; its pod starts on another node with what was synced",
		Prepare: func(ctx context.Context, l *sim.Lab) error {
			return written(ctx, l, filesystem, c, "app", l.Nodes()[0], "synced before the power went")
		},
		Body: func(ctx context.Context, l *sim.Lab) error {
			a := l.Nodes()[0]
			return steps(
				func() error { return l.PowerOff(ctx, a) },
				func() error { return l.Taint(ctx, a, "node.kubernetes.io/out-of-service", corev1.TaintEffectNoExecute) },
				func() error { return l.Gone(ctx, object.Pod("app", a)) },
				func() error { return running(ctx, l, object.Pod("app", l.Nodes()[1], c)) },
			)
		},
		End: func(ctx context.Context, l *sim.Lab) error {
			return steps(
				func() error { return l.Expect(ctx, "app", filesystem.file(c.Name), "synced before the power went") },
				func() error { return l.Write(ctx, "app", filesystem.file(c.Name), "on the second node") },
				func() error { return l.PowerOn(ctx, l.Nodes()[0]) },
				func() error { return l.NodesReady(ctx) },
				func() error { return l.Check(ctx) },
				func() error { return l.Expect(ctx, "app", filesystem.file(c.Name), "on the second node") },
				func() error { return l.DeletePod(ctx, "app") },
				func() error { return l.DeletePVC(ctx, c.Name) },
			)
		},
	})

	replicated := object.Claim("data", "replicated", size)
	class := func(l *sim.Lab) *storagev1.StorageClass {
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "replicated"}, Provisioner: l.DriverName(),
			Parameters: l.Parameters(map[string]string{"csi.storage.k8s.io/fstype": "ext4", "replicationDevices": "pair", "oneRcgPerPvc": "true"})}
	}
	pair := func(o *sim.Options) { o.Arrays = 2 }
	register(Flow{
		Name:     "failover-array",
		Text:     "the first array of a pair is lost while a pod writes, comes back and gets its direction again; then the pod moves to another node, which has the volume from both",
		Backends: []string{sim.HPE},
		Options:  pair,
		Prepare: func(ctx context.Context, l *sim.Lab) error {
			return steps(
				func() error { return l.Create(ctx, class(l)) },
				func() error { return written(ctx, l, filesystem, replicated, "app", l.Nodes()[0], "with both arrays") },
			)
		},
		Body: func(ctx context.Context, l *sim.Lab) error {
			san := l.SAN()
			one, two := san.Arrays()[0].Name(), san.Arrays()[1].Name()
			return steps(
				func() error { return l.InSync(ctx, one) },
				func() error { return san.ArrayDown(one, true) },
				func() error { return l.Write(ctx, "app", filesystem.file("data"), "over one array") },
				func() error { return san.ArrayDown(one, false) },
				func() error { return san.Recover(two) },
				func() error { return l.FailBack(ctx, two) },
				func() error { return l.DeletePod(ctx, "app") },
				func() error { return running(ctx, l, object.Pod("app", l.Nodes()[1], replicated)) },
			)
		},
		End: func(ctx context.Context, l *sim.Lab) error {
			return steps(
				func() error { return l.Expect(ctx, "app", filesystem.file("data"), "over one array") },
				func() error { return l.DeletePod(ctx, "app") },
				func() error { return l.DeletePVC(ctx, "data") },
				func() error { return l.Delete(ctx, class(l)) },
			)
		},
	})
	register(Flow{
		Name:     "pair",
		Text:     "a volume is made on two arrays at once, and deleted on both",
		Backends: []string{sim.HPE},
		Options:  pair,
		Prepare:  func(ctx context.Context, l *sim.Lab) error { return l.Create(ctx, class(l)) },
		Body: func(ctx context.Context, l *sim.Lab) error {
			return steps(
				func() error { return bound(ctx, l, replicated) },
				func() error { return l.DeletePVC(ctx, replicated.Name) },
			)
		},
		End: func(ctx context.Context, l *sim.Lab) error {
			return steps(
				func() error { return bound(ctx, l, replicated) },
				func() error { return usable(ctx, l, filesystem, replicated) },
				func() error { return l.Delete(ctx, class(l)) },
			)
		},
	})
}

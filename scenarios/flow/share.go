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
	c := object.Claim("data", "files", size, func(c *corev1.PersistentVolumeClaim) {
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	})
	register(Flow{
		Name:     "share",
		Text:     "a claim gets a share of files, pods on two nodes have it at once, and one of them ends",
		Backends: []string{sim.HPE},
		Prepare: func(ctx context.Context, l *sim.Lab) error {
			if err := l.CanMountShares(); err != nil {
				return sim.Skip("shares of files: %v", err)
			}
			yes := true
			return l.Create(ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "files"}, Provisioner: l.DriverName(),
				AllowVolumeExpansion: &yes, Parameters: l.Parameters(map[string]string{"accessProtocol": "nfs"})})
		},
		Body: func(ctx context.Context, l *sim.Lab) error {
			return steps(
				func() error { return bound(ctx, l, c) },
				func() error { return running(ctx, l, object.Pod("one", l.Nodes()[0], c)) },
				func() error { return l.Write(ctx, "one", filesystem.file(c.Name), "for both") },
				func() error { return running(ctx, l, object.Pod("two", l.Nodes()[1], c)) },
				func() error { return l.Expect(ctx, "two", filesystem.file(c.Name), "for both") },
				func() error { return l.Expect(ctx, "one", filesystem.file(c.Name), "for both") }, // still
				func() error { return l.DeletePod(ctx, "one") },
				func() error { return l.AttachedTo(ctx, l.PVName(c.Name), l.Nodes()[1]) },
			)
		},
		End: func(ctx context.Context, l *sim.Lab) error {
			return steps(
				func() error { return l.Expect(ctx, "two", filesystem.file(c.Name), "for both") },
				func() error { return l.DeletePod(ctx, "two") },
				func() error { return holds(ctx, l, filesystem, c, l.Nodes()[0], "for both") },
				func() error { return l.DeletePVC(ctx, c.Name) },
				func() error {
					return l.Delete(ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "files"}})
				},
			)
		},
	})
}

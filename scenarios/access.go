package scenarios

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:     "read-write-once-pod",
		Text:     "a ReadWriteOncePod claim is for one pod: scheduler, kubelet and attach controller keep a second one out until the first is gone",
		Labels:   []string{"access", "attach", "stage"},
		Flow:     readWriteOncePod,
		Mutation: "a volume that turns ReadWriteOnce behind its claim's back, so that kubelet doesn't know it is for one pod",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "forgets Pod", Hop: ledger.Kube, Op: "create volumeattachments", Phase: fault.After, Nth: 1,
				Do: fault.Func("make it ReadWriteOnce", func(ctx context.Context, _ fault.Call) error {
					_, err := store.Modify(ctx, l.Client(), "", l.PVName("alone"), func(pv *corev1.PersistentVolume) error {
						pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
						return nil
					})
					return err
				})})
		},
	})
	register(Scenario{
		Name:     "multi-attach",
		Text:     "a pod on another node waits with an event for the pod that has its ReadWriteOnce volume, and finds the data then",
		Labels:   []string{"access", "attach", "move"},
		Flow:     multiAttach,
		Mutation: "a ControllerUnpublishVolume that answers OK and leaves the disk on the old node",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "detach lies", Hop: ledger.CSI, Op: "ControllerUnpublishVolume", Do: fault.Skip()})
		},
	})
	register(Scenario{
		Name:     "read-only-and-options",
		Text:     "a read-only pod reads and can't write, mount options of the class are in the mount table, fsGroup owns the volume",
		Labels:   []string{"access", "stage", "publish"},
		Kernel:   true,
		Flow:     readOnly,
		Mutation: "a provisioner that forgets the mount options of the class",
		Mutate:   alterVolumes("csi-provisioner", "forgets mountOptions", func(pv *corev1.PersistentVolume) { pv.Spec.MountOptions = nil }),
	})
}

func readWriteOncePod(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	c := claim("alone", "fast", "256Mi", mode(corev1.ReadWriteOncePod))
	scheduled, beside, elsewhere := pod("scheduled", "", c), pod("beside", a, c), pod("elsewhere", l.OtherNode(a), c)
	return steps(
		func() error { return l.Create(ctx, c) },
		func() error { _, err := l.Bound(ctx, "alone"); return err },
		func() error { return l.Create(ctx, pod("app", a, c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/alone/a", "from the one pod") },
		func() error { return l.Create(ctx, scheduled) },
		func() error {
			return l.HasEvent(ctx, scheduled, "FailedScheduling", "ReadWriteOncePod access mode already in-use by another pod")
		},
		// Pods that bypass the scheduler are held by kubelet, and by the
		// attach controller.
		func() error { return l.Create(ctx, beside, elsewhere) },
		func() error {
			return first(ctx,
				func(ctx context.Context) error { _, err := l.Running(ctx, "beside"); return err }, "the second pod runs",
				func(ctx context.Context) error {
					return l.HasEvent(ctx, beside, "FailedMount", "already in use by another pod")
				})
		},
		func() error { return l.HasEvent(ctx, elsewhere, "FailedAttachVolume", "Waiting for detach") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "elsewhere") },
		func() error { return l.DeletePod(ctx, "beside") },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { _, err := l.Running(ctx, "scheduled"); return err },
		func() error { return l.Expect(ctx, "scheduled", "/alone/a", "from the one pod") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "scheduled") },
		func() error { return l.DeletePVC(ctx, "alone") },
		func() error { return l.Empty(ctx) },
	)
}

// first waits for what must come, and fails at once when something else that
// must not come is there before it.
func first(ctx context.Context, not func(context.Context) error, what string, must func(context.Context) error) error {
	nctx, stop := context.WithCancel(ctx)
	mctx, give := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if not(nctx) == nil {
			give(fmt.Errorf("%s: %w", what, errUnexpected))
		}
	}()
	err := must(mctx)
	stop()
	<-done
	if err != nil && ctx.Err() == nil && errors.Is(context.Cause(mctx), errUnexpected) {
		err = context.Cause(mctx)
	}
	give(nil)
	return err
}

func multiAttach(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	c := claim("data", "fast", "256Mi")
	second := pod("second", b, c)
	return steps(
		func() error { return l.Create(ctx, c) },
		func() error { _, err := l.Bound(ctx, "data"); return err },
		func() error { return l.Create(ctx, pod("first", a, c)) },
		func() error { _, err := l.Running(ctx, "first"); return err },
		func() error { return l.Write(ctx, "first", "/data/a", "from the first") },
		func() error { return l.Create(ctx, second) },
		func() error {
			return l.HasEvent(ctx, second, "FailedAttachVolume", "Volume is already used by pod(s) first")
		},
		func() error { return l.Write(ctx, "first", "/data/b", "while the second waits") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "first") },
		func() error { _, err := l.Running(ctx, "second"); return err },
		func() error { return l.Expect(ctx, "second", "/data/a", "from the first") },
		func() error { return l.Expect(ctx, "second", "/data/b", "while the second waits") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "second") },
		func() error { return l.DeletePVC(ctx, "data") },
		func() error { return l.Empty(ctx) },
	)
}

func readOnly(ctx context.Context, l *sim.Lab) error {
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "options"}, Provisioner: l.DriverName(),
		Parameters: l.Parameters(map[string]string{"csi.storage.k8s.io/fstype": "ext4"}), MountOptions: []string{"noatime"}}
	c := claim("data", "options", "256Mi")
	writer, reader, mounted := pod("writer", "", c), pod("reader", "", c), pod("mounted-ro", "", c)
	group := int64(2345)
	writer.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	reader.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
	mounted.Spec.Containers[0].VolumeMounts[0].ReadOnly = true
	refused := func(name string) error {
		err := l.Write(ctx, name, "/data/b", "must not be")
		if err == nil || !strings.Contains(err.Error(), "read-only") {
			return fmt.Errorf("pod %s writes to a read-only volume: %v: %w", name, err, errUnexpected)
		}
		return nil
	}
	return steps(
		func() error { return l.Create(ctx, class, c, writer) },
		func() error { _, err := l.Running(ctx, "writer"); return err },
		func() error { return hasOption(ctx, l, "writer", "noatime", true) },
		func() error { return hasOption(ctx, l, "writer", "ro", false) },
		func() error {
			got, err := l.Group(ctx, "writer", "/data")
			if err == nil && int64(got) != group {
				err = fmt.Errorf("the volume belongs to group %d, fsGroup is %d: %w", got, group, errUnexpected)
			}
			return err
		},
		func() error { return l.Write(ctx, "writer", "/data/a", "to be read only") },
		func() error { return l.DeletePod(ctx, "writer") },
		func() error { return l.Create(ctx, reader) },
		func() error { _, err := l.Running(ctx, "reader"); return err },
		func() error { return l.Expect(ctx, "reader", "/data/a", "to be read only") },
		func() error { return hasOption(ctx, l, "reader", "ro", true) },
		func() error { return hasOption(ctx, l, "reader", "noatime", true) },
		func() error { return refused("reader") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "reader") },
		func() error { return l.Create(ctx, mounted) },
		func() error { _, err := l.Running(ctx, "mounted-ro"); return err },
		func() error { return l.Expect(ctx, "mounted-ro", "/data/a", "to be read only") },
		func() error { return refused("mounted-ro") },
		func() error { return l.DeletePod(ctx, "mounted-ro") },
		// Nothing of the read-only uses is left: the next pod writes again.
		func() error { return l.Create(ctx, pod("last", "", c)) },
		func() error { _, err := l.Running(ctx, "last"); return err },
		func() error { return hasOption(ctx, l, "last", "ro", false) },
		func() error { return l.Write(ctx, "last", "/data/a", "written again!!") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "last") },
		func() error { return l.DeletePVC(ctx, "data") },
		func() error { return l.Empty(ctx) },
	)
}

// hasOption checks an option of the mount that a pod has at /data.
func hasOption(ctx context.Context, l *sim.Lab, podName, option string, want bool) error {
	got, err := l.MountOptions(ctx, podName, "/data")
	if err == nil && slices.Contains(got, option) != want {
		err = fmt.Errorf("pod %s: the options of the mount are %q, %q among them: %v expected: %w", podName, got, option, want, errUnexpected)
	}
	return err
}

package scenarios

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	toolsLie := func(l *sim.Lab) {
		l.Inject(fault.Rule{Name: "the filesystem tools lie", Hop: ledger.Host, Do: fault.Skip(),
			Match: func(c fault.Call) bool { return c.Op == "exec resize2fs" || c.Op == "exec xfs_growfs" }})
	}
	register(Scenario{
		Name:      "growth-outlives-its-claim",
		Text:      "a volume has grown on the backend and not on its node when pod and claim go; the volume is kept and given to a new claim: its filesystem is grown when it is staged",
		Labels:    []string{"K54", "incident", "expand", "stage"},
		Incidents: []string{"K54 kubernetes/kubernetes#88683"},
		Flow:      growthOutlives,
		Mutation:  "filesystem tools that answer OK and grow nothing",
		Mutate:    toolsLie,
	})
	register(Scenario{
		Name:      "kubelet-killed-while-growing",
		Text:      "kubelet dies between the growth of the filesystem and its report: the claim shows the new size only once it is so, the growth is repeated, and nothing is pending at the end",
		Labels:    []string{"K55", "incident", "expand", "crash", "kubelet"},
		Incidents: []string{"K55 kubernetes/kubernetes#108693"},
		Flow:      killedWhileGrowing,
		Mutation:  "filesystem tools that answer OK and grow nothing",
		Mutate:    toolsLie,
	})
	register(Scenario{
		Name:      "growth-too-large",
		Text:      "a claim asks for more than there can be, and then for less: the lower request is served; where the first was done after all, the lower one finds the larger size and is content",
		Labels:    []string{"K56", "incident", "expand"},
		Incidents: []string{"K56 kubernetes/kubernetes#73036"},
		Flow:      growthTooLarge,
		Mutation:  "filesystem tools that answer OK and grow nothing",
		Mutate:    toolsLie,
	})
}

func growthOutlives(ctx context.Context, l *sim.Lab) error {
	grow, keep := true, corev1.PersistentVolumeReclaimRetain
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "keep-and-grow"}, Provisioner: l.DriverName(),
		Parameters: l.Parameters(map[string]string{"csi.storage.k8s.io/fstype": "ext4"}), AllowVolumeExpansion: &grow, ReclaimPolicy: &keep}
	c := claim("data", class.Name, "512Mi")
	pv, id := "", ""
	again := claim("again", class.Name, "1Gi")
	return steps(
		func() error { return l.Create(ctx, class) },
		func() error { return startWriter(ctx, l, "app", "", c, "from before it grew") },
		func() error {
			pv, id = l.PVName("data"), l.VolumeID("data")
			rule := l.Inject(fault.Rule{Name: "the node can't grow it yet", Hop: ledger.CSI, Op: "NodeExpandVolume", MayNotFire: true,
				Do: fault.Error(status.Error(codes.Internal, "not now"))})
			defer l.Disarm(rule)
			return steps(
				func() error { return l.Expand(ctx, "data", "1Gi") },
				func() error { return l.BackendSize(ctx, "data", "1Gi") },
				func() error {
					return l.Until(ctx, "the volume's object has the new size", func() bool {
						v, err := l.Volume(pv)
						return err == nil && v.Spec.Capacity.Storage().Cmp(resource.MustParse("1Gi")) >= 0
					})
				},
				func() error { return l.DeletePod(ctx, "app") },
				func() error { return l.Detached(ctx, pv) },
				func() error { return l.DeletePVC(ctx, "data") },
				func() error { return l.Released(ctx, pv) },
			)
		},
		// Somebody gives the volume to the next claim.
		func() error {
			_, err := store.Modify(ctx, l.Client(), "", pv, func(v *corev1.PersistentVolume) error { v.Spec.ClaimRef = nil; return nil })
			return err
		},
		func() error { again.Spec.VolumeName = pv; return l.Create(ctx, again) },
		func() error { _, err := l.Bound(ctx, "again"); return err },
		func() error { return l.Create(ctx, pod("next", "", again)) },
		func() error { _, err := l.Running(ctx, "next"); return err },
		func() error { return filesystemSize(l, ctx, "next", "/again", "1Gi") },
		func() error { return l.Expect(ctx, "next", "/again/a", "from before it grew") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "next") },
		func() error { return l.Detached(ctx, pv) },
		func() error { return l.DeletePVC(ctx, "again") },
		func() error { l.Retain(id); return l.Delete(ctx, mustVolume(l, pv)) },
		func() error { return l.RemoveVolume(ctx, id) },
		func() error { return l.Empty(ctx) },
	)
}

// sizeShown is what a claim's status says.
func sizeShown(l *sim.Lab, pvc string) resource.Quantity {
	c, err := l.PVC(pvc)
	if err != nil {
		return resource.Quantity{}
	}
	return c.Status.Capacity[corev1.ResourceStorage]
}

func killedWhileGrowing(ctx context.Context, l *sim.Lab) error {
	class, err := l.GrowableClass("fast", "fast-xfs")
	if err != nil {
		return sim.Skip("online growth: %v", err)
	}
	a := l.Nodes()[0]
	c := claim("data", class, "512Mi")
	return steps(
		func() error { return startWriter(ctx, l, "app", a, c, "from before it grew") },
		func() error {
			l.Inject(fault.Rule{Name: "kubelet dies", Hop: ledger.CSI, Op: "NodeExpandVolume", Component: "kubelet@" + a, Phase: fault.After, Nth: 1, Do: fault.Crash("")})
			before := l.Starts("kubelet@" + a)
			return steps(
				func() error {
					return midway(ctx, l, ledger.CSI, "NodeExpandVolume", fault.Before,
						func() error { return l.Expand(ctx, "data", "1Gi") },
						func() error {
							if q := sizeShown(l, "data"); q.Cmp(resource.MustParse("1Gi")) >= 0 {
								return fmt.Errorf("the claim shows %s before its filesystem has grown: %w", q.String(), errUnexpected)
							}
							return nil
						})
				},
				func() error { return l.Restarted(ctx, "kubelet@"+a, before) },
			)
		},
		func() error { return l.Expanded(ctx, "data", "1Gi") },
		func() error { return filesystemSize(l, ctx, "app", "/data", "1Gi") },
		func() error {
			return l.Until(ctx, "no growth is pending", func() bool {
				now, err := l.PVC("data")
				return err == nil && len(now.Status.Conditions) == 0
			})
		},
		func() error { return l.Expect(ctx, "app", "/data/a", "from before it grew") },
		func() error { return l.Check(ctx) },
		func() error { return allGone(ctx, l, []string{"app"}, []string{"data"}) },
	)
}

// requires selects a growth to a size.
func requires(size string) func(fault.Call) bool {
	q := resource.MustParse(size)
	return func(c fault.Call) bool {
		return strings.Contains(c.Request, fmt.Sprintf(`"required_bytes":%d`, q.Value()))
	}
}

func growthTooLarge(ctx context.Context, l *sim.Lab) error {
	class, err := l.GrowableClass("fast", "fast-xfs")
	if err != nil {
		return sim.Skip("online growth: %v", err)
	}
	c := claim("data", class, "512Mi")
	refuse := fault.Error(status.Error(codes.OutOfRange, "more than the quota"))
	return steps(
		func() error { return startWriter(ctx, l, "app", "", c, "from before it grew") },
		func() error {
			l.Inject(fault.Rule{Name: "more than the quota", Hop: ledger.CSI, Op: "ControllerExpandVolume", Match: requires("8Gi"), Do: refuse})
			return l.Expand(ctx, "data", "8Gi")
		},
		func() error { return l.HasEvent(ctx, c, "VolumeResizeFailed", "OutOfRange") },
		func() error { return l.BackendSize(ctx, "data", "512Mi") },
		func() error { return l.Expand(ctx, "data", "1Gi") },
		func() error { return l.Expanded(ctx, "data", "1Gi") },
		func() error { return l.BackendSize(ctx, "data", "1Gi") },
		func() error { return filesystemSize(l, ctx, "app", "/data", "1Gi") },
		func() error { return l.Check(ctx) },
		// Done, and reported as refused.
		func() error {
			l.Inject(fault.Rule{Name: "done all the same", Hop: ledger.CSI, Op: "ControllerExpandVolume", Phase: fault.After, Match: requires("3Gi"), Do: refuse})
			return l.Expand(ctx, "data", "3Gi")
		},
		func() error { return l.BackendSize(ctx, "data", "3Gi") },
		func() error {
			return l.Until(ctx, "the growth has failed", func() bool {
				es := csiCalls(l, "ControllerExpandVolume")
				return len(es) > 0 && es[len(es)-1].Fault == "done all the same"
			})
		},
		func() error { return l.Expand(ctx, "data", "2Gi") },
		func() error { return l.Expanded(ctx, "data", "2Gi") },
		func() error { return l.BackendSize(ctx, "data", "3Gi") },
		func() error { return l.Expect(ctx, "app", "/data/a", "from before it grew") },
		func() error { return l.Check(ctx) },
		func() error { return allGone(ctx, l, []string{"app"}, []string{"data"}) },
	)
}

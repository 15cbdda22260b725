package scenarios

import (
	"context"
	"fmt"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:      "created-again-with-data",
		Text:      "the request that made a volume arrives again once the volume has data, has grown and is used: the answer is the same volume, what does not fit is refused, and nothing is deleted",
		Labels:    []string{"provision", "expand", "duplicate", "block"},
		Incidents: []string{"V11 kubernetes-sigs/vsphere-csi-driver#3996, kubernetes-sigs/vsphere-csi-driver#4232"},
		Flow:      createdAgain,
		Mutation:  "a CreateVolume that deletes what has the name already and makes it anew",
		Mutate: func(l *sim.Lab) {
			var once atomic.Bool
			l.Inject(fault.Rule{Name: "made anew", Hop: ledger.CSI, Op: "CreateVolume", Component: caller,
				Do: fault.Func("delete the volume", func(ctx context.Context, _ fault.Call) error {
					if len(l.World(ctx, false).Exports) == 0 && once.CompareAndSwap(false, true) {
						return l.RemoveVolume(ctx, l.VolumeID("data"))
					}
					return nil
				})})
		},
	})
	register(Scenario{
		Name:      "deleted-while-attached",
		Text:      "somebody asks to delete a volume that a pod uses: it is refused and stays whole, it can be detached, and deleted then",
		Labels:    []string{"delete", "detach"},
		Incidents: []string{"V22 kubernetes-sigs/vsphere-csi-driver#502, kubernetes-sigs/vsphere-csi-driver#163, kubernetes-sigs/vsphere-csi-driver#558"},
		Flow:      deletedWhileAttached,
		Mutation:  "a DeleteVolume that takes the volume off the records first, and finds then that it is attached",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "off the records first", Hop: ledger.CSI, Op: "DeleteVolume", Component: caller, Nth: 1,
				Do: fault.Func("forget the volume", func(_ context.Context, c fault.Call) error { _, err := l.ForgetVolume(c.Volume); return err })})
		},
	})
}

func createdAgain(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	c := claim("data", "fast", "256Mi", block)
	id := ""
	first := resource.MustParse("256Mi")
	// same wants the same volume for the request, as it was first made.
	same := func(when string) func() error {
		return func() error {
			v, err := createAgain(ctx, l, "data", first.Value(), 0)
			if err != nil {
				return step(err, "the request again %s", when)
			}
			if v.GetVolumeId() != id || v.GetCapacityBytes() < first.Value() {
				return fmt.Errorf("the request again %s: the answer is %v, the volume is %s: %w", when, v, id, errUnexpected)
			}
			return nil
		}
	}
	other := func(what string, required, limit int64) func() error {
		return func() error {
			_, err := createAgain(ctx, l, "data", required, limit)
			return step(code(err, codes.AlreadyExists), "the request again, %s", what)
		}
	}
	return steps(
		func() error { return l.Create(ctx, c) },
		func() error { _, err := l.Bound(ctx, "data"); return err },
		func() error { id = l.VolumeID("data"); return nil },
		same("at once"),
		func() error { return l.Create(ctx, pod("app", a, c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/dev/data", "not to be lost") },
		same("while a pod uses it"),
		func() error { return l.Expand(ctx, "data", "512Mi") },
		func() error { return l.Expanded(ctx, "data", "512Mi") },
		same("after it has grown"),
		other("for more than it has", 2<<30, 0),
		other("for less than it has at the most", first.Value(), first.Value()),
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Detached(ctx, l.PVName("data")) },
		same("while nobody uses it"),
		other("for more than it has, while nobody uses it", 2<<30, 0),
		func() error { return backendVolumes(l, 1) },
		func() error { return times(l, l.StorageHop(), l.Operations().Delete, 0) },
		func() error { return l.BackendSize(ctx, "data", "512Mi") },
		func() error { return l.Create(ctx, pod("app", l.OtherNode(a), c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Expect(ctx, "app", "/dev/data", "not to be lost") },
		func() error { return l.Check(ctx) },
		func() error { return removed(ctx, l, []string{"app"}, []string{"data"}) },
	)
}

func deletedWhileAttached(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	id := ""
	refused := func(when string) error {
		if err := code(l.As(caller).DeleteVolume(ctx, id), codes.FailedPrecondition); err != nil {
			return step(err, "DeleteVolume %s", when)
		}
		return step(stillThere(l, id), "%s", when)
	}
	return steps(
		func() error { return used(ctx, l, "data", "app", a, "still in use") },
		func() error { id = l.VolumeID("data"); return nil },
		func() error { return refused("while a pod uses it") },
		func() error { return exportedTo(ctx, l, "data", a) },
		func() error { return l.Write(ctx, "app", "/data/b", "the pod goes on") },
		// While it is being detached, and not yet is.
		func() error {
			return midway(ctx, l, l.StorageHop(), l.Operations().Detach, fault.Before,
				func() error { return l.Client().Delete(ctx, pod("app", "")) },
				func() error {
					// The driver says that it is busy with the volume, or what the backend says.
					err := l.As(caller).DeleteVolume(ctx, id)
					if code(err, codes.Aborted) != nil && code(err, codes.FailedPrecondition) != nil {
						return step(code(err, codes.Aborted), "DeleteVolume")
					}
					return stillThere(l, id)
				})
		},
		func() error { return l.Gone(ctx, pod("app", "")) },
		func() error { return l.Detached(ctx, l.PVName("data")) },
		func() error { return l.Create(ctx, pod("app", l.OtherNode(a), claim("data", "fast", "256Mi"))) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Expect(ctx, "app", "/data/a", "still in use") },
		func() error { return l.Expect(ctx, "app", "/data/b", "the pod goes on") },
		func() error { return l.Check(ctx) },
		func() error { return removed(ctx, l, []string{"app"}, []string{"data"}) },
	)
}

package scenarios

import (
	"context"
	"fmt"
	"maps"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:      "attach-reply-lost",
		Text:      "an attach is done and its answer lost, at the backend and at the driver: each repeat for the same node has the first answer, with one attachment and no detach in between",
		Labels:    []string{"attach", "lost-reply"},
		Incidents: []string{"V04 kubernetes-sigs/vsphere-csi-driver#570, kubernetes-sigs/vsphere-csi-driver#580"},
		Flow:      attachReplyLost,
		Mutation:  "a ControllerPublishVolume that finds its own attachment and answers that the volume is in use",
		Mutate: func(l *sim.Lab) {
			var n atomic.Int64
			l.Inject(fault.Rule{Name: "in use by itself", Hop: ledger.CSI, Op: "ControllerPublishVolume",
				Do:    fault.Error(status.Error(codes.Internal, "The resource 'volume' is in use.")),
				Match: func(fault.Call) bool { return n.Add(1) > 1 }})
		},
	})
	register(Scenario{
		Name:      "attach-while-held",
		Text:      "a second attachment is asked for while another node holds the volume: the refusal names the holder and changes nothing, and the attachment comes about once the holder has let go",
		Labels:    []string{"attach", "access"},
		Incidents: []string{"V05 kubernetes-sigs/vsphere-csi-driver#1175, kubernetes-sigs/vsphere-csi-driver#320, kubernetes-sigs/vsphere-csi-driver#125"},
		Flow:      attachWhileHeld,
		Mutation:  "a ControllerPublishVolume that answers OK because the volume is attached somewhere",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "attached somewhere", Hop: ledger.CSI, Op: "ControllerPublishVolume", Do: fault.Skip(),
				Match: func(c fault.Call) bool { return c.Node == l.NodeID(l.Nodes()[1]) }})
		},
	})
}

func attachReplyLost(ctx context.Context, l *sim.Lab) error {
	a, on := l.Nodes()[0], l.Operations()
	c := claim("data", "fast", "256Mi")
	return steps(
		func() error { return l.Create(ctx, c) },
		func() error { _, err := l.Bound(ctx, "data"); return err },
		func() error {
			l.Inject(fault.Rule{Name: "the backend's answer is lost", Hop: l.StorageHop(), Op: on.Attach, Phase: fault.After, Nth: 1, Do: fault.Drop()})
			l.Inject(fault.Rule{Name: "the driver's answer is lost", Hop: ledger.CSI, Op: "ControllerPublishVolume", Phase: fault.After, Nth: 1, Do: fault.Drop()})
			return l.Create(ctx, pod("app", a, c))
		},
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/data/a", "attached once") },
		func() error {
			got, err := l.As(caller).PublishContext(ctx, "data", a)
			if err != nil {
				return step(err, "once more, while a pod uses it")
			}
			va := attachment(l, "data", a)
			if va == nil || !maps.Equal(got, va.Status.AttachmentMetadata) {
				return fmt.Errorf("the repeat has the publish context %v, the first had %v: %w", got, va, errUnexpected)
			}
			return nil
		},
		func() error { return exportedTo(ctx, l, "data", a) },
		func() error { return times(l, l.StorageHop(), on.Detach, 0) },
		func() error { return l.Expect(ctx, "app", "/data/a", "attached once") },
		func() error { return l.Check(ctx) },
		func() error { return removed(ctx, l, []string{"app"}, []string{"data"}) },
	)
}

func attachWhileHeld(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	second := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "second"}}
	state := func() *storagev1.VolumeAttachment {
		if va := attachment(l, "data", b); va != nil {
			return va
		}
		return second
	}
	return steps(
		func() error { return used(ctx, l, "data", "app", a, "of the holder") },
		func() error {
			pv := l.PVName("data")
			second.Spec = storagev1.VolumeAttachmentSpec{Attacher: l.DriverName(), NodeName: b, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}}
			return l.Create(ctx, second)
		},
		func() error {
			return await(ctx, l, "the second attachment is refused", func() (bool, error) {
				va := state()
				if va.Status.Attached {
					return false, fmt.Errorf("it is attached to %s while %s holds it: %w", b, a, errUnexpected)
				}
				e := va.Status.AttachError
				if e == nil {
					return false, nil
				}
				if e.ErrorCode == nil || codes.Code(*e.ErrorCode) != codes.FailedPrecondition || !l.Tells(e.Message, a) {
					return false, fmt.Errorf("%q: expected is FailedPrecondition, with the name of %s: %w", e.Message, a, errUnexpected)
				}
				l.Note("refused: %s", e.Message)
				return true, nil
			})
		},
		func() error { return exportedTo(ctx, l, "data", a) },
		func() error { return l.Write(ctx, "app", "/data/b", "the holder goes on") },
		func() error { return l.DeletePod(ctx, "app") },
		func() error {
			return await(ctx, l, "the second attachment comes about", func() (bool, error) { return state().Status.Attached, nil })
		},
		func() error { return exportedTo(ctx, l, "data", b) },
		func() error { return l.Delete(ctx, second) },
		func() error { return l.Create(ctx, pod("app", b, claim("data", "fast", "256Mi"))) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Expect(ctx, "app", "/data/a", "of the holder") },
		func() error { return l.Expect(ctx, "app", "/data/b", "the holder goes on") },
		func() error { return l.Check(ctx) },
		func() error { return removed(ctx, l, []string{"app"}, []string{"data"}) },
	)
}

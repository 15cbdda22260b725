package scenarios

import (
	"context"
	"fmt"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:      "vm-snapshot-pins-disk",
		Text:      "somebody takes a snapshot of a node's VM, which holds its disks: a detach fails with the reason and is tried again, and done once the snapshot is gone",
		Labels:    []string{"detach", "vm"},
		Incidents: []string{"V40 kubernetes-sigs/vsphere-csi-driver#478, kubernetes-sigs/vsphere-csi-driver#320"},
		Backends:  []string{sim.VSphere},
		Flow:      vmSnapshotPinsDisk,
		Mutation:  "a ControllerUnpublishVolume that answers OK although the VM did not let go",
		Mutate:    lies("ControllerUnpublishVolume"),
	})
	register(Scenario{
		Name:      "tracking-stands-against-attach",
		Text:      "a backup tool leaves change tracking on at a disk: it can't be attached to a VM without, the event says why, nothing stays half attached, and it is attached once the flag is cleared",
		Labels:    []string{"attach", "vm"},
		Incidents: []string{"V07 kubernetes-sigs/vsphere-csi-driver#1590, kubernetes-sigs/vsphere-csi-driver#1416, vmware-samples/cloud-native-storage-self-service-manager#12"},
		Backends:  []string{sim.VSphere},
		Flow:      trackingStandsAgainstAttach,
		Mutation:  "a driver that keeps the reason to itself",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "no reason", Hop: ledger.CSI, Op: "ControllerPublishVolume", Phase: fault.After,
				Do:    fault.Error(status.Error(codes.Internal, "failed to attach disk")),
				Match: func(c fault.Call) bool { return c.Node == l.NodeID(l.Nodes()[1]) }})
		},
	})
	register(Scenario{
		Name:      "detach-overtaken",
		Text:      "a pod is deleted and made again before its volume is detached, on the same node and on another one: the detach ends first, then the attach comes, and the volume is where the last pod is",
		Labels:    []string{"detach", "attach", "move"},
		Incidents: []string{"V41 kubernetes-sigs/vsphere-csi-driver#3749, kubernetes-sigs/vsphere-csi-driver#3848"},
		Flow:      detachOvertaken,
		Mutation:  "an attach that is left out because the volume is attached, while its detach is on the way",
		Mutate: func(l *sim.Lab) {
			var n atomic.Int64
			l.Inject(fault.Rule{Name: "attached already", Hop: ledger.CSI, Op: "ControllerPublishVolume", Do: fault.Skip(),
				Match: func(fault.Call) bool { return n.Add(1) > 1 }})
		},
	})
}

func vmSnapshotPinsDisk(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	return steps(
		func() error { return used(ctx, l, "data", "app", a, "before the snapshot of the VM") },
		func() error { return l.VCenter().SnapshotVM(a, "before-maintenance") },
		func() error { return l.DeletePod(ctx, "app") },
		func() error {
			return await(ctx, l, "the detach is refused", func() (bool, error) {
				va := attachment(l, "data", a)
				if va == nil {
					return false, fmt.Errorf("the VolumeAttachment of %s is gone, the VM still has the disk: %w", a, errUnexpected)
				}
				e := va.Status.DetachError
				if e != nil {
					l.Note("refused: %s", e.Message)
				}
				return e != nil && l.Tells(e.Message, a), nil
			})
		},
		func() error { return exportedTo(ctx, l, "data", a) },
		func() error { return l.VCenter().RemoveVMSnapshots(a) },
		func() error { return l.Detached(ctx, l.PVName("data")) },
		func() error { return l.Create(ctx, pod("app", b, claim("data", "fast", "256Mi"))) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Expect(ctx, "app", "/data/a", "before the snapshot of the VM") },
		func() error { return l.Check(ctx) },
		func() error { return removed(ctx, l, []string{"app"}, []string{"data"}) },
	)
}

func trackingStandsAgainstAttach(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	moved := pod("moved", l.OtherNode(a), claim("data", "fast", "256Mi"))
	return steps(
		func() error { return used(ctx, l, "data", "app", a, "backed up") },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Detached(ctx, l.PVName("data")) },
		func() error { return l.TrackChanges(ctx, "data", true) },
		func() error { return l.Create(ctx, moved) },
		func() error { return l.HasEvent(ctx, moved, "FailedAttachVolume", "tracking") },
		func() error { return noteEvent(l, "with tracking on", moved, "FailedAttachVolume") },
		func() error { return exportedTo(ctx, l, "data") },
		func() error { return l.TrackChanges(ctx, "data", false) },
		func() error { _, err := l.Running(ctx, "moved"); return err },
		func() error { return l.Expect(ctx, "moved", "/data/a", "backed up") },
		func() error {
			if n := l.Starts("driver-controller"); n != 1 {
				return fmt.Errorf("the driver was started %d times: %w", n, errUnexpected)
			}
			return nil
		},
		func() error { return l.Check(ctx) },
		func() error { return removed(ctx, l, []string{"moved"}, []string{"data"}) },
	)
}

func detachOvertaken(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	c := claim("data", "fast", "256Mi")
	again := func(name, from, to, content string) error {
		return step(steps(
			func() error {
				return midway(ctx, l, ledger.CSI, "ControllerUnpublishVolume", fault.Before,
					func() error { return l.DeletePod(ctx, "app") },
					func() error { return l.Create(ctx, pod("app", to, c)) })
			},
			func() error { _, err := l.Running(ctx, "app"); return err },
			func() error { return exportedTo(ctx, l, "data", to) },
			func() error { return l.Expect(ctx, "app", "/data/a", "where the pod is") },
			func() error { return l.Write(ctx, "app", "/data/"+name, content) },
			func() error { return l.Check(ctx) },
		), "from %s to %s", from, to)
	}
	return steps(
		func() error { return used(ctx, l, "data", "app", a, "where the pod is") },
		func() error { return again("b", a, a, "on the same node again") },
		func() error { return again("c", a, b, "on the other node") },
		func() error { return again("d", b, a, "and back") },
		func() error { return removed(ctx, l, []string{"app"}, []string{"data"}) },
	)
}

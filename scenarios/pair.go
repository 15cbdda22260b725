package scenarios

import (
	"context"
	"fmt"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/san"
)

func init() {
	register(Scenario{
		Name:      "peer-persistence",
		Text:      "a volume is on two arrays at once; the primary is lost while a pod writes, and comes back: the pod goes on over the other array, what is asked of the lost one waits with an event, and at the end both are as they were, then empty",
		Labels:    []string{"attach", "stage", "failover", "replication"},
		Incidents: []string{"H28 hpe-storage/scod B10000 (limits of Classic Peer Persistence)"},
		Backends:  onArray,
		Options:   func(o *sim.Options) { o.Arrays = 2 },
		Flow:      peerPersistence,
		Mutation:  "a ControllerUnpublishVolume that answers OK and leaves the exports",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "detach lies", Hop: ledger.CSI, Op: "ControllerUnpublishVolume", Do: fault.Skip()})
		},
	})
}

func init() {
	register(Scenario{
		Name:      "active-peer-persistence",
		Incidents: []string{"H28 hpe-storage/csi-driver#565 (CON-4193)"},
		Text:      "two arrays take I/O at once; while the first is lost a pod goes on, and one that starts only now gets its volume from the other array; what would change the lost one waits until it is back",
		Labels:    []string{"attach", "stage", "failover", "replication"},
		Backends:  onArray,
		Options:   func(o *sim.Options) { o.Arrays = 2 },
		Flow:      activePeerPersistence,
		Mutation:  "a ControllerUnpublishVolume that answers OK and leaves the exports",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "detach lies", Hop: ledger.CSI, Op: "ControllerUnpublishVolume", Do: fault.Skip()})
		},
	})
}

func activePeerPersistence(ctx context.Context, l *sim.Lab) error {
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "active"}, Provisioner: l.DriverName(),
		Parameters: l.Parameters(map[string]string{"csi.storage.k8s.io/fstype": "ext4", "replicationDevices": "pair", "oneRcgPerPvc": "true", "replicationPolicy": "active"})}
	data, idle, late := claim("data", "active", "256Mi"), claim("idle", "active", "256Mi"), claim("late", "active", "256Mi")
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	san := l.SAN()
	one, two := san.Arrays()[0], san.Arrays()[1]
	return steps(
		func() error { return l.Create(ctx, class, data, idle) },
		func() error { _, err := l.Bound(ctx, "data"); return err },
		func() error { _, err := l.Bound(ctx, "idle"); return err },
		func() error { return l.Create(ctx, pod("app", a, data)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/data/a", "with both arrays") },
		// A path that is lost leaves the others, also those of the array that is not
		// primary.
		func() error { return l.InSync(ctx, one.Name()) },
		func() error { return down(san, a, one, true) },
		func() error { return l.Write(ctx, "app", "/data/b", "over the second's paths") },
		func() error { return down(san, a, one, false) },
		func() error { return l.Expect(ctx, "app", "/data/b", "over the second's paths") },
		func() error { return l.Check(ctx) },

		func() error { return san.ArrayDown(one.Name(), true) },
		func() error { return l.Write(ctx, "app", "/data/c", "over the second alone") },
		func() error { return l.Create(ctx, pod("first", b, idle), late) },
		func() error { _, err := l.Running(ctx, "first"); return err },
		func() error { return l.Write(ctx, "first", "/idle/a", "while the first array is lost") },
		func() error { return l.HasEvent(ctx, late, "ProvisioningFailed", "") },

		func() error { return san.ArrayDown(one.Name(), false) },
		func() error { return san.Recover(two.Name()) },
		func() error { return l.FailBack(ctx, two.Name()) },
		func() error { _, err := l.Bound(ctx, "late"); return err },
		func() error { return l.Expect(ctx, "app", "/data/c", "over the second alone") },
		func() error { return l.Expect(ctx, "first", "/idle/a", "while the first array is lost") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "first") },
		func() error { return l.Create(ctx, pod("first", a, idle)) },
		func() error { _, err := l.Running(ctx, "first"); return err },
		func() error { return l.Expect(ctx, "first", "/idle/a", "while the first array is lost") },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePod(ctx, "first") },
		func() error { return l.DeletePVC(ctx, "data") },
		func() error { return l.DeletePVC(ctx, "idle") },
		func() error { return l.DeletePVC(ctx, "late") },
		func() error { return l.Empty(ctx) },
	)
}

// down cuts a node off from all ports of an array, or connects it again.
func down(s *san.SAN, node string, a *san.Array, yes bool) error {
	for _, p := range a.Ports() {
		if p.Type != array.HostPort && p.Type != array.ISCSIPort {
			continue
		}
		if err := s.PathDown(node, a.Name(), p.PortPos, yes); err != nil {
			return err
		}
	}
	return nil
}

// onBoth requires that two arrays export a claim's volume to a node, under the
// serial number that it had before.
func onBoth(l *sim.Lab, pvc, node string, serial *string) error {
	on := map[string]bool{}
	for _, x := range l.LUNs(node) {
		if x.VolumeID == l.VolumeID(pvc) {
			on[x.Array] = true
		}
	}
	if len(on) != 2 {
		return fmt.Errorf("%s has the volume from %d arrays: %w", node, len(on), errUnexpected)
	}
	_, v, err := l.ArrayVolume(pvc)
	if err == nil && *serial != "" && v.WWN != *serial {
		err = fmt.Errorf("the volume is %s, it was %s: %w", v.WWN, *serial, errUnexpected)
	}
	*serial = v.WWN
	return err
}

func peerPersistence(ctx context.Context, l *sim.Lab) error {
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "replicated"}, Provisioner: l.DriverName(),
		Parameters: l.Parameters(map[string]string{"csi.storage.k8s.io/fstype": "ext4", "replicationDevices": "pair", "oneRcgPerPvc": "true"})}
	c, late := claim("data", "replicated", "256Mi"), claim("late", "fast", "256Mi")
	other := claim("other", "replicated", "256Mi")
	waits := pod("waits", l.OtherNode(l.Nodes()[0]), other)
	serial := ""
	a := l.Nodes()[0]
	san := l.SAN()
	one, two := san.Arrays()[0], san.Arrays()[1]
	return steps(
		func() error { return l.Create(ctx, class, c, other) },
		func() error { _, err := l.Bound(ctx, "data"); return err },
		func() error { _, err := l.Bound(ctx, "other"); return err },
		func() error { return l.Create(ctx, pod("app", a, c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return onBoth(l, "data", a, &serial) },
		func() error { return l.Write(ctx, "app", "/data/a", "with both arrays") },
		func() error { return l.Check(ctx) },

		func() error { return l.InSync(ctx, one.Name()) },
		func() error { return san.ArrayDown(one.Name(), true) },
		func() error { return l.Write(ctx, "app", "/data/b", "over the second alone") },
		func() error { return l.Expect(ctx, "app", "/data/a", "with both arrays") },
		func() error { return l.Create(ctx, late) },
		func() error { return l.HasEvent(ctx, late, "ProvisioningFailed", "") },
		func() error { return noteEvent(l, "while the first array is lost", late, "ProvisioningFailed") },
		// Classic Peer Persistence keeps the data path only: a publish waits, and no
		// half of it is done.
		func() error { return l.Create(ctx, waits) },
		func() error { return notAttached(ctx, l, "other", waits, "") },
		func() error { return noteEvent(l, "while the first array is lost", waits, "FailedAttachVolume") },
		func() error {
			if xs := l.LUNs(waits.Spec.NodeName); len(xs) > 0 {
				return fmt.Errorf("%s has %v: %w", waits.Spec.NodeName, xs, errUnexpected)
			}
			return nil
		},

		func() error { return san.ArrayDown(one.Name(), false) },
		func() error { return l.Expect(ctx, "app", "/data/b", "over the second alone") },
		// Nothing fails back by itself: somebody lets the first catch up, and gives
		// the groups their direction again.
		func() error { return san.Recover(two.Name()) },
		func() error { return l.FailBack(ctx, two.Name()) },
		func() error { return l.Write(ctx, "app", "/data/c", "with both again") },
		func() error { return l.Expect(ctx, "app", "/data/b", "over the second alone") },
		func() error { _, err := l.Bound(ctx, "late"); return err },
		func() error { return onBoth(l, "data", a, &serial) },
		func() error { _, err := l.Running(ctx, "waits"); return err },
		func() error { return l.Write(ctx, "waits", "/other/a", "after the outage") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "waits") },
		func() error { return l.DeletePVC(ctx, "other") },
		// The other node too has it from both.
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Create(ctx, pod("app", l.OtherNode(a), c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Expect(ctx, "app", "/data/c", "with both again") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePVC(ctx, "data") },
		func() error { return l.DeletePVC(ctx, "late") },
		func() error { return l.Empty(ctx) },
		func() error {
			for _, x := range san.Arrays() {
				if n := len(x.Volumes()) + len(x.Exports()) + len(x.Groups()); n > 0 {
					return fmt.Errorf("%s has %d volumes, exports and groups left: %w", x.Name(), n, errUnexpected)
				}
			}
			return nil
		},
	)
}

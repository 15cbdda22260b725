package scenarios

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:      "shared-block-grows-on-each-node",
		Text:      "a block volume that two nodes use grows while the kubelet of the second does not reach the API server: the first tells the new size, and the second node's device grows too once its kubelet hears of it",
		Labels:    []string{"expand", "block", "kubelet"},
		Incidents: []string{"K55 kubernetes/kubernetes#131402"},
		Backends:  onArray,
		Flow:      sharedBlockGrows,
		Mutation:  "a node whose multipathd answers OK to a resize and does nothing",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "multipathd lies", Hop: ledger.Host, Op: "exec multipathd", Component: "driver@" + l.OtherNode(l.Nodes()[0]),
				Do: fault.Skip(), Match: func(c fault.Call) bool { return strings.Contains(c.Request, "resize") }})
		},
	})
}

// mapBytes is the size of a claim's multipath map on a node.
func mapBytes(l *sim.Lab, pvc, node string) (int64, error) {
	_, v, err := l.ArrayVolume(pvc)
	if err != nil {
		return 0, err
	}
	return l.Host(node).DeviceSize("/dev/disk/by-id/dm-uuid-mpath-3" + strings.ToLower(v.WWN))
}

func sharedBlockGrows(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	c := claim("shared", "fast", "256Mi", block, mode(corev1.ReadWriteMany))
	kubelet := "kubelet@" + b
	var heal func()
	size := func(node string, want int64) error {
		got, err := mapBytes(l, "shared", node)
		if err == nil && got != want {
			err = fmt.Errorf("the device on %s has %d bytes, must have %d: %w", node, got, want, errUnexpected)
		}
		return err
	}
	return steps(
		func() error { return l.Create(ctx, c, pod("one", a, c), pod("two", b, c)) },
		func() error { _, err := l.Running(ctx, "one"); return err },
		func() error { _, err := l.Running(ctx, "two"); return err },
		func() error { return l.Write(ctx, "one", "/dev/shared", "of both") },
		func() error { return l.Expect(ctx, "two", "/dev/shared", "of both") },
		// One that is restarted would take the claim's new size for its device's, and
		// wait for the next stage (k8s v1.37,
		// pkg/kubelet/volumemanager/populator, checkVolumeFSResize).
		func() (err error) { heal, err = l.Partition(sim.Partition{A: kubelet, B: "apiserver"}); return err },
		func() error { return l.Expand(ctx, "shared", "512Mi") },
		func() error { return l.Expanded(ctx, "shared", "512Mi") },
		func() error { return size(a, 512<<20) },
		func() error { return size(b, 256<<20) },
		func() error { heal(); return nil },
		func() error {
			return step(l.Until(ctx, "the second node's device has grown", func() bool { return size(b, 512<<20) == nil }), "%v", size(b, 512<<20))
		},
		func() error { return l.Expect(ctx, "two", "/dev/shared", "of both") },
		func() error { return l.Check(ctx) },
		func() error { return allGone(ctx, l, []string{"one", "two"}, []string{"shared"}) },
	)
}

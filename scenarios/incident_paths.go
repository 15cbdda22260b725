package scenarios

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:      "late-path-goes-too",
		Text:      "a path of a volume turns up long after its stage: the unstage takes it off the node with the others, and the LUN number can be another volume's without a stale disk in its way",
		Labels:    []string{"K35", "incident", "stage", "lun"},
		Incidents: []string{"K35 IBM/ibm-block-csi-driver#288", "K35 Seagate/seagate-exos-x-csi#138"},
		Backends:  onArray,
		Flow:      latePath,
		Mutation:  "an unstage whose removal of disks does nothing",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "disks stay", Hop: ledger.Host, Op: "WriteFile", Do: fault.Skip(),
				Match: func(c fault.Call) bool { return strings.Contains(c.Request, "/delete") }})
		},
	})
	register(Scenario{
		Name:      "all-paths-lost-at-unstage",
		Text:      "a node loses all paths while a pod is deleted: no unstage is reported done that is not, each ends in its time, other nodes work on, and all is cleared when the paths are back",
		Labels:    []string{"K37", "incident", "stage", "path-loss"},
		Incidents: []string{"K37 NetApp/trident#812"},
		Backends:  onArray,
		Flow:      allPathsLost,
		Mutation:  "a NodeUnstageVolume that answers OK and leaves the map and its mount",
		Mutate:    lies("NodeUnstageVolume"),
	})
}

// onePath cuts a node off from one port of the array over which it has paths.
func onePath(l *sim.Lab, node string) (restore func() error, err error) {
	s := l.SAN()
	a := s.Arrays()[0]
	protocol := array.FC
	if l.Options().Protocol == "iscsi" {
		protocol = array.ISCSI
	}
	for _, p := range a.Ports() {
		if p.Protocol != protocol {
			continue
		}
		return func() error { return s.PathDown(node, a.Name(), p.PortPos, false) }, s.PathDown(node, a.Name(), p.PortPos, true)
	}
	return nil, fmt.Errorf("array %s has no port for hosts", a.Name())
}

// scsiDisks counts a node's disks, each path on its own.
func scsiDisks(l *sim.Lab, node string) (n int) {
	es, _ := l.Host(node).ReadDir("/dev")
	for _, e := range es {
		if strings.HasPrefix(e.Name(), "sd") {
			n++
		}
	}
	return n
}

func latePath(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	one, two := claim("one", "fast", "256Mi"), claim("two", "fast", "256Mi")
	var restore func() error
	number, none, few := 0, 0, 0
	return steps(
		// The node knows all ports, and has lost one of them.
		func() error { return startWriter(ctx, l, "before", a, two, "of the second volume") },
		func() error { return l.DeletePod(ctx, "before") },
		func() error { return l.Detached(ctx, l.PVName("two")) },
		func() (err error) { none = scsiDisks(l, a); restore, err = onePath(l, a); return err },
		func() error { return startWriter(ctx, l, "app", a, one, "of the first volume") },
		func() (err error) { number, err = lun(l, "one", a); return err },
		func() error { few = scsiDisks(l, a); return restore() },
		// Somebody's scan finds what came late.
		func() error {
			return l.Until(ctx, "the late path has turned up", func() bool {
				_, err := l.Host(a).Exec().Command("rescan-scsi-bus.sh").CombinedOutput()
				return err == nil && scsiDisks(l, a) > few
			})
		},
		func() error { return l.Expect(ctx, "app", "/one/a", "of the first volume") },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Detached(ctx, l.PVName("one")) },
		func() error {
			if n := scsiDisks(l, a); n != none {
				return fmt.Errorf("%s has %d disks, had %d before: %w", a, n, none, errUnexpected)
			}
			return nil
		},
		func() error { return startReader(ctx, l, "next", a, two, "of the second volume") },
		func() error {
			n, err := lun(l, "two", a)
			if err == nil && n != number {
				err = fmt.Errorf("the second volume has LUN %d, the first had %d: %w", n, number, errUnexpected)
			}
			return err
		},
		func() error { return l.Check(ctx) },
		func() error { return allGone(ctx, l, []string{"next"}, []string{"one", "two"}) },
	)
}

func allPathsLost(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	c, other := claim("data", "fast", "256Mi"), claim("other", "fast", "256Mi")
	var from uint64
	return steps(
		func() error { return startWriter(ctx, l, "app", a, c, "synced before") },
		func() error {
			from = now(l)
			l.SAN().NodeCut(a, true)
			p, err := l.Pod("app")
			if err != nil {
				return err
			}
			return l.Client().Delete(ctx, p)
		},
		func() error {
			return l.Until(ctx, "the unstage was asked for", func() bool { return len(csiCalls(l, "NodeUnstageVolume", ledger.After(from))) > 0 })
		},
		func() error { return startWriter(ctx, l, "user", b, other, "on a node with paths") },
		func() error {
			limit := longer(l, 10*time.Second, 2*time.Minute) // kubelet's deadline
			for _, e := range csiCalls(l, "NodeUnstageVolume", ledger.After(from)) {
				if e.Outcome != ledger.Pending && e.Duration > limit+time.Second {
					return fmt.Errorf("an unstage without paths took %v: %w", e.Duration, errUnexpected)
				}
			}
			return l.Broken(ctx)
		},
		func() error { l.SAN().NodeCut(a, false); return nil },
		func() error { return l.Gone(ctx, pod("app", a)) },
		func() error { return l.Detached(ctx, l.PVName("data")) },
		func() error { return startReader(ctx, l, "next", b, c, "synced before") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "next") },
		func() error { return startReader(ctx, l, "next", a, c, "synced before") },
		func() error { return l.Check(ctx) },
		func() error { return allGone(ctx, l, []string{"next", "user"}, []string{"data", "other"}) },
	)
}

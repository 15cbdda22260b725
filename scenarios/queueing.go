package scenarios

import (
	"context"
	"fmt"
	"strings"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:      "all-paths-lost-while-queueing",
		Text:      "a node whose multipath queues without end loses all paths: what a pod writes waits and is there when a path is back; a pod that is deleted meanwhile goes, for the driver ends the queue before it unmounts; other nodes work on",
		Labels:    []string{"K37", "incident", "stage", "path-loss"},
		Incidents: []string{"K37 NetApp/trident#803"},
		Backends:  onArray,
		Options:   func(o *sim.Options) { o.NoPathRetry = host.RetryForever },
		Flow:      queueing,
		Mutation:  "a driver whose command that ends the queue does nothing",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "the queue stays", Hop: ledger.Host, Op: "exec dmsetup", Do: fault.Skip(),
				Match: func(c fault.Call) bool { return strings.Contains(c.Request, "fail_if_no_path") }})
		},
	})
	register(Scenario{
		Name:      "stale-mounts-while-queueing",
		Text:      "a kubelet of a node whose multipath queues without end is down while one of its volumes moves to another node: the paths that are left still say who they were, and the unmount does not wait for one of them to work again",
		Labels:    []string{"K37", "incident", "unstage", "node-loss", "path-loss"},
		Incidents: []string{"K37 NetApp/trident#812"},
		Backends:  onArray,
		Options:   func(o *sim.Options) { o.NoPathRetry = host.RetryForever },
		Flow:      staleMounts,
		Mutation:  "a driver whose command that ends the queue does nothing",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "the queue stays", Hop: ledger.Host, Op: "exec dmsetup", Do: fault.Skip(),
				Match: func(c fault.Call) bool { return strings.Contains(c.Request, "fail_if_no_path") }})
		},
	})
}

func queueing(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	c, other := claim("data", "fast", "256Mi"), claim("other", "fast", "256Mi")
	write := make(chan error, 1)
	return steps(
		func() error { return startWriter(ctx, l, "app", a, c, "synced before") },
		func() error {
			l.SAN().NodeCut(a, true)
			go func() { write <- l.Write(ctx, "app", "/data/a", "synced after") }()
			return startWriter(ctx, l, "user", b, other, "on a node with paths")
		},
		func() error {
			select {
			case err := <-write:
				return fmt.Errorf("a write without a path ended (%v): %w", err, errUnexpected)
			default:
			}
			l.SAN().NodeCut(a, false)
			return step(<-write, "a write that waited for a path")
		},
		func() error { return l.Expect(ctx, "app", "/data/a", "synced after") },
		func() error { return l.WriteUnsynced(ctx, "app", "/data/b", "on its way") },
		func() error { l.SAN().NodeCut(a, true); return l.DeletePod(ctx, "app") },
		func() error { return l.Detached(ctx, l.PVName("data")) },
		func() error { return l.Broken(ctx) },
		func() error { return startReader(ctx, l, "next", b, c, "synced after") },
		func() error { l.SAN().NodeCut(a, false); return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "next") },
		func() error { return startReader(ctx, l, "next", a, c, "synced after") },
		func() error { return l.Check(ctx) },
		func() error { return allGone(ctx, l, []string{"next", "user"}, []string{"data", "other"}) },
	)
}

package scenarios

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:     "many",
		Text:     "twenty claims and pods at once are provisioned, written, moved to other nodes and read, and deleted",
		Labels:   []string{"attach", "move", "load"},
		Options:  func(o *sim.Options) { o.Nodes = 3 },
		Long:     true,
		Flow:     many,
		Mutation: "one ControllerUnpublishVolume of many answers OK and leaves its disk where it was",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "one detach lies", Hop: ledger.CSI, Op: "ControllerUnpublishVolume", Nth: 13, Do: fault.Skip()})
		},
	})
}

func many(ctx context.Context, l *sim.Lab) error {
	const n = 20
	name := func(kind string, i int) string { return fmt.Sprintf("%s%d", kind, i) }
	file := func(i int) string { return "/" + name("c", i) + "/a" }
	text := func(i int) string { return fmt.Sprintf("volume number %d", i) }
	claims := make([]*corev1.PersistentVolumeClaim, n)
	from := make([]string, n)
	// all does something for each of them at once and notes how long it took.
	all := func(what string, do func(ctx context.Context, i int) error) error {
		start := time.Now()
		g, gctx := errgroup.WithContext(ctx)
		for i := range n {
			g.Go(func() error { return step(do(gctx, i), "%s, number %d", what, i) })
		}
		err := g.Wait()
		l.Note("%d %s: %d ms", n, what, time.Since(start).Milliseconds())
		return err
	}
	return steps(
		func() error {
			return all("claims and pods created and running", func(ctx context.Context, i int) error {
				claims[i] = claim(name("c", i), "fast", "16Mi")
				if err := l.Create(ctx, claims[i], pod(name("p", i), "", claims[i])); err != nil {
					return err
				}
				p, err := l.Running(ctx, name("p", i))
				if err == nil {
					from[i] = p.Spec.NodeName
				}
				return err
			})
		},
		func() error {
			return all("volumes written", func(ctx context.Context, i int) error { return l.Write(ctx, name("p", i), file(i), text(i)) })
		},
		func() error {
			return all("volumes read", func(ctx context.Context, i int) error { return l.Expect(ctx, name("p", i), file(i), text(i)) })
		},
		func() error { return l.Check(ctx) },
		func() error {
			return all("pods moved", func(ctx context.Context, i int) error {
				return steps(
					func() error { return l.DeletePod(ctx, name("p", i)) },
					func() error { return l.Create(ctx, pod(name("p", i), l.OtherNode(from[i]), claims[i])) },
					func() error { _, err := l.Running(ctx, name("p", i)); return err },
					func() error { return l.Expect(ctx, name("p", i), file(i), text(i)) },
				)
			})
		},
		func() error { return l.Check(ctx) },
		func() error {
			return all("pods and claims deleted", func(ctx context.Context, i int) error {
				if err := l.DeletePod(ctx, name("p", i)); err != nil {
					return err
				}
				return l.DeletePVC(ctx, name("c", i))
			})
		},
		func() error { return l.Empty(ctx) },
	)
}

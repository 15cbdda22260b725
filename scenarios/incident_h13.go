package scenarios

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	asks := func(op string) func(*sim.Lab) {
		return func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: op + " asks the backend", Hop: ledger.CSI, Op: op,
				Do: fault.Func("ask the backend", func(ctx context.Context, c fault.Call) error { return l.AskBackend(ctx, "driver@"+c.Node) })})
		}
	}
	register(Scenario{
		Name:      "published-without-the-backend",
		Text:      "pods of a volume that is staged come, go and are restarted on their node while the backend answers nobody; its driver there asks the backend for nothing",
		Labels:    []string{"publish", "stage", "outage"},
		Incidents: []string{"H13 hpe-storage/csi-driver (CON-4710)"},
		Flow:      publishedWithoutBackend,
		Mutation:  "a NodePublishVolume that asks the backend about its volume",
		Mutate:    asks("NodePublishVolume"),
	})
	register(Scenario{
		Name:      "stats-cost-the-backend-nothing",
		Text:      "claims come in a burst, their pods are asked for statistics over and over while a node is drained, and all is deleted: statistics cost the backend no call, and a deletion asks once whether there are snapshots",
		Labels:    []string{"stats", "load", "delete"},
		Incidents: []string{"H37 hpe-storage/csi-driver release notes v1.4.0 (CON-1686), PR #557 (CON-4709), v3.1.0 (CON-4399)"},
		Flow:      statsCostNothing,
		Mutation:  "a NodeGetVolumeStats that asks the backend about its volume",
		Mutate:    asks("NodeGetVolumeStats"),
	})
}

// askedByNodes are the calls to the backend that drivers on nodes made after an entry.
func askedByNodes(l *sim.Lab, after uint64) []ledger.Entry {
	return l.Ledger.Entries(ledger.After(after), ledger.OnHop(l.StorageHop()), func(e ledger.Entry) bool { return strings.HasPrefix(e.Component, "driver@") })
}

func publishedWithoutBackend(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	c := claim("data", "fast", "256Mi")
	var end func()
	var from uint64
	return steps(
		func() error { return l.Create(ctx, c) },
		func() error { _, err := l.Bound(ctx, "data"); return err },
		func() error { return l.Create(ctx, pod("first", a, c)) },
		func() error { _, err := l.Running(ctx, "first"); return err },
		func() error { return l.Write(ctx, "first", "/data/a", "before the outage") },
		func() error { from, end = uint64(l.Ledger.Len()), outage(l); return nil },
		func() error { return l.Create(ctx, pod("second", a, c)) },
		func() error { _, err := l.Running(ctx, "second"); return err },
		func() error { return l.Expect(ctx, "second", "/data/a", "before the outage") },
		func() error { return l.DeletePod(ctx, "first") },
		func() error {
			before := l.Starts("driver@" + a)
			l.Crash("driver@" + a)
			return l.Restarted(ctx, "driver@"+a, before)
		},
		func() error { return l.Create(ctx, pod("third", a, c)) },
		func() error { _, err := l.Running(ctx, "third"); return err },
		func() error { return l.Write(ctx, "third", "/data/b", "in the outage") },
		func() error { return l.DeletePod(ctx, "second") },
		func() error {
			if es := askedByNodes(l, from); len(es) > 0 {
				return fmt.Errorf("%v: a node needs no backend for what is staged: %w", es[0], errUnexpected)
			}
			end()
			return nil
		},
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "third") },
		func() error { return l.DeletePVC(ctx, "data") },
		func() error { return l.Empty(ctx) },
	)
}

func statsCostNothing(ctx context.Context, l *sim.Lab) error {
	const claims, rounds = 12, 5
	a := l.Nodes()[0]
	var objs []store.Object
	var cs []*corev1.PersistentVolumeClaim
	for i := range claims {
		c := claim(fmt.Sprintf("c%d", i), "fast", "256Mi")
		cs = append(cs, c)
		objs = append(objs, c)
	}
	each := func(f func(i int) error) func() error {
		return func() error {
			for i := range claims {
				if err := f(i); err != nil {
					return err
				}
			}
			return nil
		}
	}
	name := func(i int) string { return fmt.Sprintf("app%d", i) }
	var from uint64
	return steps(
		func() error { return l.Create(ctx, objs...) },
		each(func(i int) error { _, err := l.Bound(ctx, cs[i].Name); return err }),
		func() error { return backendVolumes(l, claims) },
		each(func(i int) error { return l.Create(ctx, pod(name(i), a, cs[i])) }),
		each(func(i int) error { _, err := l.Running(ctx, name(i)); return err }),
		func() error { from = uint64(l.Ledger.Len()); return nil },
		func() error {
			for r := range rounds {
				err := each(func(i int) error {
					if i == r { // the drain
						return l.DeletePod(ctx, name(i))
					}
					if i < r {
						return nil
					}
					u, err := l.Space(ctx, name(i), "/"+cs[i].Name)
					if err == nil && u.TotalBytes == 0 {
						err = fmt.Errorf("%s has statistics %+v: %w", name(i), u, errUnexpected)
					}
					return err
				})()
				if err != nil {
					return err
				}
			}
			return nil
		},
		func() error {
			n := len(l.Ledger.Entries(ledger.After(from), ledger.OnHop(ledger.CSI, "NodeGetVolumeStats")))
			if es := askedByNodes(l, from); len(es) > 0 || n == 0 {
				return fmt.Errorf("%d NodeGetVolumeStats cost the backend %d calls: %w", n, len(es), errUnexpected)
			}
			return nil
		},
		func() error { return l.Check(ctx) },
		each(func(i int) error {
			if _, err := l.Pod(name(i)); err != nil {
				return nil
			}
			return l.DeletePod(ctx, name(i))
		}),
		each(func(i int) error { return l.Detached(ctx, l.PVName(cs[i].Name)) }),
		func() error { from = uint64(l.Ledger.Len()); return nil },
		each(func(i int) error { return l.DeletePVC(ctx, cs[i].Name) }),
		func() error {
			if l.Backend() != sim.HPE {
				return nil
			}
			dels := len(l.Ledger.Entries(ledger.After(from), ledger.OnHop(ledger.CSI, "DeleteVolume")))
			lists := l.Ledger.Entries(ledger.After(from), ledger.OnHop(ledger.CSP, "GET /snapshots"))
			for _, e := range lists {
				if !strings.Contains(e.Request, "mode=exists") {
					return fmt.Errorf("%v: asks for all snapshots, where it matters whether there are some: %w", e, errUnexpected)
				}
			}
			if len(lists) > dels {
				return fmt.Errorf("%d DeleteVolume ask for snapshots %d times: %w", dels, len(lists), errUnexpected)
			}
			return nil
		},
		func() error { return l.Empty(ctx) },
	)
}

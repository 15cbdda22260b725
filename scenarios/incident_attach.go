package scenarios

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/attachdetach"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:      "attach-times-out-but-is-done",
		Text:      "attaches are done, or done late, and the attacher hears only of a timeout; the pod is deleted: each is undone all the same, and none comes after the answer that it is undone",
		Labels:    []string{"K01", "incident", "attach", "lost-reply"},
		Incidents: []string{"K01 kubernetes-csi/external-attacher#179"},
		Flow:      attachTimesOut,
		Mutation:  "a ControllerUnpublishVolume that answers OK because it has seen no attach succeed",
		Mutate:    lies("ControllerUnpublishVolume"),
	})
	register(Scenario{
		Name:      "unpublish-repeated",
		Text:      "an attacher repeats an Unpublish, at once and long after the volume has gone to another node: it is answered OK and changes nothing",
		Labels:    []string{"K02", "incident", "attach", "duplicate"},
		Incidents: []string{"K02 kubernetes-csi/external-attacher#587"},
		Flow:      unpublishRepeated,
		Mutation:  "a ControllerUnpublishVolume that takes the volume from whichever node has it",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "takes it from anybody", Hop: ledger.CSI, Op: "ControllerUnpublishVolume", Component: repeater, Phase: fault.After, Nth: 2,
				Do: fault.Func("take it from the other", func(ctx context.Context, _ fault.Call) error {
					return l.PullDisk(ctx, l.OtherNode(l.Nodes()[0]), "data")
				})})
		},
	})
	register(Scenario{
		Name:      "failed-attach-is-let-go",
		Text:      "an attach fails for good, done or not, and the pod is deleted: the volume is detached at once, not after a force-detach time, and claim, volume and finalizers go",
		Labels:    []string{"K04", "incident", "attach", "delete"},
		Incidents: []string{"K04 kubernetes/kubernetes#117042", "K04 kubernetes-csi/external-attacher#66"},
		Flow:      failedAttach,
		Mutation:  "a ControllerUnpublishVolume that answers OK because the attach has failed",
		Mutate:    lies("ControllerUnpublishVolume"),
	})
	register(Scenario{
		Name:      "attach-controller-restarted",
		Text:      "the attach/detach controller dies after it has made a VolumeAttachment whose pod goes meanwhile, before it deletes one, and while the CSIDriver object is away: what nobody wants is detached, what a pod uses stays",
		Labels:    []string{"K05", "incident", "attach", "crash"},
		Incidents: []string{"K05 kubernetes/kubernetes#77324", "K05 kubernetes/kubernetes#96617"},
		Flow:      attachControllerRestarted,
		Mutation:  "a controller that forgets the attachments that it has not made itself",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "forgets attachments", Hop: ledger.Kube, Op: "delete volumeattachments", Component: attachdetach.Actor, Do: fault.Skip(),
				Match: func(fault.Call) bool { return l.Starts(attachdetach.Actor) > 1 }})
		},
	})
	register(Scenario{
		Name:      "publish-elsewhere-refused",
		Text:      "a second orchestrator publishes a volume to another node while the first has it, while its detach is under way, and at the same moment: it is refused, the volume never moves by itself",
		Labels:    []string{"K11", "K14", "incident", "attach"},
		Incidents: []string{"K11 cloudscale-ch/csi-cloudscale#143", "K14 kubernetes-csi/external-attacher#233"},
		Flow:      publishElsewhere,
		Mutation:  "a ControllerPublishVolume that takes the volume away from the node that has it",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "the last one wins", Hop: ledger.CSI, Op: "ControllerPublishVolume", Component: second, Nth: 1,
				Do: fault.Func("take it away", func(ctx context.Context, _ fault.Call) error { return l.PullDisk(ctx, l.Nodes()[0], "data") })})
		},
	})
	register(Scenario{
		Name:      "limit-while-a-detach-is-slow",
		Text:      "a node is full and the detach that would make room is slow: the next attach is refused as exhausted, leaves nothing behind, and is done right after the detach",
		Labels:    []string{"K13", "incident", "attach", "limit"},
		Incidents: []string{"K13 kubernetes/kubernetes#126502"},
		Backends:  []string{sim.VSphere}, // an array has no such limit
		Options:   func(o *sim.Options) { o.FreeSlots = 1 },
		Flow:      limitSlowDetach,
		Mutation:  "an attach that answers OK when the VM has no free slot",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "attach lies", Hop: ledger.CSI, Op: "ControllerPublishVolume", Do: fault.Skip(),
				Match: func(c fault.Call) bool { return c.Volume == l.VolumeID("next") }})
		},
	})
}

// Names of those who call the driver beside the lab's own sidecars.
const (
	repeater = "repeating-attacher"
	second   = "second-attacher"
)

// held holds calls, also when their callers have given up, until release is
// called or the lab ends: what a backend has begun it brings to its end.
func held(l *sim.Lab) (do fault.Action, reached chan struct{}, release func()) {
	on, reached := make(chan struct{}), make(chan struct{}, 16)
	return fault.Func("hold", func(context.Context, fault.Call) error {
		select {
		case reached <- struct{}{}:
		default:
		}
		select {
		case <-on:
			return nil
		case <-l.Context().Done():
			return fault.ErrDrop
		}
	}), reached, sync.OnceFunc(func() { close(on) })
}

// attachWork is the innermost thing that an attach does to the backend, which
// goes on when its caller has gone.
func attachWork(l *sim.Lab) (ledger.Hop, string) {
	if l.Backend() == sim.VSphere {
		return ledger.VCenter, "task:CnsAttachVolume"
	}
	return ledger.WSAPI, "POST /vluns"
}

func attachTimesOut(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	c := claim("data", "fast", "256Mi")
	app := pod("app", a, c)
	attacher := l.As(second)
	var rule *fault.Armed
	return steps(
		func() error { return l.Create(ctx, c) },
		func() error { _, err := l.Bound(ctx, "data"); return err },
		// Done, and the answer comes too late each time.
		func() error {
			rule = l.Inject(fault.Rule{Name: "the answer is late", Hop: ledger.CSI, Op: "ControllerPublishVolume", Phase: fault.After,
				Do: fault.Error(status.Error(codes.DeadlineExceeded, "context deadline exceeded"))})
			return l.Create(ctx, app)
		},
		func() error { return l.HasEvent(ctx, app, "FailedAttachVolume", "DeadlineExceeded") },
		func() error { return onlyOn(l, "data", a) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Detached(ctx, l.PVName("data")) },
		func() error { l.Disarm(rule); return onlyOn(l, "data") },
		func() error { return l.Check(ctx) },

		// Not done yet: the backend works on it when the attach is given up and
		// the detach is asked for.
		func() error {
			hop, op := attachWork(l)
			do, reached, release := held(l)
			rule := l.Inject(fault.Rule{Name: "the backend is slow", Hop: hop, Op: op, Nth: 1, Do: do})
			defer l.Disarm(rule)
			defer release()
			short := func(d time.Duration, f func(context.Context) error) error {
				ctx, cancel := context.WithTimeout(ctx, d)
				defer cancel()
				return f(ctx)
			}
			err := short(longer(l, 300*time.Millisecond, 15*time.Second), func(ctx context.Context) error { return attacher.Publish(ctx, "data", a) })
			if err := refusedWith(err, "an attach that takes long", codes.DeadlineExceeded); err != nil {
				return err
			}
			select {
			case <-reached:
			default:
				return fmt.Errorf("%s/%s never came: %w", hop, op, errUnexpected)
			}
			undone := short(longer(l, 300*time.Millisecond, 15*time.Second), func(ctx context.Context) error { return attacher.Unpublish(ctx, "data", a) })
			release()
			if undone != nil {
				return refusedWith(undone, "a detach while the attach is under way", codes.Aborted, codes.DeadlineExceeded, codes.Unavailable)
			}
			return stays(ctx, l, longer(l, 300*time.Millisecond, time.Minute), func() error { return onlyOn(l, "data") })
		},
		func() error {
			return l.Until(ctx, "the volume is detached", func() bool { return attacher.Unpublish(ctx, "data", a) == nil })
		},
		func() error {
			return stays(ctx, l, longer(l, 300*time.Millisecond, time.Minute), func() error { return onlyOn(l, "data") })
		},
		func() error { return l.Create(ctx, pod("app", l.OtherNode(a), c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/data/a", "on the other node") },
		func() error { return l.Check(ctx) },
		func() error { return allGone(ctx, l, []string{"app"}, []string{"data"}) },
	)
}

func unpublishRepeated(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	c := claim("data", "fast", "256Mi")
	again := func() error { return step(l.As(repeater).Unpublish(ctx, "data", a), "a repeated Unpublish") }
	return steps(
		func() error { return startWriter(ctx, l, "app", a, c, "of the first node") },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Detached(ctx, l.PVName("data")) },
		again,
		func() error { return onlyOn(l, "data") },
		func() error { return startReader(ctx, l, "next", b, c, "of the first node") },
		again, again,
		func() error { return onlyOn(l, "data", b) },
		func() error { return l.Write(ctx, "next", "/data/b", "of the second node") },
		func() error { return l.Check(ctx) },
		func() error { return allGone(ctx, l, []string{"next"}, []string{"data"}) },
	)
}

func failedAttach(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	var flows []func() error
	for _, phase := range []fault.Phase{fault.Before, fault.After} {
		name := string(phase)
		c := claim(name, "fast", "256Mi")
		p := pod(name, a, c)
		id, from := "", uint64(0)
		flows = append(flows,
			func() error { return l.Create(ctx, c) },
			func() error { _, err := l.Bound(ctx, name); return err },
			func() error {
				id, from = l.VolumeID(name), now(l)
				rule := l.Inject(fault.Rule{Name: "the attach fails for good", Hop: ledger.CSI, Op: "ControllerPublishVolume", Volume: id, Phase: phase,
					Do: fault.Error(status.Error(codes.Internal, "the adapter is broken"))})
				defer l.Disarm(rule)
				return steps(
					func() error { return l.Create(ctx, p) },
					func() error { return l.HasEvent(ctx, p, "FailedAttachVolume", "the adapter is broken") },
					func() error { return l.DeletePod(ctx, name) },
					func() error {
						gone := time.Now()
						err := l.Detached(ctx, l.PVName(name))
						// The node's next status says that it has not mounted it: where
						// the kubelet never took note of the pod, after five minutes at
						// the latest. Force detach comes after six.
						if d := time.Since(gone); err == nil && l.Options().Timers == "real" && d > 5*time.Minute+30*time.Second {
							err = fmt.Errorf("the detach took %v: %w", d, errUnexpected)
						}
						return err
					})
			},
			func() error {
				if len(csiCalls(l, "ControllerUnpublishVolume", succeeded, ledger.About(id), ledger.After(from))) == 0 {
					return fmt.Errorf("a volume whose attach had failed was never unpublished: %w", errUnexpected)
				}
				return onlyOn(l, name)
			},
			func() error { return l.DeletePVC(ctx, name) },
			func() error {
				if n := len(csiCalls(l, "DeleteVolume", succeeded, ledger.About(id))); n != 1 {
					return fmt.Errorf("DeleteVolume succeeded %d times: %w", n, errUnexpected)
				}
				return nil
			},
			func() error { return l.Empty(ctx) },
		)
	}
	return steps(flows...)
}

func attachControllerRestarted(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	c, used := claim("data", "fast", "256Mi"), claim("used", "fast", "256Mi")
	crash := func(do func(context.Context) error) fault.Action {
		return fault.Func("the controller dies", func(ctx context.Context, _ fault.Call) error {
			err := do(ctx)
			l.Crash(attachdetach.Actor)
			return errors.Join(err, fault.ErrCrashed)
		})
	}
	nothing := func(context.Context) error { return nil }
	detached := func() error {
		// The node's next status: see failedAttach.
		ctx, cancel := context.WithTimeout(ctx, longer(l, moments, 5*time.Minute+30*time.Second))
		defer cancel()
		return l.Detached(ctx, l.PVName("data"))
	}
	var from uint64
	kept := func() error {
		if es := csiCalls(l, "ControllerUnpublishVolume", ledger.After(from), ledger.About(l.VolumeID("used"))); len(es) > 0 {
			return fmt.Errorf("a volume that a pod uses was detached: %s: %w", es[0], errUnexpected)
		}
		return l.Expect(ctx, "user", "/used/a", "all the time")
	}
	return steps(
		func() error { return startWriter(ctx, l, "user", a, used, "all the time") },
		func() error { from = now(l); return l.Create(ctx, c) },
		func() error { _, err := l.Bound(ctx, "data"); return err },
		// The pod goes while the controller is dead.
		func() error {
			l.Inject(fault.Rule{Name: "dies after the VolumeAttachment", Hop: ledger.Kube, Op: "create volumeattachments", Component: attachdetach.Actor, Phase: fault.After, Nth: 1,
				Do: crash(func(ctx context.Context) error { return l.ForceDeletePod(ctx, "app") })})
			return l.Create(ctx, pod("app", a, c))
		},
		func() error { return l.Gone(ctx, pod("app", a)) },
		detached, kept,
		func() error { return onlyOn(l, "data") },
		// The node's status says already that it is detached.
		func() error { return l.Create(ctx, pod("app", a, c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/data/a", "of a pod") },
		func() error {
			l.Inject(fault.Rule{Name: "dies before the VolumeAttachment goes", Hop: ledger.Kube, Op: "delete volumeattachments", Component: attachdetach.Actor, Nth: 1, Do: crash(nothing)})
			return l.DeletePod(ctx, "app")
		},
		detached, kept,
		// The CSIDriver object comes after the controller.
		func() error { return startReader(ctx, l, "app", a, c, "of a pod") },
		func() error {
			d, err := store.Get[storagev1.CSIDriver](l.Client(), "", l.DriverName())
			if err != nil {
				return err
			}
			if err := l.Delete(ctx, d); err != nil {
				return err
			}
			before := l.Starts(attachdetach.Actor)
			l.Crash(attachdetach.Actor)
			if err := l.Restarted(ctx, attachdetach.Actor, before); err != nil {
				return err
			}
			return l.Create(ctx, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: d.Name}, Spec: d.Spec})
		},
		func() error { return l.Expect(ctx, "app", "/data/a", "of a pod") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		detached, kept,
		func() error { return l.Check(ctx) },
		func() error { return allGone(ctx, l, []string{"user"}, []string{"used", "data"}) },
	)
}

func publishElsewhere(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	c := claim("data", "fast", "256Mi")
	other := l.As(second)
	refused := func(what string, also ...codes.Code) error {
		return refusedWith(other.Publish(ctx, "data", b), what, append(also, codes.FailedPrecondition)...)
	}
	return steps(
		func() error { return startWriter(ctx, l, "app", a, c, "of the first node") },
		func() error { return refused("a publish to a second node") },
		func() error { return onlyOn(l, "data", a) },
		func() error { return l.Write(ctx, "app", "/data/b", "still of the first") },
		func() error { return l.Check(ctx) },
		func() error {
			return midway(ctx, l, ledger.CSI, "ControllerUnpublishVolume", fault.Before,
				func() error { return l.DeletePod(ctx, "app") },
				func() error {
					return steps(func() error { return refused("a publish while the detach waits", codes.Aborted) }, func() error { return onlyOn(l, "data", a) })
				})
		},
		func() error { return l.Detached(ctx, l.PVName("data")) },
		func() error { return onlyOn(l, "data") },
		// Two at once, each for a node of its own.
		func() error {
			var wg sync.WaitGroup
			errs := make([]error, 2)
			for i, node := range []string{a, b} {
				wg.Go(func() { errs[i] = l.As(fmt.Sprintf("attacher-%d", i+1)).Publish(ctx, "data", node) })
			}
			wg.Wait()
			won := -1
			for i, err := range errs {
				if err == nil {
					if won >= 0 {
						return fmt.Errorf("two publishes to two nodes were both answered OK: %w", errUnexpected)
					}
					won = i
				} else if err := refusedWith(err, "the second of two publishes", codes.FailedPrecondition, codes.Aborted); err != nil {
					return err
				}
			}
			if won < 0 {
				return fmt.Errorf("of two publishes none was answered OK: %v: %w", errs, errUnexpected)
			}
			node := []string{a, b}[won]
			return steps(
				func() error { return onlyOn(l, "data", node) },
				func() error { return other.Unpublish(ctx, "data", b) },
				func() error { return other.Unpublish(ctx, "data", a) },
				func() error { return onlyOn(l, "data") },
			)
		},
		func() error { return startReader(ctx, l, "next", b, c, "of the first node") },
		func() error { return l.Expect(ctx, "next", "/data/b", "still of the first") },
		func() error { return l.Check(ctx) },
		func() error { return allGone(ctx, l, []string{"next"}, []string{"data"}) },
	)
}

func limitSlowDetach(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	first, next := claim("first", "fast", "256Mi"), claim("next", "fast", "256Mi")
	waits := pod("waits", a, next)
	return steps(
		func() error { // before the first pod
			n, err := store.Get[storagev1.CSINode](l.Client(), "", a)
			if err != nil {
				return err
			}
			for _, d := range n.Spec.Drivers {
				if d.Name == l.DriverName() && (d.Allocatable == nil || d.Allocatable.Count == nil || *d.Allocatable.Count < 1) {
					return fmt.Errorf("CSINode %s has no limit for the driver: %w", a, errUnexpected)
				}
			}
			return nil
		},
		func() error { return startWriter(ctx, l, "app", a, first, "in the only slot") },
		func() error { return l.Create(ctx, next) },
		func() error { _, err := l.Bound(ctx, "next"); return err },
		func() error {
			return midway(ctx, l, ledger.CSI, "ControllerUnpublishVolume", fault.Before,
				func() error { return l.DeletePod(ctx, "app") },
				func() error {
					return steps(
						func() error { return l.Create(ctx, waits) },
						func() error { return l.HasEvent(ctx, waits, "FailedAttachVolume", "ResourceExhausted") },
						func() error { return noteEvent(l, "while the detach is slow", waits, "FailedAttachVolume") },
						func() error { return onlyOn(l, "next") },
						func() error { return onlyOn(l, "first", a) },
					)
				})
		},
		func() error { _, err := l.Running(ctx, "waits"); return err },
		func() error { return l.Write(ctx, "waits", "/next/a", "in the slot at last") },
		func() error { return onlyOn(l, "first") },
		func() error { return l.Check(ctx) },
		func() error { return allGone(ctx, l, []string{"waits"}, []string{"first", "next"}) },
	)
}

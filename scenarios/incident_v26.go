package scenarios

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/vmware/govmomi/vim25/types"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/csp"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/vcenter"
)

func init() {
	register(Scenario{
		Name:      "backend-boots-slowly",
		Text:      "the backend comes back after a while and takes log-ins before it can do anything: once all of it is there the driver works, without a restart and with no more sessions than before",
		Labels:    []string{"session", "fault"},
		Incidents: []string{"V26 kubernetes-sigs/vsphere-csi-driver#267, kubernetes-sigs/vsphere-csi-driver#261, kubernetes-sigs/vsphere-csi-driver#711"},
		Flow:      bootsSlowly,
		Mutation:  "a driver whose clients stay stale until it is started anew",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "stale until a restart", Hop: ledger.CSI, Op: "CreateVolume", Do: fault.Error(status.Error(codes.Internal, "NotAuthenticated")),
				Match: func(fault.Call) bool { return l.VolumeID("data") != "" && l.Starts("driver-controller") == 1 }})
		},
	})
	register(Scenario{
		Name:      "look-up-not-authenticated",
		Text:      "the session ends just when a detach looks the node up: the detach fails, the disk stays where it is and counts as attached, until somebody has really looked",
		Labels:    []string{"detach", "session", "attach"},
		Incidents: []string{"V28 kubernetes-sigs/vsphere-csi-driver#1038"},
		Flow:      lookUpNotAuthenticated,
		Mutation:  "a ControllerUnpublishVolume that takes a failed look-up for a node that is gone, and answers OK",
		Mutate:    lies("ControllerUnpublishVolume"),
	})
	register(Scenario{
		Name:      "sessions-end-while-tasks-run",
		Text:      "all sessions end while tasks run, and with them all that watches the tasks: each call that waits ends well by itself, and those after it too",
		Labels:    []string{"session", "task", "provision", "attach", "snapshot"},
		Incidents: []string{"V29 kubernetes-sigs/vsphere-csi-driver#2788, kubernetes-sigs/vsphere-csi-driver#1263, kubermatic/kubermatic#15175"},
		Backends:  []string{sim.VSphere},
		Flow:      sessionsEndWhileTasksRun,
		Mutation:  "a driver that loses its watcher with the session and gives up what it waits for",
		Mutate: func(l *sim.Lab) {
			var n atomic.Int64
			l.Inject(fault.Rule{Name: "the watcher is not ready", Hop: ledger.CSI, Op: "CreateVolume", Phase: fault.After,
				Do:    fault.Error(status.Error(codes.Internal, "ListView is not ready")),
				Match: func(fault.Call) bool { return n.Add(1) == 1 }})
		},
	})
}

// sessionEnds ends all sessions just when a call of one arrives, which is
// refused.
func sessionEnds(l *sim.Lab) fault.Action {
	return fault.Func("the session ends", func(context.Context, fault.Call) error {
		l.KillSessions()
		if l.Backend() == sim.VSphere {
			return &vcenter.Fault{Fault: &types.NotAuthenticated{}}
		}
		return &csp.Fault{Status: http.StatusUnauthorized, Message: "the token has expired"}
	})
}

// logsIn says whether a call is for a session itself.
func logsIn(c fault.Call) bool {
	switch c.Op {
	case "Login", "Logout", "RetrieveServiceContent", "SessionIsActive":
		return true
	}
	return strings.Contains(c.Op, "/tokens")
}

func bootsSlowly(ctx context.Context, l *sim.Lab) error {
	c, late := claim("data", "fast", "256Mi"), claim("late", "fast", "256Mi")
	var end func()
	var booting *fault.Armed
	sessions := func() int {
		if l.Backend() != sim.VSphere {
			return 0
		}
		return l.VCenter().Sessions("driver-controller")
	}
	before := 0
	return steps(
		func() error { return l.Create(ctx, c, pod("app", "", c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/data/a", "all the time") },
		func() error { before = sessions(); end = outage(l); l.KillSessions(); return nil },
		func() error { return l.Create(ctx, late) },
		func() error { return l.HasEvent(ctx, late, "ProvisioningFailed", "") },
		// It takes log-ins again, and nothing else.
		func() error {
			boots := fault.Action(fault.Error(&csp.Fault{Status: http.StatusServiceUnavailable, Message: "starting"}))
			if l.Backend() == sim.VSphere {
				boots = fault.Error(&vcenter.HTTPError{Status: http.StatusServiceUnavailable})
			}
			booting = l.Inject(fault.Rule{Name: "it boots", Hop: l.StorageHop(), Component: "driver-controller", Do: boots,
				Match: func(c fault.Call) bool { return !logsIn(c) }})
			end()
			return nil
		},
		func() error {
			return l.Until(ctx, "the driver has asked it for more than a log-in", func() bool { return booting.Fired() >= 3 })
		},
		func() error { return l.Expect(ctx, "app", "/data/a", "all the time") },
		func() error { l.Disarm(booting); return nil },
		func() error { return l.Create(ctx, pod("user", "", late)) },
		func() error { _, err := l.Running(ctx, "user"); return err },
		func() error { return l.Write(ctx, "user", "/late/a", "without a restart") },
		func() error {
			if n := l.Starts("driver-controller"); n != 1 {
				return fmt.Errorf("the driver was started %d times: %w", n, errUnexpected)
			}
			if n := sessions(); n > max(before, 1) {
				return fmt.Errorf("the driver has %d sessions, it had %d: %w", n, before, errUnexpected)
			}
			return nil
		},
		func() error { return backendVolumes(l, 2) },
		func() error { return l.Check(ctx) },
		func() error { return removed(ctx, l, []string{"app", "user"}, []string{"data", "late"}) },
	)
}

func lookUpNotAuthenticated(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	next := pod("next", b, claim("data", "fast", "256Mi"))
	var ended *fault.Armed
	return steps(
		func() error { return used(ctx, l, "data", "app", a, "on the first node") },
		func() error {
			ended = l.Inject(fault.Rule{Name: "not authenticated", Hop: l.StorageHop(), Component: "driver-controller", Do: sessionEnds(l),
				Match: func(c fault.Call) bool { return !logsIn(c) }})
			return l.DeletePod(ctx, "app")
		},
		func() error { return l.Create(ctx, next) },
		func() error {
			return await(ctx, l, "the detach is refused twice", func() (bool, error) {
				es := l.Ledger.Entries(ledger.OnHop(ledger.CSI, "ControllerUnpublishVolume"))
				refused := 0
				for _, e := range es {
					switch e.Outcome {
					case ledger.OK:
						return false, fmt.Errorf("a detach that could not look up the node is answered with OK: %w\n%s", errUnexpected, ledger.Text(es))
					case ledger.Failed, ledger.MaybeApplied:
						refused++
					}
				}
				return refused >= 2, nil
			})
		},
		func() error { return exportedTo(ctx, l, "data", a) },
		func() error {
			if va := attachment(l, "data", a); va == nil || !va.Status.Attached {
				return fmt.Errorf("the VolumeAttachment of %s says %v, the disk is there: %w", a, va, errUnexpected)
			}
			return nil
		},
		func() error { l.Disarm(ended); return nil },
		func() error { _, err := l.Running(ctx, "next"); return err },
		func() error { return l.Expect(ctx, "next", "/data/a", "on the first node") },
		func() error { return exportedTo(ctx, l, "data", b) },
		func() error { return l.Check(ctx) },
		func() error { return removed(ctx, l, []string{"next"}, []string{"data"}) },
	)
}

func sessionsEndWhileTasksRun(ctx context.Context, l *sim.Lab) error {
	on, vc := l.Operations(), l.VCenter()
	c := claim("data", "fast", "256Mi")
	// over holds the tasks of an operation, ends all sessions while one waits,
	// and lets it go on: the call of CSI that waits must end well by itself.
	over := func(op, rpc string, begin func() error) error {
		before := len(l.Ledger.Entries(ledger.OnHop(ledger.CSI, rpc)))
		hold := vc.HoldTasks(op)
		defer hold.Release()
		return step(steps(
			begin,
			func() error { _, err := hold.Wait(ctx); return err },
			func() error { vc.KillSessions(); return nil },
			func() error {
				return l.Until(ctx, "the driver has logged in again", func() bool { return vc.Sessions("driver-controller") > 0 })
			},
			func() error { hold.Release(); return nil },
			func() error {
				return await(ctx, l, rpc+" ends", func() (bool, error) {
					es := l.Ledger.Entries(ledger.OnHop(ledger.CSI, rpc))[before:]
					if len(es) != 1 {
						return false, fmt.Errorf("%s was called %d times, expected is once: %w\n%s", rpc, len(es), errUnexpected, ledger.Text(es))
					}
					if o := es[0].Outcome; o != ledger.Pending && o != ledger.OK {
						return false, fmt.Errorf("%w\n%s", errUnexpected, ledger.Text(es))
					}
					return es[0].Outcome == ledger.OK, nil
				})
			},
		), "sessions end while %s runs", op)
	}
	return steps(
		func() error { return over(on.Create, "CreateVolume", func() error { return l.Create(ctx, c) }) },
		func() error { _, err := l.Bound(ctx, "data"); return err },
		func() error {
			return over(on.Attach, "ControllerPublishVolume", func() error { return l.Create(ctx, pod("app", "", c)) })
		},
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/data/a", "over ended sessions") },
		func() error {
			return over(on.Snapshot, "CreateSnapshot", func() error { return l.Create(ctx, snapshotOf("snap", "data")) })
		},
		func() error { _, err := l.SnapshotReady(ctx, "snap"); return err },
		func() error { return l.Check(ctx) },
		func() error { return l.DeleteSnapshot(ctx, "snap") },
		func() error {
			return over(on.Detach, "ControllerUnpublishVolume", func() error { return l.Client().Delete(ctx, pod("app", "")) })
		},
		func() error { return l.Gone(ctx, pod("app", "")) },
		func() error {
			return over(on.Delete, "DeleteVolume", func() error { return l.Client().Delete(ctx, c) })
		},
		func() error { return l.Empty(ctx) },
	)
}

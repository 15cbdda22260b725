package scenarios

import (
	"context"
	"fmt"
	"net/http"

	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/vcenter"
)

func init() {
	register(Scenario{
		Name:          "task-result-lost",
		Text:          "the end of a CNS task gets lost in three ways: the task is purged, it counts as failed after a restart of CNS, or CNS is down so that nobody can ask; what is there is looked up before anything is made or deleted again",
		Labels:        []string{"provision", "delete", "task", "fault"},
		Incidents:     []string{"V16 kubernetes-sigs/vsphere-csi-driver#1284"},
		Backends:      []string{sim.VSphere},
		Flow:          taskResultLost,
		Mutation:      "a provisioner that gives each attempt a new name, so that nothing is found of the one before",
		MutateOptions: newNames,
	})
}

// lostTask is one way to lose the end of a task whose work is done. heal may be nil.
type lostTask struct {
	name string
	lose func(ctx context.Context, l *sim.Lab, c fault.Call) error
	arm  func(l *sim.Lab) (heal func())
}

var lostTasks = []lostTask{
	{name: "purged", lose: func(_ context.Context, l *sim.Lab, c fault.Call) error {
		l.VCenter().PurgeTasks(c.Request)
		return nil
	}},
	{name: "failed", lose: restartedCNS},
	{name: "unknown", lose: restartedCNS, arm: func(l *sim.Lab) func() {
		down := l.Inject(fault.Rule{Name: "CNS is down", Hop: ledger.VCenter, Do: fault.Error(&vcenter.HTTPError{Status: http.StatusServiceUnavailable}),
			Component: "driver-controller", Match: func(c fault.Call) bool { return c.Op == "CnsQueryAllVolume" || c.Op == "CnsQuerySnapshots" }})
		return func() { l.Disarm(down) }
	}},
}

// restartedCNS fails a task whose work is done: CNS does so with what runs
// when it starts again.
func restartedCNS(context.Context, *sim.Lab, fault.Call) error {
	return &vcenter.Fault{Fault: &types.SystemError{Reason: "the service was restarted"}}
}

func taskResultLost(ctx context.Context, l *sim.Lab) error {
	on := l.Operations()
	// over does something whose task's end gets lost in one of the ways.
	over := func(way lostTask, op string, begin func() error, waits func() error, then func() error) error {
		var heal func()
		l.Inject(fault.Rule{Name: op + ": " + way.name, Hop: ledger.VCenter, Op: "task:" + op, Phase: fault.After, Nth: 1,
			Do: fault.Func(way.name, func(ctx context.Context, c fault.Call) error {
				if way.arm != nil {
					heal = way.arm(l)
				}
				return way.lose(ctx, l, c)
			})})
		return step(steps(
			begin,
			func() error {
				if way.arm == nil {
					return nil
				}
				// Nothing is asked for anew while nobody knows.
				if err := waits(); err != nil {
					return err
				}
				heal()
				return nil
			},
			then,
		), "the task of %s is %s", op, way.name)
	}
	var flows []func() error
	for i, way := range lostTasks {
		flows = append(flows, func() error {
			c := claim(way.name, "fast", "256Mi")
			return over(way, on.Create,
				func() error { return l.Create(ctx, c) },
				func() error { return l.HasEvent(ctx, c, "ProvisioningFailed", "Unavailable") },
				func() error {
					if _, err := l.Bound(ctx, way.name); err != nil {
						return err
					}
					if err := times(l, l.StorageHop(), on.Create, i+1); err != nil {
						return err
					}
					return backendVolumes(l, i+1)
				})
		})
	}
	flows = append(flows, func() error { return l.Check(ctx) })
	for i, way := range lostTasks {
		flows = append(flows, func() error {
			pv, err := l.Volume(l.PVName(way.name))
			if err != nil {
				return err
			}
			return over(way, on.Delete,
				func() error { return l.Delete(ctx, claim(way.name, "fast", "256Mi")) },
				func() error { return l.HasEvent(ctx, pv, "VolumeFailedDelete", "Unavailable") },
				func() error {
					if err := l.Gone(ctx, pv); err != nil {
						return err
					}
					if n := l.BackendVolumes(); n != len(lostTasks)-i-1 {
						return fmt.Errorf("the backend has %d volumes: %w", n, errUnexpected)
					}
					return times(l, l.StorageHop(), on.Delete, i+1)
				})
		})
	}
	flows = append(flows, func() error { return l.Empty(ctx) })
	return steps(flows...)
}

package scenarios

import (
	"context"
	"fmt"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:      "control-plane-drained-with-the-workload",
		Text:      "the node with the driver's controller, the attacher and the storage provider is drained in the middle of a move, at each step of it: the attachment and the exports agree afterwards, and the pod finds its data",
		Labels:    []string{"attach", "move", "crash", "upgrade"},
		Incidents: []string{"H35 hpe-storage/csi-driver#448"},
		Backends:  onArray,
		Flow:      drained,
		Mutation:  "a ControllerPublishVolume that answers OK, its exports having been lost with the controller",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "attach lies", Hop: ledger.CSI, Op: "ControllerPublishVolume", Do: fault.Skip()})
		},
	})
}

// drain ends everything that runs beside the driver's controller.
var drain = func(l *sim.Lab) fault.Action {
	return fault.Func("drain", func(context.Context, fault.Call) error {
		for _, c := range []string{"csi-attacher", "driver-controller", "csp"} {
			l.Crash(c)
		}
		return fault.ErrCrashed
	})
}

func drained(ctx context.Context, l *sim.Lab) error {
	c := claim("data", "fast", "256Mi")
	on := l.Operations()
	// Of the unpublish here and the publish there.
	points := []struct {
		hop   ledger.Hop
		op    string
		phase fault.Phase
	}{
		{ledger.CSP, on.Detach, fault.Before},
		{ledger.WSAPI, "DELETE /vluns/{id}", fault.After},
		{ledger.CSP, on.Detach, fault.After},
		{ledger.WSAPI, "POST /hosts", fault.Before},
		{ledger.WSAPI, "POST /hosts", fault.After},
		{ledger.WSAPI, "POST /vluns", fault.After},
		{ledger.CSP, on.Attach, fault.After},
		{ledger.CSI, "ControllerPublishVolume", fault.After},
	}
	node := l.Nodes()[0]
	moves := []func() error{
		func() error { return l.Create(ctx, c) },
		func() error { _, err := l.Bound(ctx, "data"); return err },
		func() error { return l.Create(ctx, pod("app", node, c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/data/a", "through all of it") },
	}
	for i, p := range points {
		what := fmt.Sprintf("drained %s %s %s", p.phase, p.hop, p.op)
		text := fmt.Sprintf("round %d", i)
		moves = append(moves,
			func() error {
				l.Inject(fault.Rule{Name: what, Hop: p.hop, Op: p.op, Phase: p.phase, Nth: 1, Do: drain(l)})
				node = l.OtherNode(node)
				return l.DeletePod(ctx, "app")
			},
			func() error { return step(l.Create(ctx, pod("app", node, c)), "%s", what) },
			func() error { _, err := l.Running(ctx, "app"); return step(err, "%s", what) },
			func() error {
				if err := l.AttachedTo(ctx, l.PVName("data"), node); err != nil {
					return err
				}
				return step(oneExport(l, "data", portsFor(l)), "%s", what)
			},
			func() error { return step(l.Expect(ctx, "app", "/data/a", "through all of it"), "%s", what) },
			func() error { return l.Write(ctx, "app", "/data/b", text) },
			func() error { return step(l.Check(ctx), "%s", what) },
		)
	}
	moves = append(moves,
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePVC(ctx, "data") },
		func() error { return l.Empty(ctx) },
	)
	return steps(moves...)
}

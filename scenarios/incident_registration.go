package scenarios

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:      "registration-tried-again",
		Text:      "NodeGetInfo fails a few times when a driver registers: its registrar is told each time, kubelet tries again, and the driver gets into CSINode without help",
		Labels:    []string{"K17", "incident", "registration"},
		Incidents: []string{"K17 kubernetes/kubernetes#118317"},
		Flow:      registrationTriedAgain,
		Mutation:  "a kubelet that does not tell the registrar that it has failed",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "tells nothing", Hop: ledger.Registration, Op: "NotifyRegistrationStatus", Do: fault.Skip(),
				Match: func(c fault.Call) bool { return !strings.Contains(c.Request, `"plugin_registered":true`) }})
		},
	})
	register(Scenario{
		Name:      "registrar-gone",
		Text:      "a driver's pod is deleted and its socket goes: that alone takes the driver out of CSINode, nothing dials the socket that is gone, pods go to other nodes, and all is back with the pod",
		Labels:    []string{"K20", "incident", "registration"},
		Incidents: []string{"K20 kubernetes/kubernetes#87282"},
		Flow:      registrarGone,
		Mutation:  "a kubelet that leaves the driver in CSINode",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "CSINode stays", Hop: ledger.Kube, Op: "update csinodes", Component: "kubelet@" + l.Nodes()[0], Do: fault.Skip()})
		},
	})
	register(Scenario{
		Name:      "stale-registration-socket",
		Text:      "a node crashed and left its registrar's socket: kubelet starts first and dials it in vain, with growing pauses; the registrar's new one is dialled when the pause is over, after two minutes at the most, and the node takes pods",
		Labels:    []string{"K16", "incident", "registration"},
		Incidents: []string{"K16 kubernetes-csi/node-driver-registrar#206"},
		Flow:      staleSocket,
		Mutation:  "a kubelet that the new socket gives no information either",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "no answer", Hop: ledger.Registration, Op: "GetInfo", Component: "kubelet@" + l.Nodes()[0], Do: fault.Error(status.Error(codes.Unavailable, "nobody is there"))})
		},
	})
	register(Scenario{
		Name:      "plugin-refused",
		Text:      "plugins with no version that kubelet speaks, with none at all, with nonsense and without a node id are refused with the reason and leave nothing in CSINode; one with 1.x among others is taken, and a second of its name is not",
		Labels:    []string{"K22", "K23", "incident", "registration"},
		Incidents: []string{"K22 kubernetes/kubernetes#84533", "K23 kubernetes/kubernetes#69992"},
		Flow:      pluginRefused,
		Mutation:  "a kubelet that refuses and does not say why",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "says nothing", Hop: ledger.Registration, Op: "NotifyRegistrationStatus", Do: fault.Skip()})
		},
	})
}

// soon bounds what takes moments with the fast timers.
func soon(ctx context.Context, l *sim.Lab) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, longer(l, moments, 10*time.Minute))
}

func registrationTriedAgain(ctx context.Context, l *sim.Lab) error {
	ctx0 := ctx
	ctx, cancel := soon(ctx, l)
	defer cancel()
	a := l.Nodes()[0]
	c := claim("data", "fast", "256Mi")
	const times = 3
	var rule *fault.Armed
	var from uint64
	return steps(
		func() error {
			from = now(l)
			rule = l.Inject(fault.Rule{Name: "no node info", Hop: ledger.CSI, Op: "NodeGetInfo", Component: "kubelet@" + a, First: times, Do: fault.Error(status.Error(codes.Unavailable, "the network is down"))})
			l.Crash("registrar@" + a)
			return l.Until(ctx, "NodeGetInfo has failed", func() bool { return rule.Fired() == times })
		},
		func() error { return l.NodesReady(ctx) },
		func() error {
			told := l.Ledger.Entries(ledger.OnHop(ledger.Registration, "NotifyRegistrationStatus"), ledger.After(from),
				func(e ledger.Entry) bool { return e.Fault == "" && strings.Contains(e.Request, "the network is down") })
			if len(told) == 0 {
				return fmt.Errorf("the registrar was not told: %w", errUnexpected)
			}
			return nil
		},
		func() error { return startWriter(ctx0, l, "app", a, c, "registered at last") },
		func() error { return l.Check(ctx0) },
		func() error { return allGone(ctx0, l, []string{"app"}, []string{"data"}) },
	)
}

func staleSocket(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	c := claim("data", "fast", "256Mi")
	kubelet, registrar := "kubelet@"+a, "registrar@"+a
	soon, cancel := soon(ctx, l)
	defer cancel()
	return steps(
		func() error { return l.NodesReady(ctx) },
		func() error { return l.StopComponent(registrar) },
		func() error {
			return l.Until(soon, "CSINode has lost the driver", func() bool { return !l.Registered(a) })
		},
		func() error { return l.StopComponent(kubelet) },
		func() error { return l.LeaveSocket(a) },
		func() error { return l.StartComponent(kubelet) },
		// For a while nobody answers there.
		func() error {
			if !later(ctx, l, "boot of "+a, longer(l, 500*time.Millisecond, time.Minute)) {
				return context.Cause(ctx)
			}
			if l.Registered(a) {
				return fmt.Errorf("%s has registered a socket at which nobody listens: %w", a, errUnexpected)
			}
			return l.StartComponent(registrar)
		},
		// kubernetes v1.37.2 pkg/util/goroutinemap/exponentialbackoff: 2m2s at the most,
		// and a dial that is under way takes 10 s.
		func() error {
			limit := longer(l, moments, 2*time.Minute+15*time.Second)
			ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("after %v", limit))
			defer cancel()
			return l.Until(ctx, a+" has registered the new socket", func() bool { return l.Registered(a) })
		},
		func() error { return startWriter(ctx, l, "app", a, c, "registered at last") },
		func() error { return l.Check(ctx) },
		func() error { return allGone(ctx, l, []string{"app"}, []string{"data"}) },
	)
}

func registrarGone(ctx context.Context, l *sim.Lab) error {
	ctx0 := ctx
	ctx, cancel := soon(ctx, l)
	defer cancel()
	a := l.Nodes()[0]
	c, other := claim("data", "fast", "256Mi"), claim("other", "fast", "256Mi")
	var from uint64
	return steps(
		func() error { return startWriter(ctx0, l, "app", a, c, "written before") },
		func() error { return l.StopComponent("registrar@" + a) },
		func() error {
			return l.Until(ctx, "CSINode has lost the driver", func() bool { return !l.Registered(a) })
		},
		func() error { from = now(l); return l.Create(ctx0, other, pod("elsewhere", "", other)) },
		func() error {
			p, err := l.Running(ctx0, "elsewhere")
			if err == nil && p.Spec.NodeName == a {
				err = fmt.Errorf("a pod was put on %s, which has no driver: %w", a, errUnexpected)
			}
			return err
		},
		func() error { return l.Write(ctx0, "elsewhere", "/other/a", "on a node with a driver") },
		func() error { return l.Expect(ctx0, "app", "/data/a", "written before") },
		func() error {
			if es := l.Ledger.Entries(ledger.OnHop(ledger.Registration), ledger.After(from), ledger.About(a)); len(es) > 0 {
				return fmt.Errorf("a socket that is gone was called: %s: %w", es[0], errUnexpected)
			}
			return nil
		},
		func() error { return l.StartComponent("registrar@" + a) },
		func() error { return l.NodesReady(ctx) },
		func() error { return l.Check(ctx0) },
		func() error { return allGone(ctx0, l, []string{"app", "elsewhere"}, []string{"data", "other"}) },
	)
}

func pluginRefused(ctx context.Context, l *sim.Lab) error {
	ctx, cancel := soon(ctx, l)
	defer cancel()
	a := l.Nodes()[0]
	inCSINode := func(name string) bool {
		n, err := store.Get[storagev1.CSINode](l.Client(), "", a)
		return err == nil && slices.ContainsFunc(n.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == name })
	}
	var flows []func() error
	for i, tc := range []struct {
		versions []string
		id       string
		reason   string // "": taken
	}{
		{[]string{"0.3.0"}, "node", "None of the versions specified"},
		{nil, "node", "empty list for supported versions"},
		{[]string{"one", "two"}, "node", "None of the versions specified"},
		{[]string{"1.0.0"}, "", "must not be empty"},
		{[]string{"2.0.0", "1.0.0"}, "node", ""},
	} {
		flows = append(flows, func() error {
			p := &sim.Plugin{Name: fmt.Sprintf("plugin%d.example.com", i+1), Versions: tc.versions, NodeID: tc.id}
			stop, err := l.ServePlugin(a, p)
			if err != nil {
				return err
			}
			defer stop()
			if err := step(l.Until(ctx, "kubelet has answered", func() bool { return len(p.Told()) > 0 }), "versions %q, node id %q", tc.versions, tc.id); err != nil {
				return err
			}
			told := p.Told()[0]
			switch {
			case tc.reason == "" && (told != "" || !inCSINode(p.Name)):
				return fmt.Errorf("a plugin with versions %q was not taken (%q): %w", tc.versions, told, errUnexpected)
			case tc.reason != "" && !strings.Contains(told, tc.reason):
				return fmt.Errorf("a plugin with versions %q and node id %q was answered %q, must be refused with %q: %w", tc.versions, tc.id, told, tc.reason, errUnexpected)
			case tc.reason != "" && inCSINode(p.Name):
				return fmt.Errorf("a plugin that was refused is in CSINode: %w", errUnexpected)
			}
			if tc.reason == "" {
				// Another of the same name must be newer: one of the same version is
				// refused too (k8s v1.37.2 pkg/volume/csi/csi_plugin.go, validateVersions).
				double := &sim.Plugin{Name: p.Name, Socket: "double.example.com", Versions: []string{"1.0.0"}, NodeID: "other"}
				end, err := l.ServePlugin(a, double)
				if err != nil {
					return err
				}
				defer end()
				if err := step(l.Until(ctx, "kubelet has answered", func() bool { return len(double.Told()) > 0 }), "a second plugin of the name"); err != nil {
					return err
				}
				if told := double.Told()[0]; !strings.Contains(told, "already registered") || !inCSINode(p.Name) {
					return fmt.Errorf("a second plugin of the name was answered %q: %w", told, errUnexpected)
				}
				end()
			}
			stop()
			return l.Until(ctx, "CSINode has lost the plugin", func() bool { return !inCSINode(p.Name) })
		})
	}
	return steps(append(flows,
		func() error {
			if !l.Registered(a) {
				return fmt.Errorf("the driver was lost from CSINode: %w", errUnexpected)
			}
			return nil
		},
		func() error { return l.Empty(ctx) })...)
}

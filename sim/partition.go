package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

// Partition is a network that loses what two sides send each other: see
// fault.Partition. A node's path to the storage itself is no part of it: see
// CutStorage.
type Partition = fault.Partition

const (
	tcpGivesUp  = 15 * time.Minute
	kubeGivesUp = 45 * time.Second
)

const (
	apiServer    = "apiserver"
	controlPlane = "control-plane"
)

// Callee is the component that answers a call, as sides of partitions are named;
// "" where none is in between.
func (l *Lab) Callee(c fault.Call) string {
	switch c.Hop {
	case ledger.Kube:
		return apiServer
	case ledger.CSP:
		return "csp"
	case ledger.WSAPI:
		return "array"
	case ledger.VCenter:
		if strings.HasPrefix(c.Op, "task:") {
			return "" // the vCenter's own work
		}
		return "vcenter"
	case ledger.CSI:
		// The node services are called by their kubelets only.
		if _, node, ok := strings.Cut(c.Component, "@"); ok {
			return "driver@" + node
		}
		return "driver-controller"
	case ledger.Registration:
		if _, node, ok := strings.Cut(c.Component, "@"); ok {
			return "registrar@" + node
		}
	}
	return ""
}

// side says whether a component is on a side of a partition.
func (l *Lab) side(side, component string) bool {
	if component == "" {
		return false
	}
	if side == component {
		return true
	}
	if _, node, ok := strings.Cut(component, "@"); ok {
		return side == node
	}
	return side == controlPlane && (component == apiServer || l.isControlPlane(component))
}

// isControlPlane says whether a component runs beside the API server: the
// controllers and sidecars, not the driver.
func (l *Lab) isControlPlane(component string) bool {
	return l.controllers[component]
}

// checkSide says what a side may be.
func (l *Lab) checkSide(field, side string) error {
	allowed := []string{apiServer, controlPlane, "driver-controller"}
	if l.opts.Backend == HPE {
		allowed = append(allowed, "csp", "array")
	} else {
		allowed = append(allowed, "vcenter")
	}
	for _, n := range l.nodes {
		allowed = append(allowed, n.Name, "kubelet@"+n.Name, "driver@"+n.Name, "registrar@"+n.Name)
	}
	for c := range l.controllers {
		allowed = append(allowed, c)
	}
	if slices.Contains(allowed, side) {
		return nil
	}
	slices.Sort(allowed)
	return fmt.Errorf("partition: %s is %q, allowed are %s", field, side, strings.Join(allowed, ", "))
}

// Partition cuts two sides off from each other: calls between them neither
// arrive nor are answered, and who watches the API server through it sees no
// change. Calls that wait go through when it heals, or fail when their
// deadline or GiveUp comes first. heal may be called more than once.
func (l *Lab) Partition(p Partition) (heal func(), err error) {
	if err := errors.Join(l.checkSide("A", p.A), l.checkSide("B", p.B)); err != nil {
		return nil, err
	}
	healed := make(chan struct{})
	// request: X asks Y over the partition; reply: Y's answer to X is lost.
	lost := func(c fault.Call, reply bool) bool {
		from, to := c.Component, l.Callee(c)
		if reply {
			from, to = to, from
		}
		return l.side(p.A, from) && l.side(p.B, to) || !p.OneWay && l.side(p.B, from) && l.side(p.A, to)
	}
	wait := func(ctx context.Context, c fault.Call) error {
		limit := p.GiveUp
		if limit == 0 {
			limit = tcpGivesUp
			if c.Hop == ledger.Kube {
				limit = kubeGivesUp
			}
		}
		t := time.NewTimer(limit)
		defer t.Stop()
		select {
		case <-healed:
			return nil
		case <-t.C:
			return fault.ErrDrop
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-l.ctx.Done():
			return fault.ErrDrop
		}
	}
	rule := func(phase fault.Phase, reply bool) *fault.Armed {
		return l.Plan.Arm(fault.Rule{Name: p.String(), Phase: phase, MayNotFire: true,
			Match: func(c fault.Call) bool { return lost(c, reply) }, Do: fault.Func(p.String(), wait)})
	}
	rules := []*fault.Armed{rule(fault.Before, false), rule(fault.After, true)}

	var views []func()
	for _, actor := range l.actors() {
		c := fault.Call{Hop: ledger.Kube, Component: actor}
		if lost(c, false) || lost(c, true) {
			views = append(views, l.store.Partition(actor))
		}
	}
	var once sync.Once
	return func() {
		once.Do(func() {
			for _, heal := range views {
				heal()
			}
			for _, r := range rules {
				l.Plan.Disarm(r)
			}
			close(healed)
		})
	}, nil
}

// actors are those who call the API server.
func (l *Lab) actors() (out []string) {
	for c := range l.controllers {
		out = append(out, c)
	}
	out = append(out, "driver-controller")
	for _, n := range l.nodes {
		out = append(out, "kubelet@"+n.Name, "driver@"+n.Name)
	}
	slices.Sort(out)
	return out
}

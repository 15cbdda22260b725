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

// Partition is a network that loses what two sides send each other. A side is
// a component as the ledger names it ("kubelet@node-1", "driver-controller",
// "csi-attacher", "csp"), what is called ("apiserver", "vcenter", "csp",
// "array", "driver-controller", "driver@node-1"), a node ("node-1": all that
// runs there), or "control-plane": API server, controllers and sidecars.
//
// A node's path to the storage itself is no part of it: see CutStorage.
type Partition struct {
	A, B string
	// OneWay loses only what A sends: its requests, and its answers to B.
	OneWay bool
	// GiveUp is how long a call waits for packets to go through before its
	// connection ends; 0 means 15 minutes, how long Linux sends again
	// (net.ipv4.tcp_retries2 = 15 is 924.6 s; 45 s on the hop kube, where
	// HTTP/2 pings tell client-go: 30 s without a frame and 15 s without an
	// answer, k8s.io/apimachinery pkg/util/net/http.go).
	GiveUp time.Duration
}

const (
	tcpGivesUp  = 15 * time.Minute
	kubeGivesUp = 45 * time.Second
)

// String names the partition, also in the ledger.
func (p Partition) String() string {
	if p.OneWay {
		return fmt.Sprintf("partition: nothing from %s to %s", p.A, p.B)
	}
	return fmt.Sprintf("partition: %s | %s", p.A, p.B)
}

const (
	apiServer    = "apiserver"
	controlPlane = "control-plane"
)

// callee is the component that answers a call; "" where none is in between.
func callee(c fault.Call) string {
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
		allowed = append(allowed, n.Name, "kubelet@"+n.Name, "driver@"+n.Name)
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
		from, to := c.Component, callee(c)
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

package fault

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/csilab/csilab/sim/ledger"
)

// Partition is a network that loses what two sides send each other. A side is
// a component as the ledger names it ("kubelet@node-1", "driver-controller",
// "csi-attacher", "csp"), what is called ("apiserver", "vcenter", "csp",
// "array", "driver-controller", "driver@node-1"), a node ("node-1": all that
// runs there), or "control-plane": API server, controllers and sidecars.
//
// A node's path to the storage itself is no part of it.
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

// String names the partition, also in the ledger.
func (p Partition) String() string {
	if p.OneWay {
		return fmt.Sprintf("partition: nothing from %s to %s", p.A, p.B)
	}
	return fmt.Sprintf("partition: %s | %s", p.A, p.B)
}

// partitioned is a world in which two sides can be cut off from each other.
type partitioned interface {
	Partition(p Partition) (heal func(), err error)
	// Callee is the side that answers a call; "" where none is in between.
	Callee(c Call) string
}

// Cut makes a partition. Sides that are "" are the caller and who answers it.
func Cut(p Partition, last time.Duration) Action {
	text := "partition"
	if p.A != "" && p.B != "" {
		text = p.String()
	}
	return NewChange(text, last, func(_ context.Context, in *Interceptor, c Call) (func(), error) {
		w, err := WorldOf[partitioned](in, "cut networks")
		if err != nil {
			return nil, err
		}
		p := p
		if p.A == "" {
			p.A = c.Component
		}
		if p.B == "" {
			p.B = w.Callee(c)
		}
		if p.A == "" || p.B == "" {
			return nil, errors.New("nothing is between the caller and who answers it: name both sides in the rule")
		}
		return w.Partition(p)
	})
}

// PartitionParams are those of kind partition.
type PartitionParams struct {
	A      string        `yaml:"a" default:"who makes the call" doc:"one side: a component, a node, apiserver, control-plane, vcenter, csp or array"`
	B      string        `yaml:"b" default:"who answers the call" doc:"the other side, likewise"`
	OneWay bool          `yaml:"oneWay" default:"false" doc:"lose only what a sends: its requests, and its answers to b"`
	GiveUp time.Duration `yaml:"giveUp" unit:"duration" min:"0" max:"86400000000000" default:"15m; 45s on hop kube" doc:"how long a call waits until its connection ends"`
	For    time.Duration `yaml:"for" unit:"duration" min:"0" max:"86400000000000" default:"until the rule is cleared or the faulty phase ends" doc:"how long it lasts"`
}

func init() {
	Register(Kind{
		Name:   "partition",
		Doc:    "Two sides are cut off from each other, from this call on: calls between them neither arrive nor are answered, and who watches the API server through it sees no change. Calls that wait go through when it heals, or fail when their deadline or giveUp comes first.",
		Phases: []Phase{Before, After},
		Params: PartitionParams{},
		Needs:  NeedsWorld[partitioned]("cut networks"),
		New: Make(func(_ Rule, p PartitionParams) (Action, error) {
			return Cut(Partition{p.A, p.B, p.OneWay, p.GiveUp}, p.For), nil
		}),
		Sweep: func(c Call, _ Phase) bool { return c.Hop == ledger.CSI && notOfTask(c) || toBackend(c) },
		Example: `name: the node is cut off while it stages
hop: csi
op: NodeStageVolume
phase: after
nth: 1
do:
  partition: {a: node-1, b: control-plane, for: 3m}`,
	})
}

package fault

import (
	"context"
	"strings"
	"time"

	"github.com/csilab/csilab/sim/ledger"
)

// power is a world whose nodes have a switch.
type power interface {
	machines
	PowerOff(ctx context.Context, node string) error
	PowerOn(ctx context.Context, node string) error
}

// LosePower takes the power from a node; "" is that of the call.
func LosePower(node string, last time.Duration) Action {
	return NewChange(named("power loss", node), last, func(ctx context.Context, in *Interceptor, c Call) (func(), error) {
		w, err := WorldOf[power](in, "switch nodes off")
		if err != nil {
			return nil, err
		}
		name, err := nodeOf(in, w, node, c)
		if err != nil {
			return nil, err
		}
		if err := w.PowerOff(ctx, name); err != nil {
			return nil, err
		}
		// A node that can't be switched on shows by itself.
		return func() { _ = w.PowerOn(context.WithoutCancel(ctx), name) }, nil
	})
}

// named is what an action is called that is about something, or about what the
// call is about.
func named(what string, of ...string) string {
	for _, s := range of {
		if s != "" {
			what += " " + s
		}
	}
	return what
}

// NodeParams are those of kinds that act on a node.
type NodeParams struct {
	Node string `yaml:"node" default:"that of the call, or of its caller" doc:"name of the node"`
}

// PowerLossParams are those of kind power-loss.
type PowerLossParams struct {
	Node string        `yaml:"node" default:"that of the call, or of its caller" doc:"name of the node"`
	For  time.Duration `yaml:"for" unit:"duration" min:"0" max:"86400000000000" default:"until the rule is cleared or the faulty phase ends" doc:"how long it lasts"`
}

func init() {
	Register(Kind{
		Name:   "power-loss",
		Doc:    "A node loses power: all that runs there ends, and what was not synced is lost. Its disks stay attached. It heals by switching it on.",
		Phases: []Phase{After, Before},
		Params: PowerLossParams{},
		Needs:  NeedsWorld[power]("switch nodes off"),
		New:    Make(func(_ Rule, p PowerLossParams) (Action, error) { return LosePower(p.Node, p.For), nil }),
		// Between two operations on the node, and while a call is under way to it.
		Sweep: func(c Call, p Phase) bool {
			onNode := strings.Contains(c.Component, "@")
			return onNode && (c.Hop == ledger.CSI || c.Hop == ledger.Host && p == After)
		},
		Example: `name: the node loses power while it makes the filesystem
hop: host
op: exec mkfs.ext4
phase: before
nth: 1
do:
  power-loss: {for: 2m}`,
	})
}

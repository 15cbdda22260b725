package fault

import (
	"context"
	"strings"

	"github.com/csilab/csilab/sim/ledger"
)

// Drop loses the connection: in phase Before the operation never happens, in
// phase After it is committed and its reply lost.
func Drop() Action { return dropAction{} }

type dropAction struct{}

func (dropAction) Act(context.Context, *Interceptor, Call) error { return ErrDrop }
func (dropAction) String() string                                { return "drop" }

// network are the hops that calls reach over connections.
var network = []ledger.Hop{ledger.CSI, ledger.Registration, ledger.VCenter, ledger.CSP, ledger.WSAPI, ledger.Kube}

// notOfTask leaves out the work of tasks, which has no caller and no reply.
func notOfTask(c Call) bool { return !strings.HasPrefix(c.Op, TaskPrefix) }

func init() {
	Register(Kind{
		Name:   "drop",
		Doc:    "The connection is closed. Before, nothing has been done; after, it has been, and the reply is lost. On gRPC all calls on the connection lose their replies.",
		Phases: []Phase{After, Before},
		Hops:   network,
		Fits:   notOfTask,
		New:    func(Rule, any) (Action, error) { return Drop(), nil },
		Example: `name: the reply to the attach is lost
hop: csi
op: ControllerPublishVolume
phase: after
nth: 1
do: drop`,
	})
}

// toBackend says whether a call goes to the storage.
func toBackend(c Call) bool {
	return notOfTask(c) && (c.Hop == ledger.VCenter || c.Hop == ledger.CSP || c.Hop == ledger.WSAPI)
}

package sim

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csilab/csilab/sim/hop"
	"github.com/csilab/csilab/sim/ledger"
)

// Asker is a person with a tool at the driver's controller socket: for calls
// that no part of the cluster makes.
type Asker struct {
	csi.ControllerClient
	Identity csi.IdentityClient
	Groups   csi.GroupControllerClient
	// Secrets are what requests bring; nil: nothing.
	Secrets map[string]string
}

// Ask lets f call the driver's controller side as component "user".
func (l *Lab) Ask(ctx context.Context, f func(ctx context.Context, a Asker) error) error {
	conn, err := hop.Dial(hop.Config{Network: l.net, Endpoint: l.controllerSocket(), Hop: ledger.CSI, Component: "user", In: l.in})
	if err != nil {
		return err
	}
	defer conn.Close()
	return f(ctx, Asker{csi.NewControllerClient(conn), csi.NewIdentityClient(conn), csi.NewGroupControllerClient(conn), l.backend.secret()})
}

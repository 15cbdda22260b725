package sim

import (
	"context"
	"errors"

	"github.com/csilab/csilab/sim/fault"
)

// AskBackend passes a call of a component over the hop to the backend that asks
// for nothing, for mutants: a driver that needs the backend where it must not.
// It fails where rules say so.
func (l *Lab) AskBackend(ctx context.Context, component string) error {
	err := l.in.Do(ctx, fault.Call{Hop: l.StorageHop(), Op: "ask", Component: component}, func(ctx context.Context) error { return ctx.Err() })
	if errors.Is(err, fault.ErrDrop) {
		err = errors.New("the backend does not answer")
	}
	return err
}

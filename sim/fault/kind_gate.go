package fault

import (
	"context"
	"slices"
	"sync"
)

// Gate stops a call at a point until the test lets it go on.
type Gate struct {
	once    sync.Once
	reached chan Call
	release chan struct{}

	mu   sync.Mutex
	held []*Call
}

// NewGate returns a closed gate.
func NewGate() *Gate {
	return &Gate{reached: make(chan Call, 64), release: make(chan struct{})}
}

// Act implements Action.
func (g *Gate) Act(ctx context.Context, in *Interceptor, c Call) error {
	here := &c
	g.mu.Lock()
	g.held = append(g.held, here)
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.held = slices.DeleteFunc(g.held, func(x *Call) bool { return x == here })
	}()
	select {
	case g.reached <- c:
	default:
	}
	select {
	case <-g.release:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-in.closed():
		return ErrDrop
	}
}

func (g *Gate) String() string { return "gate" }

// Held are the calls that stand at the gate now, oldest first.
func (g *Gate) Held() []Call {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []Call
	for _, c := range g.held {
		out = append(out, *c)
	}
	return out
}

// Reached waits until a call stands at the gate.
func (g *Gate) Reached(ctx context.Context) (Call, error) {
	select {
	case c := <-g.reached:
		return c, nil
	case <-ctx.Done():
		return Call{}, context.Cause(ctx)
	}
}

// Release opens the gate for good.
func (g *Gate) Release() { g.once.Do(func() { close(g.release) }) }

func init() {
	Register(Kind{
		Name:   "gate",
		Doc:    "The call stands until the gate is opened (csilab fault release NAME, with the rule's name), or until the caller gives up: so are two flows interleaved.",
		Phases: []Phase{Before, Task, After},
		New:    func(Rule, any) (Action, error) { return NewGate(), nil },
		// A sweep has nobody to open it.
		Samples: func(Call) []any { return nil },
		Example: `name: stage
hop: csi
op: NodeStageVolume
do: gate`,
	})
}

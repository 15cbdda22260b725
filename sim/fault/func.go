package fault

import "context"

// Func runs f: a change of state behind the driver's back, or anything else.
func Func(name string, f func(ctx context.Context, c Call) error) Action {
	return funcAction{name, f}
}

type funcAction struct {
	name string
	f    func(context.Context, Call) error
}

func (a funcAction) Act(ctx context.Context, _ *Interceptor, c Call) error { return a.f(ctx, c) }
func (a funcAction) String() string                                        { return a.name }

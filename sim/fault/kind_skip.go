package fault

import "context"

// Skip answers with success without doing the operation. It is how a mutant
// "forgets" a step; a driver under test never gets it by default.
func Skip() Action { return skipAction{} }

type skipAction struct{}

func (skipAction) Act(context.Context, *Interceptor, Call) error { return ErrSkip }
func (skipAction) String() string                                { return "skip" }

func init() {
	Register(Kind{
		Name:    "skip",
		Doc:     "The call is answered with success and not carried out: what a mutant does.",
		Phases:  []Phase{Before},
		New:     func(Rule, any) (Action, error) { return Skip(), nil },
		Samples: func(Call) []any { return nil },
		Mutants: true,
	})
}

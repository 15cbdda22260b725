package fault

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/csilab/csilab/sim/ledger"
)

// Kind is something that can go wrong, by name. Each is a file kind_NAME.go,
// which registers it; docs/faults has a page of each, made from what it says
// here.
type Kind struct {
	// Name is lower case, words joined by dashes: what YAML and sweeps call it.
	Name string
	// Doc says in a sentence what happens.
	Doc string
	// Phases that it can act in; the first is the default.
	Phases []Phase
	// Hops that it fits; none means all.
	Hops []ledger.Hop
	// Fits says whether it makes sense on a call, beyond the hop; nil: on all.
	Fits func(Call) bool
	// Tasks says that it acts on the work of tasks: a rule on CnsCreateVolume is
	// one on task:CnsCreateVolume in any phase.
	Tasks bool
	// Params is a struct of its parameters, zero, with the tags of fault files
	// (yaml, doc, default, need, enum, min, max, unit); nil where it has none.
	Params any
	// New makes the action of a rule whose *Params it gets (nil without). at is
	// the rule so far: where and when. Errors say what is wrong in the
	// parameters; a *ParamError names the one.
	New func(at Rule, params any) (Action, error)
	// Samples are parameters that a sweep tries on a call, each a pointer to a
	// struct like Params; nil takes the zero ones.
	Samples func(Call) []any
	// Sweep says on which calls and in which phases all must come right by itself
	// after it, once it has healed: those are a sweep's cells. nil: on none.
	Sweep func(Call, Phase) bool
	// Needs says what the world lacks for it, "" if nothing; nil: it needs none.
	Needs func(world any) string
	// Example is a rule that uses it, in YAML, without the list's dash.
	Example string
	// Mutants says that it is for mutants only: fault files can't name it.
	Mutants bool
}

// ParamError is what is wrong with a parameter of a kind. Param is its name in
// YAML.
type ParamError struct{ Param, Text string }

func (e *ParamError) Error() string { return e.Param + ": " + e.Text }

// Wrong makes a ParamError.
func Wrong(param, format string, args ...any) error {
	return &ParamError{param, fmt.Sprintf(format, args...)}
}

var kinds = map[string]Kind{}

// Register adds a kind, at the start of the program. It panics on one that is
// there or not complete.
func Register(k Kind) {
	if _, twice := kinds[k.Name]; twice || k.Name == "" || k.Doc == "" || k.New == nil || len(k.Phases) == 0 {
		panic(fmt.Sprintf("fault: kind %q is registered twice, or has no doc, phases or New", k.Name))
	}
	kinds[k.Name] = k
}

// Kinds lists the kinds by name.
func Kinds() []Kind {
	var out []Kind
	for _, k := range kinds {
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b Kind) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Lookup finds a kind.
func Lookup(name string) (Kind, bool) {
	k, ok := kinds[name]
	return k, ok
}

// KindNames lists the names that fault files can use.
func KindNames() []string {
	var out []string
	for _, k := range Kinds() {
		if !k.Mutants {
			out = append(out, k.Name)
		}
	}
	return out
}

// Make is for Kind.New: it hands a kind's parameters over by their type.
func Make[P any](make func(at Rule, p P) (Action, error)) func(Rule, any) (Action, error) {
	return func(at Rule, params any) (Action, error) {
		var p P
		switch x := params.(type) {
		case nil:
		case *P:
			p = *x
		case P:
			p = x
		default:
			return nil, fmt.Errorf("fault: parameters are a %T, must be a %T", params, p)
		}
		return make(at, p)
	}
}

// limited is a world that has a kind's methods and can't do all of them.
type limited interface {
	// Lacks says what a kind needs that the world does not have, and what it has;
	// "" if it has all.
	Lacks(kind string) string
}

// Lacks says why the kind can't be done in a world, "" if it can: what follows
// "this lab".
func (k Kind) Lacks(world any) string {
	if k.Needs == nil {
		return ""
	}
	if can := k.Needs(world); can != "" {
		return "can't " + can
	}
	if w, ok := world.(limited); ok {
		return w.Lacks(k.Name)
	}
	return ""
}

// NewParams is a pointer to a copy of the kind's parameters, or nil.
func (k Kind) NewParams() any {
	if k.Params == nil {
		return nil
	}
	return reflect.New(reflect.TypeOf(k.Params)).Interface()
}

// OnHop says whether the kind fits a hop. "" is any.
func (k Kind) OnHop(h ledger.Hop) bool {
	return h == "" || len(k.Hops) == 0 || slices.Contains(k.Hops, h)
}

// In says whether the kind can act in a phase.
func (k Kind) In(p Phase) bool {
	return slices.Contains(k.Phases, p)
}

// On says whether the kind makes sense on a call in a phase.
func (k Kind) On(c Call, p Phase) bool {
	return k.OnHop(c.Hop) && k.In(p) && (k.Fits == nil || k.Fits(c))
}

// Tries are the parameters that a sweep tries on a call; at least one, which may
// be nil.
func (k Kind) Tries(c Call) []any {
	if k.Samples != nil {
		return k.Samples(c)
	}
	return []any{k.NewParams()}
}

// Rule completes a rule with an action of the kind. Errors name what does not
// fit together.
func (k Kind) Rule(at Rule, params any) (Rule, error) {
	if at.Phase == "" {
		at.Phase = k.Phases[0]
	}
	if k.Tasks {
		if at.Op == "" {
			at.Op = "*"
		}
		if !strings.HasPrefix(at.Op, TaskPrefix) {
			at.Op = TaskPrefix + at.Op
		}
	}
	switch {
	case !k.OnHop(at.Hop):
		return at, fmt.Errorf("%s does not fit hop %s; it fits %s", k.Name, at.Hop, hopList(k.Hops))
	case !k.In(at.Phase):
		return at, fmt.Errorf("%s does not act in phase %s; it acts in %s", k.Name, at.Phase, phaseList(k.Phases))
	case k.Fits != nil && at.Op != "" && !strings.Contains(at.Op, "*") && at.Hop != "" && !k.Fits(Call{Hop: at.Hop, Op: at.Normal().Op}):
		return at, fmt.Errorf("%s does not fit %s/%s", k.Name, at.Hop, at.Op)
	}
	wideHop, wideOp := at.Hop == "" && len(k.Hops) > 0, at.Op == "" || strings.Contains(at.Op, "*")
	if fits := k.Fits; wideHop || fits != nil && (wideOp || at.Hop == "") {
		match := at.Match
		at.Match = func(c Call) bool {
			return k.OnHop(c.Hop) && (fits == nil || fits(c)) && (match == nil || match(c))
		}
	}
	a, err := k.New(at, params)
	if err != nil {
		return at, err
	}
	at.Do = a
	return at, nil
}

func hopList(hs []ledger.Hop) string {
	var out []string
	for _, h := range hs {
		out = append(out, string(h))
	}
	return strings.Join(out, ", ")
}

func phaseList(ps []Phase) string {
	var out []string
	for _, p := range ps {
		out = append(out, string(p))
	}
	return strings.Join(out, ", ")
}

// NoWorldError says that a kind can't act in this lab.
type NoWorldError struct{ What string }

func (e *NoWorldError) Error() string { return "fault: this lab can't " + e.What }

// WorldOf finds in the interceptor's world what a kind acts on: an interface of
// the few methods that it needs, declared in the kind's file. can is what the
// error says otherwise, e.g. "crash components".
func WorldOf[T any](in *Interceptor, can string) (T, error) {
	w, ok := in.World.(T)
	if !ok {
		return w, &NoWorldError{can}
	}
	return w, nil
}

// NeedsWorld is for Kind.Needs: the world must have the methods of T.
func NeedsWorld[T any](can string) func(any) string {
	return func(world any) string {
		if _, ok := world.(T); ok {
			return ""
		}
		return can
	}
}

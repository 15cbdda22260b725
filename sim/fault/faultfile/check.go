package faultfile

import (
	"fmt"
	"slices"
	"strings"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/nearest"
)

// without are the subjects that calls of a hop never name.
var without = map[ledger.Hop][]string{
	ledger.Host:         {"volume", "snapshot"},
	ledger.Registration: {"volume", "snapshot"},
}

// subjects notes selectors that no call can meet.
func (d *decoder) subjects(path string, r fault.Rule) {
	if d.lab.Hops != nil && r.Hop != "" && !slices.Contains(d.lab.Hops, string(r.Hop)) {
		d.Wrong(path+".hop", "this lab has no hop %s; it has %s", r.Hop, strings.Join(d.lab.Hops, ", "))
	}
	given := map[string]string{"volume": r.Volume, "snapshot": r.Snapshot, "node": r.Node}
	for _, s := range without[r.Hop] {
		if given[s] != "" {
			d.Wrong(path+"."+s, "calls of hop %s name no %s: the rule would never match", r.Hop, s)
		}
	}
	if r.Node != "" && d.lab.Nodes != nil && !slices.Contains(d.lab.Nodes, r.Node) {
		d.Wrong(path+".node", "this lab has no node %q%s", r.Node, nearest.Name(r.Node, d.lab.Nodes))
	}
	if r.Component == "" {
		return
	}
	if d.lab.Components != nil && !slices.Contains(d.lab.Components, r.Component) {
		d.Wrong(path+".component", "this lab has no component %q%s", r.Component, nearest.Name(r.Component, d.lab.Components))
	} else if _, node, ok := strings.Cut(r.Component, "@"); ok && d.lab.Nodes != nil && !slices.Contains(d.lab.Nodes, node) {
		d.Wrong(path+".component", "this lab has no node %q%s", node, nearest.Name(node, d.lab.Nodes))
	}
}

// operation notes an operation that the hop does not have, or that is none of a
// task where the kind or the phase is about tasks.
func (d *decoder) operation(path string, r *fault.Rule, k fault.Kind) bool {
	ofTask := k.Tasks || r.Phase == fault.Task || r.Phase == fault.Result
	if ofTask && r.Hop != "" && r.Hop != ledger.VCenter {
		if k.OnHop(r.Hop) { // otherwise the kind says so
			d.Wrong(path+".phase", "only hop vcenter has tasks")
			return false
		}
		return true
	}
	if r.Op == "" {
		return true
	}
	op, known := r.Op, fault.Ops(r.Hop)
	if ofTask {
		var names []string
		for _, o := range known {
			if name, ok := strings.CutPrefix(o, fault.TaskPrefix); ok {
				names = append(names, name)
			}
		}
		known = names
		op = strings.TrimPrefix(op, fault.TaskPrefix)
		if !fault.KnownOp(ledger.VCenter, fault.TaskPrefix+op) {
			if fault.KnownOp(ledger.VCenter, op) {
				d.Wrong(path+".op", "%s starts no task", op)
			} else {
				d.Wrong(path+".op", "there is no task of an operation %q%s", op, nearest.Name(op, known))
			}
			return false
		}
		return true
	}
	if fault.KnownOp(r.Hop, op) {
		return true
	}
	switch elsewhere := hopsOf(op); {
	case r.Hop == "":
		d.Wrong(path+".op", "no hop has an operation %q%s", op, nearest.Name(op, known))
	case len(elsewhere) > 0:
		d.Wrong(path+".op", "hop %s has no operation %q, it is one of hop %s", r.Hop, op, strings.Join(elsewhere, ", "))
	default:
		d.Wrong(path+".op", "hop %s has no operation %q%s", r.Hop, op, nearest.Name(op, known))
	}
	return false
}

// anyHop notes a rule without a hop that no call of the lab could meet: no hop has
// its operation, or none that has it fits the kind.
func (d *decoder) anyHop(path string, r fault.Rule, k fault.Kind) {
	if r.Hop != "" {
		return
	}
	var could []ledger.Hop
	for _, h := range fault.Hops {
		ofTask := k.Tasks || r.Phase == fault.Task || r.Phase == fault.Result
		if (d.lab.Hops == nil || slices.Contains(d.lab.Hops, string(h))) && (!ofTask || h == ledger.VCenter) && (r.Op == "" || ofTask || fault.KnownOp(h, r.Op)) {
			could = append(could, h)
		}
	}
	exact := r.Op != "" && !strings.Contains(r.Op, "*")
	switch {
	case len(could) == 0 && r.Op != "":
		d.Wrong(path+".op", "no hop of this lab has an operation %q; it has hops %s", r.Op, strings.Join(d.lab.Hops, ", "))
	case len(could) == 0:
		d.Wrong(path+".do", "%s is for tasks, and this lab has no hop vcenter; it has %s", k.Name, strings.Join(d.lab.Hops, ", "))
	case !slices.ContainsFunc(could, k.OnHop):
		d.Wrong(path+".do", "%s does not fit hop %s, where the rule's calls are; it fits %s", k.Name, texts(could), texts(k.Hops))
	case exact && k.Fits != nil && !slices.ContainsFunc(could, func(h ledger.Hop) bool { return k.On(fault.Call{Hop: h, Op: r.Normal().Op}, r.Phase) }):
		if k.In(r.Phase) { // otherwise the kind says so
			d.Wrong(path+".do", "%s does not fit %s", k.Name, r.Op)
		}
	}
}

func texts(hops []ledger.Hop) string {
	var out []string
	for _, h := range hops {
		out = append(out, string(h))
	}
	return strings.Join(out, ", ")
}

// hopsOf are the hops that have an operation.
func hopsOf(op string) (out []string) {
	for _, h := range fault.Hops {
		if len(fault.Ops(h)) > 0 && fault.KnownOp(h, op) {
			out = append(out, string(h))
		}
	}
	return out
}

// between is what has to hold between rules: names are unique, afterRule names
// one that can fire before, and none takes all calls of a later one.
func (d *decoder) between(said []Rule, rules []fault.Rule) {
	at := map[string]int{}
	for i, r := range said {
		if first, twice := at[r.Name]; twice && r.Name != "" {
			d.Wrong(fmt.Sprintf("rules[%d].name", i), "%q is the name of rules[%d] too", r.Name, first)
			continue
		}
		if slices.Contains(d.lab.Rules, r.Name) {
			d.Wrong(fmt.Sprintf("rules[%d].name", i), "a rule %q is armed already", r.Name)
		}
		at[r.Name] = i
	}
	names := slices.Clone(d.lab.Rules)
	for _, r := range said {
		names = append(names, r.Name)
	}
	for i, r := range said {
		if r.AfterRule == "" {
			continue
		}
		path := fmt.Sprintf("rules[%d].afterRule", i)
		if !slices.Contains(names, r.AfterRule) {
			var others []string
			for _, n := range names {
				if n != "" && n != r.Name && !slices.Contains(others, n) {
					others = append(others, n)
				}
			}
			d.Wrong(path, "there is no rule %q%s", r.AfterRule, nearest.Name(r.AfterRule, others))
			continue
		}
		seen := map[string]bool{r.Name: true}
		for next := r.AfterRule; next != ""; {
			if seen[next] {
				d.Wrong(path, "rule %q waits for itself, and would never fire", r.Name)
				break
			}
			seen[next] = true
			j, ok := at[next]
			if !ok {
				break
			}
			next = said[j].AfterRule
		}
	}
	for i := range rules {
		for j := range rules[:i] {
			if takesAll(rules[j], rules[i]) {
				d.Wrong(fmt.Sprintf("rules[%d]", i), "rules[%d] (%s) fires on every call that this rule could match, so that it never would", j, rules[j].Name)
				break
			}
		}
	}
}

// takesAll says whether a fires on every call that b could match and leaves
// nothing of it to b.
func takesAll(a, b fault.Rule) bool {
	if _, goesOn := a.Do.(*fault.Change); goesOn {
		return false
	}
	covers := func(x, y string) bool { return x == "" || x == y }
	return a.Do != nil && b.Do != nil && a.Normal().Phase == b.Normal().Phase && a.Nth == 0 && a.First == 0 && a.Every == 0 && a.Probability == 0 && a.AfterRule == "" &&
		a.Where == nil && (a.Match == nil || exact(b) && a.Match(fault.Call{Hop: b.Hop, Op: b.Normal().Op})) && (!a.OnlySuccess || b.OnlySuccess) &&
		covers(string(a.Hop), string(b.Hop)) && covers(a.Normal().Op, b.Normal().Op) && covers(a.Component, b.Component) &&
		covers(a.Node, b.Node) && covers(a.Volume, b.Volume) && covers(a.Snapshot, b.Snapshot)
}

// exact says whether a rule is about one operation.
func exact(r fault.Rule) bool { return r.Op != "" && !strings.Contains(r.Op, "*") }

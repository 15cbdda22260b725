// Package faultfile reads fault plans from YAML. It is strict, as packages
// labfile and yamlfile are, and refuses what can never happen: a rule whose
// operation its hop does not have, whose kind does not fit the hop or the phase,
// or that an earlier rule always takes the calls of.
package faultfile

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/nearest"
	"github.com/csilab/csilab/sim/yamlfile"
)

// APIVersion and Kind that a file must have.
const (
	APIVersion = "csilab.dev/v1"
	Kind       = "FaultPlan"
)

// File is what a file says.
type File struct {
	APIVersion string `yaml:"apiVersion" need:"yes" enum:"csilab.dev/v1" doc:"version of this format"`
	Kind       string `yaml:"kind" need:"yes" enum:"FaultPlan" doc:"what the file is"`
	Rules      []Rule `yaml:"rules" need:"yes" min:"1" max:"1000" doc:"the rules; of those that match a call the first that fires decides"`
}

// Rule is a fault.Rule as a file has it.
type Rule struct {
	Name string `yaml:"name" need:"yes" min:"1" max:"200" doc:"its name in ledger and reports, unique in the file"`

	Hop       string `yaml:"hop" enum:"csi|vcenter|csp|wsapi|host|registration|kube" default:"any" doc:"where: the boundary that the call passes"`
	Op        string `yaml:"op" min:"1" default:"any" doc:"where: the operation as its protocol spells it, e.g. ControllerPublishVolume, CnsAttachVolume, POST /vluns, exec mkfs.ext4, update pods; * stands for any text"`
	Component string `yaml:"component" min:"1" default:"any" doc:"where: who calls, e.g. csi-attacher, kubelet@node-1, driver-controller, csp"`
	Node      string `yaml:"node" min:"1" default:"any" doc:"where: name of the node that the call is about"`
	Volume    string `yaml:"volume" min:"1" default:"any" doc:"where: id of the volume, or its name before it has one"`
	Snapshot  string `yaml:"snapshot" min:"1" default:"any" doc:"where: id of the snapshot, or its name before it has one"`
	Where     string `yaml:"where" min:"1" default:"any" doc:"where: a condition, e.g. volume =~ \"^pvc-\" && attempt <= 2"`

	Phase       string  `yaml:"phase" enum:"before|task|result|after" default:"the kind's first" doc:"when: before the operation, while its task runs, in the result of one volume of its task, or after its commit"`
	OnlySuccess bool    `yaml:"onlySuccess" default:"false" doc:"when: only after calls that succeeded; phase after only"`
	AfterRule   string  `yaml:"afterRule" min:"1" default:"at once" doc:"when: not before the rule of this name has fired"`
	Nth         int     `yaml:"nth" min:"1" max:"1000000" default:"all" doc:"when: on the nth matching call only"`
	First       int     `yaml:"first" min:"1" max:"1000000" default:"all" doc:"when: on the first n matching calls"`
	Every       int     `yaml:"every" min:"2" max:"1000000" default:"all" doc:"when: on every nth matching call"`
	Probability float64 `yaml:"probability" default:"all" doc:"when: on this share of the matching calls, between 0 and 1, drawn from the lab's seed"`
	PerSubject  bool    `yaml:"perSubject" default:"false" doc:"when: nth, first and every count the calls of each caller, operation and volume, snapshot or node on their own"`

	Do Do `yaml:"do" need:"yes" doc:"what: the name of a kind, or a mapping of it to its parameters; see csilab fault explain"`

	MayNotFire bool `yaml:"mayNotFire" default:"false" doc:"the rule need not fire; any other that never does fails the scenario"`
}

// Do is a kind with its parameters. In a file it is the kind's name alone, or a
// mapping with the name as its only key.
type Do struct {
	kind   fault.Kind
	params any    // pointer to the kind's parameters, or nil
	path   string // of the parameters
}

// DecodeYAML implements yamlfile.Custom.
func (x *Do) DecodeYAML(d *yamlfile.Decoder, n *yaml.Node, path string) {
	name := n
	switch {
	case n.Kind == yaml.ScalarNode && n.ShortTag() == "!!str":
	case n.Kind == yaml.MappingNode && len(n.Content) == 2 && n.Content[0].Kind == yaml.ScalarNode:
		name = n.Content[0]
	default:
		d.Add(n.Line, n.Column, path, "must be the name of a kind, or a mapping of one to its parameters, e.g. {latency: {time: 2s}}")
		return
	}
	k, ok := fault.Lookup(name.Value)
	if !ok || k.Mutants {
		d.Add(name.Line, name.Column, path, "unknown kind %q%s", name.Value, nearest.Name(name.Value, fault.KindNames()))
		return
	}
	x.kind, x.params, x.path = k, k.NewParams(), path+"."+k.Name
	if name == n || isNothing(n.Content[1]) {
		if x.params == nil {
			return
		}
		// All that must be given is missing.
		d.Value(&yaml.Node{Kind: yaml.MappingNode, Line: name.Line, Column: name.Column}, x.params, x.path)
		return
	}
	params := n.Content[1]
	if x.params == nil {
		if params.Kind != yaml.MappingNode || len(params.Content) > 0 {
			d.Add(params.Line, params.Column, x.path, "%s has no parameters", k.Name)
		}
		return
	}
	d.Value(params, x.params, x.path)
}

func isNothing(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// Lab is what is known of the lab that a plan is for.
type Lab struct {
	World      any      // what kinds act on; nil: not known
	Hops       []string // that it has; nil: not known
	Nodes      []string // nil: not known
	Components []string // nil: not known
	Rules      []string // names of rules that are armed already
}

// Load reads a file. What is wrong with its content is yamlfile.Problems.
func Load(path string, lab Lab) ([]fault.Rule, error) {
	b, err := yamlfile.Read(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, b, lab)
}

// Parse reads the content of a file; name is what errors call it. The error is
// yamlfile.Problems.
func Parse(name string, b []byte, lab Lab) ([]fault.Rule, error) {
	d := &decoder{yamlfile.NewDecoder(name, nil), lab}
	var f File
	d.Document(b, &f)
	var rules []fault.Rule
	for i := range f.Rules {
		rules = append(rules, d.rule(fmt.Sprintf("rules[%d]", i), f.Rules[i]))
	}
	d.between(f.Rules, rules)
	if err := d.Err(); err != nil {
		return nil, err
	}
	return rules, nil
}

type decoder struct {
	*yamlfile.Decoder
	lab Lab
}

// rule makes a rule of what a file says, and notes what can never be.
func (d *decoder) rule(path string, r Rule) fault.Rule {
	out := fault.Rule{Name: r.Name, Hop: ledger.Hop(r.Hop), Op: r.Op, Component: r.Component, Node: r.Node, Volume: r.Volume, Snapshot: r.Snapshot,
		Phase: fault.Phase(r.Phase), OnlySuccess: r.OnlySuccess, AfterRule: r.AfterRule, Nth: r.Nth, First: r.First, Every: r.Every,
		Probability: r.Probability, PerSubject: r.PerSubject, MayNotFire: r.MayNotFire}
	if r.Where != "" {
		w, err := fault.NewWhere(r.Where)
		if err != nil {
			d.where(path+".where", err)
		}
		out.Where = w
	}
	if d.At(path+".probability") != nil && (r.Probability <= 0 || r.Probability >= 1) {
		d.Wrong(path+".probability", "is %v, allowed is what lies between 0 and 1; to fire on all calls leave it out", r.Probability)
	}
	counts := 0
	for _, c := range []struct {
		field string
		n     int
	}{{"nth", r.Nth}, {"first", r.First}, {"every", r.Every}} {
		if c.n == 0 {
			continue
		}
		if counts++; counts == 2 {
			d.Wrong(path+"."+c.field, "only one of nth, first and every can be given")
		}
	}
	if r.PerSubject && counts == 0 {
		d.Wrong(path+".perSubject", "counts for nth, first and every, and none is given")
	}
	d.subjects(path, out)
	if r.Do.kind.Name == "" { // what is wrong with it is told
		return out
	}
	if out.Phase == "" {
		out.Phase = r.Do.kind.Phases[0]
	}
	if r.OnlySuccess && out.Phase != fault.After {
		d.Wrong(path+".onlySuccess", "is for phase after, the phase is %s", out.Phase)
	}
	if d.lab.World != nil {
		if lacks := r.Do.kind.Lacks(d.lab.World); lacks != "" {
			d.Wrong(path+".do", "%s: this lab %s", r.Do.kind.Name, lacks)
		}
	}
	opOK := d.operation(path, &out, r.Do.kind)
	if opOK {
		d.anyHop(path, out, r.Do.kind)
	}
	if d.FailedAt(r.Do.path) { // parameters that are wrong make no action
		return out
	}
	made, err := r.Do.kind.Rule(out, r.Do.params)
	var p *fault.ParamError
	switch {
	case err == nil:
		return made
	case asParam(err, &p):
		if d.At(r.Do.path+"."+p.Param) != nil || d.At(r.Do.path) != nil {
			d.Wrong(r.Do.path+"."+p.Param, "%s", p.Text)
		} else {
			d.Wrong(path+".do", "%s", err)
		}
	case opOK:
		d.Wrong(path+".do", "%s", err)
	}
	return out
}

func asParam(err error, p **fault.ParamError) bool {
	x, ok := err.(*fault.ParamError)
	*p = x
	return ok
}

// where tells what is wrong in a condition, at its place where that is known.
func (d *decoder) where(path string, err error) {
	n := d.At(path)
	w, ok := err.(*fault.WhereError)
	if !ok || n == nil || n.Style == yaml.LiteralStyle || n.Style == yaml.FoldedStyle || strings.Contains(n.Value, "\n") {
		d.Wrong(path, "%s", err)
		return
	}
	quote := 0
	if n.Style == yaml.SingleQuotedStyle || n.Style == yaml.DoubleQuotedStyle {
		quote = 1
	}
	d.Add(n.Line, n.Column+quote+w.Offset, path, "%s", w.Text)
}

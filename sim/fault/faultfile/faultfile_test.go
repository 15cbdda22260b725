package faultfile_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/csilab/csilab/fixtures"
	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/fault/faultfile"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/yamlfile"
)

// A lab's hops register their operations and errors.
var _ sim.Options

const head = "apiVersion: csilab.dev/v1\nkind: FaultPlan\nrules:\n"

func TestRule(t *testing.T) {
	rules, err := faultfile.Parse("f.yaml", []byte(head+`
- name: all of it
  hop: csi
  op: NodeStageVolume
  component: kubelet@node-1
  node: node-1
  volume: v
  where: attempt < 3
  phase: after
  onlySuccess: true
  every: 2
  perSubject: true
  probability: 0.5
  mayNotFire: true
  do:
    latency: {time: 2s, jitter: 500ms}
- name: short
  hop: vcenter
  op: CnsAttachVolume
  do: task-never-ends
`), faultfile.Lab{Nodes: []string{"node-1"}, Hops: []string{"csi", "vcenter"}})
	if err != nil {
		t.Fatal(err)
	}
	r := rules[0]
	if r.Name != "all of it" || r.Hop != ledger.CSI || r.Op != "NodeStageVolume" || r.Component != "kubelet@node-1" || r.Node != "node-1" || r.Volume != "v" ||
		r.Where.String() != "attempt < 3" || r.Phase != fault.After || !r.OnlySuccess || r.Every != 2 || !r.PerSubject || r.Probability != 0.5 || !r.MayNotFire ||
		r.Do.String() != fault.Latency(2*time.Second, 500*time.Millisecond).String() {
		t.Errorf("%+v", r)
	}
	if r := rules[1]; r.Op != "task:CnsAttachVolume" || r.Phase != fault.Task {
		t.Errorf("%+v", r)
	}
}

func TestErrors(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		lab        faultfile.Lab
		want       []string // lines
	}{
		{"empty", "", faultfile.Lab{}, []string{"f.yaml:1:1: the file is empty; it must begin with apiVersion: csilab.dev/v1 and kind: FaultPlan"}},
		{"no rules", "apiVersion: csilab.dev/v1\nkind: FaultPlan\n", faultfile.Lab{}, []string{"f.yaml:1:1: rules: missing"}},
		{"all at once", head + "- hop: csy\n  opp: x\n  do: drop\n  nth: 0\n", faultfile.Lab{}, []string{
			"f.yaml:4:3: rules[0].name: missing",
			`f.yaml:4:8: rules[0].hop: is the text "csy", must be one of csi, vcenter, csp, wsapi, host, registration, kube`,
			"f.yaml:5:3: rules[0].opp: unknown field; allowed: name, hop, op, component, node, volume, snapshot, where, phase, onlySuccess, afterRule, nth, first, every, probability, perSubject, do, mayNotFire; did you mean op?",
			"f.yaml:7:8: rules[0].nth: is 0, allowed are 1 to 1000000"}},
		{"operation", head + "- {name: a, hop: csi, op: NodeStageVolum, do: drop}\n", faultfile.Lab{}, []string{
			`f.yaml:4:27: rules[0].op: hop csi has no operation "NodeStageVolum"; did you mean NodeStageVolume?`}},
		{"operation of another hop", head + "- {name: a, hop: csi, op: CnsAttachVolume, do: drop}\n", faultfile.Lab{}, []string{
			`f.yaml:4:27: rules[0].op: hop csi has no operation "CnsAttachVolume", it is one of hop vcenter`}},
		{"operation of none", head + "- {name: a, op: POST /volums, do: drop}\n", faultfile.Lab{}, []string{
			`f.yaml:4:17: rules[0].op: no hop has an operation "POST /volums"; did you mean POST /volumes?`}},
		{"a star that meets nothing", head + "- {name: a, hop: host, op: exec mkfx*, do: hang}\n", faultfile.Lab{}, []string{
			`f.yaml:4:28: rules[0].op: hop host has no operation "exec mkfx*"`}},
		{"any method of the API is one", head + "- {name: a, hop: vcenter, op: QueryPerf, do: drop}\n- {name: b, hop: vcenter, op: Terminate, do: drop}\n", faultfile.Lab{}, []string{
			`f.yaml:5:31: rules[1].op: hop vcenter has no operation "Terminate"`}},
		{"starts no task", head + "- {name: a, hop: vcenter, op: CnsQueryVolume, phase: task, do: {error: {code: CnsFault}}}\n", faultfile.Lab{}, []string{
			`f.yaml:4:31: rules[0].op: CnsQueryVolume starts no task`}},
		{"no task of it", head + "- {name: a, hop: vcenter, op: CnsAtachVolume, do: task-never-ends}\n", faultfile.Lab{}, []string{
			`f.yaml:4:31: rules[0].op: there is no task of an operation "CnsAtachVolume"; did you mean CnsAttachVolume?`}},
		{"phase without tasks", head + "- {name: a, hop: csi, op: CreateVolume, phase: task, do: {latency: {time: 1s}}}\n", faultfile.Lab{}, []string{
			`f.yaml:4:48: rules[0].phase: only hop vcenter has tasks`}},
		{"kind and hop", head + "- {name: a, hop: host, op: Mount, do: drop}\n", faultfile.Lab{}, []string{
			`f.yaml:4:39: rules[0].do: drop does not fit hop host; it fits csi, registration, vcenter, csp, wsapi, kube`}},
		{"kind and phase", head + "- {name: a, hop: csp, op: GET /volumes, phase: before, do: {slow-body: {over: 1s}}}\n", faultfile.Lab{}, []string{
			`f.yaml:4:60: rules[0].do: slow-body does not act in phase before; it acts in after`}},
		{"kind and operation", head + "- {name: a, hop: vcenter, op: \"task:CnsCreateVolume\", do: drop}\n", faultfile.Lab{}, []string{
			`rules[0].do: drop does not fit vcenter/task:CnsCreateVolume`}},
		{"unknown kind", head + "- {name: a, do: dorp}\n", faultfile.Lab{}, []string{`f.yaml:4:17: rules[0].do: unknown kind "dorp"; did you mean drop?`}},
		{"a mutant's", head + "- {name: a, do: skip}\n", faultfile.Lab{}, []string{`unknown kind "skip"`}},
		{"two kinds", head + "- {name: a, do: {drop: {}, hang: {}}}\n", faultfile.Lab{}, []string{"must be the name of a kind, or a mapping of one"}},
		{"no parameters", head + "- {name: a, do: {drop: {time: 1s}}}\n", faultfile.Lab{}, []string{"rules[0].do.drop: drop has no parameters"}},
		{"parameter that is missing", head + "- {name: a, do: latency}\n", faultfile.Lab{}, []string{"f.yaml:4:17: rules[0].do.latency.time: missing"}},
		{"unknown parameter", head + "- {name: a, do: {latency: {tim: 1s}}}\n", faultfile.Lab{}, []string{"rules[0].do.latency.tim: unknown field; allowed: time, jitter; did you mean time?", "time: missing"}},
		{"code", head + "- {name: a, hop: csi, do: {error: {code: NotFond}}}\n", faultfile.Lab{}, []string{
			`f.yaml:4:42: rules[0].do.error.code: "NotFond" is no gRPC code; did you mean NotFound?`}},
		{"code of each hop", head + "- {name: a, hop: vcenter, do: {error: {code: CnsFalt}}}\n- {name: b, hop: csp, do: {error: {code: '204'}}}\n- {name: c, hop: wsapi, do: {error: {code: NO_SPACES}}}\n- {name: d, hop: host, do: {error: {code: ENOSPACE}}}\n- {name: e, hop: kube, do: {error: {code: conflict}}}\n", faultfile.Lab{}, []string{
			`"CnsFalt" is no type of a fault; did you mean CnsFault?`, `"204" is no status of an error`, `"NO_SPACES" is no symbol or number of the WSAPI; did you mean NO_SPACE?`,
			`"ENOSPACE" is no errno of a node; did you mean ENOSPC?`, `"conflict" is no reason of the API server; did you mean Conflict?`}},
		{"error without a hop", head + "- {name: a, do: {error: {code: NotFound}}}\n", faultfile.Lab{}, []string{`rules[0].do: errors of hop "" are not known; name the hop`}},
		{"body", head + "- {name: a, hop: csi, do: {error: {code: Internal, body: html}}}\n", faultfile.Lab{}, []string{"rules[0].do.error.body: errors of hop csi have none"}},
		{"condition", head + "- name: a\n  where: volume == \"x\" && nod == \"y\"\n  do: hang\n", faultfile.Lab{}, []string{
			`f.yaml:5:27: rules[0].where: unknown name "nod"; did you mean node?`}},
		{"condition in quotes", head + "- name: a\n  where: 'nod == \"y\"'\n  do: hang\n", faultfile.Lab{}, []string{`f.yaml:5:11: rules[0].where: unknown name "nod"`}},
		{"probability", head + "- {name: a, probability: 1, do: hang}\n", faultfile.Lab{}, []string{"f.yaml:4:26: rules[0].probability: is 1, allowed is what lies between 0 and 1"}},
		{"counts", head + "- {name: a, nth: 1, first: 2, do: hang}\n", faultfile.Lab{}, []string{"f.yaml:4:28: rules[0].first: only one of nth, first and every"}},
		{"perSubject of nothing", head + "- {name: a, perSubject: true, do: hang}\n", faultfile.Lab{}, []string{"rules[0].perSubject: counts for nth, first and every"}},
		{"onlySuccess before", head + "- {name: a, onlySuccess: true, phase: before, do: hang}\n", faultfile.Lab{}, []string{"rules[0].onlySuccess: is for phase after, the phase is before"}},
		{"subject that the hop has not", head + "- {name: a, hop: host, volume: v, do: hang}\n", faultfile.Lab{}, []string{"f.yaml:4:32: rules[0].volume: calls of hop host name no volume: the rule would never match"}},
		{"twice", head + "- {name: a, op: Probe, do: hang}\n- {name: a, do: hang}\n", faultfile.Lab{}, []string{`f.yaml:5:10: rules[1].name: "a" is the name of rules[0] too`}},
		{"armed already", head + "- {name: a, do: hang}\n", faultfile.Lab{Rules: []string{"a"}}, []string{`a rule "a" is armed already`}},
		{"afterRule", head + "- {name: a, afterRule: c, do: hang}\n- {name: bc, op: Probe, do: hang}\n", faultfile.Lab{}, []string{`f.yaml:4:24: rules[0].afterRule: there is no rule "c"`}},
		{"afterRule in a ring", head + "- {name: a, afterRule: b, do: hang}\n- {name: b, afterRule: a, do: hang}\n", faultfile.Lab{}, []string{
			`rules[0].afterRule: rule "a" waits for itself`, `rules[1].afterRule: rule "b" waits for itself`}},
		{"behind one that takes all", head + "- {name: a, hop: csi, do: hang}\n- {name: b, hop: csi, op: Probe, nth: 3, do: hang}\n", faultfile.Lab{}, []string{
			"f.yaml:5:3: rules[1]: rules[0] (a) fires on every call that this rule could match"}},
		{"node", head + "- {name: a, node: node-3, do: hang}\n- {name: b, component: kubelet@node-9, do: hang}\n", faultfile.Lab{Nodes: []string{"node-1", "node-2"}}, []string{
			`rules[0].node: this lab has no node "node-3"; did you mean node-1?`, `rules[1].component: this lab has no node "node-9"`}},
		{"hop that the lab has not", head + "- {name: a, hop: wsapi, do: hang}\n", faultfile.Lab{Hops: []string{"csi"}}, []string{"f.yaml:4:18: rules[0].hop: this lab has no hop wsapi; it has csi"}},
		{"kind and the hop of the operation", head + "- {name: a, op: Mount, do: drop}\n", faultfile.Lab{}, []string{
			`f.yaml:4:28: rules[0].do: drop does not fit hop host, where the rule's calls are; it fits csi, registration, vcenter, csp, wsapi, kube`}},
		{"kind and the lab's hops", head + "- {name: a, do: {slow-body: {over: 1s}}}\n- {name: b, do: task-never-ends}\n", faultfile.Lab{Hops: []string{"csi", "registration"}}, []string{
			`f.yaml:4:17: rules[0].do: slow-body does not fit hop csi, registration, where the rule's calls are; it fits vcenter, csp, wsapi`,
			`f.yaml:5:17: rules[1].do: task-never-ends is for tasks, and this lab has no hop vcenter; it has csi, registration`}},
		{"operation and the lab's hops", head + "- {name: a, op: CnsAttachVolume, do: hang}\n", faultfile.Lab{Hops: []string{"csi", "registration"}}, []string{
			`f.yaml:4:17: rules[0].op: no hop of this lab has an operation "CnsAttachVolume"; it has hops csi, registration`}},
		{"what the lab can't", head + "- {name: a, do: crash}\n", faultfile.Lab{World: struct{}{}}, []string{"f.yaml:4:17: rules[0].do: crash: this lab can't crash components"}},
		{"alias", head + "- &a {name: a, do: hang}\n", faultfile.Lab{}, []string{"anchors and aliases are not taken"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rules, err := faultfile.Parse("f.yaml", []byte(tc.text), tc.lab)
			var ps yamlfile.Problems
			if !errors.As(err, &ps) || rules != nil {
				t.Fatalf("%v, rules %v", err, rules)
			}
			lines := strings.Split(err.Error(), "\n")
			if len(lines) != len(tc.want) {
				t.Errorf("%d problems, want %d:\n%v", len(lines), len(tc.want), err)
			}
			for _, w := range tc.want {
				if !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, w) }) {
					t.Errorf("missing %q in\n%v", w, err)
				}
			}
		})
	}
}

// Examples of kinds, and files of fixtures, are read.
func TestExamples(t *testing.T) {
	for _, k := range fault.Kinds() {
		if k.Mutants {
			continue
		}
		if k.Example == "" {
			t.Errorf("kind %s has no example", k.Name)
			continue
		}
		text := head + "- " + strings.TrimSpace(strings.ReplaceAll("\n"+k.Example, "\n", "\n  ")) + "\n"
		rules, err := faultfile.Parse(k.Name, []byte(text), faultfile.Lab{})
		if err != nil || len(rules) != 1 {
			t.Errorf("%v\n%s", err, text)
		}
		if !strings.Contains(k.Example, k.Name) {
			t.Errorf("the example of %s is of another kind", k.Name)
		}
	}
	names, err := fs.Glob(fixtures.Faults, "faults/*.yaml")
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		b, err := fixtures.Faults.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := faultfile.Parse(name, b, faultfile.Lab{}); err != nil {
			t.Error(err)
		}
	}
}

// What sweeps try is what files could say.
func TestSamplesMakeRules(t *testing.T) {
	for _, k := range fault.Kinds() {
		for _, h := range fault.Hops {
			for _, op := range fault.Ops(h) {
				for _, p := range k.Phases {
					c := fault.Call{Hop: h, Op: op}
					if p == fault.Task || p == fault.Result || strings.Contains(op, "*") || !k.On(c, p) {
						continue
					}
					for _, params := range k.Tries(c) {
						if _, err := k.Rule(fault.Rule{Hop: h, Op: op, Phase: p}, params); err != nil {
							t.Errorf("%s on %s/%s: %v", k.Name, h, op, err)
						}
					}
				}
			}
		}
	}
}

func TestDocs(t *testing.T) {
	docs := filepath.Join("..", "..", "..", "docs")
	want := map[string]string{filepath.Join(docs, "fault.schema.json"): string(faultfile.Schema())}
	for _, k := range fault.Kinds() {
		want[filepath.Join(docs, "faults", k.Name+".md")] = faultfile.KindPage(k)
	}
	for file, text := range want {
		b, err := os.ReadFile(file)
		if err != nil || string(b) != text {
			t.Errorf("%s is not what is made for it: csilab fault schema, csilab fault explain KIND -o markdown (%v)", file, err)
		}
	}
	pages, err := filepath.Glob(filepath.Join(docs, "faults", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pages {
		if want[p] == "" {
			t.Errorf("%s is of no kind", p)
		}
	}
	page, err := os.ReadFile(filepath.Join(docs, "faults.md"))
	if err != nil || !strings.Contains(string(page), faultfile.Index()) || !strings.Contains(string(page), faultfile.Fields()) {
		t.Errorf("docs/faults.md does not hold the tables of kinds and fields: csilab fault explain -o markdown (%v)", err)
	}
	if !json.Valid(faultfile.Schema()) {
		t.Error("the schema is no JSON")
	}
}

func TestExplain(t *testing.T) {
	for name, want := range map[string]string{
		"":                "task-purged",
		"where":           "attempt",
		"phase":           "the task that the operation started",
		"do":              "Kinds: ",
		"latency":         "jitter (duration",
		"error":           "vcenter: the type of a fault",
		"task-never-ends": "phases: task, after",
		"wsapi":           "POST /vluns",
	} {
		text, err := faultfile.Explain(name, false)
		if err != nil || !strings.Contains(text, want) {
			t.Errorf("%q: %v\n%s", name, err, text)
		}
	}
	if _, err := faultfile.Explain("latncy", false); err == nil || !strings.Contains(err.Error(), "did you mean latency?") {
		t.Error(err)
	}
}

// Whatever a file holds, it is read or refused, at places that are in it.
func FuzzParse(f *testing.F) {
	names, _ := fs.Glob(fixtures.Faults, "faults/*.yaml")
	for _, name := range names {
		b, _ := fixtures.Faults.ReadFile(name)
		f.Add(b)
	}
	for _, s := range []string{"", "a: b", head, head + "- {name: a, do: {error: {}}}", head + "- {name: a, op: 'a*b*', where: '((((', do: hang}", "rules: [[]]", "{rules: [{do: [1]}]}"} {
		f.Add([]byte(s))
	}
	for _, k := range fault.Kinds() {
		f.Add([]byte(head + "- " + strings.ReplaceAll(k.Example, "\n", "\n  ") + "\n"))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		rules, err := faultfile.Parse("f", b, faultfile.Lab{Nodes: []string{"node-1"}})
		if err == nil {
			if len(rules) == 0 {
				t.Fatal("no rules and no error")
			}
			p := &fault.Plan{Seed: 1}
			for _, r := range rules {
				p.Arm(r)
			}
			return
		}
		var ps yamlfile.Problems
		if !errors.As(err, &ps) || rules != nil {
			t.Fatalf("%v, %v", err, rules)
		}
		for _, x := range ps {
			if x.Line < 1 || x.Column < 1 || x.Text == "" {
				t.Fatalf("%+v", x)
			}
		}
	})
}

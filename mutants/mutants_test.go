package main

import (
	"go/format"
	"slices"
	"strings"
	"testing"

	"github.com/csilab/csilab/scenarios/flow"
)

// Each mutant still fits the code that it is made of, and is Go.
func TestMutantsFit(t *testing.T) {
	root, err := projectRoot()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, m := range Mutants {
		text, err := m.mutate(root)
		if err != nil {
			t.Error(err)
			continue
		}
		if _, err := format.Source([]byte(text)); err != nil {
			t.Errorf("mutant %s: %v", m.Name, err)
		}
		if names[m.Name] || m.Text == "" || len(m.Systems) == 0 {
			t.Errorf("mutant %q: its name must be unique, its text and systems given", m.Name)
		}
		if len(m.Flows) == 0 {
			t.Errorf("mutant %s: its flows must be given", m.Name)
		}
		for _, f := range m.Flows {
			if !slices.ContainsFunc(flow.All(), func(x flow.Flow) bool { return x.Name == f }) {
				t.Errorf("mutant %s: there is no flow %s", m.Name, f)
			}
		}
		names[m.Name] = true
	}
	if len(names) < 15 {
		t.Errorf("%d mutants", len(names))
	}
}

func TestUsage(t *testing.T) {
	var out strings.Builder
	for _, args := range [][]string{{"-focus", "("}, {"-judges", "nobody"}, {"-nonesuch"}} {
		if code := run(t.Context(), args, &out, &out); code != 2 {
			t.Errorf("%v: %d", args, code)
		}
	}
	out.Reset()
	if code := run(t.Context(), []string{"-list", "-focus", "^fsck"}, &out, &out); code != 0 || !strings.HasPrefix(out.String(), "fsck-skipped: ") {
		t.Errorf("%d: %s", code, out.String())
	}
}

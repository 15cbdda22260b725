package sim_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/simtest"
	"github.com/csilab/csilab/sim/vcenter"
)

// several is a lab of n vCenters with a zone and a node each.
func several(n int) simtest.Option {
	return simtest.With(func(o *sim.Options) {
		o.VCenters = nil
		for i := range n {
			o.VCenters = append(o.VCenters, sim.VCenter{Name: fmt.Sprintf("vc-%d", i+1), Config: vcenter.Config{
				Nodes: []vcenter.Node{{Name: fmt.Sprintf("node-%d", i+1), Zone: fmt.Sprintf("zone-%d", i+1), Region: "r"}}}})
		}
	})
}

// Two vCenters of a lab have no identity in common, and each has the same ones
// whenever the lab is started.
func TestIdentitiesOfSeveralVCenters(t *testing.T) {
	var before []string
	for range 2 {
		var seen []string
		t.Run("start", func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				lab := simtest.New(t, several(3), simtest.Bubble())
				for i, name := range lab.VCenterNames() {
					v := lab.VCenterNamed(name)
					password, _ := v.URL().User.Password()
					seen = append(seen, v.VMUUID(fmt.Sprintf("node-%d", i+1)), v.DatastoreURL("datastore-1"), v.DatastoreURL("datastore-2"), password, v.URL().Hostname())
				}
			})
		})
		if n := len(slices.Compact(slices.Sorted(slices.Values(seen)))); n != 15 {
			t.Errorf("%d identities are different, want 15: %q", n, seen)
		}
		if before != nil && !slices.Equal(seen, before) {
			t.Errorf("after a restart %q, before %q", seen, before)
		}
		before = seen
	}
}

func TestOptionsOfSeveralVCenters(t *testing.T) {
	node := func(n string) vcenter.Config { return vcenter.Config{Nodes: []vcenter.Node{{Name: n, Zone: "z"}}} }
	for want, vs := range map[string][]sim.VCenter{
		`Options.VCenters: name ""`:           {{Config: node("a")}},
		`Options.VCenters: name "x"`:          {{Name: "x", Config: node("a")}, {Name: "x", Config: node("b")}},
		`node name "a" is given twice`:        {{Name: "x", Config: node("a")}, {Name: "y", Config: node("a")}},
		`Options.VCenters: there is no node`:  {{Name: "x"}},
		`Options.VCenters has 6, allowed are`: {{Name: "1", Config: node("a")}, {Name: "2"}, {Name: "3"}, {Name: "4"}, {Name: "5"}, {Name: "6"}},
		`Options.VCenters: "y" has no zone`:   {{Name: "x", Config: node("a")}, {Name: "y", Config: vcenter.Config{Nodes: []vcenter.Node{{Name: "b"}}}}},
	} {
		lab, err := sim.Start(context.Background(), sim.Options{Host: "memory", VCenters: vs})
		if err == nil {
			err = fmt.Errorf("started")
			if lab != nil {
				lab.Close()
			}
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

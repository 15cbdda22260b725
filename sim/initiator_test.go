package sim_test

import (
	"strings"
	"testing"

	"github.com/csilab/csilab/sim/simtest"
)

// Initiators change when the node is off, to names that nobody has or had.
func TestInitiatorsChange(t *testing.T) {
	for _, protocol := range []string{"iscsi", "fc"} {
		t.Run(protocol, func(t *testing.T) {
			lab := simtest.New(t, simtest.OnArray(protocol), simtest.MemoryHosts())
			ctx := bounded(t)
			if err := lab.ChangeInitiators(ctx, "node-1"); err == nil || !strings.Contains(err.Error(), "node node-1 is on") {
				t.Error(err)
			}
			if err := lab.ChangeInitiators(ctx, "node-9"); err == nil || !strings.Contains(err.Error(), "node-1") {
				t.Error(err)
			}
			had := map[string]bool{}
			for range 3 {
				for _, node := range lab.Nodes() {
					for _, name := range lab.Initiators(node) {
						had[name] = true
					}
				}
				must(t, lab.PowerOff(ctx, "node-1"))
				must(t, lab.ChangeInitiators(ctx, "node-1"))
				must(t, lab.PowerOn(ctx, "node-1"))
				for _, name := range lab.Initiators("node-1") {
					if had[name] {
						t.Errorf("%s was somebody's", name)
					}
				}
			}
			must(t, lab.NodesReady(ctx))
			start(ctx, t, lab, "app", "node-2", "data")
			end(ctx, t, lab, "app", "data")
		})
	}
	lab := simtest.New(t, simtest.MemoryHosts())
	if err := lab.ChangeInitiators(bounded(t), "node-1"); err == nil {
		t.Error("a VM has initiators")
	}
}

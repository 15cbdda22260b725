package vcenter_test

import (
	"sync"
	"testing"

	"github.com/vmware/govmomi/simulator"

	"github.com/csilab/csilab/sim/vcenter"
)

// TestSideBySide starts vCenters at once: under the race detector it shows
// that they share no variable of vcsim's, and otherwise that none of these
// grows.
func TestSideBySide(t *testing.T) {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			v, err := vcenter.New(t.Context(), vcenter.Config{Nodes: []vcenter.Node{{Name: "a", Zone: "x"}, {Name: "b", Zone: "y"}, {Name: "c", Zone: "z"}}})
			if err != nil {
				t.Error(err)
				return
			}
			v.Close()
		})
	}
	wg.Wait()
	products := 0
	for _, p := range simulator.EvalLicense.Properties {
		if p.Key == "ProductName" {
			products++
		}
	}
	if products != 1 {
		t.Errorf("the licence names %d products", products)
	}
}

package sim_test

import (
	"os"
	"testing"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/simtest"
)

// victimRoot tells a child of the tests that it is a lab to be killed.
const victimRoot = "CSILAB_TEST_VICTIM"

func TestMain(m *testing.M) {
	if root := os.Getenv(victimRoot); root != "" {
		sim.Main() // the victim's own children are no victims
		victim(root)
	}
	simtest.Main(m)
}

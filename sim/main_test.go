package sim_test

import (
	"testing"

	"github.com/csilab/csilab/sim/simtest"
)

func TestMain(m *testing.M) { simtest.Main(m) }

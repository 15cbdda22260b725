package sidecars_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/sidecar"
	"github.com/csilab/csilab/sim/kube/sidecar/sidecartest"
	"github.com/csilab/csilab/sim/ledger"
)

// Several faults at once, by seed: the life goes on to its end without help,
// and nothing is left. A reply is lost only with a code that leaves it open
// whether the call was done: a driver that says for good that it failed,
// and did it, leaves an orphan by its own fault.
func TestRandomFaults(t *testing.T) {
	ops := map[string]string{"CreateVolume": sidecar.Provisioner, "DeleteVolume": sidecar.Provisioner, "ControllerPublishVolume": sidecar.Attacher, "ControllerUnpublishVolume": sidecar.Attacher,
		"ControllerExpandVolume": sidecar.Resizer, "CreateSnapshot": sidecar.Snapshotter, "DeleteSnapshot": sidecar.Snapshotter}
	names := slices.Sorted(maps.Keys(ops))
	table, fired := sidecar.Real(), 0
	for seed := range uint64(30) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			calls := bubble(t, hurry, func(l *sidecartest.Lab) {
				for i := range 2 + r.IntN(5) {
					op := names[r.IntN(len(names))]
					row := table.Calls(ops[op])[op]
					rule := fault.Rule{Name: fmt.Sprint(i), Hop: ledger.CSI, Op: op, Phase: fault.Before, First: 1 + r.IntN(3), MayNotFire: true}
					code := codes.Code(1 + r.IntN(16))
					if r.IntN(2) == 0 {
						rule.Phase, code = fault.After, row.Uncertain[r.IntN(len(row.Uncertain))]
					}
					switch r.IntN(4) {
					case 0:
						rule.Do, rule.First, rule.Nth = fault.Crash(""), 0, 1+r.IntN(2)
					case 1:
						rule.Do = fault.Delay(time.Duration(r.IntN(400)) * time.Second)
					default:
						rule.Do = fault.Error(sidecartest.Status(code))
					}
					l.Plan.Arm(rule)
				}
			})
			for _, e := range calls {
				if e.Fault != "" {
					fired++
				}
			}
		})
	}
	if fired < 30 {
		t.Errorf("%d faults fired only", fired)
	}
}

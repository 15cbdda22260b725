package sim_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/simtest"
)

// eachBackend runs f in a bubble on each kind of backend, with a lab whose
// nodes have all been registered.
func eachBackend(t *testing.T, f func(ctx context.Context, t *testing.T, lab *sim.Lab)) {
	t.Helper()
	for name, opts := range map[string][]simtest.Option{"vsphere": nil, "hpe": {simtest.OnArray("iscsi")}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				lab := simtest.New(t, append(opts, simtest.Bubble())...)
				time.Sleep(time.Second)
				f(hour(t), t, lab)
			})
		})
	}
}

// storage is what the driver calls in a lab.
func storage(lab *sim.Lab) string {
	if lab.Backend() == sim.HPE {
		return "csp"
	}
	return "vcenter"
}

// soon is a minute of virtual time.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// A node that lost the control plane is given up while its pods go on with
// their storage, and is as before once it is back.
func TestPartitionOfANode(t *testing.T) {
	eachBackend(t, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
		start(ctx, t, lab, "app", "node-1", "data")
		heal, err := lab.Partition(sim.Partition{A: "node-1", B: "control-plane"})
		must(t, err)
		must(t, lab.NotReady(ctx, "node-1"))
		must(t, lab.Write(ctx, "app", "/data/a", "cut off"))
		must(t, lab.Expect(ctx, "app", "/data/a", "cut off"))
		// The kubelet does not hear of what is decided without it.
		p, err := lab.Pod("app")
		must(t, err)
		must(t, lab.Client().Delete(ctx, p))
		if err := lab.Gone(soon(t), p); err == nil {
			t.Error("a kubelet that is cut off has ended a pod")
		}
		must(t, lab.Expect(ctx, "app", "/data/a", "cut off"))
		heal()
		heal()
		must(t, lab.Gone(ctx, p))
		must(t, lab.NodesReady(ctx))
		start(ctx, t, lab, "app", "node-1", "data")
		must(t, lab.Expect(ctx, "app", "/data/a", "cut off"))
		end(ctx, t, lab, "app", "data")
	})
}

func TestPartitionOfTheStorage(t *testing.T) {
	for _, oneWay := range []bool{false, true} {
		eachBackend(t, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
			// One way it is the answers that are lost.
			heal, err := lab.Partition(sim.Partition{A: storage(lab), B: "driver-controller", OneWay: oneWay})
			must(t, err)
			must(t, lab.Create(ctx, claim("data")))
			if _, err := lab.Bound(soon(t), "data"); err == nil {
				t.Error("bound over a partition")
			}
			heal()
			_, err = lab.Bound(ctx, "data")
			must(t, err)
			if n := lab.BackendVolumes(); n != 1 {
				t.Errorf("%d volumes for one claim", n)
			}
			hit := lab.Ledger.Entries(func(e ledger.Entry) bool { return strings.HasPrefix(e.Fault, "partition: ") })
			if len(hit) == 0 {
				t.Error("the ledger names the partition on no call")
			}
			start(ctx, t, lab, "app", "node-1", "data")
			must(t, lab.Check(ctx))
			end(ctx, t, lab, "app", "data")
		})
	}
}

func TestPartitionBetweenSidecarAndDriver(t *testing.T) {
	eachBackend(t, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
		heal, err := lab.Partition(sim.Partition{A: "csi-provisioner", B: "driver-controller"})
		must(t, err)
		must(t, lab.Create(ctx, claim("data")))
		if _, err := lab.Bound(soon(t), "data"); err == nil {
			t.Error("bound over a partition")
		}
		if n := len(lab.Ledger.Entries(ledger.OnHop(lab.StorageHop(), lab.Operations().Create))); n != 0 {
			t.Errorf("the storage was asked %d times", n)
		}
		heal()
		start(ctx, t, lab, "app", "node-1", "data")
		end(ctx, t, lab, "app", "data")
	})
}

func TestPartitionRefusesUnknownSides(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lab := simtest.New(t, simtest.Bubble())
		_, err := lab.Partition(sim.Partition{A: "node-9", B: "csp"})
		if err == nil || !strings.Contains(err.Error(), `partition: A is "node-9"`) || !strings.Contains(err.Error(), `partition: B is "csp"`) || !strings.Contains(err.Error(), "vcenter") {
			t.Error(err)
		}
	})
}

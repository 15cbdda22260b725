package sim_test

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/csilab/csilab/fixtures"
	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/fault/faultfile"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/simtest"
)

// protocolKinds are those that act on the call alone.
var protocolKinds = []string{"error", "latency", "hang", "drop", "duplicate", "slow-body", "truncated-body", "task-never-ends", "task-purged"}

// Each kind on each hop that it fits, in each phase: the rule of a file fires
// once, the ledger names it, and once it is over the life goes on to its end with
// nothing left.
func TestKindOnEachHop(t *testing.T) {
	calls := map[ledger.Hop][]string{
		ledger.CSI:          {"ControllerPublishVolume", "NodeStageVolume"},
		ledger.Registration: {"GetInfo"},
		ledger.VCenter:      {"CnsAttachVolume", "task:CnsAttachVolume"},
		ledger.CSP:          {"PUT /volumes/{id}/actions/publish"},
		ledger.WSAPI:        {"POST /vluns"},
		ledger.Host:         {"exec mkfs.ext4"},
		ledger.Kube:         {"create volumeattachments"},
	}
	for _, hop := range fault.Hops {
		for _, op := range calls[hop] {
			for _, name := range protocolKinds {
				k, ok := fault.Lookup(name)
				if !ok {
					t.Fatalf("no kind %s", name)
				}
				for _, phase := range k.Phases {
					call := fault.Call{Hop: hop, Op: op}
					if !k.On(call, phase) || (phase == fault.Task || phase == fault.Result) && !strings.HasPrefix(op, fault.TaskPrefix) {
						continue
					}
					// A command that hangs in the kernel ends with its node service only, a
					// write to the API server with its client: no life goes on by itself.
					if name == "hang" && (hop == ledger.Host || hop == ledger.Kube) {
						continue
					}
					for i, params := range k.Tries(call) {
						if raced && i > 0 {
							continue
						}
						t.Run(fmt.Sprintf("%s/%s/%s/%s/%d", hop, op, name, phase, i), func(t *testing.T) {
							t.Parallel()
							rule, err := k.Rule(fault.Rule{Name: "the fault", Hop: hop, Op: op, Phase: phase, Nth: 1}, params)
							must(t, err)
							lifeWith(t, hop, rule, name == "task-never-ends")
						})
					}
				}
			}
		}
	}
}

// lifeWith lives through a fault on a hop;
// endless says that it is one that a restart of the vCenter ends.
func lifeWith(t *testing.T, hop ledger.Hop, rule fault.Rule, endless bool) {
	bubble(t, func(t *testing.T) {
		opts := []simtest.Option{simtest.Bubble()}
		if hop == ledger.CSP || hop == ledger.WSAPI {
			opts = append(opts, simtest.With(func(o *sim.Options) { o.Backend = sim.HPE }))
		}
		lab := simtest.New(t, opts...)
		ctx := hour(t)
		time.Sleep(time.Second) // until the last node is registered
		armed := lab.Inject(rule)
		if hop == ledger.Registration {
			lab.Crash("kubelet@node-1")
			time.Sleep(time.Minute)
		}
		if endless {
			// The driver waits for the task that it started, whoever asks again, and
			// also when it was restarted.
			defer time.AfterFunc(6*time.Minute, func() { lab.ForgetTasks() }).Stop()
		}
		start(ctx, t, lab, "app", "node-1", "data")
		must(t, lab.Write(ctx, "app", "/data/a", "through the fault"))
		must(t, lab.Check(ctx))
		end(ctx, t, lab, "app", "data")
		must(t, lab.Unfired())
		hit := lab.Ledger.Entries(func(e ledger.Entry) bool { return e.Fault == rule.Name })
		if armed.Fired() != 1 || len(hit) != 1 || hit[0].Hop != hop {
			t.Errorf("fired %d times, in the ledger:\n%s", armed.Fired(), ledger.Text(hit))
		}
	})
}

// The plans of fixtures/faults fire from end to end, and the life goes on.
func TestFaultFiles(t *testing.T) {
	names, err := fs.Glob(fixtures.Faults, "faults/*.yaml")
	must(t, err)
	for _, name := range names {
		b, err := fixtures.Faults.ReadFile(name)
		must(t, err)
		t.Run(strings.TrimSuffix(strings.TrimPrefix(name, "faults/"), ".yaml"), func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				backend := sim.VSphere
				if strings.Contains(string(b), "hop: csp") || strings.Contains(string(b), "hop: wsapi") {
					backend = sim.HPE
				}
				var armed []*fault.Armed
				lab := simtest.New(t, simtest.Bubble(), simtest.With(func(o *sim.Options) {
					o.Backend = backend
					o.Arm = func(l *sim.Lab) error {
						var hops []string
						for _, h := range l.Hops() {
							hops = append(hops, string(h))
						}
						rules, err := faultfile.Parse(name, b, faultfile.Lab{World: l, Hops: hops, Nodes: l.Nodes()})
						armed = l.InjectAll(rules)
						return err
					}
				}))
				ctx := hour(t)
				start(ctx, t, lab, "app", "node-1", "data")
				must(t, lab.Write(ctx, "app", "/data/a", "through the faults"))
				must(t, lab.Check(ctx))
				end(ctx, t, lab, "app", "data")
				if err := lab.Unfired(); err != nil {
					t.Errorf("%v\n%s", err, ledger.Text(lab.Ledger.Entries(func(e ledger.Entry) bool { return e.Fault != "" })))
				}
				if len(armed) == 0 {
					t.Error("nothing was armed")
				}
			})
		})
	}
}

// Operations that a life makes are known: a fault file can name each.
func TestOperationsAreKnown(t *testing.T) {
	for _, backend := range []string{sim.VSphere, sim.HPE} {
		bubble(t, func(t *testing.T) {
			lab := simtest.New(t, simtest.Bubble(), simtest.With(func(o *sim.Options) { o.Backend = backend }))
			ctx := hour(t)
			start(ctx, t, lab, "app", "node-1", "data")
			end(ctx, t, lab, "app", "data")
			var unknown []string
			for _, e := range lab.Ledger.Entries() {
				if what := string(e.Hop) + "/" + e.Op; !fault.KnownOp(e.Hop, e.Op) && !slices.Contains(unknown, what) {
					unknown = append(unknown, what)
				}
			}
			if len(unknown) > 0 {
				t.Errorf("%s: not known: %v", backend, unknown)
			}
			hops := lab.Hops()
			for _, e := range lab.Ledger.Entries() {
				if !slices.Contains(hops, e.Hop) {
					t.Fatalf("%s: hop %s is none of the lab's", backend, e.Hop)
				}
			}
		})
	}
}

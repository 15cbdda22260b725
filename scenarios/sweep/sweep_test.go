package sweep_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/csilab/csilab/scenarios/flow"
	"github.com/csilab/csilab/scenarios/sweep"
	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/bubble"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/simtest"
)

func TestMain(m *testing.M) { simtest.Main(m) }

var systems = []sim.Options{{Backend: sim.VSphere}, {Backend: sim.HPE, Protocol: "iscsi"}}

// parts are the flows that "all" has.
func parts() (fs []flow.Flow) {
	for _, f := range flow.All() {
		if !f.Whole {
			fs = append(fs, f)
		}
	}
	return fs
}

// check reports all that is wrong in a sweep.
func check(t *testing.T, r *sweep.Report) {
	t.Helper()
	for _, p := range r.Parts {
		if p.Err() != nil {
			t.Errorf("%s with nothing wrong: %s: %s", p, p.Class, p.Reason)
		}
		for _, c := range p.Cells {
			if c.State == sweep.Failed {
				t.Errorf("%s: %s: %s: %s\nagain:  %s\nledger: %s", p, c.ID, c.Class, c.Reason, c.Replay, c.Ledger)
			}
		}
	}
}

// Every nth cell of all flows, under the race detector of a few; the whole is
// `csilab sweep all`.
func TestSweep(t *testing.T) {
	flows, every := parts(), 150
	if raced {
		flows, every = []flow.Flow{find(t, "attach"), find(t, "stage"), find(t, "snapshot")}, 60
	}
	r, err := sweep.Run(context.Background(), sweep.Config{Flows: flows, Systems: systems, Every: every, Bubbles: bubble.In(t), Ledgers: t.ArtifactDir()})
	if err != nil {
		t.Fatal(err)
	}
	check(t, r)
	healed, idle := r.Count(sweep.Healed), r.Count(sweep.NoFault)
	t.Logf("%d cells healed, %d did not fire, %v", healed, idle, r.Duration)
	if testing.Verbose() {
		r.WriteMatrix(os.Stdout)
		r.WriteMisfits(os.Stdout)
		for _, p := range r.Parts {
			t.Logf("%s: %d calls, %d possible cells", p, len(p.Calls), p.Possible)
			for _, c := range p.Cells {
				if c.State == sweep.NoFault {
					t.Logf("no cell: %s: %s: %s", p, c.ID, c.Reason)
				}
			}
		}
	}
	if healed == 0 || idle > healed/10 {
		t.Errorf("of %d faults %d did not fire", healed+idle, idle)
	}
}

// Over all flows, each call that the driver says it takes is made, and each hop
// is passed.
func TestFlowsMakeAllCalls(t *testing.T) {
	if raced {
		t.Skip("dear under the race detector, which TestSweep is enough for")
	}
	spec := map[string]bool{}
	for _, d := range []grpc.ServiceDesc{csi.Identity_ServiceDesc, csi.Controller_ServiceDesc, csi.GroupController_ServiceDesc, csi.Node_ServiceDesc} {
		for _, m := range d.Methods {
			spec[m.MethodName] = true
		}
	}
	for _, o := range systems {
		t.Run(o.System(), func(t *testing.T) {
			t.Parallel()
			made, hops, want := map[string]bool{}, map[ledger.Hop]bool{}, map[string]bool{}
			for _, f := range parts() {
				if !f.Fits(o.Backend) {
					continue
				}
				err := bubble.In(t).Run(context.Background(), func(ctx context.Context) error {
					o := o
					o.Bubble = true
					if f.Options != nil {
						f.Options(&o)
					}
					l, err := sim.Start(ctx, o)
					if err != nil {
						return err
					}
					defer l.Close()
					if err := l.NodesReady(ctx); err != nil {
						return err
					}
					if err := l.Apply(ctx, l.Classes()); err != nil {
						return err
					}
					from := uint64(l.Ledger.Len())
					if err := f.Run(ctx, l); err != nil {
						return err
					}
					for _, e := range l.Ledger.Entries() {
						hops[e.Hop] = true
						// What a flow makes; that a lab starts does not count.
						if e.Hop == ledger.CSI && (e.Seq > from || strings.HasPrefix(e.Op, "NodeGetInfo")) {
							made[e.Op] = true
						}
					}
					if len(want) == 0 {
						want, err = advertised(ctx, l)
					}
					return err
				})
				if err != nil {
					t.Errorf("%s: %v", f.Name, err)
				}
			}
			for m := range want {
				if !spec[m] {
					t.Errorf("the spec has no call %s", m)
				}
				if !made[m] {
					t.Errorf("no flow makes the call %s, which the driver says it takes", m)
				}
			}
			all := []ledger.Hop{ledger.CSI, ledger.Host, ledger.Registration, ledger.Kube}
			if o.Backend == sim.HPE {
				all = append(all, ledger.CSP, ledger.WSAPI)
			} else {
				all = append(all, ledger.VCenter)
			}
			for _, h := range all {
				if !hops[h] {
					t.Errorf("no flow passes hop %s", h)
				}
			}
		})
	}
}

// advertised are the methods that the driver's services say they have, as the
// spec's descriptors name them.
func advertised(ctx context.Context, l *sim.Lab) (map[string]bool, error) {
	out := map[string]bool{}
	add := func(ms ...string) {
		for _, m := range ms {
			out[m] = true
		}
	}
	// What has no capability, and what our node service always has.
	add("GetPluginInfo", "GetPluginCapabilities", "Probe", "ControllerGetCapabilities", "ValidateVolumeCapabilities",
		"NodePublishVolume", "NodeUnpublishVolume", "NodeGetCapabilities", "NodeGetInfo",
		"NodeStageVolume", "NodeUnstageVolume", "NodeGetVolumeStats", "NodeExpandVolume")
	controller := map[csi.ControllerServiceCapability_RPC_Type][]string{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME:     {"CreateVolume", "DeleteVolume"},
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME: {"ControllerPublishVolume", "ControllerUnpublishVolume"},
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES:             {"ListVolumes"},
		csi.ControllerServiceCapability_RPC_GET_CAPACITY:             {"GetCapacity"},
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT:   {"CreateSnapshot", "DeleteSnapshot"},
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS:           {"ListSnapshots"},
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME:            {"ControllerExpandVolume"},
		csi.ControllerServiceCapability_RPC_GET_VOLUME:               {"ControllerGetVolume"},
		csi.ControllerServiceCapability_RPC_MODIFY_VOLUME:            {"ControllerModifyVolume"},
		csi.ControllerServiceCapability_RPC_GET_SNAPSHOT:             {"GetSnapshot"},
	}
	return out, l.Ask(ctx, func(ctx context.Context, a sim.Asker) error {
		r, err := a.ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
		if err != nil {
			return err
		}
		for _, c := range r.GetCapabilities() {
			add(controller[c.GetRpc().GetType()]...)
		}
		p, err := a.Identity.GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
		for _, c := range p.GetCapabilities() {
			if c.GetService().GetType() == csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE {
				add("GroupControllerGetCapabilities", "CreateVolumeGroupSnapshot", "DeleteVolumeGroupSnapshot", "GetVolumeGroupSnapshot")
			}
		}
		return err
	})
}

func find(t *testing.T, name string) flow.Flow {
	t.Helper()
	f, ok := flow.Find(name)
	if !ok {
		t.Fatalf("no flow %s", name)
	}
	return f
}

func kindsOf(t *testing.T, names ...string) (out []sweep.Kind) {
	t.Helper()
	for _, n := range names {
		k, ok := sweep.FindKind(n)
		if !ok {
			t.Fatalf("no kind %s", n)
		}
		out = append(out, k)
	}
	return out
}

// A sweep that can't fail shows nothing: a driver that answers OK to a detach
// and leaves the disk must turn cells red, each with the command that shows it
// again, and that command's cell must be red too.
func TestMutantFails(t *testing.T) {
	cfg := sweep.Config{Flows: []flow.Flow{find(t, "detach")}, Systems: systems[:1], Kinds: kindsOf(t, "drop-after"), Bubbles: bubble.In(t), Ledgers: t.ArtifactDir(),
		Calls: func(e ledger.Entry) bool { return e.Hop == ledger.CSI },
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "detach lies", Hop: ledger.CSI, Op: "ControllerUnpublishVolume", Nth: 1, Do: fault.Skip(), MayNotFire: true})
		}}
	r, err := sweep.Run(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if r.Parts[0].Class == flow.Passed {
		t.Fatal("a lie in the run without a fault is not seen")
	}

	// One that lies only to who asks again is found by the cells alone.
	cfg.Mutate = func(l *sim.Lab) {
		var mu sync.Mutex
		asked := map[string]bool{}
		l.Inject(fault.Rule{Name: "a detach asked for again lies", Hop: ledger.CSI, Op: "ControllerUnpublishVolume", MayNotFire: true,
			Match: func(c fault.Call) bool {
				mu.Lock()
				defer mu.Unlock()
				again := asked[c.Node]
				asked[c.Node] = true
				return again
			}, Do: fault.Skip()})
	}
	cfg.Kinds = kindsOf(t, "error-retriable")
	if r, err = sweep.Run(context.Background(), cfg); err != nil {
		t.Fatal(err)
	}
	var red []sweep.Cell
	for _, c := range r.Parts[0].Cells {
		if c.State == sweep.Failed {
			red = append(red, c)
		}
	}
	if len(red) != 1 || !strings.Contains(red[0].ID, "ControllerUnpublishVolume") || red[0].Class != string(flow.Invariant) {
		t.Fatalf("red cells: %+v", red)
	}
	if red[0].Ledger == "" || !strings.Contains(red[0].Replay, "--cell '"+red[0].ID+"'") {
		t.Errorf("ledger %q, replay %q", red[0].Ledger, red[0].Replay)
	}
	cfg.Cells = []string{red[0].ID}
	if r, err = sweep.Run(context.Background(), cfg); err != nil {
		t.Fatal(err)
	}
	if cs := r.Parts[0].Cells; len(cs) != 1 || cs[0].State != sweep.Failed {
		t.Errorf("the replay: %+v", cs)
	}
}

func TestShardsPairsAndSeeds(t *testing.T) {
	cfg := sweep.Config{Flows: []flow.Flow{find(t, "provision")}, Systems: systems[:1], Kinds: kindsOf(t, "drop-after", "error-final"), Bubbles: bubble.In(t),
		Calls: func(e ledger.Entry) bool { return e.Hop == ledger.CSI || e.Hop == ledger.VCenter }}
	ids := func(change func(*sweep.Config)) (out []string) {
		c := cfg
		change(&c)
		r, err := sweep.Run(context.Background(), c)
		if err != nil {
			t.Fatal(err)
		}
		check(t, r)
		for _, x := range r.Parts[0].Cells {
			out = append(out, x.ID)
		}
		return out
	}
	all := ids(func(*sweep.Config) {})
	one, two := ids(func(c *sweep.Config) { c.Shard, c.Shards = 1, 2 }), ids(func(c *sweep.Config) { c.Shard, c.Shards = 2, 2 })
	both := slices.Concat(one, two)
	slices.Sort(both)
	sorted := slices.Sorted(slices.Values(all))
	if !slices.Equal(both, sorted) || len(one) == 0 || len(two) == 0 {
		t.Errorf("two shards have %q and %q of %q", one, two, all)
	}
	pair := func(seed uint64) []string {
		return ids(func(c *sweep.Config) { c.Pairs = 4; c.Systems = []sim.Options{{Backend: sim.VSphere, Seed: seed}} })
	}
	a, b, other := pair(5), pair(5), pair(6)
	if len(a) != 4 || !slices.Equal(a, b) || slices.Equal(a, other) || !strings.Contains(a[0], " + ") {
		t.Errorf("pairs %q, again %q, of another seed %q", a, b, other)
	}
}

// A sweep that is stopped says of how many cells nothing is known, and what its
// end has cut short leaves no ledger as a failure does.
func TestStopped(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	dir := t.TempDir()
	r, err := sweep.Run(ctx, sweep.Config{Flows: []flow.Flow{find(t, "detach")}, Systems: systems[:1], Kinds: kindsOf(t, "drop-after"), Bubbles: bubble.In(t),
		Workers: 3, Ledgers: dir, Progress: func(*sweep.Part, sweep.Cell, int, int) { stop() }})
	if err != nil {
		t.Fatal(err)
	}
	check(t, r)
	p := r.Parts[0]
	if r.Stopped == "" || len(p.Cells) == 0 || len(p.Cells) >= p.Chosen || p.Chosen != p.Possible {
		t.Errorf("stopped %q with %d of %d cells, %d possible", r.Stopped, len(p.Cells), p.Chosen, p.Possible)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// On the wall a lab that is empty again takes the next cell.
func TestOnTheWall(t *testing.T) {
	r, err := sweep.Run(context.Background(), sweep.Config{Flows: []flow.Flow{find(t, "detach")}, Kinds: kindsOf(t, "drop-after"), Every: 4, Limit: time.Minute,
		Systems: []sim.Options{{Backend: sim.VSphere, Host: "memory"}}, Calls: func(e ledger.Entry) bool { return e.Hop == ledger.CSI || e.Hop == ledger.VCenter }})
	if err != nil {
		t.Fatal(err)
	}
	check(t, r)
	if r.Count(sweep.Healed) == 0 {
		t.Error("no cell")
	}
}

func TestNamesAndDocs(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range sweep.Kinds() {
		if seen[k.Name] || seen[k.Short] || k.Doc == "" || len(k.Short) > 6 {
			t.Errorf("kind %+v: a name twice, too long a heading or no doc", k)
		}
		seen[k.Name], seen[k.Short] = true, true
	}
	b, err := os.ReadFile("../../docs/sweep.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range sweep.Kinds() {
		if !strings.Contains(string(b), "`"+k.Name+"`") {
			t.Errorf("docs/sweep.md does not tell of kind %s", k.Name)
		}
	}
	for _, f := range flow.All() {
		if !strings.Contains(string(b), "`"+f.Name+"`") {
			t.Errorf("docs/sweep.md does not tell of flow %s", f.Name)
		}
	}
}

// A flow makes the same calls each time: what a cell is named by.
func TestSameCalls(t *testing.T) {
	flows := []flow.Flow{find(t, "move"), find(t, "restore"), find(t, "register")}
	if raced {
		flows = flows[:1]
	}
	for _, o := range systems {
		list := func() (out []string) {
			r, err := sweep.Run(context.Background(), sweep.Config{Flows: flows, Systems: []sim.Options{o}, Cells: []string{"none"}, Bubbles: bubble.In(t)})
			if err != nil {
				t.Fatal(err)
			}
			check(t, r)
			for _, p := range r.Parts {
				for _, c := range p.Calls {
					out = append(out, p.Flow+" "+c.String())
				}
			}
			slices.Sort(out)
			return out
		}
		a, b := list(), list()
		for _, c := range a {
			if !slices.Contains(b, c) {
				t.Errorf("%s: once only: %s", o.System(), c)
			}
		}
		for _, c := range b {
			if !slices.Contains(a, c) {
				t.Errorf("%s: the second time only: %s", o.System(), c)
			}
		}
		t.Logf("%s: %d calls", o.System(), len(a))
	}
}

package scenarios

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/csilab/csilab/scenarios/flow"
	"github.com/csilab/csilab/scenarios/sweep"
	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:   "reply-lost-on-every-controller-call",
		Text:   "the reply of each controller call of a life is lost after its commit, and of each call to the backend that the driver makes for it; nothing is done twice or forgotten",
		Labels: []string{"fault", "sweep", "lost-reply"},
		Sweep: lives{
			kinds: []string{"drop-after"}, nodes: "no",
			calls: func(e ledger.Entry) bool {
				return e.Hop == ledger.CSI && strings.HasPrefix(e.Component, "csi-") || storage[e.Hop]
			},
		}.sweep,
		Mutation:      "a provisioner that gives each attempt a new name, so that a retry can't find what the lost call created",
		MutateOptions: newNames,
	})
	register(Scenario{
		Name:   "driver-crashed-at-every-call",
		Text:   "the driver is killed before and after each call that it gets and each call that it makes; the life goes on",
		Labels: []string{"fault", "sweep", "crash"},
		Sweep: lives{
			kinds: []string{"crash-caller-after", "crash-callee-before", "crash-callee-after"}, nodes: "yes",
			calls: func(e ledger.Entry) bool {
				return e.Hop == ledger.CSI || e.Hop == ledger.VCenter && !strings.HasPrefix(e.Op, "task:") || e.Hop == ledger.CSP ||
					e.Hop == ledger.Host && strings.HasPrefix(e.Component, "driver")
			},
			keep: func(c sweep.Call, kind string, _ int) bool {
				if c.Hop != ledger.CSI {
					return kind == "crash-caller-after"
				}
				return kind == "crash-callee-after" || kind == "crash-callee-before" && changes(c.Op)
			},
		}.sweep,
		Mutation:      "a provisioner that gives each attempt a new name, so that a retry can't find what the dead driver created",
		MutateOptions: newNames,
	})
	register(Scenario{
		Name:     "provider-crashed-at-every-call",
		Text:     "the storage provider is killed before and after each call that it gets, and after each call that it makes to the array; the life goes on",
		Labels:   []string{"fault", "sweep", "crash"},
		Backends: onArray,
		Sweep: lives{
			kinds: []string{"crash-caller-after", "crash-callee-before", "crash-callee-after"}, nodes: "no",
			calls: func(e ledger.Entry) bool {
				return e.Hop == ledger.CSP || e.Hop == ledger.WSAPI && e.Component == "csp"
			},
			keep: func(c sweep.Call, kind string, _ int) bool {
				if c.Hop == ledger.WSAPI {
					return kind == "crash-caller-after"
				}
				return kind == "crash-callee-after" || kind == "crash-callee-before" && !strings.HasPrefix(c.Op, "GET ")
			},
		}.sweep,
		Mutation:      "a provisioner that asks for the deletion of a volume that is not there",
		MutateOptions: deletesAnother,
	})
	register(Scenario{
		Name:     "array-refuses-every-call",
		Text:     "the array is too busy for every other call of a life once (503, code 270), and for the others its session is gone (403, code 6)",
		Labels:   []string{"fault", "sweep", "busy", "session"},
		Backends: onArray,
		Sweep: lives{
			kinds: []string{"error-retriable", "session-ended"}, nodes: "no",
			calls: func(e ledger.Entry) bool { return e.Hop == ledger.WSAPI },
			keep:  func(_ sweep.Call, _ string, i int) bool { return i/2%2 == i%2 },
		}.sweep,
		Mutation:      "a provisioner that asks for the deletion of a volume that is not there",
		MutateOptions: deletesAnother,
	})
	register(Scenario{
		Name:   "kubelet-restarted-at-every-call",
		Text:   "the kubelet is killed before and after each call that it makes; it finds its volumes again",
		Labels: []string{"fault", "sweep", "crash", "kubelet"},
		Sweep: lives{
			kinds: []string{"crash-caller-before", "crash-caller-after"}, nodes: "only",
			calls: func(e ledger.Entry) bool { return strings.HasPrefix(e.Component, "kubelet@") },
			keep: func(c sweep.Call, kind string, _ int) bool {
				return kind == "crash-caller-after" || changes(c.Op)
			},
		}.sweep,
		Mutation:      "a kubelet that finds only volumes with a pod directory at its restart (kubernetes#121937)",
		MutateOptions: func(o *sim.Options) { o.ForgetfulKubelets = true },
	})
}

// newNames makes each CreateVolume a call for another volume.
func newNames(o *sim.Options) {
	var n atomic.Int64
	o.AlterCSI = func(op string, req any) any {
		r, ok := req.(*csi.CreateVolumeRequest)
		if !ok {
			return req
		}
		r = proto.CloneOf(r)
		r.Name = fmt.Sprintf("%s-%d", r.Name, n.Add(1))
		return r
	}
}

// deletesAnother makes each DeleteVolume a call for a volume that is not there,
// which is no error.
func deletesAnother(o *sim.Options) {
	o.AlterCSI = func(op string, req any) any {
		r, ok := req.(*csi.DeleteVolumeRequest)
		if !ok {
			return req
		}
		r = proto.CloneOf(r)
		r.VolumeId = "pvc-00000000-0000-0000-0000-000000000000"
		return r
	}
}

// storage are the hops between drivers and their backends, and between the
// parts of a backend.
var storage = map[ledger.Hop]bool{ledger.VCenter: true, ledger.CSP: true, ledger.WSAPI: true}

// waits are calls that only wait or read in the background; the driver makes
// them at times of its own.
var waits = map[string]bool{"WaitForUpdatesEx": true, "CancelWaitForUpdates": true}

// changes says whether a CSI call changes something: only before those it makes
// a difference who is killed.
func changes(op string) bool { return !strings.Contains(op, "Get") && op != "Probe" }

// lives sweep whole lives of a volume with a few kinds of trouble.
type lives struct {
	kinds []string
	// nodes says whether calls of nodes are among those that are swept: yes, no or only.
	nodes string
	calls func(ledger.Entry) bool
	keep  func(c sweep.Call, kind string, index int) bool
}

// sweep runs a life once with nothing wrong, and once for each cell. Calls that
// never reach a node are swept on memory hosts, where a life is cheap, in virtual
// time if there are bubbles: the kind of node makes no difference to them.
func (s lives) sweep(ctx context.Context, opts sim.Options, rep Report) error {
	memory := opts
	memory.Host = "memory"
	var g errgroup.Group
	if s.nodes != "only" {
		g.Go(func() error {
			return s.part(ctx, memory, rep, "control plane and backend (memory hosts)", func(e ledger.Entry) bool { return !flow.OnNode(e) })
		})
	}
	if s.nodes != "no" {
		g.Go(func() error { return s.part(ctx, opts, rep, "nodes ("+opts.Host+" hosts)", flow.OnNode) })
	}
	return g.Wait()
}

func (s lives) part(ctx context.Context, opts sim.Options, rep Report, what string, side func(ledger.Entry) bool) error {
	life, _ := flow.Find("life")
	cfg := sweep.Config{
		Flows: []flow.Flow{life}, Systems: []sim.Options{opts}, Every: rep.Every, StopAfter: 1, Keep: s.keep,
		Calls:    func(e ledger.Entry) bool { return side(e) && s.calls(e) },
		Progress: func(_ *sweep.Part, _ sweep.Cell, done, all int) { rep.Live(fmt.Sprintf("%d of %d", done, all)) },
		Ledgers:  rep.Ledgers,
	}
	for _, name := range s.kinds {
		k, ok := sweep.FindKind(name)
		if !ok {
			return fmt.Errorf("no kind %q to sweep with: %w", name, errUnexpected)
		}
		cfg.Kinds = append(cfg.Kinds, k)
	}
	if rep.Bubbles != nil && opts.Host == "memory" {
		cfg.Bubbles = rep.Bubbles
		cfg.Systems[0].Timers, cfg.Systems[0].Settle = "", 0 // those of a real cluster: they cost nothing
	}
	r, err := sweep.Run(ctx, cfg)
	if err != nil {
		return err
	}
	p := r.Parts[0]
	if err := p.Err(); err != nil {
		return step(err, "the run without a fault")
	}
	for _, c := range p.Cells {
		if err := c.Err(); err != nil {
			return step(err, "cell %q (seed %d; ledger %s)", c.ID, p.Seed, c.Ledger)
		}
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if n := p.Possible; rep.Every > 1 {
		rep.Note(fmt.Sprintf("%s: every %d. of %d cells, %d", what, rep.Every, n, p.Chosen))
	}
	if p.Possible > 0 && p.Chosen == 0 {
		return nil // a share without a cell, as the note says
	}
	fired, idle := r.Count(sweep.Healed), r.Count(sweep.NoFault)
	rep.Note(fmt.Sprintf("%s: %d cells, %d faults fired and healed, %d did not come up again, %.1f s", what, fired+idle, fired, idle, r.Duration.Seconds()))
	for _, c := range p.Cells {
		if c.State == sweep.NoFault {
			rep.Note("did not fire: " + c.ID)
		}
	}
	if fired == 0 || idle*4 > fired+idle {
		return fmt.Errorf("%d of %d faults fired: %w", fired, fired+idle, errUnexpected)
	}
	return nil
}

package scenarios

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:   "reply-lost-on-every-controller-call",
		Text:   "the reply of each controller call of a life is lost after its commit, and of each call to the backend that the driver makes for it; nothing is done twice or forgotten",
		Labels: []string{"fault", "sweep", "lost-reply"},
		Sweep: func(ctx context.Context, opts sim.Options, rep Report) error {
			return sweep(ctx, opts, rep, sweepPlan{
				calls: func(e ledger.Entry) bool {
					// A task has no reply of its own: its end is read with the waits.
					return e.Hop == ledger.CSI && strings.HasPrefix(e.Component, "csi-") ||
						storage[e.Hop] && !waits[e.Op] && !strings.HasPrefix(e.Op, "task:")
				},
				phases: func(ledger.Entry) []fault.Phase { return after },
				action: func(ledger.Entry) fault.Action { return fault.Drop() },
			})
		},
		Mutation:      "a provisioner that gives each attempt a new name, so that a retry can't find what the lost call created",
		MutateOptions: newNames,
	})
	register(Scenario{
		Name:   "driver-crashed-at-every-call",
		Text:   "the driver is killed before and after each call that it gets and each call that it makes; the life goes on",
		Labels: []string{"fault", "sweep", "crash"},
		Sweep: func(ctx context.Context, opts sim.Options, rep Report) error {
			return sweep(ctx, opts, rep, sweepPlan{
				calls: func(e ledger.Entry) bool {
					switch e.Hop {
					case ledger.CSI:
						return true
					case ledger.VCenter, ledger.CSP:
						return !waits[e.Op]
					case ledger.Host:
						return strings.HasPrefix(e.Component, "driver")
					}
					return false
				},
				phases: aroundCSI,
				action: func(e ledger.Entry) fault.Action {
					switch {
					case e.Hop == ledger.CSI && strings.HasPrefix(e.Component, "kubelet@"):
						return fault.Crash("driver@" + strings.TrimPrefix(e.Component, "kubelet@"))
					case e.Hop == ledger.CSI && strings.HasPrefix(e.Component, "registrar@"):
						return fault.Crash("driver@" + strings.TrimPrefix(e.Component, "registrar@"))
					case e.Hop == ledger.Host:
						return fault.Crash(e.Component)
					}
					return fault.Crash("driver-controller")
				},
			})
		},
		Mutation:      "a provisioner that gives each attempt a new name, so that a retry can't find what the dead driver created",
		MutateOptions: newNames,
	})
	register(Scenario{
		Name:     "provider-crashed-at-every-call",
		Text:     "the storage provider is killed before and after each call that it gets, and after each call that it makes to the array; the life goes on",
		Labels:   []string{"fault", "sweep", "crash"},
		Backends: onArray,
		Sweep: func(ctx context.Context, opts sim.Options, rep Report) error {
			return sweep(ctx, opts, rep, sweepPlan{
				calls: func(e ledger.Entry) bool {
					return e.Hop == ledger.CSP || e.Hop == ledger.WSAPI && e.Component == "csp"
				},
				phases: func(e ledger.Entry) []fault.Phase {
					if e.Hop == ledger.CSP && !strings.HasPrefix(e.Op, "GET ") {
						return []fault.Phase{fault.Before, fault.After}
					}
					return after
				},
				action: func(ledger.Entry) fault.Action { return fault.Crash("csp") },
			})
		},
		Mutation:      "a provisioner that asks for the deletion of a volume that is not there",
		MutateOptions: deletesAnother,
	})
	register(Scenario{
		Name:     "array-refuses-every-call",
		Text:     "the array is too busy for each call of a life once (503, code 270), and once its session is gone (403, code 6)",
		Labels:   []string{"fault", "sweep", "busy", "session"},
		Backends: onArray,
		Sweep: func(ctx context.Context, opts sim.Options, rep Report) error {
			return sweep(ctx, opts, rep, sweepPlan{
				calls:  func(e ledger.Entry) bool { return e.Hop == ledger.WSAPI },
				phases: func(ledger.Entry) []fault.Phase { return []fault.Phase{fault.Before} },
				action: func(e ledger.Entry) fault.Action {
					if e.Seq%2 == 0 {
						return busy
					}
					return fault.Error(&array.Error{Kind: array.SessionKey, Reason: "invalid session key"})
				},
			})
		},
		Mutation:      "a provisioner that asks for the deletion of a volume that is not there",
		MutateOptions: deletesAnother,
	})
	register(Scenario{
		Name:   "kubelet-restarted-at-every-call",
		Text:   "the kubelet is killed before and after each call that it makes; it finds its volumes again",
		Labels: []string{"fault", "sweep", "crash", "kubelet"},
		Sweep: func(ctx context.Context, opts sim.Options, rep Report) error {
			return sweep(ctx, opts, rep, sweepPlan{
				calls: func(e ledger.Entry) bool {
					// The node status is written at times of its own, on all nodes alike.
					return strings.HasPrefix(e.Component, "kubelet@") &&
						(e.Hop != ledger.Kube || e.Op == "update-status pods" || e.Op == "delete pods")
				},
				phases: aroundCSI,
				action: func(e ledger.Entry) fault.Action { return fault.Crash(e.Component) },
			})
		},
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

// waits are calls that only wait or read in the background; the driver makes
// them at times of its own.
var waits = map[string]bool{"WaitForUpdatesEx": true, "CancelWaitForUpdates": true}

// storage are the hops between drivers and their backends, and between the
// parts of a backend.
var storage = map[ledger.Hop]bool{ledger.VCenter: true, ledger.CSP: true, ledger.WSAPI: true}

var after = []fault.Phase{fault.After}

// aroundCSI crashes before and after CSI calls that change something. Of the calls that the crashed
// component itself makes one after the other, "before the next" is "after this
// one": nothing has happened in between that lasts.
func aroundCSI(e ledger.Entry) []fault.Phase {
	if e.Hop == ledger.CSI && !strings.Contains(e.Op, "Get") && e.Op != "Probe" {
		return []fault.Phase{fault.Before, fault.After}
	}
	return after
}

type sweepPlan struct {
	calls  func(ledger.Entry) bool
	phases func(ledger.Entry) []fault.Phase
	action func(ledger.Entry) fault.Action
}

// cell is one (call, fault).
type cell struct {
	hop       ledger.Hop
	op        string
	component string
	nth       int
	phase     fault.Phase
	entry     ledger.Entry
	index     int
}

func (c cell) String() string {
	return fmt.Sprintf("%s %s/%s by %s, number %d", c.phase, c.hop, c.op, c.component, c.nth)
}

// sweep runs the life once clean, lists its calls, and runs it again once for
// each (call, phase) with the fault at just that call. Calls that never reach
// a node are swept on memory hosts, where a life is cheap: the kind of node
// makes no difference to them.
func sweep(ctx context.Context, opts sim.Options, rep Report, plan sweepPlan) error {
	memory := opts
	memory.Host = "memory"
	parts := []struct {
		what string
		opts sim.Options
		side func(ledger.Entry) bool
	}{
		{"control plane and backend (memory hosts)", memory, func(e ledger.Entry) bool { return !onNode(e) }},
		{"nodes (" + opts.Host + " hosts)", opts, onNode},
	}
	var g errgroup.Group
	for _, p := range parts {
		part := plan
		part.calls = func(e ledger.Entry) bool { return p.side(e) && plan.calls(e) }
		g.Go(func() error { return sweepPart(ctx, p.opts, rep, p.what, part) })
	}
	return g.Wait()
}

// onNode says whether a call is made on a node.
func onNode(e ledger.Entry) bool { return strings.Contains(e.Component, "@") }

// sweepPart sweeps the cells of one kind of lab. Several labs share them; a
// lab that is empty again after a cell takes the next one.
func sweepPart(ctx context.Context, opts sim.Options, rep Report, what string, plan sweepPlan) error {
	start := time.Now()
	cells, err := list(ctx, opts, plan)
	if err != nil {
		return step(err, "the clean run")
	}
	if n := rep.Every; n > 1 {
		all := len(cells)
		cells = slices.DeleteFunc(cells, func(c cell) bool { return (c.index+int(opts.Seed))%n != 0 })
		rep.Note(fmt.Sprintf("%s: every %d. of %d cells", what, n, all))
	}
	if len(cells) == 0 {
		return nil
	}
	var fired, idle atomic.Int64
	var mu sync.Mutex
	var idleCells []string
	queue := make(chan cell)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(queue)
		for _, c := range cells {
			select {
			case queue <- c:
			case <-gctx.Done():
				return nil
			}
		}
		return nil
	})
	for w := range min(opts.SweepWorkers(), len(cells)) {
		g.Go(func() error {
			wopts := opts
			wopts.Seed += uint64(w)
			lab, err := ready(gctx, wopts)
			if err != nil {
				return err
			}
			defer lab.Close()
			n := 0
			for c := range queue {
				n++
				did, err := runCell(gctx, lab, fmt.Sprintf("w%d-%d", w, n), c, plan.action(c.entry))
				if err != nil {
					return step(err, "cell %q (seed %d)", c, wopts.Seed)
				}
				if did {
					rep.Live(fmt.Sprintf("%d of %d", fired.Add(1)+idle.Load(), len(cells)))
				} else {
					idle.Add(1)
					mu.Lock()
					idleCells = append(idleCells, c.String())
					mu.Unlock()
				}
			}
			return lab.Close()
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	rep.Note(fmt.Sprintf("%s: %d cells, %d faults fired and healed, %d did not come up again, %.1f s", what, len(cells), fired.Load(), idle.Load(), time.Since(start).Seconds()))
	for _, c := range idleCells {
		rep.Note("did not fire: " + c)
	}
	if fired.Load() == 0 || idle.Load()*4 > int64(len(cells)) {
		return fmt.Errorf("%d of %d faults fired: %w", fired.Load(), len(cells), errUnexpected)
	}
	return nil
}

func ready(ctx context.Context, opts sim.Options) (*sim.Lab, error) {
	lab, err := sim.Start(ctx, opts)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(lab.NodesReady(ctx), lab.Apply(ctx, lab.Classes())); err != nil {
		return nil, errors.Join(err, lab.Close())
	}
	return lab, nil
}

// list runs the life in a lab of its own and lists its cells.
func list(ctx context.Context, opts sim.Options, plan sweepPlan) ([]cell, error) {
	lab, err := ready(ctx, opts)
	if err != nil {
		return nil, err
	}
	defer lab.Close()
	// Once to warm up (first logins, first look-ups), once to list.
	if err := life(ctx, lab, "warm"); err != nil {
		return nil, err
	}
	from := uint64(lab.Ledger.Len())
	if err := life(ctx, lab, "clean"); err != nil {
		return nil, err
	}
	type kind struct {
		hop           ledger.Hop
		op, component string
	}
	seen := map[kind]int{}
	var cells []cell
	for _, e := range lab.Ledger.Entries(ledger.After(from)) {
		if !plan.calls(e) {
			continue
		}
		k := kind{e.Hop, e.Op, e.Component}
		seen[k]++
		for _, p := range plan.phases(e) {
			cells = append(cells, cell{e.Hop, e.Op, e.Component, seen[k], p, e, len(cells)})
		}
	}
	return slices.Clip(cells), lab.Close()
}

// cellTime is how long one life with a fault may take; on an idle machine it is
// less than a second.
const cellTime = 3 * time.Minute

// runCell runs one life with one fault and says whether the fault fired.
func runCell(ctx context.Context, l *sim.Lab, name string, c cell, do fault.Action) (bool, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, cellTime, fmt.Errorf("the cell did not converge within %v", cellTime))
	defer cancel()
	armed := l.Inject(fault.Rule{Name: c.String(), Hop: c.hop, Op: c.op, Component: c.component, Nth: c.nth, Phase: c.phase, Do: do, MayNotFire: true})
	err := life(ctx, l, name)
	l.Disarm(armed)
	if err != nil {
		if v := l.Broken(context.WithoutCancel(ctx)); v != nil {
			err = errors.Join(v, err)
		}
		return armed.Fired() > 0, err
	}
	return armed.Fired() > 0, nil
}

// life is the flow that is swept: provision, attach, stage, publish, write,
// snapshot, restore, expand, unpublish, unstage, detach, delete.
func life(ctx context.Context, l *sim.Lab, name string) error {
	node := l.Nodes()[0]
	src, restored := claim(name+"-src", "fast", "256Mi"), claim(name+"-res", "fast", "256Mi", fromSnapshot(name))
	app, reader := name+"-app", name+"-reader"
	file, copied := "/"+src.Name+"/a", "/"+restored.Name+"/a"
	return steps(
		func() error { return l.Create(ctx, src) },
		func() error { _, err := l.Bound(ctx, src.Name); return err },
		func() error { return l.Create(ctx, pod(app, node, src)) },
		func() error { _, err := l.Running(ctx, app); return err },
		func() error { return l.Write(ctx, app, file, "one") },
		func() error { _, err := l.TakeSnapshot(ctx, name, src.Name, "snap"); return err },
		func() error { return l.Write(ctx, app, file, "two") },
		func() error { return l.Create(ctx, restored) },
		func() error { _, err := l.Bound(ctx, restored.Name); return err },
		func() error { return l.Create(ctx, pod(reader, node, restored)) },
		func() error { _, err := l.Running(ctx, reader); return err },
		func() error { return l.Expect(ctx, reader, copied, "one") },
		func() error { return l.Expect(ctx, app, file, "two") },
		func() error { return l.DeletePod(ctx, reader) },
		func() error { return l.DeletePVC(ctx, restored.Name) },
		func() error { return l.DeleteSnapshot(ctx, name) },
		func() error {
			if l.CanGrowOnline(src.Name) != nil {
				return nil
			}
			return steps(
				func() error { return l.Expand(ctx, src.Name, "512Mi") },
				func() error { return l.Expanded(ctx, src.Name, "512Mi") })
		},
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, app) },
		func() error { return l.DeletePVC(ctx, src.Name) },
		func() error { return l.Empty(ctx) },
	)
}
